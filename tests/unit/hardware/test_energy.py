"""Energy from the kernel's counters: a tree as `/sys/class/powercap` shows it, its wraps, walls and silence."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_platform.bench.measure.sampling import Sampling, collect_samples
from accel_platform.events.types import DeviceObserved
from accel_platform.hardware import energy, gpu
from accel_platform.hardware.energy import (
    POWERCAP,
    Counter,
    Meter,
    NoEnergy,
    energy_counter,
    meter_facts,
    meter_for,
    rapl,
)

RANGE_UJ = 262_143_328_850


@pytest.fixture
def powercap() -> Iterator[Path]:
    """Two zones of a laptop: a package with memory and cores, the whole platform, and the package once more by MMIO."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        root = Path(folder) / "class" / "powercap"
        root.mkdir(parents=True)
        zones = {
            "intel-rapl:0": "package-0",
            "intel-rapl:0:0": "core",
            "intel-rapl:0:1": "dram",
            "intel-rapl:1": "psys",
            "intel-rapl-mmio:0": "package-0",
        }
        (root / "intel-rapl").mkdir()
        for zone, name in zones.items():
            # The class directory holds links to where the devices lie.
            device = Path(folder) / "devices" / zone
            device.mkdir(parents=True)
            (device / "name").write_text(f"{name}\n")
            (device / "energy_uj").write_text("1000000\n")
            (device / "max_energy_range_uj").write_text(f"{RANGE_UJ}\n")
            (root / zone).symlink_to(device)
        yield root


def spend(root: Path, **joules: float) -> None:
    for zone, spent in joules.items():
        path = root / zone.replace("_", ":").replace("rapl", "intel-rapl") / "energy_uj"
        path.write_text(f"{(int(path.read_text()) + round(spent * 1e6)) % (RANGE_UJ + 1)}\n")


def test_packages_and_memory_are_counted_once_each(powercap: Path) -> None:
    with rapl(powercap) as meter:
        spend(powercap, rapl_0=3.0, rapl_0_0=2.0, rapl_0_1=0.5, rapl_1=9.0)
        (powercap / "intel-rapl-mmio:0" / "energy_uj").write_text("4000000\n")
        pause()
    assert meter.source == "rapl: dram, package-0"
    assert meter.joules == pytest.approx(3.5)
    assert meter_facts(meter)["joules"] == meter.joules


def test_a_counter_that_wraps_loses_nothing(powercap: Path) -> None:
    (powercap / "intel-rapl:0" / "energy_uj").write_text(f"{RANGE_UJ - 1_000_000}\n")
    with rapl(powercap) as meter:
        spend(powercap, rapl_0=5.0)
        pause()
    assert meter.joules == pytest.approx(5.0, abs=1e-5)


@given(st.integers(0, RANGE_UJ), st.lists(st.integers(1, RANGE_UJ), min_size=1, max_size=5))
def test_whatever_it_begins_at_what_was_spent_between_reads_is_what_is_counted(begin: int, spent: list[int]) -> None:
    value = begin
    meter = Meter("rapl: package-0", [Counter(lambda: value, RANGE_UJ)], step_s=0.0)
    with meter:
        for more in spent:
            value = (value + more) % (RANGE_UJ + 1)
            meter._read()
    assert meter.joules == sum(spent) / 1e6


def test_long_phases_are_read_often_enough_to_see_every_wrap(powercap: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "_OFTEN_ENOUGH_S", 0.01)
    path = powercap / "intel-rapl:0" / "energy_uj"
    with rapl(powercap) as meter:
        for value in (RANGE_UJ // 2, RANGE_UJ - 10, RANGE_UJ // 2, 1_000_000):
            replace_text(path, f"{value}\n")
            pause(0.1)
    assert meter.joules == pytest.approx(2 * RANGE_UJ / 1e6, rel=1e-6)


def test_a_counter_that_only_root_may_read_is_said_to_be_one(powercap: Path) -> None:
    path = powercap / "intel-rapl:0" / "energy_uj"
    path.chmod(0o400)
    # Root may read anything; nobody may not.
    me = os.geteuid()
    if me == 0:
        os.seteuid(65534)
    else:
        path.chmod(0)
    try:
        with pytest.raises(NoEnergy, match=r"energy_uj may be read by root only"):
            rapl(powercap)
    finally:
        os.seteuid(me)


def test_a_counter_that_stands_still_and_one_that_is_too_coarse_give_no_figure(powercap: Path) -> None:
    with rapl(powercap) as still:
        pause()
    assert still.joules is None
    assert "stood still" in meter_facts(still)["reason"]
    ticks = iter((0, 500_000))
    with Meter("nvml: a GPU", [Counter(lambda: next(ticks))], step_s=0.1) as coarse:
        pause()
    assert coarse.joules is None
    assert "too short" in meter_facts(coarse)["reason"]


def test_a_counter_that_stops_answering_costs_the_figure_and_nothing_else(powercap: Path) -> None:
    with rapl(powercap) as meter:
        (powercap / "intel-rapl:0" / "energy_uj").unlink()
        pause()
    assert meter.joules is None
    assert "stopped answering" in meter_facts(meter)["reason"]


def test_a_machine_without_counters_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoEnergy, match="virtual machines have none"):
        rapl(tmp_path / "powercap")
    (tmp_path / "intel-rapl").mkdir()
    with pytest.raises(NoEnergy, match="no energy counter"):
        rapl(tmp_path)


def test_only_the_steady_phase_is_counted(powercap: Path) -> None:
    runs = 0

    def run() -> None:
        nonlocal runs
        runs += 1
        spend(powercap, rapl_0=0.25)

    meter = rapl(powercap)
    sampling = Sampling(min_time_s=0.02, min_count=20, max_time_s=0.1, warmup_max_s=0.01)
    samples = collect_samples(run, sampling, steady=meter)
    assert samples.warmup_count > 0
    assert runs == samples.warmup_count + len(samples.samples_ns)
    assert meter.joules == pytest.approx(0.25 * len(samples.samples_ns))


def test_who_counts_for_which_device() -> None:
    def device(**facts: Any) -> DeviceObserved:
        return DeviceObserved(**{"backend": "some", "available": True, **facts})

    assert energy_counter(device(hardware="openvino", device_id="cpu-epyc-1")) == "rapl"
    assert energy_counter(device(hardware="cuda", device_id="cuda-a10-1")) == "nvml"
    several = energy_counter(device(hardware="cuda", device_id="cuda-a10-1"), processes=2)
    assert "several processes" in meter_facts(meter_for(several))["reason"]
    assert energy_counter(device(hardware="cpu", device_id="cpu-epyc-1"), processes=2) == "rapl"
    assert energy_counter(device(hardware="webgpu", device_id="webgpu-swiftshader-1", emulated=True)) == "rapl"
    assert energy_counter(device(hardware="webgpu", device_id="webgpu-nvidia-1")) is None
    assert energy_counter(device(hardware="rocm", device_id="rocm-mi300x-1")) is None
    assert "no counter" in meter_facts(meter_for(None))["reason"]


def test_this_machines_processor_is_counted_or_says_why_not() -> None:
    meter = meter_for("rapl")
    if isinstance(meter, NoEnergy):
        assert str(POWERCAP) in str(meter)
        return
    with meter:
        sum(i * i for i in range(3_000_000))
    assert meter.joules is None or 0 < meter.joules < 1000 * meter.seconds


def test_this_machines_nvidia_gpu_is_counted_or_says_why_not() -> None:
    pytest.importorskip("pynvml")
    meter = meter_for("nvml")
    if isinstance(meter, Meter):
        assert meter.source.startswith("nvml: ")
        assert gpu.energy_mj() > 0
    else:
        assert "NVML" in str(meter)
        assert gpu.clock_max_mhz() is None


def pause(seconds: float = 0.02) -> None:
    import time

    time.sleep(seconds)


def replace_text(path: Path, text: str) -> None:
    """At once, as a counter changes: a reader never sees an empty file."""
    target = path.resolve()
    part = target.with_name("new")
    part.write_text(text)
    part.replace(target)
