"""Page URLs with filters and order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

from accel_platform.errors import InvalidInput

ROOT = "/dashboard"
R = TypeVar("R", bound=Mapping[str, Any])


def link(*parts: object, **filters: Any) -> str:
    """Return the URL of a dashboard page. None and empty filters are dropped; lists repeat the name."""
    path = "/".join([ROOT, *(quote(str(part), safe="/" if len(parts) == 1 else "") for part in parts)])
    pairs = [
        (name, str(value))
        for name, given in filters.items()
        for value in (given if isinstance(given, list | tuple) else [given])
        if value is not None and value != ""
    ]
    return f"{path}?{urlencode(pairs)}" if pairs else path


def sorted_by(here: str, query_pairs: Iterable[tuple[str, str]], column: str, *, descending: bool) -> str:
    """Return the URL of the first page in another order."""
    filters = [(name, value) for name, value in query_pairs if name not in ("sort", "page") and value]
    return f"{here}?{urlencode([*filters, ('sort', f'-{column}' if descending else column)])}"


def sort_rows(rows: Sequence[R], sort: str | None, allowed: Iterable[str]) -> list[R]:
    """Sort rows by a column, descending with a leading minus; None comes last.

    Without a column the order stays. Raises InvalidInput for a column that is not allowed.
    """
    if sort is None:
        return list(rows)
    column = sort.removeprefix("-")
    if column not in allowed:
        raise InvalidInput(f"{sort!r} is no order: choose {', '.join(allowed)}, with a minus before it for descending.")
    known = [row for row in rows if row[column] is not None]
    unknown = [row for row in rows if row[column] is None]
    return sorted(known, key=lambda row: row[column], reverse=sort.startswith("-")) + unknown
