"""Units, numbers, times and names of old files."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_platform.warehouse.rules import RULES, OneOf
from migrations.normalize import canonical_names
from migrations.normalize.canonical_names import (
    backend_named,
    device_facts,
    hardware_named,
    imported_id,
    model_named,
    precision_named,
)
from migrations.normalize.units import (
    NS_PER_MS,
    NS_PER_S,
    count,
    first_moment,
    moment,
    number,
    quantity,
    samples_ns,
    scaled,
)

local = datetime.fromisoformat


@given(st.lists(st.floats(min_value=1e-6, max_value=1e5), min_size=1, max_size=30))
def test_seconds_and_milliseconds_of_one_duration_give_equal_samples(seconds: list[float]) -> None:
    from_s = samples_ns(seconds, ns_per_unit=NS_PER_S)
    from_ms = samples_ns([s * 1000 for s in seconds], ns_per_unit=NS_PER_MS)
    assert len(from_s) == len(seconds)
    for ns, other_ns, s in zip(from_s, from_ms, seconds, strict=True):
        assert math.isclose(ns, s * 1e9, rel_tol=1e-9, abs_tol=0.5)
        assert abs(ns - other_ns) <= 1 + ns * 1e-12


@given(st.floats(min_value=1e-9, max_value=1e12), st.sampled_from([1e-3, 1000.0, 1024.0]))
def test_scaling_back_gives_the_value(value: float, factor: float) -> None:
    there = scaled(value, factor)
    assert there is not None
    assert math.isclose(there / factor, value, rel_tol=1e-12)


@pytest.mark.parametrize(
    "text", ["", " ", "N/A", "nan", "NaN", "inf", "-Infinity", None, True, [], {}, "1_000", "1e999"]
)
def test_what_is_no_number_is_unknown_and_never_zero(text: Any) -> None:
    assert number(text) is None
    assert quantity(text) is None
    assert scaled(text, 1000) is None
    assert count(text) is None


@pytest.mark.parametrize(("value", "expected"), [(" 12.5 ", 12.5), ("7", 7.0), (0, 0.0), ("1e3", 1000.0)])
def test_numbers_may_be_written_as_text(value: Any, expected: float) -> None:
    assert number(value) == expected


def test_negative_is_no_quantity_and_a_fraction_no_count() -> None:
    assert quantity(-1) is None
    assert count(2.5) is None
    assert count("4.0") == 4
    assert count(0, at_least=1) is None
    assert count(10**30) is None


@pytest.mark.parametrize("values", [None, "0.1", [], [0.1, None], [0.1, float("nan")], [0.1, -1], [1e300], {"0": 1}])
def test_a_sample_list_with_holes_gives_no_samples(values: Any) -> None:
    assert samples_ns(values, ns_per_unit=NS_PER_S) == ()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2025-03-05T21:48:14.918633", local("2025-03-05T21:48:14.918633")),
        ("20250305_214814", local("2025-03-05T21:48:14")),
        ("2025-03-05 21:48:14", local("2025-03-05T21:48:14")),
    ],
)
def test_a_time_without_a_zone_stays_without_one(text: str, expected: datetime) -> None:
    assert (moment(text).at, moment(text).local) == (None, expected)


@pytest.mark.parametrize("text", ["2025-03-05T21:48:14Z", "2025-03-05T22:48:14+01:00", 1741211294, "1741211294"])
def test_a_time_with_a_zone_is_kept_in_utc(text: Any) -> None:
    assert moment(text).at == datetime(2025, 3, 5, 21, 48, 14, tzinfo=UTC)
    assert moment(text).local is None


@pytest.mark.parametrize(
    "text", ["", "yesterday", "20250230_000000", "2025-13-45T00:00:00", None, True, 5, -1e18, [], "x" * 50]
)
def test_an_unreadable_time_is_unknown_and_never_now(text: Any) -> None:
    assert not moment(text)


@given(st.datetimes())
def test_every_iso_time_survives(when: datetime) -> None:
    assert moment(when.isoformat()).local == when
    assert moment(when.replace(tzinfo=UTC).isoformat()).at == when.replace(tzinfo=UTC)


def test_the_most_specific_readable_time_wins() -> None:
    assert first_moment(None, "?", "20250305_214814", 1741211294).local == local("2025-03-05T21:48:14")
    assert first_moment("2025-03-05T00:00:00Z").at == datetime(2025, 3, 5, tzinfo=UTC) + timedelta(0)


@pytest.mark.parametrize(
    ("names", "model_id"),
    [
        (["bert"], "bert-base"),
        (["hf_bert"], "bert-base"),
        (["BERT"], "bert-base"),
        (["bert-base-uncased"], "bert-base"),
        (["google-bert/bert-base-uncased"], "bert-base"),
        (["test_hf_bert.py"], "bert-base"),
        (["skills/tests/test_hf_bert.py"], "bert-base"),
        (["hf_t5"], "t5-small"),
        (["google/vit-base-patch16-224"], "vit-base"),
        (["", None, "prajjwal1/bert-tiny"], "bert-tiny"),
        (["unheard-of", "gpt2"], "gpt2"),
    ],
)
def test_model_names_meet(names: list[Any], model_id: str) -> None:
    found = model_named(*names)
    assert found is not None
    assert found.model_id == model_id


def test_an_unknown_model_keeps_a_slug_of_its_own_name() -> None:
    found = model_named("In House/Model_X 2", family="embedding")
    assert found is not None
    assert (found.model_id, found.family) == ("in-house-model-x-2", "embedding")
    assert model_named(None, " ", "///") is None


@pytest.mark.parametrize(
    ("text", "hardware"),
    [
        ("cuda", "cuda"),
        ("CUDA", "cuda"),
        ("cuda:0 (mock)", "cuda"),
        ("Apple MPS", "mps"),
        ("AMD ROCm", "rocm"),
        ("OpenVINO", "openvino"),
        ("CPU", "cpu"),
        ("webgpu", "webgpu"),
        ("abacus", None),
        ("Google TPU v5e", "tpu"),
        ("AMD MI300X GPU", "rocm"),
        ("h100_sxm", "cuda"),
        ("Intel Arc A770", "xpu"),
        ("Intel(R) Arc(TM) 140T GPU", "xpu"),
        ("Intel(R) Arc(TM) Graphics", "xpu"),
        ("Intel(R) Iris(R) Xe Graphics", "xpu"),
        ("Intel Data Center GPU Flex 170", "xpu"),
        ("Intel(R) Core(TM) Ultra 7 155H", "cpu"),
        ("not stated", "unknown"),
        ("gpu", None),
        ("", None),
        (None, None),
        (3, None),
    ],
)
def test_hardware_names_meet(text: Any, hardware: str | None) -> None:
    assert hardware_named(text) == hardware


def test_a_runtime_of_its_own_names_the_hardware_of_a_cpu_only() -> None:
    assert hardware_named("cpu", "onnxruntime") == "onnxruntime"
    assert hardware_named("cpu", "pytorch") == "cpu"
    assert hardware_named("cuda", "onnxruntime") == "cuda"
    assert backend_named("cuda", "onnxruntime") == "onnxruntime"
    assert backend_named("cuda", "") == "pytorch"
    assert backend_named("cpu", "torch") == "pytorch"
    assert {backend_named("cuda", name) for name in ("TensorRT-LLM", "tensorrtllm", "trtllm", "TRT_LLM")} == {"trtllm"}
    assert backend_named("cuda", "TensorRT") == "tensorrt"


@pytest.mark.parametrize(
    ("text", "precision"),
    [
        ("fp32", "float32"),
        ("FP16", "float16"),
        ("torch.bfloat16", "bfloat16"),
        ("int8", "int8"),
        ("Q4_K_M", "q4_k_m"),
        ("", None),
    ],
)
def test_precisions_meet(text: str, precision: str | None) -> None:
    assert precision_named(text) == precision


def test_imported_ids_are_stable_and_only_given_where_something_is_said() -> None:
    assert imported_id({"hostname": "a", "cores": 4}) == imported_id({"cores": 4, "hostname": "a", "gpu": None})
    assert imported_id({"hostname": "a"}) != imported_id({"hostname": "b"})
    assert imported_id({}) is None
    assert imported_id({"hostname": ""}) is None


def test_cpu_runtimes_of_a_host_share_one_device_and_a_gpu_is_another() -> None:
    on_cpu, on_openvino = device_facts("cpu", "h", "Xeon"), device_facts("openvino", "h", "Xeon")
    assert on_cpu == on_openvino
    assert device_facts("cuda", "h", "P4000") != on_cpu
    assert device_facts("cpu", None, None) is None


def test_the_warehouse_takes_every_hardware_name_that_old_files_are_given() -> None:
    given_names = {name for _, name in (*canonical_names._HARDWARE_WORDS, *canonical_names._SILICON)} | set(
        canonical_names._KEY_WORDS.values()
    )
    [rule] = [rule for rule in RULES if rule.name == "hardware_known"]
    assert isinstance(rule, OneOf)
    assert given_names <= set(rule.values)
