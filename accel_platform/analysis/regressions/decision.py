"""Decision on one measure of one cell, and the numbers of processes that it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal
from uuid import UUID

from accel_platform.events.types import Measure, MeasuredSeries

State = Literal["regressed", "suspicious", "improved", "insufficient_data", "ok"]

MIN_PROCESSES = 2
"""Fewest candidate processes for an alert, because memory layout, neighbors or clock may slow a single one."""
MIN_EARLIER_PROCESSES = 5
"""Fewest earlier processes that give a series' noise, or tell how often it fails."""
MAX_PROCESSES_NEEDED = 20
"""Processes a side that anybody would measure to settle a cell."""


@dataclass(frozen=True)
class Decision:
    """Decision on one measure of one cell."""

    series: MeasuredSeries
    state: State
    reason: str | None = None
    measure: Measure = "latency"
    before_ms: float | None = None
    """Median latency of a batch. `failures` has that of the processes which work; memory has none."""
    after_ms: float | None = None
    before_mib: float | None = None
    """Median peak memory; None for other measures than memory."""
    after_mib: float | None = None
    change_percent: float | None = None
    p_value: float | None = None
    noise_percent: float | None = None
    """Change that noise alone seldom exceeds in this series with so many processes a side."""
    processes_before: int = 0
    processes_after: int = 0
    processes_needed: int | None = None
    """Processes a side that tell a change of this size from noise in 19 of 20 cases."""
    first_result: UUID | None = None
    """Id of the candidate's first result."""
    evidence: tuple[UUID, ...] = ()
    """Ids of the candidate's results that decided."""
    disturbed: bool = False
    """True if other processes disturbed one side: its figures may be off by any factor, so they decide nothing."""
    cut_short: bool = False
    """True if a side was to measure it and did not: its run was stopped, or its hardware was not available."""
    left_out: int = 0
    """Processes of both sides that were measured and do not count: they failed or are in doubt."""
    accepted: bool = False
    """True if a person accepted the candidate's own level, and it is `ok` for that."""
    accepted_baseline: bool = False
    """True if a level that a person accepted takes the baseline's place."""
    commits_before: tuple[str, ...] = ()
    commits_after: tuple[str, ...] = ()
    regression_id: str | None = None
    """Id of the shift if the cell moved: of the open one that it finds again, else of a new one."""

    @property
    def moved(self) -> bool:
        """True if the cell regressed or improved with certainty."""
        return self.state in ("regressed", "improved")

    @property
    def alerts(self) -> bool:
        """True if the cell moved, certainly or not, or is too noisy to tell: another measurement would settle it."""
        return self.moved or self.disturbed or self.processes_needed is not None
