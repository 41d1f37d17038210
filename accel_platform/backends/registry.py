"""Which runtime serves which hardware name. Nothing heavy is imported before a backend is made."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from accel_platform.errors import InvalidInput

if TYPE_CHECKING:
    # Only for the checker: the measuring process imports this module, and its memory should be the runtime's.
    from accel_platform.backends.base import Backend
    from accel_platform.events.types import Hardware

Artefact = Literal["weights", "onnx", "aten"]
BROWSERS = ("chromium", "chrome", "edge", "firefox")


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
    choices: str | None = None
    """Pattern of what may follow its name and a colon, where the runtime drives more than one device or browser."""
    choice: str | None = None
    """What followed the colon; None for the usual one."""

    @property
    def name(self) -> str:
        """What a person types to get it: `openvino`, `openvino:gpu.1`, `wasm:firefox`."""
        return self.hardware if self.choice is None else f"{self.hardware}:{self.choice}"


_GRAPH = ("torch", "transformers", "onnxscript")
"""An exported graph depends on these as well as on the runtime that reads it."""
_PYTORCH = ("torch", "transformers")
_WEB = ("onnxruntime-web", *_GRAPH)
"""The first is no Python distribution: detection asks the browser for its version."""
_IN_BROWSER = "|".join(BROWSERS)

RUNTIMES: dict[str, Runtime] = {
    runtime.hardware: runtime
    for runtime in (
        Runtime("cpu", "pytorch", "cpu", "pytorch", _PYTORCH),
        Runtime("cuda", "pytorch", "cuda", "pytorch", _PYTORCH),
        # ROCm builds of torch drive AMD devices under the name "cuda".
        Runtime("rocm", "pytorch", "cuda", "pytorch", _PYTORCH),
        Runtime("mps", "pytorch", "mps", "pytorch", _PYTORCH),
        Runtime("openvino", "openvino", "CPU", "openvino", ("openvino", *_GRAPH), "onnx", choices=r"(gpu|npu)(\.\d+)?"),
        Runtime("onnxruntime", "onnxruntime", "cpu", "onnxruntime", ("onnxruntime", *_GRAPH), reads="onnx"),
        Runtime("qnn", "onnxruntime-qnn", "htp", "qnn", ("onnxruntime-qnn", "onnxruntime", *_GRAPH), "onnx", "float16"),
        Runtime("jax", "jax", "cpu", "jax", ("jax", "jaxlib", "torch", "transformers"), reads="aten"),
        Runtime("webnn", "onnxruntime-web", "webnn", "browser.backend", _WEB, "onnx", choices=_IN_BROWSER),
        Runtime("webgpu", "onnxruntime-web", "webgpu", "browser.backend", _WEB, "onnx", choices=_IN_BROWSER),
        Runtime("wasm", "onnxruntime-web", "wasm", "browser.backend", _WEB, "onnx", choices=_IN_BROWSER),
    )
}


def runtime_for(hardware: str) -> Runtime:
    """The runtime of a hardware name, in any case, with its choice if it names one.

    Raises InvalidInput with the closest names, or for a choice that the runtime cannot have.
    """
    name, colon, choice = hardware.casefold().partition(":")
    runtime = RUNTIMES.get(name)
    if runtime is None:
        close = difflib.get_close_matches(name, RUNTIMES, n=3)
        hint = f"Did you mean {', '.join(close)}?" if close else f"Known: {', '.join(RUNTIMES)}."
        raise InvalidInput(f"No hardware is called {hardware!r}. {hint}")
    if not colon or choice == runtime.device.casefold():
        return runtime
    if runtime.choices is None or not re.fullmatch(runtime.choices, choice):
        takes = f"{name}:<{runtime.choices}>" if runtime.choices else f"{name} alone"
        raise InvalidInput(f"No hardware is called {hardware!r}. This runtime takes {takes}.")
    return replace(runtime, choice=choice)


def in_browser(name: str, browser: str) -> str:
    """The same hardware name in that browser; names that are not served by a browser, or name one, stay.

    Raises InvalidInput for an unknown name or browser.
    """
    runtime = runtime_for(name)
    if runtime.choices != _IN_BROWSER or runtime.choice is not None:
        return runtime.name
    return runtime_for(f"{name}:{browser}").name


def make_backend(hardware: str, *, threads: int) -> Backend:
    """A fresh backend; importing its runtime happens here. Raises InvalidInput for a name without a backend."""
    runtime = runtime_for(hardware)
    if runtime.module is None:
        raise InvalidInput(f"This version of accel-platform has no backend for {runtime.hardware}.")
    module = import_module(f"accel_platform.backends.{runtime.module}")
    chosen = {} if runtime.choice is None else {"choice": runtime.choice}
    backend: Backend = module.RuntimeBackend(device=runtime.device, threads=threads, **chosen)
    return backend
