"""Coming back to the log as it was: how snapshots are named and found, tables of the past, and what came between."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from accel_platform.analysis.regressions.snapshot_comparison import compare_tables
from accel_platform.cli import app
from accel_platform.errors import InvalidInput, NotFound
from accel_platform.events import EventLog
from accel_platform.events.compaction import compact
from accel_platform.events.snapshots import find_snapshot, parse_moment, read_snapshot_events, take_snapshot
from accel_platform.events.types import SuspicionOverruled
from accel_platform.settings import Settings, SnapshotSettings
from accel_platform.warehouse import publish, time_travel
from accel_platform.warehouse.layers import current
from accel_platform.warehouse.reader import Reader
from accel_platform.warehouse.time_travel import tables_as_of
from factories import event, result, verification

Accel = Callable[..., Result]


@pytest.fixture
def accel(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> Accel:
    monkeypatch.setenv("ACCEL_HOME", str(settings.home))  # --home sets it, and nobody else would set it back
    return lambda *arguments: CliRunner().invoke(app, [*arguments, "--home", str(settings.home)])


def _measure(log: EventLog, *, times: int = 1, factor: float = 1.0, **changes: Any) -> None:
    """So many verified results of one cell."""
    for _ in range(times):
        samples = tuple(int(factor * (20_000_000 + 10_000 * i)) for i in range(12))
        named = {name: changes[name] for name in ("model_id", "hardware", "batch_size") if name in changes}
        log.append([event(result(samples_ns=samples, **changes)), event(verification(**named))])


class TestFinding:
    def test_a_snapshot_is_found_by_its_name_its_id_and_the_time(self, log: EventLog) -> None:
        _measure(log)
        then = log.snapshot()
        before = datetime.now(UTC)
        named = take_snapshot(log, "before-the-move")
        _measure(log)
        assert named.snapshot_id == then.id
        assert (named.segments, named.events) == (1, 2)
        for ref in ("before-the-move", then.id, then.id[:7], before.isoformat(), before.astimezone(None).isoformat()):
            assert find_snapshot(log, ref) == then, ref
        assert find_snapshot(log, f"{datetime.now(UTC):%Y-%m-%d}") == log.snapshot()

    def test_the_time_of_a_packed_segment_is_still_its_own(self, log: EventLog) -> None:
        _measure(log)
        then, before = log.snapshot(), datetime.now(UTC)
        _measure(log)
        compact(log, grace_s=0)
        assert log.recorded_until(before) == then
        _measure(log)
        assert log.recorded_until(before) == then

    def test_a_name_is_given_once(self, log: EventLog) -> None:
        _measure(log)
        take_snapshot(log, "release-1")
        with pytest.raises(InvalidInput, match="already"):
            take_snapshot(log, "release-1")
        take_snapshot(log)
        assert [event.payload.name for event in read_snapshot_events(log)] == ["release-1", None]  # type: ignore[attr-defined]

    @pytest.mark.parametrize("name", ["", "2026-11-20", "20261120", "abcdef0", "a b", "../up", "x" * 65, ".hidden"])
    def test_a_name_that_could_mean_something_else_is_refused(self, log: EventLog, name: str) -> None:
        _measure(log)
        with pytest.raises(InvalidInput):
            take_snapshot(log, name)

    @pytest.mark.parametrize("ref", ["", "nobody", "deadbeef", "2020-01-01", "2026-13-01"])
    def test_what_means_nothing_is_not_found(self, log: EventLog, ref: str) -> None:
        _measure(log)
        take_snapshot(log, "known")
        with pytest.raises(NotFound, match=r"known|Nothing was recorded"):
            find_snapshot(log, ref)

    def test_the_beginning_of_several_ids_is_not_enough(self, log: EventLog, settings: Settings) -> None:
        _measure(log)
        log.save_snapshot(log.snapshot())
        place = settings.home / "log" / "snapshots"
        for rest in "01":
            (place / f"abcdef0{rest * 25}.json").write_text("[]")
        with pytest.raises(InvalidInput, match="several"):
            find_snapshot(log, "abcdef0")

    def test_an_empty_log_has_nothing_to_come_back_to(self, log: EventLog) -> None:
        with pytest.raises(InvalidInput, match="empty"):
            take_snapshot(log)

    def test_a_date_is_its_whole_day_and_a_time_without_zone_is_utc(self) -> None:
        assert parse_moment("2026-11-20") == datetime(2026, 11, 20, 23, 59, 59, 999_999, UTC)
        assert parse_moment("2026-11-20T16:00") == datetime(2026, 11, 20, 16, tzinfo=UTC)
        assert parse_moment("2026-11-20T16:00+02:00") == datetime(2026, 11, 20, 14, tzinfo=UTC)
        assert parse_moment("today") is None


class TestThePast:
    def test_its_tables_are_those_of_then_and_what_is_in_service_stays(self, settings: Settings, log: EventLog) -> None:
        _measure(log, times=2)
        then = log.snapshot()
        take_snapshot(log, "then")
        _measure(log, model_id="vit-base", model_family="vit")
        publish.refresh(settings)
        served = current(settings)
        past = tables_as_of(settings, "then")
        reader = Reader(past)
        assert reader.snapshot_id == then.id
        assert reader.rows("SELECT DISTINCT model_id FROM results") == [{"model_id": "bert-base"}]
        assert reader.rows("SELECT model_id FROM compat_matrix") == [{"model_id": "bert-base"}]
        assert current(settings) == served
        # Bringing the past up to date would make it the present.
        publish.bring_up_to_date(past)
        assert Reader(past).snapshot_id == then.id

    def test_they_are_made_once_and_the_oldest_go(
        self, settings: Settings, log: EventLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(time_travel, "_MAX_SNAPSHOTS", 2)
        # The audit has its own test, and takes a second.
        monkeypatch.setattr(publish, "check", lambda staged: [])
        for name in "abc":
            _measure(log)
            take_snapshot(log, name)
        first, second = tables_as_of(settings, "a"), tables_as_of(settings, "b")
        made = current(first)
        assert tables_as_of(settings, "a") == first
        assert current(first) == made
        third = tables_as_of(settings, "c")
        assert not second.warehouse_dir.exists()
        assert current(first) == made
        assert current(third) is not None

    def test_damaged_ones_are_made_again(self, settings: Settings, log: EventLog) -> None:
        _measure(log)
        take_snapshot(log, "then")
        past = tables_as_of(settings, "then")
        (past.warehouse_dir / "CURRENT").write_text("nonsense")
        assert Reader(tables_as_of(settings, "then")).rows("SELECT count(*) AS n FROM results") == [{"n": 1}]

    def test_every_setting_but_the_tables_place_is_the_same(self, settings: Settings) -> None:
        past = SnapshotSettings(**settings.model_dump(), snapshot_id="0")
        assert past.model_dump(exclude={"snapshot_id"}) == settings.model_dump()
        assert past.log_location == settings.log_location
        assert past.warehouse_dir != settings.warehouse_dir


class TestDifference:
    def test_it_tells_results_medians_and_matrix(self, settings: Settings, log: EventLog) -> None:
        _measure(log, times=2)
        claim = event(result(provenance="suspect", model_id="gpt2", model_family="gpt2", suspicions=(
            {"rule": "r", "verdict": "suspect", "evidence": "e", "confidence": 0.5},)))  # fmt: skip
        log.append([claim])
        publish.refresh(settings)
        old = Reader(tables_as_of(settings, log.snapshot().id))
        _measure(log, times=3, factor=1.5)
        _measure(log, hardware="openvino", factor=0.1)
        log.append([event(SuspicionOverruled(result_id=claim.event_id, rule="r", by="me", reason="known"))])
        publish.refresh(settings)
        found = compare_tables(old, Reader(settings))
        assert {
            (row["model_id"], row["hardware"], row["provenance"]): (row["added"], row["removed"])
            for row in found.results
        } == {
            ("bert-base", "cpu", "measured"): (3, 0),
            ("bert-base", "openvino", "measured"): (1, 0),
            ("gpt2", "cpu", "imported"): (1, 0),
            ("gpt2", "cpu", "suspect"): (0, 1),
        }
        [moved] = found.medians
        assert moved["change_percent"] == pytest.approx(50)
        assert (moved["hardware"], moved["results_before"], moved["results_after"]) == ("cpu", 2, 5)
        assert [(row["model_id"], row["hardware"], row["state_before"], row["state_after"], row["rating_after"])
                for row in found.matrix] == [
            ("bert-base", "cpu", "compatible", "compatible", "low"),
            ("bert-base", "openvino", None, "compatible", "high"),
            ("gpt2", "cpu", None, "compatible", None),
        ]  # fmt: skip
        claim = {"provenance": "imported", "samples_ns": (), "fingerprint": None}
        log.append([event(result(latency_mean_ms=ms, original={"image_size": str(size)}, **claim))
                    for size, ms in ((224, 10.0), (384, 30.0))])  # fmt: skip
        publish.refresh(settings)
        one = Reader(tables_as_of(settings, log.snapshot().id))
        log.append([event(result(latency_mean_ms=40.0, original={"image_size": "384"}, **claim))])
        publish.refresh(settings)
        [moved] = compare_tables(one, Reader(settings)).medians
        assert (moved["image_size"], moved["before_ms"], moved["after_ms"]) == (384, 30, 35)
        nothing = compare_tables(old, old)
        assert (nothing.results, nothing.medians, nothing.matrix) == ([], [], [])


class TestCommands:
    @pytest.mark.slow
    def test_what_reads_the_tables_reads_those_of_then(self, accel: Accel, settings: Settings, log: EventLog) -> None:
        _measure(log)
        said = json.loads(accel("db", "snapshot", "create", "--name", "then", "--json").stdout)
        assert said["events"] == 2
        assert [row["name"] for row in json.loads(accel("db", "snapshot", "list", "--json").stdout)] == ["then"]
        _measure(log, model_id="vit-base", model_family="vit")
        publish.refresh(settings)
        sql = "SELECT count(*) AS n FROM results"
        for refs, rows in (([], 2), (["--as-of", "then"], 1), (["--as-of", said["snapshot_id"][:9]], 1)):
            assert json.loads(accel("db", "query", sql, "--json", *refs).stdout) == [{"n": rows}]
            output = settings.home / "out.json"
            assert accel("db", "export", "results", "-o", str(output), *refs).exit_code == 0
            assert len(json.loads(output.read_text())) == rows
            assert len(json.loads(accel("matrix", "--json", *refs).stdout)["models"]) == rows
            assert len(json.loads(accel("regress", "history", "--json", *refs).stdout)) == rows
            assert accel("regress", "list", *refs).exit_code == 0
        told = accel("db", "snapshot", "diff", "then")
        assert "vit-base" in told.stdout
        assert "1 result came and 0 went" in told.stderr
        assert json.loads(accel("db", "snapshot", "diff", "then", "then", "--json").stdout)["results"] == []

    def test_looking_back_adds_nothing(self, accel: Accel, log: EventLog) -> None:
        _measure(log)
        take_snapshot(log, "then")
        sides = ["--baseline", "aaaaaaa", "--candidate", "bbbbbbb"]
        said = accel("regress", "check", *sides, "--as-of", "then", "--record", "--confirm")
        assert said.exit_code == 2
        assert "--confirm and --record" in said.stderr
        refused = accel("regress", "history", "--as-of", "then", "--record")
        assert isinstance(refused.exception, InvalidInput)
