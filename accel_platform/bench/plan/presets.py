"""Named effort presets: sampling rules and timeouts of a run."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from accel_platform.analysis.stats.medians import MIN_PERCENTILE_SAMPLES
from accel_platform.bench.measure.sampling import Sampling
from accel_platform.errors import InvalidInput


@dataclass(frozen=True)
class Effort:
    """Sampling rules and timeouts: a process that stays silent longer is killed."""

    name: str
    sampling: Sampling
    timeout_s: float = 300.0
    """Timeout of loading, and of each cell."""
    prepare_timeout_s: float = 1200.0
    """Timeout of exporting a graph and computing the reference."""


EFFORTS = {
    effort.name: effort
    for effort in (
        Effort("quick", Sampling(min_time_s=0.3, max_time_s=1.5, limit_s=15.0, warmup_max_s=1.0)),
        Effort("standard", Sampling()),
        Effort(
            "thorough",
            Sampling(
                min_time_s=10.0,
                min_count=MIN_PERCENTILE_SAMPLES[99],
                target_error=0.005,
                max_time_s=60.0,
                limit_s=600.0,
            ),
            timeout_s=1800.0,
        ),
    )
}


def effort_preset(name: str) -> Effort:
    """Return the preset of this name. Raises InvalidInput with the closest names."""
    if name not in EFFORTS:
        close = difflib.get_close_matches(name, EFFORTS, n=1) or list(EFFORTS)
        raise InvalidInput(f"No effort is called {name!r}. Try {', '.join(close)}.")
    return EFFORTS[name]
