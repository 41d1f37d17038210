"""The contract every segment store keeps: a directory, and S3 against a real (local) S3 server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from accel_platform.errors import LogUnavailable, NotFound
from accel_platform.events import EventLog
from accel_platform.events.segments import SegmentStore, open_store
from accel_platform.settings import Settings
from factories import event, result


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[str]:
    """An S3 server on a free loopback port."""
    from moto.server import ThreadedMotoServer

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(params=["directory", "s3"])
def location(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Where an empty store may be made."""
    if request.param == "directory":
        return str(tmp_path / "store")
    import boto3

    endpoint = request.getfixturevalue("s3_endpoint")
    for name, value in {"ENDPOINT_URL": endpoint, "ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test",
                        "DEFAULT_REGION": "us-east-1", "REGION": "us-east-1"}.items():  # fmt: skip
        monkeypatch.setenv(f"AWS_{name}", value)
    bucket = f"test-{abs(hash(request.node.name)) % 10**12}"
    boto3.client("s3").create_bucket(Bucket=bucket)
    return f"s3://{bucket}/some/prefix"


class TestSegmentStore:
    """What `events/segments.py` promises of every store."""

    @pytest.fixture
    def store(self, location: str, tmp_path: Path) -> SegmentStore:
        return open_store(location, tmp_path / "cache")

    def test_publishes_and_reads_back(self, store: SegmentStore) -> None:
        assert store.publish("segments/a.parquet", b"one")
        assert store.local_path("segments/a.parquet").read_bytes() == b"one"
        assert store.keys("segments") == {"a.parquet"}

    def test_first_writer_wins_and_the_second_changes_nothing(self, store: SegmentStore) -> None:
        assert store.publish("segments/a.parquet", b"one")
        assert not store.publish("segments/a.parquet", b"two")
        assert store.local_path("segments/a.parquet").read_bytes() == b"one"

    def test_of_many_racing_writers_one_wins(self, store: SegmentStore) -> None:
        won: list[bytes] = []
        barrier = threading.Barrier(8)

        def write(data: bytes) -> None:
            barrier.wait()
            if store.publish("segments/race.parquet", data):
                won.append(data)

        threads = [threading.Thread(target=write, args=(bytes([n]) * 4096,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1
        assert store.local_path("segments/race.parquet").read_bytes() == won[0]

    def test_empty_and_absent(self, store: SegmentStore) -> None:
        assert store.keys("segments") == set()
        with pytest.raises(NotFound):
            store.local_path("segments/absent.parquet")

    def test_prefixes_are_apart(self, store: SegmentStore) -> None:
        store.publish("segments/a", b"1")
        store.publish("packs/b", b"2")
        assert store.keys("segments") == {"a"}
        assert store.keys("packs") == {"b"}

    def test_an_emptied_blob_keeps_its_name(self, store: SegmentStore) -> None:
        store.publish("segments/a", b"one")
        store.empty("segments/a")
        assert store.keys("segments") == {"a"}
        assert not store.publish("segments/a", b"two")


class TestLogOnEveryStore:
    """The log's promises hold wherever its segments lie."""

    @pytest.fixture
    def anywhere(self, location: str, tmp_path: Path) -> EventLog:
        return EventLog.open(Settings(home=tmp_path / "home", log_uri=location))

    def test_append_snapshot_read_compact_prune(self, anywhere: EventLog) -> None:
        events = [event(result(batch_size=n)) for n in range(1, 6)]
        for one in events[:4]:
            assert anywhere.append([one]).new
        early = anywhere.snapshot()
        anywhere.save_snapshot(early)
        anywhere.append(events[4:])
        assert anywhere.compact() is not None
        assert anywhere.prune() == 5
        assert {e.event_id: e for e in anywhere.read()} == {e.event_id: e for e in events}
        again = anywhere.load_snapshot(early.id)
        assert {e.event_id for e in anywhere.read(again)} == {e.event_id for e in events[:4]}


def test_an_unreachable_s3_server_is_said_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    log = EventLog.open(Settings(home=tmp_path, log_uri="s3://nowhere/log"))
    with pytest.raises(LogUnavailable, match="nowhere"):
        log.snapshot()


def test_an_unknown_scheme_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogUnavailable, match="neither a directory nor"):
        EventLog.open(Settings(home=tmp_path, log_uri="ftp://x/y"))


def test_a_back_up_is_taken_from_and_brought_into_any_store(location: str, tmp_path: Path) -> None:
    from accel_platform.backup import back_up, restore

    here = Settings(home=tmp_path / "here", log_uri=location)
    log = EventLog.open(here)
    for key in ("a", "b", "c"):
        log.append([event(result())], key=key)
    log.compact()
    log.prune()
    log.append([event(result())], key="d")
    done = back_up(here, tmp_path / "copy")
    assert (done.segments, done.events) == (4, 4)
    assert back_up(here, tmp_path / "copy").copied == 0
    there = Settings(home=tmp_path / "there", log_uri=f"{location}-restored")
    restore(there, tmp_path / "copy")
    assert {e.event_id for e in EventLog.open(there).read()} == {e.event_id for e in log.read()}
