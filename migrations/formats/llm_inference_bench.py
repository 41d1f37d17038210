"""LLM-Inference-Bench: seconds and tokens/s of a whole generation, per hardware, framework, model, length and batch.

Input and output have one length. Throughput counts the tokens of both; it stays a statement, for it is no rate of
items. Power is milliwatts. With llama.cpp the batch is that of `llama-bench -b`, tokens of one prompt that are read at
once. Each row is then of one request: its throughput leaves the batch out, and a larger batch takes less time in all.
"""

from __future__ import annotations

from collections.abc import Iterator

from migrations.normalize.canonical_names import hardware_named
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import Record, RefusedCell
from migrations.normalize.row_access import pick, rows_of, share_of_rows, text_of
from migrations.normalize.units import MS_PER_S, count, quantity, scaled
from migrations.sources.documents import Document

_NEEDED = ("Hardware", "Framework", "Model", "Batch Size", "Latency", "Throughput")
_MAX_RATIO = 1.25


def detect(document: Document) -> float:
    """Return high confidence by its columns."""
    return 0.95 * share_of_rows(document, *_NEEDED)


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per row."""
    for pointer, row in rows_of(document):
        hardware, framework = text_of(row["Hardware"]), text_of(row["Framework"])
        named = hardware_named(hardware)
        devices = count(row.get("Num of Hardware"), at_least=1)
        length = count(pick(row, "Input Output Length", "Input Length"), at_least=1)
        output = count(pick(row, "Output Length", "Input Output Length"), at_least=1)
        batch = count(row["Batch Size"], at_least=1)
        latency_ms = scaled(pick(row, "Latency"), MS_PER_S)
        tokens = quantity(pick(row, "Throughput"))
        at_once = batch if _is_of_one_request(batch, length, output, latency_ms, tokens) else None
        name = f"{devices} x {hardware}" if hardware and devices and devices > 1 else hardware
        cell = CellDraft(
            document.source_path,
            pointer,
            NamesInFile((row["Model"],), hardware, runtime=framework, precision=pick(row, "Precision", "dtype")),
            machine=Machine(
                device_names={named: name} if named and name else {},
                software={framework: "unknown version"} if framework else {},
                settings={"devices": devices},
            ),
            original={
                "devices": devices,
                "stated": {"throughput_tokens_per_s": tokens, "average_power_mw": quantity(pick(row, "avg_power"))},
                "prompt_tokens_at_once": at_once,
            },
        )
        figures = {
            "mode": "generation",
            "batch_size": 1 if at_once else batch,
            "sequence_length": length,
            "output_tokens": output,
            "latency_mean_ms": latency_ms,
        }
        if latency_ms is None and tokens is None:
            yield cell.result("failed", {**figures, "output_tokens": None}, reason="the row holds no figure")
        else:
            yield cell.result("ok", figures, units={"Latency": "s per batch", "Throughput": "tokens/s, in and out"})


def _is_of_one_request(
    batch: int | None, into: int | None, out: int | None, ms: float | None, tokens: float | None
) -> bool:
    """Return whether the stated tokens/s are those of one request in the latency of the row, and not of the batch."""
    if not (batch and into and out and ms and tokens) or batch == 1:
        return False
    of_one = (into + out) * MS_PER_S / ms
    return 1 / _MAX_RATIO <= tokens / of_one <= _MAX_RATIO
