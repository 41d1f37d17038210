"""Query strings: forms of pages, and the refusal of parameters that a route does not know."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar, get_origin

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel

from predictor.schemas.messages import unknown_name_message
from predictor.schemas.requests import validate_query

Q = TypeVar("Q", bound=BaseModel)


class FormQuery(Generic[Q]):
    """FastAPI dependency that validates the query string of a form as `kind`. Raises InvalidInput.

    Empty values are dropped, because forms send unused filters as empty text.
    """

    def __init__(self, kind: type[Q]) -> None:
        self.kind = kind

    def __call__(self, request: Request) -> Q:
        return read_pairs(self.kind, request.query_params.multi_items())


def read_pairs(kind: type[Q], pairs: Iterable[tuple[str, str]]) -> Q:
    """Validate the names and values of a form as `kind`. Raises InvalidInput."""
    given: dict[str, list[str]] = {}
    for name, value in pairs:
        if value.strip():
            given.setdefault(name, []).append(value.strip())
    several = {name for name, field in kind.model_fields.items() if get_origin(field.annotation) is tuple}
    return validate_query(kind, {name: tuple(v) if name in several else v[-1] for name, v in given.items()})


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
        if isinstance(inner.call, FormQuery):
            yield inner.call.kind
        yield from _declared(inner)
