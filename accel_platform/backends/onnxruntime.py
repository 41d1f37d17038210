"""ONNX Runtime on the processor, reading the ONNX graph that `bench/prepare.py` exports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from accel_platform.backends.base import Arrays, Unsupported


class RuntimeBackend:
    """Graph optimisation happens as the session is made, so it counts as load; there is no compiling per shape."""

    name = "onnxruntime"
    compiles = False

    def __init__(self, *, device: str, threads: int) -> None:
        self._provider = {"cpu": "CPUExecutionProvider"}[device]
        self._options = onnxruntime.SessionOptions()
        self._options.intra_op_num_threads = threads
        self._options.inter_op_num_threads = 1
        self._session: Any = None
        self._inputs: dict[str, npt.NDArray[Any]] = {}
        self._names: list[str] = []
        self._last: list[npt.NDArray[Any]] = []

    def versions(self) -> dict[str, str]:
        return {"onnxruntime": onnxruntime.__version__}

    def load(self, artefact: Path, *, precision: str) -> None:
        if precision != "float32":
            raise Unsupported(f"The {self.name} backend measures float32 only, not {precision}.")
        self._session = onnxruntime.InferenceSession(artefact, self._options, providers=[self._provider])
        self._names = [output.name for output in self._session.get_outputs()]

    def compile(self, inputs: Arrays) -> None:
        """The session takes any batch size as it is."""

    def bind(self, inputs: Arrays) -> None:
        # An exporter may have found an input to be unused and dropped it.
        wanted = {node.name for node in self._session.get_inputs()}
        self._inputs = {name: array for name, array in inputs.items() if name in wanted}

    def run(self) -> None:
        self._last = self._session.run(None, self._inputs)

    def outputs(self) -> dict[str, npt.NDArray[np.float32]]:
        return {n: np.array(a, dtype=np.float32) for n, a in zip(self._names, self._last, strict=True)}

    def memory_device_peak_mib(self) -> float | None:
        return None

    def close(self) -> None:
        self._session = None
        self._last = []
