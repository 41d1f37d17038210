"""The OpenAPI document as others read it: what pydantic says in a roundabout way is said plainly. No route is here."""

from __future__ import annotations

from typing import Any


def simplify_nullable(schema: Any) -> Any:
    """`anyOf: [{type: number, …}, {type: null}]` as `type: [number, null], …`, throughout; the same values fit both."""
    if isinstance(schema, list):
        return [simplify_nullable(member) for member in schema]
    if not isinstance(schema, dict):
        return schema
    told = {name: simplify_nullable(member) for name, member in schema.items()}
    match told.get("anyOf"):
        case [{"type": str(kind)} as other, {"type": "null"}] if not told.keys() & other.keys():
            del told["anyOf"]
            told |= other | {"type": [kind, "null"]}
            if "enum" in told:
                told["enum"] = [*told["enum"], None]
            if "const" in told:
                told["enum"] = [told.pop("const"), None]
    return told
