"""When sampling stops, and which samples are called noisy."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accel_platform.analysis.stats.medians import disagreement_reason, median_ns, relative_error
from accel_platform.bench.measure.sampling import Sampling, collect_samples, is_warm, limit_reached, noise_reason

durations = st.integers(min_value=1_000, max_value=10**10)


def simulated(times_ns: list[int]) -> tuple[Callable[[], None], Callable[[], int]]:
    """Work that takes the given times in turn, the last for ever, and the clock that sees it."""
    now = 0
    left = list(times_ns)

    def run() -> None:
        nonlocal now
        now += left.pop(0) if len(left) > 1 else left[0]

    return run, lambda: now


@settings(max_examples=200, deadline=None)
@given(st.lists(durations, min_size=1, max_size=300))
def test_a_cell_always_ends_and_says_why(times_ns: list[int]) -> None:
    sampling = Sampling(min_time_s=0.001, max_time_s=0.01, limit_s=0.1, warmup_max_s=0.01)
    run, clock = simulated(times_ns)
    samples = collect_samples(run, sampling, clock)
    spent_s = sum(samples.samples_ns) / 1e9
    assert samples.samples_ns
    assert all(isinstance(sample, int) and sample > 0 for sample in samples.samples_ns)
    if samples.stopped == "target_error":
        assert len(samples.samples_ns) >= sampling.min_count
        assert spent_s >= sampling.min_time_s
        assert relative_error(samples.samples_ns) <= sampling.target_error
    elif samples.stopped == "max_time":
        assert len(samples.samples_ns) >= sampling.min_count
        assert spent_s >= sampling.max_time_s
    else:
        assert samples.stopped == "limit"
        assert spent_s >= sampling.limit_s
    # No sample is begun after a limit was passed.
    assert spent_s - samples.samples_ns[-1] / 1e9 < sampling.limit_s


def test_steady_work_stops_at_the_minimum_time_and_slow_work_at_the_minimum_count() -> None:
    sampling = Sampling()
    run, clock = simulated([1_000_000])
    fast = collect_samples(run, sampling, clock)
    assert fast.stopped == "target_error"
    assert 1.5 <= sum(fast.samples_ns) / 1e9 < 1.7
    run, clock = simulated([2_000_000_000])
    slow = collect_samples(run, sampling, clock)
    assert len(slow.samples_ns) == sampling.min_count
    run, clock = simulated([30_000_000_000])
    assert collect_samples(run, sampling, clock).stopped == "limit"


def test_warming_up_lasts_until_runs_agree() -> None:
    times = [9_000_000, 5_000_000, 3_000_000, 2_000_000, 2_010_000, 2_000_000, 2_000_000]
    run, clock = simulated(times)
    samples = collect_samples(run, Sampling(), clock)
    assert samples.warmup_count == 6
    assert max(samples.samples_ns) == 2_000_000


def test_warming_up_never_lasts_for_ever() -> None:
    sampling = Sampling(warmup_max_s=1.0)
    assert not is_warm([], sampling)
    assert not is_warm([400_000_000, 500_000_000], sampling)
    assert is_warm([400_000_000, 700_000_000], sampling)


@given(st.lists(durations, min_size=1))
def test_the_median_is_the_median(times_ns: list[int]) -> None:
    assert median_ns(times_ns) == pytest.approx(statistics.median(times_ns))


@given(st.lists(durations, min_size=6), st.integers(min_value=2, max_value=1000))
def test_the_relative_error_does_not_depend_on_the_unit(times_ns: list[int], factor: int) -> None:
    scaled = [time * factor for time in times_ns]
    assert relative_error(scaled) == pytest.approx(relative_error(times_ns))
    assert relative_error(times_ns) == relative_error(list(reversed(times_ns))) >= 0


@given(durations, st.integers(min_value=6, max_value=500))
def test_equal_samples_have_no_error_and_few_have_no_interval(time_ns: int, count: int) -> None:
    assert relative_error([time_ns] * count) == 0
    assert relative_error([time_ns] * 5) == math.inf


def test_the_interval_of_the_median_covers_it_as_often_as_it_says() -> None:
    import random

    generator = random.Random(7)
    covered = 0
    for _ in range(2000):
        samples = [int(1e6 * generator.lognormvariate(0, 0.3)) for _ in range(25)]
        ordered, middle = sorted(samples), median_ns(samples)
        half_width = relative_error(samples) * middle
        # The interval lies between order statistics, of which the error keeps the width; 7th and 19th of 25.
        assert half_width == pytest.approx((ordered[18] - ordered[6]) / 2)
        covered += ordered[6] <= 1e6 <= ordered[18]
    assert 0.95 <= covered / 2000 <= 0.99


def test_noise_is_named_by_its_kind() -> None:
    sampling = Sampling()
    steady = [1_000_000 + (i % 7) * 500 for i in range(100)]
    assert noise_reason(steady, sampling) is None
    assert "only 5 samples" in (noise_reason(steady[:5], sampling) or "")
    assert "may be off by" in (noise_reason([1_000_000, 2_000_000] * 8, sampling) or "")
    assert "drifts" in (noise_reason([1_000_000] * 60 + [1_080_000] * 60, Sampling(target_error=0.5)) or "")
    assert "12% of the samples" in (noise_reason(([1_000_000] * 7 + [2_000_000]) * 20, sampling) or "")


def test_limits_are_seen_in_order() -> None:
    sampling = Sampling(max_time_s=1, limit_s=2)
    assert limit_reached(5, 1_500_000_000, sampling) is None
    assert limit_reached(11, 1_500_000_000, sampling) == "max_time"
    assert limit_reached(5, 2_000_000_000, sampling) == "limit"


def test_work_shorter_than_its_clock_still_ends() -> None:
    """Time spent is time passed: were it the sum of the samples, a clock that costs more than the work never ended."""
    now = 0

    def clock() -> int:
        nonlocal now
        now += 50_000
        return now

    samples = collect_samples(lambda: None, Sampling(min_time_s=0.1, max_time_s=0.2, limit_s=1.0), clock)
    assert sum(samples.samples_ns) == 50_000 * len(samples.samples_ns)
    # Each sample reads the clock twice: half of the time that passes is between the samples.
    assert now < 1.2 * 0.1e9


def test_processes_that_disagree_say_so_however_calm_each_of_them_is() -> None:
    assert disagreement_reason([1e6, 1.01e6, 0.99e6]) is None
    assert disagreement_reason([1e6, 1.2e6]) is None, "two are no spread"
    assert disagreement_reason([1e6, 1.05e6, 0.98e6]) == "the medians of the last 3 processes vary by 3.6%"
    assert disagreement_reason([5e6, *([1e6] * 10)]) is None, "what is long past no longer counts"
