"""The spec sheet: plausible figures, names that drivers report, and a CPU's peak."""

from __future__ import annotations

import re
from datetime import date
from importlib.resources import files
from pathlib import Path

import duckdb
import pytest

from accel_platform.backends.registry import runtime_for
from accel_platform.hardware.catalog import (
    DeviceSpec,
    catalog,
    cpu_spec,
    devices_with_chip,
    find_spec,
    form_factor_caution,
)
from accel_platform.hardware.device_spec import device_spec
from predictor.advisor.candidates import Candidate, choose_candidates
from predictor.data.evidence import Evidence, Target
from predictor.data.samples import parse_device_name


def test_every_device_has_a_source_and_figures_in_proportion() -> None:
    devices = catalog()
    assert len(devices) >= 250
    assert {device.kind for device in devices} == {"gpu", "cpu", "npu"}
    assert len({device.name for device in devices}) == len(devices)
    for device in devices:
        assert all((device.source, device.vendor)), device.name
        assert device.release_year in range(2006, 2030), device.name
        peaks = (device.peak_fp32_tflops, device.peak_fp16_tensor_tflops, device.peak_int8_tensor_tops)
        floats = (
            device.peak_fp32_tflops, device.peak_fp16_tensor_tflops, device.peak_fp8_tensor_tflops,
            device.peak_fp4_tensor_tflops,
        )  # fmt: skip
        # A matrix unit is never slower than the vector unit, nor at a narrower type.
        known = [peak for peak in peaks if peak is not None]
        assert known == sorted(known), device.name
        assert (rising := [peak for peak in floats if peak is not None]) == sorted(rising), device.name
        assert "https://" in device.source, device.name
        priced = device.usd_per_hour is not None
        assert priced == bool(device.usd_source) == bool(device.usd_date), device.name
        assert not priced or date.fromisoformat(device.usd_date or ""), device.name


def test_the_page_counts_every_device_and_explains_every_column() -> None:
    page = " ".join((Path(__file__).parents[3] / "docs/reference/catalogue.md").read_text().split())
    header = files("accel_platform.hardware").joinpath("catalog.csv").read_text().splitlines()[0]
    assert [column for column in header.split(",") if f"`{column}`" not in page] == []
    priced = sum(spec.usd_per_hour is not None for spec in catalog())
    assert f"specifications of {len(catalog())} devices" in page
    assert f"prices of {priced} of them" in page


def test_every_gpu_of_nvidia_and_amd_says_what_its_code_is_compiled_for() -> None:
    forms = {"NVIDIA": r"sm_\d{2,3}", "AMD": r"gfx[0-9a-f]{3,4}"}
    for device in catalog():
        form = forms.get(str(device.vendor)) if device.kind == "gpu" else None
        assert (device.architecture is None) == (form is None), device.name
        assert form is None or re.fullmatch(form, str(device.architecture)), device.name
    alike = [device.name for device in catalog() if device.architecture == "sm_90"]
    assert {"NVIDIA H100 SXM5 80GB", "NVIDIA H200 SXM", "NVIDIA GH200 480GB"} <= {*alike}


def test_a_gpu_reads_a_byte_in_the_time_of_a_few_floating_point_operations() -> None:
    for device in catalog():
        if device.kind == "gpu" and device.peak_fp32_tflops and device.bandwidth_gb_s:
            assert 5 < device.peak_fp32_tflops * 1e3 / device.bandwidth_gb_s < 150, device.name


def test_chips_are_devices_of_the_sheet() -> None:
    names = {device.name for device in catalog()}
    chips = {device.name: device.chip for device in catalog() if device.chip}
    assert set(chips.values()) <= names - set(chips)
    assert devices_with_chip("Rockchip RK3588S") == ["Orange Pi 5", "Firefly Station M3"]
    assert devices_with_chip("Orange Pi 5") == []


def test_a_processor_stands_for_its_gpu_and_npu() -> None:
    parts = ["Intel Arc Graphics of Core Ultra 7 155H", "Intel NPU of Core Ultra 100"]
    assert devices_with_chip("Intel Core Ultra 7 155H") == parts
    assert devices_with_chip("Intel Core i9-13900K") == []


def test_no_two_devices_share_a_name() -> None:
    for device in catalog():
        for name in (device.name, *device.aliases, *device.open_names):
            assert find_spec(name) == device, name
            assert name == name.strip(), "a name that holds a semicolon was cut into two"


@pytest.mark.parametrize(
    ("reported", "name"),
    [
        ("Tesla T4", "NVIDIA T4"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100 SXM4 80GB"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 SXM5 80GB"),
        ("nvidia geforce rtx 4090", "NVIDIA GeForce RTX 4090"),
        ("AMD Instinct MI300X", "AMD Instinct MI300X"),
        ("h100_sxm", "NVIDIA H100 SXM5 80GB"),
        ("H100 SXM", "NVIDIA H100 SXM5 80GB"),
        ("Nvidia H100 GPU", "NVIDIA H100 SXM5 80GB"),
        ("Samsung Galaxy S25", "Samsung Galaxy S25"),
        ("HAILO10H", "Hailo-10H"),
        ("b60", "Intel Arc Pro B60"),
        ("i9-13900K", "Intel Core i9-13900K"),
        ("Platinum 8480+", "Intel Xeon Platinum 8480+"),
    ],
)
def test_names_as_drivers_report_them(reported: str, name: str) -> None:
    found = find_spec(reported)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize("name", [None, "", "NVIDIA A100 PCIe", "NVIDIA L20", "RTX 4090 Laptop GPU", "Test CPU"])
def test_no_likeness_is_taken_for_the_device(name: str | None) -> None:
    assert find_spec(name) is None


def test_the_size_of_its_memory_may_follow_a_name() -> None:
    names = {
        "L4 24GB": "NVIDIA L4",
        "Tesla T4 (16 GB)": "NVIDIA T4",
        "H100 80GB": "NVIDIA H100 SXM5 80GB",
        "V100 32GB": "NVIDIA V100 SXM2 32GB",
        "P100 16GB": "NVIDIA P100 PCIe 16GB",
        "H100 PCIe 80G": "NVIDIA H100 PCIe 80GB",
        "A100 PCIe 40 GiB": "NVIDIA A100 PCIe 40GB",
        "A10G": "NVIDIA A10G",
        "M3 Max": "Apple M3 Max",
    }
    for name, expected in names.items():
        found = find_spec(name)
        assert found is not None, name
        assert found.name == expected
    assert find_spec("RTX 4090 48GB") is None
    assert form_factor_caution("L4 24GB") is None
    assert "PCIe 32GB" in str(form_factor_caution("V100 32GB"))


def test_a_name_that_leaves_the_form_factor_open_says_what_it_is_taken_for() -> None:
    assert form_factor_caution("NVIDIA H100 80GB HBM3") is None
    assert form_factor_caution("no such device") is None
    assert "A100 SXM4 80GB" in str(form_factor_caution("Nvidia A100 GPU"))
    caution = form_factor_caution("h100")
    assert caution is not None
    assert "NVIDIA H100 SXM5 80GB" in caution
    assert "NVIDIA H100 PCIe 80GB" in caution


@pytest.mark.parametrize("device", catalog(), ids=lambda device: device.name)
def test_every_device_can_be_asked_for_or_is_refused_in_words(device: DeviceSpec) -> None:
    nothing = Evidence("snapshot", {}, {}, {}, [], {}, "host-1", "cpu-1")
    chosen, missing = choose_candidates(nothing, [device.name])
    [found, *others] = [*chosen, *missing]
    assert [one.target.hardware for one in chosen[1:]] == ["openvino"] * len(others)
    assert bool(others) == (device.kind == "cpu" and device.vendor == "Intel")
    if isinstance(found, Candidate):
        assert runtime_for(found.target.hardware)
        assert found.spec == device
        assert found.device_id is None
    else:
        assert found.cause == "no_runtime"
        assert found.reason.endswith(f"drives {device.name}")
    driven = device.kind == "cpu" or (device.vendor, device.kind) in (
        ("NVIDIA", "gpu"),
        ("AMD", "gpu"),
        ("Apple", "gpu"),
        ("Intel", "gpu"),
        ("Qualcomm", "npu"),
    )
    assert isinstance(found, Candidate) == driven


@pytest.mark.parametrize(
    ("name", "hardware"),
    [
        ("Core Ultra 7 165H", "openvino"),
        ("Core Ultra 7 165H iGPU", "openvino:gpu"),
        ("Core Ultra 7 165H NPU", "openvino:npu"),
    ],
)
def test_each_part_of_a_processor_is_measured_by_a_name_of_its_own(name: str, hardware: str) -> None:
    spec = find_spec(name)
    assert spec is not None
    assert Candidate(Target("openvino", "openvino", "imported", spec.name), spec).hardware_name == hardware


def test_cpu_peak_is_cores_times_clock_times_lanes_times_two_fma_pipes() -> None:
    spec = cpu_spec("x", cores=10, clock_max_mhz=3000, vector_bits=512, memory_mib=2048)
    assert spec.peak_fp32_tflops == pytest.approx(10 * 3.0e9 * 16 * 2 * 2 / 1e12)
    assert spec.memory_gib == 2


@pytest.mark.parametrize("missing", ["cores", "clock_max_mhz", "vector_bits"])
def test_cpu_peak_is_unknown_unless_all_is_known(missing: str) -> None:
    facts = {"cores": 4, "clock_max_mhz": 2000.0, "vector_bits": 256, "memory_mib": None, missing: None}
    assert cpu_spec("x", **facts).peak_fp32_tflops is None  # type: ignore[arg-type]


def test_every_device_of_a_shipped_figure_is_in_the_spec_sheet() -> None:
    packs = files("accel_platform.knowledge") / "packs"
    paths = [str(pack / "results.parquet") for pack in packs.iterdir() if (pack / "results.parquet").is_file()]
    assert paths
    sql = "SELECT DISTINCT payload->>'device_name' FROM read_parquet(?) WHERE type = 'ResultRecorded'"
    names = [name for (name,) in duckdb.execute(sql, [paths]).fetchall() if name]
    assert len(names) > 100
    assert not [name for name in names if parse_device_name(name)[1] is None]


def test_a_processor_is_not_taken_for_the_gpu_of_its_board() -> None:
    board = find_spec("NVIDIA Jetson Nano")
    assert board is not None
    assert device_spec(board.name, "id", "cuda") == board
    processor = device_spec(board.name, "id", "cpu")
    assert (processor.kind, processor.peak_fp32_tflops) == ("cpu", None)


def test_an_a100_is_found_by_its_memory_alone() -> None:
    for memory in (40, 80):
        found = find_spec(f"A100 {memory}GB")
        assert found is not None
        assert found.name == f"NVIDIA A100 SXM4 {memory}GB"


def test_error_correction_takes_a_sixteenth_of_memory_beside_the_chip() -> None:
    reduced = [spec for spec in catalog() if spec.usable_gib is not None]
    assert {"NVIDIA T4", "NVIDIA L4", "NVIDIA A10G", "NVIDIA L40S"} <= {spec.name for spec in reduced}
    for spec in reduced:
        assert spec.memory_gib is not None
        assert (spec.usable_memory_gib, spec.vendor) == (spec.memory_gib * 15 / 16, "NVIDIA")
        # Stacks beside the chip (HBM) have bits of their own for it, and no card of another kind is slower than them.
        assert spec.bandwidth_gb_s is not None
        assert spec.bandwidth_gb_s < 900
    for name, usable in (("NVIDIA A100 SXM4 80GB", 80), ("NVIDIA GeForce RTX 4090", 24)):
        found = find_spec(name)
        assert found is not None
        assert found.usable_memory_gib == usable
