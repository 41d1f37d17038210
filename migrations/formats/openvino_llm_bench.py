"""OpenVINO GenAI's `llm_bench` CSV: one row per iteration of a whole generation, with the latencies of its tokens.

`latency(ms)` is of one token. Rows of one prompt are its iterations, the first (0) a warm-up; rows of averages follow.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from migrations.normalize.canonical_names import NOT_STATED
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import Record, RefusedCell
from migrations.normalize.row_access import pick, rows_of, share_of_rows, text_of
from migrations.normalize.units import MIB_PER_MB, MS_PER_S, count, quantity, scaled
from migrations.sources.documents import Document
from migrations.tools import benchmark_app

_NEEDED = ("iteration", "model", "device", "generation_time(s)", "latency(ms)")
_UNITS = {"generation_time(s)": "s", "latency(ms)": "ms per token", "1st_latency(ms)": "ms", "max_rss_mem(MB)": "MB"}


def detect(document: Document) -> float:
    """Return high confidence by its columns."""
    return 0.95 * share_of_rows(document, *_NEEDED)


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per iteration."""
    for pointer, row in rows_of(document):
        cell = _cell(document.source_path, pointer, row)
        size = {
            "mode": "generation",
            "batch_size": count(pick(row, "batch_size"), at_least=1),
            "sequence_length": count(pick(row, "input_size"), at_least=1),
            "output_tokens": count(pick(row, "output_size"), at_least=1),
        }
        figures: dict[str, Any] = {
            "latency_mean_ms": scaled(pick(row, "generation_time(s)"), MS_PER_S),
            "time_to_first_token_ms": quantity(pick(row, "1st_latency(ms)")),
            "time_per_output_token_ms": quantity(pick(row, "2nd_avg_latency(ms)", "latency(ms)")),
            "load_ms": scaled(pick(row, "pretrain_time(s)"), MS_PER_S),
            "memory_peak_mib": scaled(pick(row, "max_rss_mem(MB)"), MIB_PER_MB) or None,
        }
        if not any(figures[name] for name in ("latency_mean_ms", "time_per_output_token_ms", "time_to_first_token_ms")):
            yield cell.result("failed", {**size, "load_ms": figures["load_ms"]}, reason="the row holds no time")
        else:
            yield cell.result("ok", {**size, **figures}, units=_UNITS)


def _cell(source_path: str, pointer: str, row: Mapping[str, Any]) -> CellDraft:
    framework, device = text_of(pick(row, "framework")), text_of(pick(row, "device"))
    runs_openvino = framework in (None, "ov", "openvino")
    hardware, silicon = benchmark_app.place_of(device, source_path) if runs_openvino else (device, None)
    return CellDraft(
        source_path,
        pointer,
        NamesInFile(
            (row.get("model"),),
            hardware or NOT_STATED,
            precision=pick(row, "precision"),
            runtime="openvino" if runs_openvino else framework,
        ),
        machine=Machine(
            device_names={"openvino": silicon} if silicon else {},
            settings={"num_beams": pick(row, "num_beams"), "device": device},
        ),
        original={
            "hardware": device or NOT_STATED,
            **({"said_by_path": {"hardware": silicon}} if silicon else {}),
            "iteration": pick(row, "iteration"),
            "prompt": pick(row, "prompt_idx"),
            "stated": {
                name: quantity(pick(row, name))
                for name in ("tokenization_time", "detokenization_time", "max_uss_mem(MB)", "max_shared_mem(MB)")
                if quantity(pick(row, name)) is not None
            },
        },
    )
