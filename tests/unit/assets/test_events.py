"""The configuration of `measurements`: what is wrong in it is refused at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NoReturn

import dagster as dg
import pytest

from assets import events
from assets.events import MeasurementConfig, hardware_inventory, measurements
from assets.resources import Installation


@pytest.mark.parametrize(
    ("choice", "reason"),
    [
        ({"models": ["bert-tny"]}, "bert-tiny"),
        ({"hardware": ["cpuu"]}, "cpuu"),
        ({"batch_sizes": [0]}, "at least 1"),
        ({"effort": "hard"}, "hard"),
    ],
)
def test_a_wrong_choice_is_refused_before_the_hardware_is_looked_at(
    choice: dict[str, Any], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def detect() -> NoReturn:
        raise AssertionError("detection takes seconds")

    monkeypatch.setattr(events, "detect", detect)
    with pytest.raises(dg.Failure, match=reason):
        dg.materialize(
            [hardware_inventory, measurements],
            selection=[measurements],
            resources={"accel": Installation(home=str(tmp_path))},
            run_config=dg.RunConfig(ops={"measurements": MeasurementConfig(**choice)}),
        )
