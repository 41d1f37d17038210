"""Tables in every format: what goes in comes out again, and nothing in a cell is taken for anything but text."""

from __future__ import annotations

import csv
import io
import json
import math
from datetime import UTC, date, datetime, timedelta, timezone
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import openpyxl
import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_platform.errors import InvalidInput
from accel_platform.table_io import files, kinds, sheet
from accel_platform.table_io.values import FORMULA, count_of, display_text, guard_formula, guard_row, rounded

# XML 1.0 has no lone surrogates and Arrow neither; a sheet normalises line ends, so those are tested by themselves.
TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20)
ANY_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=20)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False, width=64)
MEASURED = st.floats(-1e300, 1e300)  # a workbook writes 16 digits, which the largest double rounds up from
WHOLE = st.integers(-(2**53), 2**53)
TIMES = st.datetimes(datetime(1901, 1, 1), datetime(2200, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(0, "cell", "0 cells"), (1, "cell", "1 cell"), (1200, "family", "1,200 families"), (2, "key", "2 keys"),
     (3, "process", "3 processes")],
)  # fmt: skip
def test_a_count_is_told_with_its_noun(number: int, noun: str, text: str) -> None:
    assert count_of(number, noun) == text


def written(rows: Any, kind: kinds.Kind, title: str | None = None) -> bytes:
    stream = io.BytesIO()
    assert files.write(rows, stream, kind, title=title) == len(rows)
    return stream.getvalue()


def read_csv(content: bytes) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(content.decode(), newline="")))


def read_sheet(content: bytes) -> list[tuple[Any, ...]]:
    return list(openpyxl.load_workbook(io.BytesIO(content)).active.iter_rows(values_only=True))


def unguarded(text: str) -> str:
    return text[1:] if text[:1] == "'" and text[1:2] and text[1] in FORMULA else text


@settings(deadline=None, max_examples=60)
@given(rows=st.lists(st.fixed_dictionaries({"text": ANY_TEXT, "number": NUMBERS, "whole": WHOLE, "at": TIMES}),
                     min_size=1, max_size=5))  # fmt: skip
def test_csv_holds_every_value_and_no_formula(rows: list[dict[str, Any]]) -> None:
    back = read_csv(written(rows, "csv"))
    assert [unguarded(row["text"]) for row in back] == [unguarded(row["text"]) for row in rows]
    assert not any(row["text"].startswith(tuple(FORMULA)) for row in back)
    assert [float(row["number"]) for row in back] == [row["number"] for row in rows]
    assert [int(row["whole"]) for row in back] == [row["whole"] for row in rows]
    assert [datetime.fromisoformat(row["at"]) for row in back] == [row["at"] for row in rows]


@settings(deadline=None, max_examples=60)
@given(rows=st.lists(st.fixed_dictionaries({
    "text": ANY_TEXT, "number": NUMBERS, "at": TIMES, "id": st.uuids(), "list": st.lists(WHOLE, max_size=3)}),
    min_size=1, max_size=5))  # fmt: skip
def test_parquet_holds_every_value(rows: list[dict[str, Any]]) -> None:
    back = pa.parquet.read_table(io.BytesIO(written(rows, "parquet"))).to_pylist()
    assert back == [{**row, "id": str(row["id"])} for row in rows]


@settings(deadline=None, max_examples=40)
@given(rows=st.lists(st.fixed_dictionaries({"text": TEXT, "number": MEASURED, "whole": WHOLE, "at": TIMES}),
                     min_size=1, max_size=5))  # fmt: skip
def test_a_workbook_holds_every_value_and_no_formula(rows: list[dict[str, Any]]) -> None:
    head, *values = read_sheet(written(rows, "xlsx"))
    back = [dict(zip(head, row, strict=True)) for row in values]
    assert set(head) == {"text", "number", "whole", "at"}
    for row, cells in zip(rows, back, strict=True):
        text, number, whole, at = (cells[name] for name in ("text", "number", "whole", "at"))
        assert (text or "") == guard_formula(row["text"])
        # A workbook has 16 digits and milliseconds.
        assert math.isclose(number, row["number"], rel_tol=1e-15, abs_tol=1e-300)
        assert whole == row["whole"]
        assert abs(at.replace(tzinfo=UTC) - row["at"]) <= timedelta(milliseconds=1)


@pytest.mark.parametrize("first", FORMULA)
def test_text_that_begins_a_formula_is_quoted_and_numbers_stay_numbers(first: str) -> None:
    formula = f"{first}cmd|'/c calc'!A1"
    rows = [{formula: formula, "number": -1.5}]
    [row] = read_csv(written(rows, "csv"))
    assert row == {f"'{formula}": f"'{formula}", "number": "-1.5"}
    if first not in "\0\r":  # XML has no such characters, and readers differ in how they tell of them
        head, values = read_sheet(written(rows, "xlsx"))
        assert head == (f"'{formula}", "number")
        assert values == (f"'{formula}", -1.5)


def test_a_row_for_csv_guards_its_text_alone() -> None:
    row = {"a": "=1", "b": -1.5, "c": None, "d": "x-1"}
    assert guard_row(row) == {"a": "'=1", "b": -1.5, "c": "", "d": "x-1"}


def test_a_workbook_is_no_place_for_too_much(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "out.xlsx"
    with pytest.raises(InvalidInput, match="32,767 characters, and one of 'log' is longer"):
        files.save([{"log": "x" * 32_768}], path, "xlsx")
    monkeypatch.setattr(sheet, "ROWS_MOST", 2)
    with pytest.raises(InvalidInput, match="2 rows below its header, and there are more: write CSV or Parquet"):
        files.save([{"a": 1}] * 3, path, "xlsx")
    assert list(tmp_path.iterdir()) == []


def test_a_workbook_keeps_what_it_has_no_type_for_as_text() -> None:
    rows = [{"large": 2**53 + 1, "early": date(1850, 1, 1), "none": None, "nan": math.nan, "flag": True,
             "id": UUID(int=1), "local": datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))}]  # fmt: skip
    assert read_sheet(written(rows, "xlsx"))[1] == (
        "9007199254740993", "1850-01-01", None, None, True, str(UUID(int=1)), datetime(2026, 1, 1),  # noqa: DTZ001
    )  # fmt: skip


def test_unknown_and_empty_stay_apart_in_csv() -> None:
    assert written([{"a": None, "b": ""}, {"a": "x", "b": None}], "csv") == b'"a","b"\n,""\n"x",\n'


class _Texts(HTMLParser):
    """The tags and texts of a page, as a browser would read them."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_a_rounded_number_has_no_exponent() -> None:
    assert [rounded(value) for value in (0.012345, 9.996, 999.4, 999.6, 1719.5)] == [
        "0.0123",
        "10",
        "999",
        "1,000",
        "1,720",
    ]
    assert [rounded(value, 2) for value in (99.4, 99.7, 250.0)] == ["99", "100", "250"]
    assert [rounded(value, 4) for value in (-12.3456, 1234.5678, 1e7)] == ["-12.35", "1,235", "10,000,000"]


def test_nothing_in_a_cell_is_markup() -> None:
    hostile = "<script>alert(1)</script>|`[x](javascript:1)\x1b[31m\nnext"
    rows = [{hostile: hostile}]
    page = _Texts()
    page.feed(written(rows, "html", title="<i>title</i>").decode())
    assert not page.tags & {"script", "i"}
    assert display_text(hostile) in page.texts
    heading, _, head, _, row = written(rows, "markdown", title="a|b").decode().splitlines()
    assert heading == r"### a\|b"
    assert head == row == (
        r"| &lt;script>alert(1)&lt;/script>\|\`\[x\](javascript:1)\\x1b\[31m\\nnext |"
    )  # fmt: skip
    assert "\x1b" not in written(rows, "table").decode()


def test_rows_of_unlike_types_and_keys_are_told_as_text() -> None:
    rows = [{"a": 1, "b": {"c": UUID(int=2)}}, {"a": "x", "b": {}, "d": [[1], {"e": None}]}]
    back = pa.parquet.read_table(io.BytesIO(written(rows, "parquet"))).to_pylist()
    assert back == [
        {"a": "1", "b": json.dumps({"c": str(UUID(int=2))}), "d": None},
        {"a": "x", "b": "{}", "d": '[[1], {"e": null}]'},
    ]
    assert json.loads(written(rows, "json"))[1] == rows[1]


def test_json_has_no_nan_and_nothing_is_a_list_too() -> None:
    assert json.loads(written([{"a": math.nan, "b": [math.inf]}], "json")) == [{"a": None, "b": [None]}]
    assert json.loads(written([], "json")) == []


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_an_arrow_table_is_written_as_rows_are(kind: kinds.Kind) -> None:
    rows = [{"name": f"=m{i}", "value": i / 3, "at": datetime(2026, 1, 1, tzinfo=UTC)} for i in range(3)]
    if kind == "xlsx":
        assert read_sheet(written(rows, kind)) == read_sheet(written(pa.Table.from_pylist(rows), kind))
    else:
        assert written(rows, kind) == written(pa.Table.from_pylist(rows), kind)


def test_two_columns_of_one_name_are_refused() -> None:
    table = pa.table([[1], [2]], names=["a", "a"])
    with pytest.raises(InvalidInput, match="Two columns have one name"):
        files.write(table, io.BytesIO(), "csv")


@pytest.mark.parametrize(
    "time", ["'infinity'::TIMESTAMP", "'-infinity'::TIMESTAMPTZ", "'infinity'::DATE", "['-infinity'::DATE]"]
)
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_parquet_alone_holds_an_infinite_time(kind: kinds.Kind, time: str) -> None:
    with duckdb.connect() as con:
        table = con.sql(f"SELECT 1 AS a, {time} AS late").to_arrow_table()
    if kind == "parquet":
        assert pa.parquet.read_table(io.BytesIO(written(table, kind))) == table
    else:
        with pytest.raises(InvalidInput, match="The column 'late' has a time beyond the years 1 to 9999, such as inf"):
            files.write(table, io.BytesIO(), kind)


def test_the_format_follows_from_the_ending() -> None:
    assert [kinds.kind_of(Path(f"x{end}")) for end in (".MD", ".htm", ".xlsx")] == ["markdown", "html", "xlsx"]
    with pytest.raises(InvalidInput, match="--format"):
        kinds.kind_of(Path("x.doc"))
