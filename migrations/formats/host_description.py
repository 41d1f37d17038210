"""Descriptions of the machine that something ran on: processor, GPU, drivers, libraries, and no figure of any run."""

from __future__ import annotations

from migrations.normalize.row_access import object_of
from migrations.sources.documents import Document

NOT_RESULTS = "a description of a machine"

_FACTS = {
    "hostname", "kernel", "os", "cpu", "gpu", "gpu_details", "rocm_version", "hip_version", "cuda_version",
    "driver_version", "vulkan_version", "amdgpu_driver", "inxi", "platform", "processor", "memory", "ram",
    "python_version", "distro", "system_name", "host_processor_model_name", "host_processors_per_node",
    "accelerator_model_name", "host_memory_capacity", "accelerators_per_node", "operating_system", "framework",
    "number_of_nodes", "architecture", "machine", "cpu_count", "gpu_count", "gpu_info", "cpu_info", "lscpu",
    "nvidia_smi",
}  # fmt: skip
_BEYOND_DOUBT = 8
"""MLPerf's system descriptions have a `status` too: whether the machine can be bought."""
_OUTCOMES = (
    "result",
    "latenc",
    "throughput",
    "benchmark",
    "test",
    "error",
    "status",
    "report",
    "metric",
    "stats",
    "time_",
)


def detect(document: Document) -> float:
    """Return high confidence where at least four keys are facts about a machine and none speaks of an outcome."""
    keys = {str(key).casefold() for key in object_of(document.value)}
    known = len(keys & _FACTS)
    if any(key.startswith(_OUTCOMES) and key not in _FACTS for key in keys) and known < _BEYOND_DOUBT:
        return 0.0
    return 0.75 if known >= 4 else 0.0
