"""Fit and evaluation of the operator predictor, on shipped kernel tables and models measured on nine GPUs.

`python -m predictor.operators.fit` writes the predictor that ships with the package. Run it when the tables, the
features or the spec sheet change.
"""

from __future__ import annotations

import argparse
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
from predictor.operators.kernels import BITS, LARGEST_PRODUCTS, KernelTable, load_kernels
from predictor.operators.predictor import SHIPPED, OperatorPredictor, save
from predictor.operators.tables import OperatorTable, ProfileTables
from predictor.operators.training import training_step
from predictor.operators.utilization import Utilization, fit_utilization
from predictor.operators.whole_models import OperatorTotals, fit_correction, operator_sums_ms


@dataclass(frozen=True)
class MeasuredModel:
    """A model that others measured as a whole, with its traced operators."""

    model: str
    mode: str
    device: DeviceRates
    bits: int
    batch_size: int
    latency_ms: float
    tables: list[OperatorTable]

    def operator_totals(self, utilization: Utilization) -> OperatorTotals:
        """Return the measured latency beside the sums of the operators' predicted times."""
        [sums_ms] = operator_sums_ms(utilization, self.tables, [self.device], self.bits)
        moving_ms = sum(sum_ms for kind, sum_ms in sums_ms.items() if kind in MOVING)
        compute_ms = sum(sums_ms.values()) - moving_ms
        return OperatorTotals(
            self.model,
            self.device,
            self.bits,
            self.latency_ms,
            compute_ms,
            moving_ms,
            training=self.mode == "training",
        )


@dataclass(frozen=True)
class HeldOutError:
    """Error on a measured model of a predictor that was fitted without it."""

    measured: MeasuredModel
    log_error: float
    """Natural log of the predicted over the measured latency."""


def load_whole_models() -> list[MeasuredModel]:
    """Return the measured models of `whole_models.csv`. Tracing them takes half a minute."""
    text = files(__package__).joinpath("whole_models.csv").read_text(encoding="utf-8")
    models = []
    for row in csv.DictReader(text.splitlines()):
        spec = find_spec(row["device"])
        rates = None if spec is None else device_rates(spec)
        if not isinstance(rates, DeviceRates):
            raise InvalidInput(f"whole_models.csv: {rates or row['device']}")
        columns = ("model", "architecture", "modality", "head", "config", "size", "mode")
        profile = _profile(*(row[column] for column in columns))
        batch_size = int(row["batch_size"])
        models.append(
            MeasuredModel(
                row["model"],
                row["mode"],
                rates,
                BITS[row["precision"]],
                batch_size,
                float(row["latency_ms"]),
                profile.at(batch_size),
            )
        )
    return models


@cache
def _profile(
    model: str, architecture: str, modality: Modality, head: Head, config: str, size: str, mode: str
) -> ProfileTables:
    length = int(size) if modality == "text" else None
    spec = ModelSpec(model, architecture, architecture, modality, config=json.loads(config), sequence_length=length)
    operators = trace_operators(spec, sequence_length=length, head=head)
    # The steps that were measured end with the gradients.
    return ProfileTables.of(training_step(operators, updates_weights=False) if mode == "training" else operators)


def leave_one_device_out(
    kernels: Mapping[OperatorKind, KernelTable],
    models: Sequence[MeasuredModel],
    *,
    hide: Callable[[str], bool] | None = None,
) -> list[HeldOutError]:
    """Return the error on each model of a predictor without any kernel or model of its device.

    `hide` tells by name which devices are hidden from all other devices as well, such as newer ones.
    """
    errors: list[HeldOutError] = []
    from_all_kernels: Utilization | None = None
    for device in sorted({model.device.name for model in models}):
        hidden = {device} | {model.device.name for model in models if hide is not None and hide(model.device.name)}
        if _has_kernels(kernels, hidden):
            utilization = fit_utilization(_without(kernels, hidden))
        else:
            utilization = from_all_kernels = from_all_kernels or fit_utilization(kernels)
        known = [model for model in models if model.device.name not in hidden]
        correction = fit_correction([model.operator_totals(utilization) for model in known])
        held_out = [model for model in models if model.device.name == device]
        errors += [HeldOutError(model, correction.log_error(model.operator_totals(utilization))) for model in held_out]
    return errors


def leave_one_model_out(utilization: Utilization, models: Sequence[MeasuredModel]) -> list[HeldOutError]:
    """Return the error on each model of a predictor from all kernels and the measurements of all other models."""
    errors = []
    totals = [model.operator_totals(utilization) for model in models]
    for model, own in zip(models, totals, strict=True):
        others = [other for other in totals if other.model != model.model]
        errors.append(HeldOutError(model, fit_correction(others).log_error(own)))
    return errors


def fit() -> OperatorPredictor:
    """Fit the predictor to all shipped data. It takes some minutes, mostly for the errors behind its intervals."""
    kernels = load_kernels([*kernel_tables(), LARGEST_PRODUCTS])
    models = load_whole_models()
    utilization = fit_utilization(kernels)
    device_errors = leave_one_device_out(kernels, models)
    model_errors = leave_one_model_out(utilization, models)
    correction = fit_correction([model.operator_totals(utilization) for model in models])
    return OperatorPredictor(
        utilization,
        correction,
        measured_device=_calibrate(_passes(model_errors)),
        new_device=_calibrate(_passes(device_errors)),
        training=_calibrate(device_errors),
    )


def _passes(errors: Sequence[HeldOutError]) -> list[HeldOutError]:
    """Return the errors on forward passes, without those on training steps."""
    return [error for error in errors if error.measured.mode == "inference"]


def _calibrate(errors: Sequence[HeldOutError]) -> Calibration:
    return calibrate_worst_group(
        np.abs([error.log_error for error in errors]), [error.measured.device.name for error in errors]
    )


def _has_kernels(kernels: Mapping[OperatorKind, KernelTable], devices: set[str]) -> bool:
    return any(bool(_is_of(table, devices).any()) for table in kernels.values())


def _without(kernels: Mapping[OperatorKind, KernelTable], devices: set[str]) -> dict[OperatorKind, KernelTable]:
    return {kind: table.select(~_is_of(table, devices)) for kind, table in kernels.items()}


def _is_of(table: KernelTable, devices: set[str]) -> np.typing.NDArray[np.bool_]:
    """Return a mask of the kernels that were measured on one of these devices."""
    return np.isin(table.groups, [f"{device} {bits}" for device in devices for bits in (32, 16)])


def main(arguments: Sequence[str] | None = None) -> None:
    """Fit the predictor and write it over the shipped one."""
    argparse.ArgumentParser(prog="python -m predictor.operators.fit", description=__doc__).parse_args(arguments)
    print("Fitting takes some minutes ...", file=sys.stderr)
    save(fit(), SHIPPED)
    print(f"{SHIPPED}: {SHIPPED.stat().st_size / 1e6:.1f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
