"""Needs of each mode, and the arithmetic of generation and training: everything that needs no device."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from accel_platform.backends.base import UnsupportedMode
from accel_platform.bench.measure import generation, training
from accel_platform.bench.measure.failures import classify
from accel_platform.bench.plan.plan import Cell, group_by_process, plan_cells
from accel_platform.bench.plan.support import head_for, resolve_mode, supports_mode, unsupported_reason
from accel_platform.errors import InvalidInput
from accel_platform.hardware import host
from accel_platform.hardware.cpu import usable_cores
from accel_platform.workloads.model_catalog import resolve_model

GPT = resolve_model("gpt2-tiny")
BERT = resolve_model("bert-tiny")


@pytest.mark.parametrize(
    ("name", "generates_with", "trains_with"),
    [
        ("gpt2-tiny", "AutoModelForCausalLM", "AutoModelForCausalLM"),
        ("tinyllama-1.1b", "AutoModelForCausalLM", "AutoModelForCausalLM"),
        ("t5-tiny", "AutoModelForSeq2SeqLM", "AutoModelForSeq2SeqLM"),
        ("bart-base", "AutoModelForSeq2SeqLM", "AutoModelForSeq2SeqLM"),
        ("whisper-tiny", "AutoModelForSpeechSeq2Seq", "AutoModelForSpeechSeq2Seq"),
        ("bert-tiny", None, "AutoModelForMaskedLM"),
        ("roberta-base", None, "AutoModelForMaskedLM"),
        ("vit-tiny", None, "AutoModelForImageClassification"),
        ("wav2vec2-base", None, "AutoModelForAudioClassification"),
        ("clip-vit-base-patch32", None, "AutoModel"),
        ("detr-resnet-50", None, "AutoModel"),
    ],
)
def test_the_head_follows_from_what_a_model_was_made_for(
    name: str, generates_with: str | None, trains_with: str
) -> None:
    spec = resolve_model(name)
    assert head_for(spec, "generation") == generates_with
    assert head_for(spec, "training") == trains_with
    assert head_for(spec, "inference") == "AutoModel"


def test_what_a_mode_forbids_is_said_before_anything_is_built() -> None:
    assert unsupported_reason(Cell(GPT, "cpu", 1, 16, mode="generation")) is None
    assert unsupported_reason(Cell(BERT, "cuda", 1, 16, mode="training")) is None
    encoder = unsupported_reason(Cell(BERT, "cpu", 1, 16, mode="generation"))
    assert encoder is not None
    assert encoder.failure_class == "unsupported_mode"
    assert encoder.reason == "bert-tiny does not generate: no bert model was made to predict the next token"
    graph = unsupported_reason(Cell(GPT, "jax", 1, 16, mode="generation"))
    assert graph is not None
    able = "cpu, cuda, rocm, mps, openvino, onnxruntime"
    assert graph.reason == f"jax runs inference only here; generation runs on {able}"
    trained = unsupported_reason(Cell(GPT, "openvino", 1, 16, mode="training"))
    assert trained is not None
    assert trained.reason == "openvino runs inference only here; training runs on cpu, cuda, rocm, mps"
    crowd = unsupported_reason(Cell(BERT, "cpu", 1, 16, mode="training", processes=usable_cores() + 1))
    assert crowd is not None
    assert "needs a core for each" in crowd.reason
    assert supports_mode("openvino", "inference")
    assert not supports_mode("webgpu", "training")


@pytest.mark.parametrize("hardware", ["openvino", "onnxruntime"])
def test_libraries_that_generate_by_themselves_take_decoders_and_say_what_they_lack(
    hardware: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decoder = Cell(GPT, hardware, 1, 16, mode="generation")
    assert unsupported_reason(decoder) is None
    both = unsupported_reason(replace(decoder, model=resolve_model("t5-tiny")))
    assert both is not None
    assert both.reason == f"{hardware} generates with decoders alone here, which t5-tiny is not"
    llama = replace(decoder, model=resolve_model("llama-tiny"))
    assert [unsupported_reason(replace(llama, precision=name)) for name in ("int8", "int4")] == [None, None]
    quantized = unsupported_reason(replace(decoder, precision="int4"))
    if hardware == "openvino":
        assert quantized is None
    else:
        assert quantized is not None
        assert quantized.failure_class == "unsupported_precision"
        assert quantized.reason.endswith("smollm3 only, and gpt2-tiny is a gpt2")
    in_one_pass = unsupported_reason(Cell(GPT, hardware, 1, 16, "int4"))
    assert in_one_pass is not None
    assert in_one_pass.failure_class == "unsupported_precision"
    assert "generation only" in in_one_pass.reason
    elsewhere = unsupported_reason(replace(decoder, hardware="openvino:gpu"))
    assert elsewhere is not None
    assert "inference only" in elsewhere.reason
    monkeypatch.setattr(host, "version", _not_installed)
    absent = unsupported_reason(decoder)
    assert absent is not None
    assert absent.reason.startswith(f"{hardware} generates with ")
    assert f"{hardware}-genai" in absent.reason
    assert absent.reason.endswith("pip install accel-platform[genai]")


def _not_installed(package: str) -> str:
    raise PackageNotFoundError(package)


def test_a_decoder_serves_every_length_in_one_process() -> None:
    cells = plan_cells([GPT], ["openvino"], [1], [16, 32], modes=("inference", "generation"))
    assert sorted(len(group) for group in group_by_process(cells)) == [1, 1, 2]


def test_modes_have_names() -> None:
    assert resolve_mode("Generation") == "generation"
    with pytest.raises(InvalidInput, match="inference, generation, training"):
        resolve_mode("dreaming")


def test_processes_are_for_training_alone() -> None:
    cells = plan_cells([GPT], ["cpu"], [1, 4], [16], modes=("inference", "training"), processes=2)
    assert [(c.mode, c.processes) for c in cells] == [("inference", 1)] * 2 + [("training", 2)] * 2
    assert "training in 2 processes" in cells[-1].label
    with pytest.raises(InvalidInput, match="Only training"):
        plan_cells([GPT], ["cpu"], [1], processes=2)
    with pytest.raises(InvalidInput, match="at least 1 process"):
        plan_cells([GPT], ["cpu"], [1], modes=("training",), processes=0)


def test_a_model_that_was_trained_is_not_measured_again() -> None:
    found = group_by_process(plan_cells([GPT], ["cpu"], [1, 2], [16], modes=("generation", "training")))
    assert [[(c.mode, c.batch_size) for c in group] for group in found] == [
        [("generation", 1), ("generation", 2)],
        [("training", 1)],
        [("training", 2)],
    ]


def test_an_exception_may_name_its_class() -> None:
    assert classify(UnsupportedMode("no"))[0] == "unsupported_mode"


class TestGeneration:
    def test_a_decoder_beside_an_encoder_begins_with_its_start_token(self) -> None:
        inputs = {"input_ids": np.ones((2, 7), np.int64), "decoder_input_ids": np.full((2, 7), 9)}
        t5 = SimpleNamespace(model_type="t5", pad_token_id=0)
        assert generation.make_prompt(inputs, t5)["decoder_input_ids"].tolist() == [[0], [0]]
        bart = SimpleNamespace(model_type="bart", pad_token_id=1, decoder_start_token_id=2)
        assert generation.make_prompt(inputs, bart)["decoder_input_ids"].tolist() == [[2], [2]]
        alone = {"input_ids": np.ones((2, 7), np.int64)}
        assert generation.make_prompt(alone, t5) == alone
        with pytest.raises(UnsupportedMode, match="starts"):
            generation.make_prompt(inputs, SimpleNamespace(model_type="odd"))

    def test_figures_are_medians_of_their_parts(self) -> None:
        rows = [(10_000_000, 1_000_000, 2_000_000 + i, 3_000_000 + i) for i in range(11)]
        figures = generation.generation_figures(rows)
        assert figures["output_tokens"] == 3
        assert figures["prefill_ms"] == 10
        assert figures["time_to_first_token_ms"] == 11
        assert figures["time_per_output_token_ms"] == pytest.approx(2.500005)
        assert figures["token_samples_ns"][:4] == (2_000_000, 3_000_000, 2_000_001, 3_000_001)

    def test_too_few_generations_give_no_median_of_what_comes_once_in_each(self) -> None:
        figures = generation.generation_figures([(10, 1, *([5] * 31))] * 10)
        assert (figures["prefill_ms"], figures["time_to_first_token_ms"]) == (None, None)
        assert figures["time_per_output_token_ms"] == 5e-6

    _SURE = np.full((1, 4), 1.0)

    @pytest.mark.parametrize(
        ("tokens", "margins", "wrong"),
        [
            ([[1, 2, 3, 4]], _SURE, None),
            ([[1, 2, 9, 4]], _SURE, "token 3 of sequence 1 is 9, the reference has 3"),
            # Chosen by a hair: another may be chosen, and then all that follows is another story.
            ([[1, 8, 9, 9]], np.array([[1.0, 0.001, 1.0, 1.0]]), None),
            ([[7, 8, 9, 9]], np.array([[1.0, 0.001, 1.0, 1.0]]), "token 1 of sequence 1 is 7, the reference has 1"),
        ],
    )
    def test_a_token_may_differ_only_where_it_was_chosen_by_a_hair(
        self, tokens: Any, margins: Any, wrong: str | None
    ) -> None:
        expected = np.array([[1, 2, 3, 4]])
        assert generation.first_wrong_token(np.array(tokens), expected, margins, excused=0.01) == wrong


class TestTraining:
    def test_labels_follow_from_the_head(self) -> None:
        model = SimpleNamespace(config=SimpleNamespace(num_labels=3))
        text = {"input_ids": np.array([[5, 6, 7]])}
        for head in ("AutoModelForCausalLM", "AutoModelForMaskedLM"):
            assert training.make_batch(model, text, head, seed=0)["labels"].tolist() == [[5, 6, 7]]  # type: ignore[arg-type]
        both = {**text, "decoder_input_ids": np.array([[1, 2, 3]])}
        assert training.make_batch(model, both, "AutoModelForSeq2SeqLM", seed=0)["labels"].tolist() == [[2, 3, -100]]
        images = {"pixel_values": np.zeros((40, 3, 2, 2))}
        labels = training.make_batch(model, images, "AutoModelForImageClassification", seed=0)["labels"]
        assert set(labels.tolist()) == {0, 1, 2}

    def test_a_loss_must_fall_and_be_finite(self) -> None:
        assert training.loss_problem([10.4, 10.3, 10.2, 10.1]) is None
        # One step may go up: dropout.
        assert training.loss_problem([10.4, 10.3, 10.2, 10.5, 10.1]) is None
        stuck = training.loss_problem([10.4, 10.4, 10.4, 10.5, 10.5])
        assert stuck == "the loss does not fall: 10.4 at first, 10.5 after 5 steps"
        assert training.loss_problem([10.4, 10.5]) is None, "two steps show nothing"
        assert training.loss_problem([10.4, float("nan"), 1.0]) == "the loss is not finite"

    def test_efficiency_is_one_where_company_costs_nothing(self) -> None:
        assert training.scaling_efficiency([100] * 11, [100] * 11) == 1
        assert training.scaling_efficiency([100] * 11, [200] * 11) == 0.5
        assert training.scaling_efficiency([100] * 10, [200] * 11) is None

    def test_precisions_that_need_more_than_a_plain_step_are_refused(self) -> None:
        training.require_precision("bfloat16")
        with pytest.raises(UnsupportedMode, match="float16"):
            training.require_precision("float16")
