"""The 22-column CSV of framework comparisons: one row per model, device, batch and dtype; an empty cell is unknown."""

from __future__ import annotations

import re
from collections.abc import Iterator

from migrations.normalize.canonical_names import hardware_named, is_hardware
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile, status_of
from migrations.normalize.records import Record, RefusedCell, child
from migrations.normalize.units import count, quantity
from migrations.sources.documents import Document

_NEEDED = {"framework", "model", "device_type", "batch_size", "throughput_ips"}
_UNITS = {"latency": "ms", "throughput_ips": "items/s", "memory_mb": "MiB, written MB", "compilation_time_ms": "ms"}
_LATENCIES = tuple(f"latency_{name}_ms" for name in ("mean", "p50", "p95", "p99", "min", "max", "std"))
_TOKENS = re.compile(r"\d+\s*[x,]\s*(?P<length>\d+)")
_FAILURE = re.compile(r"(?:^|; )(?P<status>failed|timeout): (?P<reason>.*)$")
"""Note that this platform writes for a cell without figures."""
_THREADS = re.compile(r"\b(?P<threads>\d+) threads?\b")


def detect(document: Document) -> float:
    """Return high confidence by its columns."""
    return 0.95 if document.kind == "csv" and set(document.columns) >= _NEEDED else 0.0


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per row."""
    for index, row in enumerate(document.value):
        yield _row(document.source_path, child("", index), row)


def _row(source_path: str, pointer: str, row: dict[str, str]) -> Record | RefusedCell:
    hardware = hardware_named(row["device_type"], row["framework"])
    device = row.get("device", "").strip()
    threads = _THREADS.search(row.get("notes", ""))
    cell = CellDraft(
        source_path,
        pointer,
        NamesInFile((row["model"],), row["device_type"], precision=row.get("dtype"), runtime=row["framework"]),
        times=(row.get("timestamp"),),
        machine=Machine(
            # `device` may only say `cpu` again, which names no piece of silicon.
            device_names={hardware: device} if hardware and device and not is_hardware(device.casefold()) else {},
            threads=count(threads["threads"], at_least=1) if threads else None,
        ),
        original={name: row.get(name) for name in ("device", "input_shape", "git_commit", "notes")},
    )
    figures = {
        "batch_size": count(row["batch_size"], at_least=1),
        "sequence_length": _length(row.get("input_shape") or ""),
        "warmup_iterations": count(row.get("warmup_iterations")),
        "iterations": count(row.get("measurement_iterations")),
        "throughput_items_per_s": quantity(row["throughput_ips"]),
        "memory_peak_mib": quantity(row.get("memory_mb")),
        "compile_ms": quantity(row.get("compilation_time_ms")),
        **{name: quantity(row.get(name)) for name in _LATENCIES},
    }
    if failure := _FAILURE.search(row.get("notes", "")):
        return cell.result(status_of(failure["status"]), figures, reason=failure["reason"])
    return cell.result("ok", figures, units=_UNITS)


def _length(shape: str) -> int | None:
    """Return the tokens of a shape with two dimensions, `4x128` or `(4, 128)`; None for pictures."""
    tokens = _TOKENS.fullmatch(shape.strip(" ()[]"))
    return count(tokens["length"], at_least=1) if tokens else None
