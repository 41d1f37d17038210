"""Printed tables, matrices and charts of the predictor's answers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from accel_platform.cli.output import note, print_json, print_table
from accel_platform.cli.prediction.query_options import option_name
from accel_platform.table_io.values import count_of, rounded

if TYPE_CHECKING:
    from predictor.advisor.advisor import Advisor
    from predictor.schemas.requests import Objective
    from predictor.schemas.responses import Answer, Excluded, Figures, Interval, PredictAnswer, Recommendation

    _Group = tuple[str, list[Excluded]]

_SHOWN = (
    "model", "hardware", "device", "batch_size", "precision", "latency_ms", "latency_low_ms", "latency_high_ms",
    "level", "items_per_s", "provenance",
)  # fmt: skip
_MAX_REASONS = 3
"""Reasons for leaving hardware out that are listed unless all is asked for."""
_NOT_TRIED = ("unsupported", "no_runtime")
"""Causes of which a query without hardware has hundreds: where there is an answer and more to say, they are counted."""
_MAX_ELSEWHERE = 15
"""Hardware elsewhere that is listed unless all is asked for."""


def print_answer(answer: Answer, objective: Objective, *, named: bool, verbose: bool, wide: bool) -> None:
    """Print the rankings of own hardware and elsewhere, with a column for the objective if the usual ones lack it.

    Excluded hardware is grouped by reason unless `verbose`, and explained where the query `named` its hardware. All
    columns are printed if `wide`, else those that fit 100 characters.
    """
    from predictor.advisor.answers import empty_reason
    from predictor.advisor.objectives import gain_elsewhere

    rows = _rows(answer.recommendations, objective, wide=wide)
    own = list(compress(rows, (r.where != "elsewhere" for r in answer.recommendations)))
    others = list(compress(rows, (r.where == "elsewhere" for r in answer.recommendations)))
    if own or not others:
        print_table(own, missing=empty_reason(answer.excluded), wide=wide)
    if others:
        _print_elsewhere(others, below=bool(own), verbose=verbose, wide=wide)
    if rows and not wide:
        note("level: share of batches (measured), published figures or unseen cells in the limits; --wide: all")
    if (gain := gain_elsewhere(objective, answer.recommendations)) is not None:
        note(gain)
    _note_excluded(answer, named=named, verbose=verbose)
    _suggest(answer)
    for warning in answer.warnings:
        note(f"warning: {warning}")


def _print_elsewhere(others: list[dict[str, Any]], *, below: bool, verbose: bool, wide: bool) -> None:
    """Print the ranking of hardware elsewhere; `below` another table, with a line between."""
    typer.echo("\nElsewhere, known from others only:" if below else "Elsewhere, known from others only:")
    shown = others if verbose else others[:_MAX_ELSEWHERE]
    print_table(shown, wide=wide)
    if len(shown) < len(others):
        note(f"{len(others) - len(shown)} more elsewhere (--verbose shows them)")


def _suggest(answer: Answer) -> None:
    """Print one suggestion of what would settle a cell left out, where few are or nothing is recommended."""
    open_ = [e for e in answer.excluded if e.cause not in ("constraint", "does_not_fit", "no_runtime")]
    is_many = bool(answer.recommendations) and len(open_) > _MAX_REASONS
    if not open_ or is_many or any(e.cause == "constraint" for e in answer.excluded):
        return
    # One suggestion is shown, because they differ only in hardware; --json has all.
    here = [e.suggestion for e in open_ if e.suggestion.startswith("accel")]
    note(f"to settle one of these: {(here or [open_[0].suggestion])[0]}")


_CAUSES = {
    "constraint": "beyond your limits",
    "does_not_fit": "too small a memory",
    "measured_failure": "failed when measured",
    "predicted_failure": "expected to fail",
    "unavailable": "unavailable",
    "unsupported": "no figure supported",
    "no_runtime": "no runtime of this platform",
}
"""Causes of leaving hardware out, in words."""


def _note_excluded(answer: Answer, *, named: bool, verbose: bool) -> None:
    """Print what was left out by reason: first what was tried or may be changed, then the most frequent reasons.

    Unless `verbose`, further runtimes of recommended devices are counted only. So is what nothing is known of, where
    something is recommended and the query named no hardware.
    """
    from predictor.advisor.answers import excluded_by_reason, other_runtimes
    from predictor.advisor.device_labels import place_label, shared_devices

    shared = shared_devices([*answer.recommendations, *answer.excluded])
    further = [] if verbose else other_runtimes(answer)
    excluded = [item for item in answer.excluded if item not in further]
    groups = sorted(excluded_by_reason(excluded).items(), key=lambda group: group[1][0].cause in _NOT_TRIED)
    listed = groups if verbose else _first_groups(groups, count_untried=bool(answer.recommendations) and not named)
    if len(groups) > 1:
        counts = Counter(item.cause for item in excluded)
        sums = ", ".join(f"{count} {_CAUSES[cause]}" for cause, count in counts.most_common())
        note(f"left out: {len(excluded)} in all: {sums}")
    # Runtimes of one device that are left out for one reason read alike.
    devices = {reason: list(dict.fromkeys(place_label(e, shared) for e in group)) for reason, group in groups}
    for reason, _ in listed:
        _note_devices(devices[reason], reason, verbose=verbose)
    if further:
        note(f"left out: {count_of(len(further), 'runtime')} more of devices above")
    more = len(groups) - len(listed)
    if not verbose and (further or more > 0 or any(len(names) > 1 for names in devices.values())):
        reasons = f" and {count_of(more, 'more reason')}" if more > 0 else ""
        note(f"--verbose names all that was left out{reasons}")


def _first_groups(groups: list[_Group], *, count_untried: bool) -> list[_Group]:
    """Return the groups to list; with `count_untried`, of many groups those that nothing is known of are counted."""
    first = groups[:_MAX_REASONS]
    if count_untried and len(groups) > _MAX_REASONS:
        return [group for group in first if group[1][0].cause not in _NOT_TRIED]
    return first


def _note_devices(devices: list[str], reason: str, *, verbose: bool) -> None:
    """Print a line per device that is left out for a reason; unless `verbose`, several are counted."""
    if len(devices) > 1 and not verbose:
        note(f"left out: {count_of(len(devices), 'device')}: {reason}")
        return
    for device in devices:
        note(f"left out: {device}: {reason}")


def _rows(ranked: Sequence[Recommendation], objective: Objective, *, wide: bool) -> list[dict[str, Any]]:
    """Return a row per recommendation; what tells devices of one name apart is added to it."""
    from predictor.advisor.device_labels import device_labels

    rows = []
    several_own = len({r.where for r in ranked} - {"elsewhere"}) > 1
    for r, named in zip(ranked, device_labels(ranked), strict=True):
        columns = _wide_row(r) if wide else _narrow_row(r, objective)
        place = {"where": r.where} if wide or several_own else {}
        rows.append({"rank": r.rank, **columns, "device": named, **place, **_objective(r, objective, wide=wide)})
    return rows


def print_prediction(answer: PredictAnswer) -> None:
    """Print one prediction and its basis."""
    print_table([_narrow_row(answer)])
    note(answer.basis)
    for reason in answer.why:
        note(f"why: {reason}")
    if answer.bound is not None:
        bound = answer.bound
        note(
            f"at full speed bound by {bound.by}: {rounded(bound.compute_ms)} ms of computing, "
            f"{rounded(bound.memory_ms)} ms of memory traffic; "
            "the rest is what operators fall short of it, launches and waiting"
        )
    for warning in answer.warnings:
        note(f"warning: {warning}")


def predict_matrix(
    advisor: Advisor,
    models: list[Any] | None,
    hardware: list[Any],
    batch_sizes: list[int],
    precisions: list[str | None],
    same: dict[str, Any],
) -> list[dict[str, Any]]:
    """Return rows of every model on every hardware; None means all measured ones.

    Raises NotFound for an unknown model, and InvalidInput for other names and sizes that cannot be.
    """
    from predictor.advisor import batch_tables
    from predictor.advisor.resolved_query import require_known_names
    from predictor.schemas.requests import BatchQuery, validate_query

    evidence = advisor.state().evidence
    queries = batch_tables.batch_queries(
        batch_tables.measured_models(evidence) if models is None else models,
        hardware or batch_tables.known_hardware(evidence),
        batch_sizes,
        precisions,
        field_name=option_name,
        **same,
    )
    query = validate_query(BatchQuery, {"queries": queries})
    require_known_names(evidence, queries)
    return batch_tables.answer_rows(queries, advisor.predict_many(query))


def print_matrix(rows: list[dict[str, Any]], format_: str, output: Path | None) -> None:
    """Write the matrix to a file or stdout. Raises InvalidInput if it cannot be written."""
    from accel_platform.errors import InvalidInput
    from accel_platform.reports.charts.render import page
    from accel_platform.table_io.files import save_bytes
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
    save_bytes(output, text.encode())
    note(f"{count_of(len(rows), 'cell')} written to {output}")


def print_cells(rows: list[dict[str, Any]], *, for_machines: bool) -> None:
    """Print a row per predicted cell, a remark per unsupported one, and each warning once."""
    if for_machines:
        print_json(rows)
        return
    from accel_platform.hardware.device_names import with_distinct_names

    known = with_distinct_names([row for row in rows if row["problem"] is None], name="device")
    print_table([{name: row[name] for name in _SHOWN} for row in known], missing="Nothing supports any of these.")
    for row in rows:
        if row["problem"] is not None:
            cell = ", ".join(filter(None, (f"batch {row['batch_size']}", row["precision"])))
            note(f"left out: {row['model']} on {row['asked']}, {cell}: {row['problem']}")
    for warning in dict.fromkeys(warning for row in known for warning in row["warnings"]):
        note(f"warning: {warning}")


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


def _narrow_row(figures: Figures, objective: Objective = "latency") -> dict[str, Any]:
    latency = figures.latency_ms
    limits = (
        None if latency.low is None or latency.high is None else f"{rounded(latency.low)} to {rounded(latency.high)}"
    )
    level = None if latency.level is None else f"{latency.level:.0%}"
    return {
        "hardware": figures.hardware,
        "device": figures.device,
        "latency_ms": rounded(latency.p50),
        **({"tokens_per_s": rounded(tokens.p50)} if (tokens := figures.output_tokens_per_s) else {}),
        **({"limits": limits, "level": level} if objective == "latency" else {}),
        "provenance": figures.provenance,
    }


def _wide_row(figures: Figures) -> dict[str, Any]:
    return {
        "hardware": figures.hardware,
        "device": figures.device,
        "precision": figures.precision,
        "latency_ms": _interval(figures.latency_ms),
        "items_per_s": _interval(figures.items_per_s),
        "memory_peak_mib": _interval(figures.memory_peak_mib),
        "provenance": figures.provenance,
        "compatibility": figures.compatibility.rating or figures.compatibility.state,
    }


def _objective(figures: Figures, objective: Objective, *, wide: bool) -> dict[str, Any]:
    """Return the columns of an objective, beyond the usual ones."""
    cost, energy = figures.cost, figures.energy
    if objective == "throughput" and not wide:
        return {"items_per_s": _interval(figures.items_per_s)}
    if objective == "memory" and not wide:
        return {"memory_peak_mib": _interval(figures.memory_peak_mib)}
    if objective == "cost":
        dated = None if cost is None else f"{cost.usd_per_hour:g} USD/h, {cost.date or 'undated'}"
        dollars = _interval(None if cost is None else cost.usd_per_million_items)
        return {"usd_per_million_items": dollars, **({"price": dated} if wide else {})}
    if objective == "energy":
        return {"j_per_item": _interval(None if energy is None else energy.j_per_item), "energy": energy and energy.how}
    return {}


def _interval(interval: Interval | None) -> str | None:
    if interval is None:
        return None
    if interval.low is None and interval.high is not None:
        return f"at most {rounded(interval.high)}"
    if interval.low is None or interval.high is None:
        return rounded(interval.p50)
    level = "" if interval.level is None else f" at {interval.level:.0%}"
    return f"{rounded(interval.p50)} [{rounded(interval.low)}, {rounded(interval.high)}{level}]"
