"""Generation and training on torch devices, against the reference: what is right passes, what is wrong is found."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import pytest
import torch

from accel_platform.analysis.stats.medians import MIN_MEDIAN_SAMPLES
from accel_platform.backends.base import Eager, Generating, Generation, UnsupportedPrecision
from accel_platform.backends.registry import Artifact, make_backend
from accel_platform.bench.measure import generation, job, training, worker
from accel_platform.bench.measure.observation import MeterTarget
from accel_platform.bench.measure.sampling import Sampling
from accel_platform.bench.plan.support import head_for
from accel_platform.bench.prepare import worker as prepare_worker
from accel_platform.bench.prepare.artifacts import Artifacts
from accel_platform.events.types import Mode
from accel_platform.settings import Settings
from accel_platform.subprocesses.json_child import Message
from accel_platform.workloads.build import build_model
from accel_platform.workloads.model_catalog import ModelSpec, resolve_model

# Models are exported, generate and train.
pytestmark = pytest.mark.slow

FEW = Sampling(min_time_s=0.0, min_count=11, target_error=1.0, max_time_s=0.1, limit_s=20.0, warmup_max_s=0.0)
HERE = MeterTarget("cpu", None)
SHAPE = (2, 12)
GPT, T5, BERT, LLAMA = (resolve_model(name) for name in ("gpt2-tiny", "t5-tiny", "bert-tiny", "llama-tiny"))
Prepared = dict[tuple[str, Mode], Artifacts]


def prepared_job(spec: ModelSpec, mode: Mode, artifacts: Artifacts) -> Message:
    job = {"model": asdict(spec), "mode": mode, "head": head_for(spec, mode), "folder": str(artifacts.folder)}
    return {**job, "shapes": [SHAPE], "kinds": ["weights"], "threads": 2}


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    settings = Settings(home=tmp_path_factory.mktemp("home"))
    wanted: list[tuple[ModelSpec, Mode]] = [
        (GPT, "generation"),
        (T5, "generation"),
        (GPT, "training"),
        (BERT, "training"),
    ]
    made = {(spec.model_id, mode): Artifacts.of(spec, settings, mode=mode) for spec, mode in wanted}
    threads = torch.get_num_threads()
    for spec, mode in wanted:
        said: list[Message] = []
        prepare_worker.prepare_job(prepared_job(spec, mode, made[spec.model_id, mode]), said.append)
        assert said == [{"kind": "prepared", "drawn": ()}]
    torch.set_num_threads(threads)
    return made


class ModesContract:
    """Inherit and name the hardware; every device of torch takes the same path."""

    hardware: ClassVar[str]

    def loaded(self, prepared: Prepared, spec: ModelSpec, mode: Mode) -> Any:
        backend = make_backend(self.hardware, threads=1)
        assert isinstance(backend, Eager)
        head = head_for(spec, mode)
        assert head is not None
        backend.load(prepared[spec.model_id, mode].weights, precision="float32", head=head)
        return backend

    def data(self, prepared: Prepared, spec: ModelSpec, mode: Mode) -> dict[str, dict[str, Any]]:
        return job.read_data(str(prepared[spec.model_id, mode].data(SHAPE)))

    @pytest.mark.parametrize("spec", [GPT, T5], ids=lambda spec: spec.model_id)
    def test_generated_tokens_are_those_of_the_reference(self, prepared: Prepared, spec: ModelSpec) -> None:
        data = self.data(prepared, spec, "generation")
        answer = generation.measure_generation(
            self.loaded(prepared, spec, "generation"), data, FEW, precision="float32", target=HERE
        )
        assert answer["verdict"]["passed"], answer["verdict"]["reason"]
        assert answer["verdict"]["relative_error"] < 1e-5
        figures = answer["figures"]
        assert len(figures["token_samples_ns"]) == len(answer["samples_ns"]) * (generation.NEW_TOKENS - 1)
        assert sum(figures["token_samples_ns"]) < sum(answer["samples_ns"])
        if len(answer["samples_ns"]) >= MIN_MEDIAN_SAMPLES:  # a busy machine gives fewer, and then there is no median
            assert 0 < figures["prefill_ms"] <= figures["time_to_first_token_ms"] < max(answer["samples_ns"]) / 1e6

    @pytest.mark.parametrize("spec", [GPT, T5], ids=lambda spec: spec.model_id)
    def test_a_cache_that_forgets_is_found(
        self, prepared: Prepared, spec: ModelSpec, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        kept = generation.GreedyDecoder._keep

        def forget(self: generation.GreedyDecoder, output: Any) -> None:
            kept(self, output)
            [cache] = self._cache.values()
            for layer in getattr(cache, "self_attention_cache", cache).layers:
                layer.values.zero_()

        monkeypatch.setattr(generation.GreedyDecoder, "_keep", forget)
        data = self.data(prepared, spec, "generation")
        answer = generation.measure_generation(
            self.loaded(prepared, spec, "generation"), data, FEW, precision="float32", target=HERE
        )
        assert not answer["verdict"]["passed"]
        assert answer["verdict"]["reason"].startswith("last_logits differs from the reference")

    def test_training_begins_at_the_reference_and_learns(self, prepared: Prepared) -> None:
        for spec in (GPT, BERT):
            data = self.data(prepared, spec, "training")
            answer = training.measure_training(
                self.loaded(prepared, spec, "training"), data, FEW, precision="float32", target=HERE
            )
            assert answer["verdict"]["passed"], answer["verdict"]["reason"]
            assert answer["verdict"]["relative_error"] < 1e-5
            assert answer["notes"]["loss_last"] < answer["notes"]["loss_first"]
            steps = [answer["figures"][name] for name in ("forward_ms", "backward_ms", "optimizer_ms")]
            if len(answer["samples_ns"]) >= MIN_MEDIAN_SAMPLES:
                assert all(0 < part < max(answer["samples_ns"]) / 1e6 for part in steps)

    def test_a_wrong_gradient_is_found(self, prepared: Prepared) -> None:
        backend = self.loaded(prepared, GPT, "training")
        # The forward pass is right, and the gradient of one matrix twice what it should be.
        backend.model.transformer.h[0].mlp.c_fc.weight.register_hook(lambda gradient: gradient * 2)
        answer = training.measure_training(
            backend, self.data(prepared, GPT, "training"), FEW, precision="float32", target=HERE
        )
        assert not answer["verdict"]["passed"]
        assert answer["verdict"]["reason"].startswith("gradient_norms differs from the reference")

    def test_a_model_that_does_not_learn_is_found(self, prepared: Prepared, monkeypatch: pytest.MonkeyPatch) -> None:
        backend = self.loaded(prepared, GPT, "training")
        monkeypatch.setattr(torch.optim.AdamW, "step", lambda self: None)
        backend.model.config.resid_pdrop = 0.0
        for module in backend.model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        answer = training.measure_training(
            backend, self.data(prepared, GPT, "training"), FEW, precision="float32", target=HERE
        )
        assert not answer["verdict"]["passed"]
        assert "does not fall" in answer["verdict"]["reason"]


class TestCpu(ModesContract):
    hardware = "cpu"


@pytest.mark.skipif(not torch.cuda.is_available() or torch.version.hip is not None, reason="no CUDA device here")
class TestCuda(ModesContract):
    hardware = "cuda"


class DecoderContract:
    """Inherit and name the hardware, whose library generates by itself, and what it loads by precision."""

    hardware: ClassVar[str]
    artifacts: ClassVar[dict[str, Artifact]]

    @pytest.fixture(scope="class")
    @classmethod
    def decoders(cls, tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
        """Every precision of a model with grouped queries."""
        made = Artifacts.of(LLAMA, Settings(home=tmp_path_factory.mktemp("home")), mode="generation")
        prepare_decoder(LLAMA, made, list(cls.artifacts.values()))
        return made

    def measured(self, made: Artifacts, precision: str = "float32", *, faulty: Any = None) -> dict[str, Any]:
        backend = make_backend(self.hardware, threads=1, mode="generation")
        assert isinstance(backend, Generating)
        backend.load(made.artifact(self.artifacts[precision], 12), precision=precision)
        if faulty is not None:
            faulty(backend)
        answer = generation.measure_generation(
            backend, job.read_data(str(made.data(SHAPE))), FEW, precision=precision, target=HERE
        )
        backend.close()
        return answer

    def test_generated_tokens_are_those_of_the_reference(self, decoders: Artifacts) -> None:
        answer = self.measured(decoders)
        assert answer["verdict"]["passed"], answer["verdict"]["reason"]
        assert answer["verdict"]["relative_error"] < 1e-5
        assert answer["notes"] == {"equal_tokens_share": 1.0}
        assert answer["precision_share"] == 1.0
        assert answer["confirmed"]["seen"] == (answer["confirmed"]["asked"],)
        figures = answer["figures"]
        assert len(figures["token_samples_ns"]) == len(answer["samples_ns"]) * (generation.NEW_TOKENS - 1)
        assert min(figures["token_samples_ns"]) > 0
        # Prompt and tokens are most of a generation, by whichever clock.
        assert 0.5 * sum(answer["samples_ns"]) < sum(figures["token_samples_ns"]) < sum(answer["samples_ns"])

    @pytest.mark.parametrize("precision", ["int8", "int4"])
    def test_quantized_weights_deviate_as_their_steps_do(self, decoders: Artifacts, precision: str) -> None:
        answer = self.measured(decoders, precision)
        assert answer["verdict"]["passed"], answer["verdict"]["reason"]
        assert 1e-3 < answer["verdict"]["relative_error"] < answer["verdict"]["tolerance"]
        assert 0.5 < answer["precision_share"] < 1.0
        assert 0.0 <= answer["notes"]["equal_tokens_share"] <= 1.0

    def test_a_precision_that_was_not_computed_in_is_found(self, decoders: Artifacts) -> None:
        backend = make_backend(self.hardware, threads=1, mode="generation")
        backend.load(decoders.artifact(self.artifacts["float32"], 12), precision="int8")
        with pytest.raises(UnsupportedPrecision, match="none of the matrix products"):
            generation.measure_generation(
                backend, job.read_data(str(decoders.data(SHAPE))), FEW, precision="int8", target=HERE
            )

    def test_another_token_is_found(self, decoders: Artifacts) -> None:
        margins = job.read_data(str(decoders.data(SHAPE)))["greedy"]["margins"]
        row, column = np.unravel_index(margins.argmax(), margins.shape)

        def slip(backend: Any) -> None:
            generate = backend.generate

            def generate_wrongly(prompt: Any, new_tokens: int) -> Generation:
                found = generate(prompt, new_tokens)
                found.tokens[row, column] += 1
                return Generation(found.tokens, found.times_ns)

            backend.generate = generate_wrongly

        answer = self.measured(decoders, faulty=slip)
        assert not answer["verdict"]["passed"]
        assert answer["verdict"]["reason"].startswith(f"token {column + 1} of sequence {row + 1} is ")


class TestOpenVINO(DecoderContract):
    hardware = "openvino"
    artifacts: ClassVar[dict[str, Artifact]] = {
        "float32": "openvino-decoder",
        "int8": "openvino-decoder-int8",
        "int4": "openvino-decoder-int4",
    }


class TestOnnxRuntime(DecoderContract):
    hardware = "onnxruntime"
    artifacts: ClassVar[dict[str, Artifact]] = {
        "float32": "onnx-decoder",
        "int8": "onnx-decoder-int8",
        "int4": "onnx-decoder-int4",
    }

    def test_a_model_that_the_builder_does_not_know_is_exported_by_torch(self, tmp_path: Path) -> None:
        made = Artifacts.of(GPT, Settings(home=tmp_path), mode="generation")
        told = prepare_decoder(GPT, made, ["onnx-decoder", "onnx-decoder-int4"], refused=1)
        assert told["artifact"] == "onnx-decoder-int4"
        assert told["failure_class"] == "unsupported_precision"
        assert "builder has no gpt2" in told["reason"]
        answer = self.measured(made)
        assert answer["verdict"]["passed"], answer["verdict"]["reason"]
        assert answer["verdict"]["relative_error"] < 1e-5


def prepare_decoder(spec: ModelSpec, made: Artifacts, kinds: list[Artifact], *, refused: int = 0) -> Message:
    """Prepare a model's decoders; return the first message, which refuses an artifact where one is to be refused."""
    threads, said = torch.get_num_threads(), list[Message]()
    prepare_worker.prepare_job({**prepared_job(spec, "generation", made), "kinds": kinds}, said.append)
    torch.set_num_threads(threads)
    assert [answer["kind"] for answer in said] == ["failed"] * refused + ["prepared"], said
    return said[0]


def test_the_reference_is_what_passes_without_a_cache_would_choose_one_by_one(prepared: Prepared) -> None:
    data = job.read_data(str(prepared["gpt2-tiny", "generation"].data(SHAPE)))
    model = build_model(GPT, head="AutoModelForCausalLM")
    tokens = torch.from_numpy(data["input"]["input_ids"])
    chosen: list[npt.NDArray[Any]] = []
    with torch.inference_mode():
        for _ in range(generation.NEW_TOKENS):
            logits = model(input_ids=tokens, use_cache=False).logits[:, -1]
            tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], 1)
            chosen.append(tokens[:, -1].numpy())
    assert (np.stack(chosen, 1) == data["greedy"]["tokens"]).all()
    np.testing.assert_allclose(logits.numpy(), data["reference"]["last_logits"], rtol=1e-3, atol=1e-5)


def test_what_is_fixed_in_a_model_stays_fixed_when_it_is_loaded(tmp_path: Path) -> None:
    model: Any = torch.nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    data = {"parameters": {"trainable": training.trainable_mask(model)["parameters/trainable"]}}
    loaded = torch.nn.Linear(2, 2)
    training.freeze_parameters(loaded, data)
    assert [p.requires_grad for p in loaded.parameters()] == [True, False]


def test_a_runtime_of_graphs_refuses_in_its_words() -> None:
    said: list[Message] = []
    job = {"hardware": "jax", "mode": "generation", "head": "AutoModelForCausalLM", "artifact": "none"}
    worker.measure_job({**job, "threads": 1, "processes": 1, "precision": "float32", "cells": []}, said.append)
    [answer] = said
    assert (answer["kind"], answer["failure_class"]) == ("not_loaded", "unsupported_mode")
    assert "jax backend runs inference only, not generation" in answer["reason"]
