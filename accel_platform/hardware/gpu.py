"""State of the GPU that torch uses, by its driver: clocks, temperature, load, energy.

torch asks NVML (the extra `energy`) or AMD SMI (part of ROCm); unreported figures are left out.
"""

from __future__ import annotations

from functools import cache
from typing import Any


class Silent(Exception):
    """Reason why the driver reports nothing."""


def clock_max_mhz() -> float | None:
    """Return the highest clock of an NVIDIA GPU's cores; None where the driver does not report it."""
    try:
        pynvml, handle = _nvml()
        return float(pynvml.nvmlDeviceGetMaxClockInfo(handle, pynvml.NVML_CLOCK_SM))
    except (Silent, _errors()):
        return None


def energy_mj() -> int:
    """Return the millijoules that an NVIDIA GPU used since its driver was loaded. Raises Silent."""
    pynvml, handle = _nvml()
    try:
        return int(pynvml.nvmlDeviceGetTotalEnergyConsumption(handle))
    except pynvml.NVMLError as error:
        raise Silent(f"NVML counts no energy on this GPU: {error}") from error


def name() -> str:
    """Return NVML's name of the GPU. Raises Silent."""
    pynvml, handle = _nvml()
    return str(pynvml.nvmlDeviceGetName(handle))


def state() -> dict[str, float]:
    """Return the present clock, temperature and load of an NVIDIA or AMD GPU."""
    import torch

    readers = {
        "gpu_clock_mhz": torch.cuda.clock_rate,
        "gpu_temperature_c": torch.cuda.temperature,
        "gpu_load_percent": torch.cuda.utilization,
    }
    seen = {}
    for key, ask in readers.items():
        try:
            seen[key] = float(ask())
        except (ImportError, RuntimeError, _errors()):
            continue
    return seen


@cache
def _nvml() -> tuple[Any, Any]:
    """Return NVML and its handle of torch's first device, which NVML may number otherwise. Raises Silent."""
    try:
        import pynvml
    except ImportError as error:
        raise Silent("nvidia-ml-py is not installed: pip install 'accel-platform[energy]'") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise Silent(f"NVML does not start: {error}") from error
    import torch

    try:
        return pynvml, pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(0).uuid}")
    except pynvml.NVMLError as error:
        raise Silent(f"NVML does not know torch's GPU: {error}") from error


def _errors() -> type[Exception]:
    """Return NVML's error type for missing figures; Silent where NVML is not installed."""
    try:
        from pynvml import NVMLError
    except ImportError:
        return Silent
    return NVMLError  # type: ignore[no-any-return]
