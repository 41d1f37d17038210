"""A user's own table of results: one row each, with the columns of `normalize/plain_columns.py`.

CSV, Parquet, or JSON: a list of flat objects, one object a line, or a single one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from accel_platform.events.types import Mode
from migrations.normalize.canonical_names import hardware_named, is_hardware
from migrations.normalize.field_aliases import named_figures
from migrations.normalize.plain_columns import ReadColumns, read_columns
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile, outcome, reason_unless_ok
from migrations.normalize.records import Part, Remark, child, refuse
from migrations.normalize.units import count
from migrations.sources.documents import Document

_ANY_RUNTIME = ("cpu", "cuda", "rocm", "mps")
"""Hardware names that say nothing of the runtime."""
_UNSTATED = "unstated"
_MODES: dict[str, Mode] = {
    "inference": "inference", "infer": "inference", "forward": "inference",
    "training": "training", "train": "training", "generation": "generation", "generate": "generation",
}  # fmt: skip
_COUNTS = ("batch_size", "sequence_length", "output_tokens")


LAST_RESORT = True


def detect(document: Document) -> float:
    """Return high confidence for a table with model, device and a figure; lower for a lone object."""
    columns = _columns(document)
    if not columns or not read_columns(columns).is_result_table:
        return 0.0
    return 0.8 if isinstance(document.value, dict) else 0.9


def parse(document: Document) -> Iterator[Part]:
    """Yield one record per row, and what the author should know of the columns."""
    columns = read_columns(_columns(document))
    for remark in columns.remarks():
        yield Remark(remark)
    if isinstance(document.value, dict):
        yield _row(document.source_path, "", document.value, columns)
        return
    for index, row in enumerate(document.value):
        yield _row(document.source_path, child("", index), row, columns)


def _columns(document: Document) -> tuple[str, ...]:
    """Return the columns of a table, or the keys of JSON whose objects are all flat; empty for anything else."""
    if document.kind in ("csv", "rows"):
        return document.columns
    if document.kind not in ("json", "json_lines"):
        return ()
    rows = document.value if isinstance(document.value, list) else [document.value]
    if not all(isinstance(row, dict) and not _has_members(row) for row in rows):
        return ()
    return tuple(dict.fromkeys(key for row in rows for key in row))


def _has_members(row: Mapping[str, Any]) -> bool:
    return any(isinstance(value, dict | list) for value in row.values())


def _row(source_path: str, pointer: str, row: Mapping[str, Any], columns: ReadColumns) -> Part:
    stated = {ours: row[theirs] for ours, theirs in columns.meanings.items() if row.get(theirs) not in (None, "")}
    device, runtime = stated.get("device"), stated.get("runtime")
    hardware = hardware_named(stated.get("hardware", device), runtime)
    if hardware is None:
        name = stated.get("hardware", device)
        reason = f"{name!r} does not say which hardware it is: add a column hardware (cpu, cuda, …)"
        return refuse(pointer, "hardware_unknown", reason, dict(row))
    mode = _MODES.get(str(stated.get("mode", "inference")).strip().casefold())
    if mode is None:
        reason = f"no mode is called {stated['mode']!r}: inference, training or generation"
        return refuse(pointer, "mode_unknown", reason, dict(row))
    named = device if isinstance(device, str) and not is_hardware(device.strip().casefold()) else None
    version = stated.get("runtime_version")
    software = {str(runtime).casefold(): str(version)} if runtime and version else {}
    image_size = count(stated.get("image_size"), at_least=1)
    cell = CellDraft(
        source_path,
        pointer,
        NamesInFile(
            (stated.get("model"),),
            hardware,
            precision=stated.get("precision"),
            runtime=runtime or (_UNSTATED if hardware in _ANY_RUNTIME else None),
        ),
        times=(stated.get("timestamp"),),
        machine=Machine(device_names={hardware: named} if named else {}, software=software),
        original={"stated": dict(row), **({"image_size": image_size} if image_size else {})},
    )
    figures = named_figures({ours: row.get(theirs) for ours, theirs in columns.figures.items()}, seconds=False)
    if not any(figures.values()) and "status" not in stated and "error" not in stated:
        return refuse(pointer, "figure_missing", _lacking_figure(row, columns), dict(row))
    status = outcome(stated.get("status"), figures=figures, error=stated.get("error"))
    sizes = {
        "mode": mode,
        **{name: count(stated.get(name), at_least=1) for name in _COUNTS},
        **{name: count(stated.get(name)) for name in ("iterations", "warmup_iterations")},
    }
    why = reason_unless_ok(status, stated.get("error"), stated.get("status"))
    return cell.result(status, {**sizes, **(figures if status == "ok" else {})}, reason=why)


def _lacking_figure(row: Mapping[str, Any], columns: ReadColumns) -> str:
    """Say what stands where a figure should, and how to write a figure or a failure."""
    given = [f"{theirs} {row[theirs]!r}" for theirs in columns.figures.values() if row.get(theirs) not in (None, "")]
    if not given:
        return "no figure: a run that failed needs status=failed, or an error"
    return f"no figure above zero: {', '.join(given)}: write it as 12.5, or a failure as status=failed"
