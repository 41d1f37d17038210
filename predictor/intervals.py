"""Conformal calibration over groups: how far beyond its own quantiles a model errs on families it has not seen.

Hierarchical conformal prediction (Lee, Barber and Willett, 2023): groups are exchangeable, each counts the same however
many cells it has, and the group to come counts as one more, with an error that could be anything. Hence at most
G / (G + 1) can be promised after seeing G groups; the level is lowered to that and stated, never claimed beyond it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from predictor.answers import LEVEL

Matrix = npt.NDArray[np.float64]
FEWEST_GROUPS = 3


@dataclass(frozen=True)
class Calibration:
    """What to add, in logs, to both ends of the model's own interval so that `level` of new groups' cells fall in."""

    correction: float
    level: float
    groups: int
    rows: int

    def apply(self, logs: Matrix) -> Matrix:
        """Widen (or narrow) columns low, middle, high; the middle always stays inside."""
        low = np.minimum(logs[:, 0] - self.correction, logs[:, 1])
        high = np.maximum(logs[:, 2] + self.correction, logs[:, 1])
        return np.stack([low, logs[:, 1], high], axis=1)


def calibrate(logs: Matrix, truth: Matrix, groups: Sequence[Hashable], *, level: float = LEVEL) -> Calibration:
    """From out-of-fold predictions (columns low, middle, high) and the truth, both in logs.

    Raises ValueError with fewer than FEWEST_GROUPS groups: too few to promise anything.
    """
    members: dict[Hashable, int] = {}
    for group in groups:
        members[group] = members.get(group, 0) + 1
    count = len(members)
    if count < FEWEST_GROUPS:
        raise ValueError(f"{count} groups are too few to calibrate: at least {FEWEST_GROUPS} are needed.")
    level = min(level, count / (count + 1))
    errors = np.maximum(logs[:, 0] - truth, truth - logs[:, 2])
    weights = np.array([1.0 / ((count + 1) * members[group]) for group in groups])
    order = np.argsort(errors, kind="stable")
    reached = np.cumsum(weights[order])
    # A rounding error in the sum must not ask for one error more than there is.
    at = min(int(np.searchsorted(reached, level - 1e-9)), len(order) - 1)
    return Calibration(correction=float(errors[order][at]), level=level, groups=count, rows=len(truth))
