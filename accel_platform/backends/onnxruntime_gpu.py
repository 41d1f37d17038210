"""ONNX Runtime on a GPU, by one of its execution providers: CUDA, TensorRT, ROCm or MIGraphX.

ONNX Runtime gives the processor what the provider does not take; `placement` says how much that was.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnxruntime

from accel_platform.backends.base import Arrays, Unsupported, UnsupportedPrecision
from accel_platform.backends.onnxruntime import OnnxRuntimeBackend
from accel_platform.backends.registry import ONNX_PROVIDERS


class GpuOnnxRuntimeBackend(OnnxRuntimeBackend):
    """Inputs and outputs stay in the GPU's memory, as torch's do; TensorRT builds its engine for each shape."""

    compiles = True
    memory = "cuda"
    """ONNX Runtime's name of the memory that inputs are bound in; it calls AMD's so, too."""
    _OPTIONS: ClassVar[dict[str, dict[str, str]]] = {"CUDAExecutionProvider": {"use_tf32": "0"}}

    def __init__(self, *, device: str, threads: int, choice: str) -> None:
        super().__init__(device=device, threads=threads)
        self.provider = ONNX_PROVIDERS.get(choice, self.provider)
        self.name = f"onnxruntime-{choice}"
        # TensorRT has no other setting for it: float32 is to mean float32.
        os.environ["NVIDIA_TF32_OVERRIDE"] = "0"
        self._binding: Any = None

    def load(self, artifact: Path, *, precision: str) -> None:
        if precision != "float32":
            raise UnsupportedPrecision(f"The {self.name} backend does not compute in {precision}.")
        self._artifact = artifact
        wanted = list(dict.fromkeys((self.provider, "CPUExecutionProvider")))
        options = [self._OPTIONS.get(name, {}) for name in wanted]
        self._session = onnxruntime.InferenceSession(
            artifact, self._new_options(), providers=wanted, provider_options=options
        )
        if self._session.get_providers()[0] != self.provider:
            raise Unsupported(
                f"{self.provider} is not supported here: ONNX Runtime could not load it or one of its libraries, and"
                f" took {self._session.get_providers()[0]}."
            )
        self._names = [output.name for output in self._session.get_outputs()]

    def compile(self, inputs: Arrays) -> None:
        """Run once, because providers choose kernels and build engines at the first run of a shape."""
        self.bind(inputs)
        self.run()
        placed = self.placement()
        if placed.accelerated == 0 and placed.elsewhere:
            kinds = ", ".join(sorted(placed.elsewhere)[:5])
            raise Unsupported(f"The model is not supported by {self.provider}, which takes none of: {kinds}.")

    def bind(self, inputs: Arrays) -> None:
        super().bind(inputs)
        self._binding = self._session.io_binding()
        for name, array in self._inputs.items():
            value = onnxruntime.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array), self.memory, 0)
            self._binding.bind_ortvalue_input(name, value)
        for name in self._names:
            self._binding.bind_output(name, self.memory)

    def run(self) -> None:
        self._session.run_with_iobinding(self._binding)
        self._binding.synchronize_outputs()

    def outputs(self) -> dict[str, npt.NDArray[np.float32]]:
        found = self._binding.copy_outputs_to_cpu()
        return {name: np.array(array, dtype=np.float32) for name, array in zip(self._names, found, strict=True)}

    def precision_share(self) -> float | None:
        # The processor computed what the provider did not take.
        return self.provider_share()

    def operators(self, *, runs: int, trace: Path) -> Any:  # noqa: ARG002 - as ProfilingBackend has it
        raise Unsupported(f"The operator times of {self.provider} are not read here.")

    def close(self) -> None:
        self._binding = None
        super().close()
