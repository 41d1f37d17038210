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
    """Host and devices as detected at one moment.

    `devices` has an entry for each plain hardware name, available or not. After these come names with a choice:
    further devices of a runtime that were found, and those that were requested.
    """

    host_id: str
    host: HostObserved
    devices: tuple[DeviceObserved, ...]

    def device(self, hardware: str) -> DeviceObserved | None:
        """Return the entry of a hardware name such as `cpu` or `openvino:gpu`; None if it was not looked for."""
        return self._by_name.get(hardware)

    @property
    def names(self) -> tuple[str, ...]:
        """Hardware names of `devices`, in order."""
        return tuple(self._by_name)

    def events(self, *, run_id: str | None = None) -> list[Event]:
        """Return the observations as events of one moment. They replace earlier observations of the host."""
        payloads = (self.host, *self.devices)
        events = [Event.of(p, source=SOURCE, host_id=self.host_id, run_id=run_id) for p in payloads]
        now = events[0].recorded_at
        return [event.model_copy(update={"occurred_at": now, "recorded_at": now}) for event in events]

    @cached_property
    def _by_name(self) -> dict[str, DeviceObserved]:
        return {d.hardware if d.choice is None else f"{d.hardware}:{d.choice}": d for d in self.devices}


def detect(requested: Iterable[str] = ()) -> Inventory:
    """Detect the devices of this host. It imports the installed runtimes, which takes seconds.

    All plain hardware names are looked for, and the `requested` ones, which may have a choice (`wasm:firefox`). Raises
    InvalidInput for an unknown name.
    """
    runtimes = {
        name: runtime_for(name) for name in (*RUNTIMES, *openvino_choices(), *onnxruntime_choices(), *requested)
    }
    unique = {runtime.name: runtime for runtime in runtimes.values()}
    return Inventory(host_id(), observe_host(), tuple(_observe(runtime) for runtime in unique.values()))


def fingerprint_of(device: DeviceObserved, *, threads: int) -> str:
    """Return the fingerprint of a device: 16 hex digits of a hash over device, driver, runtime versions and threads.

    Figures are compared only if their fingerprints are equal.
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
    """Probe one hardware name, and return its device or the reason for its absence."""
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
