"""What all charts share: what a mark is called, what it says of itself, its spread, its shape. No chart is put together
here."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import altair as alt

from accel_platform.errors import NotFound
from accel_platform.reports.charts.theme import GREY, PALETTE, SHAPES

Row = Mapping[str, Any]
Rows = Sequence[Row]
T = TypeVar("T")
LINES = len(PALETTE)
"""Colours there are: a chart has no more lines, and says how many it left out."""
SHAPE = ("mode", "precision", "batch_size", "sequence_length", "image_size", "processes")
"""Only rows that agree in all of these may be held against each other as one figure."""
PLACE = ("hardware", "device_name", "checked")
"""Where a figure is of, and whether it is one of ours whose outputs nobody compared."""
FIGURES = {
    "latency": ("latency_ms", "latency_low_ms", "latency_high_ms"),
    "throughput": ("throughput_items_per_s", "throughput_low_items_per_s", "throughput_high_items_per_s"),
    "memory": ("memory_peak_mib", "memory_peak_low_mib", "memory_peak_mib"),
}
"""By figure the fields of its value, and of the least and the greatest of a cell's results."""
_TITLE_CHARACTERS, _NAME_CHARACTERS = 52, 40


class NothingToDraw(NotFound):
    """No figure that the chart is made of is there; the message says what would bring one."""


def require(rows: Sequence[T], lacking: str) -> Sequence[T]:
    """The rows, if there are any. Raises NothingToDraw."""
    if not rows:
        raise NothingToDraw(
            f"{lacking} `accel chart --list` tells what each chart needs, `accel bench run` measures, and "
            "`accel migrate PATH` imports."
        )
    return rows


def word(field: str, value: Any) -> str | None:
    """A field's value as people say it; None where there is nothing to say."""
    if value is None:
        return "device not named" if field == "device_name" else None
    match field:
        case "batch_size":
            return f"batch {value}"
        case "sequence_length":
            return f"{value} tokens"
        case "image_size":
            return f"{value:g} pixels"
        case "processes":
            return f"{value} processes" if value > 1 else None
        case _:
            return str(value)


def label(row: Row, fields: Iterable[str]) -> str:
    """The fields in words."""
    hardware = f"{row['hardware']}:{row['choice']}" if row.get("choice") else row.get("hardware")
    said = (word(field, hardware if field == "hardware" else row.get(field)) for field in fields)
    return ", ".join(filter(None, said))


def differing(rows: Rows, fields: Iterable[str]) -> list[str]:
    """The fields in which rows are not all alike."""
    return [
        f for f in fields if len({(row.get(f), row.get("choice") if f == "hardware" else None) for row in rows}) > 1
    ]


def shared(rows: Rows, fields: Sequence[str]) -> str:
    """In words, what all rows have in common."""
    apart = differing(rows, fields)
    return label(rows[0], [field for field in fields if field not in apart])


def grouped(rows: Iterable[Row], key: Callable[[Row], Hashable]) -> dict[Any, list[Row]]:
    """The rows by key, in the order in which each key is first met."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def key_of(row: Row, fields: Sequence[str]) -> tuple[Any, ...]:
    """Equal for rows that agree in these fields, and in the device behind a hardware name."""
    return tuple(map(row.get, (*fields, "choice", "device_id") if "hardware" in fields else fields))


def figure_of(row: Row, figure: str) -> dict[str, Any]:
    """`value`, `low`, `high` and in words `spread` of a cell's `latency`, `throughput` or `memory`.

    The extremes over its results where there are several; else one standard deviation of a single one's samples to
    either side, which is all that is known; else None.
    """
    results, deviation, latency = row["results"], row.get("latency_std_ms"), row["latency_ms"]
    value, low, high = (row.get(name) for name in FIGURES[figure])
    if results > 1 and low is not None and high is not None:
        how = "highest of" if figure == "memory" else "lowest to highest of"
        return {"value": value, "low": low, "high": high, "spread": f"{how} {results} results"}
    if figure == "memory" or value is None or not deviation or not latency or deviation >= latency:
        return {"value": value, "low": None, "high": None, "spread": "spread unknown"}
    low, high = (
        (value - deviation, value + deviation)
        if figure == "latency"
        else (value * latency / (latency + deviation), value * latency / (latency - deviation))
    )
    return {"value": value, "low": low, "high": high, "spread": "one standard deviation of the samples"}


def rests_on(row: Row) -> str:
    """In words: runs, samples, provenance, and whether outputs were verified."""
    samples = f", {row['samples']:,} samples" if row.get("samples") else ""
    runs = f" of {row['runs']} run{'s' if row['runs'] != 1 else ''}" if row.get("runs") else ""
    results = f"{row['results']} result{'s' if row['results'] != 1 else ''}"
    checked = {True: ", outputs verified", False: ", outputs wrong"}.get(row.get("verified"), "")  # type: ignore[arg-type]
    noisy = ", noisy" if row.get("noisy") else ""
    return f"{results}{runs}{samples}, {row['provenance']}{checked}{noisy}"


def marked(row: Row, figure: Mapping[str, Any], unit: str, **more: Any) -> dict[str, Any]:
    """A row of a specification: what places and names the mark, and `tip`, which says all of it."""
    value, low, high = figure["value"], figure["low"], figure["high"]
    limits = f" [{low:.4g}, {high:.4g}]" if low is not None and high is not None else ""
    what = label(row, ("model_id", *PLACE, *SHAPE))
    tip = f"{what}: {value:.4g} {unit}{limits} ({figure['spread']}); {rests_on(row)}"
    return {"value": value, "low": low, "high": high, "provenance": row["provenance"], "tip": tip, **more}


def shape(rows: Rows) -> alt.Shape:
    """The shape by provenance, with a legend of those that occur."""
    there = [name for name in SHAPES if any(row["provenance"] == name for row in rows)]
    legend = None if len(there) < 2 else alt.Legend(title="provenance", orient="bottom")
    return alt.Shape("provenance:N", legend=legend).scale(domain=there, range=[SHAPES[name] for name in there])


def colour(names: Sequence[str], field: str = "line") -> alt.Color:
    """A colour for each name, in their order."""
    there = list(dict.fromkeys(names))
    legend = alt.Legend(orient="bottom", direction="vertical", columns=1 if max(map(len, there)) > 60 else 2)
    return alt.Color(f"{field}:N", title=None, legend=None if len(there) < 2 else legend).scale(
        domain=there, range=[PALETTE[i % LINES] for i in range(len(there))]
    )


def tips() -> dict[str, Any]:
    """What a mark says when it is pointed at, and to who cannot see it."""
    return {"tooltip": alt.Tooltip("tip:N", title="figure"), "description": alt.Description("tip:N")}


def quantity(field: str, title: str, values: Iterable[float | None], axis: type[Any], *, zero: bool = True) -> Any:
    """An axis with its unit: from zero, or by powers where the values span more than a factor of 20."""
    known = [value for value in values if value is not None]
    low, high = min(known), max(known)
    digits = ",~r" if high < 1e6 else "~s"
    if low > 0 and (high > 20 * low or not zero):
        scale = alt.Scale(type="log", domain=[low / 1.25, high * 1.25], nice=False)
        return axis(f"{field}:Q", title=title, scale=scale, axis=alt.Axis(format=digits, values=_powers(low, high)))
    return axis(
        f"{field}:Q", title=title, scale=alt.Scale(zero=True, nice=True), axis=alt.Axis(format=digits, tickCount=5)
    )


def _powers(low: float, high: float) -> list[float]:
    """Where an axis of powers has its ticks: at 1, 2 and 5 of each power of ten, or at the powers alone."""
    first, last = math.floor(math.log10(low / 1.25)), math.ceil(math.log10(high * 1.25))
    steps = (1.0, 2.0, 5.0) if last - first <= 3 else (1.0,)
    return [step * 10.0**power for power in range(first, last + 1) for step in steps]


def heading(text: str) -> alt.TitleParams:
    """The title of one panel."""
    return alt.TitleParams(wrapped(text, _TITLE_CHARACTERS), fontSize=12, anchor="start", offset=6)


def whole(
    panels: Sequence[alt.Chart | alt.LayerChart | alt.FacetChart],
    title: str,
    rows: Rows,
    *,
    columns: int,
    common: str,
    said: Sequence[str],
) -> alt.ConcatChart:
    """The panels under one title, and a subtitle that says what all share, what it rests on and what is not shown."""
    told = subtitle([f"Alike in all: {common}." if common else "", basis(rows), *said])
    chart = alt.concat(*panels, columns=min(columns, len(panels))).properties(
        title=alt.TitleParams(title, subtitle=told), description=" ".join([title + ".", *told])
    )
    resolved: alt.ConcatChart = chart.resolve_scale(color="shared", shape="shared")
    return resolved


def subtitle(sentences: Sequence[str]) -> list[str]:
    """The sentences in lines of a readable length."""
    return [line for text in sentences if text for line in wrapped(text, 118)]


def basis(rows: Rows) -> str:
    """How many results the rows rest on, by provenance."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row["provenance"]] += row["results"]
    total = sum(counts.values())
    parts = ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
    return f"{len(rows):,} figures from {total:,} result{'s' if total != 1 else ''}: {parts}."


def spreads(marks: Rows) -> str:
    """What the bars of a chart mean; empty where none is drawn."""
    drawn = any(mark["low"] is not None and mark["high"] != mark["low"] for mark in marks)
    return (
        "Bars: lowest to highest result of a cell; of a single result, one standard deviation of its samples to either"
        " side."
        if drawn
        else "No spread is known of these figures: each rests on one result without samples."
    )


def rest(shown: int, of: int, what: str, how: str) -> str:
    """How many were left out and how to see them; empty where none was."""
    return f"{shown} of {of:,} {what} shown; {how} shows others." if of > shown else ""


def rules(base: alt.Chart, *, horizontal: bool, low: Any) -> alt.Chart:
    """The spread of each mark."""
    encoded = {"x": low, "x2": alt.X2("high:Q")} if horizontal else {"y": low, "y2": alt.Y2("high:Q")}
    known = base.transform_filter("isValid(datum.low) && isValid(datum.high)")
    chart: alt.Chart = known.mark_rule(strokeWidth=1.5, opacity=0.7, aria=False, color=GREY).encode(**encoded)
    return chart


def wrapped(text: str, width: int) -> list[str]:
    """The text in lines of so many characters, broken between words."""
    return textwrap.wrap(text, width, break_long_words=False) or [""]


def names_of(rows: Rows, fields: Sequence[str]) -> list[str]:
    """What each row is called, in at most two lines; rows that the fields do not tell apart are numbered."""
    names: list[str] = []
    for row in rows:
        lines = wrapped(label(row, fields), _NAME_CHARACTERS)
        name = "\n".join(lines if len(lines) < 3 else [lines[0], f"{lines[1][: _NAME_CHARACTERS - 1]}…"])
        number = 2
        while name in names:
            name = f"{name.removesuffix(f' ({number - 1})')} ({number})"
            number += 1
        names.append(name)
    return names


def short(value: float) -> str:
    """Three digits and no exponent."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
