"""ONNX Runtime on the processor, reading the ONNX graph that `bench/prepare/worker.py` exports."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from accel_platform.backends.base import Arrays, Confirmation, Placement, Unsupported, UnsupportedPrecision, share
from accel_platform.backends.profiling import OperatorTime, integer_share, is_product, sum_by_operator


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
