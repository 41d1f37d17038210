"""Speed of light of an operator on a device, and the features from which its utilization is learned.

All features are ratios or logs of shapes, because trees do not extrapolate: a device that nobody measured has other
rates, but ratios within the range of those measured. After NeuSight (Lee et al., ASPLOS 2025), which predicts
utilization by tiles and waves.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from accel_platform.workloads.operators import OperatorKind
from predictor.operators.device_rates import DeviceRates, RateColumns

Array = npt.NDArray[np.float64]
Rates = DeviceRates | RateColumns
Priced = tuple[Array, Array]
"""Speed of light in ms, one per operator, and features, one row per operator."""

TILE = 128
"""Rows and columns of a matrix product that one compute unit works on at a time, in the common kernels."""
LAUNCH_MS = 0.02
"""Scale of short kernels: NeuSight's shortest took 0.012 to 0.05 ms."""
MEASURED_READS = (1.0, 2.0)
"""Numbers read for each written, by the element-wise kernels that were measured: one or two tensors."""
_FLOPS_PER_NUMBER = 5.0
"""Operations on each number of a softmax or a norm."""


def price(kind: OperatorKind, dimensions: Array, device: Rates, bits: int) -> Priced:
    """Return the speed of light and features of operators of one kind.

    Parameters
    ----------
    dimensions
        One row per operator, in the order of `DIMENSIONS[kind]`.
    device
        One device; or several, and both arrays get a row for each first.
    bits
        Width of weights and activations: 32 or 16.
    """
    return _PRICES[kind](list(dimensions.T), device, bits)


def _stacked(light: Array, features: tuple[Array, ...]) -> Array:
    """Return the features side by side, for each of the speeds of light; some are the same for all devices."""
    stacked = np.empty((*light.shape, len(features)))
    for i, feature in enumerate(features):
        stacked[..., i] = feature
    return stacked


def _linear(columns: list[Array], device: Rates, bits: int) -> Priced:
    m, n, k = columns
    return _product(np.ones_like(m), m, n, k, device, bits)


def _batched_matmul(columns: list[Array], device: Rates, bits: int) -> Priced:
    return _product(columns[0], columns[1], columns[2], columns[3], device, bits)


def _convolution(columns: list[Array], device: Rates, bits: int) -> Priced:
    """Price a convolution as the matrix product of its patches by its weights, without writing the patches."""
    b, pixels, n, k, groups, _, read, written = columns
    return _product(groups, b * pixels, n, k, device, bits, read + written)


def _product(
    b: Array,
    m: Array,
    n: Array,
    k: Array,
    device: Rates,
    bits: int,
    numbers: Array | None = None,
) -> Priced:
    size = bits / 8 * (b * (m * k + k * n + m * n) if numbers is None else numbers)
    compute_ms, memory_ms = 2e3 * b * m * n * k / device.flops[bits], 1e3 * size / device.bandwidth
    light = np.maximum(compute_ms, memory_ms)
    rows, columns = np.ceil(m / TILE), np.ceil(n / TILE)
    tiles = b * rows * columns
    waves = tiles / device.compute_units
    # No dimension by itself, because trees tell devices apart by what dimensions and ratios say together.
    features = (
        np.log(compute_ms / memory_ms),
        np.log(b),
        np.log(waves),
        waves / np.ceil(waves),
        np.log(light / LAUNCH_MS),
        m * n / (rows * columns * TILE**2),
    )
    return light, _stacked(light, features)


def _attention(columns: list[Array], device: Rates, bits: int) -> Priced:
    """Price fused attention, which writes no scores."""
    b, heads, kv_heads, m, n, k, v, pairs = columns
    size = bits / 8 * b * (heads * m * (k + v) + kv_heads * n * (k + v))
    compute_ms = 2e3 * b * heads * pairs * (k + v) / device.flops[bits]
    memory_ms = 1e3 * size / device.bandwidth
    light = np.maximum(compute_ms, memory_ms)
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
        np.log(light / LAUNCH_MS),
    )
    return light, _stacked(light, features)


def _rowwise(columns: list[Array], device: Rates, bits: int) -> Priced:
    rows, width = columns
    size = bits / 8 * 2 * rows * width
    light = np.maximum(1e3 * _FLOPS_PER_NUMBER * rows * width / device.flops[32], 1e3 * size / device.bandwidth)
    features = (
        np.log(size / device.cache_bytes),
        np.log(rows),
        np.log(width),
        np.log(rows / device.compute_units),
        np.log(light / LAUNCH_MS),
    )
    return light, _stacked(light, features)


def _elementwise(columns: list[Array], device: Rates, bits: int) -> Priced:
    read, written, slow = columns
    size = bits / 8 * (read + written)
    light = 1e3 * size / device.bandwidth
    # The kernels measured read one or two numbers for each that they write. What reads more, such as the mean over an
    # image, or less is taken for one that moves as much: trees do not know what a few numbers of much work take.
    ratio = np.clip(read / written, *MEASURED_READS)
    written = (read + written) / (1 + ratio)
    features = (
        np.log(size / device.cache_bytes),
        np.log(ratio),
        slow,
        np.log(written / device.compute_units),
        np.log(light / LAUNCH_MS),
    )
    return light, _stacked(light, features)


def _embedding(columns: list[Array], device: Rates, bits: int) -> Priced:
    numbers = columns[0] * columns[1]
    return _elementwise([numbers, numbers, np.zeros_like(numbers)], device, bits)


_PRICES: dict[OperatorKind, Callable[[list[Array], Rates, int], Priced]] = {
    "linear": _linear,
    "batched_matmul": _batched_matmul,
    "convolution": _convolution,
    "attention": _attention,
    "softmax": _rowwise,
    "layer_norm": _rowwise,
    "elementwise": _elementwise,
    "embedding": _embedding,
}
