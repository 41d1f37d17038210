"""Compaction keeps every snapshot readable, and what it costs on disk bounded."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from accel_platform.errors import LogUnavailable, NotFound
from accel_platform.events import EventLog, Snapshot, codec
from accel_platform.events.catalog import file_name
from accel_platform.events.compaction import compact
from accel_platform.events.log import pack_key, read_table
from accel_platform.events.snapshot_files import SnapshotFiles
from accel_platform.events.snapshots import find_snapshot
from accel_platform.settings import Settings
from factories import event, result


def _files(settings: Settings, folder: str) -> list[Path]:
    return sorted((settings.home / "log" / folder).iterdir())


def _age(settings: Settings, seconds: float) -> None:
    """Make everything in the log older."""
    for path in (settings.home / "log").rglob("*"):
        stat = path.stat()
        os.utime(path, (stat.st_atime - seconds, stat.st_mtime - seconds))


class TestPacks:
    def test_nights_leave_few_packs_and_nothing_twice(self, settings: Settings, log: EventLog) -> None:
        events = []
        for night in range(20):
            for n in range(5):
                events.append(event(result(batch_size=night * 5 + n + 1)))
                log.append([events[-1]])
            log.save_snapshot(log.snapshot())
            compact(log)
            _age(settings, 86_400)
        early = min((log.load_snapshot(one) for one in log.saved_snapshots()), key=lambda one: len(one.segments))
        compact(log)
        assert len(log.packs()) <= 4
        assert _files(settings, "segments") == []
        assert len(_files(settings, "snapshots")) <= 2
        assert len(log.saved_snapshots()) == 20
        assert {e.event_id for e in log.read()} == {e.event_id for e in events}
        assert {e.event_id for e in log.read(early)} == {e.event_id for e in events[:5]}
        assert log.count_events(early.segments) == 5

    def test_a_column_of_a_newer_version_survives_packing(self, settings: Settings, log: EventLog) -> None:
        log.append([event(result())], key="of-today")
        table = codec.to_arrow([event(result())]).append_column("of_tomorrow", pa.array(["kept"]))
        log.append_table(table, key="of-tomorrow")
        compact(log)
        _age(settings, 86_400)
        compact(log)
        assert _files(settings, "segments") == []
        [pack] = log.packs()
        assert sorted(read_table(log.store.local_path(pack_key(pack)))["of_tomorrow"].to_pylist(), key=str) == [
            None,
            "kept",
        ]
        assert len([*log.read()]) == 2

    def test_the_runs_of_segments_are_known_packed_or_not(self, log: EventLog) -> None:
        for n in range(3):
            log.append([event(result(), run_id=f"run-{n}"), event(result(), run_id=None)], key=f"s{n}")
        part = Snapshot(frozenset({"s0", "s2"}))
        loose = log.run_ids(part)
        compact(log)
        assert log.packs()
        assert loose == log.run_ids(part) == {"run-0", "run-2"}

    def test_what_was_just_packed_stays_for_who_is_about_to_read_it(self, settings: Settings, log: EventLog) -> None:
        for n in range(3):
            log.append([event(result(batch_size=n + 1))], key=f"s{n}")
        before = log.sources(log.snapshot().segments)
        compact(log)
        assert all(source.path.exists() for source in before)
        _age(settings, 3_700)
        assert compact(log).removed >= 3
        assert not any(source.path.exists() for source in before)

    def test_a_packed_key_stays_taken_for_a_late_retry(self, log: EventLog, settings: Settings) -> None:
        one = [event(result())]
        for n in range(2):
            log.append([event(result(batch_size=n + 2))])
        assert log.append(one, key="mine").new
        compact(log, grace_s=0)
        assert not EventLog.open(settings).append(one, key="mine").new
        assert log.count_events(log.snapshot().segments) == 3

    def test_a_segment_that_is_in_two_packs_is_read_once(self, settings: Settings, log: EventLog) -> None:
        """As when two hosts compact at once, each having seen another part of the log."""
        here, there = EventLog.open(settings), EventLog.open(settings)
        for n in range(3):
            log.append([event(result(batch_size=n + 1))], key=f"s{n}")
        loose = there.store.keys
        there.store.keys = lambda prefix: {k for k in loose(prefix) if k != "s2.parquet"}  # type: ignore[method-assign]
        compact(here)
        there.packs = dict  # type: ignore[method-assign]
        compact(there)
        again = EventLog.open(settings)
        assert len(again.packs()) == 2
        for grace_s in (3_600, 0):
            compact(again, grace_s=grace_s)
            assert sorted(e.payload.batch_size for e in again.read()) == [1, 2, 3]  # type: ignore[attr-defined]
        assert len(again.packs()) == 1

    def test_emptied_originals_of_earlier_versions_go(self, settings: Settings, log: EventLog) -> None:
        for n in range(3):
            log.append([event(result(batch_size=n + 1))], key=f"s{n}")
        compact(log)
        for path in _files(settings, "segments"):
            path.write_bytes(b"")
        [pack] = log.packs()
        (settings.home / "log" / "packs" / f"{pack}.pruned").touch()
        assert log.count_events(log.snapshot().segments) == 3
        compact(log, grace_s=0)
        assert _files(settings, "segments") == []
        assert not list((settings.home / "log" / "packs").glob("*.pruned"))


class TestCatalog:
    def test_packs_are_known_without_being_read(self, settings: Settings, log: EventLog) -> None:
        for n in range(3):
            log.append([event(result(batch_size=n + 1))], key=f"s{n}")
        log.save_snapshot(log.snapshot())
        compact(log, grace_s=0)
        [pack] = _files(settings, "packs")
        content = pack.read_bytes()
        pack.write_bytes(b"")
        again = EventLog.open(settings)
        assert again.snapshot().segments == {"s0", "s1", "s2"}
        assert again.count_events({"s0", "s1", "s2"}) == 3
        pack.write_bytes(content)
        assert again.snapshot() == log.snapshot()

    def test_a_pack_that_no_catalog_names_is_read(self, settings: Settings, log: EventLog) -> None:
        """As after a compaction that was killed between the pack and the catalog."""
        for n in range(3):
            log.append([event(result(batch_size=n + 1))], key=f"s{n}")
        compact(log, grace_s=0)
        for path in _files(settings, "snapshots"):
            path.unlink()
        assert EventLog.open(settings).snapshot() == log.snapshot()
        compact(EventLog.open(settings), grace_s=0)
        assert len(_files(settings, "snapshots")) == 1

    def test_a_pack_that_is_gone_is_known_no_more(self, settings: Settings, log: EventLog) -> None:
        for n in range(3):
            log.append([event(result(batch_size=n + 1))], key=f"s{n}")
        compact(log, grace_s=0)
        [pack] = _files(settings, "packs")
        pack.unlink()
        assert EventLog.open(settings).snapshot().segments == frozenset()

    def test_ids_and_catalogs_of_earlier_versions_are_found(self, settings: Settings, log: EventLog) -> None:
        """Their ids were hashes of sorted names, and their catalogs listed snapshots alone."""
        for n in range(3):
            log.append([event(result(batch_size=n + 1))], key=f"s{n}")
        names = sorted(log.snapshot().segments)
        former = hashlib.sha256("\n".join(names).encode()).hexdigest()[:32]
        compact(log, grace_s=0)
        [pack] = _files(settings, "packs")
        log.store.publish(pack_key(former), codec.to_parquet(read_table(pack), pack_key(former)))
        pack.unlink()
        for path in _files(settings, "snapshots"):
            path.unlink()
        listed = json.dumps([[former, names, []]]).encode()
        content = len(listed).to_bytes(8, "little") + pa.compress(listed, codec="zstd", asbytes=True)
        log.store.publish(f"snapshots/{file_name(content)}", content)
        for _ in range(2):
            again = EventLog.open(settings)
            assert again.snapshot() == find_snapshot(again, former[:9]) == again.load_snapshot(former)
            assert again.saved.damaged() == []
            assert again.count_events(names) == 3
            assert compact(again, grace_s=0).damaged == ()

    def test_packs_of_a_round_are_bounded_and_hold_large_segments(
        self, settings: Settings, log: EventLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("accel_platform.events.compaction._MAX_PACK_EVENTS", 10)
        events = [event(result(batch_size=n + 1)) for n in range(37)]
        log.append(events[:12], key="large")
        for n in range(12, 37):
            log.append([events[n]], key=f"s{n}")
        for _ in range(2):
            compact(log, grace_s=0)
            assert _files(settings, "segments") == []
            assert sorted(len(members) for members in log.packs().values()) == [1, 5, 10, 10]
            assert {e.event_id for e in EventLog.open(settings).read()} == {e.event_id for e in events}


_histories = st.lists(st.lists(st.integers(0, 30), max_size=6), min_size=1, max_size=25)


class TestSnapshotFiles:
    @given(_histories, st.sets(st.integers(0, 24)))
    @hypothesis_settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_each_comes_back_as_it_was(
        self, tmp_path_factory: pytest.TempPathFactory, history: list[list[int]], merge_after: set[int]
    ) -> None:
        """Whatever was added or taken away from one to the next, and whenever the files were merged."""
        settings = Settings(home=tmp_path_factory.mktemp("home"))
        log = EventLog.open(settings)
        names: set[str] = set()
        saved = []
        for number, change in enumerate(history):
            names = names ^ {f"segment-{n}" for n in change}
            snapshot = Snapshot(frozenset(names))
            saved.append(snapshot)
            log.save_snapshot(snapshot, base=saved[-2].id if number % 3 == 2 else None)
            if number in merge_after:
                log.saved.merge(grace_s=0)
        again = SnapshotFiles(log.store)
        assert again.ids() == {snapshot.id for snapshot in saved}
        assert all(again.load(snapshot.id) == snapshot for snapshot in saved)
        assert again.union() == frozenset().union(*(snapshot.segments for snapshot in saved))

    def test_their_size_follows_what_is_new(self, settings: Settings, log: EventLog) -> None:
        names = [f"segment-{n:06}-0123456789abcdef" for n in range(200)]
        for n in range(1, 201):
            log.save_snapshot(Snapshot(frozenset(names[:n])))
        files = _files(settings, "snapshots")
        assert len(files) == 200
        # Each name is in at most log2(n) + 1 files; whole lists would take ten times as much.
        assert sum(path.stat().st_size for path in files) < 10 * 200 * 40
        log.saved.merge(grace_s=0)
        [catalog] = _files(settings, "snapshots")
        assert catalog.stat().st_size < 200 * 60
        assert log.load_snapshot(Snapshot(frozenset(names[:100])).id).segments == set(names[:100])

    def test_lists_of_earlier_versions_are_read_and_merged(self, settings: Settings, log: EventLog) -> None:
        old = Snapshot(frozenset({"a", "b"}))
        log.store.publish(f"snapshots/{old.id}.json", json.dumps(sorted(old.segments)).encode())
        new = Snapshot(frozenset({"a", "b", "c"}))
        log.save_snapshot(new)
        for _ in range(2):
            assert (log.load_snapshot(old.id), log.load_snapshot(new.id)) == (old, new)
            log.saved.merge(grace_s=0)

    @pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"number": 0, "base": null, "added": [], "removed": []}'])
    def test_a_damaged_one_is_said_and_can_be_saved_again(
        self, settings: Settings, log: EventLog, content: bytes
    ) -> None:
        snapshot = Snapshot(frozenset({"a", "b"}))
        log.save_snapshot(snapshot)
        [path] = _files(settings, "snapshots")
        path.write_bytes(content)
        with pytest.raises(LogUnavailable, match="saved snapshot"):
            log.load_snapshot(snapshot.id)
        assert log.saved.damaged() == [f"snapshots/{path.name}"]
        log.save_snapshot(snapshot)
        assert log.load_snapshot(snapshot.id) == snapshot

    def test_a_damaged_catalog_is_named(self, settings: Settings, log: EventLog) -> None:
        snapshot = Snapshot(frozenset({"a", "b"}))
        log.save_snapshot(snapshot)
        log.saved.merge(grace_s=0)
        [path] = _files(settings, "snapshots")
        content = bytearray(path.read_bytes())
        content[-3] ^= 1
        path.write_bytes(content)
        again = EventLog.open(settings)
        assert again.saved.damaged() == [f"snapshots/{path.name}"]
        with pytest.raises(NotFound):
            again.load_snapshot(snapshot.id)
