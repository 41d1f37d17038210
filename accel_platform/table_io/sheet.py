"""Tables as XLSX workbooks, streamed row by row in constant memory."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, BinaryIO

import pyarrow as pa
import xlsxwriter
from xlsxwriter.format import Format
from xlsxwriter.worksheet import Worksheet

from accel_platform.errors import InvalidInput
from accel_platform.table_io.values import guard_formula

ROWS_MOST = 1_048_575
"""Row limit below the header, by Excel's specification, as the next two limits."""
COLUMNS_MOST = 16_384
_SHEET_NAME, _SHEET_NAME_MOST = re.compile(r"[\[\]:*?/\\']"), 31
TEXT_MOST = 32_767
"""Characters (UTF-16 units) of a cell."""
_EXACT = 2**53
"""Largest exact integer, because Excel stores doubles; larger ones are written as text."""
_FIRST = datetime(1900, 3, 1)  # noqa: DTZ001 - Excel knows no zones
"""Earliest date written as a date, because Excel counts a nonexistent day before; earlier ones are text."""
_INSTEAD = "write CSV or Parquet instead, or filter"


def write(batches: pa.RecordBatchReader, stream: BinaryIO, *, title: str | None = None) -> int:
    """Write all rows below a frozen header and return their number. Times are UTC, because Excel has no zones.

    Text is never a formula (`values.guard_formula`) or a link. NaN and infinity become empty cells. Raises InvalidInput
    for more rows, columns or text than a sheet holds.
    """
    with _book(stream, title) as book:
        return _fill(book, batches)


def write_several(tables: Sequence[tuple[str, pa.RecordBatchReader]], stream: BinaryIO, *, title: str | None) -> None:
    """Write a workbook with a numbered sheet per table, as `write`."""
    with _book(stream, title) as book:
        for number, (name, batches) in enumerate(tables, 1):
            _fill(book, batches, _SHEET_NAME.sub(" ", f"{number} {name}")[:_SHEET_NAME_MOST])


def _book(stream: BinaryIO, title: str | None) -> xlsxwriter.Workbook:
    options = {"constant_memory": True, "strings_to_formulas": False, "strings_to_urls": False}
    book = xlsxwriter.Workbook(stream, options)
    if title:
        book.set_properties({"title": title})
    return book


def _fill(book: xlsxwriter.Workbook, batches: pa.RecordBatchReader, name: str | None = None) -> int:
    names = batches.schema.names
    if len(names) > COLUMNS_MOST:
        raise InvalidInput(f"A sheet has {COLUMNS_MOST:,} columns, and there are {len(names):,}: {_INSTEAD}.")
    sheet = book.add_worksheet(name)
    put = _writer(book, sheet)
    head = book.add_format({"bold": True})
    for column, head_name in enumerate(names):
        sheet.write_string(0, column, _checked(guard_formula(head_name), head_name), head)
    sheet.freeze_panes(1, 0)
    count = 0
    for batch in batches:
        if count + batch.num_rows > ROWS_MOST:
            raise InvalidInput(f"A sheet has {ROWS_MOST:,} rows below its header, and there are more: {_INSTEAD}.")
        for values in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            count += 1
            for column, value in enumerate(values):
                if value is not None:
                    put(count, column, value, names[column])
    return count


def _writer(book: xlsxwriter.Workbook, sheet: Worksheet) -> Callable[[int, int, Any, str], None]:
    moment, day, clock = (
        book.add_format({"num_format": form})
        for form in ("yyyy-mm-dd hh:mm:ss.000", "yyyy-mm-dd", "hh:mm:ss.000")
    )  # fmt: skip

    def put(row: int, column: int, value: Any, name: str) -> None:
        if isinstance(value, bool):
            sheet.write_boolean(row, column, value)
        elif isinstance(value, int | float | Decimal):
            _number(sheet, row, column, value)
        elif isinstance(value, datetime | date | time):
            _time(value, row, column)
        else:
            sheet.write_string(row, column, _checked(guard_formula(str(value)), name))

    def _time(value: datetime | date | time, row: int, column: int) -> None:
        form: Format = clock
        if isinstance(value, datetime):
            value, form = (value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value), moment
            early = value < _FIRST
        else:
            form = day if isinstance(value, date) else clock
            early = isinstance(value, date) and value < _FIRST.date()
        if early:
            sheet.write_string(row, column, value.isoformat())
        else:
            sheet.write_datetime(row, column, value, form)

    return put


def _number(sheet: Worksheet, row: int, column: int, value: float | Decimal) -> None:
    if not math.isfinite(value):
        return
    if isinstance(value, int | Decimal) and abs(value) > _EXACT:
        sheet.write_string(row, column, str(value))
    else:
        sheet.write_number(row, column, float(value))


def _checked(text: str, column: str) -> str:
    if len(text) > TEXT_MOST // 2 and len(text.encode("utf-16-le")) // 2 > TEXT_MOST:
        raise InvalidInput(
            f"A cell of a sheet has {TEXT_MOST:,} characters, and one of {column!r} is longer: write CSV or Parquet."
        )
    return text
