"""How a run goes about its cells: what of the work is done, and what is tried. Nothing is done here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Work = Literal["all", "verify", "measure"]
"""Measure and verify, only verify (nothing is timed), or only measure (the results are unverified)."""


@dataclass(frozen=True)
class RunOptions:
    """The ways of a run; the defaults are the usual ones."""

    work: Work = "all"
    fix: bool = True
    """Whether a failed cell is tried again by what `fallbacks.py` knows for its class of failure."""
    parallel: bool = False
    """Whether devices that share no silicon are measured side by side."""
    pooled: bool = True
    """Whether cells of one model, hardware and precision share a process, which loads the model once."""
    operators: bool = False
    """Whether each measured cell is run once more, afterwards, with the runtime's operator profiler."""
