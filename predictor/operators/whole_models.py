"""Latency of whole models: the sum of their operators, corrected by what measured models take, with an interval."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.optimize import least_squares

from accel_platform.workloads.operators import OperatorKind
from predictor.data.roofline import HOST_MS_PER_OPERATOR, SLOW_HOST
from predictor.operators.device_rates import DeviceRates
from predictor.operators.features import Array
from predictor.operators.tables import OperatorTable, priced_parts
from predictor.operators.utilization import Utilization

HOST_RANGE = (0.4, SLOW_HOST)
"""Factors between which other processors move the time to issue an operator: assumed. Without a GPU to launch on a Xeon
takes 0.27 of it, 7.3 µs by `benchmarks/operators.py`."""
_RIDGE = 1.0
"""Weight of a device's prior against each of its measured models. From 0.3 to 3 no error changes by a percent point."""
_VENDOR_SHRINKAGE = 4.0
"""Devices without any correction that a maker's devices are averaged with, for a device nobody measured."""


@dataclass(frozen=True)
class MeasuredModel:
    """A pass or a training step of a whole model that was measured, and what its operators sum up to there."""

    model: str
    device: str
    vendor: str
    bits: int
    latency_ms: float
    products_ms: float
    moving_ms: float
    training: bool = False


@dataclass(frozen=True)
class Correction:
    """What products, and operators that move numbers, take in whole models over their sums, in natural logs."""

    devices: dict[str, tuple[float, float]]
    """Both factors by device and bits."""
    vendors: dict[str, tuple[float, float]]
    """Both factors for a maker's other devices, by vendor and bits."""
    training: float = 0.0
    """What training steps take over the corrected sums of their operators: some, such as dropout, are in no pass."""

    def log_factors(self, device: str, vendor: str, bits: int, *, training: bool = False) -> tuple[float, float]:
        """Return the logs of the factors on a device: its own, else its maker's, else none."""
        products, moving = self.devices.get(f"{device} {bits}") or self.vendors.get(f"{vendor} {bits}") or (0.0, 0.0)
        step = self.training if training else 0.0
        return products + step, moving + step

    def log_error(self, measured: MeasuredModel) -> float:
        """Return the natural log of the predicted over the measured latency."""
        of = measured
        products, moving = self.log_factors(of.device, of.vendor, of.bits, training=of.training)
        return math.log((of.products_ms * math.exp(products) + of.moving_ms * math.exp(moving)) / of.latency_ms)

    def knows(self, device: DeviceRates, bits: int) -> bool:
        """Return whether a model was measured on the device in this width."""
        return f"{device.name} {bits}" in self.devices


def fit_correction(measured: Sequence[MeasuredModel]) -> Correction:
    """Return what these models teach; nothing where there are none. Training steps teach what they take over passes."""
    models: dict[tuple[str, str, int], list[MeasuredModel]] = defaultdict(list)
    for model in measured:
        if not model.training:
            models[model.device, model.vendor, model.bits].append(model)
    alone: dict[str, list[Array]] = defaultdict(list)
    for (_, vendor, bits), found in models.items():
        alone[f"{vendor} {bits}"].append(_log_factors(found, np.zeros(2)))
    priors = {key: np.sum(each, axis=0) / (len(each) + _VENDOR_SHRINKAGE) for key, each in alone.items()}
    own = {
        f"{device} {bits}": _log_factors(found, priors[f"{vendor} {bits}"])
        for (device, vendor, bits), found in models.items()
    }
    passes = Correction(
        devices={key: (float(both[0]), float(both[1])) for key, both in own.items()},
        vendors={key: (float(both[0]), float(both[1])) for key, both in priors.items()},
    )
    return replace(passes, training=_log_training(passes, [model for model in measured if model.training]))


def _log_training(passes: Correction, steps: Sequence[MeasuredModel]) -> float:
    """Return the log of what training steps take over their corrected sums: the median of the devices' medians."""
    devices: dict[str, list[float]] = defaultdict(list)
    for step in steps:
        devices[step.device].append(-passes.log_error(step))
    return statistics.median(map(statistics.median, devices.values())) if devices else 0.0


def _log_factors(models: Sequence[MeasuredModel], prior: Array) -> Array:
    """Return the logs of both factors that fit the models of one device best, by ridge regression towards a prior."""
    products = np.array([model.products_ms for model in models])
    moving = np.array([model.moving_ms for model in models])
    latency = np.array([model.latency_ms for model in models])

    def residuals(logs: Array) -> Array:
        corrected = products * np.exp(logs[0]) + moving * np.exp(logs[1])
        return np.concatenate([np.log(corrected / latency), np.sqrt(_RIDGE) * (logs - prior)])

    found: Array = least_squares(residuals, prior).x
    return found


def operator_sums_ms(
    utilization: Utilization, tables: Sequence[OperatorTable], devices: Sequence[DeviceRates], bits: int
) -> list[dict[OperatorKind, float]]:
    """Return the time of a model's operators by kind on each device, the longest first."""
    parts = [part for table in tables for part in priced_parts(table, bits)]
    times = utilization.times_ms([(part.priced_as, part.columns.T) for part in parts], devices, bits)
    # By device and part.
    # No product of matrices: its last digit depends on where in memory the numbers lie.
    sums = np.array([(table * part.counts).sum(axis=-1) for table, part in zip(times, parts, strict=True)]).T
    found = []
    for of_device in sums.reshape(len(devices), len(parts)).tolist():
        milliseconds = dict.fromkeys((part.kind for part in parts), 0.0)
        for part, of_part in zip(parts, of_device, strict=True):
            milliseconds[part.kind] += of_part
        found.append(dict(sorted(milliseconds.items(), key=lambda item: -item[1])))
    return found


def host_ms(tables: Sequence[OperatorTable]) -> float:
    """Return the time in which the host issues a model's operators one by one."""
    return HOST_MS_PER_OPERATOR * sum(table.count for table in tables)
