"""Order of devices by their rates: no device is predicted to be slower than one that is no better in any of them.

Each measured device has corrections of its own, learned from the versions of the engines that somebody ran there. So a
device came out slower than one with less of everything, because nobody had measured that one. Predictions are moved to
the nearest ones that are in order, the less the surer they are (isotonic regression).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from predictor.serving.loads import Deployment
from predictor.serving.work import Array

Pairs = npt.NDArray[np.bool_]


def rates_of(deployments: Sequence[Deployment]) -> Array:
    """Return FLOPs in the deployment's precision, bandwidth, memory and link rate of each device, a row for each."""
    devices = [(each.flops, each.device) for each in deployments]
    rows = [(flops, spec.bandwidth_gb_s, spec.memory_gib, spec.link_gb_s) for flops, spec in devices]
    return np.asarray(np.nan_to_num(np.array(rows, dtype=float).reshape(-1, 4)))


def no_better(one: Array, other: Array) -> Pairs:
    """Return whether the other has as much of all rates, and more of one; rates lie along the last axis."""
    return np.asarray(np.all(one <= other, axis=-1) & np.any(one < other, axis=-1))


def in_order(logs: Array, weights: Array, order: Pairs) -> Array:
    """Return the log times in order that are nearest to these, by weighted squares (isotonic regression).

    Parameters
    ----------
    logs
        Log times, a row per load and a column per device.
    weights
        Weights of the logs, in the same shape.
    order
        Whether the time of the second device of a pair is to be no longer than that of the first: an array by load,
        first and second device.
    """
    ordered = logs.copy()
    patterns, of_row = np.unique(order.reshape(len(order), -1), axis=0, return_inverse=True)
    for number, pattern in enumerate(patterns.reshape(-1, *order.shape[1:])):
        rows = np.flatnonzero(of_row.ravel() == number)
        ordered[rows] = _regress(logs[rows], weights[rows], pattern)
    return ordered


def _regress(logs: Array, weights: Array, order: Pairs) -> Array:
    """Return the isotonic regression of loads whose devices are in one order.

    Call a set of devices lower if it holds all that are no better than one of it; the complement is an upper set. The
    log of a device is the greatest over lower sets of the least over upper sets of the mean of what both hold, where
    both hold the device (Robertson, Wright and Dykstra, Order Restricted Statistical Inference, 1988, section 1.4).
    """
    count = logs.shape[1]
    members = (np.arange(2**count)[:, None] >> np.arange(count)) & 1 == 1
    lacking = np.any(order & members[:, None, :] & ~members[:, :, None], axis=(1, 2))
    lower, weighted = members[~lacking], logs * weights
    found = np.full(logs.shape, -np.inf)
    for of_lower in lower:
        least = np.full(logs.shape, np.inf)
        for not_of_upper in lower:
            both = of_lower & ~not_of_upper
            if both.any():
                mean = weighted[:, both].sum(axis=1) / weights[:, both].sum(axis=1)
                least[:, both] = np.minimum(least[:, both], mean[:, None])
        found[:, of_lower] = np.maximum(found[:, of_lower], least[:, of_lower])
    return found


def between(logs: Array, others: Array, worse: Pairs, better: Pairs) -> Array:
    """Return log times that are no shorter than those of better devices and no longer than those of worse ones.

    `others` holds the log times of the other devices, a row per load and a column per device, and `worse` and `better`
    which of them are. Better devices decide where both cannot be.
    """
    most = np.min(np.where(worse, others, np.inf), axis=1)
    return np.asarray(np.maximum(np.minimum(logs, most), np.max(np.where(better, others, -np.inf), axis=1)))
