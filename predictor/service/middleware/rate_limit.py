"""Rate limiting of clients by token buckets."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable

_MOST_CLIENTS = 10_000
"""Buckets kept; beyond it the longest unused is dropped, and its client starts with a full one."""


class TokenBuckets:
    """One bucket per client: `burst` requests at once, `per_s` a second on average. Used from one thread."""

    def __init__(self, per_s: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s = per_s
        self._burst = burst
        self._clock = clock
        self._full_at: OrderedDict[str, float] = OrderedDict()
        """Time at which each bucket is full again, which determines its content."""

    def take(self, client: str) -> int | None:
        """Take a token: return None where the request may pass, else the seconds until the next one may."""
        now = self._clock()
        full_at = max(self._full_at.get(client, now), now) + 1 / self._per_s
        missing_s = full_at - now - self._burst / self._per_s
        if missing_s > 1e-9:
            return max(1, math.ceil(missing_s))
        self._full_at[client] = full_at
        self._full_at.move_to_end(client)
        if len(self._full_at) > _MOST_CLIENTS:
            self._full_at.popitem(last=False)
        return None
