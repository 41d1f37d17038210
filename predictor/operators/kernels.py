"""Kernel measurements as training data for utilization: one operator of one shape on one device, and its time.

A kernel *class* is a kind of operator for which one utilization model is fitted. Most kinds are a class of their own;
`kernel_class` says which are learned together with another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq
from pyarrow import csv

from accel_platform.workloads.operators import SLOW_FUNCTIONS, OperatorKind
from predictor.operators.device_rates import DeviceRates, rates_of
from predictor.operators.features import Array, roofline_features

T = TypeVar("T")
BITS = {"float32": 32, "float16": 16, "bfloat16": 16}
"""Width of a number in each precision whose operators the predictor covers."""
_SCALAR = re.compile("_scalar$")
_TWO_TENSORS = frozenset(("add", "mul", "div", "pow"))
"""Element-wise operators that read two tensors."""


@dataclass(frozen=True)
class KernelTable:
    """Measured kernels of one class as training data, one row each."""

    log_time_over_roofline: Array
    """Natural log of the measured time over the roofline time: minus the log of the utilization."""
    features: Array
    roofline_ms: Array
    groups: npt.NDArray[np.str_]
    """Device and width of numbers, as `device_key` writes them."""

    @classmethod
    def join(cls, tables: Sequence[KernelTable]) -> KernelTable:
        """Concatenate the rows of several tables."""
        return cls(*(np.concatenate([getattr(t, name) for t in tables]) for name in cls.__dataclass_fields__))

    def select(self, mask: npt.NDArray[np.bool_]) -> KernelTable:
        """Return the rows where the mask is True."""
        return KernelTable(*(getattr(self, name)[mask] for name in self.__dataclass_fields__))


def device_key(device: str, bits: int) -> str:
    """Return the key of a device, or of an architecture, at one width of numbers: `NVIDIA T4 16`."""
    return f"{device} {bits}"


def devices_in(by_key: Mapping[str, T]) -> Iterator[tuple[DeviceRates, int, T]]:
    """Yield the devices of the spec sheet among keys of `device_key`, each with its bits and its value."""
    for key, value in by_key.items():
        name, bits = key.rsplit(" ", 1)
        rates = rates_of(name)
        if rates is not None:
            yield rates, int(bits), value


def kernel_class(kind: OperatorKind, device: DeviceRates, bits: int) -> OperatorKind:
    """Return the class whose measured kernels stand for an operator of this kind on this device.

    On matrix units (tensor cores) convolutions are computed as matrix products, so they count as `linear`. Vector units
    use algorithms of their own, such as Winograd's, which needs fewer multiplications. Attention in 32 bits is the
    class of its two products (see `kernel_parts`), and an embedding is a copy.
    """
    if kind == "attention" and bits == 32:
        return "batched_matmul"
    if kind == "convolution" and device.flops[bits] > device.flops[32]:
        return "linear"
    return "elementwise" if kind == "embedding" else kind


MAX_ROWS = 3_000
"""Most kernels of one device, precision and operator to learn from. More fit a device no better."""

LARGEST_PRODUCTS = Path(__file__).with_name("largest_products.csv")
"""Matrix products at the largest rates that GPUs sustain by their vendors, as TFLOPS with their source."""
EAGER_BITS = 32
"""Width of the kernels that were timed one by one from Python. Those in 16 bits ran in CUDA graphs."""
LAUNCHING_SHARE = 0.6
"""Share of a device's shortest kernel time that is the launch, and is subtracted from all its eager kernel times.

In a model the launch of an operator overlaps with the operator before it. The share was chosen among 0, 0.6, 0.8 and
0.9 by leaving out each device: the median errors of 83 models were 13.3, 9.8, 11.1 and 15.0 %.
"""
_SHORTEST_QUANTILE = 0.001
"""Quantile of the kernel times that counts as the shortest, so that one odd figure does not decide."""
_MIN_MS = 0.002
"""Least kernel time after the launch is subtracted."""


def load_kernels(paths: Iterable[Path]) -> dict[OperatorKind, KernelTable]:
    """Return the measured kernels of these Parquet files, and of `LARGEST_PRODUCTS` if it is among them, by class.

    It skips kernels of unknown devices and precisions, and operators that `kernel_class` assigns to another class on
    their device.
    """
    tables: dict[OperatorKind, list[KernelTable]] = {}
    for path in paths:
        frame = _largest_products() if path == LARGEST_PRODUCTS else pq.read_table(path).to_pandas()
        keys = ["device", "precision", "operator"]
        for (device, precision, operator), measurements in frame.groupby(keys, observed=True):
            rates, bits = rates_of(str(device)), BITS.get(str(precision))
            read_dimensions = _DIMENSION_READERS.get(_SCALAR.sub("", str(operator)))
            if bits is None or read_dimensions is None or rates is None:
                continue
            rows = measurements.sample(min(MAX_ROWS, len(measurements)), random_state=1)
            kind, dimensions = read_dimensions(rows, str(operator))
            if kernel_class(kind, rates, bits) != kind:
                continue
            roofline_ms, features = roofline_features(kind, dimensions, rates, bits)
            measured_ms = _without_launch(rows, measurements) if bits == EAGER_BITS else _latency_ms(rows)
            groups = np.full(len(rows), device_key(rates.name, bits))
            table = KernelTable(np.log(measured_ms / roofline_ms), features, roofline_ms, groups)
            tables.setdefault(kind, []).append(table)
    return {kind: KernelTable.join(found) for kind, found in tables.items()}


def _largest_products() -> Any:
    frame = csv.read_csv(LARGEST_PRODUCTS).to_pandas()
    return frame.assign(operator="linear", latency_ms=2e-9 * frame.m * frame.n * frame.k / frame.tflops)


def _without_launch(rows: Any, measurements: Any) -> Array:
    """Return the times of `rows` in ms less the launch, a share of the shortest time in `measurements`."""
    shortest_ms = np.quantile(_latency_ms(measurements), _SHORTEST_QUANTILE)
    return np.maximum(_latency_ms(rows) - LAUNCHING_SHARE * shortest_ms, _MIN_MS)


def _latency_ms(rows: Any) -> Array:
    return np.asarray(rows["latency_ms"].to_numpy(float))


def _columns(rows: Any, *names: str) -> list[Array]:
    return [rows[name].to_numpy(dtype=float, na_value=np.nan) for name in names]


def _product(rows: Any, operator: str) -> tuple[OperatorKind, Array]:
    """Return kind and dimensions (one row per kernel, columns as in DIMENSIONS) of matrix products."""
    if operator == "linear":
        return "linear", np.stack(_columns(rows, "m", "n", "k"), 1)
    return "batched_matmul", np.stack(_columns(rows, "b", "m", "n", "k"), 1)


def _convolution(rows: Any, _operator: str) -> tuple[OperatorKind, Array]:
    names = ("b", "input_channel", "output_channel", "kernel_size", "input_size", "stride", "padding")
    b, channels, outputs, kernel, size, stride, padding = _columns(rows, *names)
    # Tables of other tools lack these columns, because all their convolutions are over images (2 axes), in one group.
    groups, axes = (
        np.nan_to_num(rows[name].to_numpy(float), nan=default) if name in rows else np.full_like(b, default)
        for name, default in (("groups", 1.0), ("edges", 2.0))
    )
    pixels = ((size + 2 * padding - kernel) // stride + 1) ** axes
    taps, n, k = kernel**axes, outputs / groups, channels / groups
    read = b * channels * size**axes + k * outputs * taps
    columns = (b, pixels, n, k * taps, groups, taps, read, b * outputs * pixels)
    return "convolution", np.stack(columns, 1)


def _attention(rows: Any, operator: str) -> tuple[OperatorKind, Array]:
    b, heads, kv, m, n, k = _columns(rows, "b", "h", "kv", "m", "n", "k")
    # "context_attention" is causal: a query meets the keys up to its own position.
    pairs = m * (m + 1) / 2 if operator == "context_attention" else m * n
    return "attention", np.stack((b, heads, kv, m, n, k, k, pairs), 1)


def _rowwise(rows: Any, operator: str) -> tuple[OperatorKind, Array]:
    kind: OperatorKind = "softmax" if operator == "softmax" else "layer_norm"
    return kind, np.stack(_columns(rows, "b", "h"), 1)


def _elementwise(rows: Any, operator: str) -> tuple[OperatorKind, Array]:
    b, width = _columns(rows, "b", "h")
    written = b * width
    slow = np.full_like(written, _SCALAR.sub("", operator) in SLOW_FUNCTIONS)
    return "elementwise", np.stack((written * (2 if operator in _TWO_TENSORS else 1), written, slow), 1)


_DIMENSION_READERS = {
    "linear": _product,
    "batched_matmul": _product,
    "convolution": _convolution,
    "attention": _attention,
    "context_attention": _attention,
    "softmax": _rowwise,
    "layer_norm": _rowwise,
    **dict.fromkeys(("add", "mul", "div", "pow", "gelu", "relu", "tanh"), _elementwise),
}
"""Function that returns kind and dimensions of the rows of an operator, by its name in the kernel tables."""
