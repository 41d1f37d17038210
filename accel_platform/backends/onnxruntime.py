"""ONNX Runtime on the processor, or on a GPU by CUDA, TensorRT, ROCm or MIGraphX.

It reads the ONNX graph that `bench/prepare/worker.py` exports. On a GPU it gives the processor what the provider does
not take; `placement` says how much that was.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import onnxruntime

from accel_platform.backends.base import Arrays, Confirmation, Placement, Unsupported, UnsupportedPrecision, share
from accel_platform.backends.profiling import OperatorTime, integer_share, is_product, sum_by_operator
from accel_platform.backends.registry import ONNX_PROVIDERS


class OnnxRuntimeBackend:
    """Graph optimisation happens as the session is made, so it counts as load; there is no compiling per shape."""

    name = "onnxruntime"
    compiles = False
    provider = "CPUExecutionProvider"

    def __init__(self, *, device: str, threads: int) -> None:
        assert device == "cpu"
        self._threads = threads
        self._precision = "float32"
        self._artifact: Path | None = None
        self._session: Any = None
        self._inputs: dict[str, npt.NDArray[Any]] = {}
        self._names: list[str] = []
        self._last: list[npt.NDArray[Any]] = []

    def versions(self) -> dict[str, str]:
        return {"onnxruntime": onnxruntime.__version__}

    def load(self, artifact: Path, *, precision: str) -> None:
        if precision not in ("float32", "int8"):
            raise UnsupportedPrecision(f"The {self.name} backend does not compute in {precision}.")
        self._artifact, self._precision = artifact, precision
        self._session = onnxruntime.InferenceSession(artifact, self._new_options(), providers=[self.provider])
        self._names = [output.name for output in self._session.get_outputs()]

    def compile(self, inputs: Arrays) -> None:
        """Do nothing: the session takes any batch size."""

    def bind(self, inputs: Arrays) -> None:
        # An exporter may have found an input to be unused and dropped it.
        wanted = {node.name for node in self._session.get_inputs()}
        self._inputs = {name: array for name, array in inputs.items() if name in wanted}

    def run(self) -> None:
        self._last = self._session.run(None, self._inputs)

    def outputs(self) -> dict[str, npt.NDArray[np.float32]]:
        return {n: np.array(a, dtype=np.float32) for n, a in zip(self._names, self._last, strict=True)}

    def placement(self) -> Placement:
        parts = [(part.ep_name, part.get_nodes()) for part in self._session.get_provider_graph_assignment_info()]
        return Placement(
            accelerated=sum(len(nodes) for provider, nodes in parts if provider == self.provider),
            elsewhere=dict(Counter(n.op_type for provider, nodes in parts if provider != self.provider for n in nodes)),
        )

    def precision_share(self) -> float | None:
        # In ONNX an operator on integers is another operator; this provider computes those on floats in float32.
        parts = self._session.get_provider_graph_assignment_info()
        return integer_share((node.op_type for part in parts for node in part.get_nodes()), self._precision)

    def provider_share(self) -> float | None:
        """Return the share of the matrix products that the provider computes itself; None without products."""
        parts = self._session.get_provider_graph_assignment_info()
        products = ((part.ep_name, node.op_type) for part in parts for node in part.get_nodes())
        return share(Counter(provider == self.provider for provider, operator in products if is_product(operator)))

    def confirm(self) -> Confirmation:
        # The first provider is asked for every operator first; which ones it took is `placement`.
        return Confirmation(self.provider, tuple(self._session.get_providers()[:1]))

    def operators(self, *, runs: int, trace: Path) -> list[OperatorTime]:
        if self.provider != "CPUExecutionProvider":
            raise Unsupported(f"The operator times of {self.provider} are not read here.")
        options = self._new_options()
        options.enable_profiling = True
        options.profile_file_prefix = str(trace.with_suffix(""))
        self._session = onnxruntime.InferenceSession(self._artifact, options, providers=[self.provider])
        for _ in range(runs):
            self.run()
        # It appends the time to the name it was given, and writes a Chrome trace.
        Path(self._session.end_profiling()).replace(trace)
        nodes = (event for event in json.loads(trace.read_text(encoding="utf-8")) if event.get("cat") == "Node")
        return sum_by_operator((node["args"]["op_name"], node["dur"]) for node in nodes if "op_name" in node["args"])

    def memory_device_peak_mib(self) -> float | None:
        return None

    def close(self) -> None:
        self._session = None
        self._last = []

    def _new_options(self) -> Any:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        # `placement` reads this record.
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        return options


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

    def close(self) -> None:
        self._binding = None
        super().close()
