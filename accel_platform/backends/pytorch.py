"""PyTorch in eager mode on cpu, cuda, rocm or mps. The devices differ in how they synchronize and report memory."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import torch
import transformers
from torch._C._autograd import DeviceType
from torch.utils._python_dispatch import TorchDispatchMode

from accel_platform.backends.base import Arrays, Confirmation, Unsupported, UnsupportedPrecision, share
from accel_platform.backends.profiling import OperatorTime
from accel_platform.workloads.build import register_architecture
from accel_platform.workloads.sources import load_source

if TYPE_CHECKING:
    from accel_platform.workloads.heads import Head


class PyTorchBackend:
    """Loads a folder written by `save_pretrained` or `save_source`.

    Casting its weights, or quantising its linear layers, is part of loading.
    """

    name = "pytorch"
    compiles = False
    _DTYPES: ClassVar = {
        "float32": torch.float32,
        "float16": torch.float16,
        "bfloat16": torch.bfloat16,
        # Weights and activations are float32; the tensor cores round the operands of products.
        "tf32": torch.float32,
        # Parts that are not quantised, above all activations, stay in float32.
        "int8": torch.float32,
    }

    def __init__(self, *, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        set_float32_rounding("ieee")
        self.device = torch.device(device)
        # Each accelerator has a module of the same shape: torch.cuda (also ROCm), torch.mps.
        self._accelerator: Any = None if device == "cpu" else getattr(torch, device)
        self.model: Any = None
        self._precision = "float32"
        self._inputs: dict[str, torch.Tensor] = {}
        self._last: Any = None

    def versions(self) -> dict[str, str]:
        return {"torch": str(torch.__version__), "transformers": transformers.__version__}

    def load(self, artifact: Path, *, precision: str, head: Head = "AutoModel") -> None:
        self._refuse(precision)
        dtype = self._DTYPES[precision]
        set_float32_rounding("tf32" if precision == "tf32" else "ieee")
        if (sourced := load_source(artifact)) is not None:
            model = sourced.to(dtype)
        else:
            register_architecture(json.loads((artifact / "config.json").read_bytes())["model_type"])
            model = getattr(transformers, head).from_pretrained(artifact, dtype=dtype).eval()
        self._precision = precision
        self.model = (_quantize(model) if precision == "int8" else model).to(self.device)
        self.synchronize()

    def compile(self, inputs: Arrays) -> None:  # noqa: ARG002 - other backends specialise for them
        """Release and forget device memory of earlier cells; eager execution compiles nothing."""
        self._inputs, self._last = {}, None
        if self._accelerator is not None:
            self._accelerator.empty_cache()
        if self.device.type == "cuda":
            self._accelerator.reset_peak_memory_stats(self.device)

    def bind(self, inputs: Arrays) -> None:
        dtype = self._DTYPES[self._precision]
        placed = {name: torch.from_numpy(array).to(self.device) for name, array in inputs.items()}
        self._inputs = {name: t.to(dtype) if t.is_floating_point() else t for name, t in placed.items()}
        self.synchronize()

    def run(self) -> None:
        with torch.inference_mode():
            self._last = self.model(**self._inputs)
        self.synchronize()

    def outputs(self) -> dict[str, npt.NDArray[np.float32]]:
        from accel_platform.workloads.build import tensors_of

        return {name: np.array(t.float().cpu().numpy()) for name, t in tensors_of(self._last).items()}

    def placement(self) -> None:
        """Return None: eager execution has no graph."""

    def precision_share(self) -> float | None:
        counted = precision_share(lambda: self.model(**self._inputs), self._precision)
        if self.device.type != "cuda" or self._precision not in ("float32", "tf32"):
            return counted
        # Both have float32 operands, so what the device does with them is seen in its results only.
        return counted if rounding_of(self.device) == {"float32": "ieee", "tf32": "tf32"}[self._precision] else 0.0

    def confirm(self, results: Sequence[torch.Tensor] | None = None) -> Confirmation:
        """Confirm by the device of the weights and of the outputs of the last run."""
        from accel_platform.workloads.build import tensors_of

        tensors = [*self.model.parameters(), *(tensors_of(self._last).values() if results is None else results)]
        return Confirmation(self.device.type, tuple(sorted({tensor.device.type for tensor in tensors})))

    def operators(self, *, runs: int, trace: Path) -> list[OperatorTime]:
        if self.device.type not in ("cpu", "cuda"):
            raise Unsupported(f"torch keeps no operator times of {self.device.type}.")
        kinds = torch.profiler.ProfilerActivity
        on_device = self.device.type == "cuda"
        activities = [kinds.CPU, kinds.CUDA] if on_device else [kinds.CPU]
        with torch.profiler.profile(activities=activities, acc_events=True) as profiler:
            for _ in range(runs):
                self.run()
        profiler.export_chrome_trace(str(trace))
        if not on_device:
            return [OperatorTime(e.key, e.count, e.self_cpu_time_total / 1e3) for e in profiler.key_averages()]
        # Kernels are listed beside the operators that launched them, which have their time already.
        launching = [e for e in profiler.key_averages() if e.device_type == DeviceType.CPU]
        spent = [OperatorTime(e.key, e.count, e.self_device_time_total / 1e3) for e in launching]
        return [entry for entry in spent if entry.total_ms > 0]

    def memory_device_peak_mib(self) -> float | None:
        """Return the most that torch's allocator reserved since `compile`, in MiB.

        Metal reports the present value only, which is as much: its allocator keeps freed memory.
        """
        if self._accelerator is None:
            return None
        if self.device.type == "mps":
            return float(self._accelerator.driver_allocated_memory()) / 2**20
        return float(self._accelerator.max_memory_reserved(self.device)) / 2**20

    def close(self) -> None:
        self.model = self._last = None
        self._inputs = {}

    def synchronize(self) -> None:
        if self._accelerator is not None:
            self._accelerator.synchronize()

    def _refuse(self, precision: str) -> None:
        """Raise UnsupportedPrecision for a precision that this device lacks."""
        if precision not in self._DTYPES:
            raise UnsupportedPrecision(f"The {self.name} backend does not compute in {precision}.")
        if precision == "int8" and self.device.type != "cpu":
            raise UnsupportedPrecision("int8 is not supported: torch quantises linear layers for processors only.")
        if precision == "tf32" and not (self.device.type == "cuda" and _has_tf32(self.device)):
            raise UnsupportedPrecision("tf32 is not supported: only NVIDIA GPUs since Ampere round products to it.")
        # Older devices take bfloat16 and compute in float32.
        if (
            precision == "bfloat16"
            and self.device.type == "cuda"
            and not torch.cuda.is_bf16_supported(including_emulation=False)
        ):
            raise UnsupportedPrecision("bfloat16 is not supported: torch would only emulate it on this device.")


def set_float32_rounding(mode: Literal["ieee", "tf32"]) -> None:
    """Set how this process computes float32 products and convolutions on NVIDIA GPUs.

    Left to itself cuDNN rounds the inputs of convolutions to TF32, with 10 bits of mantissa. Every setting is made, the
    older ones too: torch 2.11 keeps cuDNN's own when the general one changes, and torch.export refuses a mixture.
    """
    backends: Any = torch.backends
    backends.cudnn.allow_tf32 = mode == "tf32"
    torch.set_float32_matmul_precision("high" if mode == "tf32" else "highest")
    for place in (backends, backends.cuda.matmul, backends.cudnn.conv, backends.cudnn.rnn):
        place.fp32_precision = mode


def rounding_of(device: torch.device) -> Literal["ieee", "tf32", "mixed"]:
    """Return how the device rounds the operands of float32 products and convolutions, by computing some of each.

    It computes a small one and a large one of each, because libraries may compute a small one exactly where they may
    round. An H100 did so with a product of 256 and a convolution of 32 channels, and rounded those of models.
    """
    generator = torch.Generator(device).manual_seed(0)

    def drawn(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    convolve = torch.nn.functional.conv2d
    products = [(torch.matmul, drawn(size, size), drawn(size, size)) for size in (256, 1024)]
    convolutions = [(convolve, drawn(8, size, 32, 32), drawn(2 * size, size, 3, 3)) for size in (32, 128)]
    rounded = [
        any(_relative_error(function, *operands) > _TF32_ERROR for function, *operands in some)
        for some in (products, convolutions)
    ]
    return "tf32" if all(rounded) else "mixed" if any(rounded) else "ieee"


def _relative_error(function: Callable[..., torch.Tensor], *operands: torch.Tensor) -> float:
    """Return the error of a function in float32 against the same device's float64."""
    exact = function(*(operand.double() for operand in operands))
    return float((function(*operands).double() - exact).norm() / exact.norm())


_TF32_ERROR = 2e-5
"""Relative error between those of float32 (about 3e-7) and of TF32 (about 3e-4)."""


def _has_tf32(device: torch.device) -> bool:
    return torch.version.hip is None and torch.cuda.get_device_capability(device)[0] >= 8


def _quantize(model: Any) -> Any:
    """Return the model with int8 weights in linear layers and dynamically quantized inputs.

    torch deprecates `quantize_dynamic` in favor of torchao, but still ships it with its kernels.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        warnings.filterwarnings("ignore", category=UserWarning, message=".*[Tt]yped[Ss]torage|.*quantiz")
        quantize: Any = torch.ao.quantization.quantize_dynamic
        return quantize(model, {torch.nn.Linear}, dtype=torch.qint8, inplace=True)


_PRODUCTS = frozenset(
    (
        "mm",
        "addmm",
        "bmm",
        "baddbmm",
        "linear",
        "matmul",
        "convolution",
        "_convolution",
        "mkldnn_linear",
        "_grouped_mm",
        "_int_mm",
    )
)
_ATTENTION = "_scaled_dot_product"


def precision_share(forward: Callable[[], Any], precision: str) -> float | None:
    """Return the share of products in one call of `forward` whose operands have the precision; int8 ones are
    quantized.
    """
    counts: Counter[bool] = Counter()
    wanted = "torch.float32" if precision == "tf32" else f"torch.{precision}"

    class Products(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            namespace, _, name = func.name().partition("::")
            name = name.partition(".")[0]
            if namespace == "quantized" and name.startswith(("linear", "conv", "matmul")):
                counts[precision == "int8"] += 1
            elif namespace == "aten" and (name in _PRODUCTS or name.startswith(_ATTENTION)):
                operand = next(value for value in args if isinstance(value, torch.Tensor))
                counts[str(operand.dtype) == wanted] += 1
            return func(*args, **(kwargs or {}))

    # Under inference_mode composite operators would come whole, products and all.
    with torch.no_grad(), Products():  # type: ignore[no-untyped-call]
        forward()
    return share(counts)
