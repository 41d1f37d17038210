"""POST /query: SQL over HTTP. What SQL may do is tested in `test_sandbox.py`."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pytest
from fastapi.testclient import TestClient

from accel_platform.errors import AccelError
from accel_platform.settings import Settings
from predictor.service.api.query import ARROW
from predictor.service.app import create_app
from predictor_world import MODELS, measured_grid, world


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return world(tmp_path_factory.mktemp("queried"), measured_grid(MODELS[:1]))


@pytest.fixture(scope="module")
def client(served: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(served), raise_server_exceptions=False) as client:
        yield client


@pytest.mark.slow
def test_rows_in_json(client: TestClient) -> None:
    sql = "SELECT hardware, count(*) AS n FROM results WHERE batch_size >= $least GROUP BY ALL ORDER BY ALL"
    answer = client.post("/query", json={"sql": sql, "parameters": {"least": 1}, "max_rows": 2}).json()
    assert answer["columns"] == [{"name": "hardware", "type": "string"}, {"name": "n", "type": "int64"}]
    assert answer["rows"] == [["cpu", 2], ["onnxruntime", 2]]
    assert answer["truncated"] is True
    assert answer["snapshot_id"] == client.get("/health").json()["snapshot_id"]
    assert answer["elapsed_ms"] > 0


def test_every_type_is_json(client: TestClient) -> None:
    sql = (
        "SELECT 'nan'::DOUBLE AS a, 'infinity'::DOUBLE AS b, NULL AS c, 1.10::DECIMAL(5, 2) AS d, "
        "DATE '2026-11-20' AS e, "
        "TIMESTAMP '2026-11-20 12:00:00' AS f, TIMESTAMPTZ '2026-11-20 12:00:00+02' AS g, INTERVAL 1 DAY AS h, "
        "'\\xff'::BLOB AS i, [1.5, NULL] AS j, {'k': 'nan'::FLOAT} AS k, MAP {'x': 1} AS l, "
        "170141183460469231731687303715884105727 AS m, TIME '01:02:03' AS n, true AS o, "
        "'0198f0c2-0000-7000-8000-000000000000'::UUID AS p, 1 AS q, 2 AS q"
    )
    response = client.post("/query", json={"sql": sql})
    assert response.status_code == 200, response.text
    [row] = response.json()["rows"]
    assert row[:6] == [None, None, None, 1.1, "2026-11-20", "2026-11-20T12:00:00"]
    assert row[6] == "2026-11-20T10:00:00+00:00"
    assert row[8:11] == ["ff", [1.5, None], {"k": None}]
    assert row[-2:] == [1, 2]


def test_rows_as_csv_have_no_formulas(client: TestClient) -> None:
    sql = "SELECT '=1+1' AS text, -2 AS number, [1, 2] AS list, NULL AS nothing UNION ALL SELECT 'b', 3, NULL, NULL"
    response = client.post("/query", json={"sql": sql, "max_rows": 1}, headers={"Accept": "text/csv"})
    assert response.headers["content-type"] == "text/csv; charset=utf-8"
    assert response.headers["x-truncated"] == "true"
    assert response.text.splitlines() == ['"text","number","list","nothing"', '"\'=1+1",-2,"[1, 2]",']


def test_rows_as_an_arrow_stream(client: TestClient) -> None:
    response = client.post(
        "/query", json={"sql": "SELECT range AS i FROM range(10)", "max_rows": 3}, headers={"Accept": ARROW}
    )
    assert response.headers["content-type"] == ARROW
    assert response.headers["x-truncated"] == "true"
    assert len(response.headers["x-snapshot-id"]) == 32
    assert pa.ipc.open_stream(response.content).read_all().to_pylist() == [{"i": 0}, {"i": 1}, {"i": 2}]


@pytest.mark.parametrize(
    ("accept", "sent"),
    [
        ("*/*", "application/json"),
        (f"application/json, {ARROW}, text/csv, application/problem+json", "application/json"),
        ("text/csv;q=0.5, application/json", "application/json"),
        (f"text/csv, {ARROW}; q=0.9", "text/csv; charset=utf-8"),
        ("text/html", "application/json"),
    ],
)
def test_the_preferred_type_is_sent(client: TestClient, accept: str, sent: str) -> None:
    """A client that is made from the OpenAPI document names all types, JSON first, and got Arrow."""
    response = client.post("/query", json={"sql": "SELECT 1 AS one"}, headers={"Accept": accept})
    assert response.headers["content-type"] == sent


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({}, "sql"),
        ({"sql": ""}, "sql"),
        ({"sql": "SELECT 1", "max_rows": 0}, "max_rows"),
        ({"sql": "SELECT 1", "max_rows": 100_001}, "max_rows"),
        ({"sql": "SELECT 1", "parameters": [[1]]}, "parameters"),
        ({"sql": "SELECT 1", "limit": 1}, "limit"),
        ({"sql": "SELECT 1 AS a, b"}, "b"),
        ({"sql": "SELECT ?", "parameters": []}, "parameter"),
        ({"sql": "DROP VIEW results"}, "one SELECT"),
        ({"sql": "SELECT * FROM read_text('/etc/passwd')"}, "read_text"),
        ({"sql": "SELECT 1, [DATE '10000-01-01'] AS late"}, "'late' does not fit into JSON"),
        ({"sql": "SELECT '\u0000'"}, ""),
        ({"sql": "SELECT '\ud800'"}, ""),
        ({"sql": "SELECT ?", "parameters": [10**400]}, ""),
    ],
)
def test_what_cannot_run_is_422_in_words(client: TestClient, body: dict[str, Any], says: str) -> None:
    import json

    response = client.post("/query", content=json.dumps(body), headers={"content-type": "application/json"})
    assert response.status_code in (200, 422), response.text
    if says:
        assert response.status_code == 422
        assert says in response.json()["detail"]


def test_a_long_error_is_cut(client: TestClient) -> None:
    response = client.post("/query", json={"sql": "SELECT error(repeat('x', 1000000))"})
    assert response.status_code == 422
    assert len(response.content) < 3000


def test_an_empty_warehouse_is_503(tmp_path: Any) -> None:
    with TestClient(create_app(Settings(home=tmp_path))) as empty:
        response = empty.post("/query", json={"sql": "SELECT 1"})
    assert response.status_code == 503
    assert "accel bench run" in response.json()["detail"]


def test_whoever_hangs_up_ends_the_query(served: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = threading.Event()

    def stay(*_: Any, cancelled: threading.Event, **__: Any) -> None:
        assert cancelled.wait(20)
        ended.set()
        raise AccelError("gone")

    monkeypatch.setattr("accel_platform.warehouse.sandbox.Sandbox.query", stay)
    app = create_app(served)
    body = b'{"sql": "SELECT 1"}'
    messages = [{"type": "http.request", "body": body, "more_body": False}, {"type": "http.disconnect"}]

    async def receive() -> Any:
        return messages.pop(0)

    async def send(_: Any) -> None:
        return

    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "path": "/query",
        "raw_path": b"/query", "query_string": b"", "root_path": "", "scheme": "http", "headers": headers,
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip
    started = time.monotonic()
    asyncio.run(app(scope, receive, send))  # type: ignore[arg-type]
    assert ended.is_set()
    assert time.monotonic() - started < 15
