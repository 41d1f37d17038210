"""Results pooled into cells: what a selection leaves, and that unlike things are never averaged."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from accel_platform.analysis.query.cells import read_cells
from accel_platform.analysis.query.filters import Selection
from accel_platform.warehouse.reader import Reader
from predictor_world import world


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    return Reader(world(tmp_path_factory.mktemp("cells")))


def test_every_cell_is_of_one_shape_device_and_provenance(reader: Reader) -> None:
    cells = read_cells(reader, Selection())
    identity = ("model_id", "hardware", "choice", "device_id", "mode", "precision", "batch_size", "sequence_length",
                "processes", "provenance", "verified")  # fmt: skip
    assert len({tuple(cell[name] for name in identity) for cell in cells}) == len(cells) > 0
    for cell in cells:
        assert cell["latency_low_ms"] <= cell["latency_ms"] <= cell["latency_high_ms"]
        assert len(cell["evidence"]) == min(cell["results"], 20)


def test_filters_all_have_to_hold_and_know_aliases(reader: Reader) -> None:
    every = read_cells(reader, Selection())
    [some] = [cell for cell in every if cell["model_id"] == every[0]["model_id"]][:1]
    selection = Selection(model=(some["model_id"],), hardware=(some["hardware"],), batch_size=some["batch_size"])
    chosen = read_cells(reader, selection)
    assert some in chosen
    assert {(c["model_id"], c["hardware"], c["batch_size"]) for c in chosen} == {
        (some["model_id"], some["hardware"], some["batch_size"])
    }
    assert read_cells(reader, Selection(model=("bert-base",))) == read_cells(
        reader, Selection(model=("google-bert/bert-base-uncased",))
    )


def test_times_without_a_zone_are_utc_and_until_is_left_out(reader: Reader) -> None:
    newest = max(cell["newest_at"] for cell in read_cells(reader, Selection()))
    assert read_cells(reader, Selection(since=newest))
    assert read_cells(reader, Selection(since=newest.replace(tzinfo=None))) == read_cells(
        reader, Selection(since=newest)
    )
    assert not read_cells(reader, Selection(since=newest, until=newest))


def test_a_filter_of_another_name_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="batchsize"):
        Selection.model_validate({"batchsize": 1})
