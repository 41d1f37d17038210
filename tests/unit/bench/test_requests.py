"""Requested benchmarks as events: who may take one, how it ends, what becomes of it next, and what the table says."""

from __future__ import annotations

import json
import multiprocessing
import sys
import threading
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_platform.__main__ import main
from accel_platform.bench.requests.lifecycle import (
    MAX_ATTEMPTS,
    REQUEST_LABEL,
    Request,
    Requests,
    claim,
    close,
    hardware_for_request,
    request_benchmark,
    runs_of,
)
from accel_platform.cli.measurement.requests import parse_seconds
from accel_platform.errors import AccelError, InvalidInput, NotFound
from accel_platform.events import Event, EventLog
from accel_platform.events.types import BenchmarkRequested, RunStarted
from accel_platform.requested_benchmarks import AttemptLog, _end, open_attempt, take_requests
from accel_platform.settings import Settings
from accel_platform.signals import block_sigint
from accel_platform.warehouse.publish import stage
from assets.executors.routing import LOST_S, AttemptRun, next_step

ASKED: dict[str, Any] = {"models": ["bert-tiny"], "hardware_types": ["cpu"], "batch_sizes": [1]}


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> str:
    """This host's name in claims."""
    monkeypatch.setenv("ACCEL_HOST_NAME", "here")
    return "here"


def _looked(log: EventLog) -> Requests:
    requests = Requests(log)
    requests.refresh()
    return requests


def test_each_hardware_name_is_a_request_of_its_own_with_what_differs_from_the_usual(log: EventLog) -> None:
    asked = {**ASKED, "hardware_types": ["cuda", "wasm"], "browser": "firefox", "report_dir": "out"}
    ids = request_benchmark(asked, log, priority=3, max_runtime_s=60)
    found = _looked(log)
    assert [found[one].payload.hardware for one in ids] == ["cuda", "wasm:firefox"]
    for one in ids:
        request = found[one]
        assert (request.state, request.attempts, request.payload.priority) == ("open", 0, 3)
        config = request.payload.config
        assert config.pop("hardware_types") == [request.payload.hardware]
        assert config == {"models": ["bert-tiny"], "batch_sizes": [1], "report_dir": str(Path("out").absolute())}


def test_the_commit_is_the_one_that_who_asks_has(log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCEL_COMMIT", "abc")
    [one] = request_benchmark(ASKED, log)
    assert _looked(log)[one].payload.config["labels"] == {"commit": "abc"}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"hardware_types": None}, "names its hardware"),
        ({"hardware_types": ["cud"]}, "Did you mean cuda"),
        ({"models": ["bertt"]}, "No model is called"),
        ({"effort": "heroic"}, "heroic"),
        ({"precisions": ["float7"]}, "float7"),
        ({"older_than": "3d"}, r"An age \(older_than\) says what missing"),
        ({"batch_size": 1}, "batch_size"),
    ],
)
def test_what_no_host_could_measure_is_refused_before_it_is_asked(
    log: EventLog, changed: dict[str, Any], said: str
) -> None:
    with pytest.raises((InvalidInput, NotFound), match=said):
        request_benchmark({**ASKED, **changed}, log)
    assert log.snapshot().segments == frozenset()


def test_of_two_hosts_that_claim_an_attempt_one_has_it(log: EventLog) -> None:
    [one] = request_benchmark(ASKED, log)
    assert claim(log, one, 1, claimed_by="a")
    assert not claim(log, one, 1, claimed_by="b")
    assert claim(log, one, 2, claimed_by="b")
    request = _looked(log)[one]
    assert (request.state, request.attempts, request.claimed_by) == ("running", 2, "b")


def test_an_attempt_stores_nothing_more_once_a_later_one_has_begun(log: EventLog) -> None:
    [one] = request_benchmark(ASKED, log)
    claim(log, one, 1, claimed_by="here")
    request = open_attempt(log, one, 1)
    assert request is not None
    mine = AttemptLog(log, request)
    event = Event.of(RunStarted(kind="benchmark"), source="test", host_id="here", run_id="a-run")
    assert mine.append([event], key="run-1").new
    claim(log, one, 2, claimed_by="there")
    assert open_attempt(log, one, 1) is None
    with pytest.raises(AccelError, match="a later attempt has begun"):
        mine.append([event], key="run-2")
    assert "run-2" not in log.snapshot().segments
    second = open_attempt(log, one, 2)
    assert second is not None
    assert AttemptLog(log, second).append([event], key="run-2").new
    close(log, second, "done")
    assert open_attempt(log, one, 2) is None


def test_a_request_ends_once(log: EventLog) -> None:
    [one] = request_benchmark(ASKED, log)
    request = _looked(log)[one]
    assert close(log, request, "cancelled", "taken back")
    assert not close(log, request, "done")
    request = _looked(log)[one]
    assert request.state == "cancelled"
    assert _looked(log).unfinished() == []


def test_the_runs_of_a_request_are_those_that_name_it(log: EventLog) -> None:
    [one] = request_benchmark(ASKED, log)
    for label in (str(one), "another"):
        event = Event.of(RunStarted(kind="benchmark", labels={REQUEST_LABEL: label}), source="test")
        log.append([event.model_copy(update={"run_id": str(event.event_id)})], key=f"bench-{event.event_id}-0000")
    [run_id] = runs_of(log, one)
    claim(log, one, 1, claimed_by="a")
    close(log, _looked(log)[one], "done")
    closed = _looked(log)[one].closed
    assert closed is not None
    assert closed.run_ids == (run_id,)


def test_looking_again_reads_what_is_new_and_the_urgent_come_first(log: EventLog) -> None:
    requests = Requests(log)
    assert not requests.refresh()
    [first], [second], [urgent] = (request_benchmark(ASKED, log, priority=p) for p in (0, 0, 1))
    assert requests.refresh()
    assert not requests.refresh()
    assert [request.id for request in requests.unfinished()] == [urgent, first, second]
    assert [request.id for request in requests.all()] == [first, second, urgent]
    assert requests.find(str(second)[-12:]).id == second
    with pytest.raises(NotFound):
        requests.find("zzz")
    with pytest.raises(InvalidInput):
        requests.find(str(first)[:4])


NOW = datetime.now(UTC)


def _request(attempts: int, *, claimed_by: str = "me", limit_s: float | None = None, age_s: float = 1) -> Request:
    asked = BenchmarkRequested(requested_by="cli", hardware="cpu", max_runtime_s=limit_s)
    claimed = {"claimed_by": claimed_by, "claimed_at": NOW - timedelta(seconds=age_s)} if attempts else {}
    return Request(uuid4(), asked, NOW, attempts=attempts, **claimed)  # type: ignore[arg-type]


FAILED, CANCELED = AttemptRun("failed", "it broke", 5.0), AttemptRun("canceled", "somebody stopped it", 5.0)


@pytest.mark.parametrize(
    ("request_", "run", "do", "attempt"),
    [
        (_request(0), None, "claim", 1),
        (_request(1), None, "start", 1),  # claimed, and then this host was stopped
        (_request(1, claimed_by="other"), None, "wait", 0),
        (_request(1, claimed_by="other", age_s=LOST_S + 1), None, "claim", 2),
        (_request(MAX_ATTEMPTS, claimed_by="other", age_s=LOST_S + 1), None, "close", 0),
        (_request(1), AttemptRun("under way", ""), "wait", 0),
        (_request(1), FAILED, "claim", 2),
        (_request(1, claimed_by="other"), FAILED, "claim", 2),
        (_request(MAX_ATTEMPTS), FAILED, "close", 0),
        (_request(1), CANCELED, "close", 0),
        (_request(1, limit_s=5), FAILED, "close", 0),
        (_request(1, limit_s=6), FAILED, "claim", 2),
    ],
)
def test_what_is_done_next(request_: Request, run: AttemptRun | None, do: str, attempt: int) -> None:
    step = next_step(request_, run, host="me", now=NOW)
    assert (step.do, step.attempt) == (do, attempt)


@pytest.mark.parametrize(
    ("asked", "served"),
    [("cpu", "cpu"), ("wasm:firefox", "wasm"), ("openvino:gpu", None), ("cuda", None), ("of-the-future", None)],
)
def test_which_hardware_of_a_host_serves_a_request(asked: str, served: str | None) -> None:
    request = replace(_request(0), payload=BenchmarkRequested(requested_by="cli", hardware=asked))
    assert hardware_for_request(request, {"cpu", "openvino", "wasm"}, "here") == served


def test_an_end_says_why() -> None:
    now = datetime.now(UTC)
    assert (
        next_step(_request(MAX_ATTEMPTS), FAILED, host="me", now=now).reason == "tried 3 times; the last time: it broke"
    )
    limited = next_step(_request(1, limit_s=2), CANCELED, host="me", now=now)
    assert (limited.status, limited.reason) == ("failed", "it took longer than 2 s, its limit")
    assert next_step(_request(1), CANCELED, host="me", now=now).status == "cancelled"


@given(st.lists(st.sampled_from(["failed", "lost", "canceled"]), min_size=MAX_ATTEMPTS, max_size=10))
def test_whatever_goes_wrong_a_request_ends_after_three_attempts_at_most(faults: list[str]) -> None:
    attempts, now = 0, datetime.now(UTC)
    for fault in ["first", *faults]:
        request = _request(attempts, claimed_by="other", age_s=LOST_S + 1)
        run = None if fault in ("first", "lost") else AttemptRun(fault, "it broke", 1.0)  # type: ignore[arg-type]
        step = next_step(request, run, host="me", now=now)
        if step.do == "close":
            assert step.reason
            break
        assert (step.do, step.attempt) == ("claim", attempts + 1)
        attempts = step.attempt
    assert step.do == "close"
    assert attempts <= MAX_ATTEMPTS


def test_the_table_says_what_the_log_says(log: EventLog, settings: Settings) -> None:
    running, ended = (request_benchmark(ASKED, log, priority=p)[0] for p in (2, 0))
    [waiting] = request_benchmark(ASKED, log, host="c")
    claim(log, running, 1, claimed_by="a")
    claim(log, running, 2, claimed_by="b")
    close(log, _looked(log)[ended], "failed", "no such device")
    with stage(settings).projection.open() as con:
        table = con.execute("SELECT * FROM requests")
        names = [column[0] for column in table.description or ()]
        rows = {row[0]: dict(zip(names, row, strict=True)) for row in table.fetchall()}
    assert {one: rows[one]["state"] for one in rows} == {waiting: "open", running: "running", ended: "failed"}
    assert (rows[running]["attempts"], rows[running]["claimed_by"], rows[running]["priority"]) == (2, "b", 2)
    assert (rows[ended]["reason"], rows[ended]["attempts"], rows[ended]["run_ids"]) == ("no such device", 0, [])
    assert [rows[one]["host"] for one in (waiting, running)] == ["c", None]
    assert rows[waiting]["claimed_at"] is None
    assert json.loads(rows[waiting]["config"])["models"] == ["bert-tiny"]


def _accel(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["accel", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_the_commands(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], settings: Settings, tmp_path: Path
) -> None:
    home = ["--home", str(settings.home), "--json"]
    terms = ["--priority", "4", "--max-runtime", "30m", "--host", "b"]
    options = ["--models", "bert-tiny", "--hardware", "cpu,cuda", *terms]
    assert _accel(monkeypatch, "bench", "request", *options, *home) == 0
    asked = json.loads(capsys.readouterr().out)
    assert [(row["hardware"], row["priority"], row["max_runtime_s"], row["host"]) for row in asked] == [
        ("cpu", 4, 1800.0, "b"),
        ("cuda", 4, 1800.0, "b"),
    ]
    suite = tmp_path / "suite.json"
    suite.write_text(json.dumps({**ASKED, "models_file": "mine.json", "models": ["mine"]}))
    (tmp_path / "mine.json").write_text('{"mine": {"architecture": "BertModel", "config": {"hidden_size": 8}}}')
    for wrong in (["--priority", "1"], ["--host", "b"]):
        assert _accel(monkeypatch, "bench", "suite", str(suite), *wrong, *home) == 2
        assert "--request" in capsys.readouterr().err

    one = asked[0]["request_id"]
    assert _accel(monkeypatch, "bench", "cancel", one[-12:], *home) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "cancelled"
    assert _accel(monkeypatch, "bench", "cancel", one, *home) == 2
    capsys.readouterr()
    assert _accel(monkeypatch, "bench", "requests", "--state", "open", *home) == 0
    assert [UUID(row["request_id"]) for row in json.loads(capsys.readouterr().out)] == [UUID(asked[1]["request_id"])]
    assert _accel(monkeypatch, "bench", "requests", "--state", "lost", *home) == 2


def test_a_request_for_another_host_is_said_where_it_is_not_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], settings: Settings, here: str
) -> None:
    home = ["--home", str(settings.home)]
    options = ["bench", "request", "--models", "bert-tiny", "--hardware", "cpu", "--host"]
    assert _accel(monkeypatch, *options, here, *home) == 0
    assert "No host" not in capsys.readouterr().err
    assert _accel(monkeypatch, *options, "hots", *home) == 0
    assert f"No host called 'hots' has taken a request so far; known: {here}." in capsys.readouterr().err
    log = EventLog.open(settings)
    close(log, _looked(log).all()[0], "cancelled", "not wanted")
    assert _accel(monkeypatch, "bench", "take", "--hardware", "cpu", *home) == 0
    assert "is open: it is for cpu of the host hots." in capsys.readouterr().err


@pytest.mark.parametrize(("text", "found"), [("90s", 90), ("30m", 1800), ("1.5 H", 5400), ("1d", 86400), (None, None)])
def test_lengths_of_time(text: str | None, found: float | None) -> None:
    assert parse_seconds(text) == found


@pytest.mark.parametrize("text", ["", "30", "0s", "-1m", "1w", "m"])
def test_no_lengths_of_time(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_seconds(text)


def test_a_second_interruption_leaves_no_measuring_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where Dagster cancels a run that is ending its process, because the request's time is over."""
    with block_sigint():  # a child that the first interruption does not end
        child = multiprocessing.get_context("spawn").Process(target=time.sleep, args=(60,))
        child.start()
    join = child.join

    def interrupted(timeout: float | None = None) -> None:
        if timeout is not None:
            raise KeyboardInterrupt
        join()

    monkeypatch.setattr(child, "join", interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            _end(child)
        assert not child.is_alive()
    finally:
        child.kill()


@pytest.mark.slow  # it measures a model in processes of its own; what decides whose turn it is, is tested without
def test_a_host_without_dagster_measures_what_it_can(
    settings: Settings, log: EventLog, here: str, capfd: pytest.CaptureFixture[str]
) -> None:
    quick = {**ASKED, "effort": "quick"}
    [own] = request_benchmark(quick, log, host=here)
    [elsewhere] = request_benchmark(quick, log, host="there", priority=2)
    [absent] = request_benchmark({**quick, "hardware_types": ["cuda"]}, log)
    [ended] = take_requests(log, settings, ["cpu"])
    assert "Traceback" not in capfd.readouterr().err
    assert (ended.id, ended.state, ended.claimed_by) == (own, "done", here)
    assert ended.closed is not None
    assert list(ended.closed.run_ids) == runs_of(log, own)
    assert [_looked(log)[one].state for one in (elsewhere, absent)] == ["open", "open"]


def test_a_host_without_dagster_takes_the_most_urgent_first_and_keeps_to_limits(
    settings: Settings, log: EventLog, here: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    models = tmp_path / "models.json"
    models.write_text(json.dumps({"mine": {"architecture": "bert"}}))
    [later] = request_benchmark({**ASKED, "models": None, "models_file": str(models)}, log)
    models.unlink()  # so that it ends at once
    [limited] = request_benchmark({**ASKED, "effort": "quick"}, log, priority=1, max_runtime_s=0.1)
    first, second = take_requests(log, settings, ["cpu"])
    assert "Traceback" not in capfd.readouterr().err  # neither of the interrupted process nor of the one that ended
    assert [(one.id, one.state, one.claimed_by) for one in (first, second)] == [
        (limited, "failed", here),
        (later, "failed", here),
    ]
    assert first.closed is not None
    assert first.closed.reason == "it took longer than 0.1 s, its limit"


def test_what_was_cancelled_stops_being_measured(settings: Settings, log: EventLog, here: str) -> None:
    [one] = request_benchmark({**ASKED, "effort": "thorough", "batch_sizes": [1, 2, 4, 8, 16, 32]}, log)
    claimed = threading.Event()

    def cancel() -> None:
        assert claimed.wait(30)
        close(log, _looked(log)[one], "cancelled", "no longer needed")

    canceller = threading.Thread(target=cancel)
    canceller.start()
    [ended] = take_requests(log, settings, ["cpu"], report=lambda _: claimed.set())
    canceller.join()
    assert ended.closed is not None
    assert (ended.state, ended.closed.reason) == ("cancelled", "no longer needed")


def test_one_that_was_taken_without_dagster_is_gone_on_with_by_its_host_alone(
    settings: Settings, log: EventLog, here: str, tmp_path: Path
) -> None:
    models = tmp_path / "models.json"
    models.write_text(json.dumps({"mine": {"architecture": "bert"}}))
    ids = [request_benchmark({**ASKED, "models": None, "models_file": str(models)}, log)[0] for _ in range(3)]
    models.unlink()  # so that each ends at once
    claim(log, ids[0], 1, claimed_by=here, direct=True)  # and then this host crashed
    claim(log, ids[1], 1, claimed_by="there", direct=True)
    claim(log, ids[2], 1, claimed_by=here)
    [ended] = take_requests(log, settings, ["cpu"])
    assert (ended.id, ended.state, ended.attempts) == (ids[0], "failed", 1)
    much_later = datetime.now(UTC) + timedelta(days=1)
    for host in (here, "there"):
        assert next_step(_looked(log)[ids[1]], None, host=host, now=much_later).do == "wait"
