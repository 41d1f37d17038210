"""JAX on the processor: interprets the ATen graph that `bench/prepare/aten_export.py` writes, compiled per shape.

`jax_operators.py` defines the operators. torch is not imported.
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import jax
import jaxlib.version
import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file

from accel_platform.backends.base import Arrays, Confirmation, Unsupported, UnsupportedPrecision, share
from accel_platform.backends.jax_operators import DTYPES, OPERATORS
from accel_platform.errors import InvalidInput


class JaxBackend:
    """JAX on one device. As is JAX's default, 64-bit integers become 32-bit ones; floats become the precision."""

    name = "jax"
    compiles = True
    _HLO: ClassVar = {"float32": "f32", "float16": "f16", "bfloat16": "bf16"}
    """XLA's name of each precision."""

    def __init__(self, *, device: str, threads: int) -> None:
        # XLA's processor client reads NPROC as it starts, which is at the first call below in a fresh process.
        os.environ["NPROC"] = str(threads)
        self._device = jax.devices(device)[0]
        self._precision = "float32"
        self._dtypes = dict(DTYPES)
        self._graph: dict[str, Any] = {}
        self._tensors: dict[str, jax.Array] = {}
        self._compiled: Any = None
        self._inputs: dict[str, jax.Array] = {}
        self._last: dict[str, jax.Array] = {}

    def versions(self) -> dict[str, str]:
        return {"jax": jax.__version__, "jaxlib": jaxlib.version.__version__}

    def load(self, artifact: Path, *, precision: str) -> None:
        if precision not in self._HLO:
            raise UnsupportedPrecision(f"The {self.name} backend does not compute in {precision}.")
        self._precision = precision
        self._dtypes = {**DTYPES, "float64": DTYPES[precision], "float32": DTYPES[precision]}
        try:
            self._graph = json.loads(artifact.read_text(encoding="utf-8"))
        except ValueError as error:
            raise InvalidInput(f"{artifact.name} is no model graph: {error}") from error
        lacking = sorted({node["op"] for node in self._graph["nodes"]} - set(OPERATORS))
        if lacking:
            raise Unsupported(f"Not supported: JAX has no translation here of {', '.join(lacking)}.")
        arrays = load_file(artifact.with_name("tensors.safetensors"))
        self._tensors = self._on_device(arrays)

    def compile(self, inputs: Arrays) -> None:
        self._compiled = None
        # Weights are arguments, because XLA would take minutes to fold them as constants.
        # float32's lowest number, which masks are made of, is minus infinity in float16.
        with np.errstate(over="ignore"):
            lowered = jax.jit(self._forward).lower(self._tensors, self._on_device(inputs))
        # By default XLA multiplies float16 in float32 on a processor.
        self._compiled = lowered.compile(compiler_options={"xla_cpu_strict_dot_conv_math": True})

    def bind(self, inputs: Arrays) -> None:
        self._inputs = self._on_device(inputs)

    def run(self) -> None:
        self._last = _block_until_ready(self._compiled(self._tensors, self._inputs))

    def outputs(self) -> dict[str, npt.NDArray[np.float32]]:
        return {name: np.array(value, dtype=np.float32) for name, value in self._last.items()}

    def placement(self) -> None:
        """Return None: XLA compiles the whole graph for one device."""

    def precision_share(self) -> float | None:
        return products_share(self._compiled.as_text(), self._HLO[self._precision])

    def confirm(self) -> Confirmation:
        seen = {device.platform for value in self._last.values() for device in value.devices()}
        return Confirmation(self._device.platform, tuple(sorted(seen)))

    def memory_device_peak_mib(self) -> float | None:
        return None

    def close(self) -> None:
        self._compiled = None
        self._tensors = self._inputs = self._last = {}

    def _on_device(self, arrays: Arrays) -> dict[str, jax.Array]:
        placed = {
            name: jax.device_put(np.asarray(array, dtype=self._dtypes[array.dtype.name]), self._device)
            for name, array in arrays.items()
        }
        return _block_until_ready(placed)

    def _forward(self, tensors: Mapping[str, jax.Array], inputs: Mapping[str, jax.Array]) -> dict[str, jax.Array]:
        """Interpret the graph; jit runs this once per shape and keeps what it traced."""
        graph = self._graph
        values: dict[str, Any] = {node: tensors[key] for node, key in graph["tensors"].items()}
        values |= {node: inputs[name] for name, node in graph["inputs"].items()}

        def filled(argument: Any) -> Any:
            if isinstance(argument, list):
                return [filled(item) for item in argument]
            if not isinstance(argument, dict):
                return argument
            return values[argument["node"]] if "node" in argument else self._dtypes[argument["dtype"]]

        for node in graph["nodes"]:
            kwargs = {key: filled(value) for key, value in node["kwargs"].items()}
            values[node["name"]] = OPERATORS[node["op"]](*filled(node["args"]), **kwargs)
        return {name: filled(reference) for name, reference in graph["outputs"].items()}


def products_share(program: str, dtype: str) -> float | None:
    """Return the share of products in an optimized HLO program whose first operand has XLA's `dtype`."""
    types = dict(re.findall(r"(%[\w.-]+) = (\w+)\[", program))
    operands = re.findall(r" (?:dot|convolution)\((?:\w+\[[^\]]*\]\S* )?(%[\w.-]+)", program)
    operands += re.findall(r" custom-call\((%[\w.-]+)[^\n]*custom_call_target=\"[^\"]*(?:matmul|conv)", program)
    return share(Counter(types[operand] == dtype for operand in operands))


def _block_until_ready(values: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """Wait until the device has computed these values, and return them."""
    for value in values.values():
        value.block_until_ready()
    return values
