"""Whether a cell can be measured at all, as far as its mode and precision tell before anything is built."""

from __future__ import annotations

from accel_platform.backends.registry import RUNTIMES, runtime_for
from accel_platform.bench.measure.failures import FailureReason
from accel_platform.bench.plan.modes import has_mode, head_for
from accel_platform.bench.plan.plan import Cell
from accel_platform.hardware.cpu import usable_cores

UNSUPPORTED_MODE = "unsupported_mode"
UNSUPPORTED_PRECISION = "unsupported_precision"


def unsupported_reason(cell: Cell) -> FailureReason | None:
    """Why the cell cannot be measured; None where nothing is known against it, though its device may still refuse."""
    if (reason := _against_mode(cell)) is not None:
        return FailureReason("failed", UNSUPPORTED_MODE, reason)
    if (reason := runtime_for(cell.hardware).refusal(cell.precision)) is not None:
        return FailureReason("failed", UNSUPPORTED_PRECISION, reason)
    return None


def _against_mode(cell: Cell) -> str | None:
    if not has_mode(cell.hardware, cell.mode):
        able = ", ".join(name for name in RUNTIMES if has_mode(name, cell.mode))
        return f"{runtime_for(cell.hardware).backend} runs inference only here; {cell.mode} runs on {able}"
    if head_for(cell.model, cell.mode) is None:
        model = cell.model
        return f"{model.model_id} does not generate: no {model.architecture} model was made to predict the next token"
    if cell.processes > usable_cores():
        return f"training in {cell.processes} processes needs a core for each; here: {usable_cores()}"
    return None
