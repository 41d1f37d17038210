"""Items per joule and per dollar of rent, from counted energy or else from the device's spec sheet."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from accel_platform.analysis.query.cells import PooledCell
from accel_platform.hardware.catalog import DeviceSpec


class EfficientCell(PooledCell):
    """A cell with its items per joule and per dollar; limits (`_low`, `_high`) are those of the throughput."""

    items_per_j: float | None
    """1 over the energy counted per item. Else throughput over the thermal design power, a lower bound, because the
    device draws no more for long."""
    items_per_j_low: float | None
    items_per_j_high: float | None
    items_per_usd: float | None
    """Throughput over the hourly price."""
    items_per_usd_low: float | None
    items_per_usd_high: float | None
    spread: str
    """Meaning of the limits, in words."""
    how: str | None
    """`counted`, or the thermal design power that bounds `items_per_j`."""
    rent: str | None
    """The hourly price with its date."""
    rent_source: str | None


def efficiencies(
    cells: Sequence[Mapping[str, Any]], spec_of: Callable[[Mapping[str, Any]], DeviceSpec]
) -> list[EfficientCell]:
    """Return the cells of which either figure is known, with both."""
    rows = []
    for cell in cells:
        if not cell["throughput_items_per_s"] or cell["disturbed"]:
            continue
        spec = spec_of(cell)
        row = {**cell, "spread": "spread unknown", "how": None, "rent": None, "rent_source": None}
        energy, rates = cell["energy_j_per_item"], _rates(cell)
        usd_per_s = spec.usd_per_hour / 3600 if spec.usd_per_hour else None
        if rates["low"] is not None:
            row["spread"] = f"lowest to highest of {cell['results']} results"
        for name, per_second in (("items_per_j", spec.tdp_w), ("items_per_usd", usd_per_s)):
            for limit, rate in rates.items():
                key = name if limit == "value" else f"{name}_{limit}"
                row[key] = rate / per_second if rate is not None and per_second else None
        if energy:
            row |= {"items_per_j": 1 / energy, "items_per_j_low": None, "items_per_j_high": None, "how": "counted"}
        elif spec.tdp_w:
            row["how"] = f"at least, by TDP {spec.tdp_w:g} W"
        if spec.usd_per_hour:
            row["rent"] = f"{spec.usd_per_hour:g} USD/h on {spec.usd_date}"
            row["rent_source"] = f"{row['rent']}, {spec.usd_source}"
        if row["items_per_j"] or row["items_per_usd"]:
            rows.append(cast("EfficientCell", row))
    return rows


def _rates(cell: Mapping[str, Any]) -> dict[str, float | None]:
    several = cell["results"] > 1
    return {
        "value": cell["throughput_items_per_s"],
        "low": cell["throughput_low_items_per_s"] if several else None,
        "high": cell["throughput_high_items_per_s"] if several else None,
    }
