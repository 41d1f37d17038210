"""Disk use of an installation is reported, and files that nobody needs are deleted."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from typer.testing import CliRunner

from accel_platform.cli import app
from accel_platform.events import Event, EventLog
from accel_platform.events.types import PredictorPromoted
from accel_platform.settings import Settings
from accel_platform.warehouse import disk_use, publish
from factories import event, result
from predictor.training import artifact
from predictor.training.promotion import KEEP_NEWEST, remove_old_predictors


def _age(path: Path, seconds: float = 7_200) -> None:
    os.utime(path, (time.time() - seconds,) * 2)


def test_each_part_is_told_with_its_size(settings: Settings, log: EventLog) -> None:
    for n in range(3):
        log.append([event(result(batch_size=n + 1))])
    publish.refresh(settings)
    used = {use.part: use for use in disk_use.measure_disk_use(settings)}
    assert used.keys() == {"log/segments", "log/snapshots", "tables in service"}
    assert used["log/segments"].files == 3
    on_disk = sum(path.stat().st_size for path in (settings.home / "log" / "segments").iterdir())
    assert used["log/segments"].size_bytes >= on_disk
    answer = CliRunner().invoke(app, ["db", "du", "--json", "--home", str(settings.home)])
    assert {row["part"] for row in json.loads(answer.stdout)} == used.keys()
    empty = CliRunner().invoke(app, ["db", "du", "--home", str(settings.home / "nothing")])
    assert (empty.exit_code, "nothing here yet" in empty.stdout) == (0, True)


def test_damaged_tables_are_told_as_such(settings: Settings, log: EventLog) -> None:
    log.append([event(result())])
    publish.refresh(settings)
    (settings.warehouse_dir / "CURRENT").write_text("of-nobody.json")
    used = {use.part: use for use in disk_use.measure_disk_use(settings)}
    assert not used.keys() & {"tables in service", "earlier tables"}
    assert "damaged" in used["tables"].what
    assert used["tables"].size_bytes >= sum(path.stat().st_size for path in settings.warehouse_dir.glob("layer-*"))


def test_what_killed_processes_left_goes_after_an_hour(settings: Settings, log: EventLog) -> None:
    log.append([event(result())])
    publish.refresh(settings)
    building = settings.models_dir / ".building-1"
    building.mkdir(parents=True)
    (building / "trees.txt").write_text("half")
    places = [settings.warehouse_dir / ".layer-1.duckdb", settings.home / "log" / "segments" / ".a.parquet.1.empty"]
    for place in places:
        place.touch()
    assert disk_use.remove_leftovers(settings) == []
    for path in (*places, building):
        _age(path)
    assert building not in disk_use.find_leftovers(settings), "something in it was written a moment ago"
    _age(building / "trees.txt")
    assert set(disk_use.remove_leftovers(settings)) == {*places, building}
    assert not any(path.exists() for path in (*places, building))
    assert (settings.warehouse_dir / ".lock").exists()


def test_predictors_are_kept_by_count(settings: Settings, log: EventLog) -> None:
    names = [f"lgbm-{n:032x}" for n in range(KEEP_NEWEST + 5)]
    for number, name in enumerate(names):
        (settings.models_dir / name).mkdir(parents=True)
        (settings.models_dir / name / "manifest.json").write_text("{}")
        _age(settings.models_dir / name, 10_000 - number)
    assert remove_old_predictors(settings, log) == [], "nothing is in service, so nothing is known to be superseded"
    artifact.activate(settings, names[1])
    told = PredictorPromoted(predictor_id=names[1], replaced=names[0], cause="trained", reason="better")
    log.append([Event.of(told, source="test")])
    gone = remove_old_predictors(settings, log)
    assert gone == names[2:5]
    assert artifact.list_ids(settings) == sorted([*names[:2], *names[5:]])
    assert remove_old_predictors(settings, log) == []


def test_cleaning_the_cache_keeps_what_cannot_be_made_again(settings: Settings, log: EventLog) -> None:
    log.append([event(result())])
    publish.refresh(settings)
    prepared = settings.cache_dir / "prepared" / "bert-tiny"
    prepared.mkdir(parents=True)
    (prepared / "model.onnx").write_bytes(b"x" * 100_000)
    killed = settings.home / ".cache-deleted" / "of a deletion that was killed"
    killed.mkdir(parents=True)
    before = {use.part: use.files for use in disk_use.measure_disk_use(settings)}
    answer = CliRunner().invoke(app, ["cache", "clean", "--json", "--home", str(settings.home)])
    freed = json.loads(answer.stdout)
    assert (freed["files"], freed["size_bytes"] >= 100_000) == (1, True)
    assert {use.part: use.files for use in disk_use.measure_disk_use(settings)} == {
        part: files for part, files in before.items() if part != "cache"
    }
    assert not killed.parent.exists()
    assert not settings.cache_dir.exists()
    again = CliRunner().invoke(app, ["cache", "clean", "--home", str(settings.home)])
    assert (again.exit_code, "0 files deleted" in again.stderr) == (0, True)
