"""Detection rate, delay and false alarms of the change-point detector on drawn, labeled and permuted series.

Real series need their folder (default: ../shared/data/changepoints beside the repository), which is not part of it.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from accel_platform.analysis.query.series import read_series
from accel_platform.analysis.regressions.changepoint import find_changes, watch_changes

DATA = Path(__file__).parents[2] / "shared" / "data" / "changepoints"
STEP_AT, LENGTH = 60, 100
Values = npt.NDArray[np.float64]


def white(generator: np.random.Generator, count: int) -> Values:
    return generator.standard_normal(count)


def wandering(generator: np.random.Generator, count: int) -> Values:
    """Draw AR(1) noise of unit width: each value is 0.7 times the one before plus new noise."""
    values = white(generator, count + 50)
    for at in range(1, len(values)):
        values[at] = 0.7 * values[at - 1] + 0.51**0.5 * values[at]
    return values[50:]


def daily(generator: np.random.Generator, count: int) -> Values:
    """Draw a wave with a period of 24 values, and half as much noise."""
    wave = np.sin(2 * np.pi * (np.arange(count) + generator.integers(24)) / 24)
    return np.asarray(wave + 0.5 * white(generator, count))


def spiked(generator: np.random.Generator, count: int) -> Values:
    """Draw normal noise with a spike of 50 widths at one value in fifty."""
    return np.asarray(white(generator, count) + 50 * (generator.random(count) < 0.02))


DRAWN: tuple[tuple[str, Callable[[np.random.Generator, int], Values], float, tuple[tuple[float, int], ...]], ...] = (
    ("10 % for 20 values, undone", white, 0.02, ((1.0, 40), (1.1, 20), (1.0, 40))),
    ("30 % for 6 values, undone", white, 0.02, ((1.0, 40), (1.3, 6), (1.0, 40))),
    ("30 % in 0.5 % that wanders", wandering, 0.005, ((1.0, 18), (1.3, 12))),
    ("10 % in 0.5 % of day and night", daily, 0.005, ((1.0, 18), (1.1, 12))),
    ("30 % after 5 values", white, 0.02, ((1.0, 5), (1.3, 25))),
    ("twice as long after 7 values", white, 0.02, ((1.0, 7), (2.0, 93))),
    *(
        (f"nothing in {count} values, 2 % {noise.__name__}", noise, 0.02, ((1.0, count),))
        for noise in (white, wandering, daily, spiked)
        for count in (30, 100)
    ),
)


def drawn(trials: int) -> Iterator[dict[str, object]]:
    """Yield the share of steps found within 5 positions, and other alarms per series, for shifts from 3 %."""
    for name, noise, width, levels in DRAWN:
        steps = np.cumsum([count for _, count in levels])[:-1]
        row: dict[str, object] = {"drawn": name, "trials": trials}
        for how, find in (("looking back", find_changes), ("watching", watch_changes)):
            generator = np.random.default_rng(20261128)
            found = alarms = 0
            for _ in range(trials):
                level = np.concatenate([np.full(count, height) for height, count in levels])
                changes = find(list(level * (1 + width * noise(generator, len(level)))), min_change_percent=3.0)
                right = sum(any(abs(change.index - step) <= 5 for change in changes) for step in steps)
                found, alarms = found + right, alarms + len(changes) - right
            row[how] = {"found": round(found / trials / len(steps), 3) if len(steps) else None,
                        "other_alarms": round(alarms / trials, 3)}  # fmt: skip
        yield row


FAILING = ((0.02, 0.02), (0.1, 0.1), (0.3, 0.3), (0.0, 1.0), (0.02, 1.0), (0.1, 1.0), (0.02, 0.5))
"""Shares of processes that fail, of the first 30 values and of the 70 after them."""


def failing(trials: int) -> Iterator[dict[str, object]]:
    """Yield the share of steps found, the values until then, and other alarms per series."""
    for before, after in FAILING:
        generator = np.random.default_rng(20261128)
        delays, others = [], 0
        for _ in range(trials):
            failed = generator.random(100) < np.repeat([before, after], [30, 70])
            changes = watch_changes(list(failed.astype(float)))
            right = [change.known_at - 30 for change in changes if change.direction == "up" and change.known_at >= 30]
            delays += right[:1] if after > before else []
            others += len(changes) - (bool(right) if after > before else 0)
        yield {
            "failing": f"{before:.0%} of 30, then {after:.0%} of 70",
            "found": round(len(delays) / trials, 3) if after > before else None,
            "values_after": float(np.median(delays)) if delays else None,
            "other_alarms": round(others / trials, 4),
        }


def labelled(folder: Path) -> dict[str, object]:
    """Compare the alerts over every series with its label: the first regressed row, 0 for none."""
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
    """Return how often a step in the last 100 permuted values of a series is found, and the alarms without one."""
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
    parser.add_argument("--trials", type=int, default=200, help="drawn series of each kind")
    asked = parser.parse_args()
    for row in itertools.chain(drawn(asked.trials), failing(asked.trials)):
        print(json.dumps(row))
    if not asked.data.is_dir():
        print(f"unavailable: no series in {asked.data}")
        return
    print(json.dumps({"labelled": labelled(asked.data / "sap_hana_small_2021")}))
    for row in injected(asked.data / "sap_hana_large_2022", asked.permutations):
        print(json.dumps(row))


if __name__ == "__main__":
    main()
