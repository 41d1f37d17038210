"""OpenVINO, reading the same ONNX graph as ONNX Runtime and compiled for the fixed shape of each cell."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import openvino

from accel_platform.backends.base import Arrays, Confirmation, Placement, UnsupportedPrecision, share
from accel_platform.backends.profiling import OperatorTime, sum_by_operator, write_trace

# In a quantized graph, the hint sets the precision of operators that are not in integers.
HINTS = {"float32": "f32", "float16": "f16", "bfloat16": "bf16", "int8": "f32", "int4": "f32"}
SEEN_PRECISIONS = {
    "float32": {"f32", "fp32"},
    "float16": {"f16", "fp16"},
    "bfloat16": {"bf16"},
    "int8": {"i8", "u8"},
    "int4": {"i4", "u4"},
}
"""Names of each precision in the executed graph."""
PRODUCTS = frozenset(
    (
        "fullyconnected",
        "matmul",
        "convolution",
        "groupconvolution",
        "deconvolution",
        "scaleddotproductattention",
        "fullyconnectedcompressed",
        "gemm",
    )
)


class OpenVINOBackend:
    """OpenVINO with one stream and one request: measures a batch's latency, not the throughput of many requests."""

    name = "openvino"
    compiles = True

    def __init__(self, *, device: str, threads: int, choice: str | None = None) -> None:
        self._core = openvino.Core()
        self._device = device if choice is None else choice.upper()
        self._threads = threads
        self._precision = "float32"
        self._model: Any = None
        self._request: Any = None
        self._specialised: tuple[Any, dict[str, Any]] | None = None
        """Model that was compiled last, with fixed shapes, and the configuration it was compiled with."""

    def versions(self) -> dict[str, str]:
        return {"openvino": openvino.__version__}

    def load(self, artifact: Path, *, precision: str) -> None:
        if precision not in HINTS or precision == "int4":
            raise UnsupportedPrecision(f"The {self.name} backend does not compute in {precision}.")
        self._precision = precision
        self._model = self._core.read_model(artifact)

    def compile(self, inputs: Arrays) -> None:
        self._request = self._specialised = None
        hint = HINTS[self._precision]
        static = self._model.clone()
        static.reshape({port.any_name: list(inputs[port.any_name].shape) for port in static.inputs})
        config = {
            # Only the processor's plug-in takes a number of threads.
            **({"INFERENCE_NUM_THREADS": self._threads} if self._device == "CPU" else {}),
            "NUM_STREAMS": 1,
            "PERFORMANCE_HINT": "LATENCY",
            # By default OpenVINO computes in bfloat16 on processors that have it.
            "INFERENCE_PRECISION_HINT": hint,
        }
        compiled = self._core.compile_model(static, self._device, config)
        # OpenVINO replaces a hint that the device cannot follow, without a warning.
        chosen = compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name()
        if chosen != hint:
            able = ", ".join(self._core.get_property(self._device, "OPTIMIZATION_CAPABILITIES"))
            raise UnsupportedPrecision(
                f"OpenVINO was asked for {hint} and compiled for {chosen}: this {self._device} has {able}."
            )
        self._request = compiled.create_infer_request()
        self._specialised = static, config

    def bind(self, inputs: Arrays) -> None:
        # Compiling may give a port further names, of operators that it folded into it; the order stays.
        ports = self._request.get_compiled_model().inputs
        for port, known in zip(ports, self._model.inputs, strict=True):
            self._request.set_tensor(port, openvino.Tensor(np.ascontiguousarray(inputs[known.any_name])))

    def run(self) -> None:
        # By default OpenVINO copies every output into a new array each time, which is no part of the model's work.
        self._request.infer(share_outputs=True)

    def outputs(self) -> dict[str, npt.NDArray[np.float32]]:
        ports = self._request.get_compiled_model().outputs
        known = [port.any_name for port in self._model.outputs]
        tensors = [self._request.get_tensor(port).data for port in ports]
        return {name: np.array(data, dtype=np.float32) for name, data in zip(known, tensors, strict=True)}

    def placement(self) -> Placement:
        # OpenVINO, compiling for one device, takes the whole graph or refuses it.
        nodes = self._request.get_compiled_model().get_runtime_model().get_ops()
        kinds = [node.get_rt_info()["layerType"].value for node in nodes]
        return Placement(sum(kind not in ("Const", "Input", "Output") for kind in kinds))

    def precision_share(self) -> float | None:
        nodes = self._request.get_compiled_model().get_runtime_model().get_ops()
        facts = [node.get_rt_info() for node in nodes]
        products = [fact for fact in facts if fact["layerType"].value.casefold() in PRODUCTS]
        wanted = SEEN_PRECISIONS[self._precision]
        return share(Counter(fact["runtimePrecision"].value.casefold() in wanted for fact in products))

    def confirm(self) -> Confirmation:
        devices = self._request.get_compiled_model().get_property("EXECUTION_DEVICES")
        # OpenVINO reports a number even for the only device of its kind, which the plain name stands for as well.
        seen = devices if "." in self._device else [device.partition(".")[0] for device in devices]
        return Confirmation(self._device, tuple(seen))

    def operators(self, *, runs: int, trace: Path) -> list[OperatorTime]:
        assert self._specialised is not None
        static, config = self._specialised
        given, counting = self._request, {**config, "PERF_COUNT": True}
        self._request = self._core.compile_model(static, self._device, counting).create_infer_request()
        for port in self._request.get_compiled_model().inputs:
            self._request.set_tensor(port, given.get_tensor(port.any_name))
        seen = []
        for _ in range(runs):
            self.run()
            seen += self._request.profiling_info
        # A node that takes less than the counters' microsecond is reported as not run in that pass.
        ran = {node.node_name for node in seen if node.status == openvino.ProfilingInfo.Status.EXECUTED}
        spans = [(n.node_name, n.node_type, n.real_time.total_seconds() * 1e6) for n in seen if n.node_name in ran]
        write_trace(spans, trace)
        return sum_by_operator((operator, duration_us) for _, operator, duration_us in spans)

    def memory_device_peak_mib(self) -> float | None:
        return None

    def close(self) -> None:
        self._request = self._model = self._specialised = None
