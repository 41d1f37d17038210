"""Detection of this host's hardware: each name is a device, or a reason for its absence."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from accel_platform.backends.probes import PROBES, Absent, digest, onnxruntime_choices, openvino_choices
from accel_platform.backends.registry import RUNTIMES, Runtime, runtime_for
from accel_platform.events.types import DeviceObserved, Event, HostObserved
from accel_platform.hardware.host import host_id, installed_versions, observe_host

SOURCE = "accel detect"


@dataclass(frozen=True)
class Inventory:
    """One look at one host. `devices` holds one entry per hardware name, available or not, then the choices: further
    devices of a runtime that were found, and what else was asked for by name.
    """

    host_id: str
    host: HostObserved
    devices: tuple[DeviceObserved, ...]

    def device(self, hardware: str) -> DeviceObserved | None:
        """Return the entry of a hardware name such as `cpu` or `openvino:gpu`; None if it was not looked for."""
        return self._by_name.get(hardware)

    @property
    def names(self) -> tuple[str, ...]:
        """The hardware names of `devices`, in their order."""
        return tuple(self._by_name)

    def events(self, *, run_id: str | None = None) -> list[Event]:
        """Return the observations as events of one moment, which replace earlier observations."""
        payloads = (self.host, *self.devices)
        events = [Event.of(p, source=SOURCE, host_id=self.host_id, run_id=run_id) for p in payloads]
        now = events[0].recorded_at
        return [event.model_copy(update={"occurred_at": now, "recorded_at": now}) for event in events]

    @cached_property
    def _by_name(self) -> dict[str, DeviceObserved]:
        return {d.hardware if d.choice is None else f"{d.hardware}:{d.choice}": d for d in self.devices}


def detect(requested: Iterable[str] = ()) -> Inventory:
    """Look at this host; imports the installed runtimes, so it takes seconds.

    `requested` are hardware names; those with a choice (`wasm:firefox`) are looked for beside all the plain ones.
    Raises InvalidInput for one that is not known.
    """
    runtimes = {
        name: runtime_for(name) for name in (*RUNTIMES, *openvino_choices(), *onnxruntime_choices(), *requested)
    }
    unique = {runtime.name: runtime for runtime in runtimes.values()}
    return Inventory(host_id(), observe_host(), tuple(_observe(runtime) for runtime in unique.values()))


def fingerprint_of(device: DeviceObserved, *, threads: int) -> str:
    """Return 16 hex digits of a hash over all that must be equal to compare figures: device, driver, runtimes,
    threads.
    """
    parts = {
        "backend": device.backend,
        "device": device.device_id,
        "driver": device.driver,
        "runtimes": device.runtime_versions,
        "emulated": device.emulated,
        "threads": threads,
    }
    return digest(parts, 16)


def _observe(runtime: Runtime) -> DeviceObserved:
    generating = runtime.in_mode("generation")
    versions = installed_versions(tuple(dict.fromkeys((*runtime.packages, *generating.packages))))
    try:
        found = PROBES[runtime.hardware](runtime.choice)
    except Absent as absent:
        return DeviceObserved(
            hardware=runtime.hardware,
            choice=runtime.choice,
            backend=runtime.backend,
            available=False,
            reason=str(absent),
            runtime_versions=versions,
        )
    return DeviceObserved(
        hardware=runtime.hardware,
        choice=runtime.choice,
        backend=runtime.backend,
        available=True,
        runtime_versions=versions | found.pop("runtime_versions", {}),
        **found,
    )
