"""Building blocks of charts: labels, tooltips, spreads, axes, colors and titles."""

from __future__ import annotations

import math
import textwrap
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import altair as alt

from accel_platform.analysis.query.cells import SETUP, SHAPE
from accel_platform.errors import NotFound
from accel_platform.reports.charts.theme import GRAY, PALETTE, SHAPES
from accel_platform.table_io.values import count_of, rounded

Row = Mapping[str, Any]
Rows = Sequence[Row]
T = TypeVar("T")
LINES = len(PALETTE)
"""Number of colors, and so the most lines of a chart."""
PLACE = ("hardware", "runtime", "device_name", "checked")
"""Fields that name the runtime, device and verification of a figure."""
FIGURES = {
    "latency": ("latency_ms", "latency_low_ms", "latency_high_ms"),
    "throughput": ("throughput_items_per_s", "throughput_low_items_per_s", "throughput_high_items_per_s"),
    "memory": ("memory_peak_mib", "memory_peak_low_mib", "memory_peak_mib"),
}
"""Per figure: the fields of its value, minimum and maximum over a cell's results."""
_IDENTITY = (
    "model_id", *PLACE, "choice", "device_id", *SETUP, *SHAPE, "provenance", "verified", "baseline",
    "baseline_device_id", "lacking", "predicted_ms",
)  # fmt: skip
_FIELD_TEXTS = {
    "batch_size": "batch {}",
    "branch": "branch {}",
    "sequence_length": "{} tokens",
    "output_tokens": "{} tokens out",
    "image_size": "{:g} pixels",
    "processes": "{} processes",
}
"""Text of a field's value; those of other fields speak for themselves."""
_TITLE_CHARACTERS, _NAME_CHARACTERS = 52, 40


class NothingToDraw(NotFound):
    """Error for a chart without data. The message names what would provide it."""


def require(rows: Sequence[T], lacking: str) -> Sequence[T]:
    """Return the rows. Raises NothingToDraw if there are none."""
    if not rows:
        raise NothingToDraw(
            f"{lacking} `accel chart --list` tells what each chart needs, `accel bench run` measures, and "
            "`accel migrate PATH` imports."
        )
    return rows


def in_fixed_order(rows: Rows, first: str = "latency_ms") -> list[Row]:
    """Return the rows in the order of one field, the least first and unknown last, then of what identifies them.

    A chart takes its rows in this order, because those before others win where not all can be shown. So equal rows
    make equal charts, in whichever order they come.
    """
    return sorted(rows, key=lambda row: (row[first] is None, row[first] or 0, *(str(row.get(f)) for f in _IDENTITY)))


def count_measured(cells: Rows) -> int:
    """Return how many of the cells were measured, not stated by others."""
    return sum(cell["provenance"] == "measured" for cell in cells)


def field_text(field: str, value: Any) -> str | None:
    """Return a field's value in words; None for a default or unknown value."""
    if value is None:
        return "device not named" if field == "device_name" else None
    if field == "processes" and value == 1:
        return None
    return _FIELD_TEXTS.get(field, "{}").format(value)


def label(row: Row, fields: Iterable[str]) -> str:
    """Describe the fields in words."""
    hardware = f"{row['hardware']}:{row['choice']}" if row.get("choice") else row.get("hardware")
    texts = (field_text(field, hardware if field == "hardware" else row.get(field)) for field in fields)
    return ", ".join(filter(None, texts))


def differing_fields(rows: Rows, fields: Iterable[str]) -> list[str]:
    """Return the fields in which the rows differ."""
    return [
        f for f in fields if len({(row.get(f), row.get("choice") if f == "hardware" else None) for row in rows}) > 1
    ]


def describe_shared(rows: Rows, fields: Sequence[str]) -> str:
    """Describe in words what all rows have in common."""
    apart = differing_fields(rows, fields)
    return label(rows[0], [field for field in fields if field not in apart])


def group_rows(rows: Iterable[Row], key: Callable[[Row], Hashable]) -> dict[Any, list[Row]]:
    """Group rows by key, in the order of first occurrence."""
    found: dict[Any, list[Row]] = {}
    for row in rows:
        found.setdefault(key(row), []).append(row)
    return found


def grouping_key(row: Row, fields: Sequence[str]) -> tuple[Any, ...]:
    """Return a key that is equal for rows with the same fields, device and software."""
    return tuple(map(row.get, (*fields, "choice", "device_id", *SETUP) if "hardware" in fields else fields))


def figure_with_spread(row: Row, figure: str) -> dict[str, Any]:
    """Return `value`, `low`, `high` and `spread` (in words) of a cell's latency, throughput or memory.

    The bounds are the extremes over several results, or one standard deviation of a single result's samples. They are
    None if neither is known.
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


def describe_evidence(row: Row) -> str:
    """Describe runs, samples, provenance and verification in words."""
    samples = f", {count_of(row['samples'], 'sample')}" if row.get("samples") else ""
    runs = f" of {count_of(row['runs'], 'run')}" if row.get("runs") else ""
    results = count_of(row["results"], "result")
    checked = {True: ", outputs verified", False: ", outputs wrong"}.get(row.get("verified"), "")  # type: ignore[arg-type]
    noisy = ", noisy" if row.get("noisy") else ""
    return f"{results}{runs}{samples}, {row['provenance']}{checked}{noisy}"


def mark_row(row: Row, figure: Mapping[str, Any], unit: str, **more: Any) -> dict[str, Any]:
    """Return a row of a specification: position and name of the mark, and its tooltip `tip`."""
    value, low, high = figure["value"], figure["low"], figure["high"]
    limits = f" [{rounded(low, 4)}, {rounded(high, 4)}]" if low is not None and high is not None else ""
    what = label(row, ("model_id", *PLACE, *SHAPE))
    tip = f"{what}: {rounded(value, 4)} {unit}{limits} ({figure['spread']}); {describe_evidence(row)}"
    return {"value": value, "low": low, "high": high, "provenance": row["provenance"], "tip": tip, **more}


def shape(rows: Rows) -> alt.Shape:
    """Encode provenance as the shape, with a legend of the values that occur."""
    there = [name for name in SHAPES if any(row["provenance"] == name for row in rows)]
    legend = None if len(there) < 2 else alt.Legend(title="provenance", orient="bottom")
    return alt.Shape("provenance:N", legend=legend).scale(domain=there, range=[SHAPES[name] for name in there])


def color_encoding(names: Sequence[str]) -> alt.Color:
    """Encode each name, in the field `line`, as a color, in order."""
    there = list(dict.fromkeys(names))
    legend = alt.Legend(orient="bottom", direction="vertical", columns=1 if max(map(len, there)) > 45 else 2)
    return alt.Color("line:N", title=None, legend=None if len(there) < 2 else legend).scale(
        domain=there, range=[PALETTE[i % LINES] for i in range(len(there))]
    )


def tooltip_encoding() -> dict[str, Any]:
    """Return the tooltip and the accessible description of a mark."""
    return {"tooltip": alt.Tooltip("tip:N", title="figure"), "description": alt.Description("tip:N")}


def quantity_axis(field: str, title: str, values: Iterable[float | None], axis: type[Any], *, zero: bool = True) -> Any:
    """Return an axis with its unit: from zero, or logarithmic if values span more than a factor of 20."""
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
    """Return the ticks of a logarithmic axis: 1, 2 and 5 of each power of ten, or powers only."""
    first, last = math.floor(math.log10(low / 1.25)), math.ceil(math.log10(high * 1.25))
    steps = (1.0, 2.0, 5.0) if last - first <= 3 else (1.0,)
    return [step * 10.0**power for power in range(first, last + 1) for step in steps]


def panel_title(text: str) -> alt.TitleParams:
    """Return the title of a panel."""
    return alt.TitleParams(wrap_text(text, _TITLE_CHARACTERS), fontSize=12, anchor="start", offset=6)


def combine_panels(
    panels: Sequence[alt.Chart | alt.LayerChart | alt.FacetChart],
    title: str,
    rows: Rows,
    *,
    columns: int,
    common: str,
    remarks: Sequence[str],
) -> alt.ConcatChart:
    """Combine panels under a title and a subtitle: shared fields, evidence and omissions."""
    subtitle_lines = subtitle([f"Alike in all: {common}." if common else "", describe_basis(rows), *remarks])
    # All at once, because Altair copies every panel several times for each property that is set later.
    return alt.ConcatChart(
        concat=list(panels),
        columns=min(columns, len(panels)),
        title=alt.TitleParams(title, subtitle=subtitle_lines),
        description=" ".join([title + ".", *subtitle_lines]),
        resolve=alt.Resolve(scale=alt.ScaleResolveMap(color="shared", shape="shared")),
    )


def subtitle(sentences: Sequence[str]) -> list[str]:
    """Wrap sentences into subtitle lines of readable length."""
    return [line for text in sentences if text for line in wrap_text(text, 88)]


def describe_basis(rows: Rows) -> str:
    """Describe the number of results per provenance."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row["provenance"]] += row["results"]
    total = sum(counts.values())
    parts = ", ".join(f"{count:,} {name}" for name, count in sorted(counts.items()))
    return f"{count_of(len(rows), 'figure')} from {count_of(total, 'result')}: {parts}."


def describe_spreads(marks: Rows) -> str:
    """Describe the meaning of the error bars; empty if none is drawn."""
    drawn = any(mark["low"] is not None and mark["high"] != mark["low"] for mark in marks)
    return (
        "Bars: lowest to highest result of a cell; of a single result, one standard deviation of its samples to either"
        " side."
        if drawn
        else "No spread is known of these figures: each rests on one result without samples."
    )


def describe_omitted(shown: int, of: int, what: str, filters: str) -> str:
    """Describe the number of omitted items and the filters that show others; empty if none was omitted.

    Filters go by their words, because a chart is of commands, routes and pages alike.
    """
    return f"{shown} of {of:,} {what} shown; filter by {filters} for others." if of > shown else ""


def error_bars(base: alt.Chart, *, horizontal: bool, low: Any) -> alt.Chart:
    """Draw the error bar of each mark."""
    encoded = {"x": low, "x2": alt.X2("high:Q")} if horizontal else {"y": low, "y2": alt.Y2("high:Q")}
    known = base.transform_filter("isValid(datum.low) && isValid(datum.high)")
    chart: alt.Chart = known.mark_rule(strokeWidth=1.5, opacity=0.7, aria=False, color=GRAY).encode(**encoded)
    return chart


def wrap_text(text: str, width: int) -> list[str]:
    """Wrap text to a width, between words. Ids stay whole."""
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]


def row_labels(rows: Rows, fields: Sequence[str]) -> list[str]:
    """Return a label of at most two lines for each row. Rows with equal fields are numbered."""
    names: list[str] = []
    for row in rows:
        lines = wrap_text(label(row, fields), _NAME_CHARACTERS)
        name = "\n".join(lines if len(lines) < 3 else [lines[0], f"{lines[1][: _NAME_CHARACTERS - 1]}…"])
        number = 2
        while name in names:
            name = f"{name.removesuffix(f' ({number - 1})')} ({number})"
            number += 1
        names.append(name)
    return names
