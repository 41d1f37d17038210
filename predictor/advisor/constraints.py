"""What an asker's limits leave out. Judged is the unfavourable limit of a figure: what can be relied on."""

from __future__ import annotations

import math

from accel_platform.hardware.catalog import DeviceSpec
from predictor.advisor.objectives import pessimistic_bound
from predictor.schemas.requests import Constraints
from predictor.schemas.responses import Figures, Interval


def violations(constraints: Constraints, figures: Figures, spec: DeviceSpec) -> str | None:
    """Every limit that is not kept, in words; None where all are. What is not known keeps no limit."""
    found = [
        _figure("latency", "ms", constraints.max_latency_ms, figures.latency_ms),
        _figure("peak memory", "MiB", constraints.max_memory_mib, figures.memory_peak_mib),
        _fact("price", "USD per hour", constraints.max_usd_per_hour, spec.usd_per_hour),
        _fact("thermal design power", "W", constraints.max_watts, spec.tdp_w),
    ]
    return "; ".join(filter(None, found)) or None


def _figure(name: str, unit: str, most: float | None, interval: Interval | None) -> str | None:
    worst = pessimistic_bound(interval)
    if most is None or worst <= most:
        return None
    if math.isinf(worst) or interval is None:
        return f"its {name} is not known, and at most {most:g} {unit} was asked"
    if interval.p50 > most:
        return f"{name} {interval.p50:.4g} {unit}, over the {most:g} asked"
    return f"{name} may reach {worst:.4g} {unit}, over the {most:g} asked (p50 {interval.p50:.4g})"


def _fact(name: str, unit: str, most: float | None, value: float | None) -> str | None:
    if most is None or (value is not None and value <= most):
        return None
    if value is None:
        return f"its {name} is not known, and at most {most:g} {unit} was asked"
    return f"{name} {value:g} {unit}, over the {most:g} asked"
