"""`accel compare` and `accel trend`: differences between hardware, models and snapshots, and figures over time."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from accel_platform.analysis.regressions.thresholds import MIN_CHANGE_PERCENT
from accel_platform.cli.options import (
    NAMES,
    PEOPLE,
    AsOf,
    Branch,
    TableOptions,
    build_selection,
    min_change,
    split_values,
    with_filters,
)
from accel_platform.cli.output import (
    drop_empty_columns,
    exit_if_nothing,
    line_width,
    note,
    print_table,
    settings_for,
    write_answer,
)
from accel_platform.table_io.values import count_of, rounded

if TYPE_CHECKING:
    from accel_platform.analysis.query.filters import Selection
    from accel_platform.analysis.regressions.trend import Trend
    from accel_platform.analysis.summaries.comparison import Comparison

_LATENCY_OF = "time of one batch (a forward pass; the whole text in generation, an optimizer step in training)"
_MAX_DEVICE_NAME = 18
"""Characters of a device's name in the column `over` of a terminal."""


@with_filters("model")
def compare(
    *,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar=NAMES, help="One model over several hardware names.", show_default=False),
    ] = None,
    models: Annotated[
        list[str] | None,
        typer.Option(metavar=NAMES, help="Several models, on one hardware name.", show_default=False),
    ] = None,
    before: Annotated[
        str | None,
        typer.Option(metavar="SNAPSHOT", help="Show changes since this snapshot (name or id) or date."),
    ] = None,
    after: Annotated[
        str | None,
        typer.Option(metavar="SNAPSHOT", help="Show changes up to this snapshot or date.", show_default="now"),
    ] = None,
    min_change_percent: Annotated[float, min_change("change", at_least=1)] = MIN_CHANGE_PERCENT,
    as_of: AsOf = None,
    table: TableOptions,
    **filters: Any,
) -> None:
    """Compare equal shapes: --model M --hardware A B C, --models M N --hardware A, or --before S [--after T].

    The first name is the baseline of all ratios. Figures of different provenance are shown side by side without a
    ratio.

    Two runs: `accel regress check --baseline RUN --candidate RUN`.
    """
    from accel_platform.errors import InvalidInput

    if after is not None and before is None:
        raise InvalidInput("--after needs --before, the snapshot to compare with.")
    if before is not None:
        if as_of is not None or models:
            raise InvalidInput("--before and --after go with --model and the other filters, not --models or --as-of.")
        _changes((before, after), build_selection(filters, model=model), min_change_percent, table)
        return
    names, hardware = split_values(models), split_values(filters["hardware"])
    if bool(model) == bool(names) or (names and len(hardware) > 1):
        raise InvalidInput(
            "Name --model M with several --hardware, or --models M N with one --hardware, or --before S."
        )
    _side_by_side(as_of, build_selection(filters, model=models or model), bool(names), table)


def _side_by_side(as_of: str | None, filters: Selection, by_model: bool, table: TableOptions) -> None:
    from dataclasses import asdict

    from accel_platform.analysis.query.filters import measure_command
    from accel_platform.analysis.query.setups import with_distinct_runtimes
    from accel_platform.analysis.summaries.comparison import compare_side_by_side
    from accel_platform.hardware.device_names import with_distinct_names
    from accel_platform.hardware.instances import naming_caution
    from accel_platform.warehouse.reader import Reader

    reader = Reader(settings_for(table.home, as_of))
    found = compare_side_by_side(reader, filters, "model_id" if by_model else "hardware")
    named = with_distinct_runtimes(with_distinct_names(found.rows))
    over = _baselines(found, named)
    shown = zip(named, over, strict=True)
    rows = drop_empty_columns([_display_row(*one) for one in shown]) if table.kind in PEOPLE else found.rows
    hint = _missing_shape_reason(found) or f"To measure: `{measure_command(filters)}`."
    sides = "models" if by_model else "hardware"
    one_side = len(getattr(filters, "model" if by_model else "hardware")) == 1
    nothing = (
        f"One side alone was named: give several {sides}. Precisions of one hardware: `accel db query`, as in "
        "docs/howto/precisions.md."
        if one_side
        else f"No shape was measured on both sides. {hint}"
    )
    write_answer(
        rows,
        table,
        title=f"{found.names[0]} against {', '.join(found.names[1:])}" if found.names else "Comparison",
        document=asdict(found),
        missing=nothing,
        keep=("device", "latency_ms", "ratio", "over"),
        whole=("model_id", "shape", "hardware"),
    )
    for caution in filter(None, map(naming_caution, filters.hardware)):
        note(caution)
    for name, command in found.lacking.items():
        note(f"nothing of {name}: `{command}` measures it")
    if found.unpaired:
        note(
            f"left out: {count_of(len(found.unpaired), 'cell')} of shapes that only one was measured at; "
            "--json has them."
        )
    if found.rows:
        note(f"latency_ms: {_LATENCY_OF}, by the median of its runs")
        note(
            f"ratio: latency over that of {_baseline(found, named, over)} at the same shape; its 95 % interval is over"
            " processes where both have two or more, else over samples alone."
        )
    exit_if_nothing(found.rows)


def _baseline(found: Comparison, rows: Sequence[Mapping[str, Any]], over: Sequence[str | None]) -> str:
    """Return the name that ratios are to, with its device if the rows are of several; `over` is of `_baselines`."""
    name = found.names[0]
    devices = {row["device_id"]: row["device_name"] for row in rows if row["baseline"]}
    if found.by == "model_id" or len({row["device_id"] for row in rows}) == 1 or not any(devices.values()):
        return name
    if len(devices) == 1:
        return f"{name} on {next(iter(devices.values()))}"
    return f"{name} on the {'device that `over` names' if any(over) else 'same device'}"


def _baselines(found: Comparison, rows: Sequence[Mapping[str, Any]]) -> list[str | None]:
    """Return the device that each row's ratio is to; None for all if these are equal or each row's own.

    On a terminal a name's middle is cut out, because a cut end would lose the id that tells namesakes apart.
    """
    from accel_platform.table_io.width import cut_middle

    most = _MAX_DEVICE_NAME if line_width() is not None else sys.maxsize
    devices = {row["device_id"]: row["device_name"] for row in rows if row["baseline"]}
    over = [
        None
        if row["ratio"] is None
        else "same device"
        if row["baseline_device_id"] == row["device_id"]
        else cut_middle(devices[row["baseline_device_id"]] or "a device not named", most)
        for row in rows
    ]
    telling = found.by == "hardware" and len(devices) > 1 and {*over} - {None, "same device"}
    return over if telling else [None] * len(rows)


def _changes(snapshots: tuple[str, str | None], filters: Selection, least: float, table: TableOptions) -> None:
    from dataclasses import asdict

    from accel_platform.analysis.regressions.snapshot_comparison import compare_cells
    from accel_platform.warehouse.publish import bring_up_to_date
    from accel_platform.warehouse.reader import Reader

    old, new = (settings_for(table.home, ref) for ref in snapshots)
    bring_up_to_date(new, progress=note)
    found = compare_cells(Reader(old), Reader(new), filters, min_change_percent=least)
    kind = table.kind
    usual = _usual_reason(found.rows)
    write_answer(
        drop_empty_columns(_display_changes(found.rows, usual)) if kind in PEOPLE else found.rows,
        table,
        title=f"Between {found.before[:12]} and {found.after[:12]}",
        document=asdict(found),
        missing="No cell was measured again in between.",
        keep=("model_id", "device", "verdict", "change"),
        whole=("cell",),
    )
    if usual is not None and kind in PEOPLE:
        note(f"undecided, unless another reason is given: {usual}.")
    note(f"not measured again: {count_of(found.only_before, 'cell')}; new: {found.only_after}.")
    exit_if_nothing(found.rows)


def _usual_reason(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the reason that more than half of the undecided rows share; None if there is none, or one such row."""
    reasons = Counter(row["reason"] for row in rows if row["verdict"] == "undecided")
    [(reason, count)] = reasons.most_common(1) or [(None, 0)]
    return reason if count > max(1, reasons.total() / 2) else None


def _display_changes(rows: Sequence[Mapping[str, Any]], usual: str | None) -> list[dict[str, Any]]:
    """Return changes of cells as they are displayed, with devices where several ran a cell, without a usual reason."""
    from accel_platform.reports.regressions import with_cells

    def percent(value: float | None, sign: str = "") -> str | None:
        return None if value is None else f"{value:{sign}.1f} %"

    shown = []
    for row in with_cells(rows):
        name = f", {row['device_id']}"
        shown.append(
            {
                "model_id": row["model_id"],
                "cell": row["cell"].removesuffix(name),
                "runtime": row["runtime"],
                "device": row["device_id"] if row["cell"].endswith(name) else None,
                "verdict": row["verdict"],
                "before_ms": row["before_ms"],
                "after_ms": row["after_ms"],
                "change": percent(row["change_percent"], "+"),
                "noise": percent(row["noise_percent"]),
                **{name: row[name] for name in ("processes_before", "processes_after", "provenance")},
                "reason": None if row["verdict"] == "undecided" and row["reason"] == usual else row["reason"],
            }
        )
    return shown


def _missing_shape_reason(found: Comparison) -> str | None:
    """Return why two measured models can share no shape: only one reads sequences. None for any other cause."""
    if found.by != "model_id" or found.lacking:
        return None
    reads: dict[str, set[bool]] = {}
    for cell in found.unpaired:
        reads.setdefault(cell["model_id"], set()).add(cell["sequence_length"] is not None)
    if len(reads) != 2 or set.intersection(*reads.values()):
        return None
    with_, without = sorted(reads, key=lambda name: True not in reads[name])
    return f"There is none: {with_} reads sequences, {without} does not."


def _display_row(row: Mapping[str, Any], over: str | None) -> dict[str, Any]:
    """Return a comparison row as it is displayed; `over` is what its ratio is to."""
    from accel_platform.reports.regressions import shape

    interval = None if row["ratio_low"] is None else f"{rounded(row['ratio_low'])} to {rounded(row['ratio_high'])}"
    covers = row["interval_of"]
    single = row["latency_low_ms"] == row["latency_high_ms"]
    spread = None if single else f"{rounded(row['latency_low_ms'], 4)} to {rounded(row['latency_high_ms'], 4)}"
    return {
        "model_id": row["model_id"],
        "shape": shape(row),
        "hardware": row["hardware"] + (f":{row['choice']}" if row["choice"] else ""),
        "runtime": row["runtime"],
        "device": row["device_name"],
        "latency_ms": row["latency_ms"],
        "runs": row["runs"] or row["results"],
        "between_runs_ms": spread,
        "provenance": row["provenance"],
        "ratio": row["ratio"],
        "over": over,
        "interval": interval,
        "interval_of": interval and covers,
        "throughput_items_per_s": row["throughput_items_per_s"],
        "std_ms": row["latency_std_ms"],
        "memory_peak_mib": row["memory_peak_mib"],
        "differs": "; ".join(row["differs"]) or None,
        "note": row["note"],
    }


Metric = Literal["latency_ms", "throughput_items_per_s", "memory_peak_mib", "first_ms", "load_ms", "energy_j_per_item"]
"""Metric option; mirrors `analysis.regressions.trend.Metric`."""


@with_filters()
def trend(
    *,
    metric: Annotated[Metric, typer.Option(help="The figure to follow.")] = "latency_ms",
    branch: Branch = None,
    min_change_percent: Annotated[float, min_change("shift")] = MIN_CHANGE_PERCENT,
    as_of: AsOf = None,
    table: TableOptions,
    **filters: Any,
) -> None:
    """Follow a figure of --model over time, with a series per cell, device, fingerprint and branch.

    A terminal shows a row per series with dated results and per shift; files hold every point.
    """
    from accel_platform.analysis.query.filters import measure_command
    from accel_platform.analysis.regressions.trend import trends
    from accel_platform.errors import InvalidInput
    from accel_platform.hardware.device_names import with_distinct_names
    from accel_platform.warehouse.reader import Reader

    chosen = build_selection(filters)
    if not chosen.model:
        raise InvalidInput("Name a model: `accel trend --model bert-base --hardware cpu`.")
    reader = Reader(settings_for(table.home, as_of))
    found = trends(reader, chosen, metric, branch=branch, min_change_percent=min_change_percent)
    document = [one.document() for one in found]
    named = [series["device_name"] for series in with_distinct_names([one.series for one in found])]
    dated = [_series_row(one, device) for one, device in zip(found, named, strict=True) if one.points]
    write_answer(
        dated if table.kind in PEOPLE else _point_rows(found),
        table,
        title=f"{metric} over time",
        document=document,
        empty=f"No result with {metric} has a time.",
        missing=None if found else f"No result with {metric} is there. To measure: `{measure_command(chosen)}`.",
        keep=("device", "newest", "median", "shifts"),
        whole=("cell", "over time"),
    )
    shifts = [row for one, device in zip(found, named, strict=True) for row in _shift_rows(one, device)]
    if table.kind == "table" and table.output is None and shifts:
        typer.echo()
        print_table(shifts)
    if undated := sum(one.undated for one in found):
        note(f"left out: {count_of(undated, 'result')} of unknown time.")
    if dated:
        note("spread: coefficient of variation between results since the last shift.")
    exit_if_nothing(found)


def _series_row(one: Trend, device: str | None) -> dict[str, Any]:
    from accel_platform.table_io.text import sparkline

    values, width = [point.value for point in one.points], line_width()
    return {
        "model_id": one.series["model_id"],
        "cell": _series_label(one),
        "device": device,
        "fingerprint": one.series["fingerprint"] and one.series["fingerprint"][:8],
        "provenance": one.series["provenance"],
        "results": len(values),
        "runs": len({point.run_id for point in one.points if point.run_id}) or None,
        "first": values[0] if values else None,
        "newest": values[-1] if values else None,
        "median": one.median,
        "spread": None if one.spread_percent is None else f"{one.spread_percent:.1f} %",
        "shifts": len(one.shifts),
        "over time": sparkline(values) if width is None else sparkline(values, max(12, min(40, width // 6))),
    }


def _shift_rows(one: Trend, device: str | None) -> list[dict[str, Any]]:
    words = {True: "worse", False: "better", None: None}
    return [
        {
            "model_id": one.series["model_id"],
            "cell": _series_label(one),
            "device": device,
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


def _point_rows(found: Sequence[Trend]) -> list[dict[str, Any]]:
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


def _series_label(one: Trend) -> str:
    from accel_platform.reports.regressions import cell

    branch = one.series["branch"]
    return cell(one.series) + (f", branch {branch}" if branch else "")
