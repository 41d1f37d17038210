"""Roofline time of an operator on a GPU, and the features from which its utilization is learned.

The roofline time is the time at the device's full rates: the longer of FLOPs over peak rate and bytes over bandwidth.
All features are ratios of a shape to a rate, or logs of them. Trees do not extrapolate, and an unmeasured device has
other rates than the measured ones, but its ratios lie within their range. The approach is that of NeuSight (Lee et
al., ASPLOS 2025), which predicts utilization from tiles and waves.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from accel_platform.workloads.operators import OperatorKind
from predictor.operators.device_rates import DeviceRates, RateColumns

Array = npt.NDArray[np.float64]
Rates = DeviceRates | RateColumns


class RooflineFeatures(NamedTuple):
    """Roofline times and features of operators of one kind.

    The shapes are (operators,) and (operators, features) on one device, and begin with an axis of devices on several.
    """

    roofline_ms: Array
    features: Array


TILE = 128
"""Rows and columns of the output tile that one compute unit computes at a time, in common matrix-product kernels."""
LAUNCH_MS = 0.02
"""Typical time of a kernel that does next to nothing, as the unit of `log(roofline_ms)`.

The shortest kernels that NeuSight measured took 0.012 to 0.05 ms.
"""
MEASURED_READS = (1.0, 2.0)
"""Least and most numbers read per number written by the element-wise kernels that were measured."""
_FLOPS_PER_NUMBER = 5.0
"""FLOPs on each number of a softmax or a normalization, roughly: maximum, difference, exponential, sum, quotient."""


def roofline_features(kind: OperatorKind, dimensions: Array, device: Rates, bits: int) -> RooflineFeatures:
    """Return the roofline times and features of operators of one kind.

    Parameters
    ----------
    dimensions
        One row per operator, with columns in the order of `DIMENSIONS[kind]`.
    device
        Rates of one device, or of several.
    bits
        Width of weights and activations: 32 or 16.
    """
    return _BY_KIND[kind](list(dimensions.T), device, bits)


def _join(roofline_ms: Array, features: tuple[Array, ...]) -> RooflineFeatures:
    """Stack features as columns, and repeat for each device the features that do not depend on it."""
    stacked = np.empty((*roofline_ms.shape, len(features)))
    for i, feature in enumerate(features):
        stacked[..., i] = feature
    return RooflineFeatures(roofline_ms, stacked)


def _linear(columns: list[Array], device: Rates, bits: int) -> RooflineFeatures:
    m, n, k = columns
    return _matrix_product(np.ones_like(m), m, n, k, device, bits)


def _batched_matmul(columns: list[Array], device: Rates, bits: int) -> RooflineFeatures:
    b, m, n, k = columns
    return _matrix_product(b, m, n, k, device, bits)


def _convolution(columns: list[Array], device: Rates, bits: int) -> RooflineFeatures:
    """Treat a convolution as the product of its image patches and its weights (implicit GEMM).

    The patches overlap and are never written to memory, so only the image, the weights and the output are moved.
    """
    b, pixels, n, k, groups, _, read, written = columns
    return _matrix_product(groups, b * pixels, n, k, device, bits, numbers_moved=read + written)


def _matrix_product(
    b: Array,
    m: Array,
    n: Array,
    k: Array,
    device: Rates,
    bits: int,
    numbers_moved: Array | None = None,
) -> RooflineFeatures:
    """Return times and features of b products of (m, k) by (k, n).

    `numbers_moved` is how many numbers are read and written; by default each operand and result is moved once.
    """
    moved = b * (m * k + k * n + m * n) if numbers_moved is None else numbers_moved
    compute_ms = 2e3 * b * m * n * k / device.flops[bits]
    memory_ms = 1e3 * (bits / 8 * moved) / device.bandwidth
    roofline_ms = np.maximum(compute_ms, memory_ms)
    tile_rows, tile_columns = np.ceil(m / TILE), np.ceil(n / TILE)
    tiles = b * tile_rows * tile_columns
    waves = tiles / device.compute_units
    filled_share_of_waves = waves / np.ceil(waves)
    filled_share_of_tiles = m * n / (tile_rows * tile_columns * TILE**2)
    # No dimension is a feature by itself, because dimension and ratio together would identify the device.
    features = (
        np.log(compute_ms / memory_ms),
        np.log(b),
        np.log(waves),
        filled_share_of_waves,
        np.log(roofline_ms / LAUNCH_MS),
        filled_share_of_tiles,
    )
    return _join(roofline_ms, features)


def _attention(columns: list[Array], device: Rates, bits: int) -> RooflineFeatures:
    """Return times and features of fused attention (as FlashAttention), which never writes its scores to memory."""
    b, heads, kv_heads, m, n, k, v, pairs = columns
    size = bits / 8 * b * (heads * m * (k + v) + kv_heads * n * (k + v))
    compute_ms = 2e3 * b * heads * pairs * (k + v) / device.flops[bits]
    memory_ms = 1e3 * size / device.bandwidth
    roofline_ms = np.maximum(compute_ms, memory_ms)
    tiles = b * heads * np.ceil(m / TILE)
    features = (
        np.log(compute_ms / memory_ms),
        np.log(size / device.cache_bytes),
        np.log(m),
        np.log(n),
        np.log(k),
        np.log(heads / kv_heads),
        np.log(pairs / (m * n)),
        np.log(tiles / device.compute_units),
        np.log(roofline_ms / LAUNCH_MS),
    )
    return _join(roofline_ms, features)


def _rowwise(columns: list[Array], device: Rates, bits: int) -> RooflineFeatures:
    """Return times and features of softmaxes or normalizations, which read and write each number once."""
    rows, width = columns
    size = bits / 8 * 2 * rows * width
    roofline_ms = np.maximum(1e3 * _FLOPS_PER_NUMBER * rows * width / device.flops[32], 1e3 * size / device.bandwidth)
    features = (
        np.log(size / device.cache_bytes),
        np.log(rows),
        np.log(width),
        np.log(rows / device.compute_units),
        np.log(roofline_ms / LAUNCH_MS),
    )
    return _join(roofline_ms, features)


def _elementwise(columns: list[Array], device: Rates, bits: int) -> RooflineFeatures:
    read, written, slow = columns
    size = bits / 8 * (read + written)
    roofline_ms = 1e3 * size / device.bandwidth
    # The measured kernels read one or two numbers per number written. An operator with another ratio, such as the mean
    # over an image, counts as a measured one that moves as many numbers, because trees do not extrapolate.
    ratio = np.clip(read / written, *MEASURED_READS)
    written = (read + written) / (1 + ratio)
    features = (
        np.log(size / device.cache_bytes),
        np.log(ratio),
        slow,
        np.log(written / device.compute_units),
        np.log(roofline_ms / LAUNCH_MS),
    )
    return _join(roofline_ms, features)


def _embedding(columns: list[Array], device: Rates, bits: int) -> RooflineFeatures:
    """Treat the look-up of rows as an element-wise copy of them."""
    rows, width = columns
    numbers = rows * width
    return _elementwise([numbers, numbers, np.zeros_like(numbers)], device, bits)


_BY_KIND: dict[OperatorKind, Callable[[list[Array], Rates, int], RooflineFeatures]] = {
    "linear": _linear,
    "batched_matmul": _batched_matmul,
    "convolution": _convolution,
    "attention": _attention,
    "softmax": _rowwise,
    "layer_norm": _rowwise,
    "elementwise": _elementwise,
    "embedding": _embedding,
}
