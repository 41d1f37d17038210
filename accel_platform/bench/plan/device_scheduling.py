"""Which groups of cells may run side by side, and running them so: never two on one piece of silicon."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from accel_platform.backends.detect import Inventory
from accel_platform.bench.plan.plan import Cell

Group = tuple[Cell, ...]


def assign_lanes(groups: Iterable[Group], inventory: Inventory) -> list[list[Group]]:
    """The groups by the silicon they run on, each lane in order."""
    found: dict[str | None, list[Group]] = {}
    for group in groups:
        found.setdefault(physical_device_id(group[0].hardware, inventory), []).append(group)
    return list(found.values())


def physical_device_id(hardware: str, inventory: Inventory) -> str | None:
    """What a hardware name really keeps busy: its device, or the processor that plays it."""
    device = inventory.device(hardware)
    if device is not None and device.emulated:
        device = inventory.device("cpu")
    return device.device_id if device is not None else None


def run_lanes(found: Sequence[Sequence[Group]], measure: Callable[[Group], None], stop: Callable[[], None]) -> None:
    """Measure every lane's groups in order, the lanes side by side.

    Where one raises, or Ctrl-C comes, `stop` is called, which must make the others end soon; then the error goes on up.
    """

    def run(lane: Sequence[Group]) -> None:
        for group in lane:
            measure(group)

    if len(found) == 1:
        try:
            run(found[0])
        except BaseException:
            stop()
            raise
        return
    with ThreadPoolExecutor(len(found)) as pool:
        futures = [pool.submit(run, lane) for lane in found]
        try:
            for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                future.result()
        except BaseException:
            stop()
            raise
