"""PyTorch, eager, on cpu, cuda, rocm or mps: one path; devices differ in how they are waited for and weighed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import transformers
from transformers import AutoModel

from accel_platform.backends.base import Arrays, Confirmation, Unsupported
from accel_platform.backends.operators import OperatorTime


class RuntimeBackend:
    """Loads a folder written by `save_pretrained`."""

    name = "pytorch"
    compiles = False

    def __init__(self, *, device: str, threads: int) -> None:
        torch.set_num_threads(threads)
        # Left to itself cuDNN rounds the inputs of float32 convolutions to TF32, with 10 bits of mantissa.
        torch.backends.fp32_precision = "ieee"  # type: ignore[attr-defined]
        self._device = torch.device(device)
        # Each accelerator has a module of the same shape: torch.cuda (also ROCm), torch.mps.
        self._accelerator: Any = None if device == "cpu" else getattr(torch, device)
        self._model: Any = None
        self._inputs: dict[str, torch.Tensor] = {}
        self._last: Any = None

    def versions(self) -> dict[str, str]:
        return {"torch": str(torch.__version__), "transformers": transformers.__version__}

    def load(self, artefact: Path, *, precision: str) -> None:
        if precision != "float32":
            raise Unsupported(f"The {self.name} backend measures float32 only, not {precision}.")
        model = AutoModel.from_pretrained(artefact, dtype=torch.float32)
        self._model = model.eval().to(self._device)
        self._synchronise()

    def compile(self, inputs: Arrays) -> None:  # noqa: ARG002 - other backends specialise for them
        """Eager execution has nothing to compile; what earlier cells took of a device is given back and forgotten."""
        self._inputs, self._last = {}, None
        if self._accelerator is not None:
            self._accelerator.empty_cache()
        if self._device.type == "cuda":
            self._accelerator.reset_peak_memory_stats(self._device)

    def bind(self, inputs: Arrays) -> None:
        self._inputs = {name: torch.from_numpy(array).to(self._device) for name, array in inputs.items()}
        self._synchronise()

    def run(self) -> None:
        with torch.inference_mode():
            self._last = self._model(**self._inputs)
        self._synchronise()

    def outputs(self) -> dict[str, npt.NDArray[np.float32]]:
        from accel_platform.workloads.build import tensors_of

        return {name: np.array(t.float().cpu().numpy()) for name, t in tensors_of(self._last).items()}

    def placement(self) -> None:
        """Eager execution has no graph."""

    def confirm(self) -> Confirmation:
        from accel_platform.workloads.build import tensors_of

        tensors = [*self._model.parameters(), *tensors_of(self._last).values()]
        return Confirmation(self._device.type, tuple(sorted({tensor.device.type for tensor in tensors})))

    def operators(self, *, runs: int, trace: Path) -> list[OperatorTime]:
        if self._device.type not in ("cpu", "cuda"):
            raise Unsupported(f"torch keeps no operator times of {self._device.type}.")
        kinds = torch.profiler.ProfilerActivity
        on_device = self._device.type == "cuda"
        with torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA] if on_device else [kinds.CPU]) as profiler:
            for _ in range(runs):
                self.run()
        profiler.export_chrome_trace(str(trace))
        spent = "self_device_time_total" if on_device else "self_cpu_time_total"
        return [OperatorTime(e.key, e.count, getattr(e, spent) / 1e3) for e in profiler.key_averages()]

    def memory_device_peak_mib(self) -> float | None:
        """What torch's allocator had reserved at most since `compile`; Metal tells the present only, which is as much,
        for the allocator keeps what runs have freed."""
        if self._accelerator is None:
            return None
        if self._device.type == "mps":
            return float(self._accelerator.driver_allocated_memory()) / 2**20
        return float(self._accelerator.max_memory_reserved(self._device)) / 2**20

    def close(self) -> None:
        self._model = self._last = None
        self._inputs = {}

    def _synchronise(self) -> None:
        if self._accelerator is not None:
            self._accelerator.synchronize()
