"""Regression test of one cell between two sets of processes, against the noise of its own series.

An alert needs a change that

* is large enough to act on,
* exceeds the usual difference between processes of this series,
* and is confirmed by more than one process.

A change that lacks one of them is reported without an alert. Latency and memory are judged alike. A cell of which some
processes fail is judged by how often they did before (`failure_test`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace
from statistics import median
from uuid import UUID

import numpy as np

from accel_platform.analysis.query.measured import ProcessResult
from accel_platform.analysis.regressions.decision import MIN_EARLIER_PROCESSES, MIN_PROCESSES, Decision
from accel_platform.analysis.regressions.failure_test import decide_failures
from accel_platform.analysis.regressions.levels import Level, even_medians, levels_of, newest_level
from accel_platform.analysis.regressions.sides import any_works, comparable_processes, figures_of, pool_samples
from accel_platform.analysis.regressions.thresholds import MIN_CHANGE_PERCENT, MIN_MEMORY_CHANGE_MIB
from accel_platform.analysis.stats.medians import MIN_MEDIAN_SAMPLES
from accel_platform.analysis.stats.significance import (
    ALPHA,
    MIN_EFFECT,
    SampleComparison,
    compare,
    compare_figures,
    estimate_comparison_noise,
    estimate_noise_level,
    processes_needed,
)
from accel_platform.events.types import Measure, MeasuredSeries

MIN_PROCESSES_FOR_OWN_NOISE = 3
"""Processes a side from which the spread among the compared processes counts too."""
MAX_DISTURBANCE = 1.0
"""Largest relative change attributed to disturbance; disturbed processes were seen to take 1.7 times as long."""
MAX_LOAD_DIFFERENCE = 0.15
"""Share of all cores by which others may use more beside one side; more than `MAX_OTHERS_SHARE` disturbs a process."""
MAX_LOAD = 0.5
"""Share of all cores used by others above which the slower side's figures say nothing.

Threads that wait for each other then take many times as long: equal code took 9 times as long at 71 % as at 59 %.
"""
MAX_TESTS_AT_ALPHA = 20
"""Most tests of a measure that a check makes at the plain noise level. About one test in 400 alerts by chance, and so
does one check in 20. With more tests, each may alert less often in proportion, because a check of hundreds would seldom
pass otherwise."""
MAX_NOISE = 0.25
"""Noise (relative change) above which the absence of a change cannot be concluded."""


def decide(
    series: MeasuredSeries,
    baseline: Sequence[ProcessResult],
    candidate: Sequence[ProcessResult],
    others: Sequence[ProcessResult],
    *,
    measure: Measure = "latency",
    min_change_percent: float = MIN_CHANGE_PERCENT,
    accepted: Collection[UUID] = (),
    apart: Sequence[Collection[UUID]] = (),
    tests: int = 1,
) -> Decision:
    """Compare the candidate's processes with the baseline's, in one measure.

    Where no process of a side works, there is nothing to compare, and the decision is one of `failures`.

    Parameters
    ----------
    baseline, candidate
        Processes in order of time, with samples for latencies.
    others
        All processes of the series but the candidate's, the baseline's among them, in order of time. They give its
        noise.
    min_change_percent
        Smallest change of the median that counts.
    accepted
        First results of accepted levels.
    apart
        Results of each level that was left again, such as that of a commit that was reverted.
    tests
        Number of tests of this measure that the same check makes, each of which may alert by chance.

    Raises
    ------
    ValueError
        If `min_change_percent` is below the smallest effect that a comparison tells.
    """
    if min_change_percent < 100 * MIN_EFFECT:
        raise ValueError(f"No comparison tells less than {MIN_EFFECT:.0%}.")
    decision = Decision(
        series,
        "insufficient_data",
        measure=measure,
        processes_before=len(baseline),
        processes_after=len(candidate),
        first_result=candidate[0].result_id if candidate else None,
        evidence=tuple(process.result_id for process in candidate),
        commits_before=_commits(baseline),
        commits_after=_commits(candidate),
    )
    for side, processes in (("baseline", baseline), ("candidate", candidate)):
        if not processes:
            return replace(decision, reason=f"the {side} did not measure it")
        if not any(process.verified for process in processes):
            return replace(decision, reason=f"the {side}'s outputs were not verified, so it answers for nothing")
    alpha = ALPHA * MAX_TESTS_AT_ALPHA / max(tests, MAX_TESTS_AT_ALPHA)
    if measure == "failures" or not any_works(baseline) or not any_works(candidate):
        branches = {None, *(process.branch for process in baseline)}
        earlier = newest_level([p for p in others if p.branch in branches], accepted, apart)
        return decide_failures(replace(decision, measure="failures"), baseline, candidate, earlier, alpha)
    before, after = comparable_processes(baseline, measure), comparable_processes(candidate, measure)
    if (lacking := _missing_figures(before, after, measure)) is not None:
        return replace(decision, reason=lacking)
    earlier = [process for process in others if process.verified and process.figure(measure)]
    calm = [process for process in earlier if not process.disturbed]
    # Leave out disturbed processes, whose noise is another one, unless the compared ones were disturbed, too. Other
    # processes do not disturb memory.
    if (
        measure == "latency"
        and len(calm) >= MIN_EARLIER_PROCESSES
        and not any(process.disturbed for process in (*before, *after))
    ):
        earlier = calm
    levels = levels_of(earlier, measure, accepted, apart)
    return _decide_by_noise(decision, before, after, levels, min_change_percent / 100, alpha)


def _missing_figures(before: Sequence[ProcessResult], after: Sequence[ProcessResult], measure: Measure) -> str | None:
    """Return which figures are too few to compare the sides; None if there are enough."""
    if not before or not after:
        return f"its {measure.replace('_', ' ')} is unknown on one side"
    if measure == "latency" and any(len(process.samples_ns) < MIN_MEDIAN_SAMPLES for process in (*before, *after)):
        return f"a process has fewer than {MIN_MEDIAN_SAMPLES} samples, which a median needs"
    return None


def is_tested(measure: Measure, baseline: Sequence[ProcessResult], candidate: Sequence[ProcessResult]) -> bool:
    """Return whether a test of this measure may alert: both sides have its figure, and for `failures` some fail."""
    if not any_works(baseline) or not any_works(candidate):
        return False
    if measure == "failures":
        return any(process.failure is not None for process in (*baseline, *candidate))
    return bool(comparable_processes(baseline, measure) and comparable_processes(candidate, measure))


def _decide_by_noise(  # noqa: PLR0911 - a return per way of ending
    decision: Decision,
    before: Sequence[ProcessResult],
    after: Sequence[ProcessResult],
    levels: Sequence[Level],
    least: float,
    alpha: float,
) -> Decision:
    measure = decision.measure
    if measure != "latency":
        least = max(least, MIN_MEMORY_CHANGE_MIB / median(figures_of(before, measure)))
    found = _compare(before, after, measure, least)
    decision = replace(
        _with_medians(decision, before, after),
        change_percent=100 * (found.ratio - 1) if found.ratio is not None else None,
        p_value=found.p_value,
        processes_before=len(before),
        processes_after=len(after),
        left_out=decision.processes_before + decision.processes_after - len(before) - len(after),
        evidence=tuple(process.result_id for process in after),
    )
    medians = even_medians(levels)
    if found.ratio is None:
        return replace(decision, reason="its samples are 0 ns long")
    if len(medians) < MIN_EARLIER_PROCESSES:
        more = MIN_EARLIER_PROCESSES - len(medians)
        return replace(
            decision, reason=f"its noise is unknown: {more} more earlier processes of this series are needed"
        )
    of_each_side = 2 * len(before) * len(after) / (len(before) + len(after))
    noise = estimate_noise_level(medians, processes=of_each_side, alpha=alpha)
    decision = replace(decision, noise_percent=100 * noise)
    if abs(math.log(found.ratio)) <= math.log1p(least):
        if noise <= MAX_NOISE:
            return replace(decision, state="ok")
        needed = processes_needed(medians, effect=MAX_NOISE, alpha=alpha)
        return replace(decision, processes_needed=needed, reason=f"too noisy to tell a change by {MAX_NOISE:.0%}")
    if measure == "latency" and (reason := _disturbance(before, after, slower=found.ratio > 1)) is not None:
        return replace(decision, disturbed=True, reason=reason)
    if min(len(before), len(after)) >= MIN_PROCESSES_FOR_OWN_NOISE:
        noise = max(noise, estimate_comparison_noise(figures_of(before, measure), figures_of(after, measure)))
        decision = replace(decision, noise_percent=100 * noise)
    found = _compare(before, after, measure, max(noise, least))
    if (uncertainty := _uncertainty_reason(found, before, after, levels, measure)) is None:
        return replace(decision, state="regressed" if found.verdict == "slower" else "improved")
    assert found.ratio is not None
    needed = processes_needed(medians, effect=max(found.ratio, 1 / found.ratio) - 1, alpha=alpha)
    return replace(decision, state="suspicious", reason=uncertainty, processes_needed=max(needed, MIN_PROCESSES))


def _compare(
    before: Sequence[ProcessResult], after: Sequence[ProcessResult], measure: Measure, noise_level: float
) -> SampleComparison:
    if measure == "latency":
        return compare(pool_samples(before), pool_samples(after), noise_level=noise_level)
    return compare_figures(figures_of(before, measure), figures_of(after, measure), noise_level=noise_level)


def _with_medians(decision: Decision, before: Sequence[ProcessResult], after: Sequence[ProcessResult]) -> Decision:
    """Return the decision with the median of either side: of all samples, or of the processes' memory."""
    if decision.measure == "latency":
        was, now = (float(np.median(pool_samples(side))) / 1e6 for side in (before, after))
        return replace(decision, before_ms=was, after_ms=now)
    was, now = (median(figures_of(side, decision.measure)) for side in (before, after))
    return replace(decision, before_mib=was, after_mib=now)


def _disturbance(before: Sequence[ProcessResult], after: Sequence[ProcessResult], *, slower: bool) -> str | None:
    """Return the disturbance by other processes because of which a change says nothing; None if it says something.

    They disturbed most of one side and not of the other. Or they disturbed both, but the slower one by more, or so much
    that its figures mean nothing.
    """
    sides = {"baseline": before, "candidate": after}
    counts = {name: sum(process.disturbed for process in side) for name, side in sides.items()}
    mostly = [name for name, side in sides.items() if 2 * counts[name] > len(side)]
    if len(mostly) == 1:
        [name] = mostly
        disturbed = f"{counts[name]} of {len(sides[name])} processes of the {name}"
        return f"other processes disturbed {disturbed}: measure it again on a calm host"
    was, now = (_others_share(side) for side in (before, after))
    if not mostly or was is None or now is None:
        return None
    of_slower, of_faster = (now, was) if slower else (was, now)
    if of_slower - of_faster <= MAX_LOAD_DIFFERENCE and of_slower <= MAX_LOAD:
        return None
    return f"other processes used {was:.0%} of the processor before and {now:.0%} now: measure it again on a calm host"


def _others_share(processes: Sequence[ProcessResult]) -> float | None:
    """Return the median share of the processor that others used; None where no process recorded it."""
    known = [process.others_share for process in processes if process.others_share is not None]
    return median(known) if known else None


def _uncertainty_reason(
    found: SampleComparison,
    before: Sequence[ProcessResult],
    after: Sequence[ProcessResult],
    levels: Sequence[Level],
    measure: Measure,
) -> str | None:
    """Return why a change is not certain yet; None if it is. Doubts are about times, not about memory."""
    if not found.different:
        return f"{len(after)} against {len(before)} processes: noise alone may do that"
    if len(after) < MIN_PROCESSES:
        return "one process alone says so"
    # Doubts count only if the baseline has none, because the noise of the series includes a noisy baseline.
    assert found.ratio is not None
    small = max(found.ratio, 1 / found.ratio) - 1 <= MAX_DISTURBANCE
    doubtful = [process.doubt for process in after if process.doubt]
    if (
        measure == "latency"
        and small
        and 2 * len(doubtful) > len(after)
        and 2 * sum(process.doubt is not None for process in before) <= len(before)
    ):
        return f"{len(doubtful)} of {len(after)} processes are noisy, and the baseline was not: {doubtful[0]}"
    slower = found.verdict == "slower"
    if not _holds_without_extreme(before, after, levels, measure, slower=slower, effect=found.minimal_effect):
        return "one process on a side makes it: without that one there is no change"
    return None


def _holds_without_extreme(
    before: Sequence[ProcessResult],
    after: Sequence[ProcessResult],
    earlier: Sequence[Level],
    measure: Measure,
    *,
    slower: bool,
    effect: float,
) -> bool:
    """Return whether the change remains without the process that shows it most, on either side.

    For a baseline of one process, the level of the series around it is the reference.
    """
    sign = 1 if slower else -1
    old, new = (sorted(sign * value for value in figures_of(side, measure)) for side in (before, after))
    if len(old) == 1:
        around = next((part.medians for part in earlier if before[0].result_id in part.ids), ())
        reference = median([sign * value for value in around] or old)
    else:
        reference = median(old[1:])
    rest = median(new[:-1])
    return sign * math.log(rest / reference) > math.log1p(effect)


def _commits(processes: Sequence[ProcessResult]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(process.commit for process in processes if process.commit))
