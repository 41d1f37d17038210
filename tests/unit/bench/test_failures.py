"""Failures of a GPU: memory that ran out, and a device that the process has lost."""

from __future__ import annotations

import pytest
import torch

from accel_platform.backends.registry import runtime_for
from accel_platform.bench.measure.failures import classify, device_lost
from accel_platform.bench.measure.observation import slowdown_reason


@pytest.mark.parametrize(
    ("error", "failure_class", "lost"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB."), "out_of_memory", False),
        (RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling it"), "out_of_memory", False),
        (RuntimeError("CUDA error: out of memory"), "out_of_memory", False),
        (RuntimeError("CUDA error: an illegal memory access was encountered"), "error", True),
        (torch.AcceleratorError("CUDA error: device-side assert triggered"), "error", True),
        (RuntimeError("HIP error: invalid device function"), "error", True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), "error", False),
    ],
)  # fmt: skip
def test_only_a_fault_of_the_device_costs_the_process(error: Exception, failure_class: str, lost: bool) -> None:
    assert classify(error)[0] == failure_class
    assert device_lost(error) is lost


def test_heat_makes_a_result_noisy_and_a_power_cap_does_not() -> None:
    assert slowdown_reason({}) is None
    assert slowdown_reason({"gpu_slowed_by": ["power cap"]}) is None
    reason = slowdown_reason({"gpu_slowed_by": ["power cap", "hardware thermal slowdown"]})
    assert reason == "the GPU lowered its clock: hardware thermal slowdown"


def test_a_way_of_running_is_a_backend_of_its_own() -> None:
    plain, compiled, graph = (runtime_for(name) for name in ("cuda", "cuda:compile", "cuda:graph"))
    assert len({plain.backend, compiled.backend, graph.backend}) == 3
    assert plain.hardware == compiled.hardware == graph.hardware == "cuda"
    assert "int8" not in runtime_for("cpu:compile").precisions
