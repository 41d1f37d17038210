"""Refusal of figures that a cell states and nobody can read, so that none is left out in silence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from accel_platform.events.types import ResultRecorded
from migrations.normalize.field_aliases import is_missing, unread_figures
from migrations.normalize.records import Part, Record, RefusedCell, refuse, value_at
from migrations.normalize.units import count
from migrations.sources.documents import Document

_OUTCOMES = {"status", "success", "error", "compatible"}
_SPEEDS = ("latency_", "samples_ns", "throughput_", "time_to_first_token_", "time_per_output_token_")
_MAX_CHARACTERS = 60


def refuse_unread_figures(document: Document, parts: Iterable[Part]) -> Iterator[Part]:
    """Yield the parts, and beside each result a refusal of the figures in its cell that cannot be read.

    A result of which nothing else is known, neither another figure nor a failure, gives way to the refusal.
    """
    checked = set()
    for part in parts:
        cell = value_at(document.value, part.pointer) if isinstance(part, Record) else None
        if not isinstance(part, Record) or not isinstance(cell, Mapping):
            yield part
            continue
        unread, works = unread_figures(cell), part.result.status == "ok"
        states_failure = not works and not cell.keys().isdisjoint(_OUTCOMES)
        is_result = not unread or _has_speed(part.result) or states_failure
        if is_result:
            yield part
        if works and _is_no_size(cell.get("batch_size")):
            unread["batch_size"] = cell["batch_size"]
        if unread and part.pointer not in checked:
            checked.add(part.pointer)
            yield refuse_figures(part.pointer, unread, cell, is_result=is_result)


def refuse_figures(pointer: str, unread: Mapping[str, Any], cell: Mapping[str, Any], *, is_result: bool) -> RefusedCell:
    """Refuse some figures of a cell. `is_result` says whether the rest of it is one."""
    listed = ", ".join(f"{key} {value!r}"[:_MAX_CHARACTERS] for key, value in unread.items())
    without = "the result is kept without it" if is_result else "nothing else of the cell is known"
    reason = f"no figure: {listed}: {without}; write numbers such as 12.5 and import the file again"
    return refuse(pointer, "unreadable_figure", reason, dict(cell))


def _is_no_size(value: Any) -> bool:
    return not isinstance(value, list | dict) and not is_missing(value) and count(value, at_least=1) is None


def _has_speed(result: ResultRecorded) -> bool:
    return any(getattr(result, name) for name in ResultRecorded.model_fields if name.startswith(_SPEEDS))
