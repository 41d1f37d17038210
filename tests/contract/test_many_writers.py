"""Many hosts append to one log while it is compacted: nothing is lost, nothing doubled, every snapshot readable."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from uuid import UUID

import pytest

from accel_platform.events import EventLog
from accel_platform.events.compaction import compact
from accel_platform.settings import Settings
from factories import event, result

_WRITERS = 20


class TestManyWriters:
    @pytest.mark.parametrize("appends", [3, pytest.param(50, marks=pytest.mark.slow)])
    def test_nothing_is_lost_or_doubled_beside_compaction(self, location: str, tmp_path: Path, appends: int) -> None:
        if location.startswith("gs://") and appends > 3:
            pytest.skip("the stand-in takes minutes, and Google's servers are not what it measures")

        def open_on(host: str) -> EventLog:
            return EventLog.open(Settings(home=tmp_path / host, log_uri=location))

        acknowledged: list[UUID] = []
        failures: list[BaseException] = []
        done = threading.Event()

        def write(number: int) -> None:
            log = open_on(f"host-{number}")
            try:
                for n in range(appends):
                    one = event(result(batch_size=n + 1))
                    assert log.append([one], key=f"host-{number}-{n}").new
                    acknowledged.append(one.event_id)
                    log.append([one], key=f"host-{number}-{n}")  # as a retry after a lost answer
            except BaseException as error:  # noqa: BLE001 - raised below, in the test's own thread
                failures.append(error)

        def pack() -> None:
            log = open_on("compaction")
            try:
                while not done.wait(0.01):
                    compact(log, grace_s=0)
                    log.save_snapshot(log.snapshot())
            except BaseException as error:  # noqa: BLE001 - as above
                failures.append(error)

        writers = [threading.Thread(target=write, args=(number,)) for number in range(_WRITERS)]
        packer = threading.Thread(target=pack)
        for thread in (packer, *writers):
            thread.start()
        for thread in writers:
            thread.join()
        done.set()
        packer.join()
        assert failures == []
        log = open_on("reader")
        assert len(acknowledged) == _WRITERS * appends
        assert Counter(e.event_id for e in log.read()) == Counter(acknowledged)
        compact(log, grace_s=0)
        again = open_on("later-reader")
        assert Counter(e.event_id for e in again.read()) == Counter(acknowledged)
        assert again.snapshot().id == log.snapshot().id
        saved = [again.load_snapshot(one) for one in again.saved_snapshots()]
        assert saved
        assert all(one.segments <= again.snapshot().segments for one in saved)
        assert all(again.count_events(one.segments) == len(one.segments) for one in saved)
