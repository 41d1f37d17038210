"""Which remedies a failure leads to, and in which order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_platform.bench.measure.failures import FailureReason, classify, classify_death
from accel_platform.bench.plan.plan import Cell
from accel_platform.bench.run.fallbacks import fallbacks_for
from accel_platform.workloads.build import seed_of
from accel_platform.workloads.model_catalog import resolve_model

BERT = resolve_model("bert-tiny")
CLASSES = ["out_of_memory", "killed", "timeout", "not_exported", "attention", "unsupported_operator", "invalid_model",
           "wrong_output", "crash", "device_not_confirmed", "fake", "error"]  # fmt: skip


def why(failure_class: str) -> FailureReason:
    return FailureReason("failed", failure_class, "it failed")


def names(cell: Cell, failure_class: str, taken: tuple[Cell, ...] = ()) -> list[str]:
    return [remedy.name for remedy in fallbacks_for(cell, why(failure_class), taken)]


@pytest.mark.parametrize(
    ("hardware", "failure_class", "expected"),
    [
        ("openvino", "not_exported", ["eager_attention", "torchscript_exporter", "openvino_converter"]),
        ("onnxruntime", "not_exported", ["eager_attention", "torchscript_exporter"]),
        ("jax", "not_exported", ["eager_attention"]),
        ("cpu", "attention", ["eager_attention"]),
        ("cpu", "wrong_output", ["eager_attention"]),
        ("onnxruntime", "invalid_model", ["torchscript_exporter"]),
        ("cpu", "crash", ["second_attempt", "eager_attention"]),
        ("cpu", "error", []),
        ("cpu", "device_not_confirmed", []),
        ("cpu", "fake", []),
    ],
)
def test_a_failure_leads_to_what_is_documented_for_its_class(
    hardware: str, failure_class: str, expected: list[str]
) -> None:
    assert names(Cell(BERT, hardware, 1, 16), failure_class) == expected


def test_a_low_precision_goes_back_to_float32_first_where_the_runtime_has_it() -> None:
    half = Cell(BERT, "openvino", 1, 16, "float16")
    first = fallbacks_for(half, why("wrong_output"))[0]
    assert first.cell == replace(half, precision="float32")
    assert first.changes(half)
    assert names(half, "wrong_output", (first.cell,))[0] == "eager_attention", "float32 is measured anyway"
    assert "float32" not in names(Cell(BERT, "qnn", 1, 16, "float16"), "wrong_output"), "QNN has no float32"


def test_a_batch_is_halved_until_one_that_is_measured_anyway() -> None:
    large = Cell(BERT, "cpu", 12, 16)
    assert [r.cell.batch_size for r in fallbacks_for(large, why("out_of_memory"))] == [6, 3, 1]
    taken = (replace(large, batch_size=3),)
    assert [r.cell.batch_size for r in fallbacks_for(large, why("timeout"), taken)] == [6]
    assert fallbacks_for(replace(large, batch_size=1), why("killed")) == ()


def test_eager_attention_is_another_way_to_compute_the_same_model() -> None:
    cell = Cell(BERT, "cpu", 1, 16)
    (remedy,) = fallbacks_for(cell, why("attention"))
    assert remedy.cell.model.config["attn_implementation"] == "eager"
    assert remedy.cell.model.model_id == BERT.model_id
    assert not remedy.changes(cell)
    assert seed_of(remedy.cell.model) == seed_of(BERT), "its weights are the same"
    assert fallbacks_for(remedy.cell, why("attention")) == (), "what is eager already is not tried again"


@given(
    st.sampled_from(CLASSES),
    st.sampled_from(["cpu", "openvino", "onnxruntime", "jax", "qnn"]),
    st.integers(1, 4096),
    st.sampled_from(["float32", "float16"]),
    st.lists(st.integers(1, 4096), max_size=5),
)
def test_no_remedy_repeats_the_failure_or_measures_what_is_planned(
    failure_class: str, hardware: str, batch_size: int, precision: str, planned: list[int]
) -> None:
    cell = Cell(BERT, hardware, batch_size, 16, precision)
    taken = {cell, *(replace(cell, batch_size=size) for size in planned)}
    found = fallbacks_for(cell, why(failure_class), taken)
    assert len(found) == len({(r.cell, r.exporter, str(r.cell.model.config)) for r in found})
    for remedy in found:
        usual = (remedy.cell, remedy.exporter, remedy.cell.model.config) == (cell, "dynamo", cell.model.config)
        assert usual == (remedy.name == "second_attempt")
        if remedy.changes(cell):
            assert remedy.cell not in taken


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 5 bytes"), "out_of_memory"),
        (MemoryError(), "out_of_memory"),
        (NotImplementedError("aten::x"), "unsupported_operator"),
        (RuntimeError("X does not support scaled_dot_product_attention, not supported yet"), "attention"),
        (ValueError("something else"), "error"),
    ],
)
def test_a_failure_is_known_by_its_words(error: Exception, expected: str) -> None:
    assert classify(error)[0] == expected


@pytest.mark.parametrize(
    ("epitaph", "expected"),
    [
        ("the process ended with signal SIGKILL", "killed"),
        ("the process ended with signal SIGSEGV", "crash"),
        ("the process ended with signal SIGABRT:   what():  std::bad_alloc", "out_of_memory"),
    ],
)
def test_a_death_is_known_by_how_it_came(epitaph: str, expected: str) -> None:
    assert classify_death(epitaph) == expected
