"""Repetition of a measurement that other processes disturb."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from accel_platform.bench.measure import observation
from accel_platform.bench.measure.contention import Contention
from accel_platform.bench.measure.sampling import Samples, Sampling

CALM, BUSY, OWN_THREADS = Contention(0.01, 0.01), Contention(0.6, 0.55), Contention(0.01, 0.55)
QUICK = Sampling(min_time_s=0.0, min_count=2, max_time_s=0.0, limit_s=30.0, warmup_max_s=0.0)


@pytest.mark.parametrize(
    ("seen", "reasons"),
    [
        ([CALM], 0),
        ([BUSY, CALM], 1),
        ([BUSY, BUSY, BUSY], 2),
        ([OWN_THREADS], 0),
    ],
    ids=["calm", "once disturbed", "always disturbed", "too many threads of its own"],
)
def test_a_disturbed_measurement_is_repeated_at_once(
    monkeypatch: pytest.MonkeyPatch, seen: list[Contention], reasons: int
) -> None:
    contentions: Iterator[Contention] = iter(seen)
    monkeypatch.setattr(observation, "measure_contention", lambda before, after: next(contentions))
    runs: list[None] = []
    answer = observation.observe(
        lambda: runs.append(None), QUICK, target=observation.MeterTarget("cpu", None), memory_peak_mib=lambda: 1.0
    )
    assert answer["contention"] == vars(seen[-1]), "the last one counts"
    assert next(contentions, None) is None
    assert len(answer["samples_ns"]) * len(seen) <= len(runs)
    assert (
        answer["disturbed_before"] == ["it waited for a core 55% of its time: other processes were running"] * reasons
    )


@pytest.mark.parametrize(
    ("attempt_s", "max_attempts", "attempts"),
    [(9.0, 3, 3), (12.0, 3, 2), (21.0, 3, 1), (0.1, 1, 1)],
    ids=["all fit", "a third would not fit", "a second would not fit", "one allowed"],
)
def test_repetitions_fit_into_the_limit(
    monkeypatch: pytest.MonkeyPatch, attempt_s: float, max_attempts: int, attempts: int
) -> None:
    seconds = itertools.count(0, attempt_s)
    limits: list[float] = []

    def collect(run: object, sampling: Sampling, clock: object, steady: object) -> Samples:
        limits.append(sampling.limit_s)
        return Samples((1, 1), 0, "limit")

    monkeypatch.setattr(observation, "perf_counter_ns", lambda: round(next(seconds) * 1e9))
    monkeypatch.setattr(observation, "collect_samples", collect)
    monkeypatch.setattr(observation, "measure_contention", lambda before, after: BUSY)
    allowed = replace(QUICK, max_attempts=max_attempts)
    answer = observation.observe(lambda: None, allowed, target=observation.MeterTarget("cpu", None))
    assert len(answer["disturbed_before"]) == attempts - 1
    assert limits == pytest.approx([QUICK.limit_s - attempt_s * done for done in range(attempts)])
