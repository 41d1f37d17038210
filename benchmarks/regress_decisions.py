"""How often a check of a commit alerts for nothing, and how often it finds a real step: one look, and confirmed.

Processes are drawn, not measured: medians that differ between processes, wander from one to the next and sometimes
jump, around samples that spread within each. The machine that they imitate is that of RESULTS.md, `fidelity`.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID

import numpy as np

from accel_platform.analysis.query.measured import ProcessResult
from accel_platform.analysis.regressions.regression_test import Decision, decide
from accel_platform.events.types import MeasuredSeries

SERIES = MeasuredSeries(
    model_id="synthetic", hardware="cpu", device_id="d", fingerprint="f", mode="inference", precision="float32",
    batch_size=1,
)  # fmt: skip
EARLIER = 20
SAMPLES = 100
MOST_AGAIN = 5


@dataclass(frozen=True)
class Noise:
    """How the medians of processes of one thing vary, as shares of the median."""

    name: str
    process: float
    """Between any two processes, at random."""
    drift: float
    """From one process to the next, on top: an AR(1) walk that forgets half of it in about ten processes."""
    spikes: float
    """Share of processes that something else made 1.2 to 1.7 times as slow."""


NOISES = (
    Noise("calm: 1 %", 0.01, 0.003, 0.0),
    Noise("usual: 2 %, 2 % of processes disturbed", 0.02, 0.005, 0.02),
    Noise("noisy: 4 %, 5 % of processes disturbed", 0.04, 0.01, 0.05),
)


class Machine:
    """Processes of one series, one after the other in time."""

    def __init__(self, generator: np.random.Generator, noise: Noise) -> None:
        self._random, self._noise = generator, noise
        self._wander, self._numbers = 0.0, itertools.count(1)

    def measure(self, factor: float = 1.0) -> ProcessResult:
        """One process; `factor` is how much slower what it measures is."""
        draw, noise = self._random, self._noise
        self._wander = 0.93 * self._wander + draw.normal(0, noise.drift)
        level = 20e6 * factor * np.exp(self._wander + draw.normal(0, noise.process))
        if draw.random() < noise.spikes:
            level *= draw.uniform(1.2, 1.7)
        samples = (level * draw.lognormal(0, 0.015, SAMPLES)).astype(int)
        return ProcessResult(
            result_id=UUID(int=next(self._numbers)), run_id="run", commit=None, threads=1,
            median_ms=float(np.median(samples)) / 1e6, failure=None, verified=True, noisy=False,
            samples_ns=tuple(int(sample) for sample in samples),
        )  # fmt: skip

    def several(self, count: int, factor: float = 1.0) -> list[ProcessResult]:
        return [self.measure(factor) for _ in range(count)]


def checked(machine: Machine, a_side: int, factor: float) -> tuple[Decision, Decision]:
    """A check of `a_side` processes of a commit against as many of its baseline: at once, and with what alerts measured
    again, 3 to 5 times, as `--confirm` does."""
    earlier = machine.several(EARLIER)
    baseline = machine.several(a_side)
    others = [*earlier, *baseline]
    candidate = machine.several(a_side, factor)
    first = decide(SERIES, baseline, candidate, others)
    if not first.alerts:
        return first, first
    again = machine.several(min(max(first.processes_needed or 0, 3), MOST_AGAIN), factor)
    return first, decide(SERIES, baseline, again, others)


def measure(trials: int) -> Iterator[dict[str, object]]:
    """Shares of checks that alert, by noise, processes a side and step; a step of 0 shows false alarms."""
    generator = np.random.default_rng(0)
    for noise in NOISES:
        for a_side in (1, 3, 5):
            row: dict[str, object] = {"noise": noise.name, "processes a side": a_side}
            for step in (0.0, 0.05, 0.10, 0.25):
                pairs = [checked(Machine(generator, noise), a_side, 1 + step) for _ in range(trials)]
                for name, decisions in zip(("at once", "confirmed"), zip(*pairs, strict=True), strict=True):
                    wanted = ("regressed", "improved") if not step else ("regressed",)
                    alerts = sum(decision.state in wanted for decision in decisions)
                    row[f"{f'{step:.0%} slower' if step else 'nothing'}, {name}"] = round(alerts / trials, 4)
            yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=400, help="checks for each figure")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = list(measure(arguments.trials))
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    columns = list(rows[0])
    print(f"Share of {arguments.trials} checks that alert.")
    print("| " + " | ".join(columns) + " |")
    print("| " + " | ".join("---" for _ in columns) + " |")
    for row in rows:
        print("| " + " | ".join(str(row[column]) for column in columns) + " |")


if __name__ == "__main__":
    main()
