"""Bounds of what assets draw: pictures are kept in Dagster's database at each materialization."""

from __future__ import annotations

import base64
import itertools
import struct
from typing import Any

from assets import events, matrix, models
from assets.metadata_previews import SHOWN, among_first, table

MOST_BYTES = 60_000


def size_of(drawing: Any) -> tuple[int, int, int]:
    """The bytes, width and height of a picture in Markdown."""
    png = base64.b64decode(drawing.value.partition("base64,")[2].rstrip(")"))
    return len(png), *struct.unpack(">II", png[16:24])


def test_rows_of_the_first_values_are_kept() -> None:
    rows = [{"model": model, "number": number} for number, model in enumerate("abacab")]
    assert [row["number"] for row in among_first(rows, "model", 2)] == [0, 1, 2, 4, 5]
    assert among_first(rows, "model", 3) == rows
    assert among_first([], "model", 3) == []


def test_a_table_counts_the_rows_that_it_leaves_out_also_those_that_nobody_read() -> None:
    rows = [{"model": number} for number in range(SHOWN + 5)]
    assert "more" not in table(rows[:SHOWN]).value
    assert table(rows).value.endswith("\n\nand 5 more")
    assert table(rows[:SHOWN], total=49_072).value.endswith("\n\nand 49,052 more")


def test_a_matrix_of_thousands_of_models_is_drawn_in_part() -> None:
    cells = [
        {
            "model_id": f"model-{model}",
            "hardware": "cuda",
            "device_name": f"GPU {device}",
            "mode": "inference",
            "state": "compatible",
            "rating": "high",
        }
        for model, device in itertools.product(range(1000), range(50))
    ]
    few = size_of(matrix._rating_chart(cells[:100]))
    taken, width, height = size_of(matrix._rating_chart(cells))
    assert few[2] < height < 1500
    assert width < 1500
    assert taken < MOST_BYTES


def test_errors_of_several_modes_stand_beside_each_other_and_only_the_largest_are_drawn() -> None:
    rows = [
        {"mode": mode, "family": f"family-{number}", "median_error": number / 1000}
        for number, mode in itertools.product(range(300), ("inference", "training"))
    ]
    one, both = size_of(models._error_chart(rows[:1])), size_of(models._error_chart(rows[:2]))
    assert both[2] > one[2]  # two bars, where one on the other would be as high as one
    taken, _, height = size_of(models._error_chart(rows))
    assert height < 1500
    assert taken < MOST_BYTES


def test_a_measurement_of_hundreds_of_models_is_drawn_in_part() -> None:
    measured = [
        {"model": f"model-{number}", "hardware": "cpu", "batch_size": 1, "median_ms": 1.5} for number in range(300)
    ]
    taken, _, height = size_of(events._latency_chart(measured))
    assert height < 2000
    assert taken < MOST_BYTES
