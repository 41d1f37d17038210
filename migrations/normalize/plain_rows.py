"""Rows of a plain table in any document: CSV, Parquet, a database, flat JSON objects, or JSON that says once what all
rows share.

Benchmark scripts write `{"device": …, "config": {"batch_size": 8}, "results": [{…}, …]}`: what stands around the one
list of rows holds for each of them. An object whose figures stand in sections, `{"metrics": {…}}`, is a single row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Any

from migrations.normalize.canonical_names import hardware_named
from migrations.normalize.plain_columns import COLUMNS, ReadColumns, meaning_of, read_columns
from migrations.normalize.records import child
from migrations.sources.documents import Document

_SECTIONS = {
    "config", "configuration", "settings", "parameters", "params", "args", "arguments", "metadata", "meta", "setup",
    "benchmark", "run", "info", "metrics", "performance", "results", "result", "stats", "statistics", "summary",
    "benchmark_results",
}  # fmt: skip
"""Objects whose names add nothing to their members: `config.batch_size` is a batch_size."""
_MACHINES = {"system", "system_info", "environment", "env", "machine", "host", "hardware", "hardware_info", "platform"}
"""Objects that describe a machine; any of its devices may have run the model."""
_PLACES = ("device", "hardware")


@dataclass(frozen=True)
class PlainRows:
    """Rows of one table, each with all its columns, and what stands beside them."""

    pointer: str
    """Pointer to the list of rows; empty where the whole document is that list, or the one row."""
    rows: Sequence[Mapping[str, Any]]
    columns: ReadColumns
    is_list: bool = True
    beside: Mapping[str, Any] = field(default_factory=dict)
    """Members around the rows that are neither rows nor said of them, by pointer."""

    def pointer_of(self, index: int) -> str:
        return child(self.pointer, index) if self.is_list else self.pointer


def find_rows(document: Document) -> PlainRows | None:
    """Return the rows of a document; None where it has none, or several lists that may be of the same results."""
    value = document.value
    if document.kind in ("csv", "rows"):
        return PlainRows("", value, read_columns(document.columns)) if document.columns else None
    if document.kind not in ("json", "json_lines", "tables"):
        return None
    if isinstance(value, list):
        return PlainRows("", value, _columns(value)) if _are_rows(value) else None
    return _rows_around(value) if isinstance(value, dict) and value else None


def _rows_around(value: Mapping[str, Any]) -> PlainRows | None:
    lists = dict(_lists(value))
    around, beside = _said_once(value, set(lists))
    columns = _columns([around], _foreign_places(around))
    whole = PlainRows("", [around], columns, is_list=False, beside={**beside, **lists})
    tables = [_rows_within(pointer, lists, around, beside) for pointer in lists]
    found = [table for table in tables if table.columns.is_result_table]
    if len(found) > 1:
        return None
    return (found or ([whole] if columns.is_result_table else tables) or [whole])[0]


def _rows_within(
    pointer: str, lists: Mapping[str, Sequence[Mapping[str, Any]]], around: Mapping[str, Any], beside: Mapping[str, Any]
) -> PlainRows:
    # A figure beside the rows is of them all, such as their mean, and of none of them.
    shared = {key: said for key, said in around.items() if meaning_of(key) in (None, *COLUMNS)}
    own = {key for row in lists[pointer] for key in row}
    # A row's own column goes first, because the first of several of one meaning is read.
    rows = [{**row, **{key: said for key, said in shared.items() if key not in row}} for row in lists[pointer]]
    columns = _columns(rows, _foreign_places(shared) - own)
    others = {other: content for other, content in lists.items() if other != pointer}
    figures = {child("", key): said for key, said in around.items() if key not in shared}
    return PlainRows(pointer, rows, columns, beside={**beside, **figures, **others})


def _lists(value: Mapping[str, Any], pointer: str = "", depth: int = 2) -> Iterator[tuple[str, list[Any]]]:
    """Yield the lists of rows by pointer, down to the second level."""
    for key, member in value.items():
        at = child(pointer, key)
        if isinstance(member, list) and member and isinstance(member[0], dict) and _are_rows(member):
            yield at, member
        elif isinstance(member, dict) and depth > 1:
            yield from _lists(member, at, depth - 1)


def _said_once(value: Mapping[str, Any], rows: set[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the members that hold for all rows by column, and the other members by pointer.

    Members of a section are columns by their own name, others by both: `device.name` is a device_name.
    """
    said = {key: member for key, member in value.items() if not _is_part(member)}
    beside: dict[str, Any] = {}
    for key, member in value.items():
        at = child("", key)
        if key in said or at in rows:
            continue
        if not isinstance(member, dict):
            beside[at] = member
            continue
        is_section = str(key).strip().casefold() in _SECTIONS
        for name, inner in member.items():
            if child(at, name) in rows:
                continue
            if _is_part(inner):
                beside[child(at, name)] = inner
            else:
                said[name if is_section and name not in said else f"{key}.{name}"] = inner
    return said, beside


def _foreign_places(said: Mapping[str, Any]) -> set[str]:
    """Return the columns that only look like the device: a machine's parts, of which any may have run the model, or an
    operating system."""
    return {
        key
        for key, member in said.items()
        if meaning_of(key) in _PLACES
        and (hardware_named(member) is None or ("." in key and key.partition(".")[0].casefold() in _MACHINES))
    }


def _columns(rows: Sequence[Mapping[str, Any]], foreign: Set[str] = frozenset()) -> ReadColumns:
    every = tuple(dict.fromkeys(str(key) for row in rows for key in row))
    read = read_columns(tuple(column for column in every if column not in foreign))
    taken = {*read.meanings.values(), *read.figures.values()}
    return replace(read, unread=tuple(column for column in every if column not in taken))


def _are_rows(values: Sequence[Any]) -> bool:
    """Return whether all are objects in which nothing that is read has parts; an input's shape may be a list."""
    return bool(values) and all(
        isinstance(row, dict)
        and not any(isinstance(member, dict | list) and meaning_of(str(key)) is not None for key, member in row.items())
        for row in values
    )


def _is_part(member: Any) -> bool:
    return isinstance(member, dict) or (isinstance(member, list) and any(isinstance(m, dict | list) for m in member))
