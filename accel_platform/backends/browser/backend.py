"""onnxruntime-web behind the backend protocol: wasm, webgpu or webnn, reading the ONNX graph that others read too."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from accel_platform.backends.base import Arrays, Confirmation, Placement, Unsupported, UnsupportedPrecision
from accel_platform.backends.browser import package
from accel_platform.backends.browser.launch import find_browser, open_tab
from accel_platform.backends.browser.session import MEMORY_METHOD, adapter_name, is_software
from accel_platform.backends.profiling import integer_share

_PROVIDERS = {"wasm": "CPUExecutionProvider", "webgpu": "WebGpuExecutionProvider", "webnn": "WebNNExecutionProvider"}
"""Runtime's name of the execution provider for each hardware name."""
_PROVIDER = re.compile(r"placed on \[(\w+)\]\. Number of nodes: (\d+)")
_NODE = re.compile(r"VerifyEachNodeIsAssignedToAnEp\]\s+(\w+) \(")


class BrowserBackend:
    """A session per shape. The page's clock times `session.run` and the reading back of the outputs, nothing else."""

    name = package.NAME
    compiles = True
    _SCRIPTS: ClassVar = {"wasm": "ort.wasm.min.mjs", "webgpu": "ort.webgpu.min.mjs", "webnn": "ort.webgpu.min.mjs"}

    def __init__(self, *, device: str, threads: int, choice: str | None = None) -> None:
        browser = find_browser(choice)
        if browser is None:
            raise Unsupported(f"{choice or 'A browser of the Chromium family'} is not installed here.")
        if not package.is_installed():
            raise Unsupported(f"{package.NAME} is not installed; run `accel bench setup-web`.")
        self._device = device
        self._threads = threads
        self._tab = open_tab(browser)
        self._spent_ns = 0
        self._idle_mib = self._tab.memory_peak_mib()
        seen = self._tab.facts
        if not seen["isolated"]:
            self.close()
            raise Unsupported("The browser did not isolate the page, so it has neither threads nor a fine clock.")
        if problem := seen.get(device, {}).get("error"):
            self.close()
            raise Unsupported(problem)

    def versions(self) -> dict[str, str]:
        return {package.NAME: self._version, self._tab.facts["browser"]: self._tab.facts["version"]}

    def load(self, artifact: Path, *, precision: str) -> None:
        if precision != "float32" and (precision, self._device) != ("int8", "wasm"):
            raise UnsupportedPrecision(f"The {self.name} backend does not compute in {precision} on {self._device}.")
        self._artifact, self._precision = artifact, precision
        provider: Any = self._device
        if self._device == "webnn":
            provider = {"name": "webnn", "deviceType": self._tab.facts["webnn"]["deviceType"]}
        script = self._SCRIPTS[self._device]
        self._version = str(self._tab.call("start", script=script, threads=self._threads, executionProvider=provider))
        self._tab.server.folders["model"] = artifact.parent
        beside = sorted(path.name for path in artifact.parent.iterdir() if path.is_file() and path != artifact)
        self._tab.call("read", names=[artifact.name, *beside])

    def compile(self, inputs: Arrays) -> None:
        self._tab.call("compile", shapes={name: list(array.shape) for name, array in inputs.items()})

    def bind(self, inputs: Arrays) -> None:
        self._tab.server.given = {name: array.tobytes() for name, array in inputs.items()}
        described = [{"name": n, "type": str(a.dtype), "shape": list(a.shape)} for n, a in inputs.items()]
        self._tab.call("bind", inputs=described)
        self._tab.server.given = {}

    def run(self) -> None:
        self._spent_ns += round(self._tab.call("run") * 1e6)

    def clock_ns(self) -> int:
        return self._spent_ns

    def outputs(self) -> dict[str, npt.NDArray[np.float32]]:
        described = self._tab.call("outputs")
        taken, self._tab.server.taken = self._tab.server.taken, {}
        return {d["name"]: np.frombuffer(taken[d["name"]], np.float32).reshape(d["shape"]).copy() for d in described}

    def memory_peak_mib(self) -> float | None:
        return self._tab.memory_peak_mib()

    def process_ids(self) -> list[int]:
        return self._tab.process_ids()

    def memory_device_peak_mib(self) -> float | None:
        """Return None: browsers do not report a page's device memory."""
        return None

    def placement(self) -> Placement | None:
        return count_placements(self._tab.call("place"), self._device)

    def precision_share(self) -> float | None:
        """Return the share by the graph, because the runtime reports no executed graph; it computes integers as
        integers.
        """
        import onnx

        graph = onnx.load(self._artifact, load_external_data=False).graph
        return integer_share((node.op_type for node in graph.node), self._precision)

    def confirm(self) -> Confirmation | None:
        """Return the adapter that WebGPU used. For other runtimes the page knows only operator placement."""
        if self._device != "webgpu":
            return None
        confirmed = self._tab.call("confirm")["adapter"]
        return Confirmation(_adapter_name(self._tab.facts["webgpu"]), (_adapter_name(confirmed),))

    def notes(self) -> dict[str, Any]:
        seen = self._tab.facts
        notes = {
            "browser": f"{seen['browser']} {seen['version']}",
            "clock": "performance.now() in the page",
            "clock_step_ns": round(seen["resolution_ms"] * 1e6),
            "memory_method": MEMORY_METHOD,
            "memory_before_load_mib": self._idle_mib,
        }
        confirmed = self._tab.call("confirm")
        if confirmed["threads"] != self._threads:
            raise Unsupported(f"The runtime ran {confirmed['threads']} threads where {self._threads} were asked for.")
        return notes if self._device != "webgpu" else {**notes, "adapter": confirmed["adapter"]}

    def close(self) -> None:
        self._tab.close()


def count_placements(lines: Iterable[str], hardware: str) -> Placement | None:
    """Count the nodes of onnxruntime-web's log by provider, and those of others by operator; None without any."""
    accelerated, others, provider = 0, Counter[str](), None
    for line in lines:
        if found := _PROVIDER.search(line):
            provider = found[1]
            accelerated += int(found[2]) if provider == _PROVIDERS[hardware] else 0
        elif provider not in (None, _PROVIDERS[hardware]) and (found := _NODE.search(line)):
            others[found[1]] += 1
    return Placement(accelerated, dict(others)) if provider else None


def _adapter_name(adapter: dict[str, Any]) -> str:
    return f"{adapter_name(adapter)}, played by the processor" if is_software(adapter) else adapter_name(adapter)
