"""What is called a regression is one, as far as the noise of its own series lets anybody tell."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from uuid_utils.compat import uuid7

from accel_platform.analysis.query.measured import ProcessResult
from accel_platform.analysis.regressions.decision import MIN_EARLIER_PROCESSES, Decision
from accel_platform.analysis.regressions.regression_test import decide, is_tested
from accel_platform.events.types import MeasuredSeries

SERIES = MeasuredSeries(
    model_id="m", hardware="cpu", device_id="d", fingerprint="f", mode="inference", precision="float32", batch_size=1
)
ALERTS = ("regressed", "improved")


def process(generator: random.Random, factor: float = 1.0, *, spread: float = 0.01, **changes: Any) -> ProcessResult:
    """A process with an offset of its own, as real ones have, and samples around it."""
    offset = generator.gauss(0, spread)
    samples = tuple(int(5e6 * factor * (1 + offset) * generator.lognormvariate(0, 0.02)) for _ in range(30))
    fields: dict[str, Any] = {
        "result_id": uuid7(), "run_id": "r", "commit": None, "threads": 1, "median_ms": median(samples) / 1e6,
        "failure": None, "verified": True, "noisy": False, "samples_ns": samples,
    }  # fmt: skip
    return ProcessResult(**{**fields, **changes})


def processes(generator: random.Random, count: int, factor: float = 1.0, **changes: Any) -> list[ProcessResult]:
    return [process(generator, factor, **changes) for _ in range(count)]


def failed(reason: str) -> ProcessResult:
    return process(random.Random(1), median_ms=None, failure=reason, samples_ns=())


def states(factor: float, *, earlier: int, before: int, after: int, spread: float, count: int = 300) -> Counter[str]:
    generator = random.Random(f"{factor} {earlier} {before} {after} {spread}")
    found: Counter[str] = Counter()
    for _ in range(count):
        old = processes(generator, earlier, spread=spread)
        new = processes(generator, after, factor, spread=spread)
        found[decide(SERIES, old[-before:], new, old).state] += 1
    return found


@pytest.mark.parametrize("sides", [(1, 3), (3, 3)])
@pytest.mark.parametrize("spread", [0.005, 0.03])
@pytest.mark.parametrize("earlier", [6, 30])
def test_noise_is_seldom_called_a_change(sides: tuple[int, int], spread: float, earlier: int) -> None:
    found = states(1.0, earlier=earlier, before=sides[0], after=sides[1], spread=spread)
    assert found["regressed"] + found["improved"] <= 0.03 * 300


@pytest.mark.parametrize(("factor", "state"), [(1.06, "regressed"), (1 / 1.06, "improved")])
def test_a_change_well_above_the_noise_is_found(factor: float, state: str) -> None:
    assert states(factor, earlier=12, before=3, after=3, spread=0.01, count=100)[state] >= 90
    assert states(factor, earlier=12, before=1, after=3, spread=0.01, count=100)[state] >= 90


def test_branches_that_take_turns_on_a_drifting_machine_are_no_noise() -> None:
    generator, level = random.Random(5), 0.0
    old = []
    for _ in range(40):
        level = 0.9 * level + generator.gauss(0, 0.02)
        old.append(process(generator, 1 + level, branch=generator.choice(["main", "a", "b", "c"])))

    def noise(earlier: list[ProcessResult]) -> float:
        return decide(SERIES, earlier[-3:], processes(generator, 2, 1 + level), earlier).noise_percent or 0.0

    assert noise(old) == pytest.approx(noise([replace(p, branch=None) for p in old]), rel=0.1)


def test_what_is_missed_in_noise_is_suspicious_and_says_how_many_processes_it_takes() -> None:
    generator = random.Random(3)
    old = [*processes(generator, 20, spread=0.06), *processes(generator, 2, spread=0.0)]
    found = decide(SERIES, old[-2:], processes(generator, 2, 1.06, spread=0.0), old)
    assert (found.state, found.reason) == ("suspicious", "2 against 2 processes: noise alone may do that")
    assert found.noise_percent is not None
    assert found.noise_percent > 5
    assert found.processes_needed is not None
    assert found.processes_needed > 2
    assert states(1.06, earlier=30, before=25, after=25, spread=0.03, count=40)["regressed"] >= 36


def test_one_of_many_cells_needs_a_clearer_change() -> None:
    generator = random.Random(3)
    old = [*processes(generator, 20, spread=0.03), *processes(generator, 2, spread=0.0)]
    new = processes(generator, 2, 1.065, spread=0.0)
    one, ten, many = (decide(SERIES, old[-2:], new, old, tests=tests) for tests in (1, 10, 500))
    assert (one.state, ten.state, many.state) == ("regressed", "regressed", "suspicious")
    assert one.noise_percent == ten.noise_percent
    assert (many.processes_needed or 0) > 2


levels = st.floats(0.05, 20)


@given(
    levels,
    st.integers(0, 2**32),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(MIN_EARLIER_PROCESSES, 30),
    st.booleans(),
)
def test_one_lone_spike_never_alerts(
    spike: float, seed: int, before: int, after: int, earlier: int, in_baseline: bool
) -> None:
    generator = random.Random(seed)
    old, new = (processes(generator, count, spread=0.001) for count in (before + earlier, after))
    side = old if in_baseline else new
    # Of the baseline's own processes, not of those before them.
    place = len(old) - 1 - generator.randrange(before) if in_baseline else generator.randrange(after)
    side[place] = process(generator, spike, spread=0.001)
    assert decide(SERIES, old[-before:], new, old).state not in ALERTS


@given(levels, st.integers(0, 2**32))
def test_a_spike_long_ago_hides_no_shift(spike: float, seed: int) -> None:
    generator = random.Random(seed)
    old, new = processes(generator, 20, spread=0.005), processes(generator, 3, 1.2, spread=0.005)
    old[7] = process(generator, spike)
    assert decide(SERIES, old[-3:], new, old).state == "regressed"


def test_a_shift_long_ago_hides_none() -> None:
    generator = random.Random(5)
    old = [*processes(generator, 12), *processes(generator, 12, 2.0)]
    assert decide(SERIES, old[-3:], processes(generator, 3, 2.3), old).state == "regressed"
    assert decide(SERIES, old[-3:], processes(generator, 3, 2.0), old).state == "ok"


def test_one_process_alone_is_suspicious_however_slow() -> None:
    generator = random.Random(1)
    old = processes(generator, 9)
    found = decide(SERIES, old[-4:], processes(generator, 1, 5.0), old)
    assert (found.state, found.reason) == ("suspicious", "one process alone says so")
    assert found.change_percent == pytest.approx(400, rel=0.05)


@pytest.mark.parametrize("known", range(MIN_EARLIER_PROCESSES))
def test_without_a_history_it_says_how_much_of_one_it_needs(known: int) -> None:
    generator = random.Random(1)
    old = processes(generator, max(1, known))
    found = decide(SERIES, old[-1:], processes(generator, 3, 2.0), old[:known])
    assert found.state == "insufficient_data"
    assert f"{MIN_EARLIER_PROCESSES - known} more earlier processes" in (found.reason or "")


def test_the_smallest_change_worth_an_alert_can_be_chosen() -> None:
    generator = random.Random(1)
    old, new = processes(generator, 12, spread=0.001), processes(generator, 4, 1.04, spread=0.001)
    told = [decide(SERIES, old[-4:], new, old, min_change_percent=least).state for least in (1.0, 3.0, 6.0)]
    assert told == ["regressed", "regressed", "ok"]
    with pytest.raises(ValueError, match="No comparison tells less than 1%"):
        decide(SERIES, old, new, old, min_change_percent=0.5)


def test_a_series_too_noisy_to_show_anything_does_not_pass_for_unchanged() -> None:
    generator = random.Random(2)
    old = [process(generator, factor) for factor in (1, 3, 1, 2, 3, 1, 2, 3, 1, 2)]
    new = [replace(old[4], result_id=uuid7()), replace(old[8], result_id=uuid7())]
    found = decide(SERIES, [old[4], old[8]], new, old)
    assert (found.state, found.change_percent) == ("insufficient_data", 0)
    assert "too noisy" in (found.reason or "")
    assert found.alerts, "another measurement may tell"
    assert found.processes_needed is not None
    assert found.processes_needed > 10


class TestDoubt:
    def test_processes_noisier_than_the_baseline_alert_nobody(self) -> None:
        generator = random.Random(1)
        old, new = processes(generator, 9), processes(generator, 3, 1.5, doubt="others were at work")
        found = decide(SERIES, old[-3:], new, old)
        assert found.state == "suspicious"
        assert "3 of 3 processes are noisy" in (found.reason or "")

    def test_a_series_that_is_always_noisy_is_judged_by_its_noise(self) -> None:
        generator = random.Random(1)
        old, new = (processes(generator, n, f, doubt="others were at work") for n, f in ((9, 1.0), (3, 1.5)))
        assert decide(SERIES, old[-3:], new, old).state == "regressed"

    def test_calm_processes_decide_where_they_are_enough(self) -> None:
        generator = random.Random(1)
        old = processes(generator, 9)
        noisy = processes(generator, 4, 1.5, doubt="others were at work")
        found = decide(SERIES, old[-3:], [*noisy, *processes(generator, 2)], old)
        assert (found.state, found.processes_after) == ("ok", 2)


class TestFailures:
    def test_what_worked_and_fails_now_regressed(self) -> None:
        old = processes(random.Random(1), 3)
        found = decide(SERIES, old, [failed("out of memory")], old)
        assert (found.state, found.reason) == ("regressed", "it fails now: out of memory")
        assert found.before_ms == pytest.approx(5, rel=0.1)
        assert found.after_ms is None

    def test_what_failed_and_works_now_improved(self) -> None:
        new = processes(random.Random(1), 1)
        found = decide(SERIES, [failed("out of memory")], new, [])
        assert (found.state, found.reason) == ("improved", "it works now; before: out of memory")

    def test_what_fails_on_both_sides_is_no_change(self) -> None:
        found = decide(SERIES, [failed("a")], [failed("b")], [])
        assert (found.state, found.reason) == ("insufficient_data", "it fails on both sides: b")

    @pytest.mark.parametrize(
        ("fail", "of", "fail_before", "of_before", "state"),
        [
            (4, 6, 0, 12, "regressed"),
            (2, 3, 0, 20, "regressed"),
            (1, 4, 0, 20, "suspicious"),  # one process alone
            (1, 1, 3, 20, "suspicious"),  # all of the candidate's, but it failed before, too
            (1, 4, 3, 20, "ok"),
            (0, 6, 0, 12, "ok"),
            (0, 8, 9, 12, "improved"),
            (2, 3, 0, 3, "insufficient_data"),
        ],
    )
    def test_how_often_it_fails_is_held_against_how_often_it_did(
        self, fail: int, of: int, fail_before: int, of_before: int, state: str
    ) -> None:
        generator = random.Random(1)
        old = [*processes(generator, of_before - fail_before), *(failed("b") for _ in range(fail_before))]
        new = [*processes(generator, of - fail), *(failed("a") for _ in range(fail))]
        found = decide(SERIES, [*old[:2], *old[len(old) - bool(fail_before) :]], new, old, measure="failures")
        assert (found.state, found.measure) == (state, "failures")
        if state in (*ALERTS, "suspicious"):
            assert (found.reason or "").startswith(
                f"{fail} of {of} processes failed, {fail_before} of {of_before} before"
            )
            assert (found.processes_before, found.processes_after) == (of_before, of)
            assert state == "improved" or (found.processes_needed or 0) > 1

    @pytest.mark.parametrize(("fail_before", "state"), [(0, "regressed"), (1, "regressed"), (2, "suspicious")])
    def test_one_failure_long_ago_excuses_no_commit(self, fail_before: int, state: str) -> None:
        generator = random.Random(1)
        old = [*(failed("b") for _ in range(fail_before)), *processes(generator, 30 - fail_before)]
        assert decide(SERIES, old[-3:], [failed("a")], old, measure="failures").state == state

    def test_a_baseline_that_fails_as_often_is_no_better(self) -> None:
        generator = random.Random(1)
        baseline = [process(generator), failed("a"), failed("a")]
        found = decide(SERIES, baseline, baseline, [*processes(generator, 30), *baseline], measure="failures")
        assert found.state == "ok"

    def test_failures_of_a_level_that_was_left_again_say_nothing(self) -> None:
        generator = random.Random(1)
        old, flaky = processes(generator, 20), [process(generator), *(failed("a") for _ in range(5))]
        new = [*processes(generator, 1), failed("a"), failed("a")]
        apart = [{one.result_id for one in flaky}]
        assert decide(SERIES, old[-3:], new, [*old, *flaky], measure="failures").state == "ok"
        assert decide(SERIES, old[-3:], new, [*old, *flaky], measure="failures", apart=apart).state == "regressed"

    @pytest.mark.parametrize(("before", "after", "side"), [(0, 2, "baseline"), (2, 0, "candidate")])
    def test_a_side_that_did_not_measure_it_is_named(self, before: int, after: int, side: str) -> None:
        generator = random.Random(1)
        found = decide(SERIES, processes(generator, before), processes(generator, after), [])
        assert (found.state, found.reason) == ("insufficient_data", f"the {side} did not measure it")

    def test_unverified_outputs_answer_for_nothing(self) -> None:
        generator = random.Random(1)
        old = processes(generator, 9)
        found = decide(SERIES, old[-3:], processes(generator, 3, 2.0, verified=False), old)
        assert found.state == "insufficient_data"
        assert "candidate's outputs were not verified" in (found.reason or "")

    def test_too_few_samples_decide_nothing(self) -> None:
        generator = random.Random(1)
        old = processes(generator, 9)
        short = process(generator, 2.0, samples_ns=(10_000_000,) * 5, median_ms=None)
        assert decide(SERIES, old[-3:], [short], old).state == "insufficient_data"


def test_a_process_with_many_samples_does_not_outvote_the_others() -> None:
    generator = random.Random(1)
    old = processes(generator, 9, spread=0.001)
    many = process(generator, 1.5)
    many = replace(many, samples_ns=many.samples_ns * 40)
    found = decide(SERIES, old[-3:], [*processes(generator, 3, spread=0.001), many], old)
    assert found.state == "ok"


def test_an_accepted_level_is_the_one_a_lone_baseline_is_held_against() -> None:
    """One result at an accepted level is a level; one result out of line is a spike."""
    generator = random.Random(1)
    old, baseline = processes(generator, 12, spread=0.002), processes(generator, 1, 1.3, spread=0.002)
    new = processes(generator, 3, 1.6, spread=0.002)

    def state(accepted: Any) -> Decision:
        return decide(SERIES, baseline, new, [*old, *baseline], accepted=accepted)

    assert state([baseline[0].result_id]).state == "regressed"
    assert state([]).state == "regressed"  # higher than either
    back = processes(generator, 3, 1.0, spread=0.002)
    others = [*old, *baseline]
    assert decide(SERIES, baseline, back, others).state == "suspicious"
    assert decide(SERIES, baseline, back, others, accepted=[baseline[0].result_id]).state == "improved"


def test_a_side_that_others_disturbed_decides_nothing() -> None:
    generator = random.Random(3)
    calm, slow = processes(generator, 8), processes(generator, 3, 100.0, disturbed=True, doubt="it waited for a core")
    undecided = decide(SERIES, calm, slow, calm)
    assert (undecided.state, undecided.disturbed, undecided.alerts) == ("insufficient_data", True, True)
    assert undecided.reason is not None
    assert undecided.reason.startswith("other processes disturbed 3 of 3 processes of the candidate")
    back = decide(SERIES, slow, calm[:3], [*calm, *slow])
    assert back.disturbed
    assert "of the baseline" in str(back.reason)
    # Undisturbed processes decide where there are two, and a host that is always busy is compared with itself.
    slower = processes(generator, 2, 3.0, doubt="it drifts")
    assert decide(SERIES, calm, [*slow, *slower], calm).state == "regressed"
    busy = [replace(one, disturbed=True) for one in calm]
    assert decide(SERIES, busy, [replace(one, disturbed=True) for one in slow], busy).state == "regressed"
    assert decide(SERIES, calm, [replace(one, disturbed=True) for one in calm[:3]], calm).state == "ok"


def test_a_side_that_others_disturbed_more_decides_nothing_where_it_is_the_slower_one() -> None:
    generator = random.Random(5)
    before, slower = processes(generator, 8, disturbed=True), processes(generator, 3, 1.4, disturbed=True)

    def state(share_before: float | None, share_now: float | None, *, exchanged: bool = False) -> tuple[str, bool]:
        was = [replace(one, others_share=share_before) for one in (slower if exchanged else before)]
        now = [replace(one, others_share=share_now) for one in (before[:3] if exchanged else slower)]
        found = decide(SERIES, was, now, [*before, *was])
        return found.state, found.disturbed

    assert state(0.2, 0.6) == ("insufficient_data", True)
    assert state(0.2, 0.3) == ("regressed", False), "a host that is always busy is compared with itself"
    assert state(0.6, 0.2) == ("regressed", False), "it is slower with less beside it"
    assert state(0.59, 0.71) == ("insufficient_data", True), "beside so much its own figures mean nothing"
    assert state(0.71, 0.59) == ("insufficient_data", True)
    assert state(None, 0.6) == ("regressed", False), "older results did not record it"
    assert state(0.6, 0.2, exchanged=True) == ("insufficient_data", True), "less load is no improvement"


class TestMemory:
    def _processes(self, generator: random.Random, count: int, mib: float, spread: float = 0.01) -> list[ProcessResult]:
        return [process(generator, memory_mib=mib * (1 + generator.gauss(0, spread))) for _ in range(count)]

    def _state(self, old: list[ProcessResult], new: list[ProcessResult], **options: Any) -> Decision:
        return decide(SERIES, old[-3:], new, old, measure="memory", min_change_percent=10.0, **options)

    @pytest.mark.parametrize(
        ("mib", "factor", "state"),
        [
            (500.0, 1.0, "ok"),
            (500.0, 1.05, "ok"),
            (500.0, 1.25, "regressed"),
            (500.0, 0.75, "improved"),
            (20.0, 1.25, "ok"),  # 5 MiB
            (20.0, 1.6, "regressed"),
        ],
    )
    def test_a_tenth_more_and_a_few_mib_more_is_a_change(self, mib: float, factor: float, state: str) -> None:
        generator = random.Random(1)
        found = self._state(self._processes(generator, 12, mib), self._processes(generator, 3, mib * factor))
        assert (found.state, found.measure) == (state, "memory")
        assert found.after_mib == pytest.approx(mib * factor, rel=0.05)
        assert found.before_ms is found.after_ms is found.p_value is None

    def test_equal_figures_have_no_noise(self) -> None:
        generator = random.Random(1)
        found = self._state(self._processes(generator, 12, 500.0, 0.0), self._processes(generator, 2, 600.0, 0.0))
        assert (found.state, found.noise_percent, found.change_percent) == ("regressed", 0.0, pytest.approx(20))

    def test_peaks_of_single_processes_alert_nobody(self) -> None:
        generator = random.Random(1)
        old, new = self._processes(generator, 20, 500.0), self._processes(generator, 3, 500.0)
        old[4] = replace(old[4], memory_mib=900.0)
        assert self._state(old, [replace(new[0], memory_mib=900.0), *new[1:]]).state == "ok"
        two = [replace(new[0], memory_mib=900.0), new[1]]
        assert self._state(old, two).state == "suspicious"
        alone = self._state(old, two[:1])
        assert (alone.state, alone.reason) == ("suspicious", "one process alone says so")

    def test_other_processes_take_time_and_no_memory(self) -> None:
        generator = random.Random(1)
        old, new = self._processes(generator, 12, 500.0), self._processes(generator, 3, 700.0)
        busy = [replace(one, disturbed=True, doubt="it waited", samples_ns=()) for one in new]
        assert self._state(old, busy).state == "regressed"

    def test_an_unknown_peak_is_no_figure(self) -> None:
        generator = random.Random(1)
        old, new = self._processes(generator, 12, 500.0), processes(generator, 3)
        found = self._state(old, new)
        assert (found.state, found.reason) == ("insufficient_data", "its memory is unknown on one side")
        assert not is_tested("memory", old, new)
        assert is_tested("latency", old, new)
