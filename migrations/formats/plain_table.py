"""A user's own table of results: one row each, with the columns of `normalize/plain_columns.py`.

CSV, Parquet, or JSON: a list of flat objects, one object a line, a single one, or one list with what its rows share.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from accel_platform.events.types import Mode
from migrations.normalize.canonical_names import NOT_STATED, hardware_named, is_hardware, silicon_in
from migrations.normalize.field_aliases import named_figures, token_figures, unit_in
from migrations.normalize.path_hints import given_names, hardware_part, spaced
from migrations.normalize.plain_columns import ReadColumns
from migrations.normalize.plain_rows import find_rows
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile, outcome, reason_unless_ok
from migrations.normalize.records import Part, RefusedCell, Remark, refuse
from migrations.normalize.units import count, number
from migrations.sources.documents import Document

_ANY_RUNTIME = ("cpu", "cuda", "rocm", "mps")
"""Hardware names that say nothing of the runtime."""
_UNSTATED = "unstated"
_MODES: dict[str, Mode] = {
    "inference": "inference", "infer": "inference", "forward": "inference",
    "training": "training", "train": "training", "generation": "generation", "generate": "generation",
    "decode": "generation",
}  # fmt: skip
_MAX_BESIDE = 8
_MAX_CHARACTERS = 40
_COUNTS = ("batch_size", "sequence_length", "output_tokens")


LAST_RESORT = True


def detect(document: Document) -> float:
    """Return high confidence for a table with model, device and a figure; lower for one object, or without a device."""
    table = find_rows(document)
    if table is None or not table.columns.is_result_table:
        return 0.0
    if not table.columns.names_place:
        return 0.6
    return 0.9 if table.is_list else 0.8


def parse(document: Document) -> Iterator[Part]:
    """Yield one record per row, and remarks on the columns for the table's author."""
    table = find_rows(document)
    if table is None:
        return
    for remark in table.columns.remarks(can_be_mapped=document.kind not in ("rows", "tables")):
        yield Remark(remark)
    for index, row in enumerate(table.rows):
        yield _row(document.source_path, table.pointer_of(index), row, table.columns)
    if table.beside:
        more = f" and {len(table.beside) - _MAX_BESIDE} more" if len(table.beside) > _MAX_BESIDE else ""
        reason = f"beside the rows, and not read: {', '.join(list(table.beside)[:_MAX_BESIDE])}{more}"
        yield refuse("", "beside_rows", reason, table.beside)


def _row(source_path: str, pointer: str, row: Mapping[str, Any], columns: ReadColumns) -> Part:
    stated = {ours: row[theirs] for ours, theirs in columns.meanings.items() if row.get(theirs) not in (None, "")}
    device, runtime = stated.get("device"), stated.get("runtime")
    place = None if columns.names_place else hardware_part(source_path)
    name = stated.get("hardware", device)
    if not columns.names_place:
        name = spaced(place) if place else runtime if hardware_named(runtime) in _ANY_RUNTIME else NOT_STATED
    hardware = hardware_named(name, runtime)
    if hardware is None:
        column = columns.meanings.get("hardware") or columns.meanings["device"]
        reason = f"{column} {name!r} does not say which hardware it is: add a column hardware (cpu, cuda, …)"
        return refuse(pointer, "hardware_unknown", reason, dict(row))
    given = _figures_with_units(pointer, row, columns)
    if isinstance(given, RefusedCell):
        return given
    of_tokens = token_figures(given)
    usual = "generation" if of_tokens else "inference"
    mode = _MODES.get(str(stated.get("mode", usual)).strip().casefold())
    if mode is None:
        reason = f"no mode is called {stated['mode']!r}: inference, training or generation"
        return refuse(pointer, "mode_unknown", reason, dict(row))
    named = device if isinstance(device, str) and not is_hardware(device.strip().casefold()) else None
    if place and not given_names().device:
        named = silicon_in(place)
    version = stated.get("runtime_version")
    software = {str(runtime).casefold(): str(version)} if runtime and version else {}
    image_size = count(stated.get("image_size"), at_least=1)
    cell = CellDraft(
        source_path,
        pointer,
        NamesInFile(
            (stated.get("model"),),
            name if name == NOT_STATED else hardware,
            precision=stated.get("precision"),
            runtime=runtime or (_UNSTATED if hardware in _ANY_RUNTIME else None),
        ),
        times=(stated.get("timestamp"),),
        machine=Machine(device_names={hardware: named} if named else {}, software=software),
        original={
            "stated": dict(row),
            "image_size": image_size,
            "said_by_path": {"hardware": place} if place else None,
        },
    )
    figures = {**named_figures(given, seconds=False), **of_tokens}
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


def _figures_with_units(pointer: str, row: Mapping[str, Any], columns: ReadColumns) -> dict[str, Any] | RefusedCell:
    """Return the row's figures by names that state their units; a refusal for a time without a unit."""
    given = {ours: row.get(theirs) for ours, theirs in columns.figures.items()}
    of_no_unit = [ours for ours, value in given.items() if unit_in(ours) == "" and _is_measured(value)]
    if of_no_unit and columns.unit is None:
        ours = of_no_unit[0]
        theirs = columns.figures[ours]
        stated_time = f"{theirs} {str(row[theirs])[:_MAX_CHARACTERS]}"
        reason = f"{stated_time} may be seconds or milliseconds: `--map {theirs}={ours}_s` says which it is"
        return refuse(pointer, "unit_missing", reason, dict(row))
    # A figure with its own unit goes first, because the first of one statistic is read.
    with_unit = {ours: value for ours, value in given.items() if ours not in of_no_unit}
    return with_unit | {name: given[ours] for ours in of_no_unit if (name := f"{ours}_{columns.unit}") not in with_unit}


def _is_measured(value: Any) -> bool:
    """Return whether a value is a time, or a list of them, without a unit of its own."""
    return any(map(_is_measured, value)) if isinstance(value, list) else (number(value) or 0) > 0


def _lacking_figure(row: Mapping[str, Any], columns: ReadColumns) -> str:
    """Return the reason for a row without a figure: the text in its place, and how to write a figure or a failure."""
    given = [f"{theirs} {row[theirs]!r}" for theirs in columns.figures.values() if row.get(theirs) not in (None, "")]
    if not given:
        return "no figure: a run that failed needs status=failed, or an error"
    return f"no figure above zero: {', '.join(given)}: write it as 12.5, or a failure as status=failed"
