"""Objectives and constraints of a recommendation: cost and energy per item, ranking, and limits.

Both look at the pessimistic bound of a figure, so that a wide prediction does not outrank a measurement.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from accel_platform.hardware.catalog import DeviceSpec
from predictor.schemas.requests import Constraints, Objective
from predictor.schemas.responses import Cost, Energy, Figures, Interval, Recommendation

_ITEMS = 1e6
_MAX_LEVEL_SPREAD = 0.15


def cost_per_items(throughput: Interval, spec: DeviceSpec) -> Cost | None:
    """Return dollars per million items on a device rented by the hour and kept busy; None without a price."""
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


def energy_per_item(metered: Interval | None, latency_ms: Interval, batch_size: int, spec: DeviceSpec) -> Energy | None:
    """Return joules per item: metered, else bounded by the thermal design power over the latency.

    None where the device has no meter and no published power.
    """
    if metered is not None:
        return Energy(j_per_item=metered, how="measured")
    if spec.tdp_w is None:
        return None
    per_ms = spec.tdp_w / 1e3 / batch_size
    high = latency_ms.p50 if latency_ms.high is None else latency_ms.high
    bounded = Interval(p50=per_ms * latency_ms.p50, high=per_ms * high)
    return Energy(j_per_item=bounded, how="bounded", tdp_w=spec.tdp_w)


def pessimistic_bound(interval: Interval | None) -> float:
    """Return the high limit of a figure that should be small: p50 where it has none, infinity where it is unknown."""
    if interval is None:
        return math.inf
    return interval.p50 if interval.high is None else interval.high


def ranking(objective: Objective) -> Callable[[Figures], float]:
    """Return the sort key of an objective; the smallest is best, unknown figures come last."""
    keys: dict[Objective, Callable[[Figures], float]] = {
        "latency": lambda r: pessimistic_bound(r.latency_ms),
        "throughput": lambda r: -(r.throughput_items_per_s.low or r.throughput_items_per_s.p50),
        "cost": lambda r: pessimistic_bound(None if r.cost is None else r.cost.usd_per_million_items),
        "energy": lambda r: pessimistic_bound(None if r.energy is None else r.energy.j_per_item),
        "memory": lambda r: pessimistic_bound(r.memory_peak_mib),
    }
    return keys[objective]


def gain_elsewhere(objective: Objective, ranked: Sequence[Recommendation]) -> str | None:
    """Return in one sentence what the best hardware elsewhere gains over the best of one's own; None without both."""
    own = next((r for r in ranked if r.where != "elsewhere"), None)
    other = next((r for r in ranked if r.where == "elsewhere"), None)
    if own is None or other is None:
        return None
    key = ranking(objective)
    mine, theirs = abs(key(own)), abs(key(other))
    if not (math.isfinite(mine) and math.isfinite(theirs)):
        return None
    times = theirs / mine if objective == "throughput" else mine / theirs
    name = f"{other.hardware}{f' ({other.device})' if other.device else ''}, {other.provenance}"
    if times <= 1:
        return f"Nothing is gained elsewhere: its best is {name}, with {1 / times:.3g} times worse {objective}."
    return f"Elsewhere gains a factor of {times:.3g} in {objective}, by the unfavorable limits: {name}."


def level_mismatch(objective: Objective, ranked: Sequence[Figures]) -> str | None:
    """Return a warning where the limits that a ranking compares hold at very different levels."""
    limits = [figures.memory_peak_mib if objective == "memory" else figures.latency_ms for figures in ranked]
    levels = [limit.level for limit in limits if limit is not None and limit.level is not None]
    if not levels or max(levels) - min(levels) < _MAX_LEVEL_SPREAD:
        return None
    return f"What is compared are limits that hold at {min(levels):.0%} for some and at {max(levels):.0%} for others."


def missing_figure(objective: Objective, figures: Figures) -> str | None:
    """Return why a recommendation comes last under this objective; None where its figure is known."""
    if math.isfinite(ranking(objective)(figures)):
        return None
    missing = {"cost": "no price per hour", "energy": "no counted energy and no TDP", "memory": "no peak memory"}
    return f"{missing[objective]} is known of it, so it comes last"


def violations(constraints: Constraints, figures: Figures, spec: DeviceSpec) -> str | None:
    """Return every violated limit in words, None where there is none; an unknown figure violates its limit."""
    found = [
        _figure_violation("latency", "ms", constraints.max_latency_ms, figures.latency_ms),
        _figure_violation("peak memory", "MiB", constraints.max_memory_mib, figures.memory_peak_mib),
        _spec_violation("price", "USD per hour", constraints.max_usd_per_hour, spec.usd_per_hour),
        _spec_violation("thermal design power", "W", constraints.max_watts, spec.tdp_w),
    ]
    return "; ".join(filter(None, found)) or None


def _figure_violation(name: str, unit: str, limit: float | None, interval: Interval | None) -> str | None:
    bound = pessimistic_bound(interval)
    if limit is None or bound <= limit:
        return None
    if math.isinf(bound) or interval is None:
        return f"its {name} is not known, and at most {limit:g} {unit} was asked"
    if interval.p50 > limit:
        return f"{name} {interval.p50:.4g} {unit}, over the {limit:g} asked"
    return f"{name} may reach {bound:.4g} {unit}, over the {limit:g} asked (p50 {interval.p50:.4g})"


def _spec_violation(name: str, unit: str, limit: float | None, value: float | None) -> str | None:
    if limit is None or (value is not None and value <= limit):
        return None
    if value is None:
        return f"its {name} is not known, and at most {limit:g} {unit} was asked"
    return f"{name} {value:g} {unit}, over the {limit:g} asked"
