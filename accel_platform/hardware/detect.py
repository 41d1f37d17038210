"""Which hardware this host has: every name is probed for real and is a device, or a reason why there is none."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from accel_platform.backends.base import Unsupported
from accel_platform.backends.registry import RUNTIMES, Runtime
from accel_platform.events.types import DeviceObserved, Event, HostObserved
from accel_platform.hardware.cpu import clock_max_mhz, cpu_facts, governor, usable_cores, vector_bits
from accel_platform.hardware.host import host_id, installed_versions, observe_host

SOURCE = "accel detect"


@dataclass(frozen=True)
class Inventory:
    """One look at one host. `devices` holds one entry per hardware name, available or not."""

    host_id: str
    host: HostObserved
    devices: tuple[DeviceObserved, ...]

    def device(self, hardware: str) -> DeviceObserved | None:
        """The entry of a hardware name; None for a name that is not known."""
        return self._by_name.get(hardware)

    def events(self, *, run_id: str | None = None) -> list[Event]:
        """What was seen, as events."""
        payloads = (self.host, *self.devices)
        return [Event.of(p, source=SOURCE, host_id=self.host_id, run_id=run_id) for p in payloads]

    @cached_property
    def _by_name(self) -> dict[str, DeviceObserved]:
        return {str(device.hardware): device for device in self.devices}


def detect() -> Inventory:
    """Look at this host; imports the installed runtimes, so it takes seconds."""
    return Inventory(host_id(), observe_host(), tuple(_observe(runtime) for runtime in RUNTIMES.values()))


def fingerprint_of(device: DeviceObserved, *, threads: int) -> str:
    """16 hex digits over all that must be equal for two figures to be compared: device, driver, runtimes, threads."""
    parts = {
        "backend": device.backend,
        "device": device.device_id,
        "driver": device.driver,
        "runtimes": device.runtime_versions,
        "emulated": device.emulated,
        "threads": threads,
    }
    return _hash(parts, 16)


class _Absent(Exception):
    """Why a hardware name has no device here."""


def _observe(runtime: Runtime) -> DeviceObserved:
    versions = installed_versions(runtime.packages)
    try:
        found = _PROBES[runtime.hardware]()
    except _Absent as absent:
        return DeviceObserved(
            hardware=runtime.hardware,
            backend=runtime.backend,
            available=False,
            reason=str(absent),
            runtime_versions=versions,
        )
    return DeviceObserved(
        hardware=runtime.hardware,
        backend=runtime.backend,
        available=True,
        runtime_versions=versions | found.pop("runtime_versions", {}),
        **found,
    )


def _host_processor() -> dict[str, Any]:
    facts = cpu_facts()
    return {
        "device_id": _device_id("cpu", facts["name"], {**facts, "cores": usable_cores()}),
        "name": facts["name"],
        "vendor": facts.get("vendor"),
        "memory_mib": psutil.virtual_memory().total / 2**20,
        "cores": usable_cores(),
        "clock_max_mhz": clock_max_mhz(),
        "vector_bits": vector_bits(),
        "governor": governor(),
    }


def _torch() -> Any:
    try:
        import torch
    except ImportError as error:
        raise _Absent(f"torch cannot be imported: {error}") from error
    return torch


def _cpu() -> dict[str, Any]:
    _torch()
    return _host_processor()


def _cuda() -> dict[str, Any]:
    torch = _torch()
    if torch.version.cuda is None:
        driver = "an NVIDIA driver is loaded" if Path("/dev/nvidiactl").exists() else "no NVIDIA driver is loaded"
        raise _Absent(f"the installed torch {torch.__version__} is built without CUDA, and {driver}")
    return _torch_gpu(torch, "cuda", "NVIDIA")


def _rocm() -> dict[str, Any]:
    torch = _torch()
    if torch.version.hip is None:
        driver = "an AMD compute driver is loaded" if Path("/dev/kfd").exists() else "no AMD compute driver is loaded"
        raise _Absent(f"the installed torch {torch.__version__} is built without ROCm, and {driver}")
    return _torch_gpu(torch, "rocm", "AMD")


def _torch_gpu(torch: Any, kind: str, vendor: str) -> dict[str, Any]:
    if not torch.cuda.is_available():
        raise _Absent(f"torch {torch.__version__} finds no {vendor} device with a working driver")
    properties = torch.cuda.get_device_properties(0)
    facts = {"name": properties.name, "memory": properties.total_memory, "cores": properties.multi_processor_count}
    return {
        "device_id": _device_id(kind, properties.name, facts),
        "name": properties.name,
        "vendor": vendor,
        "driver": _gpu_driver(torch),
        "memory_mib": properties.total_memory / 2**20,
        "cores": properties.multi_processor_count,
    }


def _gpu_driver(torch: Any) -> str | None:
    if torch.version.hip is not None:
        return f"HIP {torch.version.hip}"
    file = Path("/proc/driver/nvidia/version")
    found = re.search(r"Kernel Module\D*([\d.]+)", file.read_text(encoding="utf-8")) if file.is_file() else None
    return f"CUDA {torch.version.cuda}" + (f", driver {found[1]}" if found else "")


def _mps() -> dict[str, Any]:
    torch = _torch()
    if not torch.backends.mps.is_built():
        raise _Absent(f"the installed torch {torch.__version__} is built without Metal (it needs macOS)")
    if not torch.backends.mps.is_available():
        raise _Absent("this Mac or its macOS has no Metal device that torch can use")
    facts = cpu_facts()
    return {
        "device_id": _device_id("mps", facts["name"], facts),
        "name": facts["name"],
        "vendor": "Apple",
        "memory_mib": torch.mps.recommended_max_memory() / 2**20,
    }


def _openvino() -> dict[str, Any]:
    try:
        import openvino
    except ImportError as error:
        raise _Absent(f"openvino cannot be imported: {error}") from error
    devices = openvino.Core().available_devices
    if "CPU" not in devices:
        raise _Absent(f"OpenVINO finds no CPU device here, only {devices or 'none at all'}")
    return _host_processor()


def _onnxruntime() -> dict[str, Any]:
    try:
        import onnxruntime
    except ImportError as error:
        raise _Absent(f"onnxruntime cannot be imported: {error}") from error
    providers = onnxruntime.get_available_providers()
    if "CPUExecutionProvider" not in providers:
        raise _Absent(f"this build of ONNX Runtime has no CPU provider, only {providers}")
    return _host_processor()


def _qnn() -> dict[str, Any]:
    try:
        from accel_platform.backends import qnn
    except ImportError as error:
        raise _Absent(f"onnxruntime-qnn cannot be imported: {error}") from error
    try:
        device = qnn.find_device()
    except Unsupported as error:
        raise _Absent(str(error)) from error
    if qnn.is_emulated(device):
        chip = ", ".join(f"{key} {value}" for key, value in qnn.EMULATED_CHIP.items())
        return {**_host_processor(), "emulated": True, "driver": f"QNN HTP emulator, {chip}"}
    facts = {**device.device.metadata, "vendor": device.device.vendor}
    name = facts.get("Description", f"{device.device.vendor} HTP")
    return {"device_id": _device_id("htp", name, facts), "name": name, "vendor": device.device.vendor}


def _jax() -> dict[str, Any]:
    if find_spec("jax") is None:
        raise _Absent("jax is not installed")
    # In a process of its own: JAX starts threads as it loads, and then warns of every fork.
    probe = subprocess.run(
        [sys.executable, "-c", "import jax; jax.devices('cpu')"], capture_output=True, text=True, check=False
    )
    if probe.returncode != 0:
        raise _Absent(f"jax does not start: {(probe.stderr.strip().splitlines() or ['it says nothing'])[-1]}")
    return _host_processor()


def _browser() -> dict[str, Any]:
    """What a page sees in this host's browser."""
    from accel_platform.backends.browser.probe import NoBrowser, look

    try:
        facts = look()
    except NoBrowser as absent:
        raise _Absent(str(absent)) from absent
    if not facts["isolated"]:
        raise _Absent("the browser does not isolate the page, so it has neither threads nor a fine clock")
    return facts


def _web_versions(facts: dict[str, Any]) -> dict[str, str]:
    return {"onnxruntime-web": facts["onnxruntime-web"], "chromium": facts["version"]}


def _wasm() -> dict[str, Any]:
    return {**_host_processor(), "runtime_versions": _web_versions(_browser())}


def _webgpu() -> dict[str, Any]:
    from accel_platform.backends.browser.adapter import is_software, name_of

    facts = _browser()
    adapter = facts["webgpu"]
    if "error" in adapter:
        raise _Absent(adapter["error"])
    # A software adapter is as fast as the processor that plays it.
    decisive = {**adapter, **({"cpu": _host_processor()["device_id"]} if is_software(adapter) else {})}
    return {
        "device_id": _device_id("webgpu", name_of(adapter), decisive),
        "name": name_of(adapter),
        "vendor": adapter["vendor"] or None,
        "driver": adapter["driver"] or None,
        "emulated": is_software(adapter),
        "runtime_versions": _web_versions(facts),
    }


def _webnn() -> dict[str, Any]:
    facts = _browser()
    found = facts["webnn"]
    if "error" in found:
        raise _Absent(found["error"])
    if found["deviceType"] == "cpu":
        return {**_host_processor(), "runtime_versions": _web_versions(facts)}
    # WebNN names a kind of device only: which one it is, the host must tell apart.
    name = f"the {found['deviceType'].upper()} that WebNN uses"
    return {
        "device_id": _device_id("webnn", name, {"host": host_id(), **found}),
        "name": name,
        "runtime_versions": _web_versions(facts),
    }


_PROBES: dict[str, Callable[[], dict[str, Any]]] = {
    "cpu": _cpu,
    "cuda": _cuda,
    "rocm": _rocm,
    "mps": _mps,
    "openvino": _openvino,
    "onnxruntime": _onnxruntime,
    "qnn": _qnn,
    "jax": _jax,
    "webnn": _webnn,
    "webgpu": _webgpu,
    "wasm": _wasm,
}


def _device_id(kind: str, name: str, facts: dict[str, Any]) -> str:
    """Kind, name and a hash of what tells this silicon from other silicon of that name; equal machines share it."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.casefold()).strip("-")
    return f"{kind}-{slug}-{_hash(facts, 8)}"


def _hash(value: Any, digits: int) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:digits]
