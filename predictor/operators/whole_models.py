"""Corrections from the sum of a model's operator times to its latency, fitted to models that were measured whole.

Operators take other times inside a model than alone, for caches are warm and kernels overlap. Two factors per device
correct that: one for compute operators (matrix products, convolutions, attention) and one for operators that only move
numbers (`MOVING`). A device without measured models gets the factors of devices with its chip, else its vendor's.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.optimize import least_squares

from accel_platform.workloads.operators import OperatorKind
from predictor.data.roofline import HOST_MS_PER_OPERATOR, SLOW_HOST
from predictor.operators.device_rates import DeviceRates, have_same_chip
from predictor.operators.features import Array
from predictor.operators.kernels import device_key, devices_in
from predictor.operators.tables import OperatorTable, kernel_parts
from predictor.operators.utilization import Utilization

HOST_RANGE = (0.4, SLOW_HOST)
"""Range of the time in which hosts issue an operator, as factors of HOST_MS_PER_OPERATOR; assumed.

For comparison, a Xeon without a GPU runs an empty operator in 0.27 of that time, 7.3 µs (`benchmarks/operators.py`).
"""
_RIDGE = 1.0
"""Weight of a device's prior, in measured models. No error changes by a percentage point from 0.3 to 3."""
_VENDOR_SHRINKAGE = 4.0
"""Weight of "no correction", in devices, in the mean over a vendor's devices that an unmeasured device gets."""


@dataclass(frozen=True)
class OperatorTotals:
    """Measured latency of a model's pass or training step, beside the predicted sums of its operators' times."""

    model: str
    device: DeviceRates
    bits: int
    latency_ms: float
    compute_ms: float
    """Sum over matrix products, convolutions and attention."""
    moving_ms: float
    """Sum over all other operators (`MOVING`)."""
    training: bool = False
    """True for a training step, False for a forward pass."""


@dataclass(frozen=True)
class WholeModelCorrection:
    """Natural logs of factors on the operator sums: pairs of the one for compute and the one for moving operators."""

    devices: dict[str, tuple[float, float]]
    """Factors of measured devices, by device and bits (`NVIDIA T4 16`)."""
    vendors: dict[str, tuple[float, float]]
    """Factors for devices of a vendor with other chips, by vendor and bits (`NVIDIA 16`)."""
    training: float = 0.0
    """Log of a further factor on training steps, which run operators, such as dropout, that a traced pass lacks."""

    def log_factors(self, device: DeviceRates, bits: int, *, training: bool = False) -> tuple[float, float]:
        """Return the logs of both factors on a device: its own, else those of its chip, else its vendor's, else 0."""
        compute, moving = (
            self.devices.get(device_key(device.name, bits))
            or self._of_chip(device, bits)
            or self.vendors.get(device_key(device.vendor, bits))
            or (0.0, 0.0)
        )
        step = self.training if training else 0.0
        return compute + step, moving + step

    def _of_chip(self, device: DeviceRates, bits: int) -> tuple[float, float] | None:
        """Return the mean logs of both factors over the measured devices with the device's chip; None without any."""
        found = [factors for other, factors in self._measured.get(bits, ()) if have_same_chip(other, device)]
        if not found:
            return None
        compute, moving = (sum(logs) / len(found) for logs in zip(*found, strict=True))
        return compute, moving

    @cached_property
    def _measured(self) -> dict[int, list[tuple[DeviceRates, tuple[float, float]]]]:
        """Measured devices of the spec sheet with their factors, by bits."""
        measured: dict[int, list[tuple[DeviceRates, tuple[float, float]]]] = defaultdict(list)
        for rates, bits, factors in devices_in(self.devices):
            measured[bits].append((rates, factors))
        return measured

    def log_error(self, totals: OperatorTotals) -> float:
        """Return the natural log of the predicted over the measured latency."""
        compute, moving = self.log_factors(totals.device, totals.bits, training=totals.training)
        predicted_ms = totals.compute_ms * math.exp(compute) + totals.moving_ms * math.exp(moving)
        return math.log(predicted_ms / totals.latency_ms)

    def has_device(self, device: DeviceRates, bits: int) -> bool:
        """Return whether a whole model was measured on the device at this width of numbers."""
        return device_key(device.name, bits) in self.devices


def fit_correction(measured: Sequence[OperatorTotals]) -> WholeModelCorrection:
    """Fit the correction to measured models; without any it corrects nothing.

    First each device is fitted alone. The mean over a vendor's devices, shrunk towards 0, is the vendor's correction,
    and the prior of a second fit of each device. The factor of training steps is fitted last.
    """
    passes: dict[tuple[str, str], list[OperatorTotals]] = defaultdict(list)
    for totals in measured:
        if not totals.training:
            device = totals.device
            passes[device_key(device.name, totals.bits), device_key(device.vendor, totals.bits)].append(totals)
    fitted_alone: dict[str, list[Array]] = defaultdict(list)
    for (_, vendor), of_device in passes.items():
        fitted_alone[vendor].append(_fit_log_factors(of_device, np.zeros(2)))
    vendors = {key: np.sum(each, axis=0) / (len(each) + _VENDOR_SHRINKAGE) for key, each in fitted_alone.items()}
    devices = {device: _fit_log_factors(of_device, vendors[vendor]) for (device, vendor), of_device in passes.items()}
    correction = WholeModelCorrection(
        devices={key: (float(compute), float(moving)) for key, (compute, moving) in devices.items()},
        vendors={key: (float(compute), float(moving)) for key, (compute, moving) in vendors.items()},
    )
    steps = [totals for totals in measured if totals.training]
    return replace(correction, training=_fit_log_training_factor(correction, steps))


def _fit_log_training_factor(passes: WholeModelCorrection, steps: Sequence[OperatorTotals]) -> float:
    """Return the median log of measured training steps over their corrected sums: the median of devices' medians."""
    devices: dict[str, list[float]] = defaultdict(list)
    for step in steps:
        devices[step.device.name].append(-passes.log_error(step))
    return statistics.median(map(statistics.median, devices.values())) if devices else 0.0


def _fit_log_factors(models: Sequence[OperatorTotals], prior: Array) -> Array:
    """Return the logs of both factors that fit one device's models best: least squares of logs, shrunk to a prior."""
    compute = np.array([model.compute_ms for model in models])
    moving = np.array([model.moving_ms for model in models])
    latency = np.array([model.latency_ms for model in models])

    def residuals(logs: Array) -> Array:
        corrected = compute * np.exp(logs[0]) + moving * np.exp(logs[1])
        return np.concatenate([np.log(corrected / latency), np.sqrt(_RIDGE) * (logs - prior)])

    factors: Array = least_squares(residuals, prior).x
    return factors


def operator_sums_ms(
    utilization: Utilization, tables: Sequence[OperatorTable], devices: Sequence[DeviceRates], bits: int
) -> list[dict[OperatorKind, float]]:
    """Return for each device the summed time of a model's operators by kind, the longest first."""
    parts = [part for table in tables for part in kernel_parts(table, bits)]
    times_ms = utilization.times_ms([(part.kernel_kind, part.columns.T) for part in parts], devices, bits)
    # Multiplied and summed instead of a matrix product, whose last digit depends on the arrays' places in memory.
    part_sums = np.array([(times * part.counts).sum(axis=-1) for times, part in zip(times_ms, parts, strict=True)]).T
    by_device = []
    for sums_ms in part_sums.reshape(len(devices), len(parts)).tolist():
        by_kind = dict.fromkeys((part.kind for part in parts), 0.0)
        for part, part_ms in zip(parts, sums_ms, strict=True):
            by_kind[part.kind] += part_ms
        by_device.append(dict(sorted(by_kind.items(), key=lambda item: -item[1])))
    return by_device


def host_ms(tables: Sequence[OperatorTable]) -> float:
    """Return the time in ms that a typical host takes to issue a model's operators one by one."""
    return HOST_MS_PER_OPERATOR * sum(table.count for table in tables)
