"""What the fixtures of other people's tools must become: units, identity, failures, and what stays a statement."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from accel_platform.events.types import ResultRecorded
from migrations.detect import detect_format
from migrations.normalize.records import Record, RefusedCell
from migrations.pipeline.document_reader import read_document
from migrations.sources.documents import Content, Document, parse
from migrations.suspicion.claims import NO_CLAIMS, claims_of
from migrations.suspicion.rules import apply_rules
from migrations.tools import mlperf
from migrations.tools.mlperf_submissions import rows_of_round

FIXTURES = Path(__file__).parents[2] / "data" / "formats"


def document(name: str, path: str | None = None) -> Document:
    """The fixture of a format, as if it lay at `path`."""
    (found,) = FIXTURES.glob(f"{name}.*")
    return parse(Content.of(found.read_bytes(), path or f"/old/{found.name}"))


def results(given: Document) -> dict[str, ResultRecorded]:
    """The results of a document by pointer."""
    found = detect_format(given)
    assert found is not None
    return {cell.pointer: cell.result for cell in found.parse(given) if isinstance(cell, Record)}


def of(value: Any, path: str = "/old/made.json") -> dict[str, ResultRecorded]:
    return results(parse(Content.of(json.dumps(value).encode(), path)))


def refusals(value: Any, path: str = "/old/made.json") -> list[RefusedCell]:
    given = parse(Content.of(json.dumps(value).encode(), path))
    found = detect_format(given)
    assert found is not None
    return [cell for cell in found.parse(given) if isinstance(cell, RefusedCell)]


def figure(result: ResultRecorded, name: str) -> Any:
    """A figure, or what the file states without the event having a field for it."""
    return getattr(result, name) if name in ResultRecorded.model_fields else result.original["stated"][name]


class TestOptimumBenchmark:
    found = results(document("optimum_benchmark"))

    def test_a_phase_has_samples_rate_and_decimal_memory(self) -> None:
        result = self.found["/report/forward"]
        assert (result.model_id, result.hardware, result.precision) == ("bert-base", "cuda", "float16")
        assert result.samples_ns == (10_000_000, 12_000_000)
        assert (result.batch_size, result.sequence_length, result.throughput_items_per_s) == (4, 128, 363.6)
        assert (result.memory_peak_mib, result.memory_device_peak_mib) == (1000, 2000)
        assert (result.load_ms, result.device_name) == (1500, "NVIDIA Example 80GB")

    def test_a_generation_is_prefill_and_decode(self) -> None:
        result = self.found["/report/decode"]
        assert (result.mode, result.samples_ns) == ("generation", (220_000_000, 232_000_000))
        assert figure(result, "prefill_ms") == 21
        assert figure(result, "time_per_output_token_ms") == 21
        assert figure(result, "output_tokens") == 11
        assert result.throughput_items_per_s is None, "tokens are no items"

    def test_training_has_its_mode(self) -> None:
        result = self.found["/report/train/overall"]
        assert (result.mode, result.latency_mean_ms, result.throughput_items_per_s) == ("training", 500, 8)

    def test_a_report_finds_its_configuration_beside_it(self, tmp_path: Path) -> None:
        whole = document("optimum_benchmark").value
        (tmp_path / "benchmark_config.json").write_text(json.dumps(whole["config"]))
        report = tmp_path / "benchmark_report.json"
        report.write_text(json.dumps(whole["report"]))
        found = results(parse(Content.of(report.read_bytes(), str(report))))
        assert (found["/forward"].model_id, found["/forward"].hardware) == ("bert-base", "cuda")

    def test_a_report_without_a_configuration_is_of_no_named_hardware(self) -> None:
        (result, *_) = of(document("optimum_benchmark").value["report"], "/old/gpt2/run.json").values()
        assert (result.model_id, result.hardware) == ("gpt2", "unknown")
        assert result.original["said_by_path"]["model"] == "gpt2"


class TestOptimumTable:
    found = results(document("optimum_table"))

    def test_units_stand_in_the_header(self) -> None:
        result = self.found["/0/forward.latency(s)"]
        assert (result.latency_mean_ms, result.throughput_items_per_s) == (100, 40)
        assert result.memory_device_peak_mib == 1000
        assert result.occurred_local == datetime.fromisoformat("2023-09-07T11:10:54")

    def test_tokens_per_second_give_the_time_of_the_call(self) -> None:
        result = self.found["/1/generate.latency(s)"]
        assert result.latency_mean_ms == pytest.approx(8 * 101 / 202 * 1000)
        assert result.original["stated"]["derived"]

    def test_on_a_cpu_the_memory_is_the_process(self) -> None:
        text = "model,device,forward.latency(s),forward.peak_memory(MB)\ngpt2,cpu,0.1,1048.576\n"
        (result,) = results(parse(Content.of(text.encode(), "/x.csv"))).values()
        assert (result.memory_peak_mib, result.memory_device_peak_mib) == (1000, None)

    def test_two_load_times_are_one_of_the_model_and_no_phase(self) -> None:
        text = "model,device,forward.latency(s),load_model.latency(s),load.latency(s)\ngpt2,cpu,0.1,2,3\n"
        (result,) = results(parse(Content.of(text.encode(), "/x.csv"))).values()
        assert (result.mode, result.load_ms) == ("inference", 2000)

    def test_a_row_without_figures_is_a_failure(self) -> None:
        assert (self.found["/2"].status, self.found["/2"].reason) == ("failed", "the row holds no figure")

    @pytest.mark.parametrize(
        ("text", "path", "latency_ms", "batch"),
        [
            (",forward.latency(s),forward.throughput(iter/s)\n0,0.5,2.0\n", "/x/cpu_4_10/whisper/r.csv", 500, None),
            ("Model,GPU Name,Per Process Batch Size,Prefill Latency (s)\ngpt2,1xA100,4,0.03\n", "/x", 30, 4),
            ("Batch Size,Forward Latency (s)\n16,0.2\n", "/x/A100-80GB/llama/short.csv", 200, 16),
            ("report.forward.latency.mean,config.backend.model,config.backend.device\n0.03,gpt2,cpu\n", "/x", 30, None),
        ],
    )
    def test_every_variant_of_the_columns(self, text: str, path: str, latency_ms: float, batch: int | None) -> None:
        (result,) = results(parse(Content.of(text.encode(), path))).values()
        assert (result.latency_mean_ms, result.batch_size) == (latency_ms, batch)


def test_a_scripts_own_speed_of_training_is_no_report_of_optimum() -> None:
    value = {"experiment": "a", "training": {"throughput": {"avg_samples_per_sec": 360.0}, "best_epoch": 63}}
    assert detect_format(parse(Content.of(json.dumps(value).encode(), "/gpt2/x.json"))) is None


class TestLlamaBench:
    given = document("llama_bench")
    found = results(given)

    def test_a_prompt_is_one_forward_pass(self) -> None:
        result = self.found["/0"]
        assert (result.model_id, result.precision, result.hardware) == ("qwen3-32b", "q8_0", "rocm")
        assert (result.mode, result.batch_size, result.sequence_length) == ("inference", 1, 512)
        assert result.samples_ns == (100_000_000, 101_000_000)
        assert result.original["model"] == "/models/Qwen3-32B-Q8_0.gguf"

    def test_a_generation_counts_its_tokens(self) -> None:
        result = self.found["/1"]
        assert (result.mode, result.sequence_length) == ("generation", 4096)
        assert figure(result, "output_tokens") == 128
        assert figure(result, "time_per_output_token_ms") == 5

    def test_lines_of_stderr_are_kept(self) -> None:
        (note,) = self.given.notes
        assert note.content.startswith("ggml_cuda_init: found 1 ROCm devices:")
        assert note.content.endswith("llama_perf: done")

    def test_sql(self) -> None:
        text = """CREATE TABLE IF NOT EXISTS llama_bench (
  build_commit TEXT
);

INSERT INTO test (backends, model_filename, n_prompt, n_gen, avg_ns) VALUES ('CPU', 'a-Q4_0', '8', '0', '2000000');
"""
        (result,) = results(parse(Content.of(text.encode(), "/x.sql"))).values()
        assert (result.hardware, result.latency_mean_ms, result.sequence_length) == ("cpu", 2, 8)

    @pytest.mark.parametrize(
        ("backends", "device"), [("MTL,BLAS", "Apple M9"), ("MTL0", "Apple M9"), ("Metal,BLAS", "Apple M9")]
    )
    def test_metal_is_no_processor_by_any_of_its_names(self, backends: str, device: str) -> None:
        row = {"n_prompt": 8, "n_gen": 0, "avg_ns": 2000000, "backends": backends, "model_filename": "a-Q4_0.gguf"}
        row |= {"cpu_info": "Accelerate, Apple M9", "gpu_info": "Apple M9"}
        (result,) = results(parse(Content.of(json.dumps([row]).encode(), "/x.json"))).values()
        assert (result.hardware, result.device_name) == ("mps", device)
        table = (
            f"| model | backend | test | t/s |\n| --- | --- | --- | ---: |\n| a Q4_0 | {backends} | pp8 | 80 ± 1 |\n"
        )
        (printed,) = results(parse(Content.of(table.encode(), "/x.md"))).values()
        assert printed.hardware == "mps"

    def test_a_table_is_of_the_build_printed_below_it(self) -> None:
        table = "| model | backend | test | t/s |\n| --- | --- | --- | ---: |\n| a Q4_0 | CUDA | pp8 | 80 ± 1 |\n"
        run = table + "\nbuild: {} (1)\n"
        text = "  Device 0: NVIDIA L4, VMM: yes\n" + run.format("aaaa") + run.format("bbbb")
        found = results(parse(Content.of(text.encode(), "/x.md"))).values()
        assert [(one.environment["llama.cpp"], one.device_name) for one in found] == [
            ("aaaa (1)", "NVIDIA L4"),
            ("bbbb (1)", None),
        ]

    @pytest.mark.parametrize(
        ("mode", "device"), [("layer", "2 x NVIDIA L4"), ("row", "2 x NVIDIA L4"), ("none", "NVIDIA L4")]
    )
    def test_a_model_is_split_over_all_devices_unless_told_otherwise(self, mode: str, device: str) -> None:
        row = {"n_prompt": 8, "n_gen": 0, "avg_ns": 2000000, "backends": "CUDA", "model_filename": "a-Q4_0.gguf"}
        row |= {"gpu_info": "NVIDIA L4, NVIDIA L4", "split_mode": mode}
        (result,) = results(parse(Content.of(json.dumps([row]).encode(), "/x.json"))).values()
        assert result.device_name == device
        text = (
            "  Device 0: NVIDIA L4, VMM: yes\n  Device 1: NVIDIA L4, VMM: yes\n| model | backend | sm | test | t/s |\n"
        )
        text += f"| --- | --- | --- | --- | ---: |\n| a Q4_0 | CUDA | {mode} | pp8 | 80 ± 1 |\n"
        (printed,) = results(parse(Content.of(text.encode(), "/x.md"))).values()
        assert printed.device_name == device

    def test_the_table_it_prints(self) -> None:
        found = results(document("llama_bench_table"))
        prompt, generation, failed = found.values()
        assert (prompt.latency_mean_ms, prompt.sequence_length, prompt.precision) == (100, 512, "q4_0")
        assert (prompt.hardware, prompt.device_name) == ("cuda", "NVIDIA Example 4090")
        assert (generation.latency_mean_ms, generation.mode, generation.sequence_length) == (1000, "generation", 4096)
        assert failed.status == "failed"

    def test_rows_that_a_script_wrapped(self) -> None:
        inner = {"n_prompt": 8, "n_gen": 0, "avg_ns": 2000000, "samples_ns": [2000000], "backends": "Vulkan"}
        inner |= {"model_filename": "/m/GLM-4.5-Air-UD-Q4_K_XL-00001-of-00002.gguf", "gpu_info": "Example"}
        rows = [{"mode": "pp", "bench_raw": inner, "vram_peak_mib": 190}, {"mode": "tg", "error": "out of memory"}]
        found = of(rows)
        assert (found["/0"].model_id, found["/0"].hardware) == ("glm-4.5-air-ud", "vulkan")
        assert found["/0"].original["stated"]["vram_peak_mib"] == 190

    def test_tensors_kept_elsewhere_are_another_configuration(self) -> None:
        row = {
            "n_prompt": 8, "n_gen": 0, "avg_ns": 2_000_000, "backends": "CUDA", "gpu_info": "NVIDIA L4",
            "model_filename": "a/gpt2-Q4_0.gguf", "build_commit": "1a2b", "tensor_buft_overrides": "none",
        }  # fmt: skip
        whole, split = of([row, {**row, "tensor_buft_overrides": "exps=CPU"}]).values()
        assert whole.fingerprint != split.fingerprint

    def test_csv_cells_are_text(self) -> None:
        text = 'n_prompt,n_gen,avg_ns,samples_ns,backends,model_filename\n"8","0","2000000","","CUDA","a/b-Q4_0.gguf"\n'
        (result,) = results(parse(Content.of(text.encode(), "/x.csv"))).values()
        assert (result.hardware, result.latency_mean_ms, result.precision) == ("cuda", 2, "q4_0")


class TestServing:
    def test_a_request_has_no_batch(self) -> None:
        result = results(document("serving_benchmark"))["/0"]
        assert (result.batch_size, result.mode, result.throughput_items_per_s) == (None, "generation", 10)
        assert (result.latency_mean_ms, result.latency_p50_ms) == (1500, 1450)
        assert figure(result, "time_to_first_token_ms") == 110
        assert result.original["request_rate"] == "inf"

    def test_no_completed_request_is_a_failure_with_its_message(self) -> None:
        result = results(document("serving_benchmark"))["/1"]
        assert (result.status, result.reason) == ("failed", "connection refused")
        assert result.occurred_local == datetime.fromisoformat("2025-01-31T23:59:59")

    def test_what_the_tools_print(self) -> None:
        text = """Namespace(backend='vllm', model='meta-llama/Llama-2-7b-hf', request_rate=inf)
============ Serving Benchmark Result ============
Successful requests:                     100
Benchmark duration (s):                  20.00
Request throughput (req/s):              5.00
Output token throughput (tok/s):         640.00
---------------Time to First Token----------------
Mean TTFT (ms):                          90.00
Median TTFT (ms):                        80.00
P99 TTFT (ms):                           200.00
==================================================
"""
        (result,) = results(parse(Content.of(text.encode(), "/runs/H100/serve.log"))).values()
        assert (result.model_id, result.hardware, result.throughput_items_per_s) == ("llama-2-7b", "cuda", 5)
        assert figure(result, "time_to_first_token_ms") == 80

    def test_what_is_printed_before_a_run_is_not_of_the_run_before(self) -> None:
        run = """Namespace(backend='vllm', model='meta-llama/{model}', request_rate=inf)
Traffic request rate: {rate}
Maximum request concurrency: {users}
============ Serving Benchmark Result ============
Successful requests:                     100
Request throughput (req/s):              {rate}
Median TTFT (ms):                        {first}
==================================================
"""
        text = run.format(model="Llama-2-7b-hf", rate=2.0, users=8, first=20)
        text += run.format(model="Llama-2-13b-hf", rate=4.0, users=16, first=40)
        found = results(parse(Content.of(text.encode(), "/runs/H100/serve.log"))).values()
        assert [
            (one.model_id, one.environment["settings"]["max_concurrency"], figure(one, "time_to_first_token_ms"))
            for one in found
        ] == [("llama-2-7b", "8", 20), ("llama-2-13b", "16", 40)]

    def test_one_batch_keeps_prefill_and_steps(self) -> None:
        found = results(document("llm_batch_benchmark"))
        assert (found["/0"].batch_size, found["/0"].latency_mean_ms) == (16, 370)
        assert figure(found["/0"], "prefill_ms") == 50
        assert found["/1"].samples_ns == (1_900_000_000, 2_100_000_000)
        assert found["/2"].throughput_items_per_s == 100
        assert (found["/3"].status, found["/3"].reason) == ("failed", "out of memory")

    def test_a_batch_through_a_server_has_the_first_token_of_its_last_request(self) -> None:
        row = {"run_name": "gpt2", "batch_size": 8, "input_len": 64, "output_len": 11, "latency": 1.2, "last_ttft": 0.2}
        result, stopped = of([row, {**row, "num_early_stopped": 2}]).values()
        assert figure(result, "time_to_first_token_ms") == 200
        assert figure(result, "time_per_output_token_ms") == pytest.approx(100)
        assert stopped.time_per_output_token_ms is None
        (unnamed,) = refusals([{**row, "run_name": "default"}])
        assert unnamed.reason == "the cell names no model: put the file into a folder called like it"


class TestMlperf:
    def test_nanoseconds_of_a_single_stream(self) -> None:
        (result,) = results(document("mlperf_summary")).values()
        assert (result.model_id, result.hardware, result.backend) == ("resnet-50", "cuda", "tensorrt")
        assert (result.batch_size, result.throughput_items_per_s) == (1, 2500)
        assert result.latency_p99_ms == pytest.approx(0.6)

    def test_directories_name_system_and_model(self) -> None:
        path = "/closed/Acme/results/H200-SXM-141GBx8_TRT/bert-99/Offline/performance/run_1/mlperf_log_summary.txt"
        given = document("mlperf_summary", path)
        text = (
            "\n".join(given.value)
            .replace("SingleStream", "Offline")
            .replace("QPS w/o loadgen overhead", "Samples per second")
        )
        (result,) = results(parse(Content.of(text.encode(), path))).values()
        assert (result.model_id, result.device_name) == ("bert-large", "H200-SXM-141GBx8_TRT")
        assert (result.batch_size, result.latency_mean_ms, result.throughput_items_per_s) == (None, None, 2500)

    def test_the_detailed_log_has_a_time(self) -> None:
        given = document("mlperf_detail")
        found = detect_format(given)
        assert found is not None
        (cell,) = found.parse(given)
        assert isinstance(cell, Record)
        assert cell.occurred_at == datetime(2024, 7, 16, 20, 55, 24, tzinfo=UTC)
        assert (cell.result.latency_mean_ms, cell.result.throughput_items_per_s) == (9, 1600.5)

    def test_a_log_of_mlperf_training_is_no_failed_inference(self) -> None:
        keys = ("submission_benchmark", "global_batch_size", "run_start", "eval_accuracy", "run_stop")
        lines = [f":::MLLOG {json.dumps({'key': key, 'value': 1, 'time_ms': 1})}" for key in keys]
        reading = read_document(parse(Content.of("\n".join(lines).encode(), "/x.log")), NO_CLAIMS)
        assert (reading.entry.outcome, reading.entry.records) == ("not_results", 0)
        assert "training" in (reading.entry.reason or "")

    def test_what_a_result_is_follows_from_its_units(self) -> None:
        found = results(document("mlperf_table"))
        assert found["/0"].throughput_items_per_s == 40000.5
        assert found["/0"].device_name == "8 x NVIDIA A100"
        assert found["/1"].latency_p90_ms == 1.75
        assert figure(found["/2"], "throughput_tokens_per_s") == 21000
        assert found["/3"].status == "failed"

    def test_names_of_mobile_models_tell_their_network_and_image_size(self) -> None:
        expected = {
            "mobilenet-v1-0.25-128-non-quantized": ("mobilenetv1_025", 128),
            "mobilenet-v2-precision_float-0.35-96": ("mobilenetv2_035", 96),
            "mobilenet-v3-small-minimalistic_224_1.0_uint8": ("tf_mobilenetv3_small_minimal_100", 224),
            "mobilenet-v3-precision_float-large-224": ("tf_mobilenetv3_large_100", 224),
            "efficientnet-int8-lite4": ("tf_efficientnet_lite4", 300),
            "resnet50": ("resnet50", 224),
            "bert-99": ("bert-large", None),
            "mobilenet": ("mobilenet", None),
        }
        assert {name: (mlperf.model_of(name), mlperf.image_size_of(name)) for name in expected} == expected

    def test_runs_of_one_plain_device_are_joined_with_system_and_weights(self, tmp_path: Path) -> None:
        summary = "\n".join(document("mlperf_summary").value)
        processor = {"accelerators_per_node": 0, "host_processor_model_name": "Apple M1", "host_processors_per_node": 1}
        gpu = {"accelerator_model_name": "NVIDIA L4", "accelerators_per_node": 1, "framework": "TensorRT 10"}
        weights = {"weight_data_types": "int8", "retraining": "No", "starting_weights_filename": "resnet50_v1.onnx"}
        runs = {
            ("L4x1_TRT", "resnet50"): (gpu, weights, summary),
            ("L4x1_TRT", "rnnt"): (gpu, weights, summary),
            ("L4x2_TRT", "resnet50"): ({**gpu, "accelerators_per_node": 2}, weights, summary),
            ("L4_MaxQ_TRT", "resnet50"): (gpu, weights, summary),
            ("L4_onnxruntime", "resnet50"): (gpu, weights, summary),
            ("L4_pruned_TRT", "resnet50"): (gpu, {**weights, "retraining": "yes"}, summary),
            ("L4_form_TRT", "resnet50"): (gpu, {**weights, "starting_weights_filename": "none"}, summary),
            ("L4_stepped_TRT", "resnet50"): (gpu, weights, re.sub(r"(Min latency.*: )", r"\1-", summary)),
            ("L4_invalid_TRT", "resnet50"): (gpu, weights, summary.replace(": VALID", ": INVALID")),
            ("L4_or_T4_TRT", "resnet50"): (gpu, weights, summary),
            ("m1-onnxruntime-cpu", "resnet50"): (processor, {**weights, "weight_data_types": "fp32"}, summary),
            ("m1-reference-cpu-pytorch", "bert-99"): (processor, {**weights, "weight_data_types": "fp32"}, summary),
            ("m1-tflite-ruy", "mobilenet-v1-1.0-160-quantized"): (
                processor, {**weights, "weight_data_types": "uint8"}, summary
            ),
        }  # fmt: skip
        for (platform, model), (system, described, log) in runs.items():
            files = {
                f"systems/{platform}.json": json.dumps(system),
                f"measurements/{platform}/{model}/SingleStream/{platform}_x.json": json.dumps(described),
                f"results/{platform}/{model}/SingleStream/performance/run_1/mlperf_log_summary.txt": log,
            }
            for place, text in files.items():
                path = tmp_path / "closed" / "Acme" / place
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(text)
        elsewhere = tmp_path / "open" / "Acme" / "systems" / "L4_or_T4_TRT.json"
        elsewhere.parent.mkdir(parents=True)
        elsewhere.write_text(json.dumps({**gpu, "accelerator_model_name": "NVIDIA T4"}))
        rows = "\n".join(map(json.dumps, rows_of_round(tmp_path)))
        gpu_run, on_processor, bert, mobile = results(
            parse(Content.of(rows.encode(), "/old/single_stream.jsonl"))
        ).values()
        assert (gpu_run.model_id, gpu_run.device_name, gpu_run.backend) == ("resnet-50", "NVIDIA L4", "tensorrt")
        assert (gpu_run.hardware, gpu_run.precision, gpu_run.batch_size) == ("cuda", "int8", 1)
        assert gpu_run.latency_p50_ms == results(document("mlperf_summary"))["/1"].latency_p50_ms
        assert (on_processor.hardware, on_processor.device_name) == ("onnxruntime", "Apple M1")
        assert (bert.model_id, bert.backend, bert.sequence_length) == ("bert-large", "pytorch", 384)
        assert (mobile.hardware, mobile.device_name, mobile.precision) == ("cpu", "Apple M1", "int8")
        assert mobile.original["image_size"] == 160

    def test_an_accuracy_run_holds_no_result(self) -> None:
        text = "\n".join(document("mlperf_summary").value).replace("PerformanceOnly", "AccuracyOnly")
        assert results(parse(Content.of(text.encode(), "/x.txt"))) == {}


class TestOllama:
    def test_a_response_is_a_generation_without_its_loading(self) -> None:
        found = results(document("ollama_response"))
        cold, warm = found["/1"], found["/2"]
        assert (cold.model_id, cold.precision, cold.mode) == ("llama3.1-8b-instruct", "q4_k_m", "generation")
        assert (cold.samples_ns, cold.load_ms, cold.sequence_length) == ((3_000_000_000,), 500, 26)
        assert (cold.output_tokens, cold.time_per_output_token_ms, cold.time_to_first_token_ms) == (100, 25, 250)
        assert (warm.model_id, warm.sequence_length, warm.time_to_first_token_ms) == ("qwen3", None, None)
        assert warm.time_per_output_token_ms == 30

    def test_responses_beside_a_scripts_own_figures(self) -> None:
        response = {"model": "qwen3:8b", "done": True, "total_duration": 2e9, "eval_count": 50, "eval_duration": 15e8}
        value = {"run": 1, "prompts": [{"prompt": "why", "raw": response}]}
        reading = read_document(parse(Content.of(json.dumps(value).encode(), "/x.json")), NO_CLAIMS)
        assert [part.pointer for part in reading.embedded] == ["/prompts/0/raw"]


class TestRuntimes:
    def test_benchmark_app_reports_and_its_text(self) -> None:
        (report,) = results(document("openvino_report")).values()
        assert (report.hardware, report.backend, report.precision) == ("openvino", "openvino", "float16")
        assert (report.batch_size, report.latency_p50_ms, report.compile_ms) == (4, 20, 300.5)
        (text,) = results(document("openvino_console")).values()
        assert (text.hardware, text.latency_mean_ms, text.throughput_items_per_s) == ("unknown", 10.1, 99.5)

    def test_several_runs_on_a_console_are_a_result_each(self) -> None:
        run = """benchmark_app -m {name}.xml
[Step 1/11] Parsing and validating input arguments
[ INFO ] Network batch size: 1
[ INFO ]   PERFORMANCE_HINT: THROUGHPUT
Count:      {count} iterations
Latency:    {latency} ms
Throughput: 20.5 FPS
"""
        text = "Model name:          Intel(R) Xeon(R) Example CPU\n"
        text += run.format(name="one", count=100, latency=7.5) + run.format(name="two", count=300, latency=2.5)
        found = results(parse(Content.of(text.encode(), "/x.txt")))
        assert {pointer: (one.model_id, one.iterations, one.latency_p50_ms) for pointer, one in found.items()} == {
            "/7": ("one", 100, 7.5),
            "/14": ("two", 300, 2.5),
        }

    @pytest.mark.parametrize(
        ("path", "device", "place"),
        [
            ("/core-ultra-7-155h/report.csv", "GPU", ("openvino", "core-ultra-7-155h iGPU")),
            ("/Core Ultra 7 155H/report.csv", "NPU", ("openvino", "Core Ultra 7 155H NPU")),
            ("/Core Ultra 7 155H/report.csv", "GPU.1", ("unknown", None)),
            ("/Xeon 8480+/report.csv", "GPU", ("unknown", None)),
            ("/report.csv", "NPU", ("unknown", None)),
            ("/report.csv", "CPU", ("openvino", None)),
        ],
    )
    def test_gpus_and_npus_under_openvino_are_those_of_the_processor(
        self, path: str, device: str, place: tuple[str, str | None]
    ) -> None:
        report = "\n".join(document("openvino_console").value).replace("GPU.0", device)
        (result,) = results(parse(Content.of(report.encode(), path))).values()
        assert (result.hardware, result.device_name) == place
        rows = "iteration,model,device,generation_time(s),latency(ms),batch_size\n"
        table = Content.of(f"{rows}1,llama-2-7b,{device},6.4,100,1\n".encode(), path)
        (row,) = results(parse(table)).values()
        assert (row.hardware, row.device_name, row.backend) == (*place, "openvino")
        assert row.original.get("said_by_path", {}).get("hardware") == place[1]

    def test_newer_benchmark_app_prints_microseconds_and_the_precision_of_execution(self) -> None:
        text = """[Step 8/11] Querying optimal runtime parameters
[ INFO ]   NETWORK_NAME: Model0
[ INFO ]   INFERENCE_PRECISION_HINT: <Type: 'bfloat16'>
[ INFO ]   EXECUTION_DEVICES: ['GPU.0']
[Step 11/11] Dumping statistics report
[ INFO ] Count:            35324 iterations
[ INFO ] Latency:
[ INFO ]    Median:        41.36 us
[ INFO ]    Max:           5189.44 us
[ INFO ] Throughput:   35320.70 FPS
"""
        (result,) = results(parse(Content.of(text.encode(), "/runs/log.txt"))).values()
        assert (result.latency_p50_ms, result.latency_max_ms) == (pytest.approx(0.04136), pytest.approx(5.18944))
        assert (result.precision, result.hardware) == ("bfloat16", "unknown")

    def test_a_graph_without_a_name_is_called_by_its_file(self) -> None:
        report: dict[str, Any] = {
            "cmd_options": {"-m": "/zoo/resnet-50/openvino_model.xml", "-hint": "latency"},
            "configuration_setup": {"topology": "Model0", "target device": "CPU", "precision": "UNSPECIFIED"},
            "execution_results": {
                "latency (ms)": "4.0", "avg latency": "5.0", "latency (90 percentile) (ms)": "8.0", "throughput": "9.5",
            },
        }  # fmt: skip
        (result,) = of(report).values()
        assert (result.model_id, result.precision) == ("resnet-50", None)
        assert (result.latency_p50_ms, result.latency_mean_ms, result.latency_p90_ms) == (4, 5, 8)

    def test_what_benchmark_app_prints(self) -> None:
        text = """[Step 1/11] Parsing and validating input arguments
[ INFO ] Build ................................. 2024.1.0
[Step 10/11] Measuring performance (Start inference asynchronously, 4 inference requests)
[Step 11/11] Dumping statistics report
[ INFO ] Execution Devices:['CPU']
[ INFO ] Count:            1000 iterations
[ INFO ] Latency:
[ INFO ]    Median:        12.50 ms
[ INFO ]    Average:       12.60 ms
[ INFO ]    Min:           10.00 ms
[ INFO ]    Max:           20.00 ms
[ INFO ] Throughput:   319.50 FPS
"""
        (result,) = results(parse(Content.of(text.encode(), "/runs/resnet50.log"))).values()
        assert (result.latency_p50_ms, result.latency_mean_ms, result.latency_max_ms) == (12.5, 12.6, 20)
        assert (result.throughput_items_per_s, result.hardware, result.iterations) == (319.5, "openvino", 1000)
        assert result.original["model"] == "resnet50"

    def test_onnxruntime_perf_test(self) -> None:
        (result,) = results(document("ort_perf_test")).values()
        assert (result.model_id, result.hardware, result.backend) == ("mobilenet-v2", "cuda", "onnxruntime")
        assert (result.latency_mean_ms, result.latency_p99_ms, result.memory_peak_mib) == (17.5, 22, 100)
        rows = b"squeezenet,0.0125,104857600,99,0\nsqueezenet,0.0135,104857600,99,1\n"
        (result,) = results(parse(Content.of(rows, "/x.csv"))).values()
        assert (result.samples_ns, result.hardware) == ((12_500_000, 13_500_000), "unknown")

    def test_triton_keeps_the_load(self) -> None:
        given = document("model_analyzer")
        found = results(given)
        assert (found["/0"].hardware, found["/0"].memory_device_peak_mib) == ("cuda", 1000)
        assert found["/0"].original["concurrency"] == 16
        assert (found["/1"].hardware, found["/2"].status) == ("cpu", "failed")
        format_ = detect_format(given)
        assert format_ is not None
        judged = apply_rules([cell for cell in format_.parse(given) if isinstance(cell, Record)], claims_of(given))
        assert [record.result.provenance for record in judged] == ["imported"] * 3, "16 in flight explain the rate"

    def test_perf_analyzer_with_a_comma_after_every_row(self) -> None:
        columns = "Concurrency,Inferences/Second,Client Send,Client Recv,p50 latency,Max GPU Memory Usage"
        text = f"{columns}\n2,5868.79,4,1,322,GPU-8557549f:104857600;,\n"
        (result,) = results(parse(Content.of(text.encode(), "/x/add_sub-results.csv"))).values()
        assert (result.model_id, result.hardware, result.memory_device_peak_mib) == ("add-sub", "cuda", 100)

    def test_perf_analyzer_is_microseconds(self) -> None:
        result = results(document("perf_analyzer"))["/0"]
        assert (result.latency_p50_ms, result.throughput_items_per_s) == (pytest.approx(13.891), 69.2)


class TestMicrobenchmarks:
    def test_they_are_never_taken_for_models(self) -> None:
        found = {**results(document("google_benchmark")), **results(document("pytest_benchmark"))}
        found |= results(document("asv_result"))
        assert {result.model_family for result in found.values()} == {"microbenchmark"}
        assert {result.batch_size for result in found.values()} == {None}
        assert "microbenchmark:bert" in {result.model_id for result in found.values()}

    def test_repetitions_are_samples_and_aggregates_their_statistics(self) -> None:
        found = results(document("google_benchmark"))
        assert found["/benchmarks/0"].samples_ns == (1500, 1700)
        assert found["/benchmarks/3"].latency_mean_ms == pytest.approx(2e-6)
        assert found["/benchmarks/4"].latency_p50_ms == 4
        assert found["/benchmarks/6"].reason == "no file"

    def test_a_command_of_which_every_run_failed_is_a_failure(self) -> None:
        timed = {"command": "infer", "mean": 0.25, "user": 0.2, "system": 0.1, "times": [0.2, 0.3]}
        failed, partly = of(
            {"results": [{**timed, "exit_codes": [1, 1]}, {**timed, "command": "b", "exit_codes": [0, 1]}]}
        ).values()
        assert (failed.status, failed.reason) == ("failed", "every run failed, the first with exit code 1")
        assert partly.status == "ok"

    def test_a_fitted_complexity_is_no_failed_benchmark(self) -> None:
        fits = [
            {"name": f"sort_{name}", "run_name": "sort", "run_type": "aggregate", "aggregate_name": name, **figures}
            for name, figures in (
                ("BigO", {"cpu_coefficient": 3.9, "real_coefficient": 7.0, "big_o": "N", "time_unit": "ns"}),
                ("RMS", {"rms": 0.04}),
            )
        ]
        timed = {"name": "sort/64", "run_name": "sort/64", "run_type": "iteration", "iterations": 9, "real_time": 909.0}
        file = {"context": {"num_cpus": 2, "library_build_type": "release"}, "benchmarks": [timed, *fits]}
        (result,) = of(file).values()
        assert (result.status, result.model_id) == ("ok", "microbenchmark:sort/64")

    def test_asv_skipped_failed_and_combined(self) -> None:
        found = results(document("asv_result"))
        states = [found[f"/results/suite.time_sort/0/{i}"].status for i in range(4)]
        assert states == ["ok", "unavailable", "failed", "ok"]
        assert found["/results/suite.time_sort/0/3"].model_id.endswith("(20, 'b')")
        assert found["/results/suite.peakmem_load/0/0"].memory_peak_mib == 100
        assert found["/results/suite.time_old"].latency_p50_ms == 1.5

    def test_what_asv_counts_is_refused(self) -> None:
        given = document("asv_result")
        format_ = detect_format(given)
        assert format_ is not None
        (cell,) = [cell for cell in format_.parse(given) if isinstance(cell, RefusedCell)]
        assert (cell.rule, json.loads(cell.content)["value"]) == ("no_time", 7)


class TestTables:
    def test_timm_is_named_by_its_file(self) -> None:
        found = results(document("timm_benchmark"))
        result = found["/0"]
        assert (result.hardware, result.device_name, result.precision) == ("cuda", "RTX 4090", "amp")
        assert (result.batch_size, result.latency_mean_ms, result.throughput_items_per_s) == (256, 16, 16000)
        assert (result.environment["pytorch"], result.environment["cuda"]) == ("2.4.0", "12.4")
        assert found["/1/train_samples_per_sec"].mode == "training"
        assert (found["/2"].model_id, found["/2"].original["model"]) == ("timm-test-vit", "test_vit")
        assert found["/3"].status == "failed"

    def test_timm_without_such_a_name_is_of_no_named_hardware(self) -> None:
        assert {r.hardware for r in results(document("timm_benchmark", "/old/results.csv")).values()} == {"unknown"}

    def test_a_batch_of_llama_cpp_is_of_tokens_and_not_of_requests(self) -> None:
        found = results(document("llm_inference_bench"))
        assert (found["/0"].latency_mean_ms, found["/0"].throughput_items_per_s) == (2000, None)
        assert "prompt_tokens_at_once" not in found["/0"].original
        assert (found["/1"].batch_size, found["/1"].original["prompt_tokens_at_once"]) == (1, 16)
        assert (found["/1"].hardware, found["/1"].device_name) == ("rocm", "4 x AMD MI250 GPU")
        assert (found["/2"].hardware, found["/2"].status) == ("hpu", "failed")

    def test_a_disaggregated_deployment_has_no_batch_and_no_device(self) -> None:
        found = results(document("aiconfigurator"))
        assert (found["/0"].batch_size, found["/0"].latency_mean_ms) == (64, 1200)
        assert found["/0"].device_name == "4 x h200_sxm"
        assert (found["/1"].batch_size, found["/1"].device_id) == (None, None)
        assert figure(found["/1"], "time_to_first_token_ms") == 300
        assert found["/2"].status == "failed"

    def test_ncnn_by_device(self) -> None:
        found = results(document("ncnn_benchmark"))
        assert [found[f"/{i}"].hardware for i in range(4)] == ["cpu", "cpu", "vulkan", "cpu"]
        assert (found["/1"].model_id, found["/1"].precision) == ("squeezenet", "int8")
        assert found["/3"].status == "failed"

    def test_qualcomm_names_no_batch(self) -> None:
        found = results(document("qualcomm_ai_hub"))
        assert {result.batch_size for result in found.values()} == {None}
        assert [found[f"/{i}"].hardware for i in range(4)] == ["qnn", "onnxruntime", "qnn", "unknown"]
        assert figure(found["/2"], "time_per_output_token_ms") == 80
        assert found["/3"].status == "failed"

    def test_qualcomm_perf_files_are_microseconds_and_bytes(self) -> None:
        entry = {
            "inference_time": 350.0,
            "estimated_peak_memory_range": {"min": 0, "max": 12582912},
            "precision": "int8",
        }
        entry |= {"primary_compute_unit": "NPU", "job_status": "Passed"}
        device = {"reference_device_info": {"name": "Samsung Galaxy S25"}, "torchscript_onnx_tflite": entry}
        (result,) = of({"models": [{"name": "MobileNet-v2", "performance_metrics": [device]}]}).values()
        assert (result.latency_mean_ms, result.memory_peak_mib, result.hardware) == (0.35, 12, "qnn")

    def test_a_rate_of_nothing_is_no_success(self) -> None:
        found = results(document("hailo_model_zoo"))
        assert (found["/0/fps_bs8"].batch_size, found["/0/fps_bs8"].throughput_items_per_s) == (8, 1332.5)
        assert (found["/2/fps_bs1"].status, found["/1/fps_bs8"].status) == ("failed", "failed")

    def test_torchbench_writes_zero_for_a_failure(self) -> None:
        found = results(document("torchbench_table"))
        assert (found["/0"].latency_p50_ms, found["/0"].compile_ms) == (8.25, 20500)
        assert (found["/1"].status, found["/1"].batch_size) == ("failed", None)
