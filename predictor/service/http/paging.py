"""Keyset pagination of tables: a cursor is the key of the last row, so every page costs the same.

Rows inserted meanwhile shift no page: each row of the first page's time appears once.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import TypeAdapter

from accel_platform.errors import NotFound
from accel_platform.warehouse.reader import Reader
from predictor.schemas.queries import PageQuery

_PARSERS: dict[str, Callable[[str], Any]] = {"UUID": UUID, "TIMESTAMPTZ": datetime.fromisoformat, "VARCHAR": str}
_CURSOR = TypeAdapter(list[str])
NEWEST_RESULTS = (
    ("coalesce(r.occurred_at, TIMESTAMPTZ '1970-01-01 00:00:00+00')", "TIMESTAMPTZ"),
    ("r.result_id", "UUID"),
)
"""Order of results, those of unknown time last. Ids give no order, because only some of them hold a time."""
NEWEST_EVENTS = (("r.recorded_at", "TIMESTAMPTZ"), ("r.event_id", "UUID"))
BY_MATRIX_CELL = (
    ("r.model_id", "VARCHAR"),
    ("r.hardware", "VARCHAR"),
    ("coalesce(r.device_id, '')", "VARCHAR"),
    ("r.mode", "VARCHAR"),
)
UNKNOWN_CURSOR = "There is no such page: begin again without a cursor."


@dataclass(frozen=True)
class PagedTable:
    """A table in an order of its rows.

    `order` has expressions over the table (as `r`) with their types, never NULL and together unique.
    """

    table: str
    columns: str
    order: tuple[tuple[str, str], ...]
    descending: bool = True
    row_id: str | None = None
    """A unique column, for wide tables: the page is found by the columns of order and filters, and read by this one."""

    def page(
        self, reader: Reader, query: PageQuery, condition: str, values: Mapping[str, Any]
    ) -> tuple[list[dict[str, Any]], str | None]:
        """Return the rows of a page that meet a condition, and the cursor of the next page (None after the last).

        Raises NotFound for a cursor that no page gave.
        """
        keys = [expression for expression, _ in self.order]
        parameters = dict(values)
        if query.cursor is not None:
            cursor_parameters = [f"$after_{number}::{kind}" for number, (_, kind) in enumerate(self.order)]
            # One key is no tuple, because DuckDB skips the row groups before the cursor for plain comparisons only.
            left, right = (f"({', '.join(side)})" if len(side) > 1 else side[0] for side in (keys, cursor_parameters))
            condition = f"({condition}) AND {left} {'<' if self.descending else '>'} {right}"
            parameters |= {f"after_{number}": value for number, value in enumerate(self._decode(query.cursor))}
        order = ", ".join(f"{key} {'DESC' if self.descending else 'ASC'}" for key in keys)
        end = f"ORDER BY {order} LIMIT {query.limit + 1}"
        if self.row_id is not None:
            found = f"SELECT r.{self.row_id} FROM {self.table} AS r WHERE {condition} {end}"
            condition = f"r.{self.row_id} IN ({found})"
        key_columns = ", ".join(f"{key} AS place_{number}" for number, key in enumerate(keys))
        rows = reader.rows(
            f"SELECT {self.columns}, {key_columns} FROM {self.table} AS r WHERE {condition} {end}", parameters
        )
        row_keys = [[row.pop(f"place_{number}") for number in range(len(keys))] for row in rows]
        next_cursor = _encode(row_keys[query.limit - 1]) if len(rows) > query.limit else None
        return rows[: query.limit], next_cursor

    def _decode(self, cursor: str) -> list[Any]:
        try:
            texts = _CURSOR.validate_json(base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True))
            return [_PARSERS[kind](text) for text, (_, kind) in zip(texts, self.order, strict=True)]
        except ValueError as error:  # pydantic's ValidationError is one
            raise NotFound(UNKNOWN_CURSOR) from error


def _encode(key: list[Any]) -> str:
    texts = [value.isoformat() if isinstance(value, datetime) else str(value) for value in key]
    return base64.urlsafe_b64encode(json.dumps(texts, separators=(",", ":")).encode()).decode().rstrip("=")
