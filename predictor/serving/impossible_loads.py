"""Measured loads that were answered in less time than their devices take to compute the prompts and steps.

Their engines computed less than the loads state. Most had seen the prompts before, and kept them in a prefix cache.
These loads are kept, and answer for nothing. They are still learned from.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from predictor.serving.slot_waits import campaign_of
from predictor.serving.work import MOST_COMPUTED, work_of

if TYPE_CHECKING:
    from predictor.serving.measured_loads import MeasuredLoad

_MOST_POSSIBLE = 0.5
"""Share of impossible loads from which all loads of a campaign count as impossible, because they share the set-up."""


def are_impossible(rows: Sequence[MeasuredLoad]) -> list[bool]:
    """Return for each load of a pack whether it, or most of its campaign, took less time than its devices can take.

    Loads that were measured or imported here count as they are, and so do those whose first tokens nobody timed.
    """
    if not rows:
        return []
    whole_ms = np.array([row.first_ms + (row.load.output_tokens - 1) * row.token_ms for row in rows])
    least_ms = 1e3 * work_of([(row.deployment, row.load) for row in rows]).requests_s(MOST_COMPUTED)
    timed = [row.from_pack and not row.load.batch and row.deployment.prompts is None for row in rows]
    faster = (whole_ms < least_ms) & timed
    loads = Counter(campaign_of(row) for row, judged in zip(rows, timed, strict=True) if judged)
    found = Counter(campaign_of(row) for row, here in zip(rows, faster, strict=True) if here)
    suspect = {campaign for campaign, count in found.items() if count > _MOST_POSSIBLE * loads[campaign]}
    return [
        bool(here) or (judged and campaign_of(row) in suspect)
        for row, judged, here in zip(rows, timed, faster, strict=True)
    ]
