"""Prices by the hour: of devices as shares of instances, of whole instances, and of the user's own list."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_platform.errors import InvalidInput
from accel_platform.hardware import catalog as device_catalog
from accel_platform.hardware import rents
from accel_platform.hardware.catalog import catalog, find_spec
from accel_platform.hardware.instances import find_instance
from accel_platform.hardware.rents import PRICE_LIST, Instance, device_rent, instances, least_rent

PriceList = Callable[[str], Path]


@pytest.fixture
def price_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PriceList:
    """Return a function that makes a text the user's own price list, with caches of its own."""

    def write(text: str) -> Path:
        path = tmp_path / "prices.csv"
        path.write_text(text)
        monkeypatch.setenv(PRICE_LIST, str(path))
        for name in ("own_rents", "instances", "device_rent"):
            fresh = cache(getattr(rents, name).__wrapped__)
            monkeypatch.setattr(rents, name, fresh)
            monkeypatch.setattr(device_catalog, name, fresh)
        monkeypatch.setattr(device_catalog, "catalog", cache(catalog.__wrapped__))
        return path

    return write


def test_every_price_names_region_page_and_day() -> None:
    priced = [instance for instance in instances() if instance.rent is not None]
    assert len(priced) >= 110
    for instance in priced:
        assert instance.rent is not None
        where = f"{instance.source.partition(';')[0]} on-demand [a-z0-9-]+ {re.escape(instance.name)}"
        assert re.fullmatch(rf"{where}; https://github\.com/\S+/blob/[0-9a-f]{{40}}/\S+", instance.rent.source)
        assert date(2026, 1, 1) <= date.fromisoformat(instance.rent.date) <= datetime.now(UTC).date()
        assert 0.05 < instance.rent.usd_per_hour / instance.count < 40, instance.name


def test_a_device_costs_its_share_of_the_cheapest_instance() -> None:
    spec = find_spec("NVIDIA A10G")
    assert spec is not None
    assert (spec.usd_per_hour, spec.usd_date) == (1.006, "2026-07-20")
    assert (spec.usd_source or "").startswith("AWS EC2 on-demand us-east-1 g5.xlarge; https://")
    eighth = device_rent("NVIDIA H200 SXM")
    assert eighth is not None
    assert eighth.usd_per_hour == pytest.approx(63.296 / 8)
    assert eighth.source.startswith("AWS EC2 on-demand us-east-1 p5en.48xlarge, one of 8 devices; https://")


def test_devices_together_cost_shares_of_an_instance_that_has_so_many() -> None:
    """Two T4 in one host are half of a g4dn.12xlarge, because g4dn.xlarge has one only."""
    alone, four = device_rent("NVIDIA T4", 1), device_rent("NVIDIA T4", 2)
    assert alone is not None
    assert four is not None
    assert alone.usd_per_hour == 0.526
    assert four.usd_per_hour == pytest.approx(3.912 / 4)
    # No listed instance has more than two of these.
    assert device_rent("NVIDIA H100 NVL", 8) == device_rent("NVIDIA H100 NVL", 2) is not None
    assert device_rent("no such device") is None


@given(st.sampled_from([spec.name for spec in catalog()]), st.integers(1, 16))
def test_more_devices_together_never_cost_less_each(device: str, together: int) -> None:
    fewer, more = device_rent(device, together), device_rent(device, together + 1)
    assert (fewer is None) == (more is None)
    assert fewer is None or more is None or fewer.usd_per_hour <= more.usd_per_hour


def test_whole_instances_cost_what_the_cheapest_large_enough_one_does() -> None:
    chosen = [instance for name in ("g5.12xlarge", "g5.24xlarge", "g5.48xlarge") if (instance := find_instance(name))]
    assert [least_rent(chosen, devices) for devices in (1, 4, 5, 9)] == [
        chosen[0].rent, chosen[0].rent, chosen[2].rent, None
    ]  # fmt: skip
    assert least_rent([Instance("own", "NVIDIA A10G", 4, "", None)], 1) is None


def test_own_prices_come_first(price_list: PriceList) -> None:
    price_list(
        "date,name,usd_per_hour\n2026-11-01,nvidia geforce rtx 4090,0.69\n,P5.48xlarge,20\n2026-11-02,NVIDIA L4,0.5\n"
    )
    specs = {spec.name: spec for spec in device_catalog.catalog()}
    rtx, l4, h100 = (specs[f"NVIDIA {name}"] for name in ("GeForce RTX 4090", "L4", "H100 SXM5 80GB"))
    assert (rtx.usd_per_hour, rtx.usd_source, rtx.usd_date) == (0.69, "your price list prices.csv", "2026-11-01")
    assert l4.usd_per_hour == 0.5
    assert rents.device_rent("NVIDIA L4", 4) == rents.device_rent("NVIDIA L4")
    assert h100.usd_per_hour == 2.5
    assert h100.usd_source == "p5.48xlarge by your price list prices.csv, one of 8 devices"
    assert h100.usd_date == datetime.now(UTC).date().isoformat()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("name,usd\nNVIDIA L4,1\n", "has other columns than name, usd_per_hour and date"),
        ("", "has other columns than name, usd_per_hour and date"),
        ("name,usd_per_hour\nNVIDIA L4,cheap\n", "the price of 'NVIDIA L4' has no number of USD or no date"),
        ("name,usd_per_hour\nNVIDIA L4\n", "the price of 'NVIDIA L4' has no number of USD or no date"),
        ("name,usd_per_hour,date\nNVIDIA L4,1,today\n", "the price of 'NVIDIA L4' has no number of USD or no date"),
        ("name,usd_per_hour\nNVIDIA L4,0\n", "is 0 USD per hour: give one above 0"),
        ("name,usd_per_hour\nNVIDIA L4,nan\n", "is nan USD per hour: give one above 0"),
        ("name,usd_per_hour\nH100,2\n", r"no device or instance: 'h100'. Did you mean NVIDIA H100 SXM5 80GB, "),
        ("name,usd_per_hour\nNVIDIA L4,1\nnvidia l4,2\n", "prices 'nvidia l4' twice: leave one line"),
        ("name,usd_per_hour\nfoo,2\n", "no device or instance: 'foo'. `accel devices` lists their names."),
    ],
)
def test_a_price_list_of_nonsense_is_refused(price_list: PriceList, text: str, problem: str) -> None:
    price_list(text)
    with pytest.raises(InvalidInput, match=problem):
        device_catalog.catalog()


def test_a_price_list_that_cannot_be_read_is_refused(price_list: PriceList) -> None:
    path = price_list("")
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidInput, match="is no CSV file in UTF-8"):
        device_catalog.catalog()
    path.unlink()
    with pytest.raises(InvalidInput, match=r"cannot be read: .*prices\.csv: No such file or directory"):
        device_catalog.catalog()
