"""Tables as tools really write them: any of three delimiters, rows of another length, a comma too many. No files."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from migrations.sources.json_text import Note

DELIMITERS = ",\t;"
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][-+]?\d+)?")
_RAGGED_SHARE = 0.8


class NoTable(ValueError):
    """The text begins like a table and is none that can be read."""


@dataclass(frozen=True)
class Header:
    """Layout of a table and the names of its columns."""

    delimiter: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class CsvTable:
    """Rows by column name, all text; rows of another length are notes: nobody knows which names their values belong
    under."""

    columns: tuple[str, ...]
    rows: list[dict[str, Any]]
    notes: tuple[Note, ...]


def find_table(text: str) -> CsvTable | None:
    """Return the text as a table if its first line names columns, else None. Raises NoTable."""
    header = find_header(text)
    if header is None:
        return None
    lines = list(split(io.StringIO(text, newline=""), header))[1:]
    fitting = sum(len(line) == len(header.columns) for line in lines) + 1
    if fitting < _RAGGED_SHARE * (len(lines) + 1) or (not lines and header.delimiter == ","):
        return None
    return table(header, lines)


def find_header(text: str) -> Header | None:
    """Return the header in the first line; None if it names no columns. Raises NoTable."""
    first = text.lstrip("\r\n").splitlines()[0]
    delimiter = max(DELIMITERS, key=first.count)
    if delimiter not in first or '{"' in first:
        return None  # no table, or objects behind a mark on each line
    named = next(split(io.StringIO(text, newline=""), Header(delimiter, ())), [])
    columns = tuple(name.strip() for name in named)
    if sum(_NUMBER.fullmatch(name) is not None for name in columns) > 1:
        return None  # values, and no names: some tools write no header
    return Header(delimiter, columns)


def split(lines: Iterable[str], header: Header) -> Iterator[list[str]]:
    """Yield the cells of every line, the header's first, without empty lines. Raises NoTable."""
    width = len(header.columns)
    try:
        for line in csv.reader(lines, delimiter=header.delimiter, strict=True):
            if line:
                # Some tools end every row, but not the header, with a comma.
                yield line[:-1] if len(line) == width + 1 and not line[-1].strip() else line
    except csv.Error as error:
        raise NoTable(f"invalid CSV: {error}") from error


def table(header: Header, lines: Sequence[list[str]], *, first: int = 1) -> CsvTable:
    """Return the lines as rows by column name; `first` is the number of the first one in the file. Raises NoTable."""
    columns = header.columns
    if len(set(columns)) < len(columns):
        raise NoTable("a table with two columns of one name")
    notes = tuple(
        Note(
            "ragged_row",
            f"row {number} has {len(line)} cells, the header {len(columns)}",
            header.delimiter.join(line),
        )
        for number, line in enumerate(lines, start=first)
        if len(line) != len(columns)
    )
    return CsvTable(columns, [dict(zip(columns, line)) for line in lines if len(line) == len(columns)], notes)  # noqa: B905  # equal
