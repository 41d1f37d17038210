"""Tables for people: in a terminal, as Markdown, and as HTML that needs nothing beside itself. Files are `files.py`."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Number
from statistics import median
from typing import Any

from accel_platform.table_io.values import shown

Rows = Sequence[Mapping[str, Any]]

_BLOCKS = "▁▂▃▄▅▆▇█"
_MARKDOWN = re.compile(r"([\\|`*\[\]])")
_STYLE = """
:root { color-scheme: light dark; --line: #8885; --soft: #8881; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
.table { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .4rem 0; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .7rem; text-align: left; vertical-align: top; }
th { white-space: nowrap; } tbody tr:nth-child(even) { background: var(--soft); }
.number { text-align: right; }
"""


@dataclass(frozen=True)
class Table:
    """Columns, whether each holds numbers alone, and the rows in parts, so that many need not be there at once."""

    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    parts: Iterable[Rows]


def table_of(rows: Rows) -> Table:
    """Rows that are all there; a column of any of them is one of the table."""
    columns = columns_of(rows)
    told = {name: [row[name] for row in rows if row.get(name) is not None] for name in columns}
    return Table(columns, tuple(bool(told[c]) and all(map(_is_number, told[c])) for c in columns), (rows,))


def columns_of(rows: Rows) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for row in rows for name in row))


def terminal(table: Table) -> Iterator[str]:
    """Lines of an aligned table. All rows are read before the first line: it is as wide as the widest."""
    cells = [[shown(row.get(column)) for column in table.columns] for rows in table.parts for row in rows]
    heads = [shown(column) for column in table.columns]
    widths = [max(len(text), *(len(row[i]) for row in cells)) if cells else len(text) for i, text in enumerate(heads)]
    for line in (heads, ["-" * width for width in widths], *cells):
        yield "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, table.numeric, strict=True)
        ).rstrip()


def markdown(table: Table, title: str | None = None) -> Iterator[str]:
    """Lines of a GitHub table; what Markdown or HTML would read in a cell is escaped."""
    if title:
        yield f"### {in_markdown(title)}\n"
    yield _piped(map(in_markdown, table.columns))
    yield _piped("---:" if right else "---" for right in table.numeric)
    for rows in table.parts:
        for row in rows:
            yield _piped(in_markdown(row.get(column)) for column in table.columns)


def html_table(table: Table, caption: str | None = None) -> Iterator[str]:
    """Lines of a table element for any page; every text in it is escaped."""
    classes = [' class="number"' if right else "" for right in table.numeric]
    yield '<div class="table"><table>' + (f"<caption>{html.escape(caption)}</caption>" if caption else "")
    heads = zip(table.columns, classes, strict=True)
    yield "<thead><tr>" + "".join(f'<th scope="col"{c}>{html.escape(shown(name))}</th>' for name, c in heads)
    yield "</tr></thead><tbody>"
    for rows in table.parts:
        for row in rows:
            cells = ((html.escape(shown(row.get(name))), c) for name, c in zip(table.columns, classes, strict=True))
            yield "<tr>" + "".join(f"<td{c}>{text}</td>" for text, c in cells) + "</tr>"
    yield "</tbody></table></div>"


def html_page(title: str, body: Iterable[str], *, head: str = "") -> Iterator[str]:
    """Lines of one page that works offline. `body` and `head` (styles, scripts) are HTML already."""
    name = html.escape(title)
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    yield f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{name}</title>'
    yield f"<style>{_STYLE}</style>{head}</head><body><main><h1>{name}</h1>"
    yield from body
    yield "</main></body></html>"


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """The course of values between their least and greatest, in blocks; more than `width` by medians of neighbours."""
    if not values:
        return ""
    count = min(len(values), width)
    bounds = [round(i * len(values) / count) for i in range(count + 1)]
    course = [median(values[left:right]) for left, right in pairwise(bounds)]
    low, span = min(course), max(course) - min(course)
    return "".join(_BLOCKS[round((value - low) / span * 7)] if span else _BLOCKS[3] for value in course)


def in_markdown(value: Any) -> str:
    """A value as Markdown that says no more than its text."""
    return _MARKDOWN.sub(r"\\\1", shown(value).replace("&", "&amp;").replace("<", "&lt;"))


def _piped(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _is_number(value: Any) -> bool:
    return isinstance(value, Number) and not isinstance(value, bool)
