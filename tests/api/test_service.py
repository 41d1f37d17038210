"""The service's routes and error documents, in process. A really started one is in `test_service_process.py`."""

from __future__ import annotations

import gc
import gzip
import html
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from accel_platform import pipeline_progress
from accel_platform.events import EventLog
from accel_platform.knowledge import packs
from accel_platform.settings import Settings
from faults import no_room
from predictor.service.app import COLLECT_AFTER, create_app
from predictor.service.http.problems import CONTENT_TYPE, MAX_BODY_BYTES
from predictor.training.train import train
from predictor_world import MODELS, append, measured_grid, result, world

_JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """An installation with tables and a predictor."""
    settings = world(tmp_path_factory.mktemp("served"))
    train(settings, EventLog.open(settings))
    return settings


@pytest.fixture(scope="module")
def client(served: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(served), raise_server_exceptions=False) as client:
        yield client


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[TestClient]:
    with TestClient(create_app(Settings(home=tmp_path)), raise_server_exceptions=False) as client:
        yield client


def _problem(response: Any, status: int, kind: str) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == CONTENT_TYPE
    body: dict[str, Any] = response.json()
    assert body["type"] == f"urn:accel:problem:{kind}"
    assert body["status"] == status
    assert body["title"]
    assert body["detail"]
    assert body["instance"].startswith("/")
    return body


def test_only_while_it_serves_the_collector_looks_often_and_briefly(tmp_path: Path) -> None:
    before = gc.get_threshold()
    with TestClient(create_app(Settings(home=tmp_path))):
        deadline = time.monotonic() + 20
        while gc.get_threshold() != COLLECT_AFTER:
            assert time.monotonic() < deadline
            time.sleep(0.02)
    assert gc.get_threshold() == before


def test_serving_is_a_mode_of_recommend(client: TestClient, empty: TestClient) -> None:
    body = {"mode": "serving", "model": "llama-3.1-8b", "users": 8, "hardware": ["L4", "H100"]}
    for service in (client, empty):
        answer = service.post("/recommend", json=body).json()
        assert {option["device"] for option in answer["options"]} == {"NVIDIA L4", "NVIDIA H100 SXM5 80GB"}
        assert answer["options"][0]["memory"]["max_users"] > 8
    problem = _problem(client.post("/recommend", json={**body, "requests_per_s": 2.0}), 422, "invalid-input")
    assert problem["detail"].startswith("body: give `users` or `requests_per_s`")
    assert "not both" in str(problem)
    assert client.post("/recommend", json={**body, "goals": {"max_first_token": 3}}).status_code == 422
    assert client.post("/recommend", json={**body, "model": "nobody-7b"}).status_code == 404


def test_recommend_answers_with_limits_provenance_and_evidence(client: TestClient) -> None:
    response = client.post("/recommend", json={"model": "bert-base-uncased", "batch_size": 1})
    assert response.status_code == 200
    answer = response.json()
    about = {"model", "batch_size", "sequence_length", "output_tokens", "warnings", "snapshot_id", "predictor_id"}
    lists = {"recommendations", "recommendations_total", "excluded", "excluded_by_cause"}
    assert set(answer) == about | lists
    assert [r["rank"] for r in answer["recommendations"]] == [1, 2, 3]
    for r in answer["recommendations"]:
        assert r["provenance"] == "measured"
        assert r["evidence"]
        assert r["compatibility"]["state"] == "compatible"
        assert set(r["latency_ms"]) == {"p50", "low", "high", "level"}
        assert r["latency_ms"]["low"] <= r["latency_ms"]["p50"] <= r["latency_ms"]["high"]
    [excluded] = answer["excluded"]
    assert excluded["hardware"] == "cuda"
    assert "no NVIDIA driver" in excluded["reason"]
    assert excluded["suggestion"]


def test_predict_answers_one_cell(client: TestClient) -> None:
    body = {"model": "bert-large", "hardware": "openvino", "batch_size": 2, "sequence_length": 64}
    answer = client.post("/predict", json=body).json()
    assert (answer["model"], answer["hardware"], answer["provenance"]) == ("bert-large", "openvino", "predicted")
    assert answer["evidence"]
    assert answer["predictor_id"].startswith("lgbm-")
    problem = _problem(client.post("/predict", json={"model": "bert-base", "hardware": "cuda"}), 404, "no-figure")
    assert "accel bench run" in problem["detail"]
    # A program mends a name, and measures what is lacking.
    _problem(client.post("/predict", json={"model": "bert-bse", "hardware": "cuda"}), 404, "not-found")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "model"),
        ({"model": ""}, "model"),
        ({"model": "x" * 201}, "model"),
        ({"model": "bert-base", "batch_size": 0}, "batch_size"),
        ({"model": "bert-base", "batch_size": 65_537}, "batch_size"),
        ({"model": "bert-base", "batch_size": "many"}, "batch_size"),
        ({"model": "bert-base", "batch_size": 1e400}, "body"),
        ({"model": "bert-base", "sequence_length": -1}, "sequence_length"),
        ({"model": "bert-base", "objective": "glory"}, "objective"),
        ({"model": "bert-base", "mode": "x"}, "mode"),
        ({"model": "bert-base", "precision": "fp32; DROP"}, "precision"),
        ({"model": "bert-base", "hardware": []}, "hardware"),
        ({"model": "bert-base", "hardware": ["cpu"] * 65}, "hardware"),
        ({"model": "bert-base", "hardware": [""]}, "hardware.0"),
        ({"model": "bert-base", "colour": "red"}, "colour"),
        ({"model": 7}, "model"),
        ({"model": {"parameters": 1e8}}, "model.flops_per_item"),
        ({"model": {"model_type": "bert", "num_hidden_layers": float("nan")}}, "model"),
        ({"model": "bert-base", "image_size": "large"}, "image_size"),
        ({"model": "bert-base", "audio_seconds": float("inf")}, "audio_seconds"),
        ({"model": "bert-base", "constraints": {"max_watts": -1}}, "constraints.max_watts"),
        ({"model": "bert-base", "constraints": {"max_wats": 1}}, "constraints.max_wats"),
        ({"model": "bert-base", "hardware": ["cpu", {"name": "mine", "kind": "gpu"}]}, "hardware.1.peak_fp32_tflops"),
    ],
)
def test_invalid_input_names_the_field(client: TestClient, body: dict[str, Any], field: str) -> None:
    import json

    response = client.post("/recommend", content=json.dumps(body), headers={"content-type": "application/json"})
    problem = _problem(response, 422, "invalid-input")
    assert field in [error["field"] for error in problem["errors"]] or field == "body"


@pytest.mark.parametrize(
    ("method", "path", "body", "says"),
    [
        ("GET", "/results?modle=x", None, "modle: unknown; did you mean mode or model?"),
        ("GET", "/events?xyzzy=1", None, "xyzzy: unknown; known: cursor, host_id, "),
        ("GET", "/results?limit=1001", None, 'limit: expected 1000 or less, got "1001"'),
        ("GET", "/results?limit=0", None, 'limit: expected 1 or more, got "0"'),
        ("GET", f"/results?cursor={'x' * 2001}", None, "cursor: expected at most 2000 characters"),
        ("GET", "/results?since=soon", None, "since: write a date such as 2026-11-20, or a time such as 2026-11-20T08"),
        ("GET", "/events?until=2026-13-40", None, "until: write a date such as 2026-11-20, "),
        ("GET", "/results?mode=training&mode=inference", None, "mode: takes one value, and 2 were given"),
        ("GET", "/regressions?model=bert&model=vit", None, "model: takes one value, and 2 were given"),
        ("GET", "/progress?for_s=1&for_s=2", None, "for_s: takes one value, and 2 were given"),
        ("GET", "/dashboard/models?family=bert&family=vit", None, "family: takes one value, and 2 were given"),
        ("GET", "/results?batch_size=many", None, 'batch_size: expected a whole number, got "many"'),
        ("GET", "/requests?state=odd", None, "state: expected 'open', 'running', 'done', 'failed' or 'cancelled'"),
        ("GET", "/changes?before=x", None, "model: required, and not given"),
        ("GET", "/results/abc", None, 'path.result_id: expected a UUID, got "abc"'),
        ("POST", "/recommend", {"model": "x", "constraints": {"max_watts": 1e40}}, "expected 1e+24 or less, got 1e+40"),
        ("POST", "/query", {"sql": "SELECT 1", "query": 1}, "query: unknown; known: max_rows, parameters, sql"),
        ("POST", "/recommend", {"model": "bert-base", "batchsize": 4}, "did you mean batch_size?"),
        ("POST", "/recommend", {"model": "x", "batch_size": "4x"}, 'batch_size: expected a whole number, got "4x"'),
        ("POST", "/recommend", {"model": "x", "constraints": {"max_wats": 1}}, "max_wats: unknown; did you mean"),
        (
            "POST", "/recommend", {"mode": "serving", "model": "x", "batch_size": 1},
            "batch_size: unknown; known: disaggregated, engine, ",
        ),
        ("POST", "/recommend", {"mode": "serving", "model": None}, "model: a name or a transformers config "),
        ("POST", "/recommend", {"mode": "serving", "model": "x", "requests_per_s": 1e-300}, "requests_per_s: "),
        ("POST", "/recommend", {"model": "x", "where": None}, "where: expected 'here', 'mine' or 'anywhere', got null"),
        ("POST", "/events", {"type": "Nope"}, "expected 'type' to be one of 'HostObserved', "),
        ("POST", "/results", {"model_id": "x", "occurred_at": "2026-01-01T00:00:00"}, "occurred_at: expected a time "),
        ("POST", "/events", {"model": "x"}, "the field 'type' is missing, which says what the rest is"),
        ("GET", "/dashboard/results?modle=x", None, "modle: unknown; did you mean mode or model?"),
    ],
)  # fmt: skip
def test_a_problem_names_the_value_and_what_an_unknown_name_may_mean(
    client: TestClient, method: str, path: str, body: dict[str, Any] | None, says: str
) -> None:
    answer = client.request(method, path, json=body)
    assert answer.status_code == 422
    assert says in html.unescape(
        answer.json()["detail"] if path.startswith(("/q", "/re", "/ev", "/m")) else answer.text
    )


@pytest.mark.parametrize("route", ["/recommend", "/predict", "/predict/batch", "/query"])
def test_a_body_without_its_media_type_is_415_with_the_header_to_send(client: TestClient, route: str) -> None:
    for headers, stated in (({}, "missing"), ({"content-type": "text/csv"}, "text/csv")):
        response = client.post(route, content='{"model": "bert-base"}', headers=headers)
        problem = _problem(response, 415, "unsupported-media-type")
        assert f"needs the header Content-Type: application/json; it is {stated}" in problem["detail"]


def test_what_is_no_json_names_the_place(client: TestClient) -> None:
    for body, place in (("{bad", "line 1, column 2"), ('{"model":\n  "bert-base",\n  }', "line 3, column 3")):
        problem = _problem(client.post("/recommend", content=body, headers=_JSON), 422, "invalid-input")
        [error] = problem["errors"]
        assert error["field"] == "body"
        assert error["message"].startswith(f"not JSON at {place}: ")


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("/recommend", '{"model": "bert-base", "batch_size": 1, "batch_size": 8}'),
        ("/predict", '{"model": {"model_type": "bert", "batch_size": 1, "batch_size": 1}, "hardware": "cpu"}'),
        ("/query", '{"sql": "SELECT 1", "batch_size": [], "batch_size": []}'),
        ("/results", '[{"model_id": "m"}, {"batch_size": 1, "batch_size": 2}]'),
        ("/benchmarks", '{"batch_size": 1, "batch_size": 2}'),
        ("/regressions/x/accept", '{"batch_size": 1, "batch_size": 2}'),
    ],
)
def test_a_key_that_is_there_twice_is_named(client: TestClient, route: str, body: str) -> None:
    problem = _problem(client.post(route, content=body, headers=_JSON), 422, "invalid-input")
    assert problem["errors"] == [{"field": "body", "message": 'the key "batch_size" is there twice.'}]


def test_a_key_that_is_there_twice_on_a_line_is_named(client: TestClient) -> None:
    lines = '{"model_id": "m"}\n{"batch_size": 1, "batch_size": 2}'
    response = client.post("/results", content=lines, headers={"content-type": "application/x-ndjson"})
    assert 'the key "batch_size" is there twice' in _problem(response, 422, "invalid-input")["detail"]


def test_an_unknown_mode_names_every_mode(client: TestClient) -> None:
    problem = _problem(client.post("/recommend", json={"model": "bert-base", "mode": "srving"}), 422, "invalid-input")
    says = "expected 'inference', 'generation', 'training' or 'serving', got \"srving\""
    assert problem["errors"] == [{"field": "mode", "message": says}]
    for mode in (3, None, ["serving"]):
        _problem(client.post("/recommend", json={"model": "bert-base", "mode": mode}), 422, "invalid-input")


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"model": {"model_type": "bert", "num_hidden_layers": 10**8}}, "num_hidden_layers"),
        ({"model": "bert-base", "image_size": 224}, "image_size"),
        ({"model": "whisper-base", "audio_seconds": 7.5}, "30 s"),
    ],
)
def test_what_no_model_could_be_or_read_is_422_in_words(client: TestClient, body: dict[str, Any], says: str) -> None:
    assert says in _problem(client.post("/recommend", json=body), 422, "invalid-input")["detail"]


@pytest.mark.slow
def test_a_gpu_nobody_measured_is_answered_for_a_config(client: TestClient) -> None:
    """The config is traced in a child process; a second query for it is answered from what is cached."""
    config = {"model_type": "bert", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    for batch_size in (1, 8):
        body = {"model": config, "hardware": ["H100"], "precision": "bfloat16", "batch_size": batch_size}
        response = client.post("/recommend", json=body)
        assert response.status_code == 200, response.text
        [recommendation] = response.json()["recommendations"]
        assert recommendation["provenance"] == "predicted"
        assert recommendation["device"] == "NVIDIA H100 SXM5 80GB"


def test_limits_objectives_and_specs_over_http(client: TestClient) -> None:
    own = {"name": "mine", "kind": "gpu", "peak_fp32_tflops": 40, "bandwidth_gb_s": 900, "usd_per_hour": 0.5}
    body = {
        "model": "bert-base",
        "objective": "cost",
        "constraints": {"max_latency_ms": 0.001},
        "hardware": ["cpu", "H100 SXM", "TPU v4", own],
    }
    answer = client.post("/recommend", json=body).json()
    assert answer["recommendations"] == []
    causes = {e["device"]: e["cause"] for e in answer["excluded"]}
    assert causes["Google TPU v4"] == "no_runtime"
    assert "constraint" in causes.values()
    assert {"mine", "NVIDIA H100 SXM5 80GB"} <= set(causes)


def test_a_batch_of_a_thousand_cells(client: TestClient) -> None:
    queries = [{"model": "bert-base", "hardware": "cpu", "batch_size": 1 + i % 4} for i in range(1000)]
    queries[7] = {"model": "no-such-model", "hardware": "cpu"}
    answers = client.post("/predict/batch", json={"queries": queries}).json()["answers"]
    assert len(answers) == 1000
    alone = client.post("/predict", json=queries[7]).json()
    assert answers[7]["problem"] == {name: alone[name] for name in ("type", "title", "detail")}
    assert "No model is called" in answers[7]["problem"]["detail"]
    assert answers[0]["provenance"] == "measured"
    assert [a["batch_size"] for a in answers[:4]] == [1, 2, 3, 4]
    _problem(client.post("/predict/batch", json={"queries": [queries[0]] * 1001}), 422, "invalid-input")


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"null", b"\xff\xfe", b'{"model": "bert", "batch_size": NaN}'])
def test_no_body_is_a_surprise(client: TestClient, content: bytes) -> None:
    response = client.post("/recommend", content=content, headers={"content-type": "application/json"})
    assert response.status_code in (400, 422)
    assert response.headers["content-type"] == CONTENT_TYPE


def test_a_huge_body_is_not_read(client: TestClient) -> None:
    announced = client.post("/recommend", content=b"x" * (MAX_BODY_BYTES + 1))
    _problem(announced, 413, "request-entity-too-large")

    def chunks() -> Iterator[bytes]:
        for _ in range(20):
            yield b"x" * (MAX_BODY_BYTES // 10)

    problem = _problem(client.post("/recommend", content=chunks()), 413, "request-entity-too-large")
    assert problem["detail"].endswith("bytes, so send less at once: POST /recommend.")


def test_an_unknown_model_is_404_with_close_matches(client: TestClient) -> None:
    problem = _problem(client.post("/recommend", json={"model": "bert-bse"}), 404, "not-found")
    assert "bert-base" in problem["detail"]
    assert "Did you mean" in problem["detail"]


def test_unknown_hardware_is_422(client: TestClient) -> None:
    response = client.post("/recommend", json={"model": "bert-base", "hardware": ["cudaa"]})
    assert "cuda" in _problem(response, 422, "invalid-input")["detail"]


def test_unknown_paths_and_methods_are_problems(client: TestClient) -> None:
    _problem(client.get("/nope"), 404, "not-found")
    response = client.get("/recommend")
    assert "It takes POST." in _problem(response, 405, "method-not-allowed")["detail"]
    assert response.headers["allow"] == "POST"
    assert client.put("/results").headers["allow"] == "GET, HEAD, POST"
    titles = {client.get(path).json()["title"] for path in ("/nope", "/models/nope")}
    assert titles == {"Not Found"}, "one type has one title"


def test_a_log_that_lost_something_is_said_at_the_start(tmp_path: Path) -> None:
    settings = world(tmp_path)
    with TestClient(create_app(settings)) as client:
        assert client.get("/health").json()["log_problem"] is None
    next((tmp_path / "log" / "segments").iterdir()).unlink()
    with TestClient(create_app(settings)) as client:
        answer = client.get("/health").json()
    assert "lost 1 segment" in answer["log_problem"]
    assert "--forget" in answer["log_problem"]
    assert answer["results"] == 60


def test_a_damaged_knowledge_pack_is_said_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    shutil.copytree(packs.PACKS / "hailo", tmp_path / "packs" / "hailo")
    monkeypatch.setattr(packs, "PACKS", tmp_path / "packs")
    settings = world(tmp_path / "home")
    with TestClient(create_app(settings)) as client:
        assert client.get("/health").json()["knowledge_problems"] == {}
    with (tmp_path / "packs" / "hailo" / packs.RESULTS).open("ab") as file:
        file.write(b"x")
    with TestClient(create_app(settings)) as client:
        answer = client.get("/health").json()
    assert "is damaged or of another version" in answer["knowledge_problems"]["hailo"]
    assert answer["results"] == 60
    assert "The knowledge pack hailo is not used" in caplog.text


@pytest.mark.parametrize("path", ["/health", "/results", "/matrix"])
def test_an_empty_warehouse_is_503_with_the_command(empty: TestClient, path: str) -> None:
    assert "accel bench run" in _problem(empty.get(path), 503, "warehouse-empty")["detail"]
    _problem(empty.post("/recommend", json={"model": "bert-base"}), 503, "warehouse-empty")


def test_health_says_what_it_answers_from(client: TestClient) -> None:
    health = client.get("/health").json()
    assert health["status"] == "ok"
    assert health["results"] == 60
    assert health["cells"] == 60
    assert re.fullmatch(r"[0-9a-f]{32}", health["snapshot_id"])
    assert health["predictor_id"].startswith("lgbm-")
    assert health["predictor_missing"] is None
    assert health["pipeline"] is None


def test_health_tells_how_far_the_pipeline_beside_the_service_is(client: TestClient, served: Settings) -> None:
    pipeline_progress.begin(served, stages=4, stage="Detecting")
    pipeline_progress.update(served, stage_number=2, cells_done=1, cells=8, remaining_s=60.0)
    pipeline = client.get("/health").json()["pipeline"]
    pipeline_progress.finish(served)
    assert (pipeline["state"], pipeline["cells_done"], pipeline["cells"]) == ("running", 1, 8)
    assert pipeline["message"] == "Measuring this host: 1 of 8 cells, about 60 s left"


def test_matrix(client: TestClient) -> None:
    cells = client.get("/matrix", params={"model": "bert-base"}).json()["cells"]
    assert [c["hardware"] for c in cells] == ["cpu", "onnxruntime", "openvino"]
    assert {c["state"] for c in cells} == {"compatible"}
    assert all(c["evidence"] for c in cells)


def test_a_compressed_body_is_told_to_come_as_text(client: TestClient) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    packed = gzip.compress(b'{"model": "bert-base"}')
    for route in ("/recommend", "/results"):
        answer = client.post(route, content=packed, headers=headers)
        assert "not UTF-8: send JSON as text, not compressed" in _problem(answer, 400, "bad-request")["detail"], route


def test_the_documentation_needs_no_network(client: TestClient) -> None:
    page = client.get("/docs")
    assert page.status_code == 200
    assert not re.findall(r"(?:https?:)?//[a-z]", page.text)
    assets = re.findall(r'(?:href|src)="(/[^"]+)"', page.text)
    assert len(assets) >= 2
    for asset in assets:
        assert client.get(asset).status_code == 200
    schema = client.get("/openapi.json").json()
    assert {"/recommend", "/predict", "/predict/batch", "/health", "/results", "/matrix"} <= set(schema["paths"])
    errors = schema["paths"]["/recommend"]["post"]["responses"]
    problem = {"schema": {"$ref": "#/components/schemas/Problem"}}
    for status in ("401", "403", "404", "421", "422", "429"):
        assert errors[status]["content"] == {CONTENT_TYPE: problem}
    summary = "Return one model, by its id or another name that the catalogue has for it"
    assert schema["paths"]["/models/{model_id}"]["get"]["summary"] == summary
    assert schema["components"]["securitySchemes"]["key"]["scheme"] == "bearer"
    assert schema["paths"]["/recommend"]["post"]["security"] == [{}, {"key": []}]
    assert schema["paths"]["/health"]["get"]["security"] == []
    assert "text/csv" in schema["paths"]["/results.{form}"]["get"]["responses"]["200"]["content"]
    assert set(client.get("/").json()["open"]) == {"GET", "POST"}


@pytest.mark.parametrize(
    ("schema", "path"),
    [("RecommendQuery", "/recommend"), ("PredictQuery", "/predict"), ("ServingQuery", "/recommend")],
)
def test_the_example_of_the_documentation_is_answered(client: TestClient, schema: str, path: str) -> None:
    """Swagger makes up values that are refused where a schema has no example."""
    [example] = client.get("/openapi.json").json()["components"]["schemas"][schema]["examples"]
    assert client.post(path, json=example).status_code == 200


def test_fields_say_what_they_mean(client: TestClient) -> None:
    schemas = client.get("/openapi.json").json()["components"]["schemas"]
    silent = [f"{name}.{field}" for name, schema in schemas.items() for field, about in
              schema.get("properties", {}).items() if not about.get("description")]  # fmt: skip
    assert silent == []
    assert "of the shape shown" in schemas["MatrixCell"]["properties"]["batch_size"]["description"]


def test_a_client_can_be_generated_from_the_document(client: TestClient) -> None:
    """Generators need the items of a list, and call a type without a name by its owner and field."""
    document = client.get("/openapi.json").json()
    schemas = document["components"]["schemas"]
    owners = [(name, schema.get("properties", {})) for name, schema in schemas.items()]
    for about in (about for methods in document["paths"].values() for about in methods.values()):
        parameters = {one["name"]: one["schema"] for one in about.get("parameters", ())}
        owners.append((about["operationId"].title().replace("_", ""), parameters))
    made: dict[str, str] = {}
    for owner, fields in owners:
        for field, about in fields.items():
            assert "array" not in about.get("type", ()) or "items" in about, f"{owner}.{field}"
            if "enum" in about or "object" in about.get("type", ()):
                name = f"{owner}{field.title().replace('_', '')}"
                assert name not in schemas, f"{owner}.{field}"
                assert made.setdefault(name, str(about.get("enum"))) == str(about.get("enum")), f"{owner}.{field}"


def test_a_bug_is_a_problem_without_its_insides(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("predictor.advisor.advisor.recommend_json", lambda *_: 1 / 0)
    problem = _problem(client.post("/recommend", json={"model": "bert-base", "batch_size": 3}), 500, "internal-error")
    assert "ZeroDivisionError" in problem["detail"]
    assert "Traceback" not in str(problem)


def test_a_warehouse_that_cannot_be_read_is_a_problem_and_the_service_lives_on(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home")
    append(settings, [result(MODELS[5], "cpu", 1)])
    pointer = settings.warehouse_dir / "CURRENT"
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        sound = client.get("/results").json()
        name = pointer.read_text()
        pointer.unlink()
        pointer.mkdir()
        for said in (
            _problem(client.get("/results"), 503, "storage-unavailable"),
            _problem(client.post("/query", json={"sql": "SELECT 1 AS one"}), 503, "storage-unavailable"),
        ):
            assert "CURRENT cannot be used: a directory is in the place of a file. Move it away" in said["detail"]
        pointer.rmdir()
        pointer.write_text("nothing")
        assert "accel db rebuild" in _problem(client.get("/results"), 503, "warehouse-damaged")["detail"]
        pointer.write_text(name)
        assert client.get("/results").json() == sound


def test_a_full_disk_under_the_log_is_a_problem_and_the_service_lives_on(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path / "home")
    append(settings, [result(MODELS[5], "cpu", 1)])
    claim = {
        "model_id": "bert-base",
        "model_family": "bert",
        "hardware": "cuda",
        "backend": "tensorrt",
        "batch_size": 8,
        "latency_mean_ms": 6.2,
        "source_path": "https://example.com/report",
    }
    with TestClient(create_app(settings), raise_server_exceptions=False) as client:
        with no_room():
            _problem(client.post("/results", json=claim), 503, "log-unavailable")
        assert client.get("/results").status_code == 200


@pytest.mark.slow
def test_new_evidence_and_predictors_are_picked_up(tmp_path: Path) -> None:
    settings = world(tmp_path, measured_grid(MODELS[:4]))
    with TestClient(create_app(settings)) as client:
        before = client.get("/health").json()
        assert before["predictor_id"] is None
        assert "accel train" in before["predictor_missing"]
        append(settings, [result(MODELS[5], "cpu", 1, provenance="imported")])
        report = train(settings, EventLog.open(settings))
        deadline = time.monotonic() + 20
        while (after := client.get("/health").json())["predictor_id"] != report.predictor_id:
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert after["snapshot_id"] == report.snapshot_id != before["snapshot_id"]
    assert after["results"] == before["results"] + 1
