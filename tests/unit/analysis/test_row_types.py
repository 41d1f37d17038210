"""Rows have the fields that their types declare, because these say what SQL returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pages_world import BEFORE, pages_world

from accel_platform.analysis.query.cells import PooledCell, read_cells
from accel_platform.analysis.query.filters import Selection
from accel_platform.analysis.regressions.snapshot_comparison import (
    CellChange,
    MatrixChange,
    MedianChange,
    ResultCounts,
    compare_cells,
    compare_tables,
)
from accel_platform.analysis.regressions.triage import RecordedShift, recorded_shifts
from accel_platform.analysis.summaries.baselines import SpeedupCell, speedups
from accel_platform.analysis.summaries.best_configurations import BestConfiguration, best_configurations
from accel_platform.analysis.summaries.comparison import ComparedCell, compare_side_by_side
from accel_platform.analysis.summaries.efficiency import EfficientCell, efficiencies
from accel_platform.analysis.summaries.roofline import RooflineCell, Rooflines
from accel_platform.hardware.catalog import find_spec
from accel_platform.warehouse.reader import Reader
from accel_platform.warehouse.time_travel import tables_as_of
from predictor_world import MODELS, measured_grid, world


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[type, Mapping[str, Any]]:
    """The first row of each type, of an installation in which a series shifted after a snapshot."""
    settings = pages_world(tmp_path_factory.mktemp("types"), measured_grid(MODELS[:2], ("cpu", "cuda")))
    now, before = Reader(settings), Reader(tables_as_of(settings, BEFORE))
    cells, everything = read_cells(now, Selection()), Selection()
    rooflines = Rooflines(now).rows(cells)
    rented = find_spec("H100 SXM")
    assert rented is not None
    other = Reader(world(tmp_path_factory.mktemp("other"), measured_grid(MODELS[2:3], ("cpu",))))
    tables = compare_tables(before, now, min_change_percent=0)
    found: dict[type, Any] = {
        PooledCell: cells,
        RooflineCell: rooflines,
        BestConfiguration: best_configurations(rooflines),
        SpeedupCell: speedups(cells),
        EfficientCell: efficiencies(cells, lambda _: rented),
        ComparedCell: compare_side_by_side(now, Selection(model=(MODELS[0].model_id,)), "hardware").rows,
        CellChange: compare_cells(before, now, everything).rows,
        ResultCounts: tables.results,
        MedianChange: tables.medians,
        MatrixChange: compare_tables(other, now).matrix,
        RecordedShift: recorded_shifts(now, everything),
    }
    return {of: some[0] for of, some in found.items() if some}


@pytest.mark.parametrize(
    "declared",
    [
        PooledCell,
        RooflineCell,
        BestConfiguration,
        SpeedupCell,
        EfficientCell,
        ComparedCell,
        CellChange,
        ResultCounts,
        MedianChange,
        MatrixChange,
        RecordedShift,
    ],
)
def test_a_row_has_the_fields_of_its_type(rows: dict[type, Mapping[str, Any]], declared: Any) -> None:
    assert set(rows[declared]) == declared.__required_keys__
