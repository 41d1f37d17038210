"""The whole line once, in this process: measured, imported, checked, trained, and asked over HTTP."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from accel_platform import pipeline_progress
from accel_platform.settings import Settings
from assets.events import MeasurementConfig
from assets.run_in_process import Outcome, run_full_pipeline
from predictor.service.app import create_app

TINY = MeasurementConfig(models=["bert-tiny"], hardware=["cpu"], batch_sizes=[1], effort="quick")


@pytest.fixture(scope="module")
def line(tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, Outcome, list[str]]:
    """An installation in which the whole line has run once, what came of it, and what was said."""
    settings, said = Settings(home=tmp_path_factory.mktemp("line")), list[str]()
    return settings, run_full_pipeline(settings, {"measurements": TINY}, say=said.append), said


def test_the_whole_line_runs(line: tuple[Settings, Outcome, list[str]]) -> None:
    settings, outcome, said = line
    assert outcome.failures == {}, said
    assert outcome.materialized["measurements"]["measured"] == 1
    assert outcome.materialized["predictor"]["trained_now"] is True
    assert [text[:5] for text in said if text.startswith("[")] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    assert pipeline_progress.read(settings) is None


def test_a_service_answers_with_the_measurement(line: tuple[Settings, Outcome, list[str]]) -> None:
    settings, _, _ = line
    with TestClient(create_app(settings)) as client:
        answer = client.post("/recommend", json={"model": "bert-tiny", "batch_size": 1, "hardware": ["cpu"]}).json()
    [own] = [one for one in answer["recommendations"] if one["provenance"] == "measured"]
    assert own["hardware"] == "cpu"
    assert own["evidence"]
