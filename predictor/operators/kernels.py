"""Kernel measurements as training data: operators with shapes, the device, and how long one took."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.parquet as pq

from accel_platform.hardware.catalog import find_spec
from accel_platform.workloads.operators import SLOW_FUNCTIONS, OperatorKind
from predictor.operators.device_rates import DeviceRates, device_rates
from predictor.operators.features import Array, price

BITS = {"float32": 32, "float16": 16, "bfloat16": 16}
"""Precisions whose operators are priced, by the width of a number."""
_SCALAR = re.compile("_scalar$")
_TWO_TENSORS = frozenset(("add", "mul", "div", "pow"))


@dataclass(frozen=True)
class KernelTable:
    """Kernels of one class of operator, ready to learn from: one row each."""

    log_time_over_light: Array
    """Natural log of the measured time over the speed of light: minus the log of the utilization."""
    features: Array
    light_ms: Array
    groups: npt.NDArray[np.str_]
    """Device and bits, as `effect_group` names them."""

    @classmethod
    def join(cls, tables: Sequence[KernelTable]) -> KernelTable:
        return cls(*(np.concatenate([getattr(t, name) for t in tables]) for name in cls.__dataclass_fields__))

    def where(self, chosen: npt.NDArray[np.bool_]) -> KernelTable:
        """Return the rows that a mask chooses."""
        return KernelTable(*(getattr(self, name)[chosen] for name in self.__dataclass_fields__))


def effect_group(device: str, bits: int) -> str:
    """Return the name under which what is particular to a device is learned, for one width of numbers."""
    return f"{device} {bits}"


def learned_as(kind: OperatorKind, device: DeviceRates, bits: int) -> OperatorKind:
    """Return the class whose kernels tell about an operator.

    Vector units compute convolutions by algorithms of their own, of which Winograd's saves products. On matrix units
    they are computed as products are. Attention in 32 bits is priced as its two products (`priced_parts`).
    """
    if kind == "attention" and bits == 32:
        return "batched_matmul"
    if kind == "convolution" and device.flops[bits] > device.flops[32]:
        return "linear"
    return "elementwise" if kind == "embedding" else kind


MAX_ROWS = 3_000
"""Kernels of one class, device and operator that are learned from: more fit a device no better."""

EAGER_BITS = 32
"""Width of the kernels that were timed one by one from Python; those in 16 bits ran in graphs."""
LAUNCHING_SHARE = 0.6
"""Share of the shortest time of a device and operator that went into launching it. In a model that passes while the
operator before still runs. Of 0, 0.6, 0.8 and 0.9 the best whichever device is left out: 13.3, 9.8, 11.1 and 15.0 % in
the median of 83 models."""
_SHORTEST = 0.001
_LEAST_MS = 0.002


def load_kernels(paths: Iterable[Path]) -> dict[OperatorKind, KernelTable]:
    """Return the kernels of these files by class.

    Those of unknown devices and precisions are left out, and those that tell of no operator as it is priced.
    """
    tables: dict[OperatorKind, list[KernelTable]] = {}
    for path in paths:
        frame = pq.read_table(path).to_pandas()
        keys = ["device", "precision", "operator"]
        for (device, precision, operator), measurements in frame.groupby(keys, observed=True):
            spec, bits = find_spec(str(device)), BITS.get(str(precision))
            rates = None if spec is None else device_rates(spec)
            shape = _SHAPES.get(_SCALAR.sub("", str(operator)))
            if bits is None or shape is None or not isinstance(rates, DeviceRates):
                continue
            rows = measurements.sample(min(MAX_ROWS, len(measurements)), random_state=1)
            kind, dimensions = shape(rows, str(operator))
            if learned_as(kind, rates, bits) != kind:
                continue
            light, features = price(kind, dimensions, rates, bits)
            measured = rows["latency_ms"].to_numpy(float)
            if bits == EAGER_BITS:
                shortest = np.quantile(measurements["latency_ms"].to_numpy(float), _SHORTEST)
                measured = np.maximum(measured - LAUNCHING_SHARE * shortest, _LEAST_MS)
            groups = np.full(len(rows), effect_group(rates.name, bits))
            tables.setdefault(kind, []).append(KernelTable(np.log(measured / light), features, light, groups))
    return {kind: KernelTable.join(found) for kind, found in tables.items()}


def _columns(rows: Any, *names: str) -> list[Array]:
    return [rows[name].to_numpy(dtype=float, na_value=np.nan) for name in names]


def _product(rows: Any, operator: str) -> tuple[OperatorKind, Array]:
    if operator == "linear":
        return "linear", np.stack(_columns(rows, "m", "n", "k"), 1)
    return "batched_matmul", np.stack(_columns(rows, "b", "m", "n", "k"), 1)


def _convolution(rows: Any, _operator: str) -> tuple[OperatorKind, Array]:
    names = ("b", "input_channel", "output_channel", "kernel_size", "input_size", "stride", "padding")
    b, channels, outputs, kernel, size, stride, padding = _columns(rows, *names)
    # Tables of others tell of convolutions over images alone, and of none in groups.
    groups, edges = (
        np.nan_to_num(rows[name].to_numpy(float), nan=usual) if name in rows else np.full_like(b, usual)
        for name, usual in (("groups", 1.0), ("edges", 2.0))
    )
    pixels = ((size + 2 * padding - kernel) // stride + 1) ** edges
    taps, n, k = kernel**edges, outputs / groups, channels / groups
    read = b * channels * size**edges + k * outputs * taps
    columns = (b, pixels, n, k * taps, groups, taps, read, b * outputs * pixels)
    return "convolution", np.stack(columns, 1)


def _attention(rows: Any, operator: str) -> tuple[OperatorKind, Array]:
    b, heads, kv, m, n, k = _columns(rows, "b", "h", "kv", "m", "n", "k")
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


_SHAPES = {
    "linear": _product,
    "batched_matmul": _product,
    "convolution": _convolution,
    "attention": _attention,
    "context_attention": _attention,
    "softmax": _rowwise,
    "layer_norm": _rowwise,
    **dict.fromkeys(("add", "mul", "div", "pow", "gelu", "relu", "tanh"), _elementwise),
}
