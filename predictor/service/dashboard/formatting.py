"""Template filters that format figures, times and names. None becomes a labeled dash."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from markupsafe import Markup, escape

from accel_platform.analysis.query.setups import with_distinct_runtimes
from accel_platform.hardware.device_names import with_distinct_names
from accel_platform.table_io.values import count_of

UNKNOWN = Markup(
    '<span class="unknown"><span aria-hidden="true">&ndash;</span><span class="hidden">unknown</span></span>'
)
_STEPS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def figure(value: float | None) -> str:
    """Format a number with four significant digits and thousands separators."""
    if value is None:
        return UNKNOWN
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:#.4g}".rstrip(".")


def count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def scaled(value: float | None) -> str:
    """Format a number with an SI suffix: `109 M`, `22.4 G`."""
    if value is None:
        return UNKNOWN
    factor, letter = next(((f, s) for f, s in _STEPS if abs(value) >= f), (1.0, ""))
    return f"{value / factor:.3g} {letter}".rstrip()


def percent(value: float | None) -> str:
    """Format a value that is in percent already, with its sign."""
    return UNKNOWN if value is None else f"{value:+.1f}\u00a0%"


def share(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.0%}"


def moment(value: datetime | None) -> str:
    """Format a time in UTC as a `time` element; a script adds its age."""
    if value is None:
        return UNKNOWN
    return Markup('<time datetime="{}">{}</time>').format(value.isoformat(), value.strftime("%Y-%m-%d %H:%M"))


def known(value: Any) -> Any:
    """Return the value, or the dash for None and empty text."""
    return UNKNOWN if value is None or value == "" else value


def document(value: Any) -> str:
    """Return indented JSON of a value or of JSON text."""
    parsed = json.loads(value) if isinstance(value, str) else value
    return json.dumps(parsed, indent=2, ensure_ascii=False, default=str)


def badge(value: str | None, kind: str = "") -> str:
    """Return a colored badge. The text alone carries the meaning."""
    return UNKNOWN if value is None else Markup('<span class="badge {} is-{}">{}</span>').format(kind, value, value)


def breakable(value: str | None) -> str:
    """Return a name that may wrap after its separators on narrow pages."""
    if value is None:
        return UNKNOWN
    text = str(escape(value))
    for joint in "/_-:":
        text = text.replace(joint, f"{joint}<wbr>")
    return Markup(text)  # noqa: S704  # escaped above


def shape(row: Mapping[str, Any]) -> str:
    """Return a configuration in words, without default values."""
    parts = [
        row.get("mode") if row.get("mode") != "inference" else None,
        row.get("precision"),
        f"batch {row['batch_size']}" if row.get("batch_size") else None,
        f"length {row['sequence_length']}" if row.get("sequence_length") else None,
        f"{row['output_tokens']} tokens out" if row.get("output_tokens") else None,
        f"{row['image_size']:g} px" if row.get("image_size") else None,
        f"{row['processes']} processes" if (row.get("processes") or 1) > 1 else None,
    ]
    return ", ".join(part for part in parts if part) or "shape unknown"


FILTERS = {
    "figure": figure,
    "count": count,
    "count_of": count_of,
    "scaled": scaled,
    "percent": percent,
    "share": share,
    "moment": moment,
    "known": known,
    "document": document,
    "badge": badge,
    "breakable": breakable,
    "distinct_devices": with_distinct_names,
    "distinct_runtimes": with_distinct_runtimes,
}
