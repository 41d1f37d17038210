"""The whole line once, in this process: measured, imported, checked, trained, and asked over HTTP."""

from __future__ import annotations

from fastapi.testclient import TestClient

from accel_platform import pipeline_progress
from accel_platform.settings import Settings
from assets.events import MeasurementConfig
from assets.run_in_process import run_full_pipeline
from predictor.service.app import create_app

TINY = MeasurementConfig(models=["bert-tiny"], hardware=["cpu"], batch_sizes=[1], effort="quick")


def test_from_a_measurement_to_an_answer(settings: Settings) -> None:
    lines: list[str] = []
    outcome = run_full_pipeline(settings, {"measurements": TINY}, say=lines.append)
    assert outcome.failures == {}, lines
    assert outcome.materialized["measurements"]["measured"] == 1
    assert outcome.materialized["predictor"]["trained_now"] is True
    assert [line[:5] for line in lines if line.startswith("[")] == ["[1/4]", "[2/4]", "[3/4]", "[4/4]"]
    assert pipeline_progress.read(settings) is None
    with TestClient(create_app(settings)) as client:
        answer = client.post("/recommend", json={"model": "bert-tiny", "batch_size": 1, "hardware": ["cpu"]}).json()
    [own] = [one for one in answer["recommendations"] if one["provenance"] == "measured"]
    assert own["hardware"] == "cpu"
    assert own["evidence"]
