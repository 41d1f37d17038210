"""Repetition of a measurement that other processes disturb."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from accel_platform.bench.measure import observation
from accel_platform.bench.measure.contention import Contention
from accel_platform.bench.measure.sampling import Sampling

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


def test_no_repetition_begins_after_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observation, "measure_contention", lambda before, after: BUSY)
    once = Sampling(min_time_s=0.0, min_count=1, max_time_s=0.0, limit_s=0.0, warmup_max_s=0.0)
    answer = observation.observe(lambda: None, once, target=observation.MeterTarget("cpu", None))
    assert answer["disturbed_before"] == []
