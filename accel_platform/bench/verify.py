"""Whether a backend computed the right numbers: pure comparisons of arrays. Nothing is run or recorded here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

TOLERANCE = {"float32": 1e-3, "float16": 5e-2}
"""Largest relative error that counts as right, by precision.

float32 backends differ by about 1e-6 in truth. float16 rounds every operator's result by up to 2^-11: over the dozens
of layers of a model that comes to about 0.01, and wrong numbers differ by about 1.
"""
_SAME = 1e-6
"""Outputs of different inputs that differ by less than this, relative to their size, do not depend on the input."""

Outputs = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class Verdict:
    """`reason` says what is wrong; None where `passed`."""

    passed: bool
    tolerance: float
    constant_output: bool
    relative_error: float | None = None
    """Worst output: root mean square of the error over that of the reference. None where it cannot be computed."""
    max_abs_error: float | None = None
    reason: str | None = None


def verify(outputs: Outputs, other: Outputs, reference: Outputs, *, precision: str) -> Verdict:
    """Judge the `outputs` of one input by the `reference` for it, and by the outputs of an `other` input."""
    tolerance = TOLERANCE[precision]
    constant = is_constant(outputs)
    if set(outputs) != set(reference):
        reason = f"the outputs are {sorted(outputs)}, the reference has {sorted(reference)}"
        return Verdict(False, tolerance, constant, reason=reason)
    for name, expected in reference.items():
        if outputs[name].shape != expected.shape:
            reason = f"{name} has shape {outputs[name].shape}, the reference {expected.shape}"
            return Verdict(False, tolerance, constant, reason=reason)
        if not np.isfinite(outputs[name]).all():
            return Verdict(False, tolerance, constant, reason=f"{name} holds values that are not finite")
    errors = {name: relative_rms(outputs[name], expected) for name, expected in reference.items()}
    worst = max(errors, key=errors.__getitem__)
    largest = max(float(np.abs(outputs[n] - e).max(initial=0.0)) for n, e in reference.items())
    problem = unfounded(outputs, other)
    if problem is None and errors[worst] > tolerance:
        problem = f"{worst} differs from the reference by {errors[worst]:.3g}, more than {tolerance:g}"
    return Verdict(problem is None, tolerance, constant, errors[worst], largest, problem)


def unfounded(outputs: Outputs, other: Outputs) -> str | None:
    """Why these outputs of two inputs come from no working model, whatever is right; None where they may."""
    if is_constant(outputs):
        return "every output is one constant"
    if all(relative_rms(other[name], values) < _SAME for name, values in outputs.items()):
        return "the outputs do not depend on the input"
    return None


def relative_rms(values: npt.NDArray[Any], reference: npt.NDArray[Any]) -> float:
    """Root mean square of the difference over that of the reference; of the difference alone where that is 0."""
    if reference.size == 0:
        return 0.0
    expected = reference.astype(np.float64)
    error = float(np.sqrt(np.mean((values.astype(np.float64) - expected) ** 2)))
    size = float(np.sqrt(np.mean(expected**2)))
    return error / size if size else error


def is_constant(outputs: Outputs) -> bool:
    """True if no output varies, though at least one has more than one element."""
    several = [values for values in outputs.values() if values.size > 1]
    return bool(several) and all(float(np.ptp(values)) == 0.0 for values in several)
