"""Comparison of a backend's outputs with a reference and with those of another input."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from accel_platform.backends.base import UnsupportedPrecision
from accel_platform.precisions import PRECISIONS

if TYPE_CHECKING:
    from accel_platform.backends.base import Backend, Generating

_ROUNDINGS = 256
"""Roundings that follow one another on the way through a model: about ten in each of two dozen layers."""
_SUM_ROUNDINGS = 8192
"""The same where sums are kept in the precision too: then a layer has hundreds."""
_LAYERS = 24
"""Layers whose weights are rounded, each adding an error of its own."""
_LARGEST_OF_32 = 2.4
"""The largest of 32 normally distributed weights, in their standard deviations: what one scale of int4 covers."""
TOLERANCE = {
    "float32": 1e-3,
    "tf32": math.sqrt(_ROUNDINGS) * PRECISIONS["tf32"].roundoff,
    "float16": math.sqrt(_SUM_ROUNDINGS) * PRECISIONS["float16"].roundoff,
    "bfloat16": math.sqrt(_ROUNDINGS) * PRECISIONS["bfloat16"].roundoff,
    "int8": math.sqrt(_ROUNDINGS) * PRECISIONS["int8"].roundoff,
    "int4": math.sqrt(_LAYERS) * _LARGEST_OF_32 * PRECISIONS["int4"].roundoff / math.sqrt(12),
}
"""Largest relative error that counts as right, by precision.

Roundings are independent, so their errors add up as a random walk: n of them to about sqrt(n) times one. That is

* 0.044 for float16, in which an NPU also keeps its sums (seen: 0.017, and 0.002 where sums are float32),
* 0.063 for bfloat16, whose sums every device keeps in float32 (seen: 0.012),
* 0.125 for int8, where a tensor has steps of 2^-7 of its largest value (seen: 0.07).

In int4, weights alone are rounded, in blocks of 32 with steps of 2^-3 of their largest. That is 0.09 a layer, 0.42 in
24 of them (seen: 0.20). Wrong numbers differ by about 1. float32 backends differ by about 1e-6; there the tolerance is
wide because sums are taken in any order.
"""
MIN_PRECISION_SHARE = 0.5
"""Share of a model's products that must run in the requested precision for the figure to be valid."""
_WHOLE_BATCH, _SPREAD_ITEMS = 16, 8
"""Size of the largest batch that is compared whole, and the number of items compared of larger ones."""
_SAME_OUTPUT_TOLERANCE = 1e-6
"""Outputs of different inputs that differ by less than this, relative to their size, do not depend on the input."""

Outputs = Mapping[str, npt.NDArray[Any]]
Items = npt.NDArray[np.int64]
"""Indices of a batch's items, ascending; the last item is always among them."""


@dataclass(frozen=True)
class VerificationResult:
    """The verdict on outputs; `reason` names the problem, None where `passed`."""

    passed: bool
    tolerance: float
    constant_output: bool
    relative_error: float | None = None
    """Worst output: root mean square of the error over that of the reference. None where it cannot be computed."""
    max_abs_error: float | None = None
    reason: str | None = None
    compared_items: int | None = None
    """Number of the batch's items that were compared; None for all."""


def spread_items(batch_size: int) -> Items | None:
    """Return the items of a large batch to compare, from the first to the last; None for all of a small one."""
    if batch_size <= _WHOLE_BATCH:
        return None
    return np.linspace(0, batch_size - 1, _SPREAD_ITEMS).round().astype(np.int64)


def verify(
    outputs: Outputs, other: Outputs, reference: Outputs, *, precision: str, items: Items | None = None
) -> VerificationResult:
    """Compare the `outputs` of one input with its `reference`, and with the outputs of an `other` input.

    The reference may be of some `items` of the batch alone. Then these are compared; all have to be finite.
    """
    if items is not None:
        return _verify_some(outputs, other, reference, items, precision)
    tolerance = TOLERANCE[precision]
    constant = is_constant(outputs)
    if set(outputs) != set(reference):
        reason = f"the outputs are {sorted(outputs)}, the reference has {sorted(reference)}"
        return VerificationResult(False, tolerance, constant, reason=reason)
    for name, expected in reference.items():
        if outputs[name].shape != expected.shape:
            reason = f"{name} has shape {outputs[name].shape}, the reference {expected.shape}"
            return VerificationResult(False, tolerance, constant, reason=reason)
        if not np.isfinite(outputs[name]).all():
            return VerificationResult(False, tolerance, constant, reason=f"{name} holds values that are not finite")
    errors = {name: relative_rms(outputs[name], expected) for name, expected in reference.items()}
    worst = max(errors, key=errors.__getitem__)
    largest = max(float(np.abs(outputs[n] - e).max(initial=0.0)) for n, e in reference.items())
    problem = degenerate_reason(outputs, other)
    if problem is None and errors[worst] > tolerance:
        problem = f"{worst} differs from the reference by {errors[worst]:.3g}, more than {tolerance:g}"
    if (
        problem is None
        and errors[worst] > 0
        and all(errors[n] >= relative_rms(other[n], e) for n, e in reference.items())
    ):
        problem = "the outputs differ more from the reference than those of another input do"
    return VerificationResult(problem is None, tolerance, constant, errors[worst], largest, problem)


def _verify_some(
    outputs: Outputs, other: Outputs, reference: Outputs, items: Items, precision: str
) -> VerificationResult:
    batch_size = int(items[-1]) + 1
    problem = None
    for name, values in outputs.items():
        if values.shape[:1] != (batch_size,):
            problem = f"{name} has shape {values.shape}, for a batch of {batch_size}"
        elif not np.isfinite(values).all():
            problem = f"{name} holds values that are not finite"
    if problem := problem or degenerate_reason(outputs, other):
        return VerificationResult(False, TOLERANCE[precision], is_constant(outputs), reason=problem)
    some, other_some = ({name: values[items] for name, values in of.items()} for of in (outputs, other))
    return replace(verify(some, other_some, reference, precision=precision), compared_items=len(items))


def degenerate_reason(outputs: Outputs, other: Outputs) -> str | None:
    """Return why outputs of two inputs come from no working model, whatever the reference; None where they may."""
    if is_constant(outputs):
        return "every output is one constant"
    if all(relative_rms(other[name], values) < _SAME_OUTPUT_TOLERANCE for name, values in outputs.items()):
        return "the outputs do not depend on the input (in deep networks with random weights signals may fade)"
    return None


def require_precision_share(backend: Backend | Generating, precision: str) -> float | None:
    """Return the backend's share of products in the precision; None where it does not tell.

    Raises UnsupportedPrecision for a share below MIN_PRECISION_SHARE.
    """
    share = backend.precision_share()
    if share is not None and share < MIN_PRECISION_SHARE:
        share_text = "none" if share == 0 else f"only {share:.0%}"
        raise UnsupportedPrecision(f"{share_text} of the matrix products and convolutions ran in {precision}")
    return share


def relative_rms(values: npt.NDArray[Any], reference: npt.NDArray[Any]) -> float:
    """Return the root mean square of the difference over that of the reference; unscaled where the reference is 0."""
    if reference.size == 0:
        return 0.0
    expected = reference.astype(np.float64)
    error = float(np.sqrt(np.mean((values.astype(np.float64) - expected) ** 2)))
    size = float(np.sqrt(np.mean(expected**2)))
    return error / size if size else error


def is_constant(outputs: Outputs) -> bool:
    """Return True if no output varies, though at least one has more than one element."""
    several = [values for values in outputs.values() if values.size > 1]
    return bool(several) and all(float(np.ptp(values)) == 0.0 for values in several)
