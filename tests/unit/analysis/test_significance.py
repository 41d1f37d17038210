"""Whether two sets of samples are told apart when they differ, and only then."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from scipy.stats import hypergeom, mannwhitneyu

from accel_platform.analysis.stats.significance import (
    ALPHA,
    MIN_EFFECT,
    compare,
    estimate_comparison_noise,
    estimate_noise_level,
    failure_p_value,
    mann_whitney,
    processes_needed,
)

latencies = st.lists(st.integers(min_value=1_000, max_value=10**9), min_size=11, max_size=80)
calm = st.lists(st.integers(min_value=100_000, max_value=110_000), min_size=11, max_size=80)
few_values = st.lists(st.integers(min_value=1, max_value=5), min_size=11, max_size=60)
levels = st.floats(min_value=0, max_value=0.5)


def skewed(generator: random.Random, count: int, median_ns: float = 5e6, spread: float = 0.03) -> list[int]:
    return [int(median_ns * generator.lognormvariate(0, spread)) for _ in range(count)]


@given(st.one_of(latencies, few_values), st.one_of(latencies, few_values))
def test_the_rank_test_is_the_one_of_scipy(first: list[int], second: list[int]) -> None:
    assume(len({*first, *second}) > 1)
    expected = mannwhitneyu(first, second, alternative="two-sided", method="asymptotic", use_continuity=True).pvalue
    assert mann_whitney(first, second) == pytest.approx(expected, rel=1e-9, abs=1e-12)


@given(st.integers(0, 12), st.integers(1, 12), st.integers(0, 50), st.integers(1, 50))
def test_the_test_of_failures_is_that_of_fisher(failed: int, of: int, failed_before: int, of_before: int) -> None:
    assume(failed <= of and failed_before <= of_before)
    chances = hypergeom(of + of_before, failed + failed_before, of)
    expected = min(1.0, 2 * min(chances.cdf(failed), chances.sf(failed - 1)))
    assert failure_p_value(failed, of, failed_before, of_before) == pytest.approx(expected, rel=1e-9)


@given(latencies, latencies, levels)
def test_turning_a_comparison_round_turns_its_verdict_round(a: list[int], b: list[int], level: float) -> None:
    forth, back = compare(a, b, noise_level=level), compare(b, a, noise_level=level)
    assert {"slower": "faster", "faster": "slower"}.get(forth.verdict, forth.verdict) == back.verdict
    assert forth.ratio is not None
    assert back.ratio is not None
    assert forth.ratio * back.ratio == pytest.approx(1)
    assert forth.p_value == pytest.approx(back.p_value)


@given(latencies, levels, st.integers(min_value=0, max_value=2**32))
def test_the_same_samples_in_another_order_are_the_same(samples: list[int], level: float, seed: int) -> None:
    shuffled = random.Random(seed).sample(samples, len(samples))
    assert compare(samples, shuffled, noise_level=level).verdict == "same"


@given(latencies, latencies, st.integers(min_value=2, max_value=1000), levels)
def test_the_unit_of_time_does_not_matter(a: list[int], b: list[int], factor: int, level: float) -> None:
    scaled = compare([x * factor for x in a], [x * factor for x in b], noise_level=level)
    assert scaled.p_value == pytest.approx(compare(a, b, noise_level=level).p_value)


@given(latencies, latencies, levels)
def test_what_is_called_different_differs_by_more_than_noise(a: list[int], b: list[int], level: float) -> None:
    found = compare(a, b, noise_level=level)
    if found.different:
        assert found.ratio is not None
        assert max(found.ratio, 1 / found.ratio) > 1 + max(level, MIN_EFFECT) - 1e-12
        assert found.p_value is not None
        assert found.p_value < ALPHA


@given(calm, st.integers(min_value=60, max_value=190), levels, levels)
def test_more_noise_never_makes_a_difference(samples: list[int], percent: int, one: float, two: float) -> None:
    low, high = sorted((one, two))
    scaled = [percent * sample // 100 for sample in samples]
    quiet, noisy = (compare(samples, scaled, noise_level=level) for level in (low, high))
    assert quiet.different >= noisy.different
    # Above 112 % no samples overlap, so the level alone decides.
    if percent > 112:
        for found, level in ((quiet, low), (noisy, high)):
            beyond = percent / 100 - 1 - max(level, MIN_EFFECT)
            assert abs(beyond) < 1e-3 or found.different == (beyond > 0)


def test_too_few_samples_decide_nothing() -> None:
    found = compare([100] * 10, [900] * 500, noise_level=0)
    assert (found.verdict, found.ratio, found.p_value) == ("undecided", None, None)


@pytest.mark.parametrize("level", [-0.1, float("nan")])
def test_a_senseless_noise_level_is_refused(level: float) -> None:
    with pytest.raises(ValueError, match="noise level"):
        compare([100] * 20, [100] * 20, noise_level=level)


def test_noise_is_seldom_called_a_difference_and_a_slowdown_nearly_always() -> None:
    """Processes with offsets of their own, as real ones have: four a side, taking turns, while the machine drifts."""
    generator = random.Random(11)
    clock = iter(range(10**6))

    def process(slowdown: float = 1.0) -> list[int]:
        offset = generator.gauss(0, 0.008) + 0.00005 * next(clock)
        return skewed(generator, 60, 5e6 * slowdown * (1 + offset))

    history = [sorted(process())[30] for _ in range(40)]
    level = estimate_noise_level(history, processes=4)
    assert 0.008 < level < 0.018

    def verdicts(slowdown: float) -> list[str]:
        found = []
        for _ in range(300):
            sides: tuple[list[int], list[int]] = ([], [])
            for side in (0, 1, 1, 0, 1, 0, 0, 1):
                sides[side].extend(process(slowdown if side else 1.0))
            found.append(compare(*sides, noise_level=level).verdict)
        return found

    assert sum(verdict != "same" for verdict in verdicts(1.0)) <= 0.07 * 300
    assert sum(verdict == "slower" for verdict in verdicts(1.03)) >= 0.95 * 300
    assert sum(verdict == "faster" for verdict in verdicts(1 / 1.03)) >= 0.95 * 300


@given(st.lists(st.floats(min_value=1e3, max_value=1e9), min_size=5, max_size=50), st.integers(2, 20))
@example(medians=[1000.0] * 4 + [1000.0000000000001], processes=2)
def test_more_processes_a_side_lower_the_noise(medians: list[float], processes: int) -> None:
    assume(len(set(medians)) > 1)
    assert 0 < estimate_noise_level(medians, processes=processes) < estimate_noise_level(medians)


def test_a_noise_level_needs_a_history() -> None:
    assert estimate_noise_level([5e6] * 5) == 0
    for medians in ([5e6] * 4, [5e6, 5e6, 5e6, 5e6, 0]):
        with pytest.raises(ValueError, match="five processes"):
            estimate_noise_level(medians)


@pytest.mark.parametrize("spread", [0.002, 0.01, 0.025])
def test_as_many_processes_as_are_needed_find_the_effect_and_half_of_them_do_not(spread: float) -> None:
    generator = random.Random(7)
    history = [5e6 * generator.lognormvariate(0, spread) for _ in range(2000)]
    needed = processes_needed(history, effect=0.03)

    def found(processes: int) -> float:
        level = estimate_noise_level(history, processes=processes)
        return (
            sum(
                compare(
                    pooled(generator, processes, 1.0), pooled(generator, processes, 1.03), noise_level=level
                ).verdict
                == "slower"
                for _ in range(60)
            )
            / 60
        )

    def pooled(generator: random.Random, processes: int, factor: float) -> list[int]:
        # For a process that is one sample eleven times, the mean of medians is nearly the median of means.
        offsets = [generator.lognormvariate(0, spread) for _ in range(processes)]
        middle = sum(offsets) / processes
        return [int(5e6 * factor * middle * generator.lognormvariate(0, 1e-4)) for _ in range(11 * processes)]

    assert found(needed) >= 0.85
    if needed >= 8:
        assert found(needed // 3) < 0.85


def test_no_number_of_processes_finds_less_than_the_smallest_effect() -> None:
    with pytest.raises(ValueError, match="No number of processes"):
        processes_needed([1e6] * 5, effect=MIN_EFFECT)


@pytest.mark.parametrize("processes", [2, 3, 8])
@pytest.mark.parametrize("in_turns", [False, True])
def test_the_noise_of_the_compared_is_passed_by_noise_one_time_in_twenty(processes: int, in_turns: bool) -> None:
    generator = random.Random(11)
    passed = 0
    for _ in range(2000):
        a, b = ([generator.lognormvariate(15, 0.03) for _ in range(processes)] for _ in range(2))
        shift = abs(sum(map(math.log, a)) - sum(map(math.log, b))) / processes
        passed += shift > math.log1p(estimate_comparison_noise(a, b, in_turns=in_turns))
    assert 0.035 <= passed / 2000 <= 0.065


def test_drift_is_no_noise_to_processes_that_took_turns() -> None:
    a, b = ([1e6 * (1 + (2 * turn + side) / 50) for turn in range(12)] for side in range(2))
    assert estimate_comparison_noise(a, b) > 0.1
    assert estimate_comparison_noise(a, b, in_turns=True) < 0.01


def test_one_process_a_side_has_no_noise_of_its_own() -> None:
    with pytest.raises(ValueError, match="two processes"):
        estimate_comparison_noise([1e6], [1e6, 2e6])
