"""How far the serving predictor errs on measured loads whose device, model, engine version or layout it never saw.

Each group is left out in turn; errors are of the loads left out. Coverage is that of intervals calibrated on the
other groups. Loads measured request by request (`loads`), whole batches (`batches`) and load tests without first
tokens (`load_tests`) stand apart.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.calibration.conformal import MIN_GROUPS, calibrate
from predictor.serving.fit import LEVEL, leave_out
from predictor.serving.measured_loads import MeasuredLoad, groups_of, load_measured_loads
from predictor.serving.work import Array


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    wants_json = parser.parse_args().json
    rows = load_measured_loads()
    kinds = np.array([_kind(row) for row in rows])
    report: dict[str, Any] = {kind: {"rows": int(np.sum(kinds == kind))} for kind in np.unique(kinds)}
    for name, groups in groups_of(rows).items():
        token, first = leave_out(rows, groups)
        for kind in np.unique(kinds):
            here = kinds == kind
            report[kind][name] = _errors(token[here], first[here], np.array(groups)[here])
        if name in ("device", "model"):
            report["loads"][name]["choices"] = _regret(rows, token, first)
    sys.stdout.write(json.dumps(report, indent=None if wants_json else 2) + "\n")


def _kind(row: MeasuredLoad) -> str:
    return "batches" if row.load.batch else "loads" if np.isfinite(row.first_ms) else "load_tests"


def _errors(token: Array, first: Array, names: npt.NDArray[Any]) -> dict[str, Any]:
    """Return the median errors of rows, in all and by group, and how often intervals held."""
    timed = bool(np.all(np.isfinite(first)))
    found: dict[str, Any] = {"groups": len(set(names)), "output_token_median_error": _median(token)}
    several = len(set(names)) > MIN_GROUPS
    if several:
        found["output_token_coverage"] = _coverage(token, names)
    if timed:
        found["first_token_median_error"] = _median(first)
    if timed and several:
        found["first_token_coverage"] = _coverage(first, names)
    found["by_group"] = {
        str(group): [int(np.sum(names == group)), _median(token[names == group])]
        + ([_median(first[names == group])] if timed else [])
        for group in np.unique(names)
    }
    return found


def _regret(rows: Sequence[MeasuredLoad], token_error: Array, first_error: Array) -> dict[str, float]:
    """Return what choosing by predictions costs more than by measurements, where several deployments were measured.

    A question is a model, a quantization and a load. For each a goal is set: the median of the measured times per
    token. The choice is the cheapest deployment that is predicted to meet it, per output token. One that misses the
    goal in truth counts as missed, and has no regret.
    """
    questions: dict[tuple[object, ...], list[int]] = {}
    for i, row in enumerate(rows):
        if not row.load.batch and np.isfinite(row.first_ms) and row.deployment.device.usd_per_hour:
            key = row.model, row.deployment.quantization, row.load
            questions.setdefault(key, []).append(i)
    regrets, missed, none = [], 0, 0
    for members in questions.values():
        if len({(rows[i].deployment.device.name, rows[i].deployment.devices) for i in members}) < 2:
            continue
        goal = float(np.median([rows[i].token_ms for i in members]))
        truth = {i: _cost(rows[i], rows[i].token_ms, rows[i].first_ms) for i in members}
        predicted = {
            i: (rows[i].token_ms * np.exp(token_error[i]), rows[i].first_ms * np.exp(first_error[i])) for i in members
        }
        meeting = [i for i in members if predicted[i][0] <= goal]
        if not meeting:
            none += 1
            continue
        chosen = min(meeting, key=lambda i: _cost(rows[i], *predicted[i]))
        if rows[chosen].token_ms > goal:
            missed += 1
            continue
        best = min(truth[i] for i in members if rows[i].token_ms <= goal)
        regrets.append(truth[chosen] / best - 1)
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


def _coverage(errors: Array, names: Array) -> dict[str, float]:
    """Return the share of each group inside the interval that the other groups give."""
    shares = {}
    for group in np.unique(names):
        here = names == group
        others = calibrate(np.abs(errors[~here]), names[~here].tolist(), level=LEVEL)
        shares[str(group)] = round(float(np.mean(np.abs(errors[here]) <= others.half_width)), 3)
    return shares


if __name__ == "__main__":
    main()
