"""Facts about this host's processor and its present state."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any

import psutil

_DECISIVE_FEATURES = frozenset(
    [
        "sse4_2",
        "avx",
        "avx2",
        "fma",
        "f16c",
        "avx_vnni",
        "avx512f",
        "avx512bw",
        "avx512_vnni",
        "avx512_bf16",
        "avx512_fp16",
        "amx_tile",
        "amx_int8",
        "amx_bf16",
        "amx_fp16",
        "asimd",
        "asimdhp",
        "asimddp",
        "bf16",
        "i8mm",
        "sve",
        "sve2",
        "sme",
        "sme2",
    ]
)
"""Instruction sets that decide how fast a model runs; the kernel's full list grows from version to version."""
_MIN_CORES_TO_SHARE = 8
"""Fewest cores of which a quarter is kept free of processes that load.

On 16 cores with an H200 a launch-bound model took 7.9 to 9.0 ms beside six processes that load. With these kept off a
quarter of the cores it took 6.9 to 7.0. Alone it took 3.9 ms in one minute and 6.9 in another, so the gain is a lead.
"""
_CPUFREQ = Path("/sys/devices/system/cpu/cpu0/cpufreq")


@lru_cache(maxsize=1)
def cpu_facts() -> dict[str, str]:
    """Return vendor, name, family, model, stepping and instruction sets, which tell kinds of processors apart."""
    if sys.platform == "linux":
        return _from_proc_cpuinfo(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace"))
    if sys.platform == "darwin":
        keys = {"name": "machdep.cpu.brand_string", "vendor": "machdep.cpu.vendor", "features": "machdep.cpu.features"}
        facts = {name: _sysctl(key) for name, key in keys.items()}
        return {"name": platform.processor() or platform.machine(), **{k: v for k, v in facts.items() if v}}
    return {"name": platform.processor() or platform.machine()}


def usable_cores() -> int:
    """Return the physical cores this process may use, less those withheld by affinity or a container's quota."""
    limits = [psutil.cpu_count(logical=False) or psutil.cpu_count() or 1]
    if hasattr(os, "sched_getaffinity"):
        limits.append(len(os.sched_getaffinity(0)))
    quota = _cgroup_cores()
    if quota is not None:
        limits.append(max(1, int(quota)))
    return min(limits)


def cores_to_measure_on() -> frozenset[int]:
    """Return the numbers of cores that workers which load leave to the one that measures: the last quarter of this
    process's. Empty on fewer than 8 cores, of which none can be spared, and where the system pins no thread.
    """
    if not hasattr(os, "sched_getaffinity"):
        return frozenset()
    cores = sorted(os.sched_getaffinity(0))
    return frozenset(cores[-(len(cores) // 4) :]) if len(cores) >= _MIN_CORES_TO_SHARE else frozenset()


def clock_max_mhz() -> float | None:
    """Return the highest clock that the system reports; None where it reports none (most virtual machines)."""
    frequency = psutil.cpu_freq()
    return float(frequency.max) if frequency is not None and frequency.max else None


def vector_bits() -> int | None:
    """Return the width of the widest fused multiply-add; None where the instruction sets do not tell."""
    features = set(cpu_facts().get("features", "").split())
    if "avx512f" in features:
        return 512
    if {"avx2", "fma"} <= features:
        return 256
    # SVE may be wider than this, but the kernel's list does not say how wide.
    return 128 if "asimd" in features and "sve" not in features else None


def governor() -> str | None:
    """Return the clock governor of the first core; None where the kernel exposes none (most virtual machines)."""
    path = _CPUFREQ / "scaling_governor"
    return path.read_text(encoding="utf-8").strip() if path.is_file() else None


def state_now() -> dict[str, Any]:
    """Load, clock, temperature and the time stolen by other guests so far; what cannot be read is left out."""
    state: dict[str, Any] = {"load_average_1min": os.getloadavg()[0]}
    frequency = psutil.cpu_freq()
    if frequency is not None and frequency.current:
        state["clock_mhz"] = round(frequency.current, 1)
    if (name := governor()) is not None:
        state["governor"] = name
    if hasattr(psutil, "sensors_temperatures"):
        readings = [r.current for group in psutil.sensors_temperatures().values() for r in group if r.current]
        if readings:
            state["temperature_max_c"] = max(readings)
    stolen = getattr(psutil.cpu_times(), "steal", None)
    if stolen is not None:
        state["stolen_s"] = stolen
    return state


def _from_proc_cpuinfo(text: str) -> dict[str, str]:
    first = dict(re.findall(r"^([^\t:]+?)\s*:[ \t]*(.*)$", text.split("\n\n", maxsplit=1)[0], flags=re.MULTILINE))
    names = {
        "name": ("model name", "Processor", "Hardware"),
        "vendor": ("vendor_id", "CPU implementer"),
        "family": ("cpu family", "CPU architecture"),
        "model": ("model", "CPU part"),
        "stepping": ("stepping", "CPU revision"),
        "features": ("flags", "Features"),
    }
    facts = {key: next((first[n] for n in options if n in first), "") for key, options in names.items()}
    facts["features"] = " ".join(sorted(_DECISIVE_FEATURES & set(facts["features"].split())))
    facts["name"] = facts["name"] or platform.machine()
    return {key: value for key, value in facts.items() if value}


def _sysctl(key: str) -> str:
    answer = subprocess.run(["/usr/sbin/sysctl", "-n", key], capture_output=True, text=True, check=False)
    return answer.stdout.strip()


def _cgroup_cores() -> float | None:
    """Return the cores granted by a cgroup quota; None without a limit."""
    unified = Path("/sys/fs/cgroup/cpu.max")
    if unified.is_file():
        quota, period = unified.read_text(encoding="utf-8").split()
        return None if quota == "max" else int(quota) / int(period)
    legacy = Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us")
    if legacy.is_file() and (microseconds := int(legacy.read_text(encoding="utf-8"))) > 0:
        return microseconds / int((legacy.parent / "cpu.cfs_period_us").read_text(encoding="utf-8"))
    return None
