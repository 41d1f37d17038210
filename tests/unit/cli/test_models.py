"""`accel bench models`: what it lists, for people and machines."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from accel_platform.cli import app
from accel_platform.workloads.model_catalog import known_models, model_set


def test_models_are_listed_with_their_size_and_sets() -> None:
    answer = CliRunner().invoke(app, ["bench", "models", "--set", "small", "--json"])
    assert answer.exit_code == 0, answer.output
    rows = json.loads(answer.stdout)
    assert [row["model_id"] for row in rows] == [spec.model_id for spec in model_set("small")]
    (bert,) = (row for row in rows if row["model_id"] == "bert-base")
    assert bert["parameters"] == 109_482_240
    assert bert["sets"] == ["small", "key"]
    assert "google-bert/bert-base-uncased" in bert["aliases"]


@pytest.mark.slow
def test_people_see_one_line_for_each_model_of_the_catalogue() -> None:
    answer = CliRunner().invoke(app, ["bench", "models"])
    assert answer.exit_code == 0, answer.output
    lines = [line.split() for line in answer.stdout.splitlines()[2:]]
    assert [line[0] for line in lines] == [spec.model_id for spec in known_models()]


def test_lists_come_in_the_formats_that_tables_come_in(tmp_path: Path) -> None:
    def run(*arguments: str) -> str:
        answer = CliRunner().invoke(app, [*arguments])
        assert answer.exit_code == 0, answer.output
        return answer.stdout

    path = tmp_path / "models.parquet"
    run("bench", "models", "--set", "small", "-o", str(path))
    assert pq.read_table(path).column("aliases").to_pylist()[0]
    assert run("bench", "models", "--set", "small", "--format", "markdown").splitlines()[2].startswith("| model_id |")
    home = ("--home", str(tmp_path / "home"))
    run("bench", "request", "--models", "bert-tiny", "--hardware", "cpu", *home)
    [head, row] = run("bench", "requests", "--format", "csv", *home).splitlines()
    assert head.startswith('"request_id","state"')
    assert '"bert-tiny"' in row.replace('""', '"')
    people = run("bench", "requests", "--format", "html", *home)
    assert "<td>open</td>" in people
    assert run("keys", "list", "--format", "json", *home).strip() == "[]"
    assert "No key was made" in run("keys", "list", *home)
    run("db", "snapshot", "create", "--name", "first", *home)
    assert '"first"' in run("db", "snapshot", "list", "--format", "csv", *home)
