"""The whole line once, in this process: measured, imported, checked, trained, and asked over HTTP."""

from __future__ import annotations

import dagster as dg
import pytest
from fastapi.testclient import TestClient

from accel_platform import pipeline_progress
from accel_platform.events import EventLog
from accel_platform.settings import Settings
from assets.events import MeasurementConfig, hardware_inventory, measurements
from assets.resources import Installation
from assets.run_in_process import run_full_pipeline
from predictor.service.app import create_app

TINY = MeasurementConfig(models=["bert-tiny"], hardware=["cpu"], batch_sizes=[1], effort="quick")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """An installation that has measured, and has no tables yet."""
    settings = Settings(home=tmp_path_factory.mktemp("line"))
    done = dg.materialize(
        [hardware_inventory, measurements],
        resources={"accel": Installation(home=str(settings.home))},
        run_config=dg.RunConfig(ops={"measurements": TINY}),
    )
    [made] = done.asset_materializations_for_node("measurements")
    assert (made.metadata["in_the_log_before"].value, made.metadata["measured"].value) == (0, 1)
    return settings


def test_what_is_measured_is_in_the_log(settings: Settings) -> None:
    [result] = [event.payload for event in EventLog.open(settings).read(types={"ResultRecorded"})]
    assert (result.model_id, result.hardware, result.batch_size, result.status) == ("bert-tiny", "cpu", 1, "ok")


def test_from_a_measurement_to_an_answer(settings: Settings) -> None:
    lines: list[str] = []
    outcome = run_full_pipeline(settings, {"measurements": TINY}, say=lines.append)
    assert outcome.failures == {}, lines
    assert outcome.materialized["measurements"]["in_the_log_before"] == 1, "what is in the log is not measured again"
    assert outcome.materialized["measurements"]["measured"] == 0
    assert outcome.materialized["predictor"]["trained_now"] is True
    assert [line[:5] for line in lines if line.startswith("[")] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    assert pipeline_progress.read(settings) is None
    with TestClient(create_app(settings)) as client:
        answer = client.post("/recommend", json={"model": "bert-tiny", "batch_size": 1, "hardware": ["cpu"]}).json()
    [own] = [one for one in answer["recommendations"] if one["provenance"] == "measured"]
    assert own["hardware"] == "cpu"
    assert own["evidence"]
