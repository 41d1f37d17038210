"""How figures, times and names are written on pages. Unknown is a dash that says so, never a number."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from markupsafe import Markup, escape

UNKNOWN = Markup(
    '<span class="unknown"><span aria-hidden="true">&ndash;</span><span class="hidden">unknown</span></span>'
)
_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def figure(value: float | None) -> str:
    """Four significant digits, thousands apart."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.4g}".rstrip(".")


def count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def scaled(value: float | None) -> str:
    """`109 M`, `22.4 G`."""
    if value is None:
        return UNKNOWN
    factor, letter = next(((f, s) for f, s in _STEPS if abs(value) >= f), (1.0, ""))
    return f"{value / factor:.3g} {letter}".rstrip()


def percent(value: float | None) -> str:
    """Of something already in per cent, with its sign."""
    return UNKNOWN if value is None else f"{value:+.1f}\u00a0%"


def share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0%}"


def moment(value: datetime | None) -> str:
    """A time of the day in UTC; scripts add how long ago it was."""
    if value is None:
        return UNKNOWN
    return Markup('<time datetime="{}">{}</time>').format(value.isoformat(), value.strftime("%Y-%m-%d %H:%M"))


def known(value: Any) -> Any:
    """The value itself, or the dash."""
    return UNKNOWN if value is None or value == "" else value


def document(value: Any) -> str:
    """JSON to be read."""
    parsed = json.loads(value) if isinstance(value, str) else value
    return json.dumps(parsed, indent=2, ensure_ascii=False, default=str)


def badge(value: str | None, kind: str = "") -> str:
    """A word on a coloured ground. The colour says nothing that the word does not."""
    return UNKNOWN if value is None else Markup('<span class="badge {} is-{}">{}</span>').format(kind, value, value)


def broken(value: str | None) -> str:
    """A long name that a narrow page may break where names have joints."""
    if value is None:
        return UNKNOWN
    text = str(escape(value))
    for joint in "/_-:":
        text = text.replace(joint, f"{joint}<wbr>")
    return Markup(text)  # noqa: S704  # escaped above


def shape(row: Mapping[str, Any]) -> str:
    """A configuration in words, without what is as usual."""
    parts = [
        row.get("mode") if row.get("mode") != "inference" else None,
        row.get("precision"),
        f"batch {row['batch_size']}" if row.get("batch_size") else None,
        f"length {row['sequence_length']}" if row.get("sequence_length") else None,
        f"{row['image_size']} px" if row.get("image_size") else None,
        f"{row['processes']} processes" if (row.get("processes") or 1) > 1 else None,
    ]
    return ", ".join(part for part in parts if part) or "shape unknown"


FILTERS = {
    "figure": figure,
    "count": count,
    "scaled": scaled,
    "percent": percent,
    "share": share,
    "moment": moment,
    "known": known,
    "document": document,
    "badge": badge,
    "broken": broken,
}
