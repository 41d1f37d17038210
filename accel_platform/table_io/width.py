"""Tables made to fit the width of a terminal, with remarks on what that took."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import compress
from typing import Any

from accel_platform.table_io.text import Rows, Table, table_of
from accel_platform.table_io.values import display_text

_GAP = 2
_MIN_TEXT_WIDTH = 14
"""Text is not cut shorter than this; rather the last columns are left out."""
_MIN_NAME_WIDTH = 32
"""The same of the first column, which tells the rows apart."""
_LAST_NAME_WIDTH = 20
"""The same where nothing else gives way."""
_NAME_END = 8
"""Characters of a name's end that stay: the hash of a device id."""


def fit_table(
    rows: Rows, width: int, *, keep: Collection[str] = (), whole: Collection[str] = ()
) -> tuple[Rows, tuple[str, ...]]:
    """Return the rows so that `terminal` prints no line over `width` characters, and remarks on what was changed.

    These steps follow each other only as far as needed:

    1. Columns without values go.
    2. Columns with one value go into a remark.
    3. Long texts are cut.
    4. The last columns are left out by name.

    One row alone becomes a list of names and values.

    Parameters
    ----------
    keep
        Columns that are left out only after all others, such as the figure that the table is about.
    whole
        Columns that besides are cut only after all others are left out, such as what tells the rows apart.
    """
    if fits(rows, width):
        return rows, ()
    if len(rows) == 1:
        return _as_list(rows[0], width), ()
    kept, shared = without_constant_columns(rows)
    remarks = [shared] if shared else []
    table = table_of(kept)
    limits = _fit_columns(table, rows, width, keep, whole)
    if left_out := [name for name in table.columns if name not in limits]:
        remarks.append(f"left out at {width} columns: {', '.join(left_out)} (COLUMNS=300 shows them, --json has all)")
    columns = {name: _cut_column([row.get(name) for row in rows], limit) for name, limit in limits.items()}
    cut = [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]
    if any(isinstance(text, str) and "…" in text for row in cut for text in row.values()):
        remarks.append("texts with … are cut: COLUMNS=300 or --json shows them whole")
    return cut, tuple(line for remark in remarks for line in wrap_text(remark, width))


def _fit_columns(table: Table, rows: Rows, width: int, keep: Collection[str], whole: Collection[str]) -> dict[str, int]:
    """Return the columns that stay, with their widths: the last that need not stay go first, then those of `keep`."""
    limits = _cut_texts(table, rows, width, whole)
    is_last_resort = False
    while _total(limits) > width and len(limits) > 1:
        others = [name for name in limits if name not in keep and name not in whole]
        if not others and whole and not is_last_resort:
            is_last_resort = True
        else:
            del limits[others[-1] if others else [*limits][-1]]
        shown = [name in limits for name in table.columns]
        left = Table(tuple(compress(table.columns, shown)), tuple(compress(table.numeric, shown)), table.parts)
        limits = _cut_texts(left, rows, width, whole, and_whole=is_last_resort)
    return limits


def fits(rows: Rows, width: int) -> bool:
    """Return whether `terminal` prints no line of these rows over `width` characters."""
    return _total(_widths(table_of(rows), rows)) <= width


def without_constant_columns(rows: Rows) -> tuple[Rows, str | None]:
    """Return the rows without the columns that have one value in all of them, and a remark with those values.

    Columns without any value are left out without a remark. One row alone, or equal rows, are returned as they are.
    """
    columns = table_of(rows).columns
    same = {name: _only_value(rows, name) for name in columns}
    constant = {name: text for name, text in same.items() if text is not None}
    if len(rows) < 2 or len(constant) == len(columns):
        return rows, None
    kept = [{name: row.get(name) for name in columns if name not in constant} for row in rows]
    constants = [f"{name} {text}" for name, text in constant.items() if any(row.get(name) is not None for row in rows)]
    return kept, f"in all rows: {', '.join(constants)}" if constants else None


def wrap_text(text: str, width: int | None) -> list[str]:
    """Return the lines of a text, none over `width` characters but for single long words; None leaves them whole."""
    lines = text.split("\n")
    if width is None:
        return lines
    options: dict[str, Any] = {"break_long_words": False, "break_on_hyphens": False}
    return [part for line in lines for part in (textwrap.wrap(line, width, **options) or [""])]


def _widths(table: Table, rows: Rows) -> dict[str, int]:
    return {name: max(len(display_text(row.get(name))) for row in (*rows, {name: name})) for name in table.columns}


def _total(widths: Mapping[str, int]) -> int:
    return sum(widths.values()) + _GAP * (len(widths) - 1)


def _only_value(rows: Rows, name: str) -> str | None:
    """Return the text that a column has in every row; None where they differ."""
    texts = {display_text(row.get(name)) for row in rows}
    return texts.pop() if len(texts) == 1 else None


def _cut_texts(
    table: Table, rows: Rows, width: int, whole: Collection[str], *, and_whole: bool = False
) -> dict[str, int]:
    """Return the columns' widths, with texts cut, the longest first, until all fits or nothing more can be cut.

    Columns in `whole` are cut only with `and_whole`, after all others.
    """
    widths = _widths(table, rows)
    numeric = dict(zip(table.columns, table.numeric, strict=True))
    least = {name: max(_MIN_TEXT_WIDTH, len(name)) for name in widths}
    first, *_ = widths
    least[first] = max(_LAST_NAME_WIDTH if and_whole else _MIN_NAME_WIDTH, len(first))
    while (excess := _total(widths) - width) > 0:
        cuttable = {name: size for name, size in widths.items() if not numeric[name] and size > least[name]}
        texts = {name: size for name, size in cuttable.items() if name not in whole} or (cuttable if and_whole else {})
        if not texts:
            break
        ordered = sorted(texts.values(), reverse=True)
        longest = max(texts, key=texts.__getitem__)
        next_longest = ordered[1] if len(ordered) > 1 else 0
        step = min(excess, max(1, widths[longest] - next_longest))
        widths[longest] = max(least[longest], widths[longest] - step)
    return widths


def cut_middle(text: str, limit: int) -> str:
    """Return a text of at most `limit` characters: its beginning and its end, which tells namesakes apart."""
    return text if len(text) <= limit else f"{text[: limit - _NAME_END - 1]}…{text[-_NAME_END:]}"


def _cut_column(values: Sequence[Any], limit: int) -> list[Any]:
    """Return a column's values cut at their ends, or where that makes unlike ones equal in their middles, or there at
    their beginnings."""
    shown: dict[str, str] = {}
    unlike = {display_text(value) for value in values}
    for cut in (_cut_end, cut_middle, _cut_beginning):
        texts = {text: cut(text, limit) for text in unlike}
        clashes = Counter(texts.values())
        shown |= {text: short for text, short in texts.items() if cut is _cut_beginning or clashes[short] == 1}
        unlike -= shown.keys()
    return [value if _fits(value, limit) else shown[display_text(value)] for value in values]


def _cut_end(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _cut_beginning(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"…{text[1 - limit :]}"


def _fits(value: Any, limit: int) -> bool:
    return len(display_text(value)) <= limit


def _as_list(row: Mapping[str, Any], width: int) -> Sequence[Mapping[str, Any]]:
    named = {name: value for name, value in row.items() if value is not None} or dict(list(row.items())[:1])
    longest = max(map(len, named), default=0)
    room = max(1, width - longest - _GAP)
    listed = []
    for name, value in named.items():
        first, *more = wrap_text(display_text(value), room)
        listed.append({"name": name, "value": first if more else value})
        listed += [{"name": "", "value": line} for line in more]
    return [{"name": row["name"], "value": _cut_column([row["value"]], room)[0]} for row in listed]
