"""What the fixtures of tools that print their results, and of more tables, must become: units, names, failures."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

import pytest

from accel_platform.events.types import ResultRecorded
from migrations.detect import detect_format
from migrations.normalize.records import Record, RefusedCell
from migrations.sources.documents import Content, Document, parse

FIXTURES = Path(__file__).parents[2] / "data" / "formats"


def document(name: str, path: str | None = None) -> Document:
    (found,) = FIXTURES.glob(f"{name}.*")
    return parse(Content.of(found.read_bytes(), path or f"/old/{found.name}"))


def cells(given: Document) -> list[Record | RefusedCell]:
    found = detect_format(given)
    assert found is not None
    return [cell for cell in found.parse(given) if isinstance(cell, Record | RefusedCell)]


def results(name: str, path: str | None = None) -> list[ResultRecorded]:
    return [cell.result for cell in cells(document(name, path)) if isinstance(cell, Record)]


def of(text: str, path: str = "/old/made.txt") -> list[ResultRecorded]:
    return [cell.result for cell in cells(parse(Content.of(text.encode(), path))) if isinstance(cell, Record)]


def test_trtexec_is_milliseconds_per_query() -> None:
    first, broken = results("trtexec")
    assert (first.model_id, first.hardware, first.device_name) == ("resnet-50", "cuda", "NVIDIA Example A100")
    assert (first.batch_size, first.precision, first.iterations) == (4, "float16", 2000)
    assert (first.latency_mean_ms, first.latency_p50_ms, first.latency_p99_ms) == (1.75, 1.625, 2.25)
    assert (first.throughput_items_per_s, first.compile_ms, first.load_ms) == (2666, 35_500, 250)
    assert first.occurred_local == datetime.fromisoformat("2024-01-05T10:11:12")
    assert (broken.status, broken.reason) == ("failed", "Unsupported operator")


def test_queries_that_trtexec_exported_are_samples() -> None:
    (result,) = results("trtexec_times")
    assert (result.samples_ns, result.hardware) == ((1_625_000, 1_750_000), "cuda")


def test_tflite_is_microseconds() -> None:
    first, missing = results("tflite_benchmark")
    assert (first.model_id, first.hardware, first.threads) == ("mobilenet-v2", "opencl", 4)
    assert (first.latency_mean_ms, first.latency_p50_ms, first.latency_std_ms) == (14.5, 14.4, 0.25)
    assert (first.first_ms, first.load_ms, first.memory_peak_mib) == (18.535, 5.5, 40.25)
    assert (missing.status, missing.hardware) == ("failed", "cpu")


def test_ncnn_prints_its_settings_first() -> None:
    squeezenet, quantized, mobilenet, vgg = results("ncnn_console")
    assert (squeezenet.hardware, squeezenet.threads, squeezenet.latency_mean_ms) == ("cpu", 4, 5)
    assert (quantized.model_id, quantized.precision) == ("squeezenet", "int8")
    assert (mobilenet.hardware, mobilenet.device_name) == ("vulkan", "Example GPU")
    assert vgg.status == "failed", "it prints -233 for what it could not run"


def test_llama_batched_bench_is_a_generation_of_several_sequences() -> None:
    one, four = results("llama_batched_bench")
    assert (one.model_id, one.hardware, one.device_name) == ("gpt2", "cuda", "NVIDIA Example 4090")
    assert one.precision == "q4_0"
    assert (four.batch_size, four.sequence_length, four.output_tokens) == (4, 128, 128)
    assert (four.latency_mean_ms, four.prefill_ms, four.time_per_output_token_ms) == (1750, 150, 12.5)


@pytest.mark.parametrize(
    ("name", "others", "expected"),
    [
        ("llama_batched_bench", {"gpt2": "gpt2-xl"}, [("gpt2", 1), ("gpt2", 4), ("gpt2-xl", 1), ("gpt2-xl", 4)]),
        (
            "perf_analyzer_console",
            {"resnet50": "resnet18", "-b 8": "-b 2", "size: 8": "size: 2"},
            [("resnet-50", 8), ("resnet-50", 8), ("resnet-18", 2), ("resnet-18", 2)],
        ),
        (
            "perf_analyzer_console",
            {"$ perf_analyzer -m resnet50 -b 8 --concurrency-range 1:2\n": "", "size: 8": "size: 2"},
            [("resnet-50", 8), ("resnet-50", 8)],
        ),
    ],
)  # fmt: skip
def test_of_several_runs_in_one_log_each_has_its_own_model(
    name: str, others: dict[str, str], expected: list[tuple[str, int]]
) -> None:
    text = "\n".join(document(name).value) + "\n"
    second = text
    for this, other in others.items():
        assert this in second
        second = second.replace(this, other)
    assert [(one.model_id, one.batch_size) for one in of(text + second)] == expected


def test_perf_analyzer_prints_each_load() -> None:
    one, two = results("perf_analyzer_console")
    assert (one.model_id, one.batch_size, one.original["concurrency"]) == ("resnet-50", 8, 1)
    assert (one.latency_mean_ms, one.latency_p99_ms, one.throughput_items_per_s) == (20, 21, 400)
    assert (two.original["concurrency"], two.latency_p50_ms) == (2, 22)


def test_genai_perf_as_json_and_as_csv() -> None:
    (result,) = results("genai_perf")
    assert (result.model_id, result.backend, result.batch_size) == ("gpt2", "trtllm", None)
    assert (result.latency_mean_ms, result.latency_p50_ms, result.throughput_items_per_s) == (220.5, 219, 4.5)
    assert (result.time_to_first_token_ms, result.throughput_tokens_per_s) == (30, 360)
    text = (
        "Metric,avg,min,max,p99,p95,p90,p75,p50,p25\r\n"
        "Time To First Token (ms),30.50,20.00,44.00,44.00,40.00,38.00,33.00,30.00,28.00\r\n"
        'Request Latency (ms),"1,220.50",200.00,241.00,240.00,235.00,231.00,225.00,219.00,210.00\r\n'
        "\r\nMetric,Value\r\nOutput Token Throughput (per sec),360.00\r\nRequest Throughput (per sec),4.50\r\n"
    )
    (table,) = of(text, "/runs/H100/gpt2/profile_export_genai_perf.csv")
    assert (table.latency_mean_ms, table.latency_p90_ms, table.throughput_items_per_s) == (1220.5, 231, 4.5)
    assert (table.hardware, table.time_to_first_token_ms) == ("cuda", 30)


def test_llmperf_is_seconds_per_request() -> None:
    (result,) = results("llmperf")
    assert (result.latency_mean_ms, result.latency_p50_ms, result.latency_std_ms) == (3500, 3250, 500)
    assert (result.throughput_items_per_s, result.throughput_tokens_per_s) == (0.5, 43.5)


def test_torchbench_metrics_of_one_run_belong_together() -> None:
    bert, alexnet, resnet = results("torchbench_metrics")
    assert (bert.latency_mean_ms, bert.batch_size, bert.hardware) == (12.5, 16, "cuda")
    assert (bert.memory_peak_mib, bert.memory_device_peak_mib) == (1000, 2000)
    assert (alexnet.mode, alexnet.batch_size) == ("training", None)
    assert (resnet.status, resnet.reason) == ("failed", "OOM: CUDA out of memory")
    (other,) = [cell for cell in cells(document("torchbench_metrics")) if isinstance(cell, RefusedCell)]
    assert other.rule == "metric_unknown"


def test_the_hubs_yaml_in_both_layouts() -> None:
    tflite, onnx, genie = results("qualcomm_perf_yaml")
    assert (tflite.model_id, tflite.hardware, tflite.device_name) == ("mobilenet-v2", "qnn", "Example Phone S1")
    assert (tflite.latency_mean_ms, tflite.memory_peak_mib, tflite.precision) == (0.875, 64, "float32")
    assert onnx.status == "failed"
    assert (genie.throughput_tokens_per_s, genie.original["stated"]["context_length"]) == (12.5, 4096)
    old = """models:
- name: Example-Net
  performance_metrics:
  - torchscript_onnx_qnn:
      inference_time: 350.0
      throughput: 2857.14
      estimated_peak_memory_range:
        min: 12288
        max: 2097152
      primary_compute_unit: NPU
      precision: int8
      job_status: Passed
    reference_device_info:
      name: Example Phone
      os: '13'
    timestamp: '2024-10-17T17:03:34Z'
"""
    (result,) = of(old)
    assert (result.latency_mean_ms, result.memory_peak_mib, result.device_name) == (0.35, 2, "Example Phone")


def test_google_benchmarks_table_knows_aggregates_by_their_names() -> None:
    bert, sort, broken = sorted(results("google_benchmark_table"), key=lambda r: (r.status != "ok", r.model_id))
    assert (bert.samples_ns, bert.throughput_items_per_s) == ((1500,), 2_000_000)
    assert sort.model_id == "microbenchmark:sort/1024"
    assert (sort.latency_mean_ms, sort.latency_p50_ms) == (0.0025, 0.0024)
    assert broken.reason == "no file"
    printed = """2024-05-01T06:00:00+00:00
Running ./bench
Run on (8 X 3000 MHz CPU s)
-----------------------------------------------------
Benchmark           Time             CPU   Iterations
-----------------------------------------------------
BM_sort/1024     2500 ns         2400 ns       280000 items_per_second=4.1M/s
"""
    (row,) = of(printed)
    assert (row.samples_ns, row.iterations) == ((2500,), 280_000)


def test_tables_of_further_tools() -> None:
    gpu, cpu, failed = results("transformers_benchmark")
    assert (gpu.backend, gpu.precision, gpu.latency_p95_ms, gpu.throughput_items_per_s) == (
        "onnxruntime", "float16", 5.5, 800,
    )  # fmt: skip
    assert (cpu.backend, cpu.hardware, failed.status) == ("pytorch", "cpu", "failed")
    warm, run, none = results("openvino_llm_bench")
    assert (run.hardware, run.latency_mean_ms, run.time_per_output_token_ms) == ("openvino", 6400, 98.5)
    assert (warm.original["iteration"], none.hardware, none.status) == ("0", "unknown", "failed")
    timed, empty = results("pytest_benchmark_table")
    assert (timed.model_family, timed.latency_mean_ms, empty.status) == ("microbenchmark", 2, "failed")
    bert, sleep, false = results("hyperfine")
    assert (bert.samples_ns, sleep.latency_mean_ms) == ((240_000_000, 260_000_000), 1500)
    assert (bert.model_family, false.status) == ("microbenchmark", "failed")


@pytest.mark.parametrize("name", ["accuracy_results", "device_log"])
def test_what_times_nothing_is_no_result(name: str) -> None:
    found = detect_format(document(name))
    assert found is not None
    assert found.not_results
