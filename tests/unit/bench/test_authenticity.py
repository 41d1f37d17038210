"""Figures that no clock gives are found out, and those that a clock gives are not."""

from __future__ import annotations

import random
import time

from hypothesis import given
from hypothesis import strategies as st

from accel_platform.bench.measure.authenticity import duplicate_reason, fabricated_reason, misplaced_reason

seeds = st.integers(0, 2**32)


def clocked(seed: int, count: int = 200, median_ns: int = 3_000_000, step_ns: int = 1) -> list[int]:
    """Latencies as a clock with this step gives them: skewed, none below a floor."""
    source = random.Random(seed)
    return [int(median_ns * (1 + source.expovariate(20))) // step_ns * step_ns for _ in range(count)]


@given(seeds)
def test_measured_samples_are_believed(seed: int) -> None:
    assert fabricated_reason(clocked(seed)) is None
    assert duplicate_reason(clocked(seed), clocked(seed + 1)) is None


def test_samples_of_this_very_machine_are_believed() -> None:
    def one() -> int:
        start = time.perf_counter_ns()
        sum(range(300))
        return time.perf_counter_ns() - start

    first, second = ([one() for _ in range(500)] for _ in range(2))
    assert fabricated_reason(first) is None
    assert duplicate_reason(first, second) is None


@given(seeds)
def test_a_coarse_clock_that_says_so_is_believed(seed: int) -> None:
    assert fabricated_reason(clocked(seed, step_ns=5_000), clock_step_ns=5_000) is None
    assert fabricated_reason([400_000] * 50, clock_step_ns=5_000) is None, "80 ticks each time are nothing strange"


def test_samples_without_spread_are_not() -> None:
    assert "very same 12.5 ms" in (fabricated_reason([12_500_000] * 30) or "")


@given(seeds)
def test_rounded_samples_are_not(seed: int) -> None:
    assert "whole multiples" in (fabricated_reason(clocked(seed, step_ns=100_000)) or "")


@given(seeds, st.floats(0.1, 10))
def test_copies_are_not(seed: int, factor: float) -> None:
    true = clocked(seed)
    shuffled = random.Random(seed).sample(true, len(true))
    assert "very same nanoseconds" in (duplicate_reason(true, true[:150]) or "")
    assert duplicate_reason(true, shuffled) is not None
    assert duplicate_reason([round(factor * value) for value in true], true) is not None


def test_few_samples_prove_nothing() -> None:
    assert fabricated_reason([12_500_000] * 5) is None
    assert duplicate_reason([1, 2, 3], [1, 2, 3]) is None


def test_a_device_is_believed_by_the_runtimes_word_only() -> None:
    assert misplaced_reason(None, None) is None
    assert misplaced_reason({"asked": "cuda", "seen": ["cuda"]}, None) is None
    assert "ran on cpu" in (misplaced_reason({"asked": "cuda", "seen": ["cpu"]}, None) or "")
    assert "cpu, cuda" in (misplaced_reason({"asked": "cuda", "seen": ["cpu", "cuda"]}, None) or "")
    assert "no device" in (misplaced_reason({"asked": "cuda", "seen": []}, None) or "")
    assert misplaced_reason(None, {"accelerated": 3, "elsewhere": {"GatherND": 1}}) is None
    assert "MatMul" in (misplaced_reason(None, {"accelerated": 0, "elsewhere": {"MatMul": 2}}) or "")
