"""The Python client against the service's OpenAPI document and against the service itself."""

from __future__ import annotations

import inspect
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import uvicorn
from fastapi import FastAPI

from accel_platform.client import Client, NotYet, RequestRefused, Unreachable
from accel_platform.errors import InvalidInput
from accel_platform.settings import Settings
from predictor import predict, recommend
from predictor.service.app import create_app
from predictor.service.background.warehouse_updates import WarehouseUpdater
from predictor.service.server import listen
from predictor_world import MODELS, measured_grid, world

CLAIM = {"model_id": "bert-base", "model_family": "bert", "hardware": "cuda", "backend": "tensorrt", "batch_size": 8,
         "latency_mean_ms": 6.2, "source_path": "paper"}  # fmt: skip
WITHOUT_METHOD = {
    "GET /performance",  # old names of what the client has
    "GET /performance/comparison/{model}",
    "GET /compatibility",
    "GET /ready",  # for probes and Prometheus
    "GET /metrics",
}


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return world(tmp_path_factory.mktemp("client"), measured_grid(MODELS[:3]))


@pytest.fixture(scope="module")
def app(settings: Settings) -> Iterator[FastAPI]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WarehouseUpdater, "request_update", lambda self: None)
        yield create_app(settings)


@pytest.fixture(scope="module")
def client(app: FastAPI) -> Iterator[Client]:
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="warning"))
    with listen("127.0.0.1", 0) as listening:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        with Client(f"http://127.0.0.1:{listening.getsockname()[1]}", timeout_s=30) as client:
            yield client
        server.should_exit = True
        thread.join()


def _operations(app: FastAPI) -> dict[str, str]:
    """Return the operationId of each operation."""
    return {
        f"{method.upper()} {path}": operation["operationId"]
        for path, item in app.openapi()["paths"].items()
        for method, operation in item.items()
    }


def test_every_operation_has_a_method_and_every_method_an_operation(app: FastAPI) -> None:
    documented = {
        operation: name
        for name, method in inspect.getmembers(Client, inspect.isfunction)
        if not name.startswith("_")
        for operation in re.findall(r"`((?:GET|POST) /\S*)`", inspect.getdoc(method) or "")
    }
    # A generated client then has the same names.
    assert documented == {one: name for one, name in _operations(app).items() if one not in WITHOUT_METHOD}
    public = {name for name, _ in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")}
    assert public - set(documented.values()) == {"close"}


def test_each_method_reaches_its_operation(client: Client, tmp_path: Path) -> None:
    results = list(client.results(limit=7, status="ok"))
    assert len(results) == 18
    assert client.result(results[0]["result_id"])["result"] == results[0]
    assert client.event(results[0]["event_id"])["event"]["type"] == "ResultRecorded"
    assert [model["model_id"] for model in client.models(limit=1)] == ["bert-base", "t5-small", "vit-base"]
    assert client.model("google-bert/bert-base-uncased")["model"]["model_id"] == "bert-base"
    assert len(list(client.matrix(model="vit-base", limit=2))) == 3
    assert [change["before"] for change in client.matrix_history(model="vit-base")] == ["untested"] * 3
    assert len(list(client.events(type="ResultRecorded", limit=10))) == 18
    assert client.run("run-1")["run"] == next(client.runs())
    assert {h["hardware"] for h in client.hardware() if h["available"]} == {"cpu", "onnxruntime", "openvino"}
    assert client.one_hardware("cpu")["hardware"]["results"] == 6
    assert len(list(client.devices(available=True))) == 3
    assert client.snapshots()["tables"] == client.health()["snapshot_id"]
    assert client.compare(model=["bert-base", "t5-small"], by="model_id", hardware="cpu")["rows"]
    assert client.trend(model="bert-base")["series"] == 6
    assert client.changes(model="bert-base", before="2999-01-01")["rows"] == []
    assert client.recommend(model="bert-base", batch_size=1)["recommendations"]
    assert client.predict(model="bert-base", hardware="cpu", batch_size=1)["provenance"] == "measured"
    assert len(client.predict_many([{"model": "bert-base", "hardware": "cpu"}])["answers"]) == 1
    assert client.query("SELECT count(*) FROM results WHERE status = $1", ["ok"])["rows"] == [[18]]
    assert (list(client.regressions()), list(client.coverage()), len(client.catalogue()) > 50) == ([], [], True)
    size = client.export(str(tmp_path / "all.ndjson"), "ndjson")
    assert size == len((tmp_path / "all.ndjson").read_bytes())
    assert len((tmp_path / "all.ndjson").read_text().splitlines()) == 18
    assert [told.kind for told in client.progress(for_s=1)] == ["snapshot"]


def test_an_export_into_a_missing_folder_asks_for_nothing(client: Client, tmp_path: Path) -> None:
    for path, says in ((tmp_path / "none" / "all.csv", "none does not exist"), (tmp_path, "is a directory: name the")):
        with pytest.raises(InvalidInput, match=says):
            client.export(path, "csv")
    assert list(tmp_path.parent.glob("**/.*.part")) == []


def test_numbers_of_numpy_are_numbers(client: Client, settings: Settings) -> None:
    """A row of a table of pandas holds them, and text in their place is refused."""
    asked = {"batch_size": np.int64(1), "sequence_length": np.int32(128)}
    answer = client.predict("bert-base", "cpu", **asked)
    assert (answer["batch_size"], answer["provenance"]) == (1, "measured")
    assert predict("bert-base", "cpu", home=settings.home, **asked).batch_size == 1
    assert client.query("SELECT $1", [np.float32(0.5)])["rows"] == [[0.5]]
    limits = {"constraints": {"max_latency_ms": np.int64(10_000), "max_watts": None}}
    assert client.recommend("bert-base", **limits)["recommendations_total"] > 0
    assert recommend("bert-base", home=settings.home, **limits).recommendations_total > 0
    assert list(client.results(batch_size=np.array([1]))) == list(client.results(batch_size=1))
    places = np.array(["cpu", "openvino"])
    assert client.recommend("bert-base", hardware=places) == client.recommend("bert-base", hardware=["cpu", "openvino"])


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "http://[::1", "http://host:port"])
def test_what_is_no_address_is_refused(url: str) -> None:
    with pytest.raises(InvalidInput, match="is no address of a service"):
        Client(url)


@pytest.mark.parametrize("key", ["accel_nö", "accel_x\n"])
def test_what_is_no_key_is_refused(key: str) -> None:
    with pytest.raises(InvalidInput, match="accel keys create"):
        Client(key=key)


def test_an_answer_without_json_is_none_of_the_service() -> None:
    """As a proxy's page of an error, or the start page of another program."""
    for status, error in ((200, Unreachable), (404, RequestRefused)):
        page = httpx.Response(status, html="<html>hello")
        transport = httpx.MockTransport(lambda _, page=page: page)
        says = pytest.raises(error, match="other/health answered text/html in place of JSON")
        with Client("http://other", transport=transport) as client, says:
            client.health()


def test_a_stated_wait_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    answers = [httpx.Response(429, headers={"Retry-After": "6"}, json={}), httpx.Response(200, json={})]
    with Client(transport=httpx.MockTransport(lambda _: answers.pop(0))) as client:
        assert client.health() == {}
    assert slept == [6]
    hour = httpx.Response(503, headers={"Retry-After": "3600"}, json={})
    with Client(transport=httpx.MockTransport(lambda _: hour)) as client, pytest.raises(RequestRefused):
        client.health()
    assert slept == [6], "an hour is not slept away"


def test_rows_begin_at_a_cursor(client: Client) -> None:
    everything = list(client.results())
    page = client._json("GET", "/results", params={"limit": 2})
    assert list(client.results(cursor=page["next_cursor"], limit=3)) == everything[2:]
    assert len(everything) > 5
    with pytest.raises(RequestRefused, match="begin again without a cursor"):
        list(client.results(cursor="x"))


def test_writes_of_the_client(client: Client) -> None:
    first, again = (client.add_results([CLAIM], key="mine") for _ in range(2))
    assert first == again
    [request] = client.ask_for_benchmark(models=["bert-base"], hardware_types=["cpu"])
    assert client.request(request["request_id"]) == request
    assert client.cancel(request["request_id"])["state"] == "cancelled"
    assert [r["state"] for r in client.requests()] == ["cancelled"]
    for word in (client.accept, client.reject, client.reopen):
        with pytest.raises(RequestRefused) as refused:
            word("nothing", by="me", reason="why")
        assert refused.value.status == 404
    with pytest.raises(RequestRefused) as wrong:
        client.add_events([{"type": "RunStarted", "run_id": "r", "payload": {}}])
    assert wrong.value.problem["errors"][0]["field"] == "0.payload.kind"
    with pytest.raises(RequestRefused):
        client.regression("nothing")


def test_what_fails_for_a_moment_is_tried_again_under_one_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    keys: list[str] = []
    busy, done = httpx.Response(503, json={"detail": "busy"}), httpx.Response(201, json={})
    answers: list[Any] = [httpx.ReadError("cut"), busy, done]

    def answer(request: httpx.Request) -> httpx.Response:
        keys.append(request.headers["idempotency-key"])
        given = answers.pop(0)
        if isinstance(given, Exception):
            raise given
        return given

    with Client(transport=httpx.MockTransport(answer)) as client:
        assert client.add_results([CLAIM]) == {}
    assert len(keys) == 3
    assert len(set(keys)) == 1


def test_what_is_stored_and_not_in_the_tables_yet_is_no_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("accel_platform.client.time.sleep", lambda _: None)
    answers = httpx.MockTransport(lambda _: httpx.Response(202, json={"event_id": "7", "readable": "soon"}))
    with Client("http://nowhere", transport=answers) as client, pytest.raises(NotYet, match="/results/7 is stored"):
        client.result("7")


def test_what_never_answers_is_said_to_be_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)

    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("nobody there", request=request)

    with Client(transport=httpx.MockTransport(refuse)) as client:
        for ask in (client.health, lambda: client.chart("latency")):
            with pytest.raises(Unreachable, match="nobody there"):
                ask()
