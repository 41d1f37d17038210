"""`accel devices`: what is listed is what queries take."""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from accel_platform.cli import app
from accel_platform.hardware.catalog import catalog, find_spec


def _run(*words: str) -> Any:
    return CliRunner().invoke(app, ["devices", *words])


def test_all_devices_are_listed_by_names_that_queries_take() -> None:
    listed = json.loads(_run("--json").stdout)["devices"]
    assert [device["name"] for device in listed] == [spec.name for spec in catalog()]
    assert all(find_spec(device["name"]) is not None and device["source"] for device in listed)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (("h100",), "NVIDIA H100 PCIe 80GB"),
        (("AMD", "--kind", "gpu"), "AMD Instinct MI300X"),
        (("Tesla T4",), "NVIDIA T4"),
    ],
)
def test_a_part_of_a_name_chooses(words: tuple[str, ...], name: str) -> None:
    listed = json.loads(_run(*words, "--json").stdout)["devices"]
    assert name in [device["name"] for device in listed]
    assert len(listed) < len(catalog()) / 4


def test_an_instance_is_listed_as_its_device_with_the_number_of_them() -> None:
    answer = json.loads(_run("G5.12xlarge", "--json").stdout)
    assert [device["name"] for device in answer["devices"]] == ["NVIDIA A10G"]
    assert (answer["instance"]["name"], answer["instance"]["count"]) == ("g5.12xlarge", 4)
    assert answer["instance"]["rent"]["usd_per_hour"] == 5.672
    assert "g5.12xlarge has 4 x NVIDIA A10G, all of it for 5.672 USD/h (2026-07-20)" in _run("g5.12xlarge").stderr
    assert "instance" not in json.loads(_run("NVIDIA A10G", "--json").stdout)
    assert "Did you mean p4d.24xlarge, p4de.24xlarge?" in _run("p4d").stderr


def test_lines_fit_and_nothing_found_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    assert max(map(len, _run().stdout.splitlines())) <= 100
    assert "--json has other rates" in _run("h100").stderr
    assert _run("h100", "--json").stderr == _run("h100", "--format", "csv").stderr == ""
    nothing = _run("no such device")
    assert nothing.exit_code == 1
    assert nothing.stdout == ""
    assert "--hardware-spec" in nothing.stderr
