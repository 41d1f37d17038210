"""The platform's core: events, measurement, warehouse and analysis, without Dagster and FastAPI.

`BenchmarkConfig`, `run_benchmark` and `run_suite` are imported on first use, so that importing this is instant.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accel_platform.benchmark_api import BenchmarkConfig, run_benchmark, run_suite

__all__ = ["BenchmarkConfig", "run_benchmark", "run_suite"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        from accel_platform import benchmark_api

        return getattr(benchmark_api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
