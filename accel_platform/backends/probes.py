"""Probes of hardware names: one per runtime, which loads it and describes its device.

A probe takes the choice after the colon of a name, or None, and raises Absent where there is no device.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import psutil

from accel_platform.backends.base import Unsupported
from accel_platform.backends.registry import ONNX_PROVIDERS
from accel_platform.hardware import gpu
from accel_platform.hardware.cpu import clock_max_mhz, cpu_facts, governor, usable_cores, vector_bits
from accel_platform.hardware.host import host_id


class Absent(Exception):
    """Reason why a hardware name has no device here."""


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


def processor_id() -> str:
    """Return the device id of this host's processor."""
    return str(_host_processor()["device_id"])


def _import(package: str) -> Any:
    """Return a package. Raises Absent where it cannot be imported."""
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise Absent(f"{package} cannot be imported: {error}") from error


def _cpu(choice: str | None) -> dict[str, Any]:
    _import("torch")
    if choice == "compile" and not any(map(shutil.which, ("g++", "clang++", "cl"))):
        raise Absent("torch.compile needs a C++ compiler, and there is none on the PATH")
    return _host_processor()


def _cuda(choice: str | None) -> dict[str, Any]:
    torch = _import("torch")
    if torch.version.cuda is None:
        driver = "an NVIDIA driver is loaded" if Path("/dev/nvidiactl").exists() else "no NVIDIA driver is loaded"
        raise Absent(f"the installed torch {torch.__version__} is built without CUDA, and {driver}")
    found = _torch_gpu(torch, "cuda", "NVIDIA")
    if choice == "compile" and find_spec("triton") is None:
        raise Absent("torch.compile needs triton, which is not installed")
    return found


def _rocm(_: str | None) -> dict[str, Any]:
    torch = _import("torch")
    if torch.version.hip is None:
        driver = "an AMD compute driver is loaded" if Path("/dev/kfd").exists() else "no AMD compute driver is loaded"
        raise Absent(f"the installed torch {torch.__version__} is built without ROCm, and {driver}")
    return _torch_gpu(torch, "rocm", "AMD")


def _torch_gpu(torch: Any, kind: str, vendor: str) -> dict[str, Any]:
    if not torch.cuda.is_available():
        raise Absent(f"torch {torch.__version__} finds no {vendor} device with a working driver")
    # Every figure is of the device that torch takes unless told otherwise.
    properties = torch.cuda.get_device_properties(0)
    memory = visible_memory_gib(properties.total_memory)
    facts = {"name": properties.name, "memory": memory, "cores": properties.multi_processor_count}
    capability = properties.gcnArchName if torch.version.hip else f"{properties.major}.{properties.minor}"
    return {
        "device_id": _device_id(kind, properties.name, facts),
        "name": properties.name,
        "vendor": vendor,
        "driver": _gpu_driver(torch),
        "memory_mib": properties.total_memory / 2**20,
        "cores": properties.multi_processor_count,
        "clock_max_mhz": gpu.clock_max_mhz() if kind == "cuda" else None,
        "architecture": capability,
    }


def _gpu_driver(torch: Any) -> str | None:
    if torch.version.hip is not None:
        file = Path("/sys/module/amdgpu/version")
        loaded = file.read_text(encoding="utf-8").strip() if file.is_file() else None
        return f"HIP {torch.version.hip}" + (f", driver {loaded}" if loaded else "")
    file = Path("/proc/driver/nvidia/version")
    driver = kernel_module_version(file.read_text(encoding="utf-8")) if file.is_file() else None
    driver = driver or gpu.driver()
    return f"CUDA {torch.version.cuda}" + (f", driver {driver}" if driver else "")


def kernel_module_version(text: str) -> str | None:
    """Return the version in `/proc/driver/nvidia/version`; open modules name the architecture before it."""
    found = re.search(r"Kernel Module(?: for \S+)?\s+([\d.]+)", text)
    return found[1] if found else None


def visible_memory_gib(total_bytes: int) -> int:
    """Return the memory of a GPU in GiB: up to an even number, from 48 GiB on the nearest multiple of four.

    The driver and its version keep some of a board's memory, so equal boards differ. An H200 shows 139.8 to 140.4 GiB,
    an H100 79.2, an A100 39.4 to 39.6.
    """
    gib = total_bytes / 2**30
    return 2 * math.ceil(gib / 2) if gib < 48 else 4 * round(gib / 4)


def _mps(_: str | None) -> dict[str, Any]:
    torch = _import("torch")
    if not torch.backends.mps.is_built():
        raise Absent(f"the installed torch {torch.__version__} is built without Metal (it needs macOS)")
    if not torch.backends.mps.is_available():
        raise Absent("this Mac or its macOS has no Metal device that torch can use")
    facts = cpu_facts()
    return {
        "device_id": _device_id("mps", facts["name"], facts),
        "name": facts["name"],
        "vendor": "Apple",
        "memory_mib": torch.mps.recommended_max_memory() / 2**20,
    }


def openvino_choices() -> list[str]:
    """Return the names of the GPUs and NPUs that OpenVINO drives here."""
    try:
        devices = _import("openvino").Core().available_devices
    except Absent:
        return []
    return [f"openvino:{name.casefold()}" for name in devices if name.startswith(("GPU", "NPU"))]


def _openvino(choice: str | None) -> dict[str, Any]:
    core = _import("openvino").Core()
    device = "CPU" if choice is None else choice.upper()
    if device not in core.available_devices:
        raise Absent(f"OpenVINO finds no {device} here, only {', '.join(core.available_devices) or 'nothing at all'}")
    return _host_processor() if choice is None else openvino_facts(core, device)


def openvino_facts(core: Any, device: str) -> dict[str, Any]:
    """Describe a GPU or NPU by OpenVINO; what its plugin does not report stays unknown."""
    tells = core.get_property(device, "SUPPORTED_PROPERTIES")

    def property_of(name: str) -> Any:
        return core.get_property(device, name) if name in tells else None

    name = str(property_of("FULL_DEVICE_NAME"))
    memory = property_of("GPU_DEVICE_TOTAL_MEM_SIZE") or property_of("NPU_DEVICE_TOTAL_MEM_SIZE")
    driver = property_of("NPU_DRIVER_VERSION")
    decisive = {"name": name, "architecture": property_of("DEVICE_ARCHITECTURE"), "memory": memory}
    return {
        "device_id": _device_id(device.partition(".")[0].casefold(), name, decisive),
        "name": name,
        "vendor": "Intel" if "intel" in name.casefold() else None,
        "driver": None if driver is None else str(driver),
        "memory_mib": memory / 2**20 if memory else None,
        "cores": property_of("GPU_EXECUTION_UNITS_COUNT"),
        "architecture": property_of("DEVICE_ARCHITECTURE"),
    }


def onnxruntime_choices() -> list[str]:
    """Return the names of the GPU providers that the installed build of ONNX Runtime has."""
    try:
        providers = _import("onnxruntime").get_available_providers()
    except Absent:
        return []
    return [f"onnxruntime:{name}" for name, provider in ONNX_PROVIDERS.items() if provider in providers]


def _onnxruntime(choice: str | None) -> dict[str, Any]:
    onnxruntime = _import("onnxruntime")
    wanted = "CPUExecutionProvider" if choice is None else ONNX_PROVIDERS[choice]
    providers = onnxruntime.get_available_providers()
    if wanted not in providers:
        raise Absent(
            f"the installed ONNX Runtime {onnxruntime.__version__} has no {wanted}, only {', '.join(providers)}"
        )
    if choice is None:
        return _host_processor()
    # torch names the device, as the hardware names cuda and rocm do: figures of one GPU belong together.
    facts = _cuda(None) if choice in ("cuda", "tensorrt") else _rocm(None)
    # Builds for GPUs are distributions of other names.
    return {**facts, "runtime_versions": {"onnxruntime": onnxruntime.__version__}}


def _qnn(_: str | None) -> dict[str, Any]:
    try:
        from accel_platform.backends import qnn
    except ImportError as error:
        raise Absent(f"onnxruntime-qnn cannot be imported: {error}") from error
    try:
        device = qnn.find_device()
    except Unsupported as error:
        raise Absent(str(error)) from error
    if qnn.is_emulated(device):
        chip = ", ".join(f"{key} {value}" for key, value in qnn.EMULATED_CHIP.items())
        return {**_host_processor(), "emulated": True, "driver": f"QNN HTP emulator, {chip}"}
    facts = {**device.device.metadata, "vendor": device.device.vendor}
    name = facts.get("Description", f"{device.device.vendor} HTP")
    return {"device_id": _device_id("htp", name, facts), "name": name, "vendor": device.device.vendor}


def _jax(_: str | None) -> dict[str, Any]:
    if find_spec("jax") is None:
        raise Absent("jax is not installed")
    # In a process of its own: JAX starts threads as it loads, and then warns of every fork.
    probe = subprocess.run(
        [sys.executable, "-c", "import jax; jax.devices('cpu')"], capture_output=True, text=True, check=False
    )
    if probe.returncode != 0:
        raise Absent(f"jax does not start: {(probe.stderr.strip().splitlines() or ['it says nothing'])[-1]}")
    return _host_processor()


def _browser(browser: str | None) -> dict[str, Any]:
    """Return what a page sees in this host's browser."""
    from accel_platform.backends.browser.probe import NoBrowser, look

    try:
        facts = look(browser)
    except NoBrowser as absent:
        raise Absent(str(absent)) from absent
    if not facts["isolated"]:
        raise Absent("the browser does not isolate the page, so it has neither threads nor a fine clock")
    return facts


def _web_versions(facts: dict[str, Any]) -> dict[str, str]:
    return {"onnxruntime-web": facts["onnxruntime-web"], facts["browser"]: facts["version"]}


def _wasm(browser: str | None) -> dict[str, Any]:
    return {**_host_processor(), "runtime_versions": _web_versions(_browser(browser))}


def _webgpu(browser: str | None) -> dict[str, Any]:
    from accel_platform.backends.browser.session import adapter_name, is_software

    facts = _browser(browser)
    adapter = facts["webgpu"]
    if "error" in adapter:
        raise Absent(adapter["error"])
    # A software adapter is as fast as the processor that plays it.
    decisive = {**adapter, **({"cpu": _host_processor()["device_id"]} if is_software(adapter) else {})}
    return {
        "device_id": _device_id("webgpu", adapter_name(adapter), decisive),
        "name": adapter_name(adapter),
        "vendor": adapter["vendor"] or None,
        "driver": adapter["driver"] or None,
        "emulated": is_software(adapter),
        "runtime_versions": _web_versions(facts),
    }


def _webnn(browser: str | None) -> dict[str, Any]:
    facts = _browser(browser)
    found = facts["webnn"]
    if "error" in found:
        raise Absent(found["error"])
    if found["deviceType"] == "cpu":
        return {**_host_processor(), "runtime_versions": _web_versions(facts)}
    # WebNN names a kind of device only: which one it is, the host must tell apart.
    name = f"the {found['deviceType'].upper()} that WebNN uses"
    return {
        "device_id": _device_id("webnn", name, {"host": host_id(), **found}),
        "name": name,
        "runtime_versions": _web_versions(facts),
    }


PROBES: dict[str, Callable[[str | None], dict[str, Any]]] = {
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
    """Return a device id of kind, name and a hash of facts that distinguish devices of one name.

    Equal machines have equal ids.
    """
    slug = re.sub(r"[^a-z0-9]+", "-", name.casefold()).strip("-")
    return f"{kind}-{slug}-{digest(facts, 8)}"


def digest(value: Any, digits: int) -> str:
    """Return the first `digits` hex digits of the hash of a JSON value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:digits]
