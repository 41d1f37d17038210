"""The change-point detector on labelled and on permuted real series: found, how late, and how often for nothing.

Needs the folder of series (default: ../shared/data/changepoints beside the repository), which is not part of it.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from accel_platform.analysis.query.series import read_series
from accel_platform.analysis.regressions.changepoint import find_changes, watch_changes

DATA = Path(__file__).parents[2] / "shared" / "data" / "changepoints"
STEP_AT, LENGTH = 60, 100


def labelled(folder: Path) -> dict[str, object]:
    """Alerts of a watcher over every series, against the labels: the first regressed row, 0 for none."""
    lines = (folder / "metadata" / "dataset_details.csv").read_text().splitlines()[1:]
    labels = {name.strip(): int(row) for _, name, row in (line.split(";") for line in lines)}
    delays: dict[str, int | None] = {}
    false_alarms = 0
    for name, row in labels.items():
        path = folder / "data" / name
        if not path.exists():
            continue
        rows = [line.split(",")[1] for line in path.read_text().splitlines()[1:]]
        builds = list(dict.fromkeys(rows))
        alerts = watch_changes(read_series(path, value="Measurement", group="GHC").values)
        truth = builds.index(rows[row]) if row else None
        right = [alert for alert in alerts if truth is not None and abs(alert.index - truth) <= 5]
        if truth is not None:
            delays[name] = right[0].known_at - truth if right else None
        false_alarms += len(alerts) - len(right[:1])
    return {"delay_builds": delays, "false_alarms": false_alarms}


def injected(folder: Path, permutations: int) -> list[dict[str, object]]:
    """A step in the last 100 values of each large series, permuted: how often it is found, and what without one."""
    generator = np.random.default_rng(0)
    series = [read_series(path, value="value").values[-LENGTH:] for path in sorted((folder / "data").glob("*.csv"))]
    series = [values for values in series if len(values) == LENGTH]
    rows: list[dict[str, object]] = []
    for step, least, most in ((0.02, 0.01, 0.03), (0.05, 0.03, 0.10)):
        chosen = [v for v in map(np.asarray, series) if least <= v.std() / v.mean() <= most]
        found = near = 0
        for values in chosen:
            for _ in range(permutations):
                moved = generator.permutation(values)
                moved[STEP_AT:] *= 1 + step
                changes = find_changes(list(moved))
                found += bool(changes)
                near += any(abs(change.index - STEP_AT) <= 5 for change in changes)
        trials = len(chosen) * permutations
        rows.append({"step": step, "series": len(chosen), "trials": trials, "found": round(found / trials, 3),
                     "found_within_5": round(near / trials, 3)})  # fmt: skip
    still = [list(generator.permutation(values)) for values in series for _ in range(permutations)]
    for name, find in (("looking back", find_changes), ("watching", watch_changes)):
        alarms = sum(len(find(values)) for values in still)
        rows.append({"no step": name, "trials": len(still), "alarms_per_100": round(alarms / len(still), 4)})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--permutations", type=int, default=30)
    asked = parser.parse_args()
    if not asked.data.is_dir():
        print(f"unavailable: no series in {asked.data}")
        return
    print(json.dumps({"labelled": labelled(asked.data / "sap_hana_small_2021")}))
    for row in injected(asked.data / "sap_hana_large_2022", asked.permutations):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
