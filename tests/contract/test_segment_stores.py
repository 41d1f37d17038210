"""The contract every segment store keeps: a directory, a local S3 server, Azure's emulator, a stand-in of Google's."""

from __future__ import annotations

import os
import re
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import pytest
from object_storages import Answering, served

from accel_platform.errors import LogUnavailable, NotFound
from accel_platform.events import EventLog, object_store
from accel_platform.events.compaction import compact
from accel_platform.events.object_store import ObjectStoreBlobs
from accel_platform.events.segments import SegmentStore, open_store
from accel_platform.settings import Settings
from factories import event, result


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

    def test_a_store_that_can_be_written_says_so_and_stays_empty(self, store: SegmentStore) -> None:
        store.require_writable("segments")
        assert store.keys("segments") == set()

    def test_empty_and_absent(self, store: SegmentStore) -> None:
        assert store.keys("segments") == set()
        with pytest.raises(NotFound):
            store.local_path("segments/absent.parquet")

    def test_prefixes_are_apart(self, store: SegmentStore) -> None:
        store.publish("segments/a", b"1")
        store.publish("packs/b", b"2")
        assert store.keys("segments") == {"a"}
        assert store.keys("packs") == {"b"}

    def test_a_removed_blob_is_gone_and_its_key_is_free(self, store: SegmentStore) -> None:
        store.publish("segments/a", b"one")
        assert store.local_path("segments/a").read_bytes() == b"one"
        store.remove("segments/a")
        store.remove("segments/a")
        assert store.keys("segments") == set()
        with pytest.raises(NotFound):
            store.local_path("segments/a")
        assert store.publish("segments/a", b"two")
        assert store.local_path("segments/a").read_bytes() == b"two"

    def test_several_at_once(self, store: SegmentStore) -> None:
        keys = [f"segments/{number}" for number in range(40)]
        for key in keys:
            store.publish(key, key.encode())
        assert [path.read_bytes().decode() for path in store.local_paths(keys[::-1])] == keys[::-1]
        assert store.local_paths([]) == []
        store.remove(*keys[1:], "segments/absent")
        store.remove()
        assert store.keys("segments") == {"0"}
        with pytest.raises(NotFound):
            store.local_paths(keys[:2])

    def test_a_moved_blob_has_its_new_key_alone(self, store: SegmentStore) -> None:
        store.publish("segments/a", b"one")
        store.move("segments/a", "quarantine/a")
        store.move("segments/a", "quarantine/a")
        assert (store.keys("segments"), store.keys("quarantine")) == (set(), {"a"})
        assert store.local_path("quarantine/a").read_bytes() == b"one"

    def test_a_listing_tells_size_and_age(self, store: SegmentStore) -> None:
        before_s = time.time()
        store.publish("segments/a", b"three")
        [(name, blob)] = store.blobs("segments").items()
        assert (name, blob.size_bytes) == ("a", 5)
        assert before_s - 2 <= blob.modified_s <= time.time() + 2
        assert store.blobs("packs") == {}


class TestLogOnEveryStore:
    """The log's promises hold wherever its segments lie."""

    @pytest.fixture
    def anywhere(self, location: str, tmp_path: Path) -> EventLog:
        return EventLog.open(Settings(home=tmp_path / "home", log_uri=location))

    def test_append_snapshot_read_compact(self, anywhere: EventLog) -> None:
        events = [event(result(batch_size=n)) for n in range(1, 6)]
        for one in events[:4]:
            assert anywhere.append([one]).new
        early = anywhere.snapshot()
        anywhere.save_snapshot(early)
        anywhere.append(events[4:])
        assert compact(anywhere, grace_s=0).packed == 5
        assert anywhere.store.keys("segments") == set()
        assert {e.event_id: e for e in anywhere.read()} == {e.event_id: e for e in events}
        again = anywhere.load_snapshot(early.id)
        assert {e.event_id for e in anywhere.read(again)} == {e.event_id for e in events[:4]}


class TestRequestsToS3:
    def test_opening_takes_few_however_many_segments_there_were(
        self, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        log = EventLog.open(Settings(home=tmp_path / "writer", log_uri=bucket))
        for n in range(60):
            log.append([event(result(batch_size=n + 1))])
            if n % 20 == 19:
                log.save_snapshot(log.snapshot())
                compact(log, grace_s=0)
        log.append([event(result())])
        # Three listings, and one catalog, or three where S3 dates all alike, because it tells time in seconds. The
        # catalogs are at hand the second time.
        for home, most in (("reader", 6), ("reader", 3)):
            with Interposed(bucket, monkeypatch) as between:
                assert len(EventLog.open(Settings(home=tmp_path / home, log_uri=bucket)).snapshot().segments) == 61
                assert between.requests.total() <= most, between.requests

    def test_counting_reads_no_pack(self, bucket: str, tmp_path: Path) -> None:
        log = EventLog.open(Settings(home=tmp_path / "writer", log_uri=bucket))
        for n in range(5):
            log.append([event(result(batch_size=n + 1)), event(result(batch_size=n + 2))])
        compact(log, grace_s=0)
        log.append([event(result())])
        reader = Settings(home=tmp_path / "reader", log_uri=bucket)
        again = EventLog.open(reader)
        assert again.count_events(again.snapshot().segments) == 11
        assert not (reader.cache_dir / "log" / "packs").exists()
        one = next(iter(next(iter(again.packs().values()))))
        assert again.count_events({one}) == 2

    def test_what_is_superseded_goes_in_one_request(
        self, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        log = EventLog.open(Settings(home=tmp_path, log_uri=bucket))
        for n in range(30):
            log.append([event(result(batch_size=n + 1))])
        with Interposed(bucket, monkeypatch) as between:
            assert compact(EventLog.open(Settings(home=tmp_path, log_uri=bucket)), grace_s=0).removed == 30
            assert between.requests["POST"] == 1
            assert between.requests["DELETE"] == 0


class TestFaultsOfS3:
    """What is wrong with an S3 server is said in a sentence, and in bounded time."""

    @pytest.fixture
    def credentials(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name, value in {"ACCESS_KEY_ID": "test", "SECRET_ACCESS_KEY": "test", "REGION": "us-east-1"}.items():
            monkeypatch.setenv(f"AWS_{name}", value)

    def _each_fails(self, store: ObjectStoreBlobs, expected: str) -> None:
        for call in (
            lambda: store.publish("segments/a", b"one"),
            lambda: store.keys("segments"),
            lambda: store.local_path("segments/a"),
            lambda: store.remove("segments/a"),
            lambda: store.move("segments/a", "quarantine/a"),
            lambda: store.blobs("segments"),
        ):
            with pytest.raises(LogUnavailable, match=expected) as failure:
                call()
            said = str(failure.value)
            assert "s3://nowhere/log" in said
            assert "\n" not in said
            assert not re.search(r"Debug source|RetryError|<Code>", said)
            assert len(said) < 300

    @pytest.mark.usefixtures("credentials")
    def test_a_server_that_refuses(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        store = ObjectStoreBlobs("s3://nowhere/log", tmp_path, patience_s=1.0)
        self._each_fails(store, r"no connection to http://127\.0\.0\.1:9\. Check AWS_ENDPOINT_URL")

    @pytest.mark.usefixtures("credentials")
    def test_a_server_that_never_answers(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        with socket.create_server(("127.0.0.1", 0), backlog=64) as silent:
            monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{silent.getsockname()[1]}")
            store = ObjectStoreBlobs("s3://nowhere/log", tmp_path, patience_s=0.5)
            # The suite's own limit ends this where waiting has no bound.
            self._each_fails(store, r"no answer within 0\.5 s\. Check AWS_ENDPOINT_URL")

    def test_however_many_retries_waiting_stays_within_the_patience(
        self, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        """By the configuration of every client, for a test of 20 seconds would be too slow."""
        asked: list[tuple[float, float, int]] = []
        real = object_store.from_url

        def noted(url: str, *, client_options: Any, retry_config: Any) -> Any:
            retries_s = retry_config["retry_timeout"].total_seconds() if retry_config["max_retries"] else 0.0
            asked.append((client_options["read_timeout"].total_seconds(), retries_s, retry_config["max_retries"]))
            return real(url, client_options=client_options, retry_config=retry_config)

        monkeypatch.setattr(object_store, "from_url", noted)
        with Interposed(bucket, monkeypatch, lost=99) as between:
            store = ObjectStoreBlobs(bucket, tmp_path)
            with pytest.raises(LogUnavailable):
                store.publish("segments/b", b"one")
        reading, first, further = asked
        assert reading[0] + reading[1] <= 20.0
        assert first[2] == further[2] == 0, "attempts to write are counted here, not in the client"
        assert first[0] + (99 - between.lost - 1) * further[0] <= 20.0

    def test_a_bucket_that_is_not_there(self, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        store = ObjectStoreBlobs("s3://nowhere/log", tmp_path)
        self._each_fails(store, r"no such bucket \(404 NoSuchBucket\)\. Create it, or mend ACCEL_LOG_URI")

    @pytest.mark.usefixtures("credentials")
    @pytest.mark.parametrize(
        ("status", "code", "expected"),
        [
            (
                403,
                "InvalidAccessKeyId",
                r"credentials are refused \(403 InvalidAccessKeyId\)\. Check AWS_ACCESS_KEY_ID",
            ),
            (403, "SignatureDoesNotMatch", "credentials are refused"),
            (401, "", "credentials are refused"),
            (403, "AccessDenied", "They need s3:ListBucket"),
            (301, "PermanentRedirect", "another region. Set AWS_REGION"),
            (400, "AuthorizationHeaderMalformed", "another region. Set AWS_REGION"),
            (503, "SlowDown", "answers 503 SlowDown. Try again"),
            (507, "XMinioStorageFull", "store is full"),
            (501, "NotImplemented", "no conditional writes"),
        ],
    )
    def test_an_answer_that_refuses(
        self, status: int, code: str, expected: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        with answering(status, f"<?xml version='1.0'?><Error><Code>{code}</Code></Error>".encode()) as endpoint:
            monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
            self._each_fails(ObjectStoreBlobs("s3://nowhere/log", tmp_path, patience_s=1.0), expected)

    def test_no_credentials(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
            monkeypatch.delenv(f"AWS_{name}", raising=False)
        with pytest.raises(LogUnavailable, match=r"no credentials\. Set AWS_ACCESS_KEY_ID"):
            ObjectStoreBlobs("s3://nowhere/log", tmp_path, patience_s=1.0).keys("segments")

    @pytest.mark.usefixtures("credentials")
    def test_a_server_of_something_else(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        with answering(200, b"<html>hello") as endpoint:
            monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
            with pytest.raises(LogUnavailable, match="perhaps it is another kind of server"):
                ObjectStoreBlobs("s3://nowhere/log", tmp_path, patience_s=1.0).keys("segments")

    @pytest.mark.usefixtures("credentials")
    @pytest.mark.parametrize(
        "endpoint", ["foo bar", "http://", "http://a host", "ftp://host", "minio:9000", "https://é"]
    )
    def test_an_endpoint_that_is_no_address(
        self, endpoint: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        with pytest.raises(LogUnavailable, match=r"is no address\. Write it as https://HOST"):
            ObjectStoreBlobs("s3://nowhere/log", tmp_path, patience_s=1.0).keys("segments")

    def test_an_append_whose_answer_got_lost_is_new(
        self, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        with Interposed(bucket, monkeypatch, lost=1) as between:
            log = EventLog.open(Settings(home=tmp_path, log_uri=bucket))
            one = event(result())
            assert log.append([one], key="a").new
            assert between.lost == 0
            assert [e.event_id for e in log.read()] == [one.event_id]
            assert not log.append([one], key="a").new, "an append made again is none"

    def test_another_writers_object_is_not_taken_for_the_own(
        self, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        store = ObjectStoreBlobs(bucket, tmp_path)
        assert store.publish("segments/a", b"theirs")
        with Interposed(bucket, monkeypatch, lost=1) as between:
            assert not ObjectStoreBlobs(bucket, tmp_path).publish("segments/a", b"ours")
            assert between.lost == 0

    def test_a_cache_that_cannot_be_written(self, bucket: str, tmp_path: Path) -> None:
        (tmp_path / "cache").write_text("in the way")
        store = ObjectStoreBlobs(bucket, tmp_path / "cache")
        store.publish("segments/a", b"one")
        with pytest.raises(LogUnavailable, match=r"cannot be kept in .*cache"):
            store.local_path("segments/a")


class TestFaultsOfOtherStorages:
    """Messages name what the provider of the storage calls so, and its variables."""

    def _fails(self, url: str, expected: str, tmp_path: Path) -> None:
        for call in (lambda s: s.publish("segments/a", b"one"), lambda s: s.keys("segments")):
            with pytest.raises(LogUnavailable, match=expected) as failure:
                call(ObjectStoreBlobs(url, tmp_path, patience_s=1.0))
            assert "AWS" not in str(failure.value)
            assert "\n" not in str(failure.value)

    @pytest.mark.slow  # Azurite is installed once
    def test_azure(self, azure_container: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        nowhere = "abfss://nowhere@devstoreaccount1.dfs.core.windows.net/log"
        self._fails(nowhere, r"no such container \(404 ContainerNotFound\)", tmp_path)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "AAAA")
        self._fails(f"{azure_container}/log", "refused .403 AuthorizationFailure.*AZURE_STORAGE_ACCOUNT_KEY", tmp_path)

    def test_azure_without_a_server_or_an_account(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.delenv("AZURE_STORAGE_ACCOUNT_NAME", raising=False)
        with pytest.raises(LogUnavailable, match=r"cannot be opened: .*Account must be specified.*abfss://CONTAINER@"):
            ObjectStoreBlobs("az://container/log", tmp_path)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "somebody")
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "AAAA")
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:9/somebody")
        self._fails("az://container/log", "no connection to http://127.0.0.1:9.*Check AZURE_STORAGE_ENDPOINT", tmp_path)

    def test_google(self, google_bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self._fails("gs://nowhere/log", r"no such bucket \(404 NoSuchBucket\)", tmp_path)
        monkeypatch.setenv("GOOGLE_BASE_URL", "http://127.0.0.1:9")
        self._fails(f"{google_bucket}/log", "no connection to http://127.0.0.1:9. Check GOOGLE_BASE_URL", tmp_path)


class Interposed:
    """A proxy in front of the S3 server, which counts requests by method.

    Of the first `lost` PUTs the server stores the object, and no answer comes.
    """

    def __init__(self, bucket: str, monkeypatch: pytest.MonkeyPatch, *, lost: int = 0) -> None:
        self.lost = lost
        self.requests: Counter[str] = Counter()
        self._monkeypatch = monkeypatch
        self._aim = os.environ["AWS_ENDPOINT_URL"]

    def __enter__(self) -> Self:
        outer = self

        class Between(Answering):
            def respond(self) -> None:
                outer.requests[self.command] += 1
                status, headers, content = self.ask(outer._aim, self.path, dict(self.headers))
                if self.command == "PUT" and outer.lost:
                    outer.lost -= 1
                    self.close_connection = True
                    return
                self.send(status, content, headers)

        self._served = served(Between)
        self._monkeypatch.setenv("AWS_ENDPOINT_URL", self._served.__enter__())
        return self

    def __exit__(self, *raised: Any) -> None:
        self._served.__exit__(*raised)
        self._monkeypatch.setenv("AWS_ENDPOINT_URL", self._aim)


@contextmanager
def answering(status: int, content: bytes) -> Iterator[str]:
    """A server that gives one answer to everything; its URL."""

    class Always(Answering):
        def respond(self) -> None:
            self.body()
            self.send(status, content)

    with served(Always) as address:
        yield address


def test_an_unknown_scheme_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LogUnavailable, match="name a directory or s3://"):
        EventLog.open(Settings(home=tmp_path, log_uri="ftp://x/y"))


def test_a_back_up_is_taken_from_and_brought_into_any_store(location: str, tmp_path: Path) -> None:
    from accel_platform.backup import back_up, restore

    here = Settings(home=tmp_path / "here", log_uri=location)
    log = EventLog.open(here)
    for key in ("a", "b", "c"):
        log.append([event(result())], key=key)
    compact(log, grace_s=0)
    log.append([event(result())], key="d")
    done = back_up(here, tmp_path / "copy")
    assert (done.segments, done.events) == (4, 4)
    assert back_up(here, tmp_path / "copy").copied == 0
    there = Settings(home=tmp_path / "there", log_uri=f"{location}-restored")
    restore(there, tmp_path / "copy")
    assert {e.event_id for e in EventLog.open(there).read()} == {e.event_id for e in log.read()}
