"""Writes survive a power cut: names of files and directories are on disk before anything is acknowledged."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from accel_platform import atomic_write
from accel_platform.api_keys import KeyStore, Scope
from accel_platform.atomic_write import make_directory, write_durably
from accel_platform.bench.plan.run_locks import hold_run_lock
from accel_platform.events import EventLog
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from factories import event, result
from faults import no_room


class Unsynced:
    """Directories whose entries changed and were not brought to disk since."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, below: Path) -> None:
        self.directories: set[Path] = set()
        self._below = below
        for name in ("mkdir", "rename", "replace"):
            monkeypatch.setattr(os, name, self._watched(getattr(os, name)))
        monkeypatch.setattr(os, "link", self._watched(os.link, directory="dst_dir_fd"))
        fsync = os.fsync

        def synced(descriptor: int) -> None:
            fsync(descriptor)
            self.directories.discard(Path(os.readlink(f"/proc/self/fd/{descriptor}")))

        monkeypatch.setattr(os, "fsync", synced)

    def _watched(self, call: Callable[..., None], directory: str | None = None) -> Callable[..., None]:
        def watched(*arguments: Any, **more: Any) -> None:
            call(*arguments, **more)
            changed = Path(os.readlink(f"/proc/self/fd/{more[directory]}")) if directory in more else None
            changed = changed or Path(arguments[-1] if isinstance(arguments[-1], str | Path) else arguments[0]).parent
            if self._below in (changed, *changed.parents):
                self.directories.add(changed)

        return watched


@pytest.fixture
def unsynced(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Unsynced:
    return Unsynced(monkeypatch, tmp_path)


class TestAfterAPowerCut:
    """Each of these has its names on disk when it returns, in a home that was not there before."""

    def test_an_append(self, log: EventLog, unsynced: Unsynced) -> None:
        assert log.append([event(result())]).new
        assert not unsynced.directories

    def test_an_append_after_something_else_made_the_home(
        self, settings: Settings, log: EventLog, unsynced: Unsynced
    ) -> None:
        with hold_run_lock(settings, "a-run"):
            log.append([event(result())])
            assert not unsynced.directories

    def test_a_key_and_its_end(self, settings: Settings, unsynced: Unsynced) -> None:
        keys = KeyStore(settings)
        keys.create("me", Scope.read)
        assert not unsynced.directories
        keys.revoke("me")
        assert not unsynced.directories

    def test_tables_in_service(self, settings: Settings, log: EventLog, unsynced: Unsynced) -> None:
        log.append([event(result())])
        refresh(settings)
        assert not unsynced.directories


def test_a_predictor_is_on_disk_before_it_serves(settings: Settings, unsynced: Unsynced) -> None:
    """Stored is enough: what points to it comes later, perhaps from another process."""
    from predictor.training.artifact import activate, store
    from predictor.training.manifest import Manifest, StoredFailureModel

    about: Any = dict.fromkeys(("snapshot_id", "dataset_sha256", "lightgbm"), "")
    counts: Any = dict.fromkeys(("format", "feature_schema", "rows"), 0)
    many: Any = dict.fromkeys(("case_columns", "families", "devices"), ())
    named: Any = {key: {} for key in ("features", "modes", "metrics", "files")}
    risks = StoredFailureModel(curve=None, codes=(), files={})
    manifest = Manifest(**about, **counts, **many, **named, memory=None, risks=risks)
    predictor_id = store(settings, manifest, {"data": b"one"})
    assert not unsynced.directories
    activate(settings, predictor_id)
    assert not unsynced.directories


def test_a_small_file_and_its_name(tmp_path: Path, unsynced: Unsynced, monkeypatch: pytest.MonkeyPatch) -> None:
    write_durably(tmp_path / "file", "content")
    assert not unsynced.directories
    monkeypatch.setattr(atomic_write, "sync_directory", lambda path: None)
    write_durably(tmp_path / "file", "newer")
    assert unsynced.directories == {tmp_path}, "the rename is what the sync of the directory keeps"


def test_a_write_that_fails_leaves_the_old_content_and_no_file_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_durably(path, "old")
    with no_room(2), pytest.raises(OSError, match="File too large"):
        write_durably(path, "new content")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_directory_that_another_made_meanwhile_is_as_good(tmp_path: Path) -> None:
    make_directory(tmp_path / "a" / "b")
    make_directory(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        make_directory(tmp_path / "file" / "below")


def test_a_file_system_that_cannot_sync_directories_is_no_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def refuses(descriptor: int) -> None:
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    monkeypatch.setattr(atomic_write.os, "fsync", refuses)
    atomic_write.sync_directory(tmp_path)
