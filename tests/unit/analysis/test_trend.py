"""A figure over time: unlike results in unlike series, shifts found and what a person said of them."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from commits_world import NEW, OLD, Ci
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from accel_platform.analysis.query.filters import Selection
from accel_platform.analysis.query.measured import read_measured_series
from accel_platform.analysis.regressions.changepoint_history import find_shifts, record_regressions
from accel_platform.analysis.regressions.trend import trends
from accel_platform.analysis.regressions.triage import ShiftDecisions, build_acceptance, build_rejection, read_decisions
from accel_platform.cli import app
from accel_platform.events import Event, EventLog
from accel_platform.settings import Settings
from accel_platform.table_io.text import sparkline
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.reader import Reader
from factories import event, result, verification

BEGAN = datetime(2026, 3, 1, tzinfo=UTC)
BERT = Selection(model=("bert-base",))


def measured(log: EventLog) -> None:
    """Twelve runs, then twelve that are a fifth slower, a day apart."""
    ci = Ci(log)
    for day in range(24):
        commit, factor = (OLD, 1.0) if day < 12 else (NEW, 1.2)
        ci.run(commit, factor, recorded_at=BEGAN + timedelta(days=day))


def test_a_shift_is_found_with_its_commit_and_what_was_recorded_of_it(log: EventLog, settings: Settings) -> None:
    measured(log)
    refresh(settings)
    reader = Reader(settings)
    [latency] = trends(reader, BERT, "latency_ms")
    assert [point.at for point in latency.points] == [BEGAN + timedelta(days=day) for day in range(24)]
    [shift] = latency.shifts
    assert (shift.point.commit, shift.commit_before, shift.worse, shift.state) == (NEW, OLD, True, None)
    assert shift.point.at == BEGAN + timedelta(days=12)
    assert shift.change_percent == pytest.approx(20, abs=1)
    assert latency.spread_percent is not None
    assert latency.spread_percent < 2
    [throughput] = trends(reader, BERT, "throughput_items_per_s")
    assert [one.worse for one in throughput.shifts] == [True]
    assert throughput.shifts[0].change_percent == pytest.approx(-100 / 6, abs=1)
    [memory] = trends(reader, BERT, "memory_peak_mib")
    assert memory.shifts == ()
    [history] = find_shifts(read_measured_series(reader), {"latency": ShiftDecisions()}, min_change_percent=3.0)
    record_regressions(log, history.shifts, source="test")
    refresh(settings)
    [shift] = trends(reader, BERT, "latency_ms")[0].shifts
    assert (shift.regression_id, shift.state) == (history.shifts[0].regression_id, "open")
    log.append(
        [Event.of(build_acceptance(reader, str(shift.regression_id), by="me", reason="new kernel"), source="test")]
    )
    refresh(settings)
    assert read_decisions(reader)["latency"].accepted
    [shift] = trends(reader, BERT, "latency_ms")[0].shifts
    assert (shift.state, shift.accepted_by, shift.accepted_reason) == ("accepted", "me", "new kernel")
    log.append([Event.of(build_rejection(reader, str(shift.regression_id), by="you", reason="hot"), source="test")])
    refresh(settings)
    [shift] = trends(reader, BERT, "latency_ms")[0].shifts
    assert (shift.state, shift.accepted_by) == ("rejected", None)
    assert (shift.rejected_by, shift.rejected_reason) == ("you", "hot")
    assert trends(reader, Selection(model=("bert",), until=BEGAN + timedelta(days=12)), "latency_ms")[0].shifts == ()


def test_unlike_results_are_unlike_series_and_wrong_ones_in_none(log: EventLog, settings: Settings) -> None:
    log.append([event(payload, occurred_at=BEGAN) for payload in (
        result(), result(batch_size=4), result(fingerprint="other"), result(provenance="emulated"),
        result(provenance="imported", samples_ns=(), latency_mean_ms=5.0, fingerprint=None),
        result(provenance="imported", samples_ns=(), latency_mean_ms=9.0, fingerprint=None,
               original={"image_size": "384"}),
        result(hardware="openvino"), verification(hardware="openvino", passed=False),
        result(hardware="cuda", status="failed", reason="no memory", samples_ns=()),
    )])  # fmt: skip
    refresh(settings)
    found = trends(Reader(settings), BERT, "latency_ms")
    assert [len(one.points) for one in found] == [1] * 6
    assert {one.series["hardware"] for one in found} == {"cpu"}
    assert [one.series["image_size"] for one in found if one.series["provenance"] == "imported"] == [384, None]
    assert trends(Reader(settings), BERT, "energy_j_per_item") == []


def test_branches_measured_in_turns_are_unlike_series_without_shifts(log: EventLog, settings: Settings) -> None:
    ci = Ci(log)
    for day in range(12):
        ci.run(OLD, recorded_at=BEGAN + timedelta(days=2 * day), branch="main")
        ci.run(NEW, 1.5, recorded_at=BEGAN + timedelta(days=2 * day + 1), branch="feature")
    refresh(settings)
    found = trends(Reader(settings), BERT, "latency_ms")
    assert [
        (one.series["branch"], len(one.points), len(one.shifts))
        for one in sorted(found, key=lambda one: one.points[0].at)
    ] == [
        ("main", 12, 0),
        ("feature", 12, 0),
    ]
    assert len(trends(Reader(settings), BERT, "latency_ms", longest=1)) == 1
    told = CliRunner().invoke(app, ["trend", "--model", "bert-base", "--home", str(settings.home)])
    assert "feature" in told.output
    assert "main" in told.output


def test_what_has_no_time_is_in_no_point_and_is_counted(log: EventLog, settings: Settings) -> None:
    old = result(provenance="imported", samples_ns=(), latency_mean_ms=5.0, fingerprint=None)
    log.append([event(old).model_copy(update={"occurred_at": None}), event(old, occurred_at=BEGAN)])
    refresh(settings)
    [one] = trends(Reader(settings), BERT, "latency_ms")
    assert (len(one.points), one.undated, one.median, one.spread_percent) == (1, 1, 5.0, None)


def test_the_command_tells_lines_to_people_and_points_to_machines(log: EventLog, settings: Settings) -> None:
    measured(log)
    refresh(settings)
    ask = ["trend", "--model", "bert-base", "--hardware", "cpu", "cuda", "--home", str(settings.home)]
    told = CliRunner().invoke(app, ask)
    assert told.exit_code == 0
    assert "▁▁▁▁▁▁▁▁▁▁▁▁" in told.output
    assert "not recorded" in told.output
    [document] = json.loads(CliRunner().invoke(app, [*ask, "--json"]).stdout)
    assert len(document["points"]) == 24
    assert CliRunner().invoke(app, [*ask, "--format", "csv"]).stdout.count("\n") == 25
    empty = CliRunner().invoke(app, [*ask, "--metric", "energy_j_per_item"])
    assert "accel bench run --models bert-base --hardware cpu,cuda" in empty.output


@given(values=st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=200))
def test_a_sparkline_is_as_long_as_its_values_and_reaches_both_ends(values: list[float]) -> None:
    line = sparkline(values)
    assert len(line) == min(len(values), 40)
    if len(values) <= 40 and min(values) < max(values):
        assert {"▁", "█"} <= set(line)


def test_a_narrow_terminal_shows_the_curves_of_dated_series_alone(
    log: EventLog, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured(log)
    claim: dict[str, Any] = {"provenance": "imported", "samples_ns": (), "fingerprint": None, "latency_mean_ms": 5.0}
    undated = [result(device_name="Some GPU of another vendor", batch_size=size, **claim) for size in range(2, 6)]
    log.append([Event.of(one, source="test", occurred_at=None) for one in undated])
    dated = result(device_name="Some GPU of another vendor", batch_size=64, **claim)
    log.append([Event.of(dated, source="test", occurred_at=BEGAN)])
    refresh(settings)
    monkeypatch.setenv("COLUMNS", "100")
    done = CliRunner().invoke(app, ["trend", "--model", "bert-base", "--home", str(settings.home)])
    head, _, *rows = done.stdout.split("\n\n")[0].splitlines()
    assert len(rows) == 2
    assert {"cell", "newest", "median", "over"} <= {*head.split()}
    assert "…" not in "".join(row[: len("cpu, batch 64, length 128, float32")] for row in rows)
    [curve] = [row for row in rows if "batch 1," in row]
    assert curve.endswith("█" * 8)
    assert "left out: 4 results of unknown time" in done.output
    words = ["trend", "--model", "bert-base", "--batch-size", "2", "--home", str(settings.home)]
    assert "No result with latency_ms has a time." in CliRunner().invoke(app, words).stdout


def test_a_list_without_open_shifts_does_not_deny_those_recorded(log: EventLog, settings: Settings) -> None:
    def listed(*words: str) -> str:
        return CliRunner().invoke(app, ["regress", "list", *words, "--home", str(settings.home)]).stdout.strip()

    measured(log)
    refresh(settings)
    assert listed() == "None is recorded."
    [found] = find_shifts(read_measured_series(Reader(settings)), {"latency": ShiftDecisions()}, min_change_percent=3.0)
    record_regressions(log, found.shifts, source="test")
    refresh(settings)
    rejected = build_rejection(Reader(settings), found.shifts[0].regression_id, by="ann", reason="a busy machine")
    log.append([event(rejected)])
    refresh(settings)
    assert listed("--state", "open") == "None is open."
    assert listed("--state", "accepted", "--model", "bert-base") == "None is accepted under these filters."
    assert found.shifts[0].regression_id in listed()
