"""Files written of a run, read back by the readers of old files: what was measured is what comes back."""

from __future__ import annotations

import csv
import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accel_platform.bench.plan.plan import SEGMENT_PREFIX
from accel_platform.errors import InvalidInput, NotFound
from accel_platform.events import EventLog
from accel_platform.events.types import DeviceObserved, HostObserved, ModelDescribed, ResultRecorded, RunStarted
from accel_platform.reports.comparison_csv import COLUMNS
from accel_platform.reports.run_export import create_folders, write_reports
from accel_platform.reports.run_record import BenchmarkRun, read_run, result_statistics
from accel_platform.settings import Settings
from factories import event, result
from migrations.detect import detect_format
from migrations.normalize.records import Record
from migrations.pipeline.importer import migrate
from migrations.sources.documents import load, parse

RUN = "0199-run"
SAMPLES = np.random.default_rng(3)
RUNTIMES = {"torch": "2.13.0", "transformers": "5.23.0"}


def measured(count: int, **changes: Any) -> ResultRecorded:
    samples = tuple(int(ns) for ns in SAMPLES.integers(1_000_003, 9_000_000, count))
    return result(
        samples_ns=samples,
        iterations=count,
        warmup_iterations=5,
        first_ms=12.345678,
        load_ms=250.5,
        threads=2,
        noisy=False,
        environment={"runtimes": RUNTIMES},
        **changes,
    )


RESULTS = (
    measured(700, batch_size=1, memory_peak_mib=400.25),
    measured(20, batch_size=4, memory_peak_mib=410.5),
    measured(5, batch_size=4, sequence_length=32),
    result(status="timeout", failure_class="timeout", reason="no answer within 3 s", batch_size=8, samples_ns=(),
           memory_peak_mib=None, threads=2),
    measured(64, hardware="openvino", backend="openvino", compile_ms=77.5),
    measured(64, hardware="wasm", backend="onnxruntime-web", model_id="vit-base", model_family="vit",
             sequence_length=None),
    measured(64, hardware="qnn", backend="onnxruntime-qnn", precision="float16", provenance="emulated"),
    measured(64, model_id="gpt2-tiny", model_family="gpt", mode="generation", output_tokens=32, prefill_ms=4.5,
             time_to_first_token_ms=4.75, time_per_output_token_ms=1.25),
    measured(64, model_id="t5-tiny", model_family="t5", mode="training", forward_ms=1.5, backward_ms=2.5,
             optimizer_ms=0.5, processes=2, scaling_efficiency=0.75, energy_j_per_item=0.125, energy_source="rapl: p"),
    measured(64, model_id="my-model", model_family="mine", weights_source="/w", weights_sha256="ab" * 32),
)  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> EventLog:
    log = EventLog.open(Settings(home=tmp_path / "home"))
    host = HostObserved(hostname="h", os="Linux 6", cpu_model="Test CPU", cpu_cores_logical=2, memory_mib=1024)
    device = DeviceObserved(hardware="cpu", backend="pytorch", available=True, driver="d1", device_id="cpu-test")
    vit = ModelDescribed(
        model_id="vit-base", architecture="vit", family="vit", modality="vision", parameters=86_000_000
    )
    before = [event(payload, run_id=RUN) for payload in (RunStarted(kind="benchmark"), host, device, vit)]
    log.append(before, key=f"{SEGMENT_PREFIX}{RUN}-0000")
    log.append([event(r, run_id=RUN) for r in RESULTS], key=f"{SEGMENT_PREFIX}{RUN}-0001")
    log.append([event(result(model_id="other"), run_id="0199-run2")], key=f"{SEGMENT_PREFIX}0199-run2-0000")
    return log


def read_back(path: Path) -> list[Record]:
    document = parse(load(path))
    found = detect_format(document)
    assert found is not None
    records = list(found.parse(document))
    assert all(isinstance(record, Record) for record in records), records
    return [record for record in records if isinstance(record, Record)]


KEPT = (
    "model_id", "model_family", "hardware", "backend", "mode", "precision", "batch_size", "sequence_length", "status",
    "reason", "failure_class", "device_name", "threads", "samples_ns", "iterations", "warmup_iterations", "first_ms",
    "load_ms", "compile_ms", "memory_peak_mib", "weights_source", "weights_sha256", "output_tokens", "prefill_ms",
    "time_to_first_token_ms", "time_per_output_token_ms", "forward_ms", "backward_ms", "optimizer_ms", "processes",
    "scaling_efficiency", "energy_j_per_item", "energy_source",
)  # fmt: skip
CSV_KEPT = (
    "model_id", "hardware", "backend", "precision", "batch_size", "sequence_length", "status", "reason", "threads",
    "iterations", "warmup_iterations", "compile_ms", "memory_peak_mib",
)  # fmt: skip


def test_the_json_report_comes_back_as_it_was(log: EventLog, tmp_path: Path) -> None:
    files = write_reports(log, RUN, folder=tmp_path / "r")
    at = read_run(log, RUN).at
    stamp = f"{at:%Y%m%d_%H%M%S}"
    assert f"bert-base_cpu_float32_{stamp}.json" in {file.name for file in files}
    assert len(files) == 7, "one per model, hardware, precision, mode and weights"
    read = {}
    for file in files:
        for record in read_back(file):
            r = record.result
            read[r.model_id, r.hardware, r.batch_size, r.sequence_length] = record
    assert len(read) == len(RESULTS)
    for original in RESULTS:
        record = read[original.model_id, original.hardware, original.batch_size, original.sequence_length]
        for name in KEPT:
            if original.status != "ok" and name == "load_ms":
                continue  # the process loaded once, for all its cells
            assert getattr(record.result, name) == getattr(original, name), name
        assert record.result.provenance == "imported"
        assert record.occurred_at is not None
        assert abs((record.occurred_at - datetime.now(UTC)).total_seconds()) < 60


def test_the_document_has_the_documented_shape(log: EventLog, tmp_path: Path) -> None:
    write_reports(log, RUN, folder=tmp_path)
    document = json.loads(next(tmp_path.glob("bert-base_cpu_float32_*.json")).read_text())
    assert set(document) >= {
        "model_id", "device", "precision", "architecture_type", "task", "device_info", "timestamp", "load_results",
        "batch_results", "summary",
    }  # fmt: skip
    assert set(document["load_results"]) == {"load_time_seconds", "memory_usage_mb", "peak_memory_mb"}
    assert list(document["batch_results"]) == ["b1_s128", "b4_s128", "b4_s32", "b8_s128"]
    cell = document["batch_results"]["b1_s128"]
    assert len(cell["latency_ms"]) == 700
    assert cell["latency_median_ms"] == pytest.approx(np.median(cell["latency_ms"]))
    assert cell["latency_99p_ms"] == pytest.approx(np.percentile(cell["latency_ms"], 99))
    assert cell["throughput_samples_per_sec"] == pytest.approx(1000 / np.mean(cell["latency_ms"]))
    assert cell["first_token_latency_ms"] is None
    few = document["batch_results"]["b4_s32"]
    assert "latency_median_ms" not in few, "5 samples have no median"
    assert document["batch_results"]["b8_s128"] == {
        "success": False,
        "status": "timeout",
        "error": "no answer within 3 s",
        "failure_class": "timeout",
    }
    assert document["summary"]["cells_failed"] == 1
    assert document["load_results"]["peak_memory_mb"] == 700.5


def test_an_emulated_report_is_no_evidence_when_it_is_imported(log: EventLog, tmp_path: Path) -> None:
    write_reports(log, RUN, folder=tmp_path / "r", csv=tmp_path / "c" / "x.csv")
    other = EventLog.open(Settings(home=tmp_path / "other"))
    report = migrate([tmp_path / "r", tmp_path / "c"], other)
    assert report.outcomes == {"imported": 8}
    assert report.records == 2 * len(RESULTS)
    for imported in other.read(types={"ResultRecorded"}):
        payload = imported.payload
        assert isinstance(payload, ResultRecorded)
        if payload.hardware == "qnn":
            assert payload.provenance == "simulated"


def test_the_csv_has_its_columns_and_comes_back(log: EventLog, tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    assert write_reports(log, RUN, folder=None, csv=path) == [path]
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert len(COLUMNS) == 22
    assert rows[1]["latency_p95_ms"] == "", "20 samples have no 95th percentile"
    assert rows[5]["input_shape"] == "pixel_values 1x3x224x224"
    records = read_back(path)
    assert len(records) == len(RESULTS)
    for original, record in zip(RESULTS, records, strict=True):
        back, figures = record.result, result_statistics(original)
        for name in CSV_KEPT:
            assert getattr(back, name) == getattr(original, name), name
        assert back.latency_p50_ms == figures.p50_ms
        assert back.latency_mean_ms == figures.mean_ms
        assert back.throughput_items_per_s == figures.items_per_s


@pytest.mark.slow
def test_charts_are_drawn_of_what_ran(log: EventLog, tmp_path: Path) -> None:
    files = write_reports(log, RUN, folder=tmp_path, charts=True, headings={"bert-base": "embedding"})
    drawn = {file.name: file for file in files if file.suffix != ".json"}
    assert set(drawn) == {"charts.html", "latency.png", "throughput.png", "memory.png"}
    page = drawn["charts.html"].read_text()
    assert "embedding: bert-base, inference, 128 tokens" in page
    assert "vit: vit-base" in page
    assert "qnn, float16, emulated" in page
    assert not re.search(r"(src|href)=.?http", page), "it needs no network"
    for name in ("latency.png", "throughput.png", "memory.png"):
        assert drawn[name].read_bytes().startswith(b"\x89PNG")


def test_only_the_run_itself_is_reported_and_an_unknown_one_is_not_found(log: EventLog) -> None:
    run: BenchmarkRun = read_run(log, RUN)
    assert len(run.results) == len(RESULTS)
    with pytest.raises(NotFound, match="no benchmark run"):
        read_run(log, "0199-ru")


def test_places_that_cannot_be_written_are_found_out_before(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match="Reports cannot go to"):
        create_folders(tmp_path / "file" / "reports", None)
    with pytest.raises(InvalidInput, match="is a folder"):
        create_folders(None, tmp_path)
