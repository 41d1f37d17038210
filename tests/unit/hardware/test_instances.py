"""Instance types of clouds: what they have, and the names that stand for them."""

from __future__ import annotations

import re
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest

from accel_platform.hardware.catalog import NOISE, catalog, find_spec, names_by_key
from accel_platform.hardware.instances import (
    find_instance,
    naming_caution,
    part_of_gpu,
    queried_device_name,
    result_device_name,
    sheet_by_key,
    suggest_instances,
)
from accel_platform.hardware.rents import instances


def test_every_instance_has_devices_of_the_sheet_and_a_source() -> None:
    names = [instance.name.casefold() for instance in instances()]
    assert len({*names}) == len(names) >= 140
    assert {instance.device for instance in instances()} <= {spec.name for spec in catalog()}
    for instance in instances():
        assert 1 <= instance.count <= 16, instance.name
        assert find_spec(instance.name) is None, "a device has this name, too"
        assert re.match(r"(AWS EC2|Google Cloud|Azure); https://github\.com/\S+/blob/[0-9a-f]{40}/\S+", instance.source)


def test_the_page_counts_the_instances_and_explains_every_column() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/catalogue.md").read_text()
    page = " ".join(page[page.index("## Instance types") :].split())
    header = files("accel_platform.hardware").joinpath("instances.csv").read_text().splitlines()[0]
    assert [column for column in header.split(",") if f"| `{column}` |" not in page] == []
    clouds = Counter(instance.source.partition(";")[0] for instance in instances())
    assert f"{len(instances())} instance types of three clouds: {clouds['AWS EC2']} of AWS, " in page
    assert f"{clouds['Google Cloud']} of Google Cloud and {clouds['Azure']} of Azure" in page


def test_an_instance_goes_by_its_whole_name_in_any_case() -> None:
    for instance in instances():
        assert find_instance(instance.name.upper()) is instance
    assert find_instance("NC24ads_A100_v4") is find_instance("Standard_NC24ads_A100_v4") is not None
    assert [find_instance(name) for name in (None, "", "g5", "g5.3xlarge", "A10G", "Standard_")] == [None] * 6


@pytest.mark.parametrize(
    ("name", "device", "result"),
    [
        ("g5.xlarge", "NVIDIA A10G", "NVIDIA A10G"),
        ("G5.12xlarge", "NVIDIA A10G", "4 x NVIDIA A10G"),
        ("a2-megagpu-16g", "NVIDIA A100 SXM4 40GB", "16 x NVIDIA A100 SXM4 40GB"),
        ("Standard_NV72ads_A10_v5", "NVIDIA A10", "2 x NVIDIA A10"),
        ("2 x g5.12xlarge", "2 x g5.12xlarge", "2 x NVIDIA A10G"),
        ("4 x Tesla T4", "4 x Tesla T4", "4 x NVIDIA T4"),
        ("1 x Tesla T4", "Tesla T4", "NVIDIA T4"),
        ("1 x g5.12xlarge", "NVIDIA A10G", "NVIDIA A10G"),
        ("no such device", "no such device", "no such device"),
    ],
)
def test_a_question_is_of_one_device_and_a_result_of_all(name: str, device: str, result: str) -> None:
    assert (queried_device_name(name), result_device_name(name)) == (device, result)


def test_tables_look_instances_up_beside_devices() -> None:
    sheet, devices = sheet_by_key(), names_by_key()
    assert {sheet[key] for key in devices} == {(name, 1) for name in devices.values()}
    assert {NOISE.sub("", instance.name.casefold()) for instance in instances()}.isdisjoint(devices)
    assert sheet["g512xlarge"] == ("NVIDIA A10G", 4)
    assert sheet["nc24adsa100v4"] == sheet["standardnc24adsa100v4"] == ("NVIDIA A100 PCIe 80GB", 1)


def test_an_instance_says_what_it_has() -> None:
    assert naming_caution("g5.xlarge") == "g5.xlarge has one NVIDIA A10G."
    assert naming_caution("g5.12xlarge") == "g5.12xlarge has 4 x NVIDIA A10G; each figure is of one."
    assert str(naming_caution("H100")).startswith("H100 is taken for the NVIDIA H100 SXM5 80GB")
    assert naming_caution("NVIDIA T4") is None


def test_instances_with_a_part_of_a_gpu_are_known_as_such() -> None:
    page = (Path(__file__).parents[3] / "docs/reference/catalogue.md").read_text()
    assert "- instances with a part of a GPU: AWS g6f and gr6f, Google's g4-standard-6 to 24, Azure's NV6ads to" in page
    parts = ("G6f.xlarge", "gr6f.4xlarge", "g4-standard-24", "Standard_NV6ads_A10_v5", "NV18ads_A10_v5")
    assert {part_of_gpu(name) for name in parts} == {"It has a part of a GPU, and figures are of whole ones."}
    others = (*(instance.name for instance in instances()), "g6f", "cuda", "")
    assert [name for name in others if part_of_gpu(name)] == []


def test_near_instances_are_suggested_and_no_device_is_taken_for_one() -> None:
    assert suggest_instances("g5.3xlarge")[0] == "g5.xlarge"
    assert suggest_instances("p4d") == ["p4d.24xlarge", "p4de.24xlarge"]
    assert suggest_instances("NC24ads_A100_v5")[0] == "Standard_NC24ads_A100_v4"
    assert [
        name for name in ("c5.xlarge", "n1-standard-4", "A100 SXM", "L40", "T4G", "") if suggest_instances(name)
    ] == []
