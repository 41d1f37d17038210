"""A table in pages: a cursor is the place of the last row, so a page costs the same however far down it is.

Rows that come in meanwhile shift no page: what was there when the first page was read is told once.
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

_READ: dict[str, Callable[[str], Any]] = {"UUID": UUID, "TIMESTAMPTZ": datetime.fromisoformat, "VARCHAR": str}
_TEXTS = TypeAdapter(list[str])
UNKNOWN_CURSOR = "There is no such page: begin again without a cursor."


@dataclass(frozen=True)
class PagedTable:
    """The rows of one table in an order: expressions over it (as `r`) and their types, none ever NULL and all together
    different for any two rows."""

    table: str
    columns: str
    order: tuple[tuple[str, str], ...]
    descending: bool = True
    found_by: str | None = None
    """A column of unique values, for a table with many wide rows: the page is found in the few columns that order and
    filters look at, and only its rows are read whole."""

    def page(
        self, reader: Reader, condition: str, values: Mapping[str, Any], *, limit: int, cursor: str | None
    ) -> tuple[list[dict[str, Any]], str | None]:
        """At most `limit` rows after the cursor, and the cursor of the next page, None after the last.

        Raises NotFound for a cursor that no page gave.
        """
        keys = [expression for expression, _ in self.order]
        bound = dict(values)
        if cursor is not None:
            places = [f"$after_{number}::{kind}" for number, (_, kind) in enumerate(self.order)]
            # One key is written plainly: of that DuckDB passes over the row groups that lie before the cursor.
            left, right = (f"({', '.join(side)})" if len(side) > 1 else side[0] for side in (keys, places))
            condition = f"({condition}) AND {left} {'<' if self.descending else '>'} {right}"
            bound |= {f"after_{number}": value for number, value in enumerate(self._decode(cursor))}
        order = ", ".join(f"{key} {'DESC' if self.descending else 'ASC'}" for key in keys)
        end = f"ORDER BY {order} LIMIT {limit + 1}"
        if self.found_by is not None:
            found = f"SELECT r.{self.found_by} FROM {self.table} AS r WHERE {condition} {end}"
            condition = f"r.{self.found_by} IN ({found})"
        placed = ", ".join(f"{key} AS place_{number}" for number, key in enumerate(keys))
        rows = reader.rows(f"SELECT {self.columns}, {placed} FROM {self.table} AS r WHERE {condition} {end}", bound)
        places_of = [[row.pop(f"place_{number}") for number in range(len(keys))] for row in rows]
        more = _encode(places_of[limit - 1]) if len(rows) > limit else None
        return rows[:limit], more

    def _decode(self, cursor: str) -> list[Any]:
        try:
            texts = _TEXTS.validate_json(base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True))
            return [_READ[kind](text) for text, (_, kind) in zip(texts, self.order, strict=True)]
        except ValueError as error:  # pydantic's ValidationError is one
            raise NotFound(UNKNOWN_CURSOR) from error


def _encode(place: list[Any]) -> str:
    texts = [value.isoformat() if isinstance(value, datetime) else str(value) for value in place]
    return base64.urlsafe_b64encode(json.dumps(texts, separators=(",", ":")).encode()).decode().rstrip("=")
