"""Every noun over HTTP: pages, ETags, exports, comparisons, the routes of the replaced API."""

from __future__ import annotations

import csv
import html
import io
import json
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_type_hints
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from fastapi.testclient import TestClient

from accel_platform.analysis.query.cells import PooledCell
from accel_platform.analysis.regressions.snapshot_comparison import CellChange
from accel_platform.analysis.summaries.comparison import ComparedCell
from accel_platform.events import Event, EventLog
from accel_platform.events.types import DeviceObserved, ResultRecorded, ResultSuspected, SuspicionOverruled
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.reader import Reader
from accel_platform.warehouse.time_travel import tables_as_of
from predictor.schemas import rows
from predictor.service.api import compare
from predictor.service.app import create_app
from predictor.service.background import past_tables
from predictor_world import CPU, MODELS, append, measured_grid, result, world

TABLES = {
    rows.Result: "results",
    rows.Verification: "verifications",
    rows.Model: "models",
    rows.Device: "devices",
    rows.Run: "runs",
    rows.MatrixCell: "compat_matrix",
    rows.Regression: "regressions",
    rows.Coverage: "coverage",
    rows.StoredEvent: "events",
}


def _imported(**changes: Any) -> ResultRecorded:
    return result(MODELS[0], "cpu", 2, provenance="imported", source_path="paper.csv", **changes)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    settings = world(tmp_path_factory.mktemp("read"), measured_grid(MODELS[:4]))
    [event] = append(settings, [_imported(model_id="google/odd model", device_name="=HYPERLINK(1)")])
    doubt = {"rule": "too_good", "evidence": "faster than light", "confidence": 0.9, "result_id": event.event_id}
    overruled = SuspicionOverruled(result_id=event.event_id, rule="too_good", by="ann", reason="it is")
    append(settings, [ResultSuspected(verdict="suspect", **doubt), overruled])
    seen = {"available": True, "device_id": "other"}
    qnn = DeviceObserved(hardware="qnn", backend="qnn", name="Hexagon", emulated=True, **seen)
    cuda = DeviceObserved(hardware="cuda", backend="pytorch", name="NVIDIA H100 80GB HBM3", **seen)
    gpu = DeviceObserved(hardware="openvino", choice="gpu", backend="openvino", name="Intel Arc A770", **seen)
    log = EventLog.open(settings)
    log.append([Event.of(device, source="test", host_id="another-host") for device in (qnn, cuda, gpu)])
    refresh(settings)
    return settings


@pytest.fixture(scope="module")
def client(settings: Settings) -> Iterator[TestClient]:
    with TestClient(create_app(settings)) as client:
        yield client


def test_answers_have_the_columns_of_the_tables(settings: Settings) -> None:
    reader = Reader(settings)
    for model, table in TABLES.items():
        columns = [row["column_name"] for row in reader.rows(f"DESCRIBE {table}")]
        if table == "models":
            columns.remove("operators")  # megabytes that only the predictor reads
        assert list(model.model_fields) == columns, table


def test_compared_rows_have_the_fields_of_their_schemas() -> None:
    for schema, kind in (
        (compare.FiguresOfCell, PooledCell),
        (compare.CellBesideOthers, ComparedCell),
        (compare.ChangeOfCell, CellChange),
    ):
        assert {*schema.model_fields} == {*get_type_hints(kind)}, schema


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/results", "results"),
        ("/models", "models"),
        ("/devices", "devices"),
        ("/matrix", "cells"),
        ("/events", "events"),
        ("/performance", "performance"),
        ("/compatibility", "compatibility"),
    ],
)
def test_pages_are_whole_and_disjoint(client: TestClient, path: str, name: str) -> None:
    whole = client.get(path, params={"limit": 1000}).json()[name]
    assert len(whole) > 3
    paged, cursor = [], None
    while True:
        answer = client.get(path, params={"limit": 3, **({"cursor": cursor} if cursor else {})}).json()
        assert len(answer[name]) <= 3
        paged += answer[name]
        if (cursor := answer["next_cursor"]) is None:
            break
    assert paged == whole


@pytest.mark.parametrize("cursor", ["rubbish!", "AAAA", "WyJ4Il0", "W10", "bnVsbA", "WzFd"])
def test_a_cursor_of_nobody_is_404(client: TestClient, cursor: str) -> None:
    for path in ("/results", "/events", "/models", "/runs", "/requests"):
        # One text is a place among models: anything may be the name of one.
        assert client.get(path, params={"cursor": cursor}).status_code in ((200, 404) if path == "/models" else (404,))


def test_an_etag_spares_reading_again_until_the_tables_change(tmp_path: Any) -> None:
    settings = world(tmp_path, measured_grid(MODELS[:1]))
    with TestClient(create_app(settings)) as client:
        first = client.get("/results")
        kept = {"If-None-Match": first.headers["etag"]}
        again = client.get("/results", headers=kept)
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", kept["If-None-Match"])
        assert client.get("/results", headers={"If-None-Match": f'"x", W/{kept["If-None-Match"]}'}).status_code == 304
        assert client.get("/results.csv", headers=kept).status_code == 200
        for lacking in (f"/results/{uuid4()}", "/models/nothing", "/runs/nothing", "/regressions/nothing"):
            for tag in (kept, {"If-None-Match": "*"}):
                assert client.get(lacking, headers=tag).status_code == 404, lacking
        assert client.get("/results", headers={"If-None-Match": "*"}).status_code == 304
        append(settings, [_imported()])
        changed = client.get("/results", headers=kept)
        assert changed.status_code == 200
        assert changed.headers["etag"] != first.headers["etag"]
        assert len(changed.json()["results"]) == len(first.json()["results"]) + 1


def test_one_result_has_its_samples_verification_and_event(client: TestClient) -> None:
    [row] = client.get("/results", params={"model": "bert-base", "hardware": "cpu", "batch_size": 1}).json()["results"]
    one = client.get(f"/results/{row['result_id']}").json()
    assert one["result"] == row
    assert len(one["samples_ms"]) == row["samples"] == 30
    assert min(one["samples_ms"]) == pytest.approx(row["latency_min_ms"])
    assert [v["passed"] for v in one["verifications"]] == [True]
    assert one["suspicions"] == []
    assert one["event"]["payload"]["model_id"] == "bert-base"
    [odd] = client.get("/results", params={"provenance": "imported"}).json()["results"]
    [doubt] = client.get(f"/results/{odd['result_id']}").json()["suspicions"]
    assert (doubt["rule"], doubt["confidence"], doubt["overruled_by"]) == ("too_good", 0.9, "ann")
    assert client.get(f"/results/{uuid4()}").status_code == 404
    assert client.get("/results/7").status_code == 422


def test_results_come_by_time_whatever_their_ids(tmp_path: Any) -> None:
    settings = world(tmp_path, [])
    times = [None, datetime(2026, 3, 2, tzinfo=UTC), datetime(2026, 3, 1, 12, tzinfo=UTC), None]
    log = EventLog.open(settings)
    for number, at in enumerate(times):  # the greater the id, the older or less known the time
        placed = Event.of(_imported(), source="test").model_copy(
            update={"event_id": UUID(int=number << 120 | 1), "occurred_at": at}
        )
        log.append([placed])
    refresh(settings)
    with TestClient(create_app(settings)) as client:
        found, cursor = [], None
        while not found or cursor:
            page = client.get("/results", params={"limit": 1, **({"cursor": cursor} if cursor else {})}).json()
            found += [UUID(row["result_id"]).int >> 120 for row in page["results"]]
            cursor = page["next_cursor"]
        assert found == [1, 2, 3, 0], "newest first, then those of unknown time"
        old = [row["test_timestamp"] for row in client.get("/performance").json()["performance"]]
        assert old[:2] == ["2026-03-02T00:00:00Z", "2026-03-01T12:00:00Z"]
        shown, path = [], "/dashboard/results?limit=3"
        while path:
            text = client.get(path, headers={"accept": "text/html"}).text
            shown += [UUID(one).int >> 120 for one in re.findall(r'href="/dashboard/results/([0-9a-f-]{36})"', text)]
            following = re.search(r'href="([^"]*)" rel="next"', text)
            path = following[1].replace("&amp;", "&") if following else ""
        assert shown == found


def test_filters_are_those_of_every_command(client: TestClient) -> None:
    def found(**filters: Any) -> list[dict[str, Any]]:
        return list(client.get("/results", params={"limit": 1000, **filters}).json()["results"])

    both = found(model=["bert-base", "vit"], hardware=["cpu", "openvino"], provenance="measured")
    assert {(r["model_id"], r["hardware"]) for r in both} == {
        (m, h) for m in ("bert-base", "vit-base") for h in ("cpu", "openvino")
    }
    assert {r["batch_size"] for r in found(model="bert-base", hardware="cpu", status="ok")} == {1, 4}
    assert found(provenance="simulated") == []
    assert found(since="2999-01-01") == []
    assert client.get("/results", params={"model": "' OR 1=1 --"}).status_code == 404
    assert len(found(until="2999-01-01T00:00:00Z")) == 25
    assert client.get("/results", params={"since": "12.5"}).status_code == 422
    for path in ("/results", "/events"):  # a time without a zone is UTC's
        of_future = client.get(path, params={"since": "2999-01-01T08:30:00"}).json()
        assert of_future[path.removeprefix("/")] == [], path


def test_a_matrix_is_filtered_as_results_are(tmp_path: Path) -> None:
    """A device of the spec sheet, and several names, mean the same for cells as for results."""
    device = "NVIDIA H100 SXM5 80GB"
    h100 = result(MODELS[0], "cuda", 2, provenance="imported", source_path="paper.csv", device_name=device)
    with TestClient(create_app(world(tmp_path, [*measured_grid(MODELS[:2]), h100]))) as client:
        for path, name, model in (("/matrix", "cells", "model_id"), ("/compatibility", "compatibility", "model_name")):
            found = client.get(path, params={"hardware": "H100 SXM"}).json()[name]
            assert [cell["device_name"] for cell in found] == [device], path
            names = {"model": [spec.model_id for spec in MODELS[:2]], "hardware": ["cpu", "openvino"]}
            both = client.get(path, params=names).json()[name]
            assert {cell[model] for cell in both} == {*names["model"]}, path
        query = {"model": MODELS[0].model_id, "hardware": "H100 SXM"}
        assert {one["device"] for one in client.get("/matrix/history", params=query).json()["changes"]} == {device}


def test_one_of_a_noun_is_found_or_its_name_is_mended(client: TestClient) -> None:
    for path, says in (
        ("/models/bert-bse", "Did you mean bert-base"),
        ("/performance/comparison/bert-bse", "Did you mean bert-base"),
        ("/hardware/opnvino", "Did you mean openvino"),
        ("/hardware/H100", "'H100' is a device: ask for its hardware name"),
    ):
        assert says in client.get(path).json()["detail"], path
    assert client.get("/hardware/CPU").json() == client.get("/hardware/cpu").json()
    for path in ("/results", "/matrix"):
        named, shouted = (client.get(path, params={"hardware": name}).json() for name in ("openvino", "OpenVINO"))
        assert named == shouted, path


def test_what_is_told_by_hardware_name_refuses_a_device(client: TestClient) -> None:
    """An empty answer would say that the device has no shifts."""
    for path in ("/regressions", "/coverage", "/dashboard/regressions", "/dashboard/matrix/cell?model=bert-base"):
        answer = client.get(f"{path}{'&' if '?' in path else '?'}hardware=H100 SXM")
        assert answer.status_code == 422, path
        assert "is a device: ask for its hardware name" in html.unescape(answer.text), path


def test_coverage_is_told_by_hardware_name_alone(client: TestClient) -> None:
    assert client.get("/coverage?hardware=CPU").json() == client.get("/coverage?hardware=cpu").json()
    refused = client.get("/coverage?hardware=openvino:gpu")
    assert refused.status_code == 422
    assert "ask for 'openvino' instead of 'openvino:gpu'" in refused.json()["detail"]


def test_a_misspelt_filter_is_an_error_and_an_unmeasured_one_is_empty(client: TestClient) -> None:
    snapshot_id = client.get("/health").json()["snapshot_id"]
    required = {
        "/changes": f"model=bert-base&before={snapshot_id}",
        "/matrix/history": "model=bert-base",
        "/trend": "model=bert-base",
        "/compare": "model=bert-base",
    }
    paths = {
        path: about["get"] for path, about in client.get("/openapi.json").json()["paths"].items() if "get" in about
    }
    routes = {
        f"{path}?{required.get(path, '')}": [one["name"] for one in about.get("parameters", ()) if one["in"] == "query"]
        for path, about in paths.items()
        if "{" not in path
    }
    routes |= {
        "/results.csv?": ["model", "hardware", "mode", "precision", "device", "provenance", "status"],
        "/charts/trend.json?model=bert-base": ["hardware", "device", "mode"],
        "/dashboard/results?": ["model", "hardware", "provenance", "precision"],
        "/dashboard/models?": ["family", "modality", "hardware", "sort"],
        "/dashboard/models?q=nothing": ["family", "modality", "hardware"],
        "/dashboard/models/bert-base?": ["hardware", "precision", "provenance", "sort"],
        "/dashboard/matrix?": ["model", "hardware", "family", "device", "mode", "precision", "provenance"],
        "/dashboard/regressions?": ["model", "hardware", "mode", "state", "direction"],
        "/dashboard/runs?": ["kind", "status", "host_id"],
        "/dashboard/events?": ["type", "source", "host_id", "run_id"],
        "/dashboard/compare?model=bert-base": ["hardware", "metric", "precision"],
        "/dashboard/hardware?": ["kind"],
    }
    assert len(routes) > 25
    for path, names in routes.items():
        # A commit that was never measured is no mistake.
        for name in set(names) - {"commit"}:
            wrong = client.get(f"{path}&{name}=opnvino")
            assert wrong.status_code in (404, 422), (path, name)
            told = name == "cursor" or any(word in wrong.text for word in ("opnvino", f'"{name}"', "expected "))
            assert told, (path, name, wrong.text)
    assert "Did you mean openvino" in client.get("/results?hardware=opnvino").json()["detail"]
    assert "choose inference, generation" in client.get("/results?mode=opnvino").json()["detail"]
    # Known, and nothing measured of it.
    for query in ("model=roberta-base", "mode=training", "status=timeout", "precision=int8", "hardware=wasm"):
        answer = client.get(f"/results?{query}")
        assert (answer.status_code, answer.json()["results"]) == (200, []), query
    for path in ("/runs?kind=coverage&status=failed", "/events?type=ShiftRejected", "/models?modality=multimodal",
                 "/coverage?category=video&status=timeout", "/devices?hardware=wasm", "/runs?commit=0123456",
                 "/dashboard/runs?kind=coverage", "/dashboard/matrix?mode=training"):  # fmt: skip
        assert client.get(path).status_code == 200, path


def test_models_with_slashes_and_by_alias(client: TestClient) -> None:
    assert client.get("/models/google/odd model").json()["model"]["results"] == 1
    assert client.get("/models/bert-base-uncased").json()["model"]["model_id"] == "bert-base"
    known = client.get("/models/bert-large")
    assert (known.status_code, "accel bench run" in known.json()["detail"]) == (404, True)
    runs = client.get("/runs").json()["runs"]
    assert [run["run_id"] for run in runs] == ["run-1"]
    assert client.get("/runs/run-1").json()["run"] == runs[0]


def test_hardware_says_what_is_there_and_what_is_known(client: TestClient) -> None:
    names = {row["hardware"]: row for row in client.get("/hardware").json()["hardware"]}
    assert (names["cpu"]["available"], names["mps"]["available"], names["mps"]["results"]) == (True, False, 0)
    one = client.get("/hardware/cuda").json()
    assert "no NVIDIA driver" in [device["reason"] for device in one["seen"]]
    assert client.get("/hardware/toaster").status_code == 404
    assert {"H100", "A100"} <= {part for d in client.get("/catalogue").json()["devices"] for part in d["name"].split()}


def test_an_emulator_is_told_from_a_device(client: TestClient) -> None:
    names = {row["hardware"]: row for row in client.get("/hardware").json()["hardware"]}
    states = {name: (names[name]["available"], names[name]["emulated"]) for name in ("cpu", "qnn", "mps")}
    assert states == {"cpu": (True, False), "qnn": (True, True), "mps": (False, False)}
    assert client.get("/hardware/qnn").json()["hardware"]["emulated"]


@pytest.mark.parametrize(
    ("hardware", "names"),
    [
        ("H100", {"NVIDIA H100 SXM5 80GB"}),
        ("openvino:gpu", {"Intel Arc A770 16GB"}),
        ("openvino", {"Intel Arc A770 16GB", CPU}),
        (["H100", "qnn"], {"NVIDIA H100 SXM5 80GB", "Hexagon"}),
    ],
)
def test_devices_are_filtered_by_hardware_as_results_are(
    client: TestClient, hardware: str | list[str], names: set[str]
) -> None:
    found = client.get("/devices", params={"hardware": hardware}).json()["devices"]
    assert {device["name"] for device in found} == names


def test_exports_hold_every_row_in_every_form(client: TestClient) -> None:
    whole = {row["result_id"]: row for row in client.get("/results", params={"limit": 1000}).json()["results"]}
    lines = [json.loads(line) for line in client.get("/results.ndjson").text.splitlines()]
    assert {line["result_id"] for line in lines} == set(whole)
    assert all(line.keys() == whole[line["result_id"]].keys() for line in lines)
    line = next(line for line in lines if line["model_id"] == "vit-base")
    assert line["latency_p50_ms"] == whole[line["result_id"]]["latency_p50_ms"]
    assert line["occurred_at"] == whole[line["result_id"]]["occurred_at"]
    table = pa.ipc.open_stream(client.get("/results.arrow").content).read_all()
    assert set(table["result_id"].to_pylist()) == set(whole)
    found = list(csv.DictReader(io.StringIO(client.get("/results.csv").text)))
    assert {row["result_id"] for row in found} == set(whole)
    assert [row["device_name"] for row in found if row["model_id"] == "google/odd model"] == ["'=HYPERLINK(1)"]
    assert client.get("/results.xml").status_code == 422
    some = client.get("/results.csv", params={"model": "vit-base", "hardware": "cpu"})
    assert len(some.text.splitlines()) == 3


def test_comparisons_and_trends_stand_on_the_same_cells(client: TestClient) -> None:
    side = client.get("/compare", params={"model": "bert-base"}).json()
    assert side["names"][0] in ("cpu", "onnxruntime", "openvino")
    assert len(side["rows"]) == 6
    trend = client.get("/trend", params={"model": "bert-base", "hardware": "cpu", "metric": "latency_ms"}).json()
    assert trend["series"] == len(trend["trends"]) == 2
    assert client.get("/changes", params={"model": "bert-base", "before": "no-such"}).status_code == 404
    assert client.get("/compare").status_code == 422
    old = client.get("/performance/comparison/bert-base").json()
    assert {row["hardware_type"] for row in old["comparison"]} == {"cpu", "onnxruntime", "openvino"}


def test_tables_of_the_past_are_made_for_one_at_a_time(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    looking, go_on = threading.Event(), threading.Event()

    def slowly(*asked: Any) -> Any:
        looking.set()
        assert go_on.wait(30)
        return tables_as_of(*asked)

    monkeypatch.setattr(past_tables, "tables_as_of", slowly)
    about = {"model": "bert-base", "before": "2999-01-01"}
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(client.get, "/changes", params=about)
        assert looking.wait(30)
        second = client.get("/changes", params=about)
        go_on.set()
        assert first.result().status_code == 200
    assert (second.status_code, second.json()["type"]) == (503, "urn:accel:problem:busy")
    assert second.headers["retry-after"] == "2"
    assert client.get("/changes", params=about).status_code == 200


@pytest.mark.slow
def test_charts_are_drawn_in_every_form(client: TestClient) -> None:
    names = {chart["name"] for chart in client.get("/charts").json()["charts"]}
    assert "hardware" in names
    about = {"model": "bert-base"}
    assert client.get("/charts/hardware.json", params=about).json()["$schema"].startswith("https://vega")
    assert client.get("/charts/hardware.png", params=about).content.startswith(b"\x89PNG")
    assert "<svg" in client.get("/charts/hardware.svg", params=about).text
    page = client.get("/charts/hardware.html", params=about)
    assert "vegaEmbed" in page.text
    policy = page.headers["content-security-policy"]
    assert "'unsafe-inline'" in policy, "what draws the chart stands in the page"
    assert policy.startswith("sandbox allow-scripts ")
    assert "default-src 'none'" in policy
    assert "allow-same-origin" not in policy
    nothing = client.get("/charts/hardware.svg", params={"model": "bert-base", "since": "2999-01-01"})
    assert (nothing.status_code, client.get("/charts/pie.svg").status_code) == (404, 404)
