"""As the README says it: `dagster dev -w workspace.yaml`, the graph materialised over its API, then a real service."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from processes import family, free_port, running, wait_for

from accel_platform.bench.requests.lifecycle import Requests, request_benchmark
from accel_platform.events import EventLog
from accel_platform.settings import Settings
from accel_platform.warehouse.layers import current
from accel_platform.warehouse.reader import Reader
from factories import event, result, verification

pytestmark = pytest.mark.slow

ACCEL = str(Path(sys.executable).with_name("accel"))

LAUNCH = """
mutation ($params: ExecutionParams!) {
  launchRun(executionParams: $params) {
    __typename
    ... on LaunchRunSuccess { run { runId } }
    ... on PythonError { message }
    ... on RunConfigValidationInvalid { errors { message } }
  }
}
"""
ADD_SOURCE = """
mutation ($repository: RepositorySelector!) {
  addDynamicPartition(
    repositorySelector: $repository, partitionsDefName: "legacy_sources", partitionKey: "samples/legacy"
  ) { __typename }
}
"""
RUN = """
query ($id: ID!) {
  runOrError(runId: $id) {
    ... on Run {
      status
      stepStats { stepKey status }
      eventConnection { events { ... on ExecutionStepFailureEvent { stepKey error { message } } } }
    }
  }
}
"""
ASSETS = """
{ assetNodes {
    assetKey { path }
    assetMaterializations(limit: 1) {
      tags { key value }
      metadataEntries { label __typename ... on IntMetadataEntry { intValue } ... on MarkdownMetadataEntry { mdStr } }
    }
} }
"""
CHECKS = """
{ assetNodeOrError(assetKey: {path: ["results"]}) { ... on AssetNode {
    assetChecksOrError { ... on AssetChecks { checks { name blocking executionForLatestMaterialization { status } } } }
} } }
"""
CONFIG = {
    "ops": {
        "measurements": {
            "config": {"models": ["bert-tiny"], "hardware": ["cpu"], "batch_sizes": [1, 4], "effort": "quick"}
        }
    }
}


def _answers(url: str) -> bool:
    try:
        return httpx.get(url, timeout=30).status_code < 500
    except httpx.TransportError:
        return False


def test_the_graph_runs_in_dagster_dev_and_a_started_service_answers_from_what_it_measured(tmp_path: Path) -> None:
    home, port, log = tmp_path / "home", free_port(), tmp_path / "dagster.log"
    command = [sys.executable, "-m", "dagster", "dev", "-w", "workspace.yaml", "-h", "127.0.0.1", "-p", str(port)]
    with running(command, log, ACCEL_HOME=str(home)) as process:

        def ask(query: str, **variables: Any) -> Any:
            assert process.poll() is None, log.read_text()[-4000:]
            url = f"http://127.0.0.1:{port}/graphql"
            answer = httpx.post(url, json={"query": query, "variables": variables}, timeout=180).json()
            assert "errors" not in answer, answer
            return answer["data"]

        wait_for("Dagster's pages", 180, lambda: _answers(f"http://127.0.0.1:{port}/server_info"), log)
        repository = {"repositoryLocationName": "accel", "repositoryName": "__repository__"}
        ask(ADD_SOURCE, repository=repository)  # by the inbox's sensor, where it was quicker
        launched = ask(
            LAUNCH,
            params={
                "selector": {**repository, "jobName": "full_pipeline"},
                "runConfigData": CONFIG,
                "executionMetadata": {"tags": [{"key": "dagster/partition", "value": "samples/legacy"}]},
            },
        )["launchRun"]
        assert launched["__typename"] == "LaunchRunSuccess", launched

        def ended() -> Any:
            run = ask(RUN, id=launched["run"]["runId"])["runOrError"]
            return run if run["status"] in {"SUCCESS", "FAILURE", "CANCELED"} else None

        run = wait_for("the run", 240, ended, log)
        assert run["status"] == "SUCCESS", run
        _check_what_the_pages_show(ask(ASSETS)["assetNodes"])
        checks = ask(CHECKS)["assetNodeOrError"]["assetChecksOrError"]["checks"]
        assert checks
        for check in checks:
            assert check["blocking"]
            assert check["executionForLatestMaterialization"]["status"] == "SUCCEEDED", check
        _check_a_request(home, log)

    _check_the_service(home, tmp_path / "service.log")


def test_accel_ui_brings_both_up_follows_log_and_inbox_and_takes_both_down(tmp_path: Path) -> None:
    pages, service, log, inbox = free_port(), free_port(), tmp_path / "ui.log", tmp_path / "inbox"
    inbox.mkdir()
    command = [ACCEL, "ui", "--ui-port", str(pages), "--port", str(service), "--home", str(tmp_path / "home")]
    with running(command, log, ACCEL_INBOX=str(inbox)) as process:
        ready = f"Open http://127.0.0.1:{pages}"
        wait_for("both", 120, lambda: ready in log.read_text() or process.poll() is not None, log)
        assert httpx.get(f"http://127.0.0.1:{pages}/server_info", timeout=90).json()["dagster_version"]
        _check_what_runs_by_itself(f"http://127.0.0.1:{pages}/graphql", log)
        # Nothing has been measured in this home yet: the knowledge packs answer.
        fresh = httpx.get(f"http://127.0.0.1:{service}/health", timeout=90)
        assert fresh.status_code == 200
        assert fresh.json()["knowledge_problems"] == {}
        assert fresh.json()["results"] > 10_000
        # What somebody else adds to the log comes into service without anything being started.
        settings = Settings(home=tmp_path / "home")
        event_log = EventLog.open(settings)
        event_log.append([event(result()), event(verification())])
        added = event_log.snapshot().segments

        def in_service() -> bool:
            served = current(settings)
            return served is not None and added <= event_log.load_snapshot(served.snapshot_id).segments

        wait_for("the tables", 150, in_service, log)
        assert Reader(settings).rows(
            "SELECT model_id, state FROM compat_matrix WHERE model_id = 'bert-base' AND hardware = 'cpu'"
        ) == [{"model_id": "bert-base", "state": "compatible"}]
        # So does a file that somebody puts into the inbox.
        card = {"model": "gpt2", "hardware": "cpu", "success": True, "batch_results": {"1": {"avg_latency_ms": 5.5}}}
        (inbox / "card.json").write_text(json.dumps(card))
        of_files = (
            "SELECT model_id, latency_mean_ms, source_path FROM results "
            "WHERE source_path IS NOT NULL AND NOT starts_with(source, 'pack:')"
        )
        rows = wait_for("the file's rows", 120, lambda: Reader(settings).rows(of_files), log)
        assert rows == [{"model_id": "gpt2", "latency_mean_ms": 5.5, "source_path": str(inbox / "card.json")}]
        started = family(process)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=270) == 130
        _, alive = psutil.wait_procs(started[1:], timeout=5)
        assert alive == []
    # Where its code location ends in the middle of a sensor's tick, Dagster's daemon logs errors: not to the user.
    assert "Traceback" not in log.read_text()


def _check_what_runs_by_itself(url: str, log: Path) -> None:
    """Dagster's daemons are alive, and every sensor and schedule is on."""

    def ask(query: str) -> Any:
        answer = httpx.post(url, json={"query": query}, timeout=180).json()
        assert "errors" not in answer, answer
        return answer["data"]

    def alive() -> bool:
        found = ask("{ instance { daemonHealth { allDaemonStatuses { daemonType required healthy } } } }")
        daemons = found["instance"]["daemonHealth"]["allDaemonStatuses"]
        return {"ASSET", "SENSOR", "SCHEDULER"} <= {d["daemonType"] for d in daemons} and all(
            d["healthy"] for d in daemons if d["required"]
        )

    wait_for("the daemons", 180, alive, log)
    repositories = ask("""{ repositoriesOrError { ... on RepositoryConnection { nodes {
        sensors { name sensorState { status } } schedules { name scheduleState { status } } } } } }""")[
        "repositoriesOrError"]["nodes"]  # fmt: skip
    sensors = {s["name"]: s["sensorState"]["status"] for r in repositories for s in r["sensors"]}
    schedules = {s["name"]: s["scheduleState"]["status"] for r in repositories for s in r["schedules"]}
    assert {"automation", "log_moved", "inbox", "new_commits", "failed_runs"} <= sensors.keys()
    assert len(schedules) >= 5
    assert set(sensors.values()) == set(schedules.values()) == {"RUNNING"}


def _check_a_request(home: Path, said: Path) -> None:
    """This machine takes a requested benchmark, and has nothing to measure again."""
    log = EventLog.open(Settings(home=home))
    asked = {"models": ["bert-tiny"], "hardware_types": ["cpu"], "effort": "quick", "missing": True}
    [request_id] = request_benchmark(asked, log)
    requests = Requests(log)

    def ended() -> Any:
        requests.refresh()
        return requests[request_id].closed

    closed = wait_for("the requested benchmark", 90, ended, said)
    assert (closed.status, closed.reason) == ("done", "all of it was measured already")


def _check_what_the_pages_show(nodes: list[dict[str, Any]]) -> None:
    snapshots = set()
    made = [node for node in nodes if node["assetKey"]["path"][0] not in {"event_log", "daily_report"}]
    for node in made:
        [materialised] = node["assetMaterializations"]
        entries = {entry["label"]: entry for entry in materialised["metadataEntries"]}
        assert entries["dagster/row_count"]["intValue"] > 0 or node["assetKey"]["path"] == ["regressions"], node
        assert entries["preview"]["mdStr"], node
        tags = {tag["key"]: tag["value"] for tag in materialised["tags"]}
        pictures = [text for entry in entries.values() if "data:image/png;base64," in (text := entry.get("mdStr", ""))]
        assert pictures or entries["dagster/row_count"]["intValue"] == 0, node
        if node["assetKey"]["path"][0] in {"raw_events", "results", "compat_matrix", "predictor"}:
            snapshots.add(tags["dagster/data_version"])
    assert len(made) == 9
    assert len(snapshots) == 1


def _check_the_service(home: Path, log: Path) -> None:
    port = free_port()
    command = [ACCEL, "serve", "--port", str(port), "--home", str(home)]
    with running(command, log), httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=90) as service:
        wait_for("the service", 180, lambda: _answers(f"http://127.0.0.1:{port}/health"), log)
        health = service.get("/health")
        assert health.status_code == 200, health.text
        body = {"model": "prajjwal1/bert-tiny", "batch_size": 4, "hardware": ["cpu"]}
        answer = service.post("/recommend", json=body)
        assert answer.status_code == 200, answer.text
        measured = [r for r in answer.json()["recommendations"] if r["provenance"] == "measured"]
        assert measured, answer.text
        rows = service.get("/results", params={"model": "bert-tiny", "provenance": "measured"}).json()["results"]
        cells = {row["result_id"]: row for row in rows if row["batch_size"] == 4}
        assert set(measured[0]["evidence"]) <= set(cells)
        assert measured[0]["evidence"]
        interval = measured[0]["latency_ms"]
        assert interval["low"] <= interval["p50"] <= interval["high"]
        [row] = cells.values()
        # Beside other tests a batch may take a second, and a few samples have no median.
        assert interval["p50"] == pytest.approx(row["latency_p50_ms"] or row["latency_mean_ms"], rel=0.01)
        assert answer.json()["predictor_id"] == health.json()["predictor_id"]
