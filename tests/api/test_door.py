"""What stands before the routes: keys, scopes, Host and Origin, rates, headers, ids, logs and figures."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fastapi import Request
from fastapi.testclient import TestClient

from accel_platform.api_keys import KeyStore, Scope
from accel_platform.events import Event, EventLog
from accel_platform.events.types import HostObserved, WriteAudited
from accel_platform.settings import Settings
from predictor.service.app import create_app
from predictor.service.http.problems import CONTENT_TYPE
from predictor.service.middleware import log_setup
from predictor.service.middleware.auth import QUERY_PATHS, required_scope
from predictor.service.middleware.identity import audited_log_for
from predictor.service.middleware.rate_limit import TokenBuckets
from predictor_world import MODELS, measured_grid, world

LOOPBACK, ANY = "127.0.0.1", "0.0.0.0"
HERE = "http://127.0.0.1:8000"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return world(tmp_path_factory.mktemp("door"), measured_grid(MODELS[:1]))


def _home(path: Path, served: Settings) -> Settings:
    """The same log and tables, and keys of its own."""
    (path / "warehouse").symlink_to(served.warehouse_dir)
    return Settings(home=path, log_uri=served.log_location, rate_per_s=1000)


@pytest.fixture
def home(served: Settings, tmp_path: Path) -> Settings:
    return _home(tmp_path, served)


@pytest.fixture(scope="module")
def here(served: Settings, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A service on loopback without keys, for all tests that change nothing of it."""
    with _asking(_home(tmp_path_factory.mktemp("here"), served)) as client:
        yield client


@contextmanager
def _asking(settings: Settings, host: str | None = LOOPBACK, base: str = HERE) -> Iterator[TestClient]:
    app = create_app(settings, host=host)

    @app.post("/observed")
    def observed(request: Request) -> dict[str, int]:
        payload = HostObserved(hostname="h", os="Linux", cpu_model="c", cpu_cores_logical=1, memory_mib=1)
        events = [Event.of(payload, source="api")]
        return {
            "events": audited_log_for(request, settings)
            .append(events, key=request.headers.get("idempotency-key"))
            .events
        }

    @app.delete("/observed")
    def deleted() -> dict[str, int]:
        return {}

    @app.get("/broken")
    def broken() -> None:
        raise ZeroDivisionError

    # Without its lifespan nothing is warmed up; what stands before the routes needs none of it.
    yield TestClient(app, base_url=base, raise_server_exceptions=False, follow_redirects=False)


def _problem(response: Any, status: int, kind: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == CONTENT_TYPE
    body: dict[str, Any] = response.json()
    assert body["type"] == f"urn:accel:problem:{kind}"
    assert body["request_id"] == response.headers["x-request-id"]
    return body


def _bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def test_on_loopback_without_keys_everybody_here_may_do_everything(home: Settings) -> None:
    with _asking(home) as client:
        assert client.get("/results").status_code == 200
        assert client.post("/observed").status_code == 200


def test_as_soon_as_a_key_was_made_every_request_needs_one(home: Settings) -> None:
    with _asking(home) as client:
        assert client.get("/results").status_code == 200
        _, secret = KeyStore(home).create("people", Scope.read)
        problem = _problem(client.get("/results"), 401, "unauthorized")
        assert "accel keys create" in problem["detail"]
        refused = client.get("/results", headers=_bearer(secret[:-1]))
        _problem(refused, 401, "unauthorized")
        assert refused.headers["www-authenticate"] == 'Bearer realm="accel", error="invalid_token"'
        for headers in (_bearer(secret), {"authorization": f"bearer {secret}"}, {"X-API-Key": secret}):
            assert client.get("/results", headers=headers).status_code == 200
        KeyStore(home).revoke("people")
        assert client.get("/results", headers=_bearer(secret)).status_code == 401
        _problem(client.get("/results"), 401, "unauthorized")


def test_what_probes_ask_needs_no_key(home: Settings) -> None:
    with _asking(home, ANY) as client:
        assert client.get("/health").status_code == 200
        assert client.get("/ready").json()["status"] == "ready"
        for path in ("/metrics", "/results", "/docs", "/openapi.json", "/", "/nowhere", "/static-offline-docs/x.js"):
            assert client.get(path).status_code == 401, path


def test_open_to_others_nobody_comes_in_without_a_key_even_where_none_was_made(home: Settings) -> None:
    with _asking(home, ANY) as client:
        _problem(client.post("/recommend", json={"model": "bert-base"}), 401, "unauthorized")


def test_damaged_keys_let_nobody_in(home: Settings) -> None:
    (home.home / "keys.json").write_text("{}")
    with _asking(home) as client:
        _problem(client.get("/results"), 503, "keys-damaged")


def test_scopes(home: Settings) -> None:
    made = {scope: KeyStore(home).create(scope, scope)[1] for scope in Scope}
    with _asking(home) as client:
        got = {
            scope: [
                client.get("/results", headers=_bearer(key)).status_code,
                client.post("/recommend", json={"model": "bert-base"}, headers=_bearer(key)).status_code,
                client.post("/observed", headers=_bearer(key)).status_code,
                client.delete("/observed", headers=_bearer(key)).status_code,
            ]
            for scope, key in made.items()
        }
        assert got == {
            Scope.read: [200, 200, 403, 403],
            Scope.write: [200, 200, 200, 200],
        }
        refused = client.post("/observed", headers=_bearer(made[Scope.read]))
        assert "--scope write" in _problem(refused, 403, "scope")["detail"]
        assert 'scope="write"' in refused.headers["www-authenticate"]


def test_every_question_by_post_is_a_route_and_everything_else_changes_something(home: Settings) -> None:
    schema = create_app(home).openapi()["paths"]
    posts = {path for path, methods in schema.items() if "post" in methods}
    assert posts >= QUERY_PATHS
    assert {required_scope("POST", path) for path in posts - QUERY_PATHS} <= {Scope.write}
    assert required_scope("GET", "/anything") == Scope.read


def test_a_write_names_who_wrote_in_the_same_segment(home: Settings, tmp_path: Path) -> None:
    settings = home.model_copy(update={"log_uri": str(tmp_path / "log")})
    key, secret = KeyStore(settings).create("ci", Scope.write)
    log = EventLog.open(settings)
    with _asking(settings) as client:
        for _ in range(2):
            answer = client.post("/observed", headers={**_bearer(secret), "idempotency-key": "x-1"})
            assert answer.json() == {"events": 1}
    [segment] = log.snapshot().segments
    assert segment == "x-1"
    wrote, audit = log.read()
    assert isinstance(audit.payload, WriteAudited)
    assert audit.causation_id == wrote.event_id
    assert (audit.payload.by, audit.payload.key_id) == ("ci", key.key_id)
    assert (audit.payload.method, audit.payload.path, audit.payload.events) == ("POST", "/observed", 1)
    assert re.fullmatch("[0-9a-f]{32}", audit.payload.request_id)
    assert secret not in str(audit)


def test_an_idempotency_key_is_its_callers_own(home: Settings, tmp_path: Path) -> None:
    settings = home.model_copy(update={"log_uri": str(tmp_path / "log")})
    first, second = (KeyStore(settings).create(name, Scope.write)[1] for name in ("one", "two"))
    claim = {
        "model_id": "bert-base",
        "model_family": "bert",
        "hardware": "cpu",
        "backend": "x",
        "latency_mean_ms": 6.2,
        "source_path": "r.csv",
    }
    with _asking(settings) as client:

        def post(secret: str, batch_size: int) -> Any:
            headers = {**_bearer(secret), "Idempotency-Key": "report-7"}
            return client.post("/results", json={**claim, "batch_size": batch_size}, headers=headers)

        mine, theirs, again, other = post(first, 1), post(second, 1), post(first, 1), post(second, 2)
    assert (mine.status_code, theirs.status_code) == (202, 202)
    assert "idempotency-replayed" not in theirs.headers
    assert mine.json()["event_ids"] != theirs.json()["event_ids"]
    assert again.json() == mine.json()
    assert again.headers["idempotency-replayed"] == "true"
    assert other.status_code == 422
    written = [event.payload.by for event in EventLog.open(settings).read() if isinstance(event.payload, WriteAudited)]
    assert sorted(written) == ["one", "two"]


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil", "", "[::2]:80", "[", "10.0.0.1"]
)
def test_a_name_that_leads_here_is_not_enough(here: TestClient, host: str) -> None:
    _problem(here.get("/results", headers={"Host": host}), 421, "misdirected")


@pytest.mark.parametrize(
    "host", ["localhost", "localhost:8000", "127.0.0.1", "127.0.0.53:80", "[::1]:8000", "LOCALHOST"]
)
def test_names_of_this_machine(here: TestClient, host: str) -> None:
    assert here.get("/results", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"Origin": HERE}, 200),
        ({"Sec-Fetch-Site": "same-origin"}, 200),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:8001"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
    ],
)
def test_pages_of_other_sites_cannot_write(here: TestClient, headers: dict[str, str], status: int) -> None:
    assert here.post("/observed", headers=headers).status_code == status
    read = here.get("/results", headers=headers)
    assert read.status_code == 200, "reading tells them nothing without CORS"
    assert "access-control-allow-origin" not in read.headers


def test_origins_that_are_named_may_ask_and_no_other(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCEL_CORS_ORIGINS", "https://ours.example, https://also.example")
    assert Settings().cors_origins == ("https://ours.example", "https://also.example")
    with _asking(home.model_copy(update={"cors_origins": ("https://ours.example",)})) as client:
        for origin, allowed in (("https://ours.example", "https://ours.example"), ("https://evil.example", None)):
            answer = client.post("/recommend", json={"model": "bert-base"}, headers={"Origin": origin})
            assert answer.headers.get("access-control-allow-origin") == allowed
            assert answer.status_code == (200 if allowed else 403)
            asked = client.options("/recommend", headers={"Origin": origin, "Access-Control-Request-Method": "POST"})
            assert asked.headers.get("access-control-allow-origin") == allowed
            assert "access-control-allow-credentials" not in asked.headers
        # Every header that a route reads or writes, because a page cannot send or see others.
        paths = client.get("/openapi.json").json()["paths"].values()
        read = {one["name"] for path in paths for about in path.values() for one in about.get("parameters", ())
                if one["in"] == "header"}  # fmt: skip
        ask = {"Origin": "https://ours.example", "Access-Control-Request-Method": "POST"}
        sent = ", ".join(sorted({"authorization", "x-request-id", *read}))
        assert client.options("/progress", headers={**ask, "Access-Control-Request-Headers": sent}).status_code == 200
        rows = client.post("/query", json={"sql": "SELECT 1"}, headers={**ask, "Accept": "text/csv"})
        shown = rows.headers["access-control-expose-headers"].split(", ")
        assert {"X-Truncated", "X-Snapshot-ID"} <= {*shown}
        assert rows.headers["x-truncated"] == "false"


def test_rates_are_per_key_and_say_when_to_come_again(home: Settings) -> None:
    keys = [KeyStore(home).create(name, Scope.read)[1] for name in ("a", "b")]
    with _asking(home.model_copy(update={"rate_per_s": 0.4})) as client:
        assert [client.get("/results", headers=_bearer(keys[0])).status_code for _ in range(3)] == [200, 200, 429]
        refused = client.get("/results", headers=_bearer(keys[0]))
        _problem(refused, 429, "too-many")
        assert 1 <= int(refused.headers["retry-after"]) <= 3
        assert client.get("/results", headers=_bearer(keys[1])).status_code == 200
        guessed = [client.get("/results", headers=_bearer(f"accel_{n}")).status_code for n in range(12)]
        assert guessed[:10] == [401] * 10
        assert guessed[-1] == 429
        assert client.get("/results", headers=_bearer(keys[1])).status_code == 200, "who has a key is not kept out"


def test_buckets_fill_up_again() -> None:
    now = 0.0
    buckets = TokenBuckets(2.0, 3.0, clock=lambda: now)
    assert [buckets.take("a") for _ in range(4)] == [None, None, None, 1]
    assert buckets.take("b") is None
    now = 0.5
    assert [buckets.take("a"), buckets.take("a")] == [None, 1]
    now = 100.0
    assert [buckets.take("a") for _ in range(4)] == [None, None, None, 1]
    for number in range(20_000):
        buckets.take(str(number))
    assert len(buckets._full_at) <= 10_000


def test_a_person_signs_in_by_a_form_and_out_again(home: Settings) -> None:
    _, secret = KeyStore(home).create("me", Scope.write)
    with _asking(home, base="https://accel.example") as client:
        sent = client.get("/results?model=bert-base", headers={"Accept": "text/html,*/*"})
        assert (sent.status_code, sent.headers["location"]) == (303, "/sign-in?next=%2Fresults%3Fmodel%3Dbert-base")
        page = client.get(sent.headers["location"])
        assert 'value="/results?model=bert-base"' in page.text
        assert "<script" not in page.text
        wrong = client.post("/sign-in", data={"key": "accel_no", "next": "/results"})
        assert wrong.status_code == 401
        assert "set-cookie" not in wrong.headers
        guesses = [client.post("/sign-in", data={"key": f"accel_{number}"}) for number in range(10)]
        assert [guess.status_code for guess in guesses] == [401] * 9 + [429]
        assert "Too many wrong keys: wait" in guesses[-1].text
        assert client.get("/results", headers={"X-API-Key": "accel_no"}).status_code == 429, "they count together"
        assert client.post("/sign-in", data={"key": secret}, headers={"Origin": "https://evil"}).status_code == 403
        done = client.post("/sign-in", data={"key": f" {secret} ", "next": "/results"})
        assert (done.status_code, done.headers["location"]) == (303, "/results")
        cookie = done.headers["set-cookie"].lower()
        assert all(part in cookie for part in ("httponly", "samesite=strict", "secure", "path=/"))
        assert client.get("/results").status_code == 200, "the cookie is enough"
        assert client.post("/observed", headers={"Origin": "https://accel.example"}).status_code == 200
        assert client.post("/observed", headers={"Origin": "https://evil.example"}).status_code == 403
        client.post("/sign-out")
        assert client.get("/results").status_code == 401


def test_signing_in_leads_nowhere_else(home: Settings) -> None:
    _, secret = KeyStore(home).create("me", Scope.read)
    elsewhere = ("https://evil.example", "//evil.example", "/\\evil.example", "javascript:alert(1)", "\\\\evil",
                 "/\n/x", "")  # fmt: skip
    with _asking(home) as client:
        for target in elsewhere:
            assert client.post("/sign-in", data={"key": secret, "next": target}).headers["location"] == "/", target
            page = client.get("/sign-in", params={"next": target + '"><script>alert(1)</script>'})
            assert "<script" not in page.text, target


def test_headers_of_every_answer(home: Settings) -> None:
    with _asking(home) as client:
        for path in ("/results", "/nowhere", "/broken", "/sign-in", "/docs"):
            headers = client.get(path).headers
            assert headers["x-content-type-options"] == "nosniff", path
            assert headers.get("x-frame-options") == ("DENY" if path in ("/sign-in", "/docs") else None)
            assert "frame-ancestors 'none'" in headers["content-security-policy"]
            assert "unsafe-eval" not in headers["content-security-policy"]
            scripts = re.search(r"script-src ([^;]*)", headers["content-security-policy"])
            assert scripts is None or "unsafe" not in scripts[1]
            assert "strict-transport-security" not in headers
        assert client.get("/results").headers["content-security-policy"].startswith("default-src 'none'")


def test_the_documentation_runs_under_its_policy(home: Settings) -> None:
    with _asking(home) as client:
        page = client.get("/docs")
    policy = page.headers["content-security-policy"]
    own = re.findall(r"<script(?![^>]*src)[^>]*>(.*?)</script>", page.text, re.DOTALL)
    assert own
    for script in own:
        assert f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in policy


@pytest.mark.parametrize(("sent", "taken"), [("abc-1.2_X", True), ("x" * 65, False), ("a b", False), ("<b>", False)])
def test_request_ids(here: TestClient, sent: str, taken: bool) -> None:
    problem = _problem(here.get("/nowhere", headers={"X-Request-ID": sent}), 404, "not-found")
    assert (problem["request_id"] == sent) is taken
    assert here.get("/results").headers["x-request-id"] != here.get("/results").headers["x-request-id"]


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[io.StringIO]:
    """What is logged as JSON while a test runs."""
    written = io.StringIO()
    root, own = logging.getLogger(), logging.getLogger("accel.requests")
    before = (root.handlers[:], root.level, own.level)
    monkeypatch.setattr("sys.stderr", written)
    log_setup.configure("json")
    yield written
    root.handlers[:], level, own_level = before
    root.setLevel(level)
    own.setLevel(own_level)


def test_a_line_a_request_and_bugs_under_the_same_id(home: Settings, lines: io.StringIO) -> None:
    _, secret = KeyStore(home).create("me", Scope.write)
    with _asking(home) as client:
        client.get("/results?model=bert-base", headers={**_bearer(secret), "X-Request-ID": "first"})
        broken = client.get("/broken", headers={**_bearer(secret), "X-Request-ID": "second"})
        assert "ZeroDivisionError" in _problem(broken, 500, "internal-error")["detail"]
    told = [json.loads(line) for line in lines.getvalue().splitlines()]
    assert secret not in lines.getvalue()
    first = next(line for line in told if line["request_id"] == "first")
    assert (first["message"], first["key"], first["route"]) == ("GET /results 200", "me", "/results")
    assert first["duration_ms"] > 0
    second = [line for line in told if line["request_id"] == "second"]
    assert {line["logger"] for line in second} == {"accel.service", "accel.requests"}
    assert any("ZeroDivisionError" in line.get("error", "") for line in second)


def test_figures_for_prometheus(home: Settings) -> None:
    with _asking(home) as client:
        for path in ("/results", "/results?model=bert-base", "/nowhere", "/also-nowhere"):
            client.get(path)
        text = client.get("/metrics").text
    counted = dict(re.findall(r"^(accel_[^ ]+) ([0-9.e+-]+)$", text, re.MULTILINE))
    assert float(counted['accel_requests_total{method="GET",route="/results",status="200"}']) >= 2
    assert float(counted['accel_requests_total{method="GET",route="none",status="404"}']) >= 2
    assert "also-nowhere" not in text, "labels are of our making"
    assert float(counted["accel_results"]) == 6
    assert float(counted["accel_snapshot_age_seconds"]) >= 0
    assert float(counted["accel_requests_in_flight"]) == 1
    assert float(counted["accel_advisor_swaps_total"]) >= 0
    assert 'accel_request_duration_seconds_bucket{le="0.005",method="GET",route="/results"}' in text
