"""A report before it has a format: sections of text, tables and charts. Nothing is read or written here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import altair as alt

MOST_ROWS = 40
"""Rows of one table that people are shown; the others are counted, and a command lists them."""


@dataclass(frozen=True)
class ReportTable:
    """All its rows, and the command that lists them too."""

    title: str
    rows: Sequence[Mapping[str, Any]]
    command: str | None = None
    empty: str = "None."

    @property
    def first(self) -> Sequence[Mapping[str, Any]]:
        """The rows for people; formats for machines have all."""
        return self.rows[:MOST_ROWS]

    @property
    def rest(self) -> str | None:
        """In words, what people are not shown; None where all is."""
        if len(self.rows) <= MOST_ROWS:
            return None
        how = f"`{self.command}` lists all, and so does" if self.command else "All are in"
        return f"{MOST_ROWS} of {len(self.rows):,} rows. {how} this report as JSON, CSV, Parquet or XLSX."


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


Part: TypeAlias = Text | ReportTable | Picture


@dataclass(frozen=True)
class Section:
    """A heading and what stands below it."""

    heading: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class ReportDocument:
    """A report; `facts` say of what: snapshot, dates, filters, counts."""

    title: str
    facts: Mapping[str, Any]
    sections: Sequence[Section] = field(default=())
