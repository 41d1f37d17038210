"""Spec sheets of processors, and which machines a provider lets: what hardware could do, and no run of anything."""

from __future__ import annotations

from migrations.sources.documents import Document

NOT_RESULTS = "a hardware spec sheet"

_NAMES = {"name", "device", "gpu", "gpu_name", "model", "id", "card"}
_CHIP = {
    "tdp_watts", "thermal_design_power_w", "memory_bandwidth_gb_s", "mem_bw", "mem_type", "memory_type", "num_sm",
    "streaming_multiprocessors", "tensor_cores", "shading_units", "base_clock_mhz", "boost_clock_mhz", "tflops32",
    "tflops16", "gflops32/w", "gflops16/w", "half_float_performance_gflop_s", "single_float_performance_gflop_s",
    "half", "single", "double", "bandwidth", "cuda_cores", "die_size_mm2", "launch_price", "memory", "tdp",
}  # fmt: skip
_INSTANCES = {"provider", "id", "gpu"}


def detect(document: Document) -> float:
    """Return high confidence where a table names devices and three facts of a data sheet, or providers' machines and
    their GPU.
    """
    columns = {column.casefold() for column in document.columns}
    if columns & _NAMES and len(columns & _CHIP) >= 3:
        return 0.9
    return 0.8 if columns >= _INSTANCES and len(columns) <= 6 else 0.0
