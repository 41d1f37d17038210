"""Simplification of the OpenAPI document that pydantic generates, for client generators."""

from __future__ import annotations

from typing import Any


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
