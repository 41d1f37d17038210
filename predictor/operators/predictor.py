"""Operator predictor: the latency of a model on a GPU of the spec sheet, with its interval.

It ships fitted (`fitted.json.xz`), because fitting takes minutes; `fit` makes that file.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

from accel_platform.workloads.operators import MOVING, OperatorKind
from predictor.calibration.conformal import Calibration
from predictor.data.fast_path import require_slow_path
from predictor.data.packed_json import read_packed, write_packed
from predictor.operators.device_rates import DeviceRates
from predictor.operators.tables import OperatorTable
from predictor.operators.utilization import ClassUtilization, Utilization
from predictor.operators.whole_models import HOST_RANGE, WholeModelCorrection, host_ms, operator_sums_ms
from predictor.schemas.responses import Interval

_MAX_CACHED = 1024
"""Most devices, widths and modes whose corrections are cached."""
SHIPPED = Path(__file__).with_name("fitted.json.xz")


class OperatorShare(NamedTuple):
    """Time of all operators of one kind in a model, on a device."""

    kind: OperatorKind
    milliseconds: float
    operators: int
    """Number of operators of this kind in the model."""


class OperatorPrediction(NamedTuple):
    """Latency of one pass of a whole model, and where the time goes."""

    latency_ms: Interval
    shares: tuple[OperatorShare, ...]
    """Time by kind of operator, with the correction for whole models, the longest first."""
    host_bound: bool
    """True if the host takes longer to issue the operators than the device to compute them."""
    host_sets_upper_limit: bool
    """True if the interval's upper limit is the time of a slow host, and so the same on faster devices."""
    device_high_ms: float
    """Upper limit of the device's own time. A measured latency above it is its host's."""
    measured_device: bool
    """True if whole models were measured on the device at this width of numbers."""


class _DeviceCorrection(NamedTuple):
    """Correction and calibration of predictions on one device."""

    compute_factor: float
    """Factor on the time of matrix products, convolutions and attention."""
    moving_factor: float
    """Factor on the time of the other operators (`MOVING`)."""
    measured: bool
    """True if whole models were measured on the device at this width of numbers."""
    width: float
    """Factor from the device's time to its upper limit."""
    level: float
    """Share of figures in the interval."""


@dataclass(frozen=True)
class OperatorPredictor:
    """Fitted utilization and correction, with the calibrated errors of the two together.

    Calibrations are of absolute log errors, grouped by device.
    """

    utilization: Utilization
    correction: WholeModelCorrection
    measured_device: Calibration
    """Errors on an unmeasured model, on devices with other measured models (leave one model out)."""
    new_device: Calibration
    """Errors on an unmeasured device (leave one device out)."""
    training: Calibration
    """Errors on an unmeasured device over passes and training steps together.

    Steps were measured on three devices only, and the errors of so few allow only a low level.
    """

    def predict(
        self, tables: Sequence[OperatorTable], devices: Sequence[DeviceRates], bits: int, *, training: bool = False
    ) -> list[OperatorPrediction]:
        """Return the latency of a model on each device.

        Parameters
        ----------
        tables
            The model's operators at the batch size: of a pass, or with `training` those of `training_step`.
        bits
            Width of weights and activations: 32 or 16.
        """
        issue_ms, counts = host_ms(tables), {table.kind: table.count for table in tables}
        predictions = []
        for device, sums_ms in zip(devices, operator_sums_ms(self.utilization, tables, devices, bits), strict=True):
            correction = self._correction_of(device, bits, training)
            shares = [
                OperatorShare(
                    kind,
                    sum_ms * (correction.moving_factor if kind in MOVING else correction.compute_factor),
                    counts[kind],
                )
                for kind, sum_ms in sums_ms.items()
            ]
            shares.sort(key=lambda share: -share.milliseconds)
            predictions.append(_with_interval(tuple(shares), correction, issue_ms))
        return predictions

    @cached_property
    def _correction_of(self) -> Callable[[DeviceRates, int, bool], _DeviceCorrection]:
        """`_find_correction`, cached because it is the same for every model."""
        return lru_cache(maxsize=_MAX_CACHED)(self._find_correction)

    def _find_correction(self, device: DeviceRates, bits: int, training: bool) -> _DeviceCorrection:
        compute, moving = self.correction.log_factors(device, bits, training=training)
        known = self.correction.has_device(device, bits)
        calibration = self.training if training else self.measured_device if known else self.new_device
        return _DeviceCorrection(
            math.exp(compute), math.exp(moving), known, math.exp(calibration.half_width), calibration.level
        )


def _with_interval(
    shares: tuple[OperatorShare, ...], correction: _DeviceCorrection, issue_ms: float
) -> OperatorPrediction:
    """Return the prediction: the longer of the device's and the host's time, each with its own range."""
    device_ms, width = sum(share.milliseconds for share in shares), correction.width
    latency = Interval(
        p50=max(device_ms, issue_ms),
        low=max(device_ms / width, issue_ms * HOST_RANGE[0]),
        high=max(device_ms * width, issue_ms * HOST_RANGE[1]),
        level=correction.level,
    )
    return OperatorPrediction(
        latency,
        shares,
        host_bound=issue_ms > device_ms,
        host_sets_upper_limit=issue_ms * HOST_RANGE[1] > device_ms * width,
        device_high_ms=device_ms * width,
        measured_device=correction.measured,
    )


@cache
def shipped_predictor() -> OperatorPredictor:
    """Load the predictor that ships with the package. Raises SlowPathRequired on the fast path."""
    require_slow_path()
    return load(SHIPPED)


def save(predictor: OperatorPredictor, path: Path) -> None:
    """Write a predictor as compressed JSON; equal predictors give equal bytes."""
    content = {
        "classes": {
            kind: {"trees": fitted.trees, "effects": fitted.effects}
            for kind, fitted in predictor.utilization.classes.items()
        },
        "correction": asdict(predictor.correction),
        "measured_device": predictor.measured_device.model_dump(),
        "new_device": predictor.new_device.model_dump(),
        "training": predictor.training.model_dump(),
    }
    write_packed(content, path)


def load(path: Path) -> OperatorPredictor:
    """Read a predictor that `save` wrote."""
    content = read_packed(path)
    correction = content["correction"]
    for name in ("devices", "vendors"):
        correction[name] = {key: tuple(factors) for key, factors in correction[name].items()}
    return OperatorPredictor(
        utilization=Utilization.of(
            {kind: ClassUtilization(entry["trees"], entry["effects"]) for kind, entry in content["classes"].items()}
        ),
        correction=WholeModelCorrection(**correction),
        measured_device=Calibration(**content["measured_device"]),
        new_device=Calibration(**content["new_device"]),
        training=Calibration(**content["training"]),
    )
