"""Conformal calibration over groups: how far a learner errs on families and devices it has not seen. Nothing is fitted.

Hierarchical conformal prediction (Lee, Barber and Willett, 2023): groups are exchangeable, each counts the same however
many cells it has, and the group to come counts as one more, with an error that could be anything. Hence at most
G / (G + 1) can be promised after seeing G groups; the level is lowered to that and stated, never claimed beyond it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict

from predictor.answers import LEVEL

Array = npt.NDArray[np.float64]
FEWEST_GROUPS = 3
FEWEST_DEVICES = 2


class Calibration(BaseModel):
    """Of new groups' figures, `level` lie within `half_width` of the prediction, in logs."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    half_width: float
    level: float
    groups: int
    rows: int


def calibrate(errors: Array, groups: Sequence[Hashable], *, level: float = LEVEL) -> Calibration:
    """From absolute errors, in logs, of predictions for groups that were held out; families are many and small.

    Raises ValueError with fewer than FEWEST_GROUPS groups: too few to promise anything.
    """
    members = Counter(groups)
    count = len(members)
    if count < FEWEST_GROUPS:
        raise ValueError(f"{count} groups are too few to calibrate: at least {FEWEST_GROUPS} are needed.")
    level = min(level, count / (count + 1))
    weights = np.array([1.0 / ((count + 1) * members[group]) for group in groups])
    order = np.argsort(errors, kind="stable")
    reached = np.cumsum(weights[order])
    # A rounding error in the sum must not ask for one error more than there is.
    at = min(int(np.searchsorted(reached, level - 1e-9)), len(order) - 1)
    return Calibration(half_width=float(errors[order][at]), level=level, groups=count, rows=len(errors))


def calibrate_worst(errors: Array, groups: Sequence[Hashable], *, level: float = LEVEL) -> Calibration:
    """The largest of the groups' own quantiles: devices are few, and the figures of one say little of the next.

    The next of D + 1 devices has the largest with probability 1 / (D + 1), so level · D / (D + 1) is promised. Raises
    ValueError with fewer than FEWEST_DEVICES groups.
    """
    count = len(set(groups))
    if count < FEWEST_DEVICES:
        raise ValueError(f"{count} devices are too few to calibrate: at least {FEWEST_DEVICES} are needed.")
    worst = worst_quantile(errors, np.array([str(group) for group in groups]), level)
    return Calibration(half_width=worst, level=level * count / (count + 1), groups=count, rows=len(errors))


def worst_quantile(errors: Array, groups: npt.NDArray[Any], level: float = LEVEL) -> float:
    """The largest of the groups' own quantiles; of at least one error."""
    return max(quantile(errors[groups == group], level) for group in np.unique(groups))


def quantile(errors: Array, level: float = LEVEL) -> float:
    """The smallest error that `level` of n + 1 exchangeable ones stay within."""
    rank = min(int(np.ceil(level * (len(errors) + 1))), len(errors))
    return float(np.sort(errors)[rank - 1])
