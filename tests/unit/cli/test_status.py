"""`accel status`: what it tells of each stage of an installation, and the next step it names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from accel_platform.backends.detect import Inventory
from accel_platform.cli import app
from accel_platform.events import EventLog
from accel_platform.events.types import HostObserved, PredictorPromoted
from accel_platform.settings import Settings
from accel_platform.warehouse import build_layer, layers
from accel_platform.warehouse.publish import refresh
from factories import event, result, verification

HOST = HostObserved(hostname="lab", os="Linux", cpu_model="Test CPU", cpu_cores_logical=2, memory_mib=1024.0)


def _status(home: Path) -> dict[str, Any]:
    done = CliRunner().invoke(app, ["status", "--json", "--home", str(home)])
    assert done.exit_code == 0, done.exception
    told: dict[str, Any] = json.loads(done.stdout)
    for_people = CliRunner().invoke(app, ["status", "--home", str(home)]).stdout
    assert told["next"] in for_people
    return told


def test_each_stage_names_the_next(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home")
    assert _status(settings.home)["next"].startswith("`accel run`")
    assert not settings.home.exists(), "asking creates nothing"
    log = EventLog.open(settings)
    log.append([event(result(provenance="imported"))])
    assert _status(settings.home)["next"].startswith("`accel db rebuild`")
    refresh(settings)
    imported = _status(settings.home)
    assert (imported["tables"]["imported"], imported["tables"]["measured"]) == (1, 0)
    assert imported["next"].startswith("`accel bench run`")
    log.append([event(result()), event(verification())])
    assert not _status(settings.home)["tables"]["up_to_date"]
    refresh(settings)
    measured = _status(settings.home)
    assert measured["tables"]["measured"] == 1
    assert measured["predictor"] is None
    assert measured["next"].startswith("`accel bench run`: a predictor of your own takes 12 cells of 3 model families")
    log.append([event(result(model_id=f"{f}-{b}", model_family=f, batch_size=b, provenance="imported"))
                for f in ("bert", "vit", "t5") for b in (1, 2, 4, 8)])  # fmt: skip
    refresh(settings)
    assert _status(settings.home)["next"].startswith("`accel train`")


def test_tables_of_another_version_are_told_with_what_makes_them_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(home=tmp_path / "home")
    EventLog.open(settings).append([event(result())])
    refresh(settings)
    monkeypatch.setattr(layers, "USABLE", "SELECT r.* EXCLUDE (counts), r.column_of_tomorrow FROM judged_results AS r")
    monkeypatch.setattr(build_layer, "schema_id", lambda: "tomorrow")
    told = _status(settings.home)
    assert told["next"].startswith("`accel db rebuild`: another version")
    assert (told["tables"], told["tables_of_another_version"]) == (None, True)
    stats = CliRunner().invoke(app, ["db", "stats", "--home", str(settings.home)])
    assert isinstance(stats.exception, layers.WarehouseOutdated)


def test_predictors_that_cannot_be_used_are_told_with_the_reason(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    EventLog.open(settings).append([event(result())])
    refresh(settings)
    old = settings.models_dir / "lgbm-old"
    old.mkdir(parents=True)
    (old / "manifest.json").write_text("{}")
    told = _status(tmp_path)
    assert told["predictor"] is None
    assert "lgbm-old" in told["predictor_refused"]
    assert "run `accel train` again" in CliRunner().invoke(app, ["status", "--home", str(tmp_path)]).stdout


def test_tables_are_behind_only_what_they_are_made_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(home=tmp_path)
    log = EventLog.open(settings)
    log.append([event(result()), event(verification())])
    refresh(settings)
    log.append([event(PredictorPromoted(predictor_id="p", cause="trained", reason="the first"))])
    stats = json.loads(CliRunner().invoke(app, ["db", "stats", "--json", "--home", str(tmp_path)]).stdout)
    assert stats["warehouse"]["snapshot_id"] != stats["log"]["snapshot_id"]
    assert stats["warehouse"]["up_to_date"]
    assert _status(tmp_path)["tables"]["up_to_date"], "no table but `events` shows a promotion"
    log.append([event(HOST)])
    assert not _status(tmp_path)["tables"]["up_to_date"], "the table of hosts lacks one"
    monkeypatch.setattr("accel_platform.backends.detect.detect", lambda: Inventory("host-here", HOST, ()))
    assert CliRunner().invoke(app, ["detect", "--home", str(tmp_path)]).exit_code == 0
    assert _status(tmp_path)["tables"]["up_to_date"], "`accel detect` brings in what it recorded"
