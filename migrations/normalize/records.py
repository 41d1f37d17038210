"""Parts of a document as readers yield them: results, refused cells, embedded documents, parts without results."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from accel_platform.events.types import ResultRecorded


@dataclass(slots=True)  # not frozen, because it is made for each row of a table
class Record:
    """One result cell. `pointer` is the JSON pointer of the cell inside its document (`/row/3` in a CSV)."""

    result: ResultRecorded
    pointer: str
    occurred_at: datetime | None = None
    host_id: str | None = None


@dataclass(frozen=True)
class RefusedCell:
    """A cell that could not become a result, kept as it came, with the rule it broke."""

    pointer: str
    rule: str
    reason: str
    content: str


@dataclass(frozen=True)
class EmbeddedDocument:
    """A whole document inside another one. The importer gives it back to the formats and to the ledger as its own."""

    pointer: str
    value: Any


@dataclass(frozen=True)
class NoResult:
    """A part that was understood and holds no result, with its kind (a log, a cell that was never run)."""

    pointer: str
    reason: str


@dataclass(frozen=True)
class Remark:
    """Something that the document's author should know, such as a column that was not read."""

    reason: str


Part = Record | RefusedCell | EmbeddedDocument | NoResult | Remark
"""Parts of a document that a reader may yield."""


def refuse(pointer: str, rule: str, reason: str, content: Any) -> RefusedCell:
    """Refuse one value of a document, kept as JSON text."""
    return RefusedCell(pointer, rule, reason, json.dumps(content, ensure_ascii=False, default=str))


def child(pointer: str, key: str | int) -> str:
    """Return the pointer of a member, escaped by RFC 6901."""
    if isinstance(key, int):
        return f"{pointer}/{key}"
    return f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"


def members_of(value: Any) -> Iterable[tuple[Any, Any]]:
    """Return keys and values of an object, or indexes and values of a list; nothing for any other value."""
    if isinstance(value, dict):
        return value.items()
    return enumerate(value) if isinstance(value, list) else ()


def value_at(value: Any, pointer: str) -> Any:
    """Return the value that a pointer leads to; None where it leads nowhere."""
    for step in pointer.split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, list):
            value = value[int(name)] if name.isdecimal() and int(name) < len(value) else None
        else:
            value = value.get(name) if isinstance(value, dict) else None
    return value


def pointer_to(*steps: str | int) -> str:
    """Return the pointer that leads through these keys and indexes."""
    pointer = ""
    for step in steps:
        pointer = child(pointer, step)
    return pointer
