"""Tables in text, as tools write them: three delimiters, ragged rows, trailing commas, lines of other text around.

European spreadsheets write `;` between columns and `12,5` for 12.5. A comma inside a number is therefore decimal where
`;` delimits. Where a comma or a tab delimits, it may separate thousands and is left as it is.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from migrations.sources.json_text import Note

DELIMITERS = ",\t;"
_NUMBER = re.compile(r"-?\d+([.,]\d+)?([eE][-+]?\d+)?")
_DECIMAL_COMMA = re.compile(r"[-+]?(\d+|\d{1,3}(\.\d{3})+),\d+([eE][-+]?\d+)?(\s*[A-Za-zµ%/]+)?")
"""A number with a decimal comma, perhaps with a unit behind it: `12,5`, `1.234,5` or `12,5 ms`."""
_DECIMAL_POINT = re.compile(r"[-+]?\d+\.\d+([eE][-+]?\d+)?(\s*[A-Za-zµ%/]+)?")
_THOUSANDS_OR_DECIMALS = re.compile(r"\d{1,3}(\.\d{3})?")
"""A number such as `1.234`, which among decimal commas may be a thousand, or a smaller one such as `987`."""
_RAGGED_SHARE = 0.8
_COLUMN_NAME = re.compile(r"\s*\"?(?=[^\"]*[A-Za-z])\w[\w .()/%:\[\]@&+-]{0,79}\"?\s*")
"""A column name is a word, neither a number nor a sentence."""
_MIN_COLUMNS = 3
_MAX_HEADER_LINES = 400
_MIN_TABLE_SHARE = 0.5


class InvalidTable(ValueError):
    """A text begins like a table but cannot be read as one."""


@dataclass(frozen=True)
class Header:
    """Layout of a table and the names of its columns."""

    delimiter: str
    columns: tuple[str, ...]


@dataclass(frozen=True)
class CsvTable:
    """Rows by column name, all text; rows of another length are notes, because their columns are unknown."""

    columns: tuple[str, ...]
    rows: list[dict[str, Any]]
    notes: tuple[Note, ...]


def find_table(text: str) -> CsvTable | None:
    """Return the text as a table if its first line names columns, else None. Raises InvalidTable."""
    header = find_header(text)
    if header is None:
        return None
    lines = list(split_cells(io.StringIO(text, newline=""), header))[1:]
    fitting = sum(len(line) == len(header.columns) for line in lines) + 1
    if fitting < _RAGGED_SHARE * (len(lines) + 1) or (not lines and header.delimiter == ","):
        return None
    return build_table(header, lines)


def find_header(text: str) -> Header | None:
    """Return the header in the first line; None if it names no columns. Raises InvalidTable."""
    first = text.lstrip("\r\n").splitlines()[0]
    delimiter = max(DELIMITERS, key=first.count)
    if delimiter not in first or '{"' in first:
        return None  # no table, or objects behind a mark on each line
    named = next(split_cells(io.StringIO(text, newline=""), Header(delimiter, ())), [])
    columns = _without_empty_end(tuple(name.strip() for name in named))
    if sum(_NUMBER.fullmatch(name) is not None for name in columns) > 1:
        return None  # values, and no names: some tools write no header
    return Header(delimiter, columns)


def has_rows_alone(lines: Sequence[str]) -> bool:
    """Return whether most lines are rows with figures, so that the text is a table whose columns nothing names."""
    filled = [line for line in lines if line.strip()]
    rows = sum(any(_is_row(line.split(delimiter)) for delimiter in DELIMITERS) for line in filled)
    return rows > 1 and rows >= _RAGGED_SHARE * len(filled)


def _is_row(cells: Sequence[str]) -> bool:
    return len(cells) >= _MIN_COLUMNS and sum(_NUMBER.fullmatch(cell.strip()) is not None for cell in cells) > 1


def split_cells(lines: Iterable[str], header: Header) -> Iterator[list[str]]:
    """Yield the cells of every line, the header's first, without empty lines. Raises InvalidTable."""
    width = len(header.columns)
    try:
        for line in csv.reader(lines, delimiter=header.delimiter, strict=True):
            if line:
                # Some tools end every row, but not the header, with a comma; spreadsheets add columns without names.
                while 0 < width < len(line) and not line[-1].strip():
                    line.pop()
                yield line
    except csv.Error as error:
        raise InvalidTable(f"invalid CSV: {error}") from error


def _without_empty_end(columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names without several empty ones at the end, which spreadsheets write; a single one is kept."""
    named = max((number for number, name in enumerate(columns, start=1) if name), default=0)
    return columns[:named] if len(columns) > named + 1 else columns


def build_table(header: Header, lines: Sequence[list[str]], *, first: int = 1) -> CsvTable:
    """Return the lines as rows by column name; `first` is the file's number of the first. Raises InvalidTable.

    Numbers with a decimal comma get a decimal point where `;` delimits.
    """
    columns = header.columns
    if len(set(columns)) < len(columns):
        raise InvalidTable("a table with two columns of one name: name them apart, or import the tool's JSON instead")
    if header.delimiter == ";":
        _write_decimal_points(columns, [line for line in lines if len(line) == len(columns)])
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


def _write_decimal_points(columns: Sequence[str], lines: Sequence[list[str]]) -> None:
    """Replace decimal commas in columns where every comma is one. Raises InvalidTable for numbers of two meanings."""
    with_commas = {
        number: commas
        for number in range(len(columns))
        if (commas := [line[number].strip() for line in lines if "," in line[number]])
        and all(map(_DECIMAL_COMMA.fullmatch, commas))
    }
    if not with_commas:
        return
    example = next(iter(with_commas.values()))[0]
    for number, name in enumerate(columns):
        cells = [text for line in lines if (text := line[number].strip())]
        points = [text for text in cells if "," not in text and _DECIMAL_POINT.fullmatch(text)]
        is_open = number in with_commas or all(map(_THOUSANDS_OR_DECIMALS.fullmatch, cells))
        if points and is_open:
            raise InvalidTable(
                f"a table with a decimal comma in {example!r}, in which {points[0]!r} of column {name!r} may be a "
                "decimal or thousands: write all decimals alike, and thousands without a mark"
            )
    for line in lines:
        for number in with_commas:
            if "," in line[number]:
                line[number] = line[number].strip().replace(".", "").replace(",", ".")


def find_embedded_table(text: str, delimiters: str) -> tuple[str, str] | None:
    """Return the lines of the table and all others; None without a header and rows of as many cells.

    The table must be most of the text, because a log that happens to list something is no table.
    """
    lines = text.splitlines()
    filled = sum(1 for line in lines if line.strip())
    for start, delimiter in _candidate_headers(lines, delimiters):
        cells = lines[start].count(delimiter)
        end = start + 1
        while end < len(lines) and lines[end].count(delimiter) >= cells:
            end += 1
        if end - start > 1 and end - start >= _MIN_TABLE_SHARE * filled:
            others = [line for line in (*lines[:start], *lines[end:]) if line.strip()]
            return "\n".join(lines[start:end]), "\n".join(others)
    return None


def _candidate_headers(lines: list[str], delimiters: str) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(lines[:_MAX_HEADER_LINES]):
        delimiter = max(delimiters, key=line.count)
        names = line.split(delimiter)
        if len(names) >= _MIN_COLUMNS and all(_COLUMN_NAME.fullmatch(name) or not name.strip() for name in names):
            yield number, delimiter
