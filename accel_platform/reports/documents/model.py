"""A report before it has a format: sections of text, tables and charts. Nothing is read or written here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import altair as alt

MOST_ROWS = 40
"""Rows of one table; the others are counted, and a command lists them."""


@dataclass(frozen=True)
class Table:
    """Rows that are shown, of how many, and the command that lists all."""

    title: str
    rows: Sequence[Mapping[str, Any]]
    total: int
    command: str | None = None
    empty: str = "None."

    @property
    def rest(self) -> str | None:
        """In words, what is not shown; None where all is."""
        if self.total <= len(self.rows):
            return None
        how = f" `{self.command}` lists all." if self.command else ""
        return f"{len(self.rows)} of {self.total:,} rows.{how}"


@dataclass(frozen=True)
class Picture:
    """A chart by its name in the registry, or why there is none."""

    name: str
    chart: alt.TopLevelMixin | None
    reason: str | None = None


@dataclass(frozen=True)
class Text:
    """One paragraph."""

    words: str


Part: TypeAlias = Text | Table | Picture


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    heading: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class Document:
    """A report; `facts` say of what: snapshot, dates, filters, counts."""

    title: str
    facts: Mapping[str, Any]
    sections: Sequence[Section] = field(default=())


def table(title: str, rows: Sequence[Mapping[str, Any]], command: str | None = None, *, empty: str = "None.") -> Table:
    """The first MOST_ROWS rows as a table that knows how many there are."""
    return Table(title, rows[:MOST_ROWS], len(rows), command, empty)
