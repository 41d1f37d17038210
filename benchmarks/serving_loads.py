"""How far the serving predictor errs on measured loads whose device, model, engine version or layout it never saw.

Each group is left out in turn; errors are of the loads left out. Coverage is that of intervals calibrated on the
other groups. Loads measured request by request (`loads`), whole batches (`batches`) and load tests without first
tokens (`load_tests`) stand apart.
"""

from __future__ import annotations

import argparse
import json
import sys
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
