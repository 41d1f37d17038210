"""False alarms and detection rate of the commit check, at once and confirmed.

Processes are drawn, not measured. Their medians differ, wander and sometimes jump, around samples that spread within
each, like the machine of "Fidelity" in `results/measuring.md`. Their memory differs too, and some fail. With `--home`,
real processes of one code are dealt to the sides, from every series with at least 12 of them.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import numpy as np

from accel_platform.analysis.query.measured import ProcessResult, attach_samples, read_measured_series
from accel_platform.analysis.regressions.decision import Decision
from accel_platform.analysis.regressions.regression_test import decide
from accel_platform.analysis.regressions.thresholds import MIN_CHANGE_PERCENT, least_change_percent
from accel_platform.events.types import Measure, MeasuredSeries
from accel_platform.settings import Settings
from accel_platform.table_io.text import markdown, table_of
from accel_platform.warehouse.reader import Reader

SERIES = MeasuredSeries(
    model_id="synthetic", hardware="cpu", device_id="d", fingerprint="f", mode="inference", precision="float32",
    batch_size=1,
)  # fmt: skip
EARLIER = 20
SAMPLES = 100
MOST_AGAIN = 5
DEALT = 12


@dataclass(frozen=True)
class Noise:
    """Variation of the medians of processes that measure the same code, as shares of the median."""

    name: str
    process: float
    """Random variation of each process by itself."""
    drift: float
    """Variation from one process to the next, on top: an AR(1) walk that forgets half of it in about ten processes."""
    spikes: float
    """Share of processes that something else made 1.2 to 1.7 times as slow."""
    failing: float = 0.0
    """Share of processes that fail."""


NOISES = (
    Noise("calm: 1 %", 0.01, 0.003, 0.0),
    Noise("usual: 2 %, 2 % of processes disturbed", 0.02, 0.005, 0.02),
    Noise("noisy: 4 %, 5 % of processes disturbed", 0.04, 0.01, 0.05),
)
MEMORY_NOISES = (
    Noise("1 %", 0.01, 0.0, 0.0),
    Noise("1 %, 5 % of processes 1.2 to 1.7 times as high", 0.01, 0.0, 0.05),
    Noise("4 %, 5 % of processes 1.2 to 1.7 times as high", 0.04, 0.0, 0.05),
)
FAILING = tuple(Noise(f"{share:.0%} fail", 0.01, 0.0, 0.0, share) for share in (0.0, 0.02, 0.1, 0.3))


class Machine:
    """Processes of one series, one after the other in time."""

    def __init__(self, generator: np.random.Generator, noise: Noise) -> None:
        self._random, self._noise = generator, noise
        self._wander, self._numbers = 0.0, itertools.count(1)

    def measure(self, factor: float = 1.0, failing: float = 0.0) -> ProcessResult:
        """Return a process; `factor` slows the code it measures, `failing` adds to the share of processes that fail."""
        draw, noise = self._random, self._noise
        failed = bool(draw.random() < noise.failing + failing)
        self._wander = 0.93 * self._wander + draw.normal(0, noise.drift)
        level = 20e6 * factor * np.exp(self._wander + draw.normal(0, noise.process))
        if draw.random() < noise.spikes:
            level *= draw.uniform(1.2, 1.7)
        samples = (level * draw.lognormal(0, 0.015, SAMPLES)).astype(int)
        return ProcessResult(
            result_id=UUID(int=next(self._numbers)), run_id="run", commit=None, threads=1,
            median_ms=None if failed else float(np.median(samples)) / 1e6, failure="timeout" if failed else None,
            verified=True, noisy=False, samples_ns=() if failed else tuple(int(sample) for sample in samples),
            memory_mib=None if failed else level / 4e4,
        )  # fmt: skip

    def several(self, count: int, measure: Measure, step: float = 0.0) -> list[ProcessResult]:
        failing = step if measure == "failures" else 0.0
        return [self.measure(1 + step - failing, failing) for _ in range(count)]


def checked(machine: Machine, measure: Measure, a_side: int, step: float) -> tuple[Decision, Decision]:
    """Check `a_side` processes of a commit against as many of its baseline, at once and after confirmation.

    Alerts are measured again 3 to 5 times, as `--confirm` does.
    """
    earlier = machine.several(EARLIER, measure)
    baseline = machine.several(a_side, measure)
    others = [*earlier, *baseline]
    candidate = machine.several(a_side, measure, step)
    first = decided(baseline, candidate, others, measure)
    if not first.alerts:
        return first, first
    again = machine.several(min(max(first.processes_needed or 0, 3), MOST_AGAIN), measure, step)
    return first, decided(baseline, again, others, measure)


def measure(of: Measure, trials: int) -> Iterator[dict[str, object]]:
    """Yield the shares of checks that alert, by noise, processes a side and step; a step of 0 shows false alarms."""
    generator = np.random.default_rng(0)
    noises = {"latency": NOISES, "failures": FAILING}.get(of, MEMORY_NOISES)
    steps = (0.0, 0.25, 0.5, 1.0) if of == "failures" else (0.0, 0.05, 0.10, 0.25)
    for noise in noises:
        for a_side in (1, 3, 5):
            row: dict[str, object] = {"noise": noise.name, "processes a side": a_side}
            for step in steps:
                pairs = [checked(Machine(generator, noise), of, a_side, step) for _ in range(trials)]
                for name, decisions in zip(("at once", "confirmed"), zip(*pairs, strict=True), strict=True):
                    wanted = ("regressed", "improved") if not step else ("regressed",)
                    alerts = sum(decision.state in wanted for decision in decisions)
                    row[f"{f'{step:.0%} more' if step else 'nothing'}, {name}"] = round(alerts / trials, 4)
            yield row


def deal(home: Path, trials: int) -> Iterator[dict[str, object]]:
    """Yield the shares of checks that alert, with real processes dealt at random to candidate, baseline and earlier."""
    generator, reader = np.random.default_rng(0), Reader(Settings(home=home))
    measures: tuple[Measure, ...] = ("latency", "memory")
    for series, processes in read_measured_series(reader).items():
        if len(processes) < DEALT:
            continue
        known = list(attach_samples(reader, processes).values())
        name = f"{series.model_id}, {series.hardware}, batch {series.batch_size}"
        row: dict[str, object] = {"series": name, "processes": len(known)}
        grown = 0
        for of in measures:
            found: Counter[str] = Counter()
            for _ in range(trials):
                dealt = [known[place] for place in generator.permutation(len(known))]
                found[decided(dealt[3:6], dealt[:3], dealt[3:], of).state] += 1
                more = [replace(process, memory_mib=1.15 * (process.memory_mib or 0.0)) for process in dealt[:3]]
                grown += of == "memory" and decided(dealt[3:6], more, dealt[3:], of).state == "regressed"
            states = ("regressed", "improved", "suspicious")
            row |= {f"{of} {state}": round(found[state] / trials, 4) for state in states}
        row["15 % more memory found"] = round(grown / trials, 4)
        yield row


def decided(
    baseline: list[ProcessResult], candidate: list[ProcessResult], others: list[ProcessResult], measure: Measure
) -> Decision:
    """Decide with the smallest change of the measure that a check reports."""
    least = least_change_percent(measure, MIN_CHANGE_PERCENT)
    return decide(SERIES, baseline, candidate, others, measure=measure, min_change_percent=least)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=400, help="checks for each figure")
    parser.add_argument("--measure", choices=("latency", "memory", "failures"), default="latency")
    parser.add_argument("--home", type=Path, help="deal the real processes of this state directory instead")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    rows = list(
        deal(arguments.home, arguments.trials) if arguments.home else measure(arguments.measure, arguments.trials)
    )
    if arguments.json:
        print(json.dumps(rows, indent=2))
        return
    print(f"Share of {arguments.trials} checks that alert.")
    print("\n".join(markdown(table_of(rows))))


if __name__ == "__main__":
    main()
