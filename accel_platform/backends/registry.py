"""Which runtime serves which hardware name. Nothing heavy is imported before a backend is made."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from accel_platform.errors import InvalidInput

if TYPE_CHECKING:
    # Only for the checker: the measuring process imports this module, and its memory should be the runtime's.
    from accel_platform.backends.base import Backend
    from accel_platform.events.types import Hardware

Artefact = Literal["weights", "onnx", "aten"]


@dataclass(frozen=True)
class Runtime:
    """How one hardware name is served: `backend` names the runtime, `device` what that runtime calls the silicon."""

    hardware: Hardware
    backend: str
    device: str
    module: str | None
    """Holds a class `RuntimeBackend`; None where this version of the platform has no backend for the name."""
    packages: tuple[str, ...] = ()
    """Distributions whose versions decide its figures."""
    reads: Artefact = "weights"
    """The prepared artefact it loads: a folder written by transformers, an ONNX graph, or one of ATen operators."""
    precision: str = "float32"
    """What it computes in unless told otherwise."""


_GRAPH = ("torch", "transformers", "onnxscript")
"""An exported graph depends on these as well as on the runtime that reads it."""
_PYTORCH = ("torch", "transformers")
_WEB = ("onnxruntime-web", *_GRAPH)
"""The first is no Python distribution: detection asks the browser for its version."""

RUNTIMES: dict[str, Runtime] = {
    runtime.hardware: runtime
    for runtime in (
        Runtime("cpu", "pytorch", "cpu", "pytorch", _PYTORCH),
        Runtime("cuda", "pytorch", "cuda", "pytorch", _PYTORCH),
        # ROCm builds of torch drive AMD devices under the name "cuda".
        Runtime("rocm", "pytorch", "cuda", "pytorch", _PYTORCH),
        Runtime("mps", "pytorch", "mps", "pytorch", _PYTORCH),
        Runtime("openvino", "openvino", "CPU", "openvino", ("openvino", *_GRAPH), reads="onnx"),
        Runtime("onnxruntime", "onnxruntime", "cpu", "onnxruntime", ("onnxruntime", *_GRAPH), reads="onnx"),
        Runtime("qnn", "onnxruntime-qnn", "htp", "qnn", ("onnxruntime-qnn", "onnxruntime", *_GRAPH), "onnx", "float16"),
        Runtime("jax", "jax", "cpu", "jax", ("jax", "jaxlib", "torch", "transformers"), reads="aten"),
        Runtime("webnn", "onnxruntime-web", "webnn", "browser.backend", _WEB, reads="onnx"),
        Runtime("webgpu", "onnxruntime-web", "webgpu", "browser.backend", _WEB, reads="onnx"),
        Runtime("wasm", "onnxruntime-web", "wasm", "browser.backend", _WEB, reads="onnx"),
    )
}


def runtime_for(hardware: str) -> Runtime:
    """The runtime of a hardware name, in any case. Raises InvalidInput with the closest names."""
    runtime = RUNTIMES.get(hardware.casefold())
    if runtime is None:
        close = difflib.get_close_matches(hardware.casefold(), RUNTIMES, n=3)
        hint = f"Did you mean {', '.join(close)}?" if close else f"Known: {', '.join(RUNTIMES)}."
        raise InvalidInput(f"No hardware is called {hardware!r}. {hint}")
    return runtime


def make_backend(hardware: str, *, threads: int) -> Backend:
    """A fresh backend; importing its runtime happens here. Raises InvalidInput for a name without a backend."""
    runtime = runtime_for(hardware)
    if runtime.module is None:
        raise InvalidInput(f"This version of accel-platform has no backend for {runtime.hardware}.")
    module = import_module(f"accel_platform.backends.{runtime.module}")
    backend: Backend = module.RuntimeBackend(device=runtime.device, threads=threads)
    return backend
