"""Printed tables, matrices and charts of the predictor's answers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from accel_platform.cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from predictor.advisor.advisor import Advisor
    from predictor.schemas.requests import Objective
    from predictor.schemas.responses import Answer, Figures, Interval, PredictAnswer

_SHOWN = (
    "model", "hardware", "device", "batch_size", "latency_ms", "latency_low_ms", "latency_high_ms", "items_per_s",
    "provenance",
)  # fmt: skip


def print_answer(answer: Answer, objective: Objective, *, verbose: bool) -> None:
    """Print the rankings of own hardware and elsewhere, with a column for the objective if the usual ones lack it.

    Excluded hardware is grouped by reason unless `verbose`.
    """
    from predictor.advisor.answers import excluded_by_reason
    from predictor.advisor.objectives import gain_elsewhere

    rows = [{"rank": r.rank, "where": r.where, **_row(r), **_objective(r, objective)} for r in answer.recommendations]
    for row, r in zip(rows, answer.recommendations, strict=True):
        namesakes = [o for o in answer.recommendations if (o.hardware, o.device) == (r.hardware, r.device)]
        telling = [r.device_id] if len({o.device_id for o in namesakes}) > 1 else []
        telling += [r.backend] if len({o.backend for o in namesakes}) > 1 else []
        if telling:
            row["device"] = f"{r.device} ({', '.join(filter(None, telling))})"
    own, others = ([row for row in rows if (row["where"] == "elsewhere") == away] for away in (False, True))
    if own or not others:
        print_table(own, empty="Nothing supports a recommendation.")
    if others:
        typer.echo("\nElsewhere, known from others only:" if own else "Elsewhere, known from others only:")
        print_table(others)
    if (gain := gain_elsewhere(objective, answer.recommendations)) is not None:
        note(gain)
    for reason, group in excluded_by_reason(answer.excluded).items():
        if len(group) > 1 and not verbose:
            note(f"left out: {len(group)} devices: {reason} (--verbose names them)")
            continue
        for left_out in group:
            device = f" ({left_out.device})" if left_out.device else ""
            note(f"left out: {left_out.hardware}{device}: {reason}")
    open_ = [e for e in answer.excluded if e.cause not in ("constraint", "does_not_fit", "no_runtime")]
    if open_:
        # One suggestion is shown, because they differ only in hardware; --json has all.
        here = [e.suggestion for e in open_ if e.suggestion.startswith("accel")]
        note(f"to settle one of these: {(here or [open_[0].suggestion])[0]}")
    for warning in answer.warnings:
        note(f"warning: {warning}")


def print_prediction(answer: PredictAnswer) -> None:
    """Print one prediction and its basis."""
    print_table([_row(answer)])
    note(answer.basis)
    for reason in answer.why:
        note(f"why: {reason}")
    if answer.bound is not None:
        bound = answer.bound
        note(f"bound by {bound.by}: {bound.compute_ms:.3g} ms of computing, {bound.memory_ms:.3g} ms of memory traffic")
    for warning in answer.warnings:
        note(f"warning: {warning}")


def predict_matrix(
    advisor: Advisor, models: list[Any] | None, hardware: list[Any], batch_sizes: list[int], same: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return rows of every model on every hardware; None means all measured ones. Raises InvalidInput."""
    from pydantic import ValidationError

    from accel_platform.errors import InvalidInput
    from predictor.advisor import batch_tables
    from predictor.schemas.requests import BatchQuery

    evidence = advisor.state().evidence
    try:
        queries = batch_tables.batch_queries(
            models or batch_tables.measured_models(evidence),
            hardware or batch_tables.known_hardware(evidence),
            batch_sizes,
            **same,
        )
        query = BatchQuery(queries=queries)
    except ValidationError as error:
        wrong = "; ".join(f"{e['loc'][0]}: {e['msg']}" for e in error.errors())
        raise InvalidInput(wrong) from error
    return batch_tables.answer_rows(queries, advisor.predict_many(query))


def print_matrix(rows: list[dict[str, Any]], format_: str, output: Path | None) -> None:
    """Write the matrix to a file or stdout. Raises InvalidInput if it cannot be written."""
    from accel_platform.errors import InvalidInput
    from accel_platform.reports.charts.render import page
    from predictor.advisor import batch_tables, charts

    if format_ == "html":
        size = rows[0]["batch_size"]
        chart = charts.heat_map_chart(rows, title=f"Milliseconds per item, batch size {size}")
        text = page(chart, heading="Models by hardware")
    elif format_ == "csv":
        text = batch_tables.rows_to_csv(rows)
    elif output is not None:
        raise InvalidInput("--output takes --format csv or html; JSON and tables go to stdout.")
    elif format_ == "json":
        print_json(rows)
        return
    else:
        print_cells(rows, for_machines=False)
        return
    if output is None:
        typer.echo(text, nl=False)
        return
    try:
        output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{output} cannot be written: {error.strerror}.") from error
    note(f"{len(rows)} cells written to {output}")


def print_cells(rows: list[dict[str, Any]], *, for_machines: bool) -> None:
    """Print a row per predicted cell, and a remark per unsupported one."""
    if for_machines:
        print_json(rows)
        return
    known = [row for row in rows if row["problem"] is None]
    print_table([{name: row[name] for name in _SHOWN} for row in known], empty="Nothing supports any of these.")
    for row in rows:
        if row["problem"] is not None:
            note(f"left out: {row['model']} on {row['asked']}, batch {row['batch_size']}: {row['problem']}")


def draw_chart(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw curves over several batch sizes, else hardware side by side. Raises InvalidInput if nothing is supported."""
    from accel_platform.errors import InvalidInput
    from accel_platform.reports.charts.render import write
    from predictor.advisor import charts

    known = [row for row in rows if row["problem"] is None]
    if not known:
        raise InvalidInput("Nothing supports any of these figures: there is nothing to draw.")
    sizes = {row["batch_size"] for row in rows}
    names = ", ".join(dict.fromkeys(row["model"] for row in known))
    length = known[0]["sequence_length"]
    title = names if length is None else f"{names}, sequence length {length}"
    if len(sizes) > 1:
        write(charts.batch_size_chart(known, title=title), path, heading=title)
    else:
        title = f"{title}, batch size {sizes.pop()}"
        write(charts.comparison_chart(known, title=title), path, heading=title)
    note(f"drawn to {path}")


def _row(figures: Figures) -> dict[str, Any]:
    return {
        "hardware": figures.hardware,
        "device": figures.device,
        "latency_ms": _interval(figures.latency_ms),
        "items_per_s": _interval(figures.throughput_items_per_s),
        "memory_peak_mib": _interval(figures.memory_peak_mib),
        "where": figures.where,
        "provenance": figures.provenance,
        "compatibility": figures.compatibility.rating or figures.compatibility.state,
    }


def _objective(figures: Figures, objective: str) -> dict[str, Any]:
    cost, energy = figures.cost, figures.energy
    if objective == "cost":
        dated = None if cost is None else f"{cost.usd_per_hour:g} USD/h, {cost.date or 'undated'}"
        return {
            "usd_per_million_items": _interval(None if cost is None else cost.usd_per_million_items),
            "price": dated,
        }
    if objective == "energy":
        return {"j_per_item": _interval(None if energy is None else energy.j_per_item), "energy": energy and energy.how}
    return {}


def _interval(interval: Interval | None) -> str | None:
    if interval is None:
        return None
    if interval.low is None and interval.high is not None:
        return f"at most {interval.high:.4g}"
    if interval.low is None or interval.high is None:
        return f"{interval.p50:.4g}"
    level = "" if interval.level is None else f" at {interval.level:.0%}"
    return f"{interval.p50:.4g} [{interval.low:.4g}, {interval.high:.4g}{level}]"
