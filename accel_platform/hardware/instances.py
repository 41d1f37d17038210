"""Instance types of clouds as names of hardware: what a question and a result mean by them.

`queried_device_name`, `naming_caution` and `suggest_instances` are for questions, whose figures are of one device.
`result_device_name` is for results, which an instance may have got with all of its devices.
"""

from __future__ import annotations

import difflib
import re
from functools import cache, lru_cache

from accel_platform.hardware.catalog import (
    NOISE,
    catalogued_name,
    form_factor_caution,
    names_by_key,
)
from accel_platform.hardware.device_names import split_count, with_count
from accel_platform.hardware.rents import Instance, instances

_AZURE = "standard_"
"""Prefix of the names of Azure's sizes, which people leave out."""
_ALIKE = 0.8
"""Least ratio of `difflib` between a name and an instance that is suggested for it."""

_OF_PARTS = re.compile(r"gr?6f\..+|g4-standard-(?:6|12|24)|nv(?:6|12|18)ads_a10_v5")
"""Keys of instance types that have a part of a GPU."""


def find_instance(name: str | None) -> Instance | None:
    """Return the instance type of that name, in any case, or None. Azure's may lack their `Standard_`."""
    return None if name is None else _by_key().get(_key(name))


def queried_device_name(name: str) -> str:
    """Return the name of an instance's device: `NVIDIA A10G` for g5.12xlarge; any other name without `1 x`."""
    name = name.removeprefix("1 x ")
    instance = find_instance(name)
    return name if instance is None else instance.device


def result_device_name(name: str) -> str:
    """Return the sheet's name of a result's device: `4 x NVIDIA A10G` for g5.12xlarge; a name unknown there as it is.

    A count before an instance's name is that of the devices used: `2 x g5.12xlarge` are two of its four.
    """
    count, single = split_count(name)
    instance = find_instance(single)
    if instance is None:
        return catalogued_name(name)
    return instance.result_name if count is None else with_count(count, instance.device)


@lru_cache(maxsize=1024)
def naming_caution(name: str) -> str | None:
    """Return how a name is understood: as an instance's device, or as one of several; None if it is a device's own."""
    instance = find_instance(name)
    if instance is None:
        return form_factor_caution(name)
    return instance.describe(name) + ("." if instance.count == 1 else "; each figure is of one.")


def part_of_gpu(name: str) -> str | None:
    """Return why an instance with a part of a GPU, such as g6f.xlarge, is unknown; None for any other name."""
    return "It has a part of a GPU, and figures are of whole ones." if _OF_PARTS.fullmatch(_key(name)) else None


def suggest_instances(name: str) -> list[str]:
    """Return up to three instance types whose names begin with a name, or are spelled like it from the first letter."""
    key = _key(name)
    alike = [known for known in _by_key() if known[:1] == key[:1]]
    begun = [known for known in alike if len(key) > 1 and known.startswith(key)]
    close = difflib.get_close_matches(key, alike, n=3, cutoff=_ALIKE)
    return [_by_key()[one].name for one in (begun or close)[:3]]


@cache
def sheet_by_key() -> dict[str, tuple[str, int]]:
    """Return device and number of devices by all names of devices and instances, as tables look them up.

    Keys are in lower case and without what `NOISE` matches.
    """
    rented = {
        NOISE.sub("", key): (instance.device, instance.count)
        for name, instance in _by_key().items()
        for key in (name, instance.name.casefold())
    }
    return rented | {key: (name, 1) for key, name in names_by_key().items()}


@cache
def _by_key() -> dict[str, Instance]:
    return {_key(instance.name): instance for instance in instances()}


def _key(name: str) -> str:
    return name.strip().casefold().removeprefix(_AZURE)
