"""One value as JSON, as text for people, and as a cell that no spreadsheet takes for a formula. No tables here."""

from __future__ import annotations

import json
import math
import unicodedata
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

FORMULA = "=+-@\t\r\n\0＝＋－＠"  # noqa: RUF001 - the full-width forms are what is meant
"""What spreadsheets take for the beginning of a formula: OWASP, "CSV Injection", and ASVS 5.0, requirement 1.2.10."""


def guarded(text: str) -> str:
    """Text behind a single quote where a spreadsheet would compute it. Numbers are not text and stay as they are."""
    return f"'{text}" if text.startswith(tuple(FORMULA)) else text


def guarded_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for a CSV file: every text of it guarded, and nothing for what is unknown."""
    return {
        name: "" if value is None else guarded(value) if isinstance(value, str) else value
        for name, value in row.items()
    }


def json_text(value: Any, *, indent: int | None = 2) -> str:
    """A JSON document: times as ISO 8601, UUIDs as text, everything unknown (NaN too) as null."""
    return json.dumps(plain(value), indent=indent, ensure_ascii=False, allow_nan=False)


def plain(value: Any) -> Any:
    """The value in what JSON has: no NaN and no infinity, no times, no UUIDs."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, Decimal) and value.is_finite():
        return int(value) if value == value.to_integral_value() else float(value)
    if isinstance(value, float | Decimal):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else _named(value)


def _named(value: Any) -> Any:
    """What JSON has no type for."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    if hasattr(value, "isoformat"):
        return value.isoformat()
    return value.hex() if isinstance(value, bytes) else str(value)


def shown(value: Any) -> str:
    """Text on one line for people: four digits, a dash for what is unknown, nothing that a terminal would obey."""
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    text = json_text(value, indent=None) if isinstance(value, Mapping | list | tuple) else str(value)
    return text if text.isprintable() else "".join(map(_visible, text))


def _visible(character: str) -> str:
    """A control character, or one that turns the direction of a line around, as its escape."""
    kind = unicodedata.category(character)
    return character.encode("unicode_escape").decode() if kind in ("Cc", "Cf", "Cs", "Zl", "Zp") else character
