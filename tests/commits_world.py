"""A log that CI writes to: benchmark runs of commits, as the runner would record them. The figures are made up."""

from __future__ import annotations

import random
from datetime import datetime
from typing import Any

from accel_platform.events import EventLog
from accel_platform.events.types import RunFinished, RunStarted
from factories import event, result, verification

OLD, NEW = "a" * 40, "b" * 40


class Ci:
    """Runs of one process of one cell each; `factor` is how much slower than usual."""

    def __init__(self, log: EventLog) -> None:
        self.log = log
        self._generator, self._runs = random.Random(7), 0

    def run(
        self,
        commit: str | None,
        factor: float = 1.0,
        *,
        finished: bool = True,
        recorded_at: datetime | None = None,
        memory_mib: float = 700.5,
        **labels: str,
    ) -> str:
        self._runs += 1
        run_id = f"run-{self._runs:04d}"
        offset = factor * (1 + self._generator.gauss(0, 0.005))
        samples = tuple(int(20e6 * offset * self._generator.lognormvariate(0, 0.01)) for _ in range(30))
        payloads: list[Any] = [
            RunStarted(kind="benchmark", labels={**({"commit": commit} if commit else {}), **labels}),
            result(samples_ns=samples, memory_peak_mib=memory_mib),
            verification(),
            *([RunFinished(status="succeeded", duration_s=1.0)] if finished else []),
        ]
        events = [event(payload, run_id=run_id) for payload in payloads]
        if recorded_at is not None:
            at = {"occurred_at": recorded_at, "recorded_at": recorded_at}
            events = [one.model_copy(update=at) for one in events]
        self.log.append(events, key=f"bench-{run_id}-0000")
        return run_id

    def runs(self, count: int, commit: str | None, factor: float = 1.0, **labels: str) -> list[str]:
        return [self.run(commit, factor, **labels) for _ in range(count)]
