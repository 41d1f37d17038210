"""Names of an answer's devices, which tell those of one name apart."""

from __future__ import annotations

from collections.abc import Sequence, Set

from accel_platform.hardware.device_names import distinct_name, shared_names
from predictor.schemas.responses import Excluded, Figures


def shared_devices(items: Sequence[Figures | Excluded]) -> frozenset[str]:
    """Return the device names that several devices of an answer share."""
    return shared_names((item.device, item.device_id) for item in items)


def device_labels(ranked: Sequence[Figures]) -> list[str | None]:
    """Return the name of each device; its id is added where others share the name, its runtime where it has several."""
    shared = shared_devices(ranked)
    places = [(r.hardware, distinct_name(r.device, r.device_id, shared)) for r in ranked]
    runtimes: dict[tuple[str, str | None], set[str]] = {}
    for place, r in zip(places, ranked, strict=True):
        runtimes.setdefault(place, set()).add(r.backend)
    return [
        distinct_name(r.device, r.device_id, shared, *([r.backend] if len(runtimes[place]) > 1 else []))
        for place, r in zip(places, ranked, strict=True)
    ]


def place_label(item: Figures | Excluded, shared: Set[str]) -> str:
    """Return hardware and device in words, with the device's id if its name is one of `shared`."""
    telling = [item.device, item.device_id if item.device in shared else None]
    return f"{item.hardware} ({', '.join(filter(None, telling))})" if item.device else item.hardware
