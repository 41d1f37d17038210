"""Back-ups: consistent at a snapshot, checked when they are brought back, and never over anything."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from accel_platform.backup import BackupDamaged, back_up, restore
from accel_platform.cli import app
from accel_platform.errors import InvalidInput
from accel_platform.events import Event, EventLog
from accel_platform.events.types import HostObserved
from accel_platform.keys import Keys, Scope
from accel_platform.settings import Settings
from predictor_world import MODELS, measured_grid, world


def _append(settings: Settings, *names: str) -> None:
    for name in names:
        payload = HostObserved(hostname=name, os="Linux", cpu_model="c", cpu_cores_logical=1, memory_mib=1)
        EventLog.open(settings).append([Event.of(payload, source="test")], key=name)


def _hosts(settings: Settings) -> list[str]:
    payloads = (event.payload for event in EventLog.open(settings).read())
    return sorted(payload.hostname for payload in payloads if isinstance(payload, HostObserved))


@pytest.fixture
def filled(tmp_path: Path) -> Settings:
    """A log with segments, a pack and a snapshot; a predictor's files; keys."""
    settings = Settings(home=tmp_path / "home")
    log = EventLog.open(settings)
    _append(settings, "a", "b")
    log.compact()
    log.prune()
    _append(settings, "c")
    log.save_snapshot(log.snapshot())
    artifact = settings.models_dir / "lgbm-1"
    artifact.mkdir(parents=True)
    (artifact / "trees.txt").write_text("trees")
    (settings.models_dir / "CURRENT").write_text("lgbm-1")
    (settings.models_dir / ".half-written").write_text("x")
    Keys(settings).create("ci", Scope.read)
    return settings


@pytest.mark.parametrize("name", ["copy", "copy.tar", "copy.tar.gz"])
def test_what_is_restored_is_what_was_backed_up(filled: Settings, tmp_path: Path, name: str) -> None:
    done = back_up(filled, tmp_path / name)
    there = Settings(home=tmp_path / "there")
    back = restore(there, tmp_path / name)
    assert (back.snapshot_id, back.segments, back.events) == (done.snapshot_id, 3, 3)
    assert EventLog.open(there).snapshot() == EventLog.open(filled).snapshot()
    assert EventLog.open(there).saved_snapshots() == EventLog.open(filled).saved_snapshots()
    assert _hosts(there) == ["a", "b", "c"]
    assert (there.models_dir / "CURRENT").read_text() == "lgbm-1"
    assert (there.models_dir / "lgbm-1" / "trees.txt").read_text() == "trees"
    assert not (there.models_dir / ".half-written").exists()
    assert not (there.home / "keys.json").exists()
    _append(there, "a")
    assert _hosts(there) == ["a", "b", "c"], "a late retry is a no-op there too"
    assert not list(tmp_path.glob(".backup-*"))


def test_a_second_back_up_copies_what_is_new(filled: Settings, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    first = back_up(filled, target)
    assert first.copied == first.files
    assert back_up(filled, target).copied == 0
    _append(filled, "d")
    (filled.models_dir / "lgbm-2").mkdir()
    (filled.models_dir / "lgbm-2" / "trees.txt").write_text("other trees")
    (filled.models_dir / "lgbm-1" / "trees.txt").unlink()
    (filled.models_dir / "CURRENT").write_text("lgbm-2")
    assert back_up(filled, target).copied == 3
    there = Settings(home=tmp_path / "there")
    restore(there, target)
    assert _hosts(there) == ["a", "b", "c", "d"]
    assert [path.name for path in there.models_dir.rglob("trees.txt")] == ["trees.txt"]


def test_what_is_written_meanwhile_is_not_half_in_it(filled: Settings, tmp_path: Path) -> None:
    """The set of names is taken first; segments that come while they are copied belong to the next back-up."""
    target = tmp_path / "copy"
    told: list[str] = []
    before = EventLog.open(filled).snapshot()

    class Late(Settings):
        @property
        def models_dir(self) -> Path:  # asked for when the segments are copied
            _append(filled, "late")
            return filled.models_dir

    done = back_up(Late(home=filled.home), target, progress=told.append)
    assert done.snapshot_id == before.id
    there = Settings(home=tmp_path / "there")
    restore(there, target)
    assert _hosts(there) == ["a", "b", "c"]
    assert "late" in _hosts(filled)


@pytest.mark.parametrize("harm", ["change", "remove", "manifest"])
def test_a_damaged_back_up_is_not_restored(filled: Settings, tmp_path: Path, harm: str) -> None:
    target = tmp_path / "copy"
    back_up(filled, target)
    segment = target / "segments" / "c.parquet"
    if harm == "change":
        segment.write_bytes(segment.read_bytes()[:-1] + b"x")
    elif harm == "remove":
        segment.unlink()
    else:
        (target / "manifest.json").write_text("{")
    there = Settings(home=tmp_path / "there")
    with pytest.raises(BackupDamaged):
        restore(there, target)
    assert not EventLog.open(there).snapshot().segments


@pytest.mark.parametrize(
    "name", ["../out.txt", "segments/../../out.txt", "/tmp/out.txt", "keys.json", "models/../keys.json", ""]
)
def test_a_back_up_brings_files_nowhere_else(filled: Settings, tmp_path: Path, name: str) -> None:
    target = tmp_path / "copy"
    back_up(filled, target)
    manifest = json.loads((target / "manifest.json").read_text())
    manifest["files"][name] = manifest["files"]["models/CURRENT"]
    (target / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(BackupDamaged):
        restore(Settings(home=tmp_path / "there"), target)


def test_an_archive_unpacks_nowhere_else(tmp_path: Path) -> None:
    for number, name in enumerate(("../out.txt", "/out.txt")):
        archive = tmp_path / f"{number}.tar"
        with tarfile.open(archive, "w") as file:
            file.addfile(tarfile.TarInfo(name), io.BytesIO())
            link = tarfile.TarInfo("segments")
            link.type, link.linkname = tarfile.SYMTYPE, "/etc"
            file.addfile(link)
        with pytest.raises(BackupDamaged):
            restore(Settings(home=tmp_path / "there"), archive)
    (tmp_path / "noise.tar.gz").write_bytes(b"noise")
    with pytest.raises(BackupDamaged, match="no back-up"):
        restore(Settings(home=tmp_path / "there"), tmp_path / "noise.tar.gz")


def test_nothing_is_overwritten(filled: Settings, tmp_path: Path) -> None:
    target = tmp_path / "copy.tar"
    back_up(filled, target)
    with pytest.raises(InvalidInput, match="already"):
        back_up(filled, target)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(InvalidInput, match="no back-up"):
        back_up(filled, tmp_path / "other")
    with pytest.raises(InvalidInput, match="empty"):
        back_up(Settings(home=tmp_path / "empty"), tmp_path / "nothing")
    taken = Settings(home=tmp_path / "taken")
    _append(taken, "mine")
    with pytest.raises(InvalidInput, match="never overwrites"):
        restore(taken, target)
    trained = Settings(home=tmp_path / "trained")
    (trained.models_dir / "lgbm-9").mkdir(parents=True)
    (trained.models_dir / "lgbm-9" / "trees.txt").write_text("mine")
    with pytest.raises(InvalidInput, match="other predictors"):
        restore(trained, target)


def test_a_restore_that_was_interrupted_goes_on(filled: Settings, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    back_up(filled, target)
    there = Settings(home=tmp_path / "there")
    (there.home / "log" / "segments").mkdir(parents=True)
    (there.home / "log" / "segments" / "c.parquet").write_bytes((target / "segments" / "c.parquet").read_bytes())
    restore(there, target)
    restore(there, target)
    assert _hosts(there) == ["a", "b", "c"]


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = world(tmp_path / "home", measured_grid(MODELS[:1]))
    runner = CliRunner()
    monkeypatch.setenv("ACCEL_HOME", str(settings.home))
    done = json.loads(runner.invoke(app, ["db", "backup", str(tmp_path / "copy.tar.gz"), "--json"]).stdout)
    assert done["segments"] == 1
    monkeypatch.setenv("ACCEL_HOME", str(tmp_path / "there"))
    back = json.loads(runner.invoke(app, ["db", "restore", str(tmp_path / "copy.tar.gz"), "--json"]).stdout)
    assert back["snapshot_id"] == done["snapshot_id"]
    rows = json.loads(runner.invoke(app, ["db", "query", "SELECT count(*) AS n FROM results", "--json"]).stdout)
    assert rows == [{"n": 6}]
