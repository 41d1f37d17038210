"""Detection of fabricated results: samples without spread, rounded, copied, or from another device."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

MIN_SAMPLES = 11
"""Minimum sample count: fewer may agree by chance."""
_COARSE_STEP_NS = 1000
"""Clocks of processes tick in 1 to 100 ns. Samples that are all whole microseconds were rounded, or made up."""
_MAX_EQUAL_SHARE = 0.5
"""Share of samples equal to the other's at the same place; two clocks in nanoseconds agree on one in thousands."""


def fabricated_reason(samples_ns: Sequence[int], clock_step_ns: int = 1) -> str | None:
    """Return why these samples of one result are no measurement; None where nothing speaks against them.

    `clock_step_ns` is the resolution of a coarse clock (a browser's).
    """
    if len(samples_ns) < MIN_SAMPLES:
        return None
    # Short work may take the same number of ticks of a coarse clock each time.
    if len(set(samples_ns)) == 1 and samples_ns[0] > 10_000 * clock_step_ns:
        return f"all {len(samples_ns)} samples are the very same {samples_ns[0] / 1e6:g} ms"
    step = math.gcd(*samples_ns)
    if step >= _COARSE_STEP_NS and step > 2 * clock_step_ns and len(set(samples_ns)) > 1:
        return f"all {len(samples_ns)} samples are whole multiples of {step:,} ns, which no clock here counts in"
    return None


def duplicate_reason(samples_ns: Sequence[int], other_ns: Sequence[int]) -> str | None:
    """Return why results of two hardware names cannot both be measured; None where they may be.

    Either their samples are the same, or one is a scaled copy of the other.
    """
    count = min(len(samples_ns), len(other_ns))
    # Equal samples of a coarse clock prove nothing, so many distinct values are needed.
    if count < MIN_SAMPLES or min(len(set(samples_ns)), len(set(other_ns))) <= count / 2:
        return None
    mine, others = samples_ns[:count], other_ns[:count]
    same = sum(a == b for a, b in zip(mine, others, strict=True))
    if same > _MAX_EQUAL_SHARE * count:
        return f"{same} of {count} samples have the very same nanoseconds at the same place"
    if sorted(mine) == sorted(others):
        return f"the {count} samples are the very same, in another order"
    factor = sum(mine) / sum(others)
    # A scaled copy differs only by rounding to whole nanoseconds.
    if all(abs(a - factor * b) <= 1 + factor for a, b in zip(mine, others, strict=True)) and _varies(mine):
        return f"every one of {count} samples is {factor:.6g} times the other's"
    return None


def misplaced_reason(confirmed: Mapping[str, Any] | None, placement: Mapping[str, Any] | None) -> str | None:
    """Return why a result did not come from the device it names, as the runtime reports; None where it did or is
    silent.

    Takes the fields of `Confirmation` and of `Placement`, as the measuring process sends them.
    """
    if confirmed is not None and set(confirmed["seen"]) != {confirmed["asked"]}:
        seen = ", ".join(confirmed["seen"]) or "no device at all"
        return f"{confirmed['asked']} was asked for, and the runtime says that it ran on {seen}"
    if placement is not None and placement["accelerated"] == 0 and placement["elsewhere"]:
        kinds = ", ".join(sorted(placement["elsewhere"])[:5])
        return f"the runtime left every operator to another device: {kinds}"
    return None


def _varies(samples_ns: Sequence[int]) -> bool:
    """Return whether successive samples differ by more than rounding would hide."""
    return max(abs(a - b) for a, b in pairwise(samples_ns)) > 100
