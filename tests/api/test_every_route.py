"""Every GET route of the service: the headers of its 200, 304, HEAD and errors, and every filter it takes.

Routes and filters are enumerated from the app. A new one that needs an address or a value fails here until it has one.
"""

from __future__ import annotations

import re
from itertools import combinations
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.routing import iter_route_contexts
from fastapi.testclient import TestClient
from httpx import Response
from pages_world import BEFORE, pages_world
from processes import THOROUGH

from accel_platform.reports.charts.registry import CHARTS
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.reader import Reader
from predictor.service.app import create_app
from predictor.service.http.query_strings import QueryString
from predictor.service.middleware.security_headers import DENY_ALL, SANDBOX, page_policy
from predictor_world import MODELS, measured_grid

PAGE, API = page_policy(), DENY_ALL.decode()
OWN = {"x-request-id"}
"""Headers of one answer alone."""
LEFT_OUT = {"content-type", "content-length"}
"""What a 304 does not repeat."""
LEFT_OUT_OF_FILES = LEFT_OUT | {"last-modified", "accept-ranges", "content-security-policy"}
"""The framework answers for files, and a 304 of theirs says only what validates the copy: the copy keeps the rest."""
COUNTS = {"/metrics", "/health", "/ready"}
"""Answers that differ from one moment to the next, so that their lengths do."""
UNVALIDATED = {
    "/changes", "/charts", "/docs", "/docs/oauth2-redirect", "/health", "/metrics", "/openapi.json", "/progress",
    "/ready", "/requests", "/requests/{id}", "/sign-in", "/catalogue", "/snapshots",
    "/dashboard/results/{result_id}/samples.csv", "/",
}  # fmt: skip
"""Of these no ETag is given: they follow from the log, the release or the moment instead of the tables."""

FILES = {"/openapi.json", "/static-offline-docs", "/dashboard/static"}
"""Served as they are, also by addresses that only name a version."""


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    settings = pages_world(tmp_path_factory.mktemp("routes"), measured_grid(MODELS[:2], ("cpu", "openvino")))
    asked = TestClient(create_app(settings)).post("/benchmarks", json={"hardware_types": ["cpu"]})
    assert asked.status_code == 202, asked.text
    refresh(settings)
    return settings


@pytest.fixture(scope="module")
def app(settings: Settings) -> FastAPI:
    return create_app(settings)


@pytest.fixture(scope="module")
def client(app: FastAPI) -> TestClient:
    # Without its lifespan no table is made anew meanwhile.
    return TestClient(app, raise_server_exceptions=False)


@pytest.fixture(scope="module")
def addresses(app: FastAPI, settings: Settings) -> dict[str, str]:
    """An address that answers with 200, for every route that takes GET."""
    reader = Reader(settings)
    [result] = reader.rows("SELECT result_id, run_id FROM results WHERE provenance = 'measured' LIMIT 1")
    [shift] = reader.rows("SELECT regression_id FROM regressions")
    [asked] = reader.rows("SELECT event_id FROM events WHERE type = 'BenchmarkRequested'")
    written = {
        "result_id": result["result_id"], "event_id": result["result_id"], "run_id": result["run_id"],
        "regression_id": shift["regression_id"], "id": asked["event_id"], "request_id": asked["event_id"],
        "model_id:name": "bert-base",
        "model:name": "bert-base", "run_id:name": result["run_id"], "form": "csv",
    }  # fmt: skip
    named = {
        "/static-offline-docs": "/static-offline-docs/swagger-ui.css",
        "/dashboard/static": "/dashboard/static/dash.css",
        "/hardware/{name}": "/hardware/cpu",
        "/charts/{name}.{kind}": "/charts/latency.html",
        "/dashboard/charts/{name}.{kind}": "/dashboard/charts/latency.svg",
        "/dashboard/models/{name:name}": "/dashboard/models/bert-base",
        "/dashboard/hardware/{name}": "/dashboard/hardware/cpu",
        "/dashboard/knowledge/{name}": "/dashboard/knowledge/timm",
        "/dashboard/matrix/cell": "/dashboard/matrix/cell?model=bert-base&hardware=cpu",
        "/dashboard/matrix/history": "/dashboard/matrix/history?model=bert-base&hardware=cpu",
        "/matrix/history": "/matrix/history?model=bert-base",
        "/compare": "/compare?model=bert-base",
        "/changes": f"/changes?model=bert-base&before={BEFORE}",
        "/trend": "/trend?model=bert-base",
        "/progress": "/progress?for_s=0",
    }
    found = {}
    for route in iter_route_contexts(app.routes):
        assert route.path is not None
        if route.methods is None or "GET" in route.methods:
            found[route.path] = named.get(route.path) or re.sub(r"{([^}]*)}", lambda m: str(written[m[1]]), route.path)
    assert len(found) > 60
    return found


def _headers(response: Response, *left_out: str) -> dict[str, str]:
    return {name: value for name, value in response.headers.items() if name not in OWN and name not in left_out}


@pytest.mark.slow
def test_a_304_and_head_have_the_headers_of_the_200(client: TestClient, addresses: dict[str, str]) -> None:
    unvalidated = set()
    for path, address in addresses.items():
        first = client.get(address)
        assert first.status_code == 200, (address, first.text[:500])
        counts = ("content-length",) if path in COUNTS else ()
        head = client.head(address)
        assert (head.status_code, head.content) == (200, b""), address
        assert _headers(head, *counts) == _headers(first, *counts), address
        if "etag" not in first.headers:
            unvalidated.add(path)
            continue
        left_out = LEFT_OUT_OF_FILES if path.endswith(("/static", "/static-offline-docs")) else LEFT_OUT
        for method in ("GET", "HEAD"):
            again = client.request(method, address, headers={"if-none-match": first.headers["etag"]})
            assert (again.status_code, again.content) == (304, b""), address
            assert _headers(again) == _headers(first, *left_out), address
    assert unvalidated == UNVALIDATED


@pytest.mark.slow
def test_a_page_has_the_policy_of_pages_and_all_else_that_of_the_api(
    client: TestClient, addresses: dict[str, str]
) -> None:
    pages = set()
    for path, address in addresses.items():
        for more, method in (("", "GET"), ("?nonsense=1", "GET"), ("/no/such-thing", "GET"), ("", "DELETE")):
            asked = f"{address}{'&nonsense=1' if more.startswith('?') and '?' in address else more}"
            answer = client.request(method, asked)
            assert answer.status_code in (200, 401, 404, 405, 422), (method, asked)
            if method == "DELETE":
                assert answer.status_code == 405, asked
                assert {"GET", "HEAD"} <= {*answer.headers["allow"].split(", ")}, asked
            told = answer.headers["content-security-policy"]
            page = answer.headers["content-type"].startswith("text/html")
            if answer.status_code != 200:
                assert page == (asked.startswith("/dashboard")), asked
                assert told == (PAGE if page else API), asked
                assert "etag" not in answer.headers, asked
                head = client.head(asked) if method == "GET" else None
                assert head is None or _headers(head) == _headers(answer), asked
            elif path.startswith("/docs"):
                assert re.search(r"script-src 'self'( 'sha256-[^']+')+;", told), asked
            else:
                assert told == (SANDBOX if "/charts/" in asked and page else PAGE if page else API), asked
            assert ("x-frame-options" in answer.headers) == page, asked
            if page:
                pages.add(path)
    assert {path for path in addresses if path.startswith(("/dashboard", "/docs", "/sign-in"))} <= pages


def test_no_route_takes_a_parameter_that_it_does_not_know(client: TestClient, addresses: dict[str, str]) -> None:
    taken = set()
    for path, address in addresses.items():
        answer = client.get(f"{address}{'&' if '?' in address else '?'}hardwear=cpu")
        if answer.status_code == 200:
            taken.add(path)
            continue
        assert (answer.status_code, "hardwear" in answer.text) == (422, True), (address, answer.text)
    assert taken == FILES
    answer = client.get("/catalogue?hardwear=cpu&cursor=1")
    assert answer.json()["errors"] == [
        {"field": "hardwear", "message": "unknown; none is known here"},
        {"field": "cursor", "message": "unknown; none is known here"},
    ]
    assert "unknown; did you mean for_s?" in client.get("/progress?for=1").json()["detail"]
    assert client.post("/recommend?model=x", json={"model": "bert-base"}).status_code == 422


def test_what_is_no_answer_is_not_kept(client: TestClient) -> None:
    for path, status in (("/compare?model=bert-bsae", 404), ("/recommend?model=bert-base&max_watts=-1", 422)):
        answer = client.get(f"/dashboard{path}")
        assert (answer.status_code, answer.headers["cache-control"]) == (status, "no-store")
        assert "etag" not in answer.headers


VALUES: dict[str, tuple[str, str]] = {
    "model": ("bert-base", "gpt2"),
    "hardware": ("cpu", "qnn"),
    "device": ("cpu-test", "cuda-0"),
    "backend": ("pytorch", "jax"),
    "mode": ("inference", "training"),
    "precision": ("float32", "int8"),
    "batch_size": ("1", "77"),
    "sequence_length": ("128", "77"),
    "provenance": ("measured", "simulated"),
    "status": ("ok", "timeout"),
    "since": ("2020-01-01", "2100-01-01"),
    "until": ("2100-01-01", "2000-01-01"),
    "state": ("open", "gone"),
    "direction": ("regressed", "improved"),
    "family": ("bert", "nobody"),
    "modality": ("text", "audio"),
    "host_id": ("host-1", "host-2"),
    "available": ("true", "false"),
    "kind": ("benchmark", "training"),
    "commit": ("c", "none"),
    "type": ("ResultRecorded", "ImportFinished"),
    "source": ("test", "nobody"),
    "host": ("host-1", "none"),
    "run": ("run-1", "none"),
    "run_id": ("run-1", "none"),
    "category": ("text", "none"),
    "model_type": ("bert", "none"),
    "quarantine": ("unreadable", "none"),
    "rule": ("round_time", "none"),
    "verdict": ("slower", "faster"),
    "q": ("bert", "nobody"),
}
"""Of each filter a value that selects something, and one that is known or well-formed and selects nothing."""
NO_FILTERS = {
    "limit", "cursor", "by", "metric", "min_change_percent", "before", "after", "theme", "for_s", "last-event-id",
    "sort", "page", "where", "objective", "max_latency_ms", "max_memory_mib", "max_usd_per_hour", "max_watts",
    "quantization", "input_tokens", "output_tokens", "users", "requests_per_s", "engine", "max_devices",
    "max_first_token_ms", "max_output_token_ms", "max_end_to_end_ms", "input_tokens_p99", "output_tokens_p99",
    "kv_cache", "engine_version", "prefix_cached_share", "percentile", "disaggregated",
}  # fmt: skip
"""What these say is what is asked and how it is answered."""
DATABASE = re.compile(r"(Binder|Catalog|Parser|Conversion|Invalid Input|Out of Range|Internal) Error")


def _filters(app: FastAPI) -> dict[str, dict[str, list[str]]]:
    """Per route of the API and of the dashboard its filters, and the values they take where they are few."""
    found: dict[str, dict[str, list[str]]] = {}
    for path, operations in app.openapi()["paths"].items():
        named = [one for one in operations.get("get", {}).get("parameters", ()) if one["in"] == "query"]
        found[path] = {one["name"]: _few(one["schema"]) for one in named}
    for route in iter_route_contexts(app.routes):
        if route.path and route.path.startswith("/dashboard") and "GET" in (route.methods or ()):
            for dependency in route.dependant.dependencies:
                if isinstance(dependency.call, QueryString):
                    fields = dependency.call.kind.model_json_schema()["properties"]
                    found[route.path] = {name: _few(schema) for name, schema in fields.items()}
    return {path: filters for path, filters in found.items() if filters}


def _few(schema: dict[str, Any]) -> list[str]:
    choices = [schema, *schema.get("anyOf", ())]
    return [str(value) for one in choices for value in one.get("enum", ())]


@pytest.mark.parametrize("pages", [False, True], ids=["api", "dashboard"])
@pytest.mark.parametrize("pairs", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["each", "pairs"])
def test_every_route_takes_every_filter(
    client: TestClient, app: FastAPI, addresses: dict[str, str], *, pages: bool, pairs: bool
) -> None:
    filters = _filters(app)
    assert {"/results", "/trend", "/dashboard/results", "/dashboard/models", "/dashboard/charts/{name}.{kind}"} <= {
        *filters
    }
    unknown = {name for named in filters.values() for name in named} - {*VALUES} - NO_FILTERS
    assert not unknown, f"these need values here, or are no filters: {unknown}"
    wrong, charts, turn = [], list(CHARTS), 0
    for path, named in filters.items():
        if path.startswith("/dashboard") != pages:
            continue
        given = {name: few[:2] or list(VALUES[name]) for name, few in named.items() if name in VALUES}
        asked = (
            [*combinations(given, 2)][:: 1 if THOROUGH else 3] if pairs else [*((key,) for key in given), tuple(given)]
        )
        for keys in asked:
            turn += 1
            # The first values, the last, and of two one of each, by turns.
            chosen = {key: given[key][(turn + turn // 2 * place) % len(given[key])] for place, key in enumerate(keys)}
            address = addresses[path].replace("latency.html", f"{charts[turn % len(charts)]}.json")
            address = address.replace("latency.svg", f"{charts[turn % len(charts)]}.svg")
            bare, _, query = address.partition("?")
            kept = [pair for pair in query.split("&") if pair and pair.partition("=")[0] not in chosen]
            answer = client.get(f"{bare}?{'&'.join([*kept, *(f'{key}={value}' for key, value in chosen.items())])}")
            if answer.status_code not in (200, 404, 422) or DATABASE.search(answer.text):
                wrong.append((str(answer.url), answer.status_code, answer.text[:300]))
    assert wrong == []


@pytest.mark.parametrize("path", ["/models", "/runs", "/results", "/dashboard/models", "/dashboard/runs"])
def test_a_slash_at_the_end_of_a_list_leads_to_the_list(client: TestClient, path: str) -> None:
    answer = client.get(f"{path}/", follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (307, f"http://testserver{path}")
