"""A cell as `analysis.cells` has it, for tests of what is drawn and told. Its figures are made up."""

from __future__ import annotations

from typing import Any

HOSTILE = "</script><img src=x onerror=alert(1)>"


def cell(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "model_id": "bert-base", "model_family": "bert", "hardware": "cpu", "choice": None, "device_id": "cpu-1",
        "device_name": "Test CPU", "backend": "pytorch", "setup": None, "threads": None, "software": None,
        "mode": "inference", "precision": "float32", "batch_size": 1, "sequence_length": 128, "image_size": None,
        "output_tokens": None, "processes": None, "provenance": "measured", "verified": True, "results": 1, "runs": 1,
        "samples": 30, "noisy": False, "disturbed": False, "latency_ms": 20.0, "latency_low_ms": 20.0,
        "latency_high_ms": 20.0, "latency_std_ms": 1.0, "throughput_items_per_s": 50.0,
        "throughput_low_items_per_s": 50.0, "throughput_high_items_per_s": 50.0, "memory_peak_mib": 500.0,
        "memory_peak_low_mib": 500.0, "energy_j_per_item": None, "modality": "text",
    }  # fmt: skip
    return {**fields, **changes}
