"""Reports of load generators: units, one definition of time per output token, and what is no load of one copy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accel_platform.bench.load.llm_d import llm_d_report
from accel_platform.errors import InvalidInput
from accel_platform.events.types import ResultRecorded
from migrations.detect import detect_format
from migrations.normalize.records import NoResult, Record, RefusedCell
from migrations.sources.documents import Content, Document, load, parse
from predictor.serving.measured_loads import MeasuredLoad, measured_load

FIXTURES = Path(__file__).parents[2] / "data" / "formats"
PLACE = "/runs/H100/Llama-3.1-8B"
FORMATS = {
    "accelmark": "accelmark",
    "guidellm": "guidellm",
    "inference_perf": "inference_perf",
    "aiperf_requests": "aiperf_requests",
    "inferencex": "inferencex",
    "mlperf_endpoints": "mlperf_endpoints",
    "llm_d_report": "llm_d_report",
    "trtllm_bench": "trtllm_bench",
    "genai_bench": "genai_bench",
    "evalscope_perf": "evalscope_perf",
}


def document(name: str) -> Document:
    (path,) = FIXTURES.glob(f"{name}.*")
    return parse(Content.of(path.read_bytes(), f"{PLACE}/{path.name}"))


def parts(given: Document) -> list[Any]:
    found = detect_format(given)
    assert found is not None
    return list(found.parse(given))


def results(name: str) -> list[ResultRecorded]:
    return [part.result for part in parts(document(name)) if isinstance(part, Record)]


def of_text(text: str, name: str = "made.json") -> list[Any]:
    return parts(parse(Content.of(text.encode(), f"{PLACE}/{name}")))


def as_load(result: ResultRecorded) -> MeasuredLoad | None:
    return measured_load("event", json.loads(result.model_dump_json()))


@pytest.mark.parametrize("name", FORMATS)
def test_each_report_is_recognised_and_becomes_a_generation(name: str) -> None:
    found = detect_format(document(name))
    assert found is not None
    assert found.name == FORMATS[name]
    for result in results(name):
        assert result.mode == "generation"
        assert result.batch_size is None
        if result.status == "ok":
            assert result.hardware == "cuda" or name in ("guidellm", "inferencex")
            assert result.time_to_first_token_ms is not None
            assert result.time_per_output_token_ms is not None


def test_guidellm_counts_the_first_token_in_and_we_do_not() -> None:
    users, arrivals, broken = results("guidellm")
    assert (users.model_id, users.hardware) == ("llama-3.1-8b", "cuda")
    assert (users.time_to_first_token_ms, users.time_per_output_token_ms) == (180, 37.5)
    assert (users.latency_mean_ms, users.sequence_length, users.output_tokens) == (4000, 512, 101)
    assert users.original["concurrency"] == 8
    assert users.original["failed_requests"] == 2
    assert users.original["stated"]["time_per_output_token_ms"]["p50"] == 40
    assert (arrivals.original.get("concurrency"), arrivals.original["request_rate"]) == (None, "2.5")
    assert (broken.status, broken.reason) == ("failed", "0 requests were answered")


def test_guidellm_before_0_7_keeps_the_question_elsewhere() -> None:
    (path,) = FIXTURES.glob("guidellm.json")
    report = json.loads(path.read_text())
    del report["config"]
    report["args"] = {"target": "http://host", "model": "Qwen/Qwen3-32B", "profile": "concurrent", "rate": [8]}
    report["benchmarks"] = [report["benchmarks"][0], {"metrics": None}]
    record, refused = of_text(json.dumps(report))
    assert record.result.model_id == "qwen3-32b"
    assert isinstance(refused, RefusedCell)


def test_inference_perf_counts_pieces_of_the_stream_and_we_count_tokens() -> None:
    (result,) = results("inference_perf")
    assert result.time_to_first_token_ms == 150
    assert result.time_per_output_token_ms == pytest.approx((2700 - 200) / 100)
    assert result.original["stated"]["time_per_output_token_ms"]["mean"] == 12
    assert (result.original["request_rate"], result.original["failed_requests"]) == ("10.0", 3)
    assert (result.latency_p99_ms, result.throughput_tokens_per_s) == (4000, 1005)


def test_requests_of_aiperf_are_one_load_without_its_warm_up() -> None:
    (result,) = results("aiperf_requests")
    assert (result.iterations, result.original["failed_requests"]) == (3, 1)
    assert (result.time_to_first_token_ms, result.time_per_output_token_ms) == (120, 12)
    assert (result.latency_p50_ms, result.sequence_length, result.output_tokens) == (240, 550, 11)
    (path,) = FIXTURES.glob("aiperf_requests.*")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    failed = [line for line in lines if line["error"]]
    (none,) = of_text("".join(json.dumps(line) + "\n" for line in [*failed, *failed]), "profile_export.jsonl")
    assert (none.result.status, none.result.reason) == ("failed", "no room")


def test_inferencex_is_seconds_and_tells_prefill_apart() -> None:
    one, apart, workers = results("inferencex")
    assert (one.model_id, one.precision, one.backend) == ("openai-gpt-oss-120b", "fp4", "vllm")
    assert (one.time_to_first_token_ms, one.time_per_output_token_ms) == (70, pytest.approx(6.1))
    assert (one.throughput_tokens_per_s, one.device_name) == (2400, "4 x h200")
    found = as_load(one)
    assert found is not None
    assert (found.deployment.devices, found.load.users, found.deployment.device.name) == (4, 16, "NVIDIA H200 SXM")
    # A result states the typical request; the load is compared with the means of other tables.
    assert (found.first_ms, found.token_ms) == (80, 6)
    assert apart.original["configuration"] == {"mode": "disagg"}
    assert as_load(apart) is None
    assert as_load(workers) is None
    assert workers.original["model"] == "deepseek-ai/DeepSeek-R1-0528"
    assert (workers.hardware, workers.backend, workers.device_name) == ("rocm", "sglang", "24 x mi355x")
    # Devices of a worker are those of all of them, shared; tokens come from those that generate.
    assert workers.original["configuration"] == {
        "mode": "disagg",
        "prompt_workers": 1,
        "prompt_devices": 8,
        "prompt_attention_copies": 8,
        "token_workers": 2,
        "token_devices": 8,
        "token_attention_copies": 1,
    }
    assert workers.throughput_tokens_per_s == pytest.approx(340 * 16)


def test_inferencex_calls_tensorrt_llm_trt() -> None:
    (path,) = FIXTURES.glob("inferencex.*")
    [row, _, apart] = json.loads(path.read_text())
    (found,) = of_text(json.dumps([row | {"framework": "trt"}]))
    assert found.result.backend == "trtllm"
    image = "nvcr.io#nvidia/ai-dynamo/tensorrtllm-runtime:0.7.0.post2"
    (found,) = of_text(json.dumps([apart | {"framework": "dynamo-trt", "image": image}]))
    assert found.result.backend == "trtllm"
    assert found.result.environment["trtllm"] == image  # its version is that of Dynamo
    (found,) = of_text(json.dumps([apart | {"spec_decoding": "mtp", "num_decode_gpu": 15}]))
    # 15 devices are not those of two equal workers.
    assert found.result.original["configuration"] == {"mode": "disagg", "speculative_decoding": "mtp"}


def test_inferencex_states_the_version_in_its_image_and_tells_speculation_apart() -> None:
    (path,) = FIXTURES.glob("inferencex.*")
    [row, *_] = json.loads(path.read_text())
    images = {
        "lmsysorg/sglang:v0.5.6.post1-rocm700-mi35x": "0.5.6.post1",
        "nvcr.io#nvidia/tensorrt-llm/release:1.2.0rc6.post2": "1.2.0rc6.post2",
        "nvcr.io/nvidia/tensorrt-llm/release:gpt-oss-dev": "nvcr.io/nvidia/tensorrt-llm/release:gpt-oss-dev",
    }
    for image, version in images.items():
        (found,) = of_text(json.dumps([row | {"image": image}]))
        load = as_load(found.result)
        assert load is not None
        assert load.deployment.engine_version == version
    short = row | {"hw": "mi355x-sglang", "framework": "sglang", "model": "dsr1", "precision": "fp8", "tp": 8}
    (found,) = of_text(json.dumps([short]))
    load = as_load(found.result)
    assert load is not None
    assert (load.model, load.deployment.device.name) == ("deepseek-v3", "AMD Instinct MI355X")
    (found,) = of_text(json.dumps([short | {"spec_method": "mtp"}]))
    assert found.result.original["configuration"] == {"mode": "speculative decoding: mtp"}
    assert as_load(found.result) is None


def test_mlperf_endpoints_is_nanoseconds_and_an_interrupted_run_a_failure() -> None:
    (result,) = results("mlperf_endpoints")
    assert (result.time_to_first_token_ms, result.time_per_output_token_ms) == (80, 10.5)
    assert (result.latency_p99_ms, result.iterations, result.throughput_items_per_s) == (3000, 98, 1.96)
    (path,) = FIXTURES.glob("mlperf_endpoints.*")
    (stopped,) = of_text(json.dumps(json.loads(path.read_text()) | {"state": "interrupted"}))
    assert (stopped.result.status, stopped.result.reason) == ("failed", "the run was interrupted")


def test_a_report_of_llm_d_is_a_load_on_its_devices() -> None:
    (result,) = results("llm_d_report")
    assert (result.model_id, result.backend, result.device_name) == (
        "qwen3-32b",
        "vllm",
        "2 x NVIDIA-H100-80GB-HBM3",
    )
    assert result.time_per_output_token_ms == pytest.approx(30)
    assert result.original["stated"]["time_per_output_token_ms"] == {"mean": 12}
    assert (result.iterations, result.latency_p50_ms, result.sequence_length) == (496, 3200, 2262)
    found = as_load(result)
    assert found is not None
    assert (found.deployment.devices, found.load.users, found.deployment.engine_version) == (2, 64, "0.11.0")


def test_trtllm_bench_names_its_gpus() -> None:
    (result,) = results("trtllm_bench")
    assert (result.backend, result.precision, result.device_name) == ("trtllm", "fp8", "2 x NVIDIA H200")
    assert (result.time_to_first_token_ms, result.time_per_output_token_ms) == (100, 19.5)
    assert (result.latency_p90_ms, result.iterations, result.throughput_items_per_s) == (2400, 500, 25)
    assert result.original["stated"]["requests_at_once_mean"] == 61.5
    assert as_load(result) is None, "nobody says how many requests it allowed at once"
    report = json.loads((FIXTURES / "trtllm_bench.json").read_text())
    del report["streaming_metrics"]
    (whole,) = of_text(json.dumps(report | {"decoding_stats": {"mode": "EAGLE"}}))
    assert (whole.result.time_to_first_token_ms, whole.result.time_per_output_token_ms) == (None, None)
    assert whole.result.original["configuration"] == {"mode": "speculative decoding: EAGLE"}


def test_genai_bench_is_in_the_unit_it_states(tmp_path: Path) -> None:
    (result,) = results("genai_bench")
    assert (result.time_to_first_token_ms, result.time_per_output_token_ms) == (100, 20)
    assert (result.latency_p99_ms, result.latency_std_ms, result.iterations) == (2750, 100, 96)
    assert (result.original["concurrency"], result.original["failed_requests"]) == (8, 2)
    (path,) = FIXTURES.glob("genai_bench.*")
    report = json.loads(path.read_text()) | {"_time_unit": "ms"}
    run = tmp_path / "D(512,101)_num_concurrency_8.json"
    run.write_text(json.dumps(report))
    about = {
        "benchmark_version": "0.0.5", "api_backend": "openai", "api_model_name": "m", "model": "Qwen/Qwen3-8B",
        "server_engine": "SGLang", "server_version": "0.5.1", "server_gpu_type": "H100", "server_gpu_count": "2",
    }  # fmt: skip
    beside = tmp_path / "experiment_metadata.json"
    beside.write_text(json.dumps(about))
    (found,) = parts(parse(load(run)))
    assert (found.result.original["model"], found.result.backend) == ("Qwen/Qwen3-8B", "sglang")
    assert (found.result.device_name, found.result.time_to_first_token_ms) == ("2 x H100", 0.1)
    of_about = detect_format(parse(load(beside)))
    assert of_about is not None
    assert of_about.not_results is not None


def test_genai_bench_of_errors_alone_is_a_failure() -> None:
    (path,) = FIXTURES.glob("genai_bench.*")
    report = json.loads(path.read_text())
    report["aggregated_metrics"] |= {"num_completed_requests": 0, "stats": {"ttft": {}, "e2e_latency": {}}}
    (found,) = of_text(json.dumps(report))
    assert (found.result.status, found.result.reason) == ("failed", "no room")


def test_evalscope_reads_the_files_beside_it_and_either_generation_of_names(tmp_path: Path) -> None:
    (result,) = results("evalscope_perf")
    assert (result.latency_mean_ms, result.time_to_first_token_ms) == (2200, 200)
    assert result.time_per_output_token_ms == pytest.approx(20), "the tool's own counts differ between versions"
    assert (result.original["concurrency"], result.original.get("request_rate")) == (8, None)
    old = {
        "Number of concurrency": 4, "Succeed requests": 9, "Failed requests": 1, "Average latency (s)": 1.0,
        "Average time to first token (s)": 0.1, "Average output tokens per request": 10.0,
    }  # fmt: skip
    rows = [{"Percentiles": "50%", "Latency (s)": 0.9, "TTFT (s)": 0.09}, {"Percentiles": "max", "Latency (s)": 7.0}]
    args = {"api": "openai", "parallel": 4, "model": "Qwen/Qwen3-8B", "tokenizer_path": None}
    for name, content in (("summary", old), ("percentile", rows), ("args", args)):
        (tmp_path / f"benchmark_{name}.json").write_text(json.dumps(content))
    (found,) = parts(parse(load(tmp_path / "benchmark_summary.json")))
    assert (found.result.original["model"], found.result.iterations) == ("Qwen/Qwen3-8B", 9)
    assert (found.result.latency_p50_ms, found.result.time_to_first_token_ms) == (900, 90)
    for name in ("percentile", "args"):
        beside = detect_format(parse(load(tmp_path / f"benchmark_{name}.json")))
        assert beside is not None
        assert beside.not_results is not None


def test_an_answer_in_one_piece_has_no_first_token() -> None:
    (path,) = FIXTURES.glob("evalscope_perf.*")
    (found,) = of_text(json.dumps(json.loads(path.read_text()) | {"Avg TTFT (ms)": 2200.0}))
    assert (found.result.time_to_first_token_ms, found.result.time_per_output_token_ms) == (None, None)


def test_reports_of_llm_d_as_json_and_of_several_engines() -> None:
    import yaml

    (path,) = FIXTURES.glob("llm_d_report.yaml")
    report = yaml.safe_load(path.read_text())
    engine = report["scenario"]["stack"][0]["standardized"]
    engine["role"] = "decode"
    report["version"] = "0.2.1"
    del report["run"]
    (record,) = of_text(json.dumps(report))
    assert record.result.original["configuration"]["mode"] == "several engines"
    assert as_load(record.result) is None
    del report["results"]["request_performance"]["aggregate"]["requests"]["output_length"]
    (record,) = of_text(json.dumps(report))
    assert record.result.time_per_output_token_ms == 12, "nothing tells better"


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("version: '0.2'", "version: '0.9'", "version 0.9 of the report is not known"),
        ("uid: example-1", "uid: &a example-1\n  eid: *a", "aliases"),
        ("total: 500", "total: [500", "no YAML that can be read"),
        ("uid: example-1", f"uid: {'[' * 300}{']' * 300}", "levels deep"),
    ],
)
def test_a_report_that_cannot_be_read_says_why(old: str, new: str, says: str) -> None:
    (path,) = FIXTURES.glob("llm_d_report.yaml")
    (part,) = of_text(path.read_text().replace(old, new), "report.yaml")
    assert says in part.reason


@pytest.mark.parametrize("name", sorted(FORMATS.keys() - {"accelmark"}))  # it states no mean first token
def test_each_load_can_be_handed_on_as_a_report_of_llm_d(name: str) -> None:
    result = next(result for result in results(name) if result.status == "ok")
    report = llm_d_report("event-1", json.loads(result.model_dump_json()))
    (record,) = of_text(json.dumps(report))
    again = record.result
    assert again.time_to_first_token_ms == pytest.approx(result.time_to_first_token_ms)
    assert again.latency_mean_ms == result.latency_mean_ms
    assert (again.sequence_length, again.output_tokens) == (result.sequence_length, result.output_tokens)
    failed = ResultRecorded.model_validate(result.model_dump() | {"status": "failed", "reason": "none"})
    with pytest.raises(InvalidInput, match="no load on a served model"):
        llm_d_report("event-1", json.loads(failed.model_dump_json()))


def test_a_detailed_file_of_vllm_has_statistics_of_its_requests() -> None:
    row = {
        "backend": "vllm", "model_id": "meta-llama/Llama-3.1-8B", "request_throughput": 2.0, "output_throughput": 20.0,
        "completed": 2, "max_concurrency": 2, "total_input_tokens": 200, "total_output_tokens": 8,
        "ttfts": [0.1, 0.2, 0.0], "itls": [[0.01, 0.02, 0.03], [0.02, 0.02, 0.02], []], "output_lens": [4, 4, 0],
    }  # fmt: skip
    (record,) = of_text(json.dumps({**row, "mean_ttft_ms": 140.0}))
    assert record.result.time_to_first_token_ms == 140, "the tool's own statistics stand alone"
    assert record.result.time_per_output_token_ms == pytest.approx(20)
    assert record.result.latency_p50_ms == pytest.approx(210)
    assert record.result.latency_p99_ms is None, "two requests have no 99th percentile"
    many = {**row, "ttfts": [i / 1000 for i in range(1, 301)], "itls": [[0.01]] * 300, "completed": 300}
    (record,) = of_text(json.dumps(many))
    assert record.result.latency_p99_ms == pytest.approx(10 + np.percentile(np.arange(1, 301), 99))
    assert record.result.time_to_first_token_ms == pytest.approx(150.5)


def test_accelmark_tells_lengths_from_its_suite_and_rates() -> None:
    several, alone, eager = results("accelmark")
    # 200 requests in two minutes with eight users: 4.8 s each. 80 ms are the first token's, and 329 follow.
    assert (several.latency_mean_ms, several.output_tokens, several.sequence_length) == (4800, 330, 236)
    assert several.time_to_first_token_ms == 80
    assert several.time_per_output_token_ms == pytest.approx((4800 - 80) / 329)
    assert several.throughput_tokens_per_s == pytest.approx(550)
    found = as_load(several)
    assert found is not None
    assert (found.load.users, found.deployment.quantization, found.deployment.engine_version) == (8, "int4", "0.7.3")
    assert found.model == "llama-3.1-8b"
    # 50 requests one after another take 216.4 s: 80 ms and then 354 tokens of 12 ms.
    assert (alone.time_to_first_token_ms, alone.time_per_output_token_ms, alone.output_tokens) == (80, 12, 355)
    found = as_load(alone)
    assert found is not None
    assert (found.load.users, found.deployment.devices, found.deployment.device.name) == (1, 8, "NVIDIA H200 SXM")
    assert eager.precision == "w8a16"
    assert as_load(eager) is None, "no kernel was captured in advance"


def test_accelmark_without_users_or_lengths_is_no_load() -> None:
    (path,) = FIXTURES.glob("accelmark.*")
    several, alone, _ = map(json.loads, path.read_text().splitlines())
    others = [
        {**several, "task": {"scenario": "offline"}},
        {**several, "task": {"scenarios_run": ["offline", "sustained"]}},
        {**alone, "suite_id": "suite_D"},
        {**several, "metrics": {"sustained": {**several["metrics"]["sustained"], "samples": []}}},
    ]
    at_once, sum_up, unknown, without = of_text(json.dumps(others))
    assert isinstance(at_once, NoResult)
    assert "sent at once" in at_once.reason
    assert isinstance(sum_up, NoResult)
    assert isinstance(unknown, RefusedCell)
    assert unknown.reason == "lengths of suite_D are not known"
    assert (without.result.status, without.result.reason) == ("failed", "0 requests were answered")
