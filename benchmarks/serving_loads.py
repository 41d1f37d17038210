"""How far the serving predictor errs on measured loads whose device, model, engine version or layout it never saw.

Each group is left out in turn; errors are of the loads left out. Coverage is that of intervals calibrated on the
other groups.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

import numpy as np

from predictor.calibration.conformal import calibrate
from predictor.serving.fit import LEVEL, leave_out
from predictor.serving.measured_loads import groups_of, load_measured_loads
from predictor.serving.work import Array


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    wants_json = parser.parse_args().json
    rows = load_measured_loads()
    report: dict[str, Any] = {"loads": len(rows)}
    for name, groups in groups_of(rows).items():
        began = time.monotonic()
        token, first = leave_out(rows, groups)
        names = np.array(groups)
        report[name] = {
            "groups": len(set(groups)),
            "output_token_median_error": _median(token),
            "first_token_median_error": _median(first),
            "output_token_coverage": _coverage(token, names),
            "first_token_coverage": _coverage(first, names),
            "seconds": round(time.monotonic() - began, 1),
            "by_group": {
                str(group): [
                    int(np.sum(names == group)),
                    _median(token[names == group]),
                    _median(first[names == group]),
                ]
                for group in np.unique(names)
            },
        }
    sys.stdout.write(json.dumps(report, indent=None if wants_json else 2) + "\n")


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
