"""Figures that cannot be: a batch done in a fraction of the time that its device needs at full speed.

Published tables hold them: a model of 2,048 positions that was asked for 2,048 more stops after one token, and its row
says that it wrote them all in 0.05 s.
"""

from __future__ import annotations

import math

from predictor.data.samples import Sample, weight_bytes

IMPOSSIBLE = 4.0
"""Times faster than computing at the published peak, or than reading the weights at the published bandwidth: who does
not state a precision may have used weights of 4 bits, a quarter of what is then assumed."""


def speed_limit_ratio(case: Sample, latency_ms: float) -> float:
    """Than its device at full speed; 0 where no rate of it is known. Peaks are published of 16 bits and more."""
    compute_s = case.work.flops / case.peak_flops if weight_bytes(case.precision, case.mode) >= 2 else math.nan
    needs = [seconds for seconds in (compute_s, case.work.weight_bytes / case.bandwidth) if not math.isnan(seconds)]
    return 1e3 * max(needs, default=0.0) / latency_ms
