"""Conversion of values to JSON, display text and safe spreadsheet cells."""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

FORMULA = "=+-@\t\r\n\0＝＋－＠"  # noqa: RUF001 - the full-width forms are what is meant
"""First characters of spreadsheet formulas: OWASP, "CSV Injection", and ASVS 5.0, requirement 1.2.10."""


def count_of(number: int, noun: str) -> str:
    """Return a number with its noun, of which the plural is regular: `1 model`, `1,200 families`."""
    if number == 1:
        return f"1 {noun}"
    if re.search("[^aeiou]y$", noun):
        return f"{number:,} {noun[:-1]}ies"
    return f"{number:,} {noun}{'es' if noun.endswith('s') else 's'}"


def guard_formula(text: str) -> str:
    """Prefix text with a single quote if a spreadsheet would evaluate it. Numbers stay unchanged."""
    return f"'{text}" if text.startswith(tuple(FORMULA)) else text


def guard_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row for a CSV file: text guarded, None as empty."""
    return {
        name: "" if value is None else guard_formula(value) if isinstance(value, str) else value
        for name, value in row.items()
    }


def json_text(value: Any, *, indent: int | None = 2) -> str:
    """Return a JSON document: times as ISO 8601, UUIDs as text, None and NaN as null."""
    return json.dumps(plain(value), indent=indent, ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """Convert a value to JSON types: no NaN, infinity, times or UUIDs."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, Decimal) and value.is_finite():
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float | Decimal):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else _to_json(value)


def _to_json(value: Any) -> Any:
    """Convert a type that JSON lacks."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else str(value)


def display_text(value: Any) -> str:
    """Return text on one line: four significant digits, a dash for None, no control characters."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return rounded(value, 4)
    text = json_text(value, indent=None) if isinstance(value, Mapping | list | tuple) else str(value)
    return text if text.isprintable() else "".join(map(_visible, text))


def rounded(value: float, digits: int = 3) -> str:
    """Return a number rounded to so many digits; a larger one in whole units, without an exponent: 1,720."""
    return f"{value:,.0f}" if abs(value) >= 10 ** min(digits, 3) - 0.5 else f"{value:.{digits}g}"


def _visible(character: str) -> str:
    """Return the escape of a control or bidirectional character."""
    kind = unicodedata.category(character)
    return character.encode("unicode_escape").decode() if kind in ("Cc", "Cf", "Cs", "Zl", "Zp") else character
