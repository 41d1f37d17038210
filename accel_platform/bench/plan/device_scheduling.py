"""Scheduling of cell groups over devices: groups run side by side unless they share a physical device."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from accel_platform.backends.detect import Inventory, detect
from accel_platform.bench.plan.plan import Cell

Group = tuple[Cell, ...]


def assign_lanes(groups: Iterable[Group], inventory: Inventory) -> list[list[Group]]:
    """Group the groups by the physical device they run on, each lane in order."""
    lanes: dict[str | None, list[Group]] = {}
    for group in groups:
        lanes.setdefault(physical_device_id(group[0].hardware, inventory), []).append(group)
    return list(lanes.values())


def split_lane(lane: Sequence[Group], inventory: Inventory, at_once: int) -> list[list[Group]]:
    """Deal the groups of one accelerator to as many lanes, whose workers take turns; return any other lane whole."""
    devices = {physical_device_id(group[0].hardware, inventory) for group in lane}
    if len(devices) > 1 or physical_device_id("cpu", inventory) in devices:
        return [list(lane)]
    return [part for start in range(at_once) if (part := list(lane[start::at_once]))]


def physical_device_id(hardware: str, inventory: Inventory) -> str | None:
    """Return the id of the device that a hardware name keeps busy; for a software stand-in, the processor's."""
    device = inventory.device(hardware)
    if device is not None and device.emulated:
        device = inventory.device("cpu")
    return device.device_id if device is not None else None


def detect_usable_devices(claimed: Sequence[str]) -> dict[str, str]:
    """Map each hardware name that can be measured on this host to the id of the device that it keeps busy.

    Claimed names count without a device, too, and leave the others out. Raises InvalidInput for an unknown name.
    """
    inventory = detect(claimed)
    devices = {name: inventory.device(name) for name in claimed or inventory.names}
    here = [name for name, device in devices.items() if claimed or (device is not None and device.available)]
    # A device that is claimed and not here is nobody else's either.
    return {name: physical_device_id(name, inventory) or name for name in here}


def run_lanes(lanes: Sequence[Sequence[Group]], measure: Callable[[Group], None], stop: Callable[[], None]) -> None:
    """Measure every lane's groups in order, the lanes side by side.

    On an exception or Ctrl-C in one lane, `stop` is called, and the error is raised again. `stop` must make the other
    lanes end soon.
    """

    def run(lane: Sequence[Group]) -> None:
        for group in lane:
            measure(group)

    if len(lanes) == 1:
        try:
            run(lanes[0])
        except BaseException:
            stop()
            raise
        return
    with ThreadPoolExecutor(len(lanes)) as pool:
        futures = [pool.submit(run, lane) for lane in lanes]
        try:
            for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                future.result()
        except BaseException:
            stop()
            raise
