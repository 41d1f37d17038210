"""Query strings: forms of pages, and the refusal of parameters that a route does not know."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, get_origin

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel

from accel_platform.errors import InvalidInput
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
        return self.kind.model_construct(**_values_by_name(self.kind, _filled(self.pairs)))


def read_pairs(kind: type[Q], pairs: Iterable[tuple[str, str]]) -> Q:
    """Validate the names and values of a form as `kind`. Raises InvalidInput."""
    filled = _filled(pairs)
    if repeated := _repeated(filled, kind.model_fields.keys() - _names_of_several(kind)):
        raise InvalidInput("; ".join(f"{name}: {message}" for name, message in repeated.items()))
    return validate_query(kind, _values_by_name(kind, filled))


def _filled(pairs: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, value.strip()) for name, value in pairs if value.strip()]


def _names_of_several(kind: type[BaseModel]) -> set[str]:
    """Return the names of the fields that take several values."""
    return {name for name, field in kind.model_fields.items() if get_origin(field.annotation) is tuple}


def _values_by_name(kind: type[BaseModel], filled: Iterable[tuple[str, str]]) -> dict[str, Any]:
    """Return the values by name: all values of a field that takes several, else the last one."""
    given: dict[str, list[str]] = {}
    for name, value in filled:
        given.setdefault(name, []).append(value)
    several = _names_of_several(kind)
    return {name: tuple(values) if name in several else values[-1] for name, values in given.items()}


def _repeated(pairs: Iterable[tuple[str, str]], single: Set[str]) -> dict[str, str]:
    """Return an error for each name of `single` that has several values, because only one would count."""
    counts = Counter(name for name, _ in pairs if name in single)
    return {name: f"takes one value, and {count} were given" for name, count in counts.items() if count > 1}


async def reject_unknown_parameters(request: Request) -> None:
    """Refuse parameters that the route does not declare, and several values of one that takes one.

    A dependency of the whole app, so that no route forgets it. Unknown names are left to models with `extra="forbid"`,
    because pydantic reports wrong values beside them. Forms of pages are left to `read_pairs`.
    """
    if not request.scope["query_string"]:
        return
    known: set[str] = set()
    several: set[str] = set()
    strict = False
    for declared in _declared(request.scope["route"].dependant):
        if isinstance(declared, str):
            known.add(declared)
        elif isinstance(declared, QueryString):
            return
        else:
            strict = strict or declared.model_config.get("extra") == "forbid"
            known |= declared.model_fields.keys()
            several |= _names_of_several(declared)
    unknown = [] if strict else [name for name in dict.fromkeys(request.query_params) if name not in known]
    faults = {name: unknown_name_message(name, known) for name in unknown}
    faults |= _repeated(request.query_params.multi_items(), known - several)
    if faults:
        raise RequestValidationError(
            [{"type": "parameter", "loc": ("query", name), "msg": message} for name, message in faults.items()]
        )


def _declared(dependant: Dependant) -> Iterator[str | type[BaseModel] | QueryString[Any]]:
    """Yield the query parameters of a route: names, models of several, and those of forms."""
    for field in dependant.query_params:
        kind = field.field_info.annotation
        yield kind if isinstance(kind, type) and issubclass(kind, BaseModel) else field.alias
    for inner in dependant.dependencies:
        if isinstance(inner.call, QueryString):
            yield inner.call
        yield from _declared(inner)
