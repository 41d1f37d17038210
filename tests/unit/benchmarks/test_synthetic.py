"""Synthetic logs make the tables work as a log of measurements does."""

from __future__ import annotations

from pathlib import Path

import pytest

from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.reader import Reader

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"


def test_all_results_of_a_synthetic_log_count_in_the_matrix(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    import synthetic

    synthetic.write_log(settings.home, 50, per_segment=30)
    refresh(settings)
    reader = Reader(settings)
    assert reader.rows("SELECT count(*) AS n FROM usable_results") == [{"n": 50}]
    assert reader.rows("SELECT sum(results_ok) AS n FROM compat_matrix") == [{"n": 50}]
