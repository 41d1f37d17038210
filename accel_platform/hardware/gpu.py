"""State of the GPU that torch uses, by its driver: clocks, temperature, load, energy.

torch asks NVML (the extra `energy`) or AMD SMI (part of ROCm); unreported figures are left out.
"""

from __future__ import annotations

from functools import cache
from typing import Any


class DriverSilent(Exception):
    """Reason why the driver reports nothing."""


def clock_max_mhz() -> float | None:
    """Return the highest clock of an NVIDIA GPU's cores; None where the driver does not report it."""
    try:
        pynvml, handle = _nvml()
        return float(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM))
    except (DriverSilent, _errors()):
        return None


def energy_mj() -> int:
    """Return the millijoules that an NVIDIA GPU used since its driver was loaded. Raises DriverSilent."""
    pynvml, handle = _nvml()
    try:
        return int(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle))
    except pynvml.NVMLError as error:
        raise DriverSilent(f"NVML counts no energy on this GPU: {error}") from error


def driver() -> str | None:
    """Return the version of NVIDIA's driver; None where it does not report it."""
    try:
        pynvml, _ = _nvml()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except (DriverSilent, _errors()):
        return None


def used_mib() -> float:
    """Return the memory that an NVIDIA GPU has given to anyone, in MiB. Raises DriverSilent."""
    pynvml, handle = _nvml()
    try:
        return float(pynvml.nvmlDeviceGetMemoryInfo(handle).used) / 2**20
    except pynvml.NVMLError as error:
        raise DriverSilent(f"NVML does not tell this GPU's memory: {error}") from error


def power_w() -> float:
    """Return the watts that an NVIDIA GPU draws, by NVML averaged over a second or less. Raises DriverSilent."""
    pynvml, handle = _nvml()
    try:
        return float(pynvml.nvmlDeviceGetPowerUsage(handle)) / 1e3
    except pynvml.NVMLError as error:
        raise DriverSilent(f"NVML does not tell this GPU's power: {error}") from error


_SLOWED_BY = {
    0x04: "power cap",
    0x08: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
"""Bits of NVML's clock event reasons that lower the clock under load; an idle GPU and set clocks are none."""
OVERHEATED = frozenset(("hardware slowdown", "software thermal slowdown", "hardware thermal slowdown", "power brake"))
"""Reasons that a later measurement will not meet; a power cap is a property of the device."""


def slowed_by() -> list[str]:
    """Return why an NVIDIA GPU runs below its clock at present; empty where it does not. Raises DriverSilent."""
    pynvml, handle = _nvml()
    try:
        reasons = int(pynvml.nvmlDeviceGetCurrentClocksEventReasons(handle))
    except pynvml.NVMLError as error:
        raise DriverSilent(f"NVML does not tell why this GPU's clock is lowered: {error}") from error
    return [reason for bit, reason in _SLOWED_BY.items() if reasons & bit]


def name() -> str:
    """Return NVML's name of the GPU. Raises DriverSilent."""
    pynvml, handle = _nvml()
    return str(pynvml.nvmlDeviceGetName(handle))


def state() -> dict[str, Any]:
    """Return the present clock, temperature and load of an NVIDIA or AMD GPU; of NVIDIA's, power and what slows it."""
    import torch

    readers: dict[str, Any] = {
        "gpu_clock_mhz": torch.cuda.clock_rate,
        "gpu_temperature_c": torch.cuda.temperature,
        "gpu_load_percent": torch.cuda.utilization,
    }
    if torch.version.hip is None:
        readers |= {"gpu_power_w": power_w, "gpu_slowed_by": slowed_by}
    seen = {}
    for key, ask in readers.items():
        try:
            seen[key] = ask()
        except (ImportError, RuntimeError, DriverSilent, _errors()):
            continue
    return seen


@cache
def _nvml() -> tuple[Any, Any]:
    """Return NVML and its handle of torch's first device, which NVML may number otherwise. Raises DriverSilent."""
    try:
        import pynvml
    except ImportError as error:
        raise DriverSilent("nvidia-ml-py is not installed: pip install 'accel-platform[energy]'") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise DriverSilent(f"NVML does not start: {error}") from error
    import torch

    try:
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
    except pynvml.NVMLError as error:
        raise DriverSilent(f"NVML does not know torch's GPU: {error}") from error


def _errors() -> type[Exception]:
    """Return NVML's error type for missing figures; DriverSilent where NVML is not installed."""
    try:
        from pynvml import NVMLError
    except ImportError:
        return DriverSilent
    return NVMLError  # type: ignore[no-any-return]
