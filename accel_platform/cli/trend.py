"""`accel trend`: a figure of one model over time, where it moved, and at which commit."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accel_platform.cli.options import filtered, selection
from accel_platform.cli.output import (
    PEOPLE,
    AsOf,
    FileFormat,
    Home,
    Json,
    Output,
    answer,
    chosen,
    note,
    print_table,
    settings_for,
)

if TYPE_CHECKING:
    from accel_platform.analysis.regressions.trend import Trend


class Metric(enum.StrEnum):
    """`analysis.trend.Metric` for options."""

    latency_ms = "latency_ms"
    throughput_items_per_s = "throughput_items_per_s"
    memory_peak_mib = "memory_peak_mib"
    first_ms = "first_ms"
    load_ms = "load_ms"
    energy_j_per_item = "energy_j_per_item"


@filtered()
def trend(
    *,
    metric: Annotated[Metric, typer.Option("--metric", help="Which figure.")] = Metric.latency_ms,
    min_change_percent: Annotated[
        float, typer.Option("--min-change", min=0, help="Smallest shift worth telling, in per cent.")
    ] = 3.0,
    as_of: AsOf = None,
    output: Output = None,
    format_: FileFormat = None,
    home: Home = None,
    as_json: Json = False,
    **filters: Any,
) -> None:
    """Follow a figure through time, a series per cell, device and fingerprint; --model names whose.

    Files hold every point; a terminal shows a line per series and one per shift.
    """
    from accel_platform.analysis.query.filters import how_to_measure
    from accel_platform.analysis.regressions.trend import trends
    from accel_platform.errors import InvalidInput
    from accel_platform.warehouse.reader import Reader

    kind, asked = chosen(as_json, format_, output), selection(filters)
    if not asked.model:
        raise InvalidInput("Name a model: `accel trend --model bert-base --hardware cpu`.")
    found = trends(Reader(settings_for(home, as_of)), asked, metric.value, min_change_percent=min_change_percent)
    nothing = f"No result with {metric.value} is there. To measure: `{how_to_measure(asked)}`."
    document = [one.document() for one in found]
    rows = [_line(one) for one in found] if kind in PEOPLE else _points(found)
    answer(rows, kind, output, title=f"{metric.value} over time", document=document, empty=nothing)
    shifts = [row for one in found for row in _shifts(one)]
    if kind == "table" and output is None and shifts:
        typer.echo()
        print_table(shifts)
    if undated := sum(one.undated for one in found):
        note(f"{undated} results of unknown time are left out.")
    if found:
        note("spread: coefficient of variation between results since the last shift.")


def _line(one: Trend) -> dict[str, Any]:
    from accel_platform.table_io.text import sparkline

    values = [point.value for point in one.points]
    return {
        "model_id": one.series["model_id"],
        "cell": _cell(one),
        "device": one.series["device_name"] or one.series["device_id"],
        "fingerprint": one.series["fingerprint"] and one.series["fingerprint"][:8],
        "provenance": one.series["provenance"],
        "results": len(values),
        "runs": len({point.run_id for point in one.points if point.run_id}) or None,
        "first": values[0] if values else None,
        "newest": values[-1] if values else None,
        "median": one.median,
        "spread": None if one.spread_percent is None else f"{one.spread_percent:.1f} %",
        "shifts": len(one.shifts),
        "over time": sparkline(values),
    }


def _shifts(one: Trend) -> list[dict[str, Any]]:
    words = {True: "worse", False: "better", None: None}
    return [
        {
            "model_id": one.series["model_id"],
            "cell": _cell(one),
            "since": shift.point.at,
            "commit": shift.point.commit and shift.point.commit[:12],
            "before": shift.before,
            "after": shift.after,
            "change": None if shift.change_percent is None else f"{shift.change_percent:+.1f} %",
            "is": words[shift.worse],
            "regression": shift.regression_id,
            "state": shift.state or "not recorded",
        }
        for shift in one.shifts
    ]


def _points(found: Sequence[Trend]) -> list[dict[str, Any]]:
    rows = []
    for one in found:
        shifts = {shift.point.result_id: shift for shift in one.shifts}
        for point in one.points:
            shift = shifts.get(point.result_id)
            rows.append(
                {
                    **one.series,
                    "at": point.at,
                    "run_id": point.run_id,
                    "commit": point.commit,
                    one.metric: point.value,
                    "std": point.std,
                    "samples": point.samples,
                    "noisy": point.noisy,
                    "shift_percent": shift and shift.change_percent,
                    "regression_id": shift and shift.regression_id,
                    "state": shift and shift.state,
                    "result_id": point.result_id,
                }
            )
    return rows


def _cell(one: Trend) -> str:
    from accel_platform.events.types import MeasuredSeries
    from accel_platform.reports.regressions import cell

    return cell(MeasuredSeries.model_construct(**one.series))
