"""First tokens that wait for a slot: campaigns whose engine took one request fewer than there were users.

One of the users then always waits for another's whole answer. So the mean time to the first token holds an answer's
time over the users, which nobody waits for whose engine takes all. Such a campaign is known by its loads that differ in
the length of their answers alone: their first tokens differ by that wait.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from predictor.serving.measured_loads import MeasuredLoad

_LEAST_PAIRS = 20
"""Fewest pairs of loads that tell of a campaign."""
_LEAST_DIFFERENCE_MS = 20.0
"""Least difference of two waits, so that it shows beside what first tokens scatter by."""
_MOST_USERS = 32
"""With more users the wait is short beside that for other prompts."""
_LOW, _HIGH = 0.5, 1.5
"""Range of the first tokens' differences over the waits' in eight of ten pairs. It is 0.8 to 1.2 in the one campaign
that is known, and -1.2 to 0.5 in all others with as many pairs but one, where it is -0.3 to 1.2."""


def slot_waits_ms(rows: Sequence[MeasuredLoad]) -> list[float]:
    """Return the mean wait for a slot that each load's first token holds, in ms: 0 but in such campaigns."""
    waiting = _waiting_campaigns(rows)
    return [_wait_ms(row) if campaign_of(row) in waiting and not row.load.batch else 0.0 for row in rows]


def _waiting_campaigns(rows: Iterable[MeasuredLoad]) -> set[tuple[object, ...]]:
    shares: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for campaign, one, other in _pairs(rows):
        difference = _wait_ms(one) - _wait_ms(other)
        if abs(difference) >= _LEAST_DIFFERENCE_MS:
            shares[campaign].append((one.first_ms - other.first_ms) / difference)
    return {
        campaign
        for campaign, found in shares.items()
        if len(found) >= _LEAST_PAIRS and np.quantile(found, 0.1) >= _LOW and np.quantile(found, 0.9) <= _HIGH
    }


def _pairs(rows: Iterable[MeasuredLoad]) -> Iterator[tuple[tuple[object, ...], MeasuredLoad, MeasuredLoad]]:
    """Yield the campaign and two of its loads that differ in the length of their answers alone."""
    alike: dict[tuple[object, ...], list[MeasuredLoad]] = defaultdict(list)
    for row in rows:
        if not row.load.batch and row.load.users <= _MOST_USERS and row.first_ms > 0:
            deployment, load = row.deployment, row.load
            sizes = (deployment.devices, deployment.attention_copies, deployment.stages, load.users, load.input_tokens)
            alike[*campaign_of(row), *sizes].append(row)
    for group in alike.values():
        for one, other in combinations(group, 2):
            yield campaign_of(one), one, other


def campaign_of(row: MeasuredLoad) -> tuple[object, ...]:
    """Return the key of the loads that were measured with one set-up."""
    deployment = row.deployment
    return row.model, deployment.device.name, deployment.engine, deployment.engine_version, deployment.quantization


def _wait_ms(row: MeasuredLoad) -> float:
    """Return the mean wait if one of the users waits for another's answer."""
    return row.token_ms * row.load.output_tokens / row.load.users
