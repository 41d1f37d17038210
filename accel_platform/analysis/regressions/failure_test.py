"""Test of how often a cell fails: all processes of a side, or more or fewer than of the newest ones before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from accel_platform.analysis.query.measured import ProcessResult
from accel_platform.analysis.regressions.decision import (
    MAX_PROCESSES_NEEDED,
    MIN_EARLIER_PROCESSES,
    MIN_PROCESSES,
    Decision,
)
from accel_platform.analysis.regressions.sides import any_works, comparable_median_ms, count_failed
from accel_platform.analysis.stats.significance import ALPHA, failure_p_value


def decide_failures(
    decision: Decision,
    baseline: Sequence[ProcessResult],
    candidate: Sequence[ProcessResult],
    earlier: Sequence[ProcessResult],
    alpha: float,
) -> Decision:
    """Complete the decision by how often a cell fails; `earlier` are the processes of its series that tell the usual.

    `alpha` is the probability of a difference by chance from which on it counts as none.
    """
    decision = replace(decision, before_ms=comparable_median_ms(baseline), after_ms=comparable_median_ms(candidate))
    causes = [process.failure for process in (*earlier, *baseline, *candidate) if process.failure]
    failed, failed_before = count_failed(candidate), count_failed(earlier)
    if (certain := _decide_all_failing(decision, baseline, candidate, earlier, causes)) is not None:
        return certain
    of, of_before = len(candidate), len(earlier)
    decision = replace(decision, processes_before=of_before, processes_after=of)
    if of_before < MIN_EARLIER_PROCESSES:
        return replace(decision, reason="too few earlier processes of this series tell how often it fails")
    rate, rates_before = failed / of, (failed_before / of_before, count_failed(baseline) / len(baseline))
    p_value = failure_p_value(failed, of, failed_before, of_before)
    reason = ": ".join([f"{failed} of {of} processes failed, {failed_before} of {of_before} before", *causes[-1:]])
    if p_value < alpha and rate < min(rates_before):
        return replace(decision, state="improved", p_value=p_value, reason=reason)
    if rate <= max(rates_before) or (failed_before and p_value >= alpha and any_works(candidate)):
        return replace(decision, state="ok", p_value=p_value)
    # One process of several alerts nobody.
    certain_now = p_value < alpha and failed >= MIN_PROCESSES
    counts = range(MIN_PROCESSES, MAX_PROCESSES_NEEDED + 1)
    needed = (
        count
        for count in counts
        if failure_p_value(max(MIN_PROCESSES, round(rate * count)), count, failed_before, of_before) < alpha
    )
    return replace(
        decision,
        state="regressed" if certain_now else "suspicious",
        p_value=p_value,
        reason=reason,
        processes_needed=next(needed, MAX_PROCESSES_NEEDED + 1),
    )


def _decide_all_failing(
    decision: Decision,
    baseline: Sequence[ProcessResult],
    candidate: Sequence[ProcessResult],
    earlier: Sequence[ProcessResult],
    causes: Sequence[str],
) -> Decision | None:
    """Decide a cell of which all processes of a side fail; None where the share that failed before has to tell.

    One that hardly ever failed before regressed, however few they are.
    """
    if not any_works(baseline) and not any_works(candidate):
        return replace(decision, reason=f"it fails on both sides: {causes[-1]}")
    if not any_works(candidate) and count_failed(earlier) <= ALPHA * len(earlier):
        return replace(decision, state="regressed", reason=f"it fails now: {causes[-1]}")
    if not any_works(baseline) and (len(baseline) >= MIN_PROCESSES or count_failed(earlier) == len(earlier)):
        return replace(decision, state="improved", reason=f"it works now; before: {causes[-1]}")
    return None
