"""What holds a device up, by roofline: computing at its peak rate, or moving the bytes at its full bandwidth."""

from __future__ import annotations

from accel_platform.hardware.catalog import DeviceSpec
from accel_platform.precisions import PRECISIONS
from predictor.answers import Bound
from predictor.asked import Asked


def bound_of(asked: Asked, spec: DeviceSpec) -> Bound | None:
    """Of one forward pass; None where a cost, the peak or the bandwidth is not known, and for other modes.

    compute = FLOPs / peak; memory = (weights once + activations written) / bandwidth (Williams, Waterman and
    Patterson, 2009). The peak is that of matrix units where the precision has 16 bits and the vendor states one.
    """
    cost, width = asked.cost, PRECISIONS.get(asked.precision)
    if asked.mode != "inference" or cost is None or width is None:
        return None
    half = width.weight_bytes == 2 and spec.peak_fp16_tensor_tflops is not None
    peak = spec.peak_fp16_tensor_tflops if half else spec.peak_fp32_tflops
    if peak is None or spec.bandwidth_gb_s is None or cost.written_bytes is None:
        return None
    moved = cost.parameters * width.weight_bytes
    moved += cost.written_bytes / 4 * width.activation_bytes * asked.batch_size
    compute_ms = 1e3 * cost.flops * asked.batch_size / (peak * 1e12)
    memory_ms = 1e3 * moved / (spec.bandwidth_gb_s * 1e9)
    return Bound(by="compute" if compute_ms >= memory_ms else "memory", compute_ms=compute_ms, memory_ms=memory_ms)
