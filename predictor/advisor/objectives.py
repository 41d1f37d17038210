"""What an answer can be ranked by: what an item costs in dollars and joules, and the order of recommendations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from accel_platform.hardware.catalog import DeviceSpec
from predictor.schemas.requests import Objective
from predictor.schemas.responses import Cost, Energy, Figures, Interval

_ITEMS = 1e6
_UNLIKE = 0.15


def cost_of_items(throughput: Interval, spec: DeviceSpec) -> Cost | None:
    """Dollars per million items on a device that is rented by the hour and kept busy; None without a price."""
    if spec.usd_per_hour is None:
        return None
    dollars = spec.usd_per_hour / 3600 * _ITEMS
    return Cost(
        usd_per_million_items=Interval(
            p50=dollars / throughput.p50,
            low=None if throughput.high is None else dollars / throughput.high,
            high=None if throughput.low is None else dollars / throughput.low,
            level=throughput.level,
        ),
        usd_per_hour=spec.usd_per_hour,
        source=spec.usd_source or "not stated",
        date=spec.usd_date,
    )


def energy_of_item(counted: Interval | None, latency_ms: Interval, batch_size: int, spec: DeviceSpec) -> Energy | None:
    """Joules per item: as counted, else at most what the thermal design power comes to over the latency."""
    if counted is not None:
        return Energy(j_per_item=counted, how="measured")
    if spec.tdp_w is None:
        return None
    per_ms = spec.tdp_w / 1e3 / batch_size
    high = latency_ms.p50 if latency_ms.high is None else latency_ms.high
    bounded = Interval(p50=per_ms * latency_ms.p50, high=per_ms * high)
    return Energy(j_per_item=bounded, how="bounded", tdp_w=spec.tdp_w)


def pessimistic_bound(interval: Interval | None) -> float:
    """The unfavourable limit of what should be small, p50 where there is no limit; infinity where nothing is known."""
    if interval is None:
        return math.inf
    return interval.p50 if interval.high is None else interval.high


def ranking(objective: Objective) -> Callable[[Figures], float]:
    """Smaller is better: what can be relied on, so that a wide prediction does not outrank a measurement.

    That is the unfavourable limit of the interval, or p50 where there is no limit; what is not known comes last.
    """
    keys: dict[Objective, Callable[[Figures], float]] = {
        "latency": lambda r: pessimistic_bound(r.latency_ms),
        "throughput": lambda r: -(r.throughput_items_per_s.low or r.throughput_items_per_s.p50),
        "cost": lambda r: pessimistic_bound(None if r.cost is None else r.cost.usd_per_million_items),
        "energy": lambda r: pessimistic_bound(None if r.energy is None else r.energy.j_per_item),
        "memory": lambda r: pessimistic_bound(r.memory_peak_mib),
    }
    return keys[objective]


def unlike_levels(objective: Objective, ranked: Sequence[Figures]) -> str | None:
    """A warning where the limits that a ranking compares hold with very different probabilities."""
    limits = [told.memory_peak_mib if objective == "memory" else told.latency_ms for told in ranked]
    levels = [limit.level for limit in limits if limit is not None and limit.level is not None]
    if not levels or max(levels) - min(levels) < _UNLIKE:
        return None
    return f"What is compared are limits that hold at {min(levels):.0%} for some and at {max(levels):.0%} for others."


def unknown_for(objective: Objective, figures: Figures) -> str | None:
    """Why a recommendation comes last under this objective; None where its figure is known."""
    if math.isfinite(ranking(objective)(figures)):
        return None
    lacking = {"cost": "no price per hour", "energy": "no counted energy and no TDP", "memory": "no peak memory"}
    return f"{lacking[objective]} is known of it, so it comes last"
