"""Registry of hardware names and the runtimes that serve them; runtimes are imported when a backend is made."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Literal

from accel_platform.errors import InvalidInput, did_you_mean

if TYPE_CHECKING:
    # Only for the checker: the measuring process imports this module, and its memory should be the runtime's.
    from accel_platform.backends.base import Backend
    from accel_platform.events.types import Hardware, Mode

Artifact = Literal[
    "weights",
    "onnx",
    "onnx-int8-dynamic",
    "onnx-int8-static",
    "aten",
    "openvino-decoder",
    "openvino-decoder-int8",
    "openvino-decoder-int4",
    "onnx-decoder",
    "onnx-decoder-int8",
    "onnx-decoder-int4",
]
"""`weights` is a folder written by transformers, `onnx` a graph, quantised or not, `aten` one of ATen operators.

A decoder is a graph that continues a cache of keys and values, in the form of OpenVINO GenAI or ONNX Runtime GenAI.
"""
BROWSERS = ("chromium", "chrome", "edge", "firefox")


@dataclass(frozen=True)
class Runtime:
    """Runtime and device that serve one hardware name."""

    hardware: Hardware
    """Hardware name without a choice, such as `openvino`."""
    backend: str
    """Name of the runtime, as results record it."""
    device: str
    """The runtime's own name of the device."""
    entry_point: str
    """Module and class of the backend, below `accel_platform.backends`."""
    packages: tuple[str, ...] = ()
    """Distributions whose versions belong to its fingerprint."""
    precisions: Mapping[str, Artifact] = field(default_factory=lambda: {"float32": "weights"})
    """Precisions that it computes in, the default first, each with the kind of prepared artifact that it loads."""
    missing_precisions: Mapping[str, str] = field(default_factory=dict)
    """Reasons for missing precisions, where there is more to say than that the runtime lacks them."""
    choices: str | None = None
    """Pattern of the choices after the colon, if the runtime drives more than one device or browser; None for none."""
    choice_backends: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Backend and entry point of the choices that a backend of their own serves, so that their figures never mix."""
    choice: str | None = None
    """Choice after the colon; None for the default device."""
    generation: Runtime | None = None
    """Runtime of the mode `generation`, if another library than that of inference generates text; else None."""

    @property
    def name(self) -> str:
        """Full hardware name as users type it: `openvino`, `openvino:gpu.1`, `wasm:firefox`."""
        return self.hardware if self.choice is None else f"{self.hardware}:{self.choice}"

    @property
    def precision(self) -> str:
        """Default precision."""
        return next(iter(self.precisions))

    @property
    def reads(self) -> Artifact:
        """Kind of artifact loaded by default."""
        return self.precisions[self.precision]

    @property
    def fixes_length(self) -> bool:
        """True if its artifacts serve one sequence length only."""
        return self.reads != "weights" and "decoder" not in self.reads

    def in_mode(self, mode: Mode) -> Runtime:
        """Return the runtime that serves the hardware name in this mode."""
        return self.generation if mode == "generation" and self.generation and self.choice is None else self

    def missing_packages(self) -> tuple[str, ...]:
        """Return the packages that it needs and that are not installed."""
        from accel_platform.hardware.host import installed_versions

        installed = installed_versions(self.packages)
        return tuple(package for package in self.packages if package not in installed)

    def precision_problem(self, precision: str) -> str | None:
        """Return why the runtime does not compute in a precision; None if it does, on devices that do."""
        if precision in self.precisions:
            return None
        reason = self.missing_precisions.get(precision, f"it computes in {', '.join(self.precisions)} only")
        return f"{self.name} has no {precision}: {reason}"


_GRAPH = ("torch", "transformers", "onnxscript")
"""An exported graph depends on these as well as on the runtime that reads it."""
_PYTORCH = ("torch", "transformers")
_GENERATING_ONLY = {"int4": "weights of 4 bits are measured in the mode generation only"}
_WEB = ("onnxruntime-web", *_GRAPH)
"""The first is no Python distribution: detection asks the browser for its version."""
_IN_BROWSER = "|".join(BROWSERS)

_FLOATS: dict[str, Artifact] = {"float32": "weights", "float16": "weights", "bfloat16": "weights"}
_CPU_ONLY = {"int8": "torch quantises for processors only"}
_NO_HALVES = {
    "float16": "its processor kernels compute float16 graphs in float32, between casts",
    "bfloat16": "its processor provider has no bfloat16 products",
}
_WEBGPU_LACKS = {
    "float16": "it needs an adapter with shader-f16, which none that it was tried on has",
    "bfloat16": "WebGPU has no bfloat16",
    "int8": "WebGPU has no integer products, which would run on the processor",
}
_WEBNN_LACKS = dict.fromkeys(("float16", "int8"), "no browser that it was tried on has WebNN")

ONNX_PROVIDERS = {
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "rocm": "ROCMExecutionProvider",
    "migraphx": "MIGraphXExecutionProvider",
}
"""Execution provider of ONNX Runtime by what follows the colon of its hardware name."""
_PROVIDED = {name: (f"onnxruntime-{name}", "onnxruntime:GpuOnnxRuntimeBackend") for name in ONNX_PROVIDERS}
_COMPILED = {"compile": ("pytorch-compile", "pytorch_compiled:CompiledPyTorchBackend")}
_CAPTURED = {"graph": ("pytorch-graph", "pytorch_compiled:GraphPyTorchBackend")}

RUNTIMES: dict[str, Runtime] = {
    runtime.hardware: runtime
    for runtime in (
        Runtime(
            "cpu",
            "pytorch",
            "cpu",
            "pytorch:PyTorchBackend",
            _PYTORCH,
            {**_FLOATS, "int8": "weights"},
            choices="compile",
            choice_backends=_COMPILED,
        ),
        Runtime(
            "cuda",
            "pytorch",
            "cuda",
            "pytorch:PyTorchBackend",
            _PYTORCH,
            {**_FLOATS, "tf32": "weights"},
            _CPU_ONLY,
            choices="compile|graph",
            choice_backends=_COMPILED | _CAPTURED,
        ),
        # ROCm builds of torch drive AMD devices under the name "cuda".
        Runtime("rocm", "pytorch", "cuda", "pytorch:PyTorchBackend", _PYTORCH, _FLOATS, _CPU_ONLY),
        Runtime("mps", "pytorch", "mps", "pytorch:PyTorchBackend", _PYTORCH, _FLOATS, _CPU_ONLY),
        Runtime(
            "openvino",
            "openvino",
            "CPU",
            "openvino:OpenVINOBackend",
            ("openvino", *_GRAPH),
            {"float32": "onnx", "float16": "onnx", "bfloat16": "onnx", "int8": "onnx-int8-static"},
            _GENERATING_ONLY,
            choices=r"(gpu|npu)(\.\d+)?",
            generation=Runtime(
                "openvino",
                "openvino",
                "CPU",
                "openvino_genai:OpenVINOGenAIBackend",
                ("openvino-genai", "nncf"),
                {
                    "float32": "openvino-decoder",
                    "float16": "openvino-decoder",
                    "bfloat16": "openvino-decoder",
                    "int8": "openvino-decoder-int8",
                    "int4": "openvino-decoder-int4",
                },
            ),
        ),
        Runtime(
            "onnxruntime",
            "onnxruntime",
            "cpu",
            "onnxruntime:OnnxRuntimeBackend",
            ("onnxruntime", *_GRAPH),
            {"float32": "onnx", "int8": "onnx-int8-dynamic"},
            {**_NO_HALVES, **_GENERATING_ONLY},
            choices="|".join(ONNX_PROVIDERS),
            choice_backends=_PROVIDED,
            generation=Runtime(
                "onnxruntime",
                "onnxruntime",
                "cpu",
                "onnxruntime_genai:OnnxRuntimeGenAIBackend",
                ("onnxruntime-genai",),
                {"float32": "onnx-decoder", "int8": "onnx-decoder-int8", "int4": "onnx-decoder-int4"},
                _NO_HALVES,
            ),
        ),
        Runtime(
            "qnn",
            "onnxruntime-qnn",
            "htp",
            "qnn:QnnBackend",
            ("onnxruntime-qnn", "onnxruntime", *_GRAPH),
            {"float16": "onnx"},
        ),
        Runtime(
            "jax",
            "jax",
            "cpu",
            "jax:JaxBackend",
            ("jax", "jaxlib", "torch", "transformers"),
            dict.fromkeys(_FLOATS, "aten"),
        ),
        Runtime(
            "webnn",
            "onnxruntime-web",
            "webnn",
            "browser.backend:BrowserBackend",
            _WEB,
            {"float32": "onnx"},
            _WEBNN_LACKS,
            _IN_BROWSER,
        ),
        Runtime(
            "webgpu",
            "onnxruntime-web",
            "webgpu",
            "browser.backend:BrowserBackend",
            _WEB,
            {"float32": "onnx"},
            _WEBGPU_LACKS,
            _IN_BROWSER,
        ),
        Runtime(
            "wasm",
            "onnxruntime-web",
            "wasm",
            "browser.backend:BrowserBackend",
            _WEB,
            {"float32": "onnx", "int8": "onnx-int8-dynamic"},
            _NO_HALVES,
            choices=_IN_BROWSER,
        ),
    )
}


_OLD_NAMES = {"qualcomm": "qnn"}
"""Names of the old framework's guides and suites."""


@lru_cache(maxsize=256)
def runtime_for(hardware: str) -> Runtime:
    """Return the runtime of a hardware name, in any case, with the choice that the name holds.

    Raises InvalidInput with the closest names, or for a choice that the runtime cannot have.
    """
    name, colon, choice = hardware.casefold().partition(":")
    runtime = RUNTIMES.get(_OLD_NAMES.get(name, name))
    if runtime is None:
        close = difflib.get_close_matches(name, RUNTIMES, n=3)
        hint = did_you_mean(close, otherwise=f"Known: {', '.join(RUNTIMES)}.")
        raise InvalidInput(f"No hardware is called {hardware!r}. {hint}")
    if not colon or choice == runtime.device.casefold():
        return runtime
    if runtime.choices is None or not re.fullmatch(runtime.choices, choice):
        takes = f"{name}:<{runtime.choices}>" if runtime.choices else f"{name} alone"
        raise InvalidInput(f"No hardware is called {hardware!r}. This runtime takes {takes}.")
    if choice not in runtime.choice_backends:
        return replace(runtime, choice=choice)
    backend, entry_point = runtime.choice_backends[choice]
    precisions = {name: artifact for name, artifact in runtime.precisions.items() if name != "int8"}
    return replace(runtime, choice=choice, backend=backend, entry_point=entry_point, precisions=precisions)


def in_browser(name: str, browser: str) -> str:
    """Return the hardware name in that browser; names without a browser, or with one, stay.

    Raises InvalidInput for an unknown name or browser.
    """
    runtime = runtime_for(name)
    if runtime.choices != _IN_BROWSER or runtime.choice is not None:
        return runtime.name
    return runtime_for(f"{name}:{browser}").name


def make_backend(hardware: str, *, threads: int, mode: Mode = "inference") -> Backend:
    """Return a new backend, importing its runtime. Raises InvalidInput for an unknown name."""
    runtime = runtime_for(hardware).in_mode(mode)
    module, _, name = runtime.entry_point.partition(":")
    chosen = {} if runtime.choice is None else {"choice": runtime.choice}
    backend_class = getattr(import_module(f"accel_platform.backends.{module}"), name)
    backend: Backend = backend_class(device=runtime.device, threads=threads, **chosen)
    return backend
