"""Improvement of the OpenAPI document that FastAPI generates: simple types, described fields, problems and keys."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

from pydantic.json_schema import models_json_schema

from accel_platform.warehouse.dictionary import column_meanings
from predictor.schemas.queries import Problem
from predictor.service.http.problems import problem_responses

_TABLES = {
    "BenchmarkRequest": "requests",
    "Coverage": "coverage",
    "MatrixCell": "compat_matrix",
    "Regression": "regressions",
    "Result": "results",
    "ResultSuspicion": "suspicions",
    "Run": "runs",
}
"""Tables whose rows are of these schemas, where a column's meaning depends on the table."""


def describe_fields(document: dict[str, Any]) -> dict[str, Any]:
    """Describe each field without a description as the data dictionary describes the column of its name."""
    for name, schema in document["components"]["schemas"].items():
        meanings = column_meanings(_TABLES.get(name, ""))
        for field, about in schema.get("properties", {}).items():
            if "description" not in about and field in meanings:
                about["description"] = meanings[field]
    return document


def summarize_operations(document: dict[str, Any]) -> dict[str, Any]:
    """Take the first sentence of a route's docstring as its summary, because FastAPI repeats the function's name."""
    for operations in document["paths"].values():
        for operation in operations.values():
            if "description" in operation:
                summary, _, description = operation["description"].partition("\n\n")
                operation |= {"summary": " ".join(summary.split()).removesuffix("."), "description": description}
    return document


def describe_problems(document: dict[str, Any]) -> dict[str, Any]:
    """Add the schema of problem documents, which all routes share."""
    _, schemas = models_json_schema([(Problem, "serialization")], ref_template="#/components/schemas/{model}")
    document["components"]["schemas"] |= schemas["$defs"]
    return document


def describe_keys(document: dict[str, Any], open_paths: Set[str]) -> dict[str, Any]:
    """Describe how an API key is sent, and the answers for a missing key, a missing scope and too many requests.

    `open_paths` need none. Without keys, every path refuses names of other machines.
    """
    document["components"]["securitySchemes"] = {
        "key": {
            "type": "http",
            "scheme": "bearer",
            "description": "An API key, as `accel keys create NAME` makes it. None is needed before one was made.",
        }
    }
    for path, operations in document["paths"].items():
        is_open = path in open_paths
        refusals = problem_responses(*(() if is_open else (401, 403, 429)), 421)
        for operation in operations.values():
            operation["security"] = [] if is_open else [{}, {"key": []}]
            operation["responses"] |= {str(status): about for status, about in refusals.items()}
    return document


def simplify_nullable(schema: Any) -> Any:
    """Replace `anyOf: [{type: number, …}, {type: null}]` by the equivalent `type: [number, null], …`, throughout."""
    if isinstance(schema, list):
        return [simplify_nullable(member) for member in schema]
    if not isinstance(schema, dict):
        return schema
    simplified = {name: simplify_nullable(member) for name, member in schema.items()}
    match simplified.get("anyOf"):
        case [{"type": str(kind)} as other, {"type": "null"}] if not simplified.keys() & other.keys():
            del simplified["anyOf"]
            simplified |= other | {"type": [kind, "null"]}
            if "enum" in simplified:
                simplified["enum"] = [*simplified["enum"], None]
            if "const" in simplified:
                simplified["enum"] = [simplified.pop("const"), None]
    return simplified
