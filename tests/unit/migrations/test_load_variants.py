"""Shapes of load generators by version and setting: nothing answered, no streaming, other names, copies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from accel_platform.events.types import ResultRecorded
from migrations.detect import detect_format
from migrations.normalize.records import NoResult, Record
from migrations.sources.documents import Content, Document, load, parse
from predictor.serving.measured_loads import measured_load

PLACE = "/runs/H100/Llama-3.1-8B"
SERVED: dict[str, Any] = {
    "backend": "sglang", "dataset_name": "random", "request_rate": 8.0, "max_concurrency": 16, "duration": 10.0,
    "random_input_len": 1024, "random_output_len": 128, "completed": 100, "total_input_tokens": 102300,
    "total_output_tokens": 12800, "request_throughput": 10.0, "output_throughput": 1280.0,
    "mean_e2e_latency_ms": 1500.0, "median_e2e_latency_ms": 1450.0, "mean_ttft_ms": 110.0, "median_ttft_ms": 100.0,
    "mean_tpot_ms": 11.0, "median_tpot_ms": 10.0, "mean_itl_ms": 10.0,
}  # fmt: skip
GUIDED: dict[str, Any] = {
    "request_latency": 2.0, "time_to_first_token_ms": 200.0, "inter_token_latency_ms": 20.0,
    "prompt_token_count": 512, "output_token_count": 91, "requests_per_second": 1.0,
}  # fmt: skip
STATISTICS: dict[str, Any] = {
    "request_throughput": {"unit": "requests/sec", "avg": 4.0},
    "request_latency": {"unit": "ms", "avg": 220.0, "p50": 210.0, "p99": 300.0},
    "time_to_first_token": {"unit": "ms", "avg": 31.0, "p50": 30.0},
    "inter_token_latency": {"unit": "ms", "avg": 2.5, "p50": 2.0},
    "input_sequence_length": {"unit": "tokens", "avg": 550.0},
    "output_sequence_length": {"unit": "tokens", "avg": 95.0},
    "request_count": {"unit": "requests", "avg": 9.0},
    "error_request_count": {"unit": "requests", "avg": 3.0},
}
PHASES = [
    {"name": "warmup", "kind": "warmup", "type": "concurrency", "concurrency": 1},
    {"name": "profiling", "kind": "profiling", "type": "concurrency", "concurrency": 4},
]
AIPERF_RUN: dict[str, Any] = {
    **STATISTICS,
    "input_config": {"models": {"items": [{"name": "Qwen/Qwen3-8B"}]}, "phases": PHASES},
}
AIPERF_TABLE = "Metric,avg,min,max,sum,p1,p50\nRequest Latency (ms),220.00,1,9,9,1,210.00\n"
AIPERF_LINE: dict[str, Any] = {"metadata": {"request_start_ns": 1, "request_end_ns": 2}, "metrics": {}}
STAGE: dict[str, Any] = {
    "load_summary": {"count": 10, "requested_rate": 3.3, "concurrency": 8},
    "successes": {
        "count": 10, "latency": {"request_latency": {"mean": 2.0, "p50": 1.9}, "time_to_first_token": None},
        "throughput": {"requests_per_sec": 4.0}, "prompt_tokens": {"total": 5120.0, "mean": 512.0},
        "output_len": {"mean": 101.0},
    },
    "failures": {"count": 0},
}  # fmt: skip


def parts(document: Document) -> list[Any]:
    found = detect_format(document)
    assert found is not None
    return list(found.parse(document))


def of(content: Any, name: str = "made.json") -> list[ResultRecorded]:
    text = content if isinstance(content, str) else json.dumps(content)
    found = parts(parse(Content.of(text.encode(), f"{PLACE}/{name}")))
    return [part.result for part in found if isinstance(part, Record)]


def written(path: Path, content: Any) -> Document:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return parse(load(path))


class TestServing:
    def test_lengths_are_those_asked_for_only_where_the_requests_had_them(self) -> None:
        (asked,) = of(SERVED)
        assert (asked.sequence_length, asked.output_tokens) == (1024, 128)
        (drawn,) = of({**SERVED, "random_range_ratio": 0.0, "total_input_tokens": 51200, "total_output_tokens": 6400})
        assert (drawn.sequence_length, drawn.output_tokens) == (512, 64)
        (other,) = of({**SERVED, "dataset_name": "sharegpt", "total_input_tokens": 30000, "total_output_tokens": 200})
        assert (other.sequence_length, other.output_tokens) == (300, 2)

    def test_an_answer_in_one_piece_has_no_first_token(self) -> None:
        (found,) = of({**SERVED, "mean_tpot_ms": 0.0, "median_tpot_ms": 0.0, "mean_itl_ms": 0.0})
        assert (found.time_to_first_token_ms, found.time_per_output_token_ms) == (None, None)
        assert found.latency_p50_ms == 1450
        (one,) = of(
            {**SERVED, "total_output_tokens": 100, "mean_tpot_ms": 0.0, "median_tpot_ms": 0.0, "mean_itl_ms": 0.0}
        )
        assert (one.time_to_first_token_ms, one.output_tokens, one.time_per_output_token_ms) == (100, 1, None)

    def test_tokens_that_nobody_counted_are_not_one_a_request(self) -> None:
        uncounted = {"total_output_tokens": 100, "output_throughput": 10.0, "mean_tpot_ms": 0.0, "median_tpot_ms": 0.0}
        (found,) = of({**SERVED, **uncounted})
        assert (found.output_tokens, found.throughput_tokens_per_s) == (None, None)
        assert found.time_to_first_token_ms == 100

    @pytest.mark.parametrize(
        "row",
        [
            {"backend": "vllm-rerank", "total_token_throughput": 900.0, "mean_e2el_ms": 21.0, "p99_e2el_ms": 30.0},
            {
                "backend": "sglang-embedding", "total_output_tokens": 0, "output_throughput": 0.0, "mean_ttft_ms": 0.0,
                "median_ttft_ms": 0.0, "mean_tpot_ms": 0.0, "median_tpot_ms": 0.0, "mean_e2e_latency_ms": 21.0,
            },
        ],
        ids=lambda row: row["backend"],
    )  # fmt: skip
    def test_embeddings_and_rankings_are_forward_passes(self, row: dict[str, Any]) -> None:
        common = {"completed": 10, "total_input_tokens": 1280, "request_throughput": 7.0}
        (found,) = of({**common, **row})
        assert (found.mode, found.sequence_length, found.latency_mean_ms) == ("inference", 128, 21)
        assert found.backend == row["backend"].partition("-")[0]
        assert (found.time_to_first_token_ms, found.output_tokens) == (None, None)

    def test_engines_behind_the_names_of_clients(self) -> None:
        names = {
            "sglang-oai-chat": "sglang", "vllm-chat": "vllm", "trt": "trtllm", "lmdeploy": "lmdeploy",
            "openai-chat": "unknown",
        }  # fmt: skip
        for client, engine in names.items():
            (found,) = of({**SERVED, "backend": client})
            assert found.backend == engine

    def test_whole_requests_of_a_file_without_their_statistics(self) -> None:
        rest = {key: value for key, value in SERVED.items() if "e2e" not in key}
        (found,) = of({**rest, "latencies": [1.0, 2.0, 3.0, 0.0], "errors": ["", "", "", "no room"]})
        assert (found.latency_mean_ms, found.latency_p50_ms) == (2000, 2000)
        assert found.original["failed_requests"] == 1
        (probed,) = of({**rest, "latencies": [1.0, 3.0], "probe_median_e2el_ms": 9.0})
        assert probed.latency_mean_ms == 2000

    def test_pieces_of_the_stream_with_several_tokens(self) -> None:
        rest = {key: value for key, value in SERVED.items() if "tpot" not in key}
        (found,) = of({**rest, "ttfts": [0.1], "itls": [[0.03, 0.03]], "output_lens": [7]})
        assert found.time_per_output_token_ms == pytest.approx(10)

    def test_offline_throughput_of_sglang(self) -> None:
        row = {
            "backend": "engine", "successful_requests": 10, "total_latency": 5.0, "total_input_tokens": 1000,
            "total_output_tokens": 500, "request_throughput": 2.0, "output_throughput": 100.0,
        }  # fmt: skip
        (found,) = of(row)
        assert (found.backend, found.iterations, found.throughput_tokens_per_s) == ("sglang", 10, 100)
        assert (found.sequence_length, found.output_tokens, found.time_to_first_token_ms) == (100, 50, None)

    def test_speculation_and_a_growing_pace_are_no_plain_load(self) -> None:
        (guessed,) = of({**SERVED, "accept_length": 2.5})
        assert guessed.original["configuration"] == {"mode": "speculative decoding", "tokens_accepted": 2.5}
        (growing,) = of({**SERVED, "ramp_up_strategy": "linear"})
        assert growing.original["configuration"] == {"mode": "linear ramp-up"}
        (plain,) = of({**SERVED, "accept_length": None})
        assert "configuration" not in plain.original

    def test_a_limit_that_was_seldom_reached_is_no_load(self) -> None:
        row = {**SERVED, "model_id": "meta-llama/Llama-3.1-8B"}
        (reached,) = of(row)
        (seldom,) = of({**row, "max_concurrency": 256})
        assert measured_load("event", json.loads(reached.model_dump_json())) is not None
        assert measured_load("event", json.loads(seldom.model_dump_json())) is None

    @pytest.mark.parametrize(
        ("stated", "device", "devices"),
        [
            ({"gpu_type": "g5.12xlarge"}, "NVIDIA A10G", 4),
            ({"gpu_type": "g5.xlarge"}, "NVIDIA A10G", 1),
            ({"gpu_type": "2 x g5.12xlarge"}, "NVIDIA A10G", 2),
            ({"gpu_type": "g5.12xlarge", "tensor_parallel_size": 2}, "NVIDIA A10G", 2),
            ({"gpu_type": "Standard_NC24ads_A100_v4"}, "NVIDIA A100 PCIe 80GB", 1),
            ({"gpu_type": "4 x Tesla T4"}, "NVIDIA T4", 4),
            ({"gpu_type": "L4"}, "NVIDIA L4", 1),
        ],
    )
    def test_a_load_on_an_instance_is_one_on_its_devices(
        self, stated: dict[str, Any], device: str, devices: int
    ) -> None:
        (found,) = of({**SERVED, "model_id": "meta-llama/Llama-3.1-8B", **stated})
        read = measured_load("event", json.loads(found.model_dump_json()))
        assert read is not None
        assert (read.deployment.device.name, read.deployment.devices) == (device, devices)

    @pytest.mark.parametrize(
        ("folder", "device", "devices"),
        [
            ("g5.12xlarge", "NVIDIA A10G", 4),
            ("Standard_NC24ads_A100_v4", "NVIDIA A100 PCIe 80GB", 1),
            ("a2-highgpu-2g", "NVIDIA A100 SXM4 40GB", 2),
            ("NVIDIA-A100-SXM4-40GB", "NVIDIA A100 SXM4 40GB", 1),
        ],
    )
    def test_a_folder_may_be_called_like_a_device_or_an_instance(self, folder: str, device: str, devices: int) -> None:
        content = Content.of(json.dumps(SERVED).encode(), f"/runs/{folder}/Llama-3.1-8B/made.json")
        [found] = [part.result for part in parts(parse(content)) if isinstance(part, Record)]
        read = measured_load("event", json.loads(found.model_dump_json()))
        assert read is not None
        assert (read.deployment.device.name, read.deployment.devices) == (device, devices)


def guide(**metrics: Any) -> dict[str, Any]:
    """Return GuideLLM's benchmark whose answered requests have these means."""
    found = {
        name: {"successful": {"mean": mean, "median": mean, "percentiles": {"p99": mean}}}
        for name, mean in metrics.items()
    }
    return {"metrics": found, "config": {"strategy": {"type_": "concurrent", "streams": 2}}}


class TestGuideLLM:
    def test_zeros_of_no_answer_are_a_failure_with_its_message(self) -> None:
        benchmark = guide(**dict.fromkeys(GUIDED, 0.0))
        benchmark["metrics"]["request_totals"] = {"successful": 0, "errored": 3}
        benchmark["requests"] = {"errored": [{"info": {"error": "no room"}}]}
        (found,) = of({"benchmarks": [benchmark]})
        assert (found.status, found.reason, found.latency_p50_ms) == ("failed", "no room", None)
        assert found.mode == "generation", "no answer says that the model makes no tokens"

    def test_without_streaming_there_is_no_first_token(self) -> None:
        (found,) = of({"benchmarks": [guide(**{**GUIDED, "time_to_first_token_ms": 0, "inter_token_latency_ms": 0})]})
        assert (found.time_to_first_token_ms, found.time_per_output_token_ms) == (None, None)
        assert (found.latency_mean_ms, found.output_tokens) == (2000, 91)

    def test_versions_up_to_0_3_keep_the_load_with_each_benchmark(self) -> None:
        benchmark = guide(**GUIDED)
        benchmark["args"] = {"strategy": benchmark.pop("config")["strategy"]}
        benchmark |= {"request_totals": {"successful": 9, "errored": 1}, "worker": {"backend_model": "Qwen/Qwen3-8B"}}
        (found,) = of({"benchmarks": [benchmark]})
        assert (found.original["model"], found.iterations) == ("Qwen/Qwen3-8B", 9)
        assert (found.original["concurrency"], found.original["failed_requests"]) == (2, 1)

    def test_yaml_is_the_same_report(self) -> None:
        report = {"benchmarks": [guide(**GUIDED)]}
        (found,) = of(yaml.safe_dump(report), "benchmarks.yaml")
        assert [found.latency_mean_ms, found.time_per_output_token_ms] == [2000, 20]
        (refused,) = parts(parse(Content.of((yaml.safe_dump(report) + "\nx: [1").encode(), "/b.yaml")))
        assert "import the report as JSON" in refused.reason

    def test_a_table_with_columns_of_one_name_says_what_to_do(self) -> None:
        table = parse(Content.of(b"Latency,Latency\nMean,Median\n1.0,2.0\n", "/benchmarks.csv"))
        assert "import the tool's JSON instead" in str(table.problem)


class TestAIPerf:
    def test_newer_versions_keep_model_and_load_elsewhere(self) -> None:
        (found,) = of(AIPERF_RUN)
        assert (found.original["model"], found.original["concurrency"]) == ("Qwen/Qwen3-8B", 4)
        assert (found.sequence_length, found.output_tokens, found.iterations) == (550, 95, 9)
        assert found.original["failed_requests"] == 3
        paced = [{"kind": "profiling", "type": "poisson", "rate": 20.0}]
        (found,) = of({**AIPERF_RUN, "input_config": {**AIPERF_RUN["input_config"], "phases": paced}})
        assert (found.original.get("concurrency"), found.original["request_rate"]) == (None, "20.0")

    def test_the_one_gpu_that_was_watched_is_the_device(self) -> None:
        gpus = {str(i): {"gpu_name": "NVIDIA L40S"} for i in range(2)}
        for count, device in ((1, "NVIDIA L40S"), (2, "H100")):
            watched = {"endpoints": {"host": {"gpus": dict(list(gpus.items())[:count])}}}
            (found,) = of({**AIPERF_RUN, "telemetry_data": watched})
            assert found.device_name == device, "of several nobody says which served, so the folder does"

    def test_embeddings_make_no_token(self) -> None:
        (found,) = of({**AIPERF_RUN, "output_sequence_length": {"unit": "tokens", "avg": 0.0}})
        assert (found.mode, found.output_tokens) == ("inference", None)

    def test_a_run_counts_once_whatever_files_repeat_it(self, tmp_path: Path) -> None:
        run = written(tmp_path / "profile_export_aiperf.json", AIPERF_RUN)
        assert len(parts(run)) == 1
        assert isinstance(parts(run)[0], Record)
        repeated = [
            ("profile_export_aiperf.csv", AIPERF_TABLE),
            ("profile_export.jsonl", f"{json.dumps(AIPERF_LINE)}\n{json.dumps(AIPERF_LINE)}\n"),
            ("phases/warmup/profile_export_aiperf.json", AIPERF_RUN),
            ("phases/warmup/profile_export_aiperf.csv", AIPERF_TABLE),
            ("phases/profiling/profile_export_aiperf.json", AIPERF_RUN),
            ("phases/profiling/profile_export_aiperf.csv", AIPERF_TABLE),
        ]
        documents = [written(tmp_path / name, content) for name, content in repeated]
        assert [type(part) for document in documents for part in parts(document)] == [NoResult] * len(repeated)

    def test_a_table_or_requests_alone_are_read(self, tmp_path: Path) -> None:
        table = written(tmp_path / "H100" / "gpt2" / "profile_export_aiperf.csv", AIPERF_TABLE)
        (found,) = parts(table)
        assert (found.result.model_id, found.result.latency_p50_ms) == ("gpt2", 210)
        sessions = {"data": [{"session_id": "a", "payloads": [{"model": "Qwen/Qwen3-8B", "messages": []}]}]}
        inputs = written(tmp_path / "run" / "inputs.json", sessions)
        failed = {**AIPERF_LINE, "error": {"message": "no room"}}
        (found,) = parts(written(tmp_path / "run" / "profile_export.jsonl", f"{json.dumps(failed)}\n" * 2))
        assert (found.result.original["model"], found.result.reason) == ("Qwen/Qwen3-8B", "no room")
        assert detect_format(inputs).not_results is not None  # type: ignore[union-attr]

    @pytest.mark.parametrize(
        "content",
        [
            {"phases": [{"phase_name": "warmup", "metrics_json": "phases/warmup/a.json"}], "schema_version": 1},
            {"ready": True, "was_cancelled": False, "partial": False},
            {"benchmark_id": "1", "cfg": {"models": {}}, "artifact_dir": "runs"},
            {"aiperf_version": "0.13.0", "metadata": {"aggregation_type": "confidence"}, "metrics": {}},
            {"aggregation_type": "sweep", "num_profile_runs": 2,
             "per_combination_metrics": [{"parameters": {}, "metrics": STATISTICS}]},
            {"timeslices": [{"timeslice_index": 0, **STATISTICS}]},
            "metric,mean,std,min,max,cv,se,ci_low,ci_high,t_critical,unit\nrequest_latency_avg,1,0,1,1,0,0,1,1,,ms\n",
        ],
    )  # fmt: skip
    def test_what_lies_beside_a_run_is_no_result(self, content: Any) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        found = detect_format(parse(Content.of(text.encode(), "/runs/made.txt")))
        assert found is not None
        assert found.name == "load_test_setup"


class TestInferencePerf:
    def test_newer_and_older_names(self) -> None:
        (found,) = of(STAGE)
        assert (found.sequence_length, found.output_tokens, found.latency_p50_ms) == (512, 101, 1900)

    def test_requests_at_once_have_no_rate_that_was_asked_for(self) -> None:
        (found,) = of(STAGE)
        assert (found.original["concurrency"], found.original.get("request_rate")) == (8, None)

    def test_its_part_of_a_report_repeats_a_stage(self) -> None:
        aggregate = {"requests": {"total": 1}, "latency": {"request_latency": {"units": "s", "mean": 1.0}}}
        report = {
            "version": "0.2", "run": {"uid": "inference-perf-stage-0-1234abcd"},
            "results": {"request_performance": {"aggregate": aggregate}},
        }  # fmt: skip
        (part,) = parts(parse(Content.of(yaml.safe_dump(report).encode(), "/inference-perf.partial.stage_0.yaml")))
        assert isinstance(part, NoResult)


class TestPyTorchRecords:
    def test_the_records_of_a_run_are_the_row_of_its_tool(self) -> None:
        (path,) = (Path(__file__).parents[2] / "data" / "formats").glob("pytorch_records.*")
        document = parse(Content.of(path.read_bytes(), f"{PLACE}/{path.name}"))
        served, batch, unknown = parts(document)
        (load_test,) = of(served.value)
        assert (load_test.original["model"], load_test.backend, load_test.iterations) == ("Qwen/Qwen3-8B", "vllm", 98)
        assert (load_test.time_to_first_token_ms, load_test.time_per_output_token_ms) == (80, 7.5)
        (latency,) = of(batch.value)
        assert latency.samples_ns == (1_500_000_000, 1_750_000_000)
        assert (latency.batch_size, latency.sequence_length, latency.output_tokens) == (4, 32, 128)
        assert (unknown.rule, served.pointer, batch.pointer) == ("metric_unknown", "/0", "/2")

    def test_they_repeat_the_file_beside_them(self, tmp_path: Path) -> None:
        (path,) = (Path(__file__).parents[2] / "data" / "formats").glob("pytorch_records.*")
        records = written(tmp_path / "run.pytorch.json", path.read_text())
        assert len(parts(records)) == 3
        written(tmp_path / "run.json", SERVED)
        (part,) = parts(records)
        assert isinstance(part, NoResult)
