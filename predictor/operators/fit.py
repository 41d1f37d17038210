"""Fitting and judging the operator predictor: from shipped kernel tables and models measured on nine GPUs.

`python -m predictor.operators.fit` writes the predictor that ships with the package; do so when the tables, the
features or the spec sheet change.
"""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from accel_platform.errors import InvalidInput
from accel_platform.hardware.catalog import find_spec
from accel_platform.knowledge.kernels import kernel_tables
from accel_platform.workloads.heads import Head
from accel_platform.workloads.model_catalog import Modality, ModelSpec
from accel_platform.workloads.operators import MOVING, OperatorKind, trace_operators
from predictor.calibration.conformal import Calibration, calibrate_worst_group
from predictor.operators.device_rates import DeviceRates, device_rates
from predictor.operators.kernels import BITS, KernelTable, load_kernels
from predictor.operators.predictor import SHIPPED, OperatorPredictor, save
from predictor.operators.tables import OperatorTable, ProfileTables, training_tables
from predictor.operators.utilization import Utilization, fit_utilization
from predictor.operators.whole_models import Correction, MeasuredModel, fit_correction, operator_sums_ms


@dataclass(frozen=True)
class WholeModel:
    """A model that others measured as a whole, with its operators."""

    model: str
    mode: str
    device: DeviceRates
    bits: int
    batch_size: int
    latency_ms: float
    tables: list[OperatorTable]

    def measured(self, utilization: Utilization) -> MeasuredModel:
        """Return its latency beside the sums of its operators."""
        [sums_ms] = operator_sums_ms(utilization, self.tables, [self.device], self.bits)
        moving = sum(of_kind for kind, of_kind in sums_ms.items() if kind in MOVING)
        products = sum(sums_ms.values()) - moving
        return MeasuredModel(
            self.model,
            self.device.name,
            self.device.vendor,
            self.bits,
            self.latency_ms,
            products,
            moving,
            training=self.mode == "training",
        )


@dataclass(frozen=True)
class Judged:
    """A measured model, predicted by what was fitted without it."""

    whole: WholeModel
    log_error: float
    """Natural log of the predicted over the measured latency."""

    @classmethod
    def by(cls, correction: Correction, whole: WholeModel, measured: MeasuredModel) -> Judged:
        """Return the error of a model under a correction."""
        return cls(whole, correction.log_error(measured))


def load_whole_models() -> list[WholeModel]:
    """Return the measured models of `whole_models.csv`. Tracing takes half a minute."""
    text = files(__package__).joinpath("whole_models.csv").read_text(encoding="utf-8")
    found = []
    for row in csv.DictReader(text.splitlines()):
        spec = find_spec(row["device"])
        rates = None if spec is None else device_rates(spec)
        if not isinstance(rates, DeviceRates):
            raise InvalidInput(f"whole_models.csv: {rates or row['device']}")
        profile = _profile(row["model"], row["architecture"], row["modality"], row["head"], row["config"], row["size"])
        batch_size = int(row["batch_size"])
        tables = profile.at(batch_size)
        if row["mode"] == "training":
            tables = training_tables(tables)
        found.append(
            WholeModel(
                row["model"],
                row["mode"],
                rates,
                BITS[row["precision"]],
                batch_size,
                float(row["latency_ms"]),
                tables,
            )
        )
    return found


@cache
def _profile(model: str, architecture: str, modality: Modality, head: Head, config: str, size: str) -> ProfileTables:
    length = int(size) if modality == "text" else None
    spec = ModelSpec(model, architecture, architecture, modality, config=json.loads(config), sequence_length=length)
    return ProfileTables.of(trace_operators(spec, sequence_length=length, head=head))


def leave_one_device_out(
    kernels: Mapping[OperatorKind, KernelTable],
    models: Sequence[WholeModel],
    *,
    hide: Callable[[str], bool] | None = None,
) -> list[Judged]:
    """Return each model predicted without any kernel or model of its device.

    `hide` chooses devices that are hidden from all others as well, such as newer ones.
    """
    judged: list[Judged] = []
    everything: Utilization | None = None
    for device in sorted({model.device.name for model in models}):
        hidden = {device} | {model.device.name for model in models if hide is not None and hide(model.device.name)}
        if _has_kernels(kernels, hidden):
            utilization = fit_utilization(_without(kernels, hidden))
        else:
            utilization = everything = everything or fit_utilization(kernels)
        known = [model for model in models if model.device.name not in hidden]
        correction = fit_correction([model.measured(utilization) for model in known])
        mine = (model for model in models if model.device.name == device)
        judged += [Judged.by(correction, model, model.measured(utilization)) for model in mine]
    return judged


def leave_one_model_out(utilization: Utilization, models: Sequence[WholeModel]) -> list[Judged]:
    """Return each model predicted from all kernels, and the measurements of all other models."""
    judged = []
    measured = [model.measured(utilization) for model in models]
    for model, own in zip(models, measured, strict=True):
        others = [other for other in measured if other.model != model.model]
        judged.append(Judged.by(fit_correction(others), model, own))
    return judged


def fit() -> OperatorPredictor:
    """Return the predictor from everything that ships; it takes some minutes, mostly for its intervals."""
    kernels = load_kernels(kernel_tables())
    models = load_whole_models()
    utilization = fit_utilization(kernels)
    new = leave_one_device_out(kernels, models)
    known = leave_one_model_out(utilization, models)
    passes_known, passes_new = (
        [judged for judged in errors if judged.whole.mode == "inference"] for errors in (known, new)
    )
    correction = fit_correction([model.measured(utilization) for model in models])
    return OperatorPredictor(
        utilization,
        correction,
        measured_device=_calibrate(passes_known),
        new_device=_calibrate(passes_new),
        training=_calibrate(new),
    )


def _calibrate(errors: Sequence[Judged]) -> Calibration:
    return calibrate_worst_group(
        np.abs([judged.log_error for judged in errors]), [judged.whole.device.name for judged in errors]
    )


def _has_kernels(kernels: Mapping[OperatorKind, KernelTable], devices: set[str]) -> bool:
    return any(bool(_of(table, devices).any()) for table in kernels.values())


def _without(kernels: Mapping[OperatorKind, KernelTable], devices: set[str]) -> dict[OperatorKind, KernelTable]:
    return {kind: table.where(~_of(table, devices)) for kind, table in kernels.items()}


def _of(table: KernelTable, devices: set[str]) -> np.typing.NDArray[np.bool_]:
    return np.isin(table.groups, [f"{device} {bits}" for device in devices for bits in (32, 16)])


if __name__ == "__main__":
    print("Fitting takes some minutes ...", file=sys.stderr)
    save(fit(), SHIPPED)
    print(f"{SHIPPED}: {SHIPPED.stat().st_size / 1e6:.1f} MB", file=sys.stderr)
