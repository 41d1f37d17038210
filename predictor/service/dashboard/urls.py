"""Addresses of pages with their filters, and filters read back from an address. What they mean is not known here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar, get_origin
from urllib.parse import quote, urlencode

from fastapi import Request
from pydantic import BaseModel

from predictor.schemas.requests import validate_query

ROOT = "/dashboard"
Q = TypeVar("Q", bound=BaseModel)


def link(*parts: object, **filters: Any) -> str:
    """The address of a page below the dashboard; filters that are None or empty are left out, several repeat."""
    path = "/".join([ROOT, *(quote(str(part), safe="/" if len(parts) == 1 else "") for part in parts)])
    pairs = [
        (name, str(value))
        for name, given in filters.items()
        for value in (given if isinstance(given, list | tuple) else [given])
        if value is not None and value != ""
    ]
    return f"{path}?{urlencode(pairs)}" if pairs else path


def sorted_by(here: str, asked: Iterable[tuple[str, str]], column: str, *, falling: bool) -> str:
    """The same page with its rows in another order, from the first one on."""
    kept = [(name, value) for name, value in asked if name not in ("sort", "page") and value]
    return f"{here}?{urlencode([*kept, ('sort', f'-{column}' if falling else column)])}"


def asked(kind: type[Q]) -> Callable[[Request], Q]:
    """A dependency that reads the query string as this kind. Raises InvalidInput.

    What a form sends empty is left out: it filters nothing.
    """

    def read(request: Request) -> Q:
        return read_pairs(kind, request.query_params.multi_items())

    return read


def read_pairs(kind: type[Q], pairs: Iterable[tuple[str, str]]) -> Q:
    """Names and values, as a browser sends them, as this kind. Raises InvalidInput."""
    given: dict[str, list[str]] = {}
    for name, value in pairs:
        if value.strip():
            given.setdefault(name, []).append(value.strip())
    several = {name for name, field in kind.model_fields.items() if get_origin(field.annotation) is tuple}
    return validate_query(kind, {name: tuple(v) if name in several else v[-1] for name, v in given.items()})


def order(rows: Sequence[dict[str, Any]], sort: str | None, allowed: Iterable[str]) -> list[dict[str, Any]]:
    """The rows sorted by a column, falling where it is written with a minus; unknown values and other names last."""
    column = (sort or "").removeprefix("-")
    if column not in allowed:
        return list(rows)
    known = [row for row in rows if row[column] is not None]
    unknown = [row for row in rows if row[column] is None]
    return sorted(known, key=lambda row: row[column], reverse=(sort or "").startswith("-")) + unknown
