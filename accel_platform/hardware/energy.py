"""Energy in joules by the counters of the machine: RAPL for processors, NVML for NVIDIA GPUs.

RAPL counts a whole processor package and NVML a whole GPU, so figures include idle power and neighbors.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from accel_platform.hardware import gpu
from accel_platform.table_io.values import rounded

if TYPE_CHECKING:
    from accel_platform.events.types import DeviceObserved

POWERCAP = Path("/sys/class/powercap")
_OFTEN_ENOUGH_S = 20.0
"""Counters of packages wrap after 65 kJ or more: read this often, one would have to draw 3 kW to wrap unseen."""


class NoEnergy(Exception):
    """Reason why nothing counts the energy here."""


@dataclass(frozen=True)
class Counter:
    """One counter that only grows, until it wraps."""

    read_uj: Callable[[], int]
    wraps_at_uj: int | None = None
    """It counts to this and begins again at 0; None for one that does not wrap."""


class Meter:
    """Energy between entering and leaving. Afterwards `joules` is known, or None and `reason` says why."""

    def __init__(self, source: str, counters: Sequence[Counter], *, step_s: float) -> None:
        self.source = source
        self.joules: float | None = None
        self.reason: str | None = None
        self.seconds = 0.0
        self._counters, self._step_s = counters, step_s
        self._spent_uj = [0] * len(counters)
        self._last_uj: list[int] = []
        self._left = threading.Event()
        self._reader = threading.Thread(target=self._read_often, daemon=True)

    def __enter__(self) -> Self:
        self._last_uj = [counter.read_uj() for counter in self._counters]
        self._began = time.perf_counter()
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.seconds = time.perf_counter() - self._began
        self._left.set()
        self._reader.join()
        self._read()
        spent = sum(self._spent_uj) / 1e6
        if self.reason is not None:
            return
        if self.seconds < 10 * self._step_s:
            self.reason = (
                f"{rounded(self.seconds, 2)} s are too short for a counter that steps every {self._step_s:g} s"
            )
        elif spent == 0:
            self.reason = f"the counter stood still ({self.source})"
        else:
            self.joules = spent

    def _read_often(self) -> None:
        while not self._left.wait(_OFTEN_ENOUGH_S):
            self._read()

    def _read(self) -> None:
        for i, counter in enumerate(self._counters):
            try:
                now = counter.read_uj()
            except (OSError, gpu.DriverSilent) as error:
                # The measurement stands without it.
                self.reason = f"the counter stopped answering: {error}"
                return
            grown = now - self._last_uj[i]
            if grown < 0 and counter.wraps_at_uj is not None:
                # It runs from 0 to the range's end inclusive.
                grown += counter.wraps_at_uj + 1
            self._spent_uj[i] += grown
            self._last_uj[i] = now


_SEVERAL = "nvml of several"


def energy_counter(device: DeviceObserved, processes: int = 1) -> str | None:
    """Return `rapl` for work on the processor, software emulators included, `nvml` for CUDA, None otherwise.

    NVML's counter is of one GPU, so that work of several processes, a GPU each, has none: `nvml of several`.
    """
    if device.hardware == "cuda":
        return "nvml" if processes == 1 else _SEVERAL
    return "rapl" if device.emulated or (device.device_id or "").startswith("cpu-") else None


def meter_for(counted: str | None) -> Meter | NoEnergy:
    """Return a meter for a result of `energy_counter`, or the reason why there is none."""
    if counted is None:
        return NoEnergy("no counter of this device's energy is known")
    if counted == _SEVERAL:
        return NoEnergy("NVML counts the energy of one GPU, and several processes use one each")
    try:
        return rapl() if counted == "rapl" else nvml()
    except NoEnergy as error:
        return error


def rapl(root: Path = POWERCAP) -> Meter:
    """Return a meter of the processor's packages and, where counted apart, their memory. Raises NoEnergy.

    Left out, because they would count twice: `psys` (the platform), cores and graphics (parts of a package) and the
    `intel-rapl-mmio` tree (the same packages).
    """
    found = sorted((_text(zone / "name"), zone) for zone in root.glob("intel-rapl:*") if (zone / "name").is_file())
    zones = [(name, zone) for name, zone in found if name.startswith("package") or name == "dram"]
    if not zones:
        raise NoEnergy(f"the kernel shows no energy counter of the processor under {root} (virtual machines have none)")
    counters = []
    for _, zone in zones:
        path = zone / "energy_uj"
        try:
            path.read_bytes()
        except PermissionError as error:
            raise NoEnergy(
                f"the processor counts energy, but {path} may be read by root only: run as root, or make it readable"
            ) from error
        except OSError as error:
            raise NoEnergy(f"{path} cannot be read: {error.strerror}") from error
        counters.append(Counter(_reader(path), int(_text(zone / "max_energy_range_uj"))))
    return Meter(f"rapl: {', '.join(name for name, _ in zones)}", counters, step_s=0.001)


def nvml() -> Meter:
    """Return a meter of the board of torch's GPU, whose counter is renewed about ten times a second. Raises
    NoEnergy.
    """
    try:
        gpu.energy_mj()
        return Meter(f"nvml: {gpu.name()}", [Counter(lambda: gpu.energy_mj() * 1000)], step_s=0.1)
    except gpu.DriverSilent as error:
        raise NoEnergy(str(error)) from error


def meter_facts(meter: Meter | NoEnergy) -> dict[str, Any]:
    """Return the facts of a meter that belong to a result's environment."""
    if isinstance(meter, NoEnergy):
        return {"reason": str(meter)}
    if meter.joules is None:
        return {"source": meter.source, "reason": meter.reason}
    return {"source": meter.source, "joules": meter.joules, "seconds": meter.seconds}


def _reader(path: Path) -> Callable[[], int]:
    return lambda: int(path.read_bytes())


def _text(path: Path) -> str:
    return path.read_text(encoding="ascii").strip()
