"""The operator predictor: latency of any model on any GPU of the catalogue, from its operators.

It is fitted from the shipped kernel tables and measured models (`fit`), and ships fitted, because that takes a minute.
"""

from __future__ import annotations

import json
import lzma
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path

from accel_platform.workloads.operators import MOVING, OperatorKind
from predictor.calibration.conformal import Calibration
from predictor.data.fast_path import require_slow_path
from predictor.operators.device_rates import DeviceRates
from predictor.operators.tables import OperatorTable
from predictor.operators.utilization import ClassUtilization, Utilization
from predictor.operators.whole_models import HOST_RANGE, Correction, host_ms, operator_sums_ms
from predictor.schemas.responses import Interval

SHIPPED = Path(__file__).with_name("fitted.json.xz")


@dataclass(frozen=True)
class OperatorShare:
    """All operators of one kind in a model, on a device."""

    kind: OperatorKind
    milliseconds: float
    count: int


@dataclass(frozen=True)
class OperatorPrediction:
    """Latency of one pass of a whole model, and where the time goes."""

    latency_ms: Interval
    shares: tuple[OperatorShare, ...]
    """Time by kind of operator, corrected as the latency is, the longest first."""
    host_bound: bool
    """Whether the device waits for the host to issue operators."""
    host_limit: bool
    """Whether the upper limit is what a slow host takes to issue them, and so the same on faster devices."""
    measured_device: bool
    """Whether whole models were measured on the device in this width."""


@dataclass(frozen=True)
class OperatorPredictor:
    """Utilization by operator, the correction for whole models, and how far both err."""

    utilization: Utilization
    correction: Correction
    measured_device: Calibration
    """Errors for other models on a device with measured models."""
    new_device: Calibration
    """Errors on devices left out in turn."""
    training: Calibration
    """The same of passes and training steps together: three devices with steps would promise less."""

    def predict(
        self, tables: Sequence[OperatorTable], devices: Sequence[DeviceRates], bits: int, *, training: bool = False
    ) -> list[OperatorPrediction]:
        """Return the latency of a model with these operators on each device; `bits` is 32 or 16.

        `training` says that they are `training_tables`.
        """
        issued_ms, counts = host_ms(tables), {table.kind: table.count for table in tables}
        predictions = []
        for device, sums_ms in zip(devices, operator_sums_ms(self.utilization, tables, devices, bits), strict=True):
            logs = self.correction.log_factors(device.name, device.vendor, bits, training=training)
            products, moving = map(math.exp, logs)
            # As whole models take them.
            shares = [
                OperatorShare(kind, of_kind * (moving if kind in MOVING else products), counts[kind])
                for kind, of_kind in sums_ms.items()
            ]
            shares.sort(key=lambda share: -share.milliseconds)
            predictions.append(self._predict(tuple(shares), device, bits, issued_ms, training))
        return predictions

    def _predict(
        self, corrected: tuple[OperatorShare, ...], device: DeviceRates, bits: int, issued_ms: float, training: bool
    ) -> OperatorPrediction:
        busy_ms = sum(share.milliseconds for share in corrected)
        known = self.correction.knows(device, bits)
        calibration = self.training if training else self.measured_device if known else self.new_device
        width = math.exp(calibration.half_width)
        latency = Interval(
            p50=max(busy_ms, issued_ms),
            low=max(busy_ms / width, issued_ms * HOST_RANGE[0]),
            high=max(busy_ms * width, issued_ms * HOST_RANGE[1]),
            level=round(calibration.level, 3),
        )
        return OperatorPrediction(
            latency,
            corrected,
            host_bound=issued_ms > busy_ms,
            host_limit=issued_ms * HOST_RANGE[1] > busy_ms * width,
            measured_device=known,
        )


@cache
def shipped_predictor() -> OperatorPredictor:
    """Return the predictor that comes with the package."""
    require_slow_path()
    return load(SHIPPED)


def save(predictor: OperatorPredictor, path: Path) -> None:
    """Write a predictor; equal ones give equal bytes."""
    content = {
        "classes": {
            kind: {"trees": learned.trees, "effects": learned.effects}
            for kind, learned in predictor.utilization.classes.items()
        },
        "correction": asdict(predictor.correction),
        "measured_device": predictor.measured_device.model_dump(),
        "new_device": predictor.new_device.model_dump(),
        "training": predictor.training.model_dump(),
    }
    path.write_bytes(lzma.compress(json.dumps(content, sort_keys=True).encode(), preset=9))


def load(path: Path) -> OperatorPredictor:
    """Return a predictor that `save` wrote."""
    content = json.loads(lzma.decompress(path.read_bytes()))
    correction = content["correction"]
    for place in ("devices", "vendors"):
        correction[place] = {key: tuple(both) for key, both in correction[place].items()}
    return OperatorPredictor(
        utilization=Utilization.of(
            {kind: ClassUtilization(entry["trees"], entry["effects"]) for kind, entry in content["classes"].items()}
        ),
        correction=Correction(**correction),
        measured_device=Calibration(**content["measured_device"]),
        new_device=Calibration(**content["new_device"]),
        training=Calibration(**content["training"]),
    )
