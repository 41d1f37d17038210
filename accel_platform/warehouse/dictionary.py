"""Data dictionary: the meaning of every public table and column. Add a column's meaning to `dictionary.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from accel_platform.warehouse.reader import Reader


@dataclass(frozen=True)
class Column:
    """A column of a public table."""

    name: str
    type: str
    """DuckDB's name of the type."""
    meaning: str


def table_meanings() -> dict[str, str]:
    """Return the meaning of each public table, the one to begin with first."""
    return dict(_dictionary()["tables"])


def column_meanings(table: str = "") -> dict[str, str]:
    """Return the meaning of each column name, as the table has it where it is a table's name."""
    known = _dictionary()
    return dict(known["columns"] | known["in"].get(table, {}))


def table_columns(reader: Reader, table: str) -> list[Column]:
    """Return the columns of a public table in order. Raises KeyError for a column without a meaning, and WarehouseEmpty
    before the first publish."""
    return describe_columns(reader.rows(f'DESCRIBE "{table}"'), table)


def describe_columns(described: Iterable[Mapping[str, Any]], table: str) -> list[Column]:
    """Return the columns of a public table from the rows of DuckDB's DESCRIBE of it. Raises KeyError for one without a
    meaning."""
    meanings = column_meanings(table)
    return [Column(row["column_name"], row["column_type"], meanings[row["column_name"]]) for row in described]


def reference_page(reader: Reader) -> Iterator[str]:
    """Yield the lines of `docs/reference/tables.md`."""
    yield "# Tables"
    yield ""
    yield "`accel db query SQL` and `POST /query` read these tables; `accel db tables` lists them with their rows, and"
    yield "`accel db tables NAME` shows the columns of one. A name means the same in every table. Times are in"
    yield "milliseconds (`_ms`) or seconds (`_s`), memory is in MiB. NULL is unknown or does not apply."
    for table, meaning in table_meanings().items():
        yield from ("", f"## {table}", "", meaning, "", "| column | type | meaning |", "| --- | --- | --- |")
        for column in table_columns(reader, table):
            yield f"| `{column.name}` | {column.type} | {column.meaning} |"


@cache
def _dictionary() -> dict[str, Any]:
    return tomllib.loads((files(__package__) / "dictionary.toml").read_text(encoding="utf-8"))
