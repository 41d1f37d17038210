"""Refusal of figures that a cell states and nobody can read, so that none is left out in silence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from accel_platform.events.types import ResultRecorded
from migrations.normalize.field_aliases import unread_figures
from migrations.normalize.records import Part, Record, refuse, value_at
from migrations.sources.documents import Document

_OUTCOMES = {"status", "success", "error", "compatible"}
_MAX_CHARACTERS = 60


def refuse_unread_figures(document: Document, parts: Iterable[Part]) -> Iterator[Part]:
    """Yield the parts, and beside each result a refusal of the figures in its cell that cannot be read.

    A result of which nothing else is known, neither another figure nor a failure, gives way to the refusal.
    """
    checked = set()
    for part in parts:
        cell = value_at(document.value, part.pointer) if isinstance(part, Record) else None
        unread = unread_figures(cell) if isinstance(cell, Mapping) else {}
        if not isinstance(part, Record) or not unread or not isinstance(cell, Mapping):
            yield part
            continue
        is_result = _has_speed(part.result) or (part.result.status != "ok" and not cell.keys().isdisjoint(_OUTCOMES))
        if is_result:
            yield part
        if part.pointer not in checked:
            checked.add(part.pointer)
            yield refuse(part.pointer, "unreadable_figure", _reason(unread, is_result=is_result), dict(cell))


def _reason(unread: Mapping[str, Any], *, is_result: bool) -> str:
    listed = ", ".join(f"{key} {value!r}"[:_MAX_CHARACTERS] for key, value in unread.items())
    without = "the result is kept without it" if is_result else "nothing else of the cell is known"
    return f"no figure: {listed}: {without}; write numbers such as 12.5 and import the file again"


def _has_speed(result: ResultRecorded) -> bool:
    return bool(result.samples_ns or result.latency_mean_ms or result.latency_p50_ms or result.throughput_items_per_s)
