"""Coverage and width of the predictor's interval where few families were seen.

Every family of an installation's samples is predicted once from the others. Then some families are drawn, an interval
is calibrated on their errors, and its coverage of all other families is counted.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np

from accel_platform.errors import WarehouseEmpty
from accel_platform.settings import Settings
from accel_platform.warehouse.reader import Reader
from predictor.calibration.conformal import calibrate
from predictor.calibration.cross_validation import Regime, cross_validate
from predictor.data.dataset import load_training_set

FAMILIES = (4, 6, 8, 10, 12, 15, 20)


def hierarchical(errors: np.ndarray, groups: list[str]) -> float:
    """Return the quantile of the errors with the next family counted as infinite, which holds for any families."""
    _, group, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    count = len(sizes)
    order = np.argsort(errors)
    reached = np.cumsum((1 / ((count + 1) * sizes[group]))[order])
    at = int(np.searchsorted(reached, min(0.9, count / (count + 1)) - 1e-9))
    return float(errors[order][min(at, len(order) - 1)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, default=Settings().home, help="With figures of many families.")
    parser.add_argument("--mode", default="inference")
    parser.add_argument("--draws", type=int, default=150)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    try:
        book = load_training_set(Reader(Settings(home=asked.home)))
    except WarehouseEmpty as error:
        print(f"unavailable: {error}")
        return
    held = cross_validate([case for case in book.measured if case.mode == asked.mode])[Regime.UNSEEN_FAMILY]
    errors, families = np.abs(held.errors), np.array([case.family for case in held.samples])
    names = np.unique(families)
    ways: dict[str, Callable[[np.ndarray, list[str]], float]] = {
        "as calibrated": lambda e, g: calibrate(e, g).half_width,
        "hierarchical": hierarchical,
    }
    rows = []
    for count in (n for n in FAMILIES if n < len(names) / 2):
        chance = np.random.default_rng(0)
        drawn = [np.isin(families, chance.choice(names, count, replace=False)) for _ in range(asked.draws)]
        for way, width in ways.items():
            widths = [width(errors[d], families[d].tolist()) for d in drawn]
            inside = [np.mean(errors[~d] <= w) for d, w in zip(drawn, widths, strict=True)]
            rows.append(
                {
                    "families drawn": count,
                    "width": way,
                    "coverage of the others": round(float(np.mean(inside)), 3),
                    "worst tenth of draws": round(float(np.quantile(inside, 0.1)), 3),
                    "high/low": round(math.exp(2 * float(np.median(widths))), 2),
                }
            )
    if asked.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"{len(errors)} errors of {len(names)} families, mode {asked.mode}; 90 % aimed at")
    for row in rows:
        print("  ".join(f"{key}: {value}" for key, value in row.items()))


if __name__ == "__main__":
    main()
