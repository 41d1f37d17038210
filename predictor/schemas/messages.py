"""Messages of validation problems: what is wrong, with the value, or with the names that an unknown one may mean."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, get_args

from pydantic import BaseModel, Tag
from pydantic_core.core_schema import ErrorType

from accel_platform.strict_json import expected_value, preview_json

_WITHOUT_VALUE = ("missing", "extra_forbidden", "value_error", "json_invalid")
"""Pydantic's problems that have no value, or whose message is the platform's and names it."""
_PYDANTIC = frozenset(get_args(ErrorType)) - set(_WITHOUT_VALUE)


def problem_message(problem: Mapping[str, Any], path: Sequence[Any], kinds: Iterable[Any]) -> str:
    """Return what is wrong at a path into a value of one of these types, without pydantic's name of the exception."""
    message = str(problem["msg"]).removeprefix("Value error, ")
    if problem["type"] == "union_tag_not_found":
        return f"the field {problem['ctx']['discriminator']} is missing, which says what the rest is"
    if problem["type"] == "missing":
        return "required, and not given"
    if problem["type"] == "extra_forbidden" and path and (known := _field_names(kinds, path[:-1])):
        return unknown_name_message(str(path[-1]), known)
    if (expected := expected_value(problem)) is not None:
        message = f"expected {expected}"
    value = problem.get("input", ...)
    if problem["type"] not in _PYDANTIC or not isinstance(value, str | int | float | None):
        return message
    # Half a surrogate pair is JSON, but no text that an answer could hold.
    return f"{message}, got {preview_json(value).encode(errors='backslashreplace').decode()}"


def name_fields(message: str, name: Callable[[str], str]) -> str:
    """Return the message with each field, which stands in backticks, under its name where it was asked for."""
    return re.sub(r"`([a-z][a-z0-9_]*)`", lambda field: name(field[1]), message)


def unknown_name_message(name: str, known: Set[str]) -> str:
    """Return what to write instead of a name that is none of the known ones."""
    if not known:
        return "unknown; none is known here"
    close = difflib.get_close_matches(name, known, n=2)
    return f"unknown; did you mean {' or '.join(close)}?" if close else f"unknown; known: {', '.join(sorted(known))}"


def _field_names(kinds: Iterable[Any], path: Sequence[Any]) -> set[str]:
    """Return the names of fields at a path. A tag chooses a part of its union; places in lists are passed over."""
    kinds = list(kinds)
    for part in path:
        models = [model for kind in kinds for model in _models_in(kind)]
        inside = [model.model_fields[part].annotation for model in models if part in model.model_fields]
        kinds = [tagged for kind in kinds for tagged in _tagged(kind, part)] or inside or kinds
    return {name for kind in kinds for model in _models_in(kind) for name in model.model_fields}


def _tagged(kind: Any, tag: Any) -> Iterator[Any]:
    """Yield the parts of unions that have a tag."""
    if Tag(tag) in getattr(kind, "__metadata__", ()):
        yield kind
    else:
        for inner in get_args(kind):
            yield from _tagged(inner, tag)


def _models_in(kind: Any) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for inner in get_args(kind):
        yield from _models_in(inner)
