"""What is kept without recommending anything: micro-benchmarks, and figures whose file names no hardware."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from accel_platform.events import EventLog
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.reader import Reader
from migrations.pipeline.importer import migrate
from predictor.data.evidence import load_evidence

FIXTURES = Path(__file__).parent.parent / "data" / "formats"


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    """A warehouse of three micro-benchmark files, a believed table, and a report without hardware."""
    settings = Settings(home=tmp_path_factory.mktemp("home"))
    report = tmp_path_factory.mktemp("unnamed") / "gpt2.json"
    report.write_text(json.dumps(json.loads((FIXTURES / "optimum_benchmark.json").read_text())["report"]))
    names = ("google_benchmark.json", "pytest_benchmark.json", "asv_result.json", "measurement_csv.csv")
    migrate([*(FIXTURES / name for name in names), report], EventLog.open(settings))
    refresh(settings)
    return Reader(settings)


def test_they_are_kept_as_results(reader: Reader) -> None:
    [row] = reader.rows("SELECT count(*) AS n FROM results WHERE model_family = 'microbenchmark' AND status = 'ok'")
    assert row["n"] > 5
    assert reader.rows("SELECT 1 FROM results WHERE hardware = 'unknown'")


@pytest.mark.parametrize("table", ["models", "compat_matrix", "usable_results"])
def test_they_are_in_nothing_that_recommends(reader: Reader, table: str) -> None:
    family = "family" if table == "models" else "model_family"
    assert reader.rows(f"SELECT 1 FROM {table}"), "the believed table is there"
    assert reader.rows(f"SELECT 1 FROM {table} WHERE {family} = 'microbenchmark'") == []
    if table != "models":
        assert reader.rows(f"SELECT 1 FROM {table} WHERE hardware = 'unknown'") == []


def test_the_predictor_never_sees_them(reader: Reader) -> None:
    evidence = load_evidence(reader)
    assert evidence.summaries
    seen = {(cell.model_id, cell.target.hardware) for cell in (*evidence.summaries, *evidence.failures)}
    assert not [model for model, hardware in seen if model.startswith("microbenchmark:") or hardware == "unknown"]
