"""Query strings: forms of pages, and the refusal of parameters that a route does not know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_origin

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel

from predictor.schemas.messages import unknown_name_message
from predictor.schemas.requests import validate_query

Q = TypeVar("Q", bound=BaseModel)


class QueryString(Generic[Q]):
    """Query string whose parameters are the fields of `kind`; its subclasses are FastAPI dependencies.

    Empty values are dropped, because forms send unused filters as empty text.
    """

    def __init__(self, kind: type[Q]) -> None:
        self.kind = kind


class FormQuery(QueryString[Q]):
    """FastAPI dependency that validates the query string as `kind`. Raises InvalidInput."""

    def __call__(self, request: Request) -> Q:
        return read_pairs(self.kind, request.query_params.multi_items())


class PageForm(QueryString[Q]):
    """FastAPI dependency that leaves validation to the page, which shows problems beside its form."""

    def __call__(self, request: Request) -> FilledForm[Q]:
        return FilledForm(self.kind, request.query_params.multi_items())


@dataclass(frozen=True)
class FilledForm(Generic[Q]):
    """The names and values that a form sent."""

    kind: type[Q]
    pairs: Sequence[tuple[str, str]]

    def validated(self) -> Q:
        """Return the form as a query. Raises InvalidInput."""
        return read_pairs(self.kind, self.pairs)

    def as_written(self) -> Q:
        """Return the form with its values as text, right or wrong, to show it again. Unknown names are left out."""
        return self.kind.model_construct(**_values_by_name(self.kind, self.pairs))


def read_pairs(kind: type[Q], pairs: Iterable[tuple[str, str]]) -> Q:
    """Validate the names and values of a form as `kind`. Raises InvalidInput."""
    return validate_query(kind, _values_by_name(kind, pairs))


def _values_by_name(kind: type[BaseModel], pairs: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the values that are not empty by name: all of a tuple field, else the last."""
    given: dict[str, list[str]] = {}
    for name, value in pairs:
        if value.strip():
            given.setdefault(name, []).append(value.strip())
    several = {name for name, field in kind.model_fields.items() if get_origin(field.annotation) is tuple}
    return {name: tuple(values) if name in several else values[-1] for name, values in given.items()}


async def reject_unknown_parameters(request: Request) -> None:
    """Refuse parameters that the route does not declare. A dependency of the whole app, so that no route forgets it.

    Models with `extra="forbid"` are left to pydantic, because it reports wrong values beside unknown names.
    """
    if not request.scope["query_string"]:
        return
    known: set[str] = set()
    for declared in _declared(request.scope["route"].dependant):
        if isinstance(declared, str):
            known.add(declared)
        elif declared.model_config.get("extra") == "forbid":
            return
        else:
            known |= declared.model_fields.keys()
    unknown = [name for name in dict.fromkeys(request.query_params) if name not in known]
    if unknown:
        raise RequestValidationError(
            [{"type": "unknown", "loc": ("query", name), "msg": unknown_name_message(name, known)} for name in unknown]
        )


def _declared(dependant: Dependant) -> Iterator[str | type[BaseModel]]:
    """Yield the query parameters of a route: names, and models of several."""
    for field in dependant.query_params:
        kind = field.field_info.annotation
        yield kind if isinstance(kind, type) and issubclass(kind, BaseModel) else field.alias
    for inner in dependant.dependencies:
        if isinstance(inner.call, QueryString):
            yield inner.call.kind
        yield from _declared(inner)
