"""Which cells a benchmark has, which share a process, and which are still to be measured."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_platform.backends.registry import RUNTIMES, runtime_for
from accel_platform.bench.plan.plan import (
    SEGMENT_PREFIX,
    Cell,
    artifact_kind,
    cell_key,
    done_cells,
    group_by_process,
    missing_cells,
    plan_cells,
)
from accel_platform.bench.plan.run_options import EFFORTS, effort_preset
from accel_platform.bench.plan.support import memory_shortage, unsupported_reason
from accel_platform.errors import InvalidInput
from accel_platform.events import Event, EventLog
from accel_platform.events.types import ResultRecorded
from accel_platform.precisions import MEASURABLE, resolve_precision
from accel_platform.settings import Settings
from accel_platform.workloads.model_catalog import resolve_model

BERT, VIT = resolve_model("bert-tiny"), resolve_model("vit-tiny")

cells = st.builds(
    Cell,
    st.sampled_from([BERT, VIT]),
    st.sampled_from(["cpu", "openvino", "onnxruntime"]),
    st.integers(1, 8),
    st.sampled_from([None, 16, 32]),
)


def test_a_plan_is_every_combination_once_small_before_large() -> None:
    found = plan_cells([BERT, VIT], ["cpu", "OpenVINO"], [4, 1, 4], [64, 32])
    assert len(found) == 2 * 2 * 2 + 2 * 2, "an image has no length, so its cells do not multiply"
    assert [(c.batch_size, c.sequence_length) for c in found[:4]] == [(1, 32), (4, 32), (1, 64), (4, 64)]
    assert {c.sequence_length for c in found if c.model is VIT} == {None}
    assert {c.sequence_length for c in plan_cells([BERT], ["cpu"], [1])} == {128}


def test_a_plan_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(InvalidInput, match="at least 1, not 0"):
        plan_cells([BERT], ["cpu"], [0])
    with pytest.raises(InvalidInput, match="abacus"):
        plan_cells([BERT], ["abacus"], [1])
    with pytest.raises(InvalidInput, match="at least one model"):
        plan_cells([], ["cpu"], [1])


def test_precisions_multiply_a_plan_and_each_runtime_knows_its_own() -> None:
    found = plan_cells([BERT], ["cpu", "onnxruntime", "qnn"], [1], precisions=["float32", "bfloat16", "int8"])
    assert len(found) == 9
    refused = {(c.hardware, c.precision): why for c in found if (why := unsupported_reason(c)) is not None}
    assert set(refused) == {
        ("onnxruntime", "bfloat16"),
        *(("qnn", name) for name in ("float32", "bfloat16", "int8")),
    }
    assert all(hardware in why.reason and name in why.reason for (hardware, name), why in refused.items())
    assert {
        (c.hardware, artifact_kind(c)) for c in found if c.precision == "int8" and unsupported_reason(c) is None
    } == {
        ("cpu", "weights"),
        ("onnxruntime", "onnx-int8-dynamic"),
    }
    assert [c.precision for c in plan_cells([BERT], ["cpu", "qnn"], [1])] == ["float32", "float16"]
    assert len(group_by_process(found)) == 9, "each precision has a process of its own"


@pytest.mark.parametrize("hardware", RUNTIMES)
def test_a_runtime_has_a_precision_or_a_reason_and_its_usual_one(hardware: str) -> None:
    runtime = runtime_for(hardware)
    for name in MEASURABLE:
        assert (runtime.precision_problem(name) is None) == (name in runtime.precisions)
    assert runtime.precision in MEASURABLE
    assert not set(runtime.missing_precisions) & set(runtime.precisions)


@pytest.mark.parametrize(("text", "name"), [("bf16", "bfloat16"), ("FP16", "float16"), ("torch.float32", "float32")])
def test_precisions_go_by_several_names(text: str, name: str) -> None:
    assert resolve_precision(text) == name


@pytest.mark.parametrize(("text", "words"), [("bfloat61", "Did you mean bfloat16"), ("int3", "int"), ("x", "Known")])
def test_a_precision_nobody_measures_is_refused_with_close_names(text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        resolve_precision(text)


@given(st.lists(cells, unique=True))
def test_groups_keep_every_cell_and_mix_no_process(found: list[Cell]) -> None:
    grouped = group_by_process(found)
    assert sorted(c.label for g in grouped for c in g) == sorted(c.label for c in found)
    for group in grouped:
        assert len({(c.model, c.hardware, c.precision) for c in group}) == 1
        sizes = [c.batch_size * (c.sequence_length or 1) for c in group]
        assert sizes == sorted(sizes), "memory of a larger cell may stay with the process"
        if group[0].hardware != "cpu":
            assert len({c.sequence_length for c in group}) == 1, "a graph is exported for one length"


@given(st.lists(cells, unique=True), st.data())
def test_what_is_done_and_what_is_missing_are_the_plan(found: list[Cell], data: st.DataObject) -> None:
    fingerprints = {"cpu": "a", "openvino": "b", "onnxruntime": "c"}
    done = data.draw(st.lists(st.sampled_from(found), unique=True)) if found else []
    keys = [cell_key(cell, fingerprints[cell.hardware]) for cell in done]
    assert set(missing_cells(found, keys, fingerprints)) == set(found) - set(done)
    changed = {name: fingerprint + "-new" for name, fingerprint in fingerprints.items()}
    assert missing_cells(found, keys, changed) == tuple(found), "another fingerprint is another measurement"


def test_only_good_results_of_benchmark_runs_count_as_done(tmp_path: Path) -> None:
    log = EventLog.open(Settings(home=tmp_path))
    assert done_cells(log) == frozenset()

    def result(status: str, batch_size: int) -> Event:
        payload = ResultRecorded.model_validate(
            {
                "model_id": "bert-tiny",
                "model_family": "bert",
                "hardware": "cpu",
                "backend": "pytorch",
                "provenance": "measured",
                "status": status,
                "precision": "float32",
                "batch_size": batch_size,
                "sequence_length": 128,
                "fingerprint": "a",
            }
        )
        return Event.of(payload, source="test")

    log.append([result("ok", 1), result("failed", 2), result("timeout", 3)], key=f"{SEGMENT_PREFIX}one")
    log.append([result("ok", 4)], key="import-something")
    assert done_cells(log) == {("bert-tiny", "cpu", "a", 1, 128, "float32", "inference", 1, None)}
    one, two = (Cell(BERT, "cpu", batch, 128) for batch in (1, 2))
    assert missing_cells([one, two], done_cells(log), {"cpu": "a"}) == (two,)


def test_profiles_grow_in_thoroughness_and_misspelt_ones_are_refused() -> None:
    limits = [EFFORTS[name].sampling.limit_s for name in ("quick", "standard", "thorough")]
    assert limits == sorted(limits)
    with pytest.raises(InvalidInput, match="Try standard"):
        effort_preset("standart")


def test_what_cannot_fit_is_told_before_anything_runs() -> None:
    model = resolve_model("bert-base")  # 110 million parameters
    needed_mib = 110e6 * 4 / 2**20
    cell = Cell(model, "cuda", 1, 128)
    assert memory_shortage(cell, None) is None, "memory is not known"
    assert memory_shortage(cell, 2 * needed_mib) is None
    told = memory_shortage(cell, 0.9 * needed_mib)
    assert told == "in float32 it holds 0.408 GiB of weights, besides activations; there are 0.369 GiB"
    assert memory_shortage(replace(cell, precision="float16"), 0.9 * needed_mib) is None


def test_training_holds_gradients_and_the_optimizers_moments_too() -> None:
    cell = Cell(resolve_model("bert-base"), "cuda", 1, 128, mode="training")
    weights_mib = 109.5e6 * 4 / 2**20
    told = memory_shortage(cell, 3.9 * weights_mib)
    assert told is not None
    assert "0.408 GiB of weights and 1.22 GiB of gradients and moments of AdamW, besides activations" in told
    assert memory_shortage(cell, 4.1 * weights_mib) is None


def test_generation_holds_keys_and_values_of_the_whole_batch() -> None:
    cell = Cell(resolve_model("gpt2"), "cuda", 64, 512, mode="generation")
    # Two vectors of 768 numbers in each of 12 layers.
    cache_mib = 2 * 12 * 768 * 4 * 512 * 64 / 2**20
    assert cache_mib == 2304
    told = memory_shortage(cell, cache_mib)
    assert told is not None
    assert "2.25 GiB of keys and values" in told
    assert memory_shortage(replace(cell, batch_size=8), cache_mib) is None
    assert memory_shortage(replace(cell, mode="inference"), cache_mib) is None
