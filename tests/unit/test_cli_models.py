"""`accel bench models`: what it lists, for people and machines."""

from __future__ import annotations

import json

from typer.testing import CliRunner

from accel_platform.cli import app
from accel_platform.workloads.families import known_models, model_set


def test_models_are_listed_with_their_size_and_sets() -> None:
    answer = CliRunner().invoke(app, ["bench", "models", "--set", "small", "--json"])
    assert answer.exit_code == 0, answer.output
    rows = json.loads(answer.stdout)
    assert [row["model_id"] for row in rows] == [spec.model_id for spec in model_set("small")]
    (bert,) = (row for row in rows if row["model_id"] == "bert-base")
    assert bert["parameters"] == 109_482_240
    assert bert["sets"] == ["small", "key"]
    assert "google-bert/bert-base-uncased" in bert["aliases"]


def test_people_see_one_line_for_each_model_of_the_catalogue() -> None:
    answer = CliRunner().invoke(app, ["bench", "models"])
    assert answer.exit_code == 0, answer.output
    lines = [line.split() for line in answer.stdout.splitlines()[2:]]
    assert [line[0] for line in lines] == [spec.model_id for spec in known_models()]
