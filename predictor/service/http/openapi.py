"""Improvement of the OpenAPI document that pydantic generates: simple types for generators, described fields."""

from __future__ import annotations

from typing import Any

from accel_platform.warehouse.dictionary import column_meanings

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
    """Give each field without a description that of the column of its name, from the data dictionary."""
    for name, schema in document["components"]["schemas"].items():
        meanings = column_meanings(_TABLES.get(name, ""))
        for field, about in schema.get("properties", {}).items():
            if "description" not in about and field in meanings:
                about["description"] = meanings[field]
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
