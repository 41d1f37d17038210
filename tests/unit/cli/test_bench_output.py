"""One name, one figure: what `accel bench run` prints of a result is what the tables have."""

from __future__ import annotations

from typing import Any

import pytest

from accel_platform.cli.measurement.bench_output import result_row
from accel_platform.events import EventLog
from accel_platform.reports.run_record import result_statistics
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.reader import Reader
from factories import event, result

SKEWED = (1_000_000,) * 10 + (31_000_000,) * 3
NAMES = ("latency_p50_ms", "throughput_items_per_s", "throughput_tokens_per_s", "samples")


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"batch_size": 4, "mode": "training", "processes": 2},
        {"batch_size": 4, "mode": "generation", "output_tokens": 16},
        {"samples_ns": SKEWED[:5]},
    ],
    ids=["inference", "two training processes", "generation", "few samples"],
)
def test_printed_figures_are_those_of_the_tables(settings: Settings, log: EventLog, more: dict[str, Any]) -> None:
    measured = result(**{"samples_ns": SKEWED, **more})
    log.append([event(measured)])
    refresh(settings)
    [row] = Reader(settings).rows(f"SELECT {', '.join(NAMES)} FROM results")
    printed = result_row(measured)
    assert {name: printed[name] for name in NAMES} == {
        name: None if value is None else pytest.approx(value) for name, value in row.items()
    }
    assert result_statistics(measured).items_per_s == pytest.approx(row["throughput_items_per_s"])
