"""Format-independent report: sections of findings, charts, text and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import altair as alt

from accel_platform.table_io.text import Rows
from accel_platform.table_io.width import without_constant_columns

MOST_ROWS = 40
"""Rows of a table that readable formats show. A command lists the others."""


@dataclass(frozen=True)
class ReportTable:
    """A table with all its rows, and the command that lists them."""

    title: str
    rows: Sequence[Mapping[str, Any]]
    command: str | None = None
    empty: str = "None."

    @property
    def first(self) -> Sequence[Mapping[str, Any]]:
        """The rows shown by readable formats; data formats have all."""
        return self.rows[:MOST_ROWS]

    def shown(self) -> tuple[Rows, list[str]]:
        """Return the first rows without the columns that are the same in all of them, and remarks on what is left out.

        For formats that people read.
        """
        rows, shared = without_constant_columns(self.first)
        remarks = (shared and f"{shared[0].upper()}{shared[1:]}.", self.rest)
        return rows, [remark for remark in remarks if remark]

    @property
    def rest(self) -> str | None:
        """A sentence on the rows not shown; None if all are shown."""
        if len(self.rows) <= MOST_ROWS:
            return None
        how = f"`{self.command}` lists all, and so does" if self.command else "All are in"
        return f"{MOST_ROWS} of {len(self.rows):,} rows. {how} this report as JSON, CSV, Parquet or XLSX."


@dataclass(frozen=True)
class Picture:
    """A chart by its registry name with the command that draws it, or the reason it is missing."""

    name: str
    chart: alt.TopLevelMixin | None
    reason: str | None = None
    command: str = ""


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    words: str


@dataclass(frozen=True)
class Finding:
    """A sentence on what the figures say, and the command that shows its evidence."""

    words: str
    evidence: str


@dataclass(frozen=True)
class Findings:
    """Findings of a report, the most important first."""

    items: Sequence[Finding]


Part: TypeAlias = Text | Findings | ReportTable | Picture


@dataclass(frozen=True)
class Section:
    """A heading with its content."""

    heading: str
    parts: Sequence[Part]


@dataclass(frozen=True)
class ReportDocument:
    """A report. `facts` holds its snapshot, dates, filters and counts."""

    title: str
    facts: Mapping[str, Any]
    sections: Sequence[Section] = field(default=())
