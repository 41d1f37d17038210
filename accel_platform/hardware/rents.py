"""Instance types of clouds, and what devices cost by the hour. Add an instance in `instances.csv`.

Prices of the user's own price list replace those that ship with the package.
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from functools import cache
from importlib.resources import files
from pathlib import Path

from accel_platform.errors import InvalidInput
from accel_platform.hardware.device_names import with_count

PRICE_LIST = "ACCEL_PRICES"
"""Variable with the path of the user's own price list: a CSV file with name, usd_per_hour and perhaps date."""
_COLUMNS = ({"name", "usd_per_hour"}, {"name", "usd_per_hour", "date"})


@dataclass(frozen=True)
class Rent:
    """On-demand price of some devices, with the host that they come with."""

    usd_per_hour: float
    source: str
    """Whose price it is, where, and of which part of which instance; ends in the page that states it."""
    date: str
    """Day of the price, ISO 8601. Prices change, so an answer that uses one states the day."""

    def times(self, devices: int) -> Rent:
        """Return the price of so many devices at this one's."""
        source = self.source if devices == 1 else f"{devices} x {self.source}"
        return replace(self, usd_per_hour=self.usd_per_hour * devices, source=source)

    def describe(self) -> str:
        """Return the price and its day: `5.672 USD/h (2026-07-20)`."""
        return f"{self.usd_per_hour:.4g} USD/h ({self.date})"


@dataclass(frozen=True)
class Instance:
    """Instance type of a cloud."""

    name: str
    device: str
    """Name of its devices in the catalog."""
    count: int
    """Number of its devices."""
    source: str
    """The cloud, and the page that states its devices."""
    rent: Rent | None
    """Price of the whole instance; None where no page at hand states one."""

    @property
    def result_name(self) -> str:
        """Name of the device that results with all of its devices are of: `4 x NVIDIA A10G`."""
        return with_count(self.count, self.device)

    def describe(self, called: str) -> str:
        """Return what it has, under the name that a query has for it: `g5.12xlarge has 4 x NVIDIA A10G`."""
        return f"{called} has {'one ' if self.count == 1 else ''}{self.result_name}"


@cache
def instances() -> tuple[Instance, ...]:
    """Return every instance type of `instances.csv`."""
    text = files(__package__).joinpath("instances.csv").read_text(encoding="utf-8")
    return tuple(map(_instance, csv.DictReader(text.splitlines())))


@cache
def own_rents() -> dict[str, Rent]:
    """Return the prices of the user's own list by name in lower case: of a device, or of a whole instance.

    Empty without a list. A price without a date is of the day when the file was written. Raises InvalidInput for a list
    that cannot be read. `catalog` checks the names.
    """
    named = os.environ.get(PRICE_LIST)
    if not named:
        return {}
    path = Path(named)
    try:
        with path.open(encoding="utf-8-sig", newline="") as lines:
            rows = csv.DictReader(lines)
            if {*(rows.fieldnames or ())} not in _COLUMNS:
                raise InvalidInput(
                    f"{path} has other columns than name, usd_per_hour and date: give it a line with these."
                )
            written = datetime.fromtimestamp(path.stat().st_mtime, UTC).date()
            rents: dict[str, Rent] = {}
            for row in rows:
                name = (row["name"] or "").strip()
                if name.casefold() in rents:
                    raise InvalidInput(f"{path} prices {name!r} twice: leave one line.")
                rents[name.casefold()] = _own_rent(path, row, written)
            return rents
    except OSError as error:
        raise InvalidInput(f"The price list ({PRICE_LIST}) cannot be read: {path}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"The price list ({PRICE_LIST}) is no CSV file in UTF-8: {path}: {error}") from error


def _own_rent(path: Path, row: dict[str, str], written: date) -> Rent:
    """Return a row of the price list. Raises InvalidInput for a price or a date that is none."""
    try:
        usd = float(row["usd_per_hour"])
        day = date.fromisoformat(row.get("date") or written.isoformat())
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{path}: the price of {row['name']!r} has no number of USD or no date: {error}") from error
    if not (math.isfinite(usd) and usd > 0):
        raise InvalidInput(f"{path}: the price of {row['name']!r} is {usd:g} USD per hour: give one above 0.")
    return Rent(usd, f"your price list {path.name}", day.isoformat())


@cache
def device_rent(device: str, together: int = 1) -> Rent | None:
    """Return the least price of one device, as a share of its instance; None if nothing at hand states one.

    The user's own price of the device comes first, then own prices of its instances.

    Parameters
    ----------
    device
        Name in the catalog.
    together
        Number of devices that have to be in one instance. Where none has so many, those with the most count.
    """
    own = own_rents()
    if device.casefold() in own:
        return own[device.casefold()]
    priced = [(one, one.rent) for one in instances() if one.device == device and one.rent is not None]
    priced = [each for each in priced if each[0].name.casefold() in own] or priced
    enough = min(together, max((one.count for one, _ in priced), default=0))
    shares = [(rent.usd_per_hour / one.count, one, rent) for one, rent in priced if one.count >= enough]
    if not shares:
        return None
    usd, instance, rent = min(shares, key=lambda share: (share[0], share[1].count, share[1].name))
    where, *page = rent.source.split("; ")
    part = [] if instance.count == 1 else [f"one of {instance.count} devices"]
    return Rent(usd, "; ".join([", ".join([where, *part]), *page]), rent.date)


def most_rented_together(device: str) -> int | None:
    """Return how many of a device the largest instance with a price has, 1 without any; None for the user's price."""
    if device.casefold() in own_rents():
        return None
    return max((one.count for one in instances() if one.device == device and one.rent is not None), default=1)


def least_rent(chosen: Iterable[Instance], devices: int) -> Rent | None:
    """Return the least price of a whole instance among those chosen that have so many devices; None without one."""
    rents = [one.rent for one in chosen if one.rent is not None and one.count >= devices]
    return min(rents, key=lambda rent: rent.usd_per_hour, default=None)


def _instance(row: dict[str, str]) -> Instance:
    rent = own_rents().get(row["name"].casefold())
    if rent is not None:
        rent = replace(rent, source=f"{row['name']} by {rent.source}")
    elif row["usd_per_hour"]:
        cloud, (where, page) = row["source"].partition(";")[0], row["usd_source"].split("; ")
        rent = Rent(float(row["usd_per_hour"]), f"{cloud} {where} {row['name']}; {page}", row["usd_date"])
    return Instance(row["name"], row["device"], int(row["count"]), row["source"], rent)
