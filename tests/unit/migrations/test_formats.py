"""What each format's fixture must become, figure by figure: units, names, times, failures, refusals."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from migrations.detect import detect_format
from migrations.normalize.records import Record, RefusedCell
from migrations.sources.documents import Content, Document, parse

local = datetime.fromisoformat
FIXTURES = Path(__file__).parents[2] / "data" / "formats"


def read(document: Document) -> dict[str, Record | RefusedCell]:
    """The cells of a document by pointer."""
    found = detect_format(document)
    assert found is not None
    return {cell.pointer: cell for cell in found.parse(document)}


def fixture(name: str) -> dict[str, Record | RefusedCell]:
    return read(parse(Content.of((FIXTURES / name).read_bytes(), f"/old/{name}")))


def of(value: Any) -> dict[str, Record | RefusedCell]:
    return read(parse(Content.of(json.dumps(value).encode(), "/old/made.json")))


def record(cell: Record | RefusedCell) -> Record:
    assert isinstance(cell, Record), cell
    return cell


def refused(cell: Record | RefusedCell) -> RefusedCell:
    assert isinstance(cell, RefusedCell), cell
    return cell


class TestHardwareBenchmark:
    cells = fixture("hardware_benchmark.json")
    bert = "/benchmarks/embedding/bert-base-uncased"

    def test_seconds_become_nanosecond_samples(self) -> None:
        cell = record(self.cells[f"{self.bert}/cpu/benchmark_results/batch_4_seq_128"])
        result = cell.result
        assert result.samples_ns == (200_000_000, 210_000_000, 190_000_000)
        assert (result.batch_size, result.sequence_length, result.iterations) == (4, 128, 3)
        assert result.throughput_items_per_s == 19.8
        assert result.load_ms == 1500
        assert result.latency_mean_ms is None, "it follows from the samples"
        assert result.original["units"]["latencies"] == "s"
        assert result.original["stated"]["avg_latency"] == 0.2

    def test_names_are_normalised_and_kept(self) -> None:
        result = record(self.cells[f"{self.bert}/cpu/benchmark_results/batch_4_seq_128"]).result
        assert (result.model_id, result.model_family, result.hardware, result.backend) == (
            "bert-base",
            "bert",
            "cpu",
            "pytorch",
        )
        assert result.original["model"] == "bert-base-uncased"
        assert result.precision is None, "the runner names none"
        assert result.memory_peak_mib is None, "the runner never filled it in"

    def test_the_host_is_an_imported_one_and_its_devices_differ(self) -> None:
        cpu = record(self.cells[f"{self.bert}/cpu/benchmark_results/batch_4_seq_128"])
        cuda = record(self.cells[f"{self.bert}/cuda"])
        assert cpu.host_id is not None
        assert cpu.host_id == cuda.host_id
        assert cpu.host_id.startswith("imported-")
        assert (cpu.result.device_name, cuda.result.device_name) == ("Example CPU 9000", "Example GPU")
        assert cpu.result.device_id != cuda.result.device_id
        assert cpu.result.fingerprint is not None

    def test_time_without_a_zone_is_local(self) -> None:
        cell = record(self.cells[f"{self.bert}/cpu/benchmark_results/batch_4_seq_128"])
        assert (cell.occurred_at, cell.result.occurred_local) == (None, local("2024-01-05T10:15:02.250000"))
        assert record(self.cells[f"{self.bert}/cuda"]).result.occurred_local == local("2024-01-05T10:15:00")

    def test_failures_keep_their_message(self) -> None:
        cell = record(self.cells[f"{self.bert}/cpu/benchmark_results/batch_8_seq_128"]).result
        assert (cell.status, cell.reason, cell.batch_size) == ("failed", "out of memory", 8)
        whole = record(self.cells[f"{self.bert}/cuda"]).result
        assert (whole.status, whole.reason, whole.batch_size) == ("failed", "no kernel image is available", None)

    def test_what_has_no_place_is_refused_whole(self) -> None:
        unknown_key = refused(self.cells[f"{self.bert}/cpu/benchmark_results/warmup"])
        assert (unknown_key.rule, json.loads(unknown_key.content)["avg_latency"]) == ("unexpected_shape", 0.2)
        assert json.loads(refused(self.cells[f"{self.bert}/openvino"]).content) == "skipped"

    def test_an_unknown_model_keeps_its_name_and_a_mean_its_unit(self) -> None:
        pointer = "/benchmarks/audio/in-house~1speech-x/cpu/benchmark_results/batch_1_audio_30s"
        result = record(self.cells[pointer]).result
        assert (result.model_id, result.model_family) == ("in-house-speech-x", "audio")
        assert result.latency_mean_ms == 500
        assert result.sequence_length is None

    @pytest.mark.parametrize(
        ("key", "batch", "length"),
        [("batch_4", 4, None), ("batch_8_img_224x224", 8, None), ("batch_2_seq_512", 2, 512)],
    )
    def test_every_key_of_the_runner_is_read(self, key: str, batch: int, length: int | None) -> None:
        cell = {"status": "completed", "avg_latency": 0.1, "throughput": 10.0}
        (found,) = of({"benchmarks": {"f": {"gpt2": {"cpu": {"benchmark_results": {key: cell}}}}}}).values()
        assert (record(found).result.batch_size, record(found).result.sequence_length) == (batch, length)

    def test_a_timeout_keeps_what_was_completed(self) -> None:
        cell = {"status": "completed", "latencies": [1.0, 1.1], "timeout": True, "iterations": 2}
        lost = {"status": "completed", "timeout": True}
        cells = of({"benchmarks": {"f": {"gpt2": {"cpu": {"benchmark_results": {"batch_1": cell, "batch_2": lost}}}}}})
        kept, timed_out = (record(found).result for found in cells.values())
        assert (kept.status, kept.iterations, kept.original["stated"]["timeout"]) == ("ok", 2, True)
        assert timed_out.status == "timeout"

    def test_samples_with_a_hole_are_not_samples(self) -> None:
        cell = {"status": "completed", "latencies": [1.0, None], "avg_latency": 1.2}
        (found,) = of({"benchmarks": {"f": {"gpt2": {"cpu": {"benchmark_results": {"batch_1": cell}}}}}}).values()
        assert (record(found).result.samples_ns, record(found).result.latency_mean_ms) == ((), 1200)


class TestBatchSizeCard:
    cells = fixture("batch_size_card.json")

    def test_figures_are_taken_as_stated(self) -> None:
        result = record(self.cells["/batch_sizes/1"]).result
        assert (result.model_id, result.hardware, result.batch_size) == ("bert-base", "cuda", 1)
        assert (result.latency_mean_ms, result.throughput_items_per_s, result.memory_peak_mib) == (12.1, 82.6, 1101.5)
        assert result.occurred_local == local("2024-03-01T12:00:00")
        assert (result.device_id, record(self.cells["/batch_sizes/1"]).host_id) == (None, None)

    def test_a_failure_has_its_message_and_no_zeros(self) -> None:
        result = record(self.cells["/batch_sizes/4"]).result
        assert (result.status, result.reason) == ("failed", "timed out after 600 s")
        assert (result.latency_mean_ms, result.throughput_items_per_s) == (None, None)

    def test_a_batch_size_that_is_no_number_is_refused(self) -> None:
        assert refused(self.cells["/batch_sizes/all"]).rule == "unexpected_shape"


class TestDirectBenchmark:
    cells = fixture("direct_benchmark.json")

    def test_milliseconds_become_nanosecond_samples(self) -> None:
        result = record(self.cells["/batch_results/1"]).result
        assert result.samples_ns == (101_000_000, 100_000_000)
        assert (result.model_id, result.throughput_items_per_s) == ("vit-base", 9.95)

    def test_resident_memory_at_the_end_is_no_peak(self) -> None:
        result = record(self.cells["/batch_results/1"]).result
        assert result.memory_peak_mib is None
        assert result.original["stated"]["memory_mb"] == 838.5
        assert result.occurred_local == local("2024-03-06T17:48:38.372480")

    def test_time_with_a_zone_is_known(self) -> None:
        cell = record(self.cells["/batch_results/2"])
        assert (cell.occurred_at, cell.result.occurred_local) == (datetime(2024, 3, 6, 17, 48, 34, tzinfo=UTC), None)
        assert (cell.result.status, cell.result.reason) == ("failed", "killed")

    def test_text_where_an_object_should_be_is_refused(self) -> None:
        assert json.loads(refused(self.cells["/batch_results/4"]).content) == "not run"

    def test_a_run_without_batches_is_one_failure(self) -> None:
        value = {"model": "gpt2", "hardware": "cuda", "success": False, "batch_results": {}, "error": "no GPU"}
        (cell,) = of(value).values()
        assert (record(cell).result.status, record(cell).result.reason) == ("failed", "no GPU")

    def test_unreadable_time_is_unknown_and_kept(self) -> None:
        value = {"model": "gpt2", "hardware": "cpu", "timestamp": "last Tuesday", "batch_results": {"1": {}}}
        (cell,) = of(value).values()
        assert (record(cell).occurred_at, record(cell).result.occurred_local) == (None, None)
        assert record(cell).result.original["timestamp"] == "last Tuesday"


class TestDocumentedResult:
    cells = fixture("documented_result.json")

    def test_the_latency_list_is_the_samples(self) -> None:
        cell = record(self.cells["/batch_results/b1_s32"])
        assert cell.result.samples_ns == (4_000_000, 4_200_000, 4_100_000)
        assert (cell.result.batch_size, cell.result.sequence_length) == (1, 32)
        assert (cell.result.precision, cell.result.original["precision"]) == ("float16", "FP16")
        assert (cell.result.hardware, cell.result.original["hardware"]) == ("cuda", "cuda:0")
        assert (cell.result.load_ms, cell.result.threads, cell.result.device_name) == (2500, 4, "Example GPU")
        assert cell.occurred_at == datetime(2024, 5, 1, 6, tzinfo=UTC)
        assert cell.result.first_ms is None

    def test_statistics_without_samples_are_kept_as_stated(self) -> None:
        result = record(self.cells["/batch_results/b8_s128"]).result
        assert (result.latency_mean_ms, result.latency_p50_ms, result.latency_p90_ms) == (21, 20.5, 23)
        assert (result.latency_std_ms, result.latency_min_ms) == (1, None)

    def test_the_peak_of_the_process_belongs_to_the_largest_cell(self) -> None:
        peaks = {pointer: record(cell).result.memory_peak_mib for pointer, cell in self.cells.items()}
        assert peaks == {
            "/batch_results/b1_s32": None,
            "/batch_results/b8_s128": None,
            "/batch_results/b16_s128": 812.0,
        }

    def test_a_failed_cell_has_its_message(self) -> None:
        result = record(self.cells["/batch_results/b16_s128"]).result
        assert (result.status, result.reason) == ("failed", "CUDA out of memory")


class TestMeasurementCsv:
    cells = fixture("measurement_csv.csv")

    def test_columns_become_figures_and_empty_ones_stay_unknown(self) -> None:
        result = record(self.cells["/0"]).result
        assert (result.model_id, result.hardware, result.backend, result.precision) == (
            "resnet-50",
            "cuda",
            "pytorch",
            "float16",
        )
        assert (result.latency_p50_ms, result.latency_p95_ms, result.latency_p99_ms) == (10.1, 11.0, None)
        assert (result.throughput_items_per_s, result.memory_peak_mib, result.compile_ms) == (784.3, 900.5, None)
        assert (result.sequence_length, result.iterations, result.warmup_iterations) == (None, 50, 5)
        assert result.original["git_commit"] == "abc1234"

    def test_a_cpu_runtime_names_the_hardware_and_a_shape_the_length(self) -> None:
        result = record(self.cells["/1"]).result
        assert (result.hardware, result.backend, result.sequence_length) == ("onnxruntime", "onnxruntime", 128)
        assert (result.compile_ms, result.memory_peak_mib, result.threads) == (812.5, None, 2)

    def test_hardware_nobody_knows_is_refused_with_the_row(self) -> None:
        cell = refused(self.cells["/2"])
        assert cell.rule == "hardware_unknown"
        assert json.loads(cell.content)["throughput_items_per_s"] == 1000


class TestSuiteCsv:
    cells = fixture("suite_csv.csv")

    def test_an_error_is_a_failure(self) -> None:
        result = record(self.cells["/0"]).result
        assert (result.status, result.reason) == ("failed", "name 'np' is not defined")
        assert (result.batch_size, result.sequence_length) == (1, 16)

    def test_no_error_is_a_success_without_figures(self) -> None:
        result = record(self.cells["/1"]).result
        assert (result.status, result.latency_mean_ms, result.throughput_items_per_s) == ("ok", None, None)
        assert result.original["timestamp"] == "yesterday"
