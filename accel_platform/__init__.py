"""The platform's core: events, measurement, warehouse and analysis, without Dagster and FastAPI.

`BenchmarkConfig`, `run_benchmark` and `run_suite` are imported on first use, so that importing this is instant.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accel_platform.benchmark_api import BenchmarkConfig, run_benchmark, run_suite

_REPORTS_OFF = {"ORT_DISABLE_TELEMETRY": "1", "GX_ANALYTICS_ENABLED": "false", "HF_HUB_DISABLE_TELEMETRY": "1"}
"""Variables that keep libraries from reporting on their users: ONNX Runtime, Great Expectations, Hugging Face's hub."""

for _name, _value in _REPORTS_OFF.items():
    os.environ.setdefault(_name, _value)
# OpenVINO and NNCF report each conversion to Google Analytics wherever this package of theirs can be imported.
sys.modules.setdefault("openvino_telemetry", None)  # type: ignore[arg-type]  # None makes an import fail

__all__ = ["BenchmarkConfig", "run_benchmark", "run_suite"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from accel_platform import benchmark_api

        return getattr(benchmark_api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
