"""Smallest changes that comparisons report by default, in percent of a median.

They have a module of their own, because commands show them in `--help` and must not import NumPy for that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accel_platform.events.types import Measure

MIN_CHANGE_PERCENT = 3.0
"""Smallest change in checks, trends, recorded shifts and cell comparisons."""
MEMORY_MEASURES: tuple[Measure, ...] = ("memory", "device_memory")
"""Measures in MiB; the others are in ms, or have no unit."""
MIN_MEMORY_CHANGE_PERCENT = 10.0
"""Smallest change of a memory peak, also where a smaller one of the latency is asked for.

The highest and the lowest of 16 equal processes were seen to lie 6 % apart.
"""
MIN_MEMORY_CHANGE_MIB = 8.0
"""Smallest change of a memory peak in MiB, which matters for peaks below 80 MiB."""
MIN_MEDIAN_CHANGE_PERCENT = 1.0
"""Smallest move of a cell's median between two snapshots' tables; a median moves a little with every result."""
MIN_SERIES_CHANGE_PERCENT = 1.0
"""Smallest shift in a plain series of values, such as that of a CSV file."""


def least_change_percent(measure: Measure, wanted: float) -> float:
    """Return the smallest change of a measure to report, where changes from `wanted` per cent on are asked for."""
    return max(wanted, MIN_MEMORY_CHANGE_PERCENT) if measure in MEMORY_MEASURES else wanted
