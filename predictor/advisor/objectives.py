"""Objectives and constraints of a recommendation: cost and energy per item, ranking, and limits.

All use the unfavorable limit of a figure, so that an uncertain prediction does not outrank a measurement. For latency,
throughput, cost and energy that is the limit of a single batch. Measured cells have the scatter of their own batches;
for other figures that of all measured cells is taken (`batch_spread`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from accel_platform.hardware.catalog import DeviceSpec
from accel_platform.table_io.values import rounded
from predictor.advisor.device_labels import place_label, shared_devices
from predictor.advisor.intervals import divide
from predictor.data.evidence import Evidence
from predictor.schemas.requests import Constraints, Objective
from predictor.schemas.responses import INTERVAL_LEVEL, Cost, Energy, Figures, Interval, Recommendation

_PRICED_ITEMS = 1e6
_NORMAL = NormalDist()
_MAX_LEVEL_SPREAD = 0.05
_MISSING: dict[Objective, str] = {
    "cost": "no price per hour",
    "energy": "no counted energy and no TDP",
    "memory": "no peak memory",
}
"""Text for the unknown figure of each objective; the latency is always known."""
Merit = tuple[float, float, float]
"""Values that figures are ranked by, the smallest first: the objective's, the latency's, and the median latency."""


def cost_per_items(throughput: Interval, spec: DeviceSpec) -> Cost | None:
    """Return dollars per million items on a device rented by the hour and kept busy; None without a price."""
    if spec.usd_per_hour is None:
        return None
    dollars = spec.usd_per_hour / 3600 * _PRICED_ITEMS
    return Cost(
        usd_per_million_items=divide(dollars, throughput),
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


def batch_spread(evidence: Evidence) -> float | None:
    """Return the typical scatter of single batches: log(upper limit / median) of a cell, in natural logs.

    It is the quantile INTERVAL_LEVEL over this platform's own measured cells. Noisy cells do not count, because the
    disturbance of one host says nothing of other devices. None if no other own cell has limits.
    """
    return evidence.memoize("batch spread", lambda: _batch_spread(evidence))


def _batch_spread(evidence: Evidence) -> float | None:
    quiet = [s.latency_ms for s in evidence.summaries.values() if s.measured and not s.noisy]
    limits = [limit for limit in quiet if limit.level is not None]
    logs = [math.log(limit.high / limit.p50) for limit in limits if limit.high is not None]
    return float(np.quantile(logs, INTERVAL_LEVEL)) if logs else None


def unfavorable_latency_ms(figures: Figures, spread: float | None) -> float:
    """Return the time in ms that a single batch may take; infinite if its scatter is unknown.

    A measured cell with limits states it. A predicted or scaled median may be as long as its limit at the level
    INTERVAL_LEVEL, and its batches scatter besides. Both add in quadrature, on the log scale. `spread` is that of
    `batch_spread`.
    """
    latency = figures.latency_ms
    if figures.provenance == "measured" and latency.high is not None:
        return latency.high
    if spread is None and latency.high is None:
        return math.inf
    beyond = math.log(_high_at_common_level(figures) / latency.p50)
    return latency.p50 * math.exp(math.hypot(beyond, spread or 0.0))


def _high_at_common_level(figures: Figures) -> float:
    """Return what a latency's upper limit would be at INTERVAL_LEVEL, if errors are normal on a log scale.

    So a limit that claims little does not outrank one that claims much. One of unknown level is taken as it is, and the
    median where there is no limit. The limit of a slow host is taken as it is, too, because it is assumed and the same
    for all devices. Stretched from the median, it would be longer on a faster device.
    """
    latency = figures.latency_ms
    high = latency.p50 if latency.high is None else latency.high
    if latency.level is None or not 0 < latency.level < 1 or figures.host_limited:
        return high
    return float(latency.p50 * (high / latency.p50) ** _stretch(latency.level))


@lru_cache(maxsize=1024)
def _stretch(level: float) -> float:
    """Return the factor from a normal error's limit at a level to that at INTERVAL_LEVEL.

    Cached, because answers repeat few levels, and a quantile takes as long as the rest of a comparison.
    """
    return _NORMAL.inv_cdf((1 + INTERVAL_LEVEL) / 2) / _NORMAL.inv_cdf((1 + level) / 2)


def ranking(objective: Objective, spread: float | None) -> Callable[[Figures], Merit]:
    """Return the function that gives figures their merit under an objective; unknown figures are infinite.

    `spread` is that of `batch_spread`. Throughput counts as ms per item. Where `spread` is unknown it counts for no
    figure: medians without limits are then compared with what others may take (`assumed_spread` warns of it). Ties,
    such as those of unknown prices, are broken by latency.
    """

    def merit(figures: Figures) -> Merit:
        p50 = figures.latency_ms.p50
        slower = unfavorable_latency_ms(figures, 0.0 if spread is None else spread) / p50
        return _without_noise(_objective_value(objective, figures, slower)), _without_noise(slower * p50), p50

    return merit


def _without_noise(value: float) -> float:
    """Return a value without its last digits, in which equal limits may differ by how they were computed."""
    return float(f"{value:.12g}")


def _objective_value(objective: Objective, figures: Figures, slower: float) -> float:
    """Return the unfavorable figure of an objective; a batch may take `slower` times its median latency."""
    if objective == "latency":
        return slower * figures.latency_ms.p50
    if objective == "throughput":
        return 1e3 * slower / figures.items_per_s.p50
    if objective == "cost":
        return math.inf if figures.cost is None else slower * figures.cost.usd_per_million_items.p50
    if objective == "memory":
        return _upper_limit(figures.memory_peak_mib)
    if figures.energy is None:
        return math.inf
    energy = figures.energy.j_per_item
    return _upper_limit(energy) if figures.energy.how == "measured" else slower * energy.p50


def _upper_limit(interval: Interval | None) -> float:
    """Return the upper limit of a figure; p50 if it has no limits, infinity if it is unknown."""
    if interval is None:
        return math.inf
    return interval.p50 if interval.high is None else interval.high


def gain_elsewhere(objective: Objective, ranked: Sequence[Recommendation]) -> str | None:
    """Return a sentence on the gain of the best hardware elsewhere over the best of one's own; None without both."""
    own = next((r for r in ranked if r.where != "elsewhere"), None)
    other = next((r for r in ranked if r.where == "elsewhere"), None)
    if own is None or other is None:
        return None
    if own.ranked_by is None or other.ranked_by is None:
        return None
    times = own.ranked_by / other.ranked_by
    name = f"{place_label(other, shared_devices(ranked))}, {other.provenance}"
    if times <= 1:
        return f"The best elsewhere, {name}, is {rounded(1 / times)} times worse in {objective} than the best of yours."
    better = f"is {rounded(times)} times better in {objective} than the best of yours, by upper limits"
    return f"The best elsewhere, {name}, {better}."


def level_mismatch(objective: Objective, ranked: Sequence[Figures]) -> str | None:
    """Return a note where limits hold at different levels: those of memory are compared so, others at one level."""
    limits = [figures.memory_peak_mib if objective == "memory" else figures.latency_ms for figures in ranked]
    levels = [limit.level for limit in limits if limit is not None and limit.level is not None]
    if not levels or max(levels) - min(levels) <= _MAX_LEVEL_SPREAD:
        return None
    stated = f"Limits hold at {min(levels):.0%} for some and at {max(levels):.0%} for others"
    if objective == "memory":
        return f"{stated}, and are compared so."
    return f"{stated}. Ranks compare what each would be at {INTERVAL_LEVEL:.0%}."


def assumed_spread(ranked: Sequence[Figures], spread: float | None) -> str | None:
    """Return a warning where the rank of a measured figure rests on `spread`, since it states no limits."""
    if all(f.provenance != "measured" or f.latency_ms.high is not None for f in ranked):
        return None
    if spread is None:
        return (
            "Measured figures without limits are ranked by their medians: how far single batches scatter is known "
            "once this host measured something (`accel bench run`)."
        )
    return (
        f"A figure without limits is ranked as if a batch took up to {rounded(math.exp(spread))} times its median, "
        f"as in {INTERVAL_LEVEL:.0%} of the cells that your own hosts measured without noise."
    )


def missing_figure(objective: Objective, ranked_by: float) -> str | None:
    """Return why figures come last under an objective; None where `ranked_by`, the objective's value, is known."""
    if math.isfinite(ranked_by) or objective not in _MISSING:
        return None
    return f"{_MISSING[objective]} is known, which ranks last."


def violations(constraints: Constraints, figures: Figures, spec: DeviceSpec, spread: float | None) -> str | None:
    """Return all violated limits in words, None if there is none. An unknown figure violates its limit.

    `spread` is that of `batch_spread`.
    """
    latency, memory = figures.latency_ms, figures.memory_peak_mib
    slowest_ms = unfavorable_latency_ms(figures, spread)
    is_beyond = latency.high is not None and slowest_ms > latency.high
    found = [
        _figure_violation(
            "latency",
            "ms",
            constraints.max_latency_ms,
            latency.p50,
            slowest_ms,
            how=_beyond_limit(figures, spread) if is_beyond else None,
        ),
        _figure_violation(
            "peak memory",
            "MiB",
            constraints.max_memory_mib,
            None if memory is None else memory.p50,
            _upper_limit(memory),
        ),
        _spec_violation("price", "USD per hour", constraints.max_usd_per_hour, spec.usd_per_hour),
        _spec_violation("thermal design power", "W", constraints.max_watts, spec.tdp_w),
    ]
    return "; ".join(filter(None, found)) or None


def _beyond_limit(figures: Figures, spread: float | None) -> str:
    """Return why a batch may take longer than the upper limit of its median."""
    high_ms = _high_at_common_level(figures)
    stretched = f" at {INTERVAL_LEVEL:.0%}" if high_ms != figures.latency_ms.high else ""
    median = f"its median up to {rounded(high_ms)}{stretched}"
    if not spread:
        return median
    return f"{median}, and batches take up to {rounded(math.exp(spread))} times their median on your own hosts"


def _figure_violation(
    name: str, unit: str, limit: float | None, p50: float | None, most: float, how: str | None = None
) -> str | None:
    if limit is None or most <= limit:
        return None
    if p50 is None:
        return f"its {name} is not known, and at most {limit:g} {unit} was asked"
    if p50 > limit:
        return f"{name} {rounded(p50, 4)} {unit} (p50), over the {limit:g} asked"
    if math.isinf(most):
        return f"how far its {name} of {rounded(p50, 4)} {unit} scatters is not known, and at most {limit:g} was asked"
    return f"{name} may reach {rounded(most, 4)} {unit}, over the {limit:g} asked ({how or f'p50 {rounded(p50, 4)}'})"


def _spec_violation(name: str, unit: str, limit: float | None, value: float | None) -> str | None:
    if limit is None or (value is not None and value <= limit):
        return None
    if value is None:
        return f"its {name} is not known, and at most {limit:g} {unit} was asked"
    return f"{name} {value:g} {unit}, over the {limit:g} asked"
