"""Names of devices: with the number of them, and in tables, charts and messages, where several may share a name."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any


def split_count(name: str) -> tuple[int | None, str]:
    """Return the number that a name begins with, None if it states none, and the name of one: `4 x Tesla T4`."""
    stated = re.match(r"(\d+) x ", name)
    return (None, name) if stated is None else (int(stated[1]), name[stated.end() :])


def without_count(name: str) -> str:
    """Return the name of a single device: `Tesla T4` for `4 x Tesla T4`."""
    return split_count(name)[1]


def with_count(count: int | None, name: str) -> str:
    """Return the name of so many devices together, `4 x NVIDIA T4`; one goes by its name alone."""
    return name if count in (None, 1) else f"{count} x {name}"


def shared_names(devices: Iterable[tuple[str | None, str | None]]) -> frozenset[str]:
    """Return the names that several ids stand for, of pairs of name and id. An unknown id may be any of the others."""
    ids: dict[str, set[str]] = {}
    for name, device_id in devices:
        if name is not None and device_id is not None:
            ids.setdefault(name, set()).add(device_id)
    return frozenset(name for name, found in ids.items() if len(found) > 1)


def distinct_name(name: str | None, device_id: str | None, shared: Set[str], *more: str) -> str | None:
    """Return a name with the id behind it if others share it, and with what `more` tells devices apart.

    The id stands for a name that is unknown; None where both are.
    """
    telling = [device_id] if device_id is not None and name is not None and name in shared else []
    named = name or device_id
    return f"{named} ({', '.join([*telling, *more])})" if named and (telling or more) else named


def with_distinct_names(
    rows: Sequence[Mapping[str, Any]], name: str = "device_name", device_id: str = "device_id", *, short: bool = False
) -> list[dict[str, Any]]:
    """Return the rows with device names that no two devices among them share.

    `short` is for charts: as much of an id as tells devices of one name apart.
    """
    devices = {(row[name], row[device_id]) for row in rows}
    shared = shared_names(devices)
    shown = _short_ids((named, each) for named, each in devices if each is not None) if short else {}
    return [
        {**row, name: distinct_name(row[name], shown.get((row[name], row[device_id]), row[device_id]), shared)}
        for row in rows
    ]


def _short_ids(devices: Iterable[tuple[str | None, str]]) -> dict[tuple[str | None, str], str]:
    """Return the end of each id, `imported` for one made of the name alone; nothing where two would read alike."""
    short: dict[tuple[str | None, str], str] = {
        (name, each): "imported" if each.startswith("imported:") else each if len(each) <= 12 else f"…{each[-8:]}"
        for name, each in devices
        if name is not None
    }
    return short if len({(name, text) for (name, _), text in short.items()}) == len(short) else {}
