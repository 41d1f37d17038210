"""Tables for terminals, Markdown and self-contained HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from numbers import Number
from statistics import median
from typing import Any

from accel_platform.table_io.values import display_text

Rows = Sequence[Mapping[str, Any]]

_MANY_COLUMNS = 8
"""Tables with more columns are set in small type on a page."""
_BLOCKS = "▁▂▃▄▅▆▇█"
_MARKDOWN = re.compile(r"([\\|`*\[\]])")
_STYLE = """
:root { color-scheme: light dark; --line: #8885; --soft: #8881; }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 75rem; padding: 0 1rem; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
.table { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding: .4rem 0; }
.table table { width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .3rem .7rem; text-align: left; vertical-align: top; }
td { overflow-wrap: break-word; } .many th, .many td { padding: .25rem .35rem; font-size: .8em; }
th { vertical-align: bottom; } tbody tr:nth-child(even) { background: var(--soft); }
.number { text-align: right; }
"""


@dataclass(frozen=True)
class Table:
    """A table: columns, which of them are numeric, and the rows in chunks for streaming."""

    columns: tuple[str, ...]
    numeric: tuple[bool, ...]
    parts: Iterable[Rows]


def table_of(rows: Rows) -> Table:
    """Return a table of rows in memory. Its columns are the union over all rows."""
    columns = columns_of(rows)
    known = {name: [row[name] for row in rows if row.get(name) is not None] for name in columns}
    return Table(columns, tuple(bool(known[c]) and all(map(_is_number, known[c])) for c in columns), (rows,))


def columns_of(rows: Rows) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for row in rows for name in row))


def terminal(table: Table) -> Iterator[str]:
    """Yield lines of an aligned table. All rows are read first, because the widest sets the width."""
    cells = [[display_text(row.get(column)) for column in table.columns] for rows in table.parts for row in rows]
    heads = [display_text(column) for column in table.columns]
    widths = [max(len(text), *(len(row[i]) for row in cells)) if cells else len(text) for i, text in enumerate(heads)]
    for line in (heads, ["-" * width for width in widths], *cells):
        yield "  ".join(
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, table.numeric, strict=True)
        ).rstrip()


def markdown(table: Table, title: str | None = None) -> Iterator[str]:
    """Yield lines of a GitHub table, with Markdown and HTML escaped."""
    if title:
        yield f"### {escape_markdown(title)}\n"
    yield _piped(map(escape_markdown, table.columns))
    yield _piped("---:" if right else "---" for right in table.numeric)
    for rows in table.parts:
        for row in rows:
            yield _piped(escape_markdown(row.get(column)) for column in table.columns)


def html_table(table: Table, caption: str | None = None) -> Iterator[str]:
    """Yield lines of an HTML table element, with all text escaped."""
    classes = [' class="number"' if right else "" for right in table.numeric]
    many = ' class="many"' if len(table.columns) > _MANY_COLUMNS else ""
    yield f'<div class="table"><table{many}>' + (f"<caption>{html.escape(caption)}</caption>" if caption else "")
    heads = zip(table.columns, classes, strict=True)
    # A long name may be broken after its underscores, so that it does not make its column wide.
    broken = ((html.escape(display_text(name)).replace("_", "_<wbr>"), c) for name, c in heads)
    yield "<thead><tr>" + "".join(f'<th scope="col"{c}>{name}</th>' for name, c in broken)
    yield "</tr></thead><tbody>"
    for rows in table.parts:
        for row in rows:
            cells = (
                (html.escape(display_text(row.get(name))), c) for name, c in zip(table.columns, classes, strict=True)
            )
            yield "<tr>" + "".join(f"<td{c}>{text}</td>" for text, c in cells) + "</tr>"
    yield "</tbody></table></div>"


def html_page(title: str, body: Iterable[str], *, head: str = "") -> Iterator[str]:
    """Yield lines of a self-contained HTML page. `body` and `head` (styles, scripts) are trusted HTML."""
    name = html.escape(title)
    yield '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
    yield f'<meta name="viewport" content="width=device-width, initial-scale=1"><title>{name}</title>'
    yield f"<style>{_STYLE}</style>{head}</head><body><main><h1>{name}</h1>"
    yield from body
    yield "</main></body></html>"


def sparkline(values: Sequence[float], width: int = 40) -> str:
    """Return values as block characters from minimum to maximum; more than `width` are reduced by medians."""
    if not values:
        return ""
    count = min(len(values), width)
    bounds = [round(i * len(values) / count) for i in range(count + 1)]
    course = [median(values[left:right]) for left, right in pairwise(bounds)]
    low, span = min(course), max(course) - min(course)
    return "".join(_BLOCKS[round((value - low) / span * 7)] if span else _BLOCKS[3] for value in course)


def escape_markdown(value: Any) -> str:
    """Escape a value for Markdown."""
    return _MARKDOWN.sub(r"\\\1", display_text(value).replace("&", "&amp;").replace("<", "&lt;"))


def _piped(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _is_number(value: Any) -> bool:
    return isinstance(value, Number) and not isinstance(value, bool)
