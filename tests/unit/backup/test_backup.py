"""Back-ups: consistent at a snapshot, checked when they are brought back, and never over anything."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import shutil
import tarfile
import tempfile
from pathlib import Path

import pytest
from typer.testing import CliRunner

from accel_platform.api_keys import KeyStore, Scope
from accel_platform.backup import BackupDamaged, BackupRefused, back_up, restore, verify
from accel_platform.backup.generations import open_target
from accel_platform.cli import app
from accel_platform.errors import AccelError, InvalidInput, LogUnavailable
from accel_platform.events import Event, EventLog, integrity
from accel_platform.events.compaction import compact
from accel_platform.events.types import HostObserved
from accel_platform.settings import Settings
from accel_platform.warehouse import publish
from faults import killed_at, no_room, without_rights
from predictor_world import MODELS, measured_grid, world


def _append(settings: Settings, *names: str) -> None:
    for name in names:
        payload = HostObserved(hostname=name, os="Linux", cpu_model="c", cpu_cores_logical=1, memory_mib=1)
        EventLog.open(settings).append([Event.of(payload, source="test")], key=name)


def _hosts(settings: Settings) -> list[str]:
    payloads = (event.payload for event in EventLog.open(settings).read())
    return sorted(payload.hostname for payload in payloads if isinstance(payload, HostObserved))


@pytest.fixture(autouse=True)
def temporary(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary directory, of the test's own: killed processes leave what they had there."""
    folder = tmp_path_factory.mktemp("temporary")
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def filled(tmp_path: Path) -> Settings:
    """A log with segments, a pack and a snapshot; a predictor's files; keys."""
    settings = Settings(home=tmp_path / "home")
    log = EventLog.open(settings)
    _append(settings, "a", "b")
    compact(log, grace_s=0)
    _append(settings, "c")
    log.save_snapshot(log.snapshot())
    artifact = settings.models_dir / "lgbm-1"
    artifact.mkdir(parents=True)
    (artifact / "trees.txt").write_text("trees")
    (settings.models_dir / "CURRENT").write_text("lgbm-1")
    (settings.models_dir / ".half-written").write_text("x")
    KeyStore(settings).create("ci", Scope.read)
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


def _lists(target: Path) -> list[Path]:
    return sorted((target / "generations").iterdir())


def _stored(target: Path, name: str) -> Path:
    """Where a file of the newest generation lies."""
    content = json.loads(_lists(target)[-1].read_text())
    return target / "files" / content["files"][name]["sha256"]


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
    asked: list[str] = []
    before = EventLog.open(filled).snapshot()

    class Late(Settings):
        @property
        def models_dir(self) -> Path:  # asked for once before the segments are listed, and again after it
            asked.append("models")
            if len(asked) > 1:
                _append(filled, "late")
            return filled.models_dir

    done = back_up(Late(home=filled.home), target)
    assert done.snapshot_id == before.id
    there = Settings(home=tmp_path / "there")
    restore(there, target)
    assert _hosts(there) == ["a", "b", "c"]
    assert "late" in _hosts(filled)


@pytest.mark.parametrize("harm", ["change", "remove", "manifest"])
def test_a_damaged_back_up_is_not_restored(filled: Settings, tmp_path: Path, harm: str) -> None:
    target = tmp_path / "copy"
    back_up(filled, target)
    segment = _stored(target, "segments/c.parquet")
    if harm == "change":
        segment.write_bytes(segment.read_bytes()[:-1] + b"x")
    elif harm == "remove":
        segment.unlink()
    else:
        _lists(target)[0].write_text("{")
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
    [listed] = _lists(target)
    manifest = json.loads(listed.read_text())
    manifest["files"][name] = manifest["files"]["models/CURRENT"]
    listed.write_text(json.dumps(manifest))
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
    assert [path.name for path in (tmp_path / "other").iterdir()] == ["thesis.txt"]
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
    (there.models_dir / "lgbm-1").mkdir(parents=True)
    (there.models_dir / "lgbm-1" / ".trees.txt-1-2.new").touch()
    (there.home / "log" / "segments" / "c.parquet").write_bytes(_stored(target, "segments/c.parquet").read_bytes())
    restore(there, target)
    restore(there, target)
    assert _hosts(there) == ["a", "b", "c"]


class TestGenerations:
    """Back-ups only add; what the source lost or damaged stays in them."""

    @pytest.fixture
    def target(self, location: str) -> str:
        return location

    def test_each_can_be_restored(self, filled: Settings, target: str, tmp_path: Path) -> None:
        first = back_up(filled, target)
        _append(filled, "d")
        compact(EventLog.open(filled), grace_s=0)
        second = back_up(filled, target)
        for number, done in enumerate((first, second)):
            there = Settings(home=tmp_path / f"there-{number}")
            assert restore(there, target, generation=done.generation).snapshot_id == done.snapshot_id
        assert _hosts(there) == ["a", "b", "c", "d"]
        assert [one.damaged for one in verify(target)] == [(), ()]

    def test_a_source_that_shrank_is_refused_and_mended_from_the_back_up(
        self, filled: Settings, target: str, tmp_path: Path
    ) -> None:
        back_up(filled, target)
        publish.refresh(filled)
        (filled.home / "log" / "segments" / "c.parquet").unlink()
        with pytest.raises(BackupRefused, match=r"lacks 1 of the 3 segments .*: c\."):
            back_up(filled, target)
        answer = CliRunner().invoke(app, ["db", "validate", "--fix", "--from", target, "--home", str(filled.home)])
        assert "brought c back" in answer.stderr + answer.stdout, answer.output
        assert _hosts(filled) == ["a", "b", "c"]
        back_up(filled, target)

    def test_what_was_forgotten_on_purpose_is_no_loss(self, filled: Settings, target: str) -> None:
        back_up(filled, target)
        log = EventLog.open(filled)
        (filled.home / "log" / "segments" / "c.parquet").unlink()
        integrity.forget_segments(log, {"c"})
        done = back_up(filled, target)
        assert done.segments == 3, "a, b and the record of what was forgotten"
        assert len(verify(target)) == 2

    def test_another_installation_is_refused(self, filled: Settings, target: str, tmp_path: Path) -> None:
        back_up(filled, target)
        other = Settings(home=tmp_path / "other")
        _append(other, "x")
        with pytest.raises((InvalidInput, BackupRefused), match="another installation"):
            back_up(other, target)
        _append(other, "a", "b", "c")
        with pytest.raises(InvalidInput, match="another installation"):
            back_up(other, target)
        assert [one.segments for one in verify(target)] == [3]

    def test_a_restored_installation_goes_on_with_its_back_up(
        self, filled: Settings, target: str, tmp_path: Path
    ) -> None:
        back_up(filled, target)
        there = Settings(home=tmp_path / "there")
        restore(there, target)
        _append(there, "d")
        assert back_up(there, target).segments == 4

    def test_a_damaged_segment_is_named_and_not_copied(self, filled: Settings, target: str) -> None:
        back_up(filled, target)
        _append(filled, "d")
        path = filled.home / "log" / "segments" / "d.parquet"
        content = bytearray(path.read_bytes())
        content[200] ^= 4
        path.write_bytes(content)
        with pytest.raises(BackupRefused, match=r"segments/d\.parquet \(its content is not what was written\)"):
            back_up(filled, target)
        assert len(verify(target)) == 1

    def test_keep_leaves_the_newest_and_what_they_need(self, filled: Settings, target: str, tmp_path: Path) -> None:
        for name in "defg":
            back_up(filled, target)
            _append(filled, name)
            compact(EventLog.open(filled), grace_s=0)
        back_up(filled, target, keep=2)
        found = verify(target)
        assert [one.damaged for one in found] == [(), ()]
        with open_target(target) as place:
            named = {file.sha256 for one in place.generations() for file in one.files.values()}
            assert place.sizes().keys() == named
        restore(Settings(home=tmp_path / "there"), target)
        with pytest.raises(InvalidInput, match="--keep 0"):
            back_up(filled, target, keep=0)


def test_a_file_that_was_damaged_in_the_back_up_is_named_and_mended(filled: Settings, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    back_up(filled, target)
    stored = _stored(target, "segments/c.parquet")
    stored.write_bytes(stored.read_bytes()[:-1] + b"x")
    [one] = verify(target)
    where = f"files/{stored.name}"
    assert one.damaged == (f"segments/c.parquet ({where}) is missing or not what was copied",)
    stored.unlink()
    assert back_up(filled, target).copied == 1
    stored.write_bytes(b"short")
    assert back_up(filled, target).copied == 1
    assert [one.damaged for one in verify(target)] == [(), (), ()]


def test_one_list_that_cannot_be_read_stops_nothing_else(filled: Settings, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    back_up(filled, target)
    _append(filled, "d")
    back_up(filled, target)
    good, torn = _lists(target)
    torn.write_text("{")
    assert [bool(one.damaged) for one in verify(target)] == [True, False]
    with pytest.raises(BackupDamaged, match=f"--generation {good.stem}"):
        restore(Settings(home=tmp_path / "there"), target)
    restore(Settings(home=tmp_path / "there"), target, generation=good.stem)
    assert _hosts(Settings(home=tmp_path / "there")) == ["a", "b", "c"]
    with pytest.raises(BackupDamaged, match="Nothing is removed"):
        back_up(filled, target, keep=1)
    restore(Settings(home=tmp_path / "newest"), target)
    assert _hosts(Settings(home=tmp_path / "newest")) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("change", [{"events": 9}, {"segments": ["a", "b"]}, {"snapshot_id": "0" * 32}])
def test_a_list_that_tells_something_else_than_its_files_is_damaged(
    filled: Settings, tmp_path: Path, change: dict[str, object]
) -> None:
    back_up(filled, tmp_path / "copy")
    [listed] = _lists(tmp_path / "copy")
    listed.write_text(json.dumps(json.loads(listed.read_text()) | change))
    assert [len(one.damaged) for one in verify(tmp_path / "copy")] == [1]


@pytest.mark.parametrize("where", ["segments/c.parquet", "packs"])
def test_damage_that_comes_after_a_back_up_is_named_by_the_next(filled: Settings, tmp_path: Path, where: str) -> None:
    target = tmp_path / "copy"
    back_up(filled, target)
    path = filled.home / "log" / where
    path = path if path.is_file() else next(path.glob("*.parquet"))
    content = bytearray(path.read_bytes())
    content[20] ^= 4
    path.write_bytes(content)
    with pytest.raises(BackupRefused, match=rf"{path.name} \(its content is not what was written\)"):
        back_up(filled, target)
    assert [one.damaged for one in verify(target)] == [()]


def test_what_was_saved_of_a_snapshot_outlives_its_damage(filled: Settings, tmp_path: Path) -> None:
    target = tmp_path / "copy"
    back_up(filled, target)
    [saved] = (filled.home / "log" / "snapshots").glob("*.json")
    saved.write_bytes(b"{")
    back_up(filled, target, keep=1)
    restore(Settings(home=tmp_path / "there"), target)
    there = EventLog.open(Settings(home=tmp_path / "there"))
    assert there.load_snapshot(saved.stem).segments == {"a", "b", "c"}


def test_the_live_log_of_another_installation_is_no_target(filled: Settings, tmp_path: Path) -> None:
    other = Settings(home=tmp_path / "other")
    _append(other, "x")
    with pytest.raises(InvalidInput, match="holds an event log"):
        back_up(filled, other.home / "log")
    assert [path.name for path in (other.home / "log").iterdir()] == ["segments"]


def test_a_source_that_cannot_be_written_is_backed_up(filled: Settings, tmp_path: Path) -> None:
    said: list[str] = []
    with without_rights(filled.home / "log"):
        back_up(filled, tmp_path / "copy", progress=said.append)
    assert any("by its segments alone" in text for text in said)
    restore(Settings(home=tmp_path / "there"), tmp_path / "copy")
    back_up(filled, tmp_path / "copy")
    assert len(verify(tmp_path / "copy")) == 2


@pytest.mark.slow
def test_an_archive_that_was_killed_can_be_repeated(filled: Settings, tmp_path: Path) -> None:
    target = tmp_path / "tried" / "copy.tar"
    target.parent.mkdir()
    for last in itertools.count(1, 5):
        if not killed_at(last, lambda: back_up(filled, target)):
            break
        if not target.exists():
            back_up(filled, target)
        assert [one.damaged for one in verify(target)] == [()]
        target.unlink()
    assert last > 20
    assert [path.name for path in target.parent.iterdir()] == ["copy.tar"]


def test_back_ups_of_earlier_versions_are_read_and_added_to(filled: Settings, tmp_path: Path) -> None:
    """One list, `manifest.json`, and the files under their own names."""
    target = tmp_path / "copy"
    log = EventLog.open(filled)
    files = {}
    for name in ("segments/c.parquet", *(f"packs/{key}" for key in log.store.keys("packs")), "models/CURRENT"):
        source = (filled.home / "log" / name) if name[:6] != "models" else filled.home / name
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(source.read_bytes())
        files[name] = {"sha256": hashlib.sha256(source.read_bytes()).hexdigest(), "bytes": source.stat().st_size}
    old = {"format": 1, "made_at": "2026-11-20T10:00:00+00:00", "snapshot_id": log.snapshot().id,
           "segments": sorted(log.snapshot().segments), "files": files, "events": 3}  # fmt: skip
    (target / "manifest.json").write_text(json.dumps(old))
    restore(Settings(home=tmp_path / "there"), target)
    assert _hosts(Settings(home=tmp_path / "there")) == ["a", "b", "c"]
    stranger = Settings(home=tmp_path / "stranger")
    _append(stranger, "x")
    with pytest.raises(BackupRefused):
        back_up(stranger, target)
    back_up(filled, target)
    assert [one.damaged for one in verify(target)] == [(), ()]
    back_up(filled, target, keep=1)
    assert len(verify(target)) == 1
    assert not (target / "manifest.json").exists()
    assert not list((target / "segments").iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(("again", "keep"), [(False, None), (True, None), (True, 1)], ids=["first", "later", "keep"])
def test_killed_at_any_file_operation_it_can_be_repeated(
    filled: Settings, tmp_path: Path, again: bool, keep: int | None
) -> None:
    target = tmp_path / "copy"
    if again:
        back_up(filled, target)
        _append(filled, "d")
        compact(EventLog.open(filled), grace_s=0)
    for last in itertools.count(1):
        shutil.rmtree(tmp_path / "tried", ignore_errors=True)
        if again:
            shutil.copytree(target, tmp_path / "tried")
        if not killed_at(last, lambda: back_up(filled, tmp_path / "tried", keep=keep)):
            break
        if again:
            assert {one.damaged for one in verify(tmp_path / "tried")} == {()}
        back_up(filled, tmp_path / "tried", keep=keep)
        assert {one.damaged for one in verify(tmp_path / "tried")} == {()}
    assert last >= 8
    restore(Settings(home=tmp_path / "there"), tmp_path / "tried")


def test_an_impossible_target_is_said_in_a_sentence(filled: Settings, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="is a file"):
        back_up(filled, tmp_path / "file")
    with pytest.raises(AccelError, match="a file is in the place of a directory"):
        back_up(filled, tmp_path / "file" / "below")
    with pytest.raises(InvalidInput, match="overlap"):
        back_up(filled, filled.home / "log" / "copy")
    with no_room(), pytest.raises(AccelError, match=r"limits how large a file|disk is full"):
        back_up(filled, tmp_path / "copy")
    assert back_up(filled, tmp_path / "copy").segments == 3
    with pytest.raises(LogUnavailable, match="cannot lie at"):
        back_up(filled, "ftp://somewhere")
    with pytest.raises(InvalidInput, match="name too long"):
        back_up(filled, tmp_path / ("x" * 300))
    back_up(filled, tmp_path / "whole")
    with no_room(), pytest.raises(AccelError, match=r"limits how large a file|disk is full"):
        restore(Settings(home=tmp_path / "there"), tmp_path / "whole")


def test_the_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = world(tmp_path / "home", measured_grid(MODELS[:1]))
    runner = CliRunner()
    monkeypatch.setenv("ACCEL_HOME", str(settings.home))
    done = json.loads(runner.invoke(app, ["db", "backup", str(tmp_path / "copy.tar.gz"), "--json"]).stdout)
    assert done["segments"] == 1
    monkeypatch.setenv("ACCEL_HOME", str(tmp_path / "there"))
    back = json.loads(runner.invoke(app, ["db", "restore", str(tmp_path / "copy.tar.gz"), "--json"]).stdout)
    assert back["snapshot_id"] == done["snapshot_id"]
    checked = json.loads(
        runner.invoke(app, ["db", "restore", "--verify", str(tmp_path / "copy.tar.gz"), "--json"]).stdout
    )
    assert [one["damaged"] for one in checked] == [[]]
    rows = json.loads(runner.invoke(app, ["db", "query", "SELECT count(*) AS n FROM results", "--json"]).stdout)
    assert rows == [{"n": 6}]
