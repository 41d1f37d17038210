"""Errors of the serving predictor on measured loads of a device, model, engine version or layout left out.

Each group is left out in turn; errors are of the loads left out. Questions (a model, a quantization and a load) are
left out by tenths. That is the error of an unmeasured load of a measured model on measured devices. Loads name their
version of the engine, and once more they do not. Coverage is that of intervals calibrated on the other groups. Loads
measured request by request (`loads`), whole batches (`batches`), load tests without first tokens (`load_tests`) and
disaggregated serving stand apart.
"""

from __future__ import annotations

import argparse
import json
import sys
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.calibration.conformal import MIN_GROUPS, calibrate
from predictor.serving.disaggregated_loads import load_disaggregated
from predictor.serving.fit import LEVEL, LeftOut, leave_out, leave_out_disaggregated, row_weights
from predictor.serving.loads import Load
from predictor.serving.measured_loads import MeasuredLoad, groups_of, load_measured_loads
from predictor.serving.predictor import times_of
from predictor.serving.step_times import Coefficients, fit_step_times
from predictor.serving.work import Array, work_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--disaggregated", action="store_true", help="of disaggregated serving alone")
    wanted = parser.parse_args()
    rows = load_measured_loads()
    report = {} if wanted.disaggregated else _aggregated(rows)
    report["disaggregated"] = _disaggregated(load_disaggregated(), rows)
    sys.stdout.write(json.dumps(report, indent=None if wanted.json else 2) + "\n")


def _aggregated(rows: Sequence[MeasuredLoad]) -> dict[str, Any]:
    kinds = np.array([_kind(row) for row in rows])
    report: dict[str, Any] = {kind: {"rows": int(np.sum(kinds == kind))} for kind in np.unique(kinds)}
    groupings = groups_of(rows) | {"question": list(map(_tenth, rows))}
    left_out = {name: leave_out(rows, groups) for name, groups in groupings.items()}
    for name in ("engine version", "parallelism", "question"):
        unnamed = f"{name}, no version named"
        groupings[unnamed] = groupings[name]
        left_out[unnamed] = leave_out(rows, groupings[name], versions=False)
    for name, found in left_out.items():
        for kind in np.unique(kinds):
            here = kinds == kind
            errors = LeftOut(found.token[here], found.first[here], found.deviations[here])
            report[kind][name] = _errors(errors, np.array(groupings[name])[here])
        if name in ("device", "model", "question"):
            report["loads"][name]["choices"] = _regret(rows, found)
        if name == "device":
            report["loads"][name]["choices_beside_measured"] = _regret(rows, found, groupings[name])
    return report


def _disaggregated(rows: Sequence[MeasuredLoad], aggregated: Sequence[MeasuredLoad]) -> dict[str, Any]:
    """Return the errors on disaggregated loads; the formula saw no aggregated loads of the group either."""

    def coefficients(group: Callable[[MeasuredLoad], str], name: str) -> Coefficients:
        rest = [row for row in aggregated if group(row) != name]
        cells = [(row.deployment, row.load) for row in rest]
        return fit_step_times(work_of(cells), *times_of(rest), row_weights(rest))

    report: dict[str, Any] = {"rows": len(rows)}
    of_pack = np.array([row.event_id.startswith("inferencex") for row in rows])
    sources = {"aiconfigurator": np.flatnonzero(~of_pack), "inferencex": np.flatnonzero(of_pack)}
    groups: dict[str, Callable[[MeasuredLoad], str]] = {
        "device": lambda row: row.deployment.device.name,
        "model": lambda row: row.model,
        "engine": lambda row: row.deployment.engine,
        "load_group": lambda row: row.deployment.load_group,
        "question": _tenth,
    }
    for kind, group in groups.items():
        names = [group(row) for row in rows]
        found = leave_out_disaggregated(rows, names, partial(coefficients, group))
        report[kind] = _errors(found, np.array(names))
        report[kind]["by_source"] = {
            source: [len(of), _median(found.token[of]), _median(found.first[of])] for source, of in sources.items()
        }
    return report


def _tenth(row: MeasuredLoad) -> str:
    """Return the tenth of all questions that a row's question is in."""
    return f"tenth {zlib.crc32(repr(_question(row)).encode()) % 10}"


def _question(row: MeasuredLoad) -> tuple[str, str, Load]:
    return row.model, row.deployment.quantization, row.load


def _kind(row: MeasuredLoad) -> str:
    return "batches" if row.load.batch else "loads" if np.isfinite(row.first_with_slot_ms) else "load_tests"


def _errors(found: LeftOut, names: npt.NDArray[Any]) -> dict[str, Any]:
    """Return the median errors of rows, in all and by group, how often intervals held, and how wide they were.

    Intervals of loads are in standard deviations; those of batches are of one width.
    """
    timed = bool(np.all(np.isfinite(found.first)))
    figures: dict[str, Any] = {"groups": len(set(names)), "output_token_median_error": _median(found.token)}
    deviations = found.deviations if timed else np.ones_like(found.deviations)
    several = len(set(names)) > MIN_GROUPS
    if several:
        figures["output_token_coverage"], figures["output_token_high_over_low"] = _coverage(
            found.token, deviations[:, 0], names
        )
    if timed:
        figures["first_token_median_error"] = _median(found.first)
    if timed and several:
        figures["first_token_coverage"], figures["first_token_high_over_low"] = _coverage(
            found.first, deviations[:, 1], names
        )
    figures["by_group"] = {
        str(group): [int(np.sum(names == group)), _median(found.token[names == group])]
        + ([_median(found.first[names == group])] if timed else [])
        for group in np.unique(names)
    }
    return figures


def _regret(rows: Sequence[MeasuredLoad], found: LeftOut, groups: Sequence[str] | None = None) -> dict[str, float]:
    """Return what choosing by predictions costs more than by measurements, where several deployments were measured.

    A question is a model, a quantization and a load. Its goal is the median of the measured times per token. The choice
    is the cheapest deployment that is predicted to meet it, per output token. A choice whose measured time misses the
    goal counts as missed, and has no regret. With `groups`, a question is put once for each group in it. That group is
    predicted and all others are as measured, as for somebody who considers an unmeasured device.
    """
    questions: dict[tuple[object, ...], list[int]] = {}
    for i, row in enumerate(rows):
        if not row.load.batch and np.isfinite(row.first_with_slot_ms) and row.deployment.device.usd_per_hour:
            questions.setdefault(_question(row), []).append(i)
    regrets, missed, none = [], 0, 0
    for members in questions.values():
        if len({(rows[i].deployment.device.name, rows[i].deployment.devices) for i in members}) < 2:
            continue
        goal = float(np.median([rows[i].token_ms for i in members]))
        best = min(
            _cost(rows[i], rows[i].token_ms, rows[i].first_with_slot_ms) for i in members if rows[i].token_ms <= goal
        )
        named = [groups[i] if groups else "all" for i in members]
        unseen = set(named)
        if groups and len(unseen) == 1:
            continue
        for group in unseen:
            expected = {
                i: (rows[i].token_ms * np.exp(found.token[i]), rows[i].first_with_slot_ms * np.exp(found.first[i]))
                if name == group
                else (rows[i].token_ms, rows[i].first_with_slot_ms)
                for i, name in zip(members, named, strict=True)
            }
            meeting = [i for i in members if expected[i][0] <= goal]
            if not meeting:
                none += 1
                continue
            chosen = min(meeting, key=lambda i: _cost(rows[i], *expected[i]))
            if rows[chosen].token_ms > goal:
                missed += 1
                continue
            regrets.append(_cost(rows[chosen], rows[chosen].token_ms, rows[chosen].first_with_slot_ms) / best - 1)
    return {
        "questions": len(regrets) + missed + none,
        "goal_missed": missed,
        "nothing_predicted_to_meet_it": none,
        "median_regret": round(float(np.median(regrets)), 4),
        "mean_regret": round(float(np.mean(regrets)), 4),
        "best_chosen": round(float(np.mean(np.array(regrets) < 1e-9)), 3),
    }


def _cost(row: MeasuredLoad, token_ms: float, first_ms: float) -> float:
    """Return USD per output token."""
    whole_s = (first_ms + (row.load.output_tokens - 1) * token_ms) / 1e3
    rent = (row.deployment.device.usd_per_hour or 0.0) * row.deployment.devices / 3600
    return rent * whole_s / (row.load.users * row.load.output_tokens)


def _median(errors: Array) -> float:
    return round(float(np.median(np.abs(np.expm1(errors)))), 4)


def _coverage(errors: Array, deviations: Array, names: Array) -> tuple[dict[str, float], float]:
    """Return the share of each group inside the interval that the other groups give, and the median high over low."""
    scores = np.abs(errors) / deviations
    shares, widths = {}, np.zeros(len(errors))
    for group in np.unique(names):
        here = names == group
        others = calibrate(scores[~here], names[~here].tolist(), level=LEVEL)
        shares[str(group)] = round(float(np.mean(scores[here] <= others.half_width)), 3)
        widths[here] = np.exp(2 * others.half_width * deviations[here])
    return shares, round(float(np.median(widths)), 2)


if __name__ == "__main__":
    main()
