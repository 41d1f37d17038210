"""Bodies of the old skill tests: which times are read, what counts as a failure, and whose model it is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from migrations.detect import detect_format
from migrations.normalize.records import NoResult, Part, Record, RefusedCell
from migrations.normalize.timings import timing_in
from migrations.sources.documents import Content, parse
from migrations.suspicion.claims import claims_of
from migrations.suspicion.rules import apply_rules


def parts(value: Any, path: str = "/old/hf_bert_test_results.json") -> list[Part]:
    document = parse(Content.of(json.dumps(value).encode(), path))
    found = detect_format(document)
    assert found is not None
    return list(found.parse(document))


def results(value: Any, path: str = "/old/hf_bert_test_results.json") -> list[Any]:
    return [part.result for part in parts(value, path) if isinstance(part, Record)]


def test_a_flat_example_is_one_call_in_seconds() -> None:
    example = {"input": "x", "output": "y", "elapsed_time": 0.0123, "platform": "CUDA", "timestamp": 1740734874.5}
    (result,) = results({"cuda_init": "Success (REAL)", "cuda_output_example": example})
    assert (result.hardware, result.model_id, result.latency_mean_ms) == ("cuda", "bert-base", pytest.approx(12.3))


def test_a_success_without_any_time_is_one_row_per_hardware() -> None:
    found = results({"cpu_init": "Success", "cpu_handler": "Success", "openvino_init": "Success"})
    assert [(r.hardware, r.status, r.latency_mean_ms) for r in found] == [("cpu", "ok", None), ("openvino", "ok", None)]


@pytest.mark.parametrize(
    ("text", "status"),
    [
        ("Error: list index out of range", "failed"),
        ("Failed CUDA initialization", "failed"),
        ("CUDA not available", "unavailable"),
        ("Apple Silicon not available", "unavailable"),
    ],
)
def test_failures_keep_their_words(text: str, status: str) -> None:
    found = [r for r in results({"cpu_init": "Success", "cuda_tests": text}) if r.hardware == "cuda"]
    assert [(r.status, r.reason) for r in found] == [(status, f"cuda_tests: {text}")]


@pytest.mark.parametrize("said", ["Failed to tokenize input", "Invalid inputs format", "Error: Missing endpoint"])
def test_an_output_that_is_an_error_is_no_success_however_labelled(said: str) -> None:
    example = {"output": {"text": said}, "elapsed_time": 0.0005, "implementation_type": "REAL", "platform": "CPU"}
    (result,) = results({"status": {"cpu_init": "Success (REAL)"}, "examples": [example]})
    assert (result.status, result.reason, result.latency_mean_ms) == ("failed", said, None)


def test_loose_times_are_read_and_not_twice() -> None:
    loose = {"cuda_init": "Success", "cuda_generation_time": 0.083, "cuda_tokens_per_second": 112.5}
    (result,) = results(loose)
    assert (result.latency_mean_ms, result.mode) == (pytest.approx(83), "generation")
    assert result.original["stated"] == {"tokens_per_second": 112.5}
    same = {**loose, "cuda_example": {"generation_time": 0.083, "tokens_per_second": 112.5}}
    assert len(results(same)) == 1


def test_operations_have_times_of_their_own() -> None:
    found = results({"cpu_init": "Success", "cpu_audio_embedding_time": 0.0025, "cpu_text_embedding_time": 0.001})
    assert [r.latency_mean_ms for r in found] == [pytest.approx(2.5), pytest.approx(1.0)]


def test_the_files_own_model_outranks_its_name() -> None:
    body = {"cpu_init": "Success", "metadata": {"test_model": "openai/whisper-tiny"}}
    assert results(body)[0].model_id == "whisper-tiny"
    assert results({"cpu_init": "Success"}, "/old/hf_t5_test_results.json")[0].model_id == "t5-small"


def test_a_file_that_names_no_model_anywhere_is_refused() -> None:
    (refused,) = parts({"cpu_init": "Success"}, "/old/results.json")
    assert isinstance(refused, RefusedCell)
    assert refused.rule == "model_unnamed"


def test_a_failure_without_hardware_is_kept_as_refused() -> None:
    (refused,) = parts({"status": {"test_error": "no 'sys'"}, "examples": [], "metadata": {"traceback": "line 1"}})
    assert isinstance(refused, RefusedCell)
    assert "no 'sys'" in refused.reason
    assert "line 1" in refused.content


def test_a_log_is_no_result_and_says_how_it_ended() -> None:
    run = {
        "test_file": "test_hf_t5.py",
        "return_code": 1,
        "stdout": "",
        "stderr": "x\nSyntaxError: bad",
        "elapsed_time": 1,
    }
    (part,) = parts(run)
    assert isinstance(part, NoResult)
    assert "SyntaxError: bad" in part.reason


def test_a_mock_of_one_hardware_says_nothing_of_another() -> None:
    value = {"cpu_init": "Success (REAL)", "cpu_embedding_time": 0.0123, "qualcomm_init": "Success (MOCK)"}
    document = parse(Content.of(json.dumps(value).encode(), "/old/hf_bert_test_results.json"))
    found = detect_format(document)
    assert found is not None
    records = apply_rules([p for p in found.parse(document) if isinstance(p, Record)], claims_of(document))
    assert {r.result.hardware: r.result.provenance for r in records} == {"cpu": "imported", "qnn": "simulated"}


@pytest.mark.parametrize(
    ("call", "milliseconds"),
    [
        ({"elapsed_time": 0.5, "performance_metrics": {"inference_time": 0.4}}, 500),
        ({"output": {"performance_metrics": {"inference_time": 0.4}}}, 400),
        ({"performance": {"processing_time_ms": 2.5}}, 2.5),
        ({"average_inference_time": 0.25, "throughput": 4.0}, 250),
    ],
)
def test_times_are_found_wherever_they_stand(call: dict[str, Any], milliseconds: float) -> None:
    timing = timing_in(call)
    assert timing is not None
    assert timing.figures["latency_mean_ms"] == pytest.approx(milliseconds)


@pytest.mark.parametrize(
    ("call", "batch_size"),
    [
        ({"elapsed_time": 1.5, "input": "Batch of 2 texts"}, 2),
        ({"elapsed_time": 1.5, "output": {"embedding_shape": [4, 768]}}, 4),
        ({"elapsed_time": 1.5, "input": "one"}, None),
    ],
)
def test_the_batch_size_is_what_the_call_shows(call: dict[str, Any], batch_size: int | None) -> None:
    timing = timing_in(call)
    assert timing is not None
    assert timing.figures["batch_size"] == batch_size


@pytest.mark.parametrize("call", [{}, {"elapsed_time": None}, {"output": {"memory_allocated_mb": 3.5}}])
def test_no_time_is_no_timing(call: dict[str, Any]) -> None:
    assert timing_in(call) is None
