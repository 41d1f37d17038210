"""What may be written over HTTP: judged at once, stored once, and in the tables soon after."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from accel_platform.events import Event, EventLog, Snapshot
from accel_platform.events.audited import AuditedLog, AuditedWriter
from accel_platform.events.types import MeasuredSeries, RegressionFound, ResultRecorded, WriteAudited
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from migrations.suspicion.rules import mark_suspicious
from predictor.service.app import create_app
from predictor.service.background.intake import request_id, store_once
from predictor.service.background.warehouse_updates import WarehouseUpdater
from predictor_world import MODELS, measured_grid, world

CLAIM = {
    "model_id": "bert-base",
    "model_family": "bert",
    "hardware": "cuda",
    "backend": "tensorrt",
    "batch_size": 8,
    "latency_mean_ms": 6.2,
    "source_path": "https://example.com/report",
}
RESULT = {
    "model_id": "bert-base",
    "model_family": "bert",
    "hardware": "cuda",
    "backend": "pytorch",
    "device_id": "cuda-9",
    "fingerprint": "f",
    "precision": "float32",
    "batch_size": 1,
    "status": "ok",
    "provenance": "measured",
    "samples_ns": [5_000_000] * 20,
}
VERIFICATION = {
    **{name: RESULT[name] for name in ("model_id", "hardware", "backend", "device_id", "precision", "batch_size")},
    "passed": True,
    "reference": "pytorch cpu float32",
    "tolerance": 0.01,
    "constant_output": False,
}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return world(tmp_path_factory.mktemp("written"), measured_grid(MODELS[:1]))


@pytest.fixture(scope="module")
def client(settings: Settings) -> Iterator[TestClient]:
    # Nobody projects here: that it happens is tested in `test_following.py`, with a real child.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WarehouseUpdater, "request_update", lambda self: None)
        with TestClient(create_app(settings, mark_suspicious=mark_suspicious)) as client:
            yield client


@pytest.fixture
def log(settings: Settings) -> EventLog:
    return EventLog.open(settings)


def _stored(log: EventLog, before: Snapshot) -> list[Event]:
    """Less the event beside them that says who wrote."""
    new = list(log.read(Snapshot(log.snapshot().segments - before.segments)))
    audits = [event.payload for event in new if isinstance(event.payload, WriteAudited)]
    assert {audit.by for audit in audits} == {"loopback"}
    assert sum(audit.events for audit in audits) == len(new) - len(audits)
    return [event for event in new if not isinstance(event.payload, WriteAudited)]


def test_a_claim_is_imported_and_says_where_it_comes_from(client: TestClient, log: EventLog) -> None:
    before = log.snapshot()
    answer = client.post("/results", json=CLAIM | {"occurred_at": "2026-01-02T03:04:05+01:00"})
    assert answer.status_code == 202
    [event] = _stored(log, before)
    assert answer.headers["location"] == f"/results/{event.event_id}"
    assert answer.json()["event_ids"] == [str(event.event_id)]
    assert (event.source, event.occurred_at.isoformat()) == ("api", "2026-01-02T02:04:05+00:00")  # type: ignore[union-attr]
    assert event.payload.provenance == "imported"  # type: ignore[attr-defined]
    assert client.get(answer.headers["location"]).status_code == 202
    assert client.get(f"/events/{event.event_id}").json()["event_id"] == str(event.event_id)


def test_a_million_faults_make_no_long_answer(client: TestClient) -> None:
    unknown = {f"{i:x}": 1 for i in range(300)}
    for path, body, says in (
        ("/results", [unknown] * 100, "it has 30,500 faults: send less at once"),
        ("/results", [unknown] * 2, "; and 510 more."),
        ("/recommend", unknown, "; and 201 more."),
    ):
        answer = client.post(path, json=body)
        assert answer.status_code == 422
        assert says in answer.json()["detail"]
        assert len(answer.json()["errors"]) <= 100
        assert len(answer.content) < 400_000


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"batch_size": 0}, "1.batch_size"),
        ({"colour": "red"}, "1.colour"),
        ({"provenance": "measured"}, "1.provenance"),
        ({"source_path": ""}, "1.source_path"),
        ({"load_ms": False}, "1.load_ms"),
        ({"load_ms": "0"}, "1.load_ms"),
        ({"latency_mean_ms": -1}, "1.latency_mean_ms"),
        ({"hardware": "toaster"}, "1"),
        ({"latency_min_ms": 9.0, "latency_max_ms": 7.0}, "1"),
        ({"status": "failed"}, "1"),
        ({"occurred_at": "2999-01-01T00:00:00Z"}, "1"),
        ({"latency_mean_ms": None}, "1"),
        ({"precision": "zz"}, "1"),
        ({"precision": "fp7"}, "1"),
        ({"model_id": "a\0b"}, "1.model_id"),
        ({"environment": {"n": 10**400}}, "1.environment.n"),
        ({"threads": 2**60}, "1.threads"),
    ],
)
def test_one_bad_row_stores_nothing_and_is_named(
    client: TestClient, log: EventLog, changes: dict[str, Any], field: str
) -> None:
    before = log.snapshot()
    answer = client.post("/results", json=[CLAIM, CLAIM | changes])
    assert answer.status_code == 422
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    assert log.snapshot() == before


@pytest.mark.parametrize(
    ("changes", "rule"),
    [
        ({"throughput_items_per_s": 5}, "throughput_contradiction"),
        ({"latency_mean_ms": 1.0, "latency_p50_ms": 5}, "mean_contradiction"),
        ({"latency_mean_ms": 1e-300}, "impossible_time"),
        ({"latency_mean_ms": None, "load_ms": 3.5}, "success_without_figures"),
        ({"environment": {"mock": True}}, "simulation_label"),
    ],
)
def test_a_stated_result_is_doubted_as_an_imported_one(
    client: TestClient, log: EventLog, changes: dict[str, Any], rule: str
) -> None:
    before = log.snapshot()
    answer = client.post("/results", json=[CLAIM, CLAIM | {"batch_size": 1, "latency_mean_ms": 2.3} | changes])
    assert answer.status_code == 202
    sound, doubted = _stored(log, before)
    assert answer.json()["suspects"] == [str(doubted.event_id)]
    assert sound.payload.provenance == "imported"  # type: ignore[attr-defined]
    assert doubted.payload.provenance in ("suspect", "simulated")  # type: ignore[attr-defined]
    assert [suspicion.rule for suspicion in doubted.payload.suspicions] == [rule]  # type: ignore[attr-defined]


def test_a_stated_result_gets_the_names_of_an_imported_one(client: TestClient, log: EventLog) -> None:
    before = log.snapshot()
    names = {"model_id": "bert-base-uncased", "model_family": "vit", "precision": "FP16"}
    assert client.post("/results", json=[CLAIM | names, CLAIM | {"precision": "q4_k_m"}]).status_code == 202
    renamed, plain = (event.payload for event in _stored(log, before))
    assert isinstance(renamed, ResultRecorded)
    assert isinstance(plain, ResultRecorded)
    assert (renamed.model_id, renamed.model_family, renamed.precision) == ("bert-base", "bert", "float16")
    assert renamed.original == {"model": "bert-base-uncased", "family": "vit", "precision": "FP16"}
    assert (plain.precision, plain.original) == ("q4_k_m", {})


@pytest.mark.parametrize("text", [r'"\ud800"', "NaN", "1e999", "[" * 200 + "]" * 200])
def test_what_no_reader_could_read_back_is_refused(client: TestClient, text: str) -> None:
    body = json.dumps(CLAIM)[:-1] + f', "environment": {{"x": {text}}}}}'
    answer = client.post("/results", content=body, headers={"content-type": "application/json"})
    assert answer.status_code in (400, 422)


def test_a_number_that_is_none_is_named(client: TestClient) -> None:
    """A row of pandas has NaN for what is unknown."""
    rows = json.dumps([CLAIM, CLAIM | {"load_ms": float("nan")}])
    answer = client.post("/results", content=rows, headers={"content-type": "application/json"})
    [error] = answer.json()["errors"]
    assert error == {
        "field": "1.load_ms", "message": "a number is not finite: leave out what is unknown, or send null"
    }  # fmt: skip


def test_a_broken_rule_says_what_it_asks(client: TestClient) -> None:
    answer = client.post("/results", json=CLAIM | {"hardware": "toaster"}).json()
    assert "0: breaks the data rule hardware_known: hardware is one of cpu, cuda, " in answer["detail"]
    future = client.post("/results", json=CLAIM | {"occurred_at": "2999-01-01T00:00:00Z"}).json()
    assert "not_in_the_future: hours_after_recording is at most 24" in future["detail"]


def test_lines_are_a_batch(client: TestClient, log: EventLog) -> None:
    before = log.snapshot()
    lines = "\n".join(json.dumps(CLAIM | {"batch_size": size}) for size in (1, 2, 4)) + "\n"
    headers = {"content-type": "application/x-ndjson"}
    answer = client.post("/results", content=lines, headers=headers)
    assert len(answer.json()["event_ids"]) == 3
    assert len(_stored(log, before)) == 3
    broken = client.post("/results", content=lines + '{"model_id"', headers=headers)
    assert broken.status_code == 422
    assert "line 4, column 12" in broken.json()["detail"]
    for body, place in (('{"a" 1}', "line 1, column 6"), ('{}\n\n{"a" 1}\n{}\n', "line 3, column 6")):
        answer = client.post("/results", content=body, headers=headers)
        assert f"not JSON at {place}: " in answer.json()["detail"]
    assert client.post("/results", content=lines, headers={"content-type": "text/csv"}).status_code == 415


def test_sent_again_under_its_key_it_is_stored_once(client: TestClient, log: EventLog) -> None:
    before = log.snapshot()
    first, again = (client.post("/results", json=[CLAIM], headers={"Idempotency-Key": "once"}) for _ in range(2))
    assert (first.status_code, again.status_code) == (202, 202)
    assert first.json() == again.json()
    assert ("idempotency-replayed" in first.headers, again.headers["idempotency-replayed"]) == (False, "true")
    assert len(_stored(log, before)) == 1
    other = client.post("/results", json=[CLAIM | {"batch_size": 3}], headers={"Idempotency-Key": "once"})
    assert other.status_code == 422
    assert "Idempotency-Key" in other.json()["detail"]
    assert len(_stored(log, before)) == 1


@examples(max_examples=25)
@given(st.lists(st.tuples(st.sampled_from(("a", "b", "c")), st.integers(0, 2)), min_size=1, max_size=12))
def test_a_key_means_one_body_whatever_comes_in_which_order(
    tmp_path_factory: pytest.TempPathFactory, sent: list[tuple[str, int]]
) -> None:
    from accel_platform.errors import InvalidInput
    from factories import result

    home = Settings(home=tmp_path_factory.mktemp("keys"))
    writer = AuditedWriter(by="ci", key_id="7", client=None, method="POST", path="/results", request_id="1")
    log = AuditedLog.for_writer(home, writer)
    owners: dict[str, int] = {}
    for key, body in sent:
        cause = request_id("/results", {"body": body})
        event = Event.of(result(batch_size=body + 1), source="api", causation_id=cause)
        if owners.setdefault(key, body) == body:
            store_once(log, [event], key=key)
        else:
            with pytest.raises(InvalidInput):
                store_once(log, [event], key=key)
    stored = [event.payload for event in log.read() if not isinstance(event.payload, WriteAudited)]
    assert sorted(payload.batch_size - 1 for payload in stored) == sorted(owners.values())  # type: ignore[attr-defined]


def test_a_measurement_brings_its_verification(client: TestClient, log: EventLog) -> None:
    measured = {"type": "ResultRecorded", "run_id": "elsewhere-1", "payload": RESULT}
    verified = {"type": "VerificationRecorded", "run_id": "elsewhere-1", "payload": VERIFICATION}
    alone = client.post("/events", json=[measured])
    assert (alone.status_code, "VerificationRecorded" in alone.json()["detail"]) == (422, True)
    other_run = client.post("/events", json=[measured, verified | {"run_id": "elsewhere-2"}])
    assert other_run.status_code == 422
    bare = client.post("/events", json=[measured | {"payload": RESULT | {"samples_ns": []}}, verified])
    assert "samples_ns" in bare.json()["detail"]
    before = log.snapshot()
    assert client.post("/events", json=[measured, verified]).status_code == 202
    assert [event.type for event in _stored(log, before)] == ["ResultRecorded", "VerificationRecorded"]


@pytest.mark.parametrize(
    "type_", ["PredictorPromoted", "ShiftAccepted", "ShiftRejected", "SourceDeleted", "BenchmarkClosed", "Nonsense"]
)
def test_what_the_platform_decides_nobody_posts(client: TestClient, type_: str) -> None:
    assert client.post("/events", json={"type": type_, "payload": {}}).status_code == 422


def test_a_benchmark_is_asked_for_followed_and_taken_back(client: TestClient) -> None:
    body = {"models": ["bert-base"], "hardware_types": ["cpu", "openvino:gpu"], "priority": 3, "host": "b"}
    first, again = (client.post("/benchmarks", json=body, headers={"Idempotency-Key": "bench"}) for _ in range(2))
    assert first.status_code == again.status_code == 202
    assert first.json() == again.json()
    one, two = first.json()["requests"]
    assert (one["hardware"], two["hardware"], one["state"], one["priority"]) == ("cpu", "openvino:gpu", "open", 3)
    assert one["host"] == two["host"] == "b"
    assert client.get(first.headers["location"]).json() == one
    cancelled = client.post(f"/requests/{one['request_id']}/cancel")
    assert cancelled.json()["state"] == "cancelled"
    assert client.post(f"/requests/{one['request_id']}/cancel").status_code == 409
    listed = client.get("/requests", params={"state": "cancelled"}).json()["requests"]
    assert [request["request_id"] for request in listed] == [one["request_id"]]
    assert client.post("/benchmarks", json={"models": ["no-such"], "hardware_types": ["cpu"]}).status_code == 404
    files = {"models_file": "/etc/passwd", "hardware_types": ["cpu"]}
    assert client.post("/benchmarks", json=files).status_code == 422


@pytest.mark.parametrize(
    ("hardware", "message"),
    [
        ({"hardware_types": ["cpu", "nope"]}, "hardware_types.1: No hardware is called 'nope'. Known: cpu, cuda,"),
        ({"hardware_types": ["hailo"]}, "hardware_types.0: No hardware is called 'hailo'. Known: cpu, cuda,"),
        ({"hardware_types": ["cudda"]}, "hardware_types.0: No hardware is called 'cudda'. Did you mean cuda? See"),
        ({"hardware_types": ["cpu:gpu"]}, "hardware_types.0: No hardware is called 'cpu:gpu'. This runtime takes cpu"),
        ({"hardware": ["cpu"]}, "body: no field is called 'hardware' here: write hardware_types"),
    ],
)
def test_a_hardware_that_there_is_not_is_named(client: TestClient, hardware: dict[str, Any], message: str) -> None:
    answer = client.post("/benchmarks", json={"models": ["bert-tiny"]} | hardware)
    assert answer.status_code == 422
    assert answer.json()["detail"].startswith(message)
    assert "^" not in answer.text


def test_of_accepting_and_rejecting_the_last_word_counts(client: TestClient, settings: Settings, log: EventLog) -> None:
    series = MeasuredSeries(model_id="bert-base", hardware="cpu", device_id="d", fingerprint="f", mode="inference",
                            precision="float32", batch_size=1)  # fmt: skip
    one = next(event.event_id for event in log.read(types={"ResultRecorded"}))
    found = RegressionFound(**series.model_dump(), regression_id="abcdef123456", found_by="check", state="regressed",
                            processes_before=5, processes_after=2, first_result=one, evidence=(one,))  # fmt: skip
    log.append([Event.of(found, source="test")])
    refresh(settings)
    [listed] = client.get("/regressions", params={"state": "open"}).json()["regressions"]
    assert client.get(f"/regressions/{listed['regression_id']}").json()["regression"] == listed
    path = "/regressions/abcdef123456"
    nothing = client.post(f"{path}/reopen", json={"by": "ann", "reason": "x"})
    assert (nothing.status_code, "Nobody decided" in nothing.json()["detail"]) == (409, True)
    for word, state, person in (
        ("accept", "accepted", "ann"),
        ("reject", "rejected", "bob"),
        ("reopen", "reopened", "eve"),
    ):
        for wrong in ({"by": "", "reason": "x"}, {"reason": "nobody says it"}, {"by": "ann", "reason": " "}):
            assert client.post(f"{path}/{word}", json=wrong).status_code == 422
        assert client.post(f"/regressions/abc/{word}", json={"by": "a", "reason": "b"}).status_code == 404
        sent = {"json": {"by": person, "reason": "new compiler"}, "headers": {"Idempotency-Key": word}}
        first, again = (client.post(f"{path}/{word}", **sent) for _ in range(2))
        assert (first.status_code, again.headers["idempotency-replayed"]) == (202, "true")
        assert again.json() == first.json()
        # The tables have not followed yet, so that the log alone knows.
        for headers in ({}, {"Idempotency-Key": f"{word}-too"}):
            again = client.post(f"{path}/{word}", json={"by": "cy", "reason": "me too"}, headers=headers)
            assert (again.status_code, f"{state} already, by {person}" in again.json()["detail"]) == (409, True)
        refresh(settings)
        assert client.post(f"{path}/{word}", json={"by": "cy", "reason": "me too"}).status_code == 409
        told = client.get(path).json()["regression"]
        if word == "reopen":
            assert (told["state"], told["accepted_by"], told["rejected_by"]) == ("open", None, None)
        else:
            assert (told["state"], told[f"{state}_by"]) == (state, person)
        if word == "reject":
            assert (told["accepted_by"], told["rejected_results"]) == (None, [str(one)])
    with ThreadPoolExecutor(4) as pool:
        sent = [
            pool.submit(client.post, f"{path}/accept", json={"by": "dan", "reason": f"click {n}"}) for n in range(4)
        ]
        assert sorted(answer.result().status_code for answer in sent) == [202, 409, 409, 409]
    refresh(settings)
    assert client.get("/regressions", params={"state": "open"}).json()["regressions"] == []
