"""Strict reader of JSON that people write: one line per mistake, with its place and the expected value.

Pydantic models define the documents; a field's `title` names the expected value.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from accel_platform.errors import InvalidInput, NotFound

Model = TypeVar("Model", bound=BaseModel)
COMMENT = "//"
"""JSON has no comments: a key that begins with it is one."""
TAGS = frozenset({"list", "object"})
"""Tags of our unions' branches, which pydantic adds to the path of an error."""
_EXPECTED = {
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "a whole number"),
    "int_parsing_size": "a whole number of fewer digits",
    **dict.fromkeys(("float_type", "float_parsing"), "a number"),
    "finite_number": "a finite number",
    **dict.fromkeys(("bool_type", "bool_parsing"), "true or false"),
    "string_type": "text",
    "string_too_long": "at most {max_length} characters",
    "string_too_short": "{min_length} or more characters",
    "too_long": "at most {max_length} items",
    "too_short": "{min_length} or more items",
    "union_tag_invalid": "{discriminator} to be one of {expected_tags}, not {tag}",
    "literal_error": "{expected}",
    "greater_than": "a number above {gt}",
    "greater_than_equal": "{ge} or more",
    "less_than": "a number below {lt}",
    "less_than_equal": "{le} or less",
    "list_type": "a list",
    **dict.fromkeys(("dict_type", "model_type", "model_attributes_type"), "an object"),
    **dict.fromkeys(("uuid_type", "uuid_parsing"), "a UUID"),
    **dict.fromkeys(("datetime_type", "datetime_parsing", "datetime_from_date_parsing"), "a time"),
    "timezone_aware": "a time with its zone, such as 2026-11-20T08:30:00Z",
    "timezone_naive": "a time without a zone, such as 2026-11-20T08:30:00",
}
"""Expected values by pydantic's type of the problem."""


def read_object(path: Path) -> tuple[dict[str, Any], str]:
    """Return the JSON object in a file without its comments, and the file's text. Raises NotFound or InvalidInput."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise NotFound(f"There is no file {path}.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path} cannot be read: {error}.") from error
    try:
        value = json.loads(text, object_pairs_hook=reject_duplicates)
    except json.JSONDecodeError as error:
        raise InvalidInput(f"{path}, line {error.lineno}, column {error.colno}: no JSON, {error.msg}.") from error
    except DuplicateKey as error:
        raise InvalidInput(f"{path}: {error}") from error
    if not isinstance(value, dict):
        raise InvalidInput(f"{path}: expected an object {{...}}, got {preview_json(value)}.")
    return {key: member for key, member in value.items() if not key.startswith(COMMENT)}, text


def validate_model(model: type[Model], value: Mapping[str, Any], *, where: str, text: str = "") -> Model:
    """Return the value as a `model`, without any conversion of types. Raises InvalidInput with a sentence per wrong
    key.

    `where` names the document; line numbers are found in its `text`.
    """
    try:
        return model.model_validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        first: dict[object, str] = {}
        for problem in error.errors():
            key = problem["loc"][0] if problem["loc"] else None
            first.setdefault(key, _format_problem(problem, model, text))
        raise InvalidInput(f"{where}: {'; '.join(first.values())}.") from error


def preview_json(value: Any) -> str:
    """Return a value as JSON, shortened to 60 characters."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def expected_value(problem: Mapping[str, Any]) -> str | None:
    """Return what a value should have been, by pydantic's problem with it; None for a problem of another kind."""
    stated = _EXPECTED.get(problem["type"])
    context = problem.get("ctx", {}).items()
    bounds = {name: f"{value:.15g}" if isinstance(value, float) else value for name, value in context}
    return None if stated is None else stated.format(**bounds)


def _format_problem(problem: ErrorDetails, model: type[BaseModel], text: str) -> str:
    loc = problem["loc"]
    if not loc:
        return _problem_reason(problem)
    key = str(loc[0])
    path = key + "".join(
        f"[{part}]" if isinstance(part, int) else f".{part}"
        for depth, part in enumerate(loc[1:])
        if not (depth == 0 and part in TAGS)
    )
    line = re.search(rf'"{re.escape(key)}"\s*:', text)
    place = f" (line {text.count(chr(10), 0, line.start()) + 1})" if line else ""
    if problem["type"] == "extra_forbidden":
        unknown = str(loc[-1])
        known = model.model_fields if len(loc) == 1 else {}
        close = difflib.get_close_matches(unknown, known, n=2)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known: {', '.join(known)}" if known else ""
        return f"unknown key {path}{place}" + (f", {hint}" if hint else "")
    if problem["type"] == "missing":
        return f"{path} is missing"
    if problem["type"] == "value_error":
        return f"{path}{place}: {_problem_reason(problem)}"
    title = model.model_fields[key].title if key in model.model_fields else None
    expected = title or expected_value(problem) or _problem_reason(problem)
    return f"{path}{place}: expected {expected}, got {preview_json(problem['input'])}"


def _problem_reason(problem: ErrorDetails) -> str:
    message = problem["msg"].removeprefix("Value error, ").rstrip(".")
    return message[:1].lower() + message[1:] if problem["type"] != "value_error" else message


class DuplicateKey(InvalidInput):
    """A repeated key in one object, which is ambiguous."""


def reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON by its pairs, for `json.loads`. Raises DuplicateKey; comments may be repeated."""
    value = dict(pairs)
    if len(value) < len(pairs):
        counts = Counter(key for key, _ in pairs if not key.startswith(COMMENT))
        for key, count in counts.most_common(1):
            if count > 1:
                raise DuplicateKey(f"the key {preview_json(key)} is there twice.")
    return value
