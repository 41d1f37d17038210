"""Silicon tables of aiconfigurator: milliseconds to the first token and per output token of LLM serving.

Disaggregated rows run prefill and decode on different machines, so batch and device stay unknown there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from migrations.normalize.canonical_names import hardware_named
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import Record, RefusedCell
from migrations.normalize.row_access import pick, rows_of, share_of_rows, text_of
from migrations.normalize.units import count, quantity
from migrations.sources.documents import Document

_FIRST = ("silicon_ttft_ms", "ttft_ms", "ttft")
_EACH = ("silicon_tpot_ms", "tpot_ms", "tpot")
_MEASURED = re.compile(r"measured=([^;]+)")
_CONCURRENCY = re.compile(r"concurrency=(\d+)")
_PERSONAL = re.compile(r"source_file=/Users/\S*?/data/")
"""Folder of the person who collected a table."""
_DERIVED = "latency_mean_ms = first token + (output tokens - 1) x time per output token"


def detect(document: Document) -> float:
    """Return high confidence by its columns."""
    return 0.95 * share_of_rows(document, "model_path", "system", "isl", "osl", "silicon_ttft_ms", "silicon_tpot_ms")


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per row: a request's whole time follows from its two parts and says that it is derived."""
    for pointer, row in rows_of(document):
        first, each = quantity(pick(row, *_FIRST)), quantity(pick(row, *_EACH))
        output = count(pick(row, "osl"), at_least=1)
        whole = first + (output - 1) * each if first and each and output else None
        cell = _cell(document.source_path, pointer, row, derived=_DERIVED if whole else None)
        figures: dict[str, Any] = {
            "mode": "generation",
            "batch_size": None if row.get("mode") == "disagg" else count(pick(row, "batch_size"), at_least=1),
            "sequence_length": count(pick(row, "isl"), at_least=1),
        }
        if first is None and each is None:
            yield cell.result("failed", figures, reason="the row holds no figure")
            continue
        figures |= {
            "output_tokens": output,
            "time_to_first_token_ms": first,
            "time_per_output_token_ms": each,
            "latency_mean_ms": whole,
        }
        yield cell.result("ok", figures, units={"silicon_ttft_ms": "ms", "silicon_tpot_ms": "ms"})


def _cell(source_path: str, pointer: str, row: dict[str, Any], *, derived: str | None) -> CellDraft:
    system, backend = text_of(row["system"]), text_of(pick(row, "backend"))
    hardware = hardware_named(system)
    source = _PERSONAL.sub("source_file=", str(row.get("silicon_data_source") or ""))
    measured = _MEASURED.search(source)
    concurrency = _CONCURRENCY.search(source)
    devices = _devices(row)
    name = f"{devices} x {system}" if devices and devices > 1 else system if devices else None
    version = text_of(pick(row, "backend_version"))
    known = {key: pick(row, key) for key in row if key not in ("silicon_data_source", *_FIRST, *_EACH)}
    layout = {key: known[key] for key in known if key.endswith(("_size", "_workers", "_mode")) or key == "mode"}
    return CellDraft(
        source_path,
        pointer,
        NamesInFile((row["model_path"],), system, precision=pick(row, "precision", "gemm_quant_mode"), runtime=backend),
        times=(measured[1] if measured else None,),
        machine=Machine(
            device_names={hardware: name} if hardware and name else {},
            software={backend: version or "unknown version"} if backend else {},
            settings={key: value for key, value in layout.items() if key != "batch_size" and value is not None},
        ),
        original={
            "configuration": {key: value for key, value in known.items() if value is not None},
            "source": source,
            "concurrency": count(concurrency[1], at_least=1) if concurrency else None,
            "devices": devices,
            "derived": derived,
        },
    )


def _devices(row: dict[str, Any]) -> int | None:
    """Return the accelerators of an aggregated deployment: tensor x pipeline x data parallel; None if one is
    unknown.
    """
    if row.get("mode") == "disagg":
        return None
    tensor = count(pick(row, "tp_size"), at_least=1)
    pipeline = count(pick(row, "pp_size"), at_least=1)
    return tensor * pipeline if tensor and pipeline else None
