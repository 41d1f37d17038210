"""Qualcomm's HTP through ONNX Runtime's QNN plugin: the device on a Snapdragon, its emulator on a Linux PC.

ONNX Runtime gives operators that QNN does not take to the processor; `placement` says how many these were.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import onnxruntime_qnn

from accel_platform.backends import onnxruntime as plain
from accel_platform.backends.base import Arrays, Unsupported, UnsupportedPrecision
from accel_platform.errors import one_line

EMULATED_CHIP = {"htp_arch": "75", "soc_model": "57"}
"""Chip that the emulator imitates where there is no HTP to ask: the Snapdragon 8 Gen 3."""


def find_device() -> Any:
    """Return ONNX Runtime's handle of the HTP or its emulator, loading the plugin the first time.

    Raises Unsupported where the plugin does not load or finds nothing.
    """
    name = onnxruntime_qnn.get_ep_name()
    devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]
    if not devices:
        try:
            onnxruntime.register_execution_provider_library(name, onnxruntime_qnn.get_library_path())
        except Exception as error:
            raise Unsupported(f"The QNN plugin does not load here: {one_line(error)}") from error
        devices = [device for device in onnxruntime.get_ep_devices() if device.ep_name == name]
    kinds = onnxruntime.OrtHardwareDeviceType
    for kind in (kinds.NPU, kinds.CPU):
        for device in devices:
            if device.device.type == kind:
                return device
    raise Unsupported("The QNN plugin is not supported on this machine: it finds neither an HTP nor its emulator.")


def is_emulated(device: Any) -> bool:
    """Return whether the processor emulates the HTP."""
    return bool(device.device.type != onnxruntime.OrtHardwareDeviceType.NPU)


def provider_options(device: Any) -> dict[str, str]:
    """Return QNN's options for a float model: on the HTP, in float16."""
    return {
        "backend_path": onnxruntime_qnn.get_qnn_htp_path(),
        "enable_htp_fp16_precision": "1",
        **(EMULATED_CHIP if is_emulated(device) else {}),
    }


class QnnBackend(plain.OnnxRuntimeBackend):
    """QNN builds its graph for fixed shapes as the session is made, so a session is made per shape."""

    name = "onnxruntime-qnn"
    compiles = True
    provider = onnxruntime_qnn.get_ep_name()

    def __init__(self, *, device: str, threads: int) -> None:
        super().__init__(device="cpu", threads=threads)
        assert device == "htp"
        self._dimensions: dict[str, list[str]] = {}

    def versions(self) -> dict[str, str]:
        return {"onnxruntime-qnn": onnxruntime_qnn.__version__, **super().versions()}

    def load(self, artifact: Path, *, precision: str) -> None:
        if precision != "float16":
            raise UnsupportedPrecision(f"The {self.name} backend computes in float16 only, not in {precision}.")
        # The weights are read by the session that `compile` makes.
        graph = onnx.load(artifact, load_external_data=False).graph
        self._dimensions = {i.name: [d.dim_param for d in i.type.tensor_type.shape.dim] for i in graph.input}
        self._artifact = artifact

    def compile(self, inputs: Arrays) -> None:
        self._session = None
        device = find_device()
        options = self._new_options()
        sizes = {
            symbol: size
            for name, symbols in self._dimensions.items()
            for symbol, size in zip(symbols, inputs[name].shape, strict=True)
            if symbol
        }
        for symbol, size in sizes.items():
            options.add_free_dimension_override_by_name(symbol, size)
        options.add_provider_for_devices([device], provider_options(device))
        with _native_log() as log_lines:
            self._session = onnxruntime.InferenceSession(self._artifact, options)
        self._names = [output.name for output in self._session.get_outputs()]
        placed = self.placement()
        if placed.accelerated == 0:
            words = "; ".join(line for line in log_lines if "fail" in line.casefold()) or "it does not say why"
            names = ", ".join(placed.elsewhere)
            raise Unsupported(
                f"The model is not supported by QNN, which takes none of its operators ({names}): {words}"
            )

    def precision_share(self) -> float | None:
        # Operators that QNN did not take run on the processor in float32.
        return self.provider_share()


@contextmanager
def _native_log() -> Iterator[list[str]]:
    """Yield lines that native code writes to standard error; they go there afterwards as well.

    ONNX Runtime reports nowhere else why a provider refuses an operator.
    """
    lines: list[str] = []
    original_stderr = os.dup(2)
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(original_stderr, 2)
            os.close(original_stderr)
            log.seek(0)
            text = log.read()
            os.write(2, text)
            # The list is filled here, because `yield` hands it out before the text exists.
            lines += text.decode(errors="replace").splitlines()
