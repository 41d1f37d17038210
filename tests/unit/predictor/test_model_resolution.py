"""Questions beyond names: configs, figures, sizes, devices of the spec sheet and of one's own, limits, many at once."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accel_platform.errors import InvalidInput, NotFound
from accel_platform.events import EventLog
from accel_platform.events.types import ModelDescribed
from accel_platform.hardware.catalog import catalog
from accel_platform.workloads.model_catalog import resolve_model
from predictor import predict as ask_one
from predictor import recommend as ask
from predictor.advisor.advisor import Advisor
from predictor.data.config_cost import estimate_config_cost
from predictor.data.model_resolution import resolve_item_cost, resolve_queried_model
from predictor.data.traced_models import InputSizes, lookup_decoder
from predictor.schemas.requests import BatchQuery, PredictQuery, RecommendQuery, TransformersConfig
from predictor.schemas.responses import Answer, PredictAnswer, Unanswered
from predictor.training.train import train
from predictor_world import CPU, MODELS, measured_grid, result, verified, world

OWN = {
    "name": "Board of mine", "kind": "gpu", "peak_fp32_tflops": 40.0, "peak_fp16_tensor_tflops": 160.0,
    "bandwidth_gb_s": 900.0, "memory_gib": 24.0, "tdp_w": 250.0, "usd_per_hour": 0.5,
}  # fmt: skip
FIGURES = {"parameters": 1.1e8, "flops_per_item": 2.2e10, "activation_bytes_per_item": 2.2e8, "modality": "text"}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every model on three runtimes, and some with counted energy on a GPU that another host has."""
    gpu = [
        p
        for m in MODELS[:4]
        for p in (
            result(m, "cuda", 1, device="NVIDIA L4", energy_j_per_item=0.2, energy_source="nvml"),
            verified(m, "cuda", 1),
        )
    ]
    where = tmp_path_factory.mktemp("world")
    settings = world(where, [*measured_grid(), *gpu])
    train(settings, EventLog.open(settings))
    return where


@pytest.fixture(scope="module")
def advisor(home: Path) -> Advisor:
    from accel_platform.settings import Settings

    return Advisor(Settings(home=home))


def _ask(advisor: Advisor, model: Any = "bert-base", **more: Any) -> Answer:
    return advisor.recommend(RecommendQuery.model_validate({"model": model, **more}))


def test_cost_ranks_by_dollars_and_says_the_price_and_its_day(advisor: Advisor) -> None:
    answer = _ask(advisor, objective="cost")
    first = answer.recommendations[0]
    assert first.device == "NVIDIA L4"
    assert first.cost is not None
    assert first.cost.date
    assert first.cost.usd_per_million_items.p50 == pytest.approx(
        first.cost.usd_per_hour / 3600 * 1e6 / first.items_per_s.p50
    )
    # Nobody knows what an own host costs by the hour, so it comes last, with that reason.
    assert {r.cost for r in answer.recommendations[1:]} == {None}
    assert sum("no price per hour is known, which ranks last" in w for w in answer.warnings) == 1


def test_energy_is_counted_where_it_was_and_bounded_elsewhere(advisor: Advisor) -> None:
    [counted] = _ask(advisor, hardware=["NVIDIA L4"]).recommendations
    assert counted.energy is not None
    assert (counted.energy.how, counted.energy.j_per_item.p50) == ("measured", 0.2)
    first = _ask(advisor, objective="energy").recommendations[0]
    assert first.device == "NVIDIA L4"


def test_what_breaks_a_limit_is_excluded_for_it(advisor: Advisor) -> None:
    free = _ask(advisor)
    most = free.recommendations[1].latency_ms.high
    assert most is not None
    answer = _ask(advisor, constraints={"max_latency_ms": most})
    assert [r.hardware for r in answer.recommendations] == [r.hardware for r in free.recommendations[:2]]
    left_out = [e for e in answer.excluded if e.cause == "constraint"]
    assert {e.hardware for e in left_out} == {r.hardware for r in free.recommendations[2:]}
    assert all("latency" in e.reason for e in left_out)
    assert not _ask(advisor, constraints={"max_usd_per_hour": 0.01}).recommendations


def test_a_measured_answer_says_runs_spread_and_bound(advisor: Advisor) -> None:
    [r] = _ask(advisor, hardware=["NVIDIA L4"]).recommendations
    assert "1 run" in r.why[0]
    assert "between" in r.why[0]
    assert r.bound is not None
    assert r.bound.by in ("compute", "memory")
    assert min(r.bound.compute_ms, r.bound.memory_ms) > 0


def test_a_device_of_the_spec_sheet_is_meant_by_any_of_its_names(advisor: Advisor) -> None:
    for name in ("NVIDIA L4", "nvidia l4", "L4"):
        assert [r.provenance for r in _ask(advisor, hardware=[name]).recommendations] == ["measured"]


def test_where_others_ran_something_else_what_runs_here_is_asked_for_too(tmp_path: Path) -> None:
    theirs = result(MODELS[0], "cuda", 1, device="NVIDIA H100 NVL", provenance="imported", backend="vllm")
    answer = _ask(Advisor(world(tmp_path, [*measured_grid(MODELS[:1]), theirs])), hardware=["NVIDIA H100 NVL"])
    ours, theirs_again = sorted(answer.recommendations, key=lambda r: r.provenance, reverse=True)
    assert (ours.provenance, ours.device_id) == ("predicted", None)
    assert (theirs_again.provenance, theirs_again.device) == ("measured", "NVIDIA H100 NVL")


def test_what_no_runtime_drives_is_left_out_with_that_reason(advisor: Advisor) -> None:
    [tpu] = _ask(advisor, hardware=["TPU v5e"]).excluded
    assert tpu.cause == "no_runtime"
    assert "no runtime" in tpu.reason


def test_every_device_of_the_spec_sheet_and_of_ones_own_is_recommended_or_left_out(advisor: Advisor) -> None:
    specs = catalog()
    for start in range(0, len(specs), 60):
        part = specs[start : start + 60]
        with_openvino = [spec.name for spec in part if spec.kind == "cpu" and spec.vendor == "Intel"]
        answer = _ask(advisor, hardware=[*(spec.name for spec in part), OWN], limit=None)
        told = [r.device for r in answer.recommendations] + [e.device for e in answer.excluded]
        assert sorted(map(str, told)) == sorted([*(spec.name for spec in part), *with_openvino, OWN["name"]])
        assert all(r.device_id is None for r in answer.recommendations if r.provenance == "predicted")
        assert all("accel" in e.suggestion for e in answer.excluded if e.cause == "unsupported")


def test_weights_that_do_not_fit_are_left_out(advisor: Advisor) -> None:
    large = {**FIGURES, "parameters": 7e9}
    [small] = _ask(advisor, large, hardware=["NVIDIA L4"]).excluded
    assert small.cause == "does_not_fit"
    assert "26.1 GiB in float32" in small.reason
    half = _ask(advisor, large, hardware=["NVIDIA L4"], precision="float16")
    assert all(e.cause != "does_not_fit" for e in half.excluded)


@pytest.mark.slow
def test_batches_that_do_not_fit_are_left_out(advisor: Advisor) -> None:
    def asked(**query: Any) -> Answer:
        return _ask(advisor, sequence_length=512, hardware=["NVIDIA T4"], **query)

    # Its largest product reads 768 and writes 3,072 numbers for each of 512 tokens: 7.5 MiB in float32.
    answer = asked(batch_size=16_384)
    assert not answer.recommendations
    assert {e.cause for e in answer.excluded} == {"does_not_fit"}
    assert "inputs and outputs of its largest operator, alone take 120 GiB in float32" in answer.excluded[0].reason
    assert not any("float16" in warning for warning in answer.warnings)
    assert any("float16" in warning for warning in asked(batch_size=3_584).warnings)
    for fits in ({"batch_size": 1_792}, {"batch_size": 3_584, "precision": "float16"}):
        assert all(e.cause != "does_not_fit" for e in asked(**fits).excluded)
    query = {"model": "bert-base", "sequence_length": 512, "hardware": "NVIDIA T4", "batch_size": 16_384}
    with pytest.raises(NotFound, match="does not fit in memory"):
        advisor.predict(PredictQuery.model_validate(query))


@pytest.mark.slow
def test_sizes_go_where_they_fit(advisor: Advisor) -> None:
    with pytest.raises(InvalidInput, match="leave out image_size"):
        _ask(advisor, "bert-base", image_size=224)
    with pytest.raises(InvalidInput, match="leave out audio_seconds"):
        _ask(advisor, "vit-base", audio_seconds=2.0)
    with pytest.raises(InvalidInput, match="30 s of sound"):
        _ask(advisor, "whisper-base", audio_seconds=5.0)
    with pytest.raises(InvalidInput, match="leave out image_size"):
        _ask(advisor, FIGURES, image_size=224)
    # Their own size is what was measured; of another nothing was, and it costs more.
    own = _ask(advisor, "vit-base", image_size=224, hardware=["NVIDIA L4"]).recommendations
    assert [r.provenance for r in own] == ["measured"]
    larger = _ask(advisor, "vit-base", image_size=448, hardware=["cpu"])
    assert all(r.provenance == "predicted" for r in larger.recommendations)
    longer = _ask(advisor, "wav2vec2-base", audio_seconds=10.0, hardware=["cpu"])
    assert all(r.provenance == "predicted" for r in longer.recommendations)


@pytest.mark.slow
def test_a_config_is_costed_and_known_again(tmp_path: Path) -> None:
    config = {
        "model_type": "bert", "architectures": ["BertForMaskedLM"], "hidden_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "intermediate_size": 128, "vocab_size": 1000, "_name_or_path": "mine",
    }  # fmt: skip
    cost = estimate_config_cost(config)
    assert (cost.architecture, cost.family, cost.modality, cost.sequence_length) == ("bert", "bert", "text", 128)
    assert cost.layers == 2
    assert cost.flops > 2 * 128 * 12 * 64**2 * 2 * 0.9
    unknown = _ask(Advisor(world(tmp_path / "one", measured_grid(MODELS[:3]))), config, hardware=["cpu"])
    assert unknown.model.startswith("bert-")
    assert unknown.sequence_length == 128
    assert "--models-file" in unknown.excluded[0].suggestion
    # A model that was measured is known by costing exactly the same.
    described = ModelDescribed(
        model_id="bert-of-mine", architecture="bert", family="bert", modality="text", layers=2,
        parameters=int(cost.parameters), flops_per_item=int(cost.flops),
        activation_bytes_per_item=int(cost.activation_bytes),
    )  # fmt: skip
    mine = MODELS[0].__class__("bert-of-mine", "bert", "text", int(cost.parameters), cost.flops / 1e9, 128)
    measured = [described, result(mine, "cpu", 1), verified(mine, "cpu", 1)]
    advisor = Advisor(world(tmp_path / "two", measured))
    known = _ask(advisor, config, hardware=["cpu"])
    assert known.model == "bert-of-mine"
    assert [r.provenance for r in known.recommendations] == ["measured"]
    # At a length that nobody measured its config still tells what it is.
    longer = _ask(advisor, config, hardware=["cpu"], sequence_length=64)
    assert longer.model == "bert-of-mine"
    assert "--models-file" in longer.excluded[0].suggestion


def test_a_measured_model_outside_the_catalog_is_priced_by_its_operators_on_a_gpu(tmp_path: Path) -> None:
    config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    described = ModelDescribed(
        model_id="bert-of-mine", architecture="bert", family="bert", modality="text", config=config,
        sequence_length=128, parameters=2_000_000, flops_per_item=30_000_000, activation_bytes_per_item=10**6,
        layer_output_bytes_per_item=10**6,
    )  # fmt: skip
    mine = MODELS[0].__class__("bert-of-mine", "bert", "text", 2_000_000, 0.03, 128)
    advisor = Advisor(world(tmp_path, [described, result(mine, "cpu", 1), verified(mine, "cpu", 1)]))
    answer = _ask(advisor, "bert-of-mine", hardware=["NVIDIA A100 PCIe 80GB"])
    assert [r.provenance for r in answer.recommendations] == ["predicted"], answer.excluded


@pytest.fixture(scope="module")
def unmeasured(tmp_path_factory: pytest.TempPathFactory) -> Advisor:
    return Advisor(world(tmp_path_factory.mktemp("unmeasured")))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("bert-base", {"batch_size": 8, "precision": "float16"}),
        ("bert-tiny", {"mode": "training", "batch_size": 64}),
        ("llama-tiny", {"sequence_length": 96, "precision": "bfloat16"}),
        ("t5-tiny", {}),
        ("vit-tiny", {"image_size": 160}),
        ("vit-tiny", {"mode": "training"}),
        ("wav2vec2-tiny", {"audio_seconds": 3.0}),
        ("clip-vit-base-patch32", {}),
    ],
)
def test_the_config_of_a_catalog_model_has_its_figures_on_a_gpu_nobody_measured(
    unmeasured: Advisor, name: str, query: dict[str, Any]
) -> None:
    spec = resolve_model(name)
    hardware = ["H100", "RTX 4090"]
    own = _ask(unmeasured, {"model_type": spec.architecture, **spec.config}, hardware=hardware, **query)
    catalog_model = _ask(unmeasured, name, hardware=hardware, **query)
    assert [r.provenance for r in own.recommendations] == ["predicted", "predicted"], own.excluded
    for ours, theirs in zip(own.recommendations, catalog_model.recommendations, strict=True):
        assert (ours.device, ours.latency_ms, ours.why) == (theirs.device, theirs.latency_ms, theirs.why)


@pytest.mark.slow
def test_a_config_is_priced_in_float32_unless_a_precision_is_given(unmeasured: Advisor) -> None:
    config = {"model_type": "llama", "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 2,
              "num_attention_heads": 8, "vocab_size": 1000, "torch_dtype": "bfloat16"}  # fmt: skip
    sizes = {"hardware": ["H100"], "batch_size": 64}
    wide, stated, half = (
        _ask(unmeasured, config, **sizes, **query)
        for query in ({}, {"precision": "float32"}, {"precision": "bfloat16"})
    )
    assert wide.recommendations[0].latency_ms == stated.recommendations[0].latency_ms
    assert half.recommendations[0].latency_ms.p50 < wide.recommendations[0].latency_ms.p50
    [told] = [warning for warning in wide.warnings if "no precision was given" in warning]
    assert told.endswith("so this is of float32: ask in precision bfloat16 for theirs.")
    assert not any("no precision was given" in warning for warning in half.warnings)


@pytest.mark.slow
def test_batches_of_a_config_that_do_not_fit_are_left_out(unmeasured: Advisor) -> None:
    spec = resolve_model("bert-base")
    config = {"model_type": spec.architecture, **spec.config}
    answer = _ask(unmeasured, config, sequence_length=512, hardware=["NVIDIA T4"], batch_size=16_384)
    assert [e.cause for e in answer.excluded] == ["does_not_fit"]
    assert "its largest operator, alone take 120 GiB in float32" in answer.excluded[0].reason


def test_what_the_warehouse_holds_of_a_config_tells_the_shape_of_its_decoder() -> None:
    config = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    row = {"architecture": "llama", "family": "llama", "modality": "text", "config": json.dumps(config)}
    shape = lookup_decoder("mine", None, {"mine": row})
    assert shape is not None
    assert (shape.layers, shape.kept_per_token) == (2, 2 * 2 * 64)
    assert lookup_decoder("mine", None, {"mine": {**row, "config": None}}) is None


@pytest.mark.slow
def test_the_own_image_size_of_a_config_is_no_size_of_its_own(advisor: Advisor) -> None:
    """Results of the model were measured at it."""
    config = {"model_type": "vit", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
              "intermediate_size": 64, "image_size": 32, "patch_size": 16}  # fmt: skip
    subject = resolve_queried_model(TransformersConfig(config), advisor.state().evidence)
    sizes = [resolve_item_cost(subject, None, InputSizes(pixels), {})[0] for pixels in (None, 32, 64)]
    assert sizes == [InputSizes(), InputSizes(), InputSizes(image_size=64)]


@pytest.mark.slow
def test_a_config_that_sees_is_answered_for_text_and_told_so(advisor: Advisor) -> None:
    seeing = {
        "model_type": "gemma3",
        "text_config": {
            "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4,
            "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 1000,
        },
        "vision_config": {
            "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2,
            "image_size": 56, "patch_size": 14, "vision_use_head": False,
        },
        "mm_tokens_per_image": 4,
    }  # fmt: skip
    for mode in ("inference", "generation"):
        answer = _ask(advisor, seeing, mode=mode, hardware=["cpu"])
        assert any("costed for text alone" in warning for warning in answer.warnings)
    with pytest.raises(InvalidInput, match="let sequence_length count"):
        _ask(advisor, seeing, image_size=56)


@pytest.mark.slow
def test_a_config_that_describes_nothing_is_refused_in_words() -> None:
    with pytest.raises(InvalidInput, match=r"The config is refused: .*-5"):
        estimate_config_cost({"model_type": "bert", "hidden_size": -5})


def test_many_cells_are_answered_in_their_order_and_one_stops_no_other(advisor: Advisor) -> None:
    queries = [
        PredictQuery(model=model, hardware=hardware, batch_size=size)
        for model in ("bert-base", "no-such-model", "gpt2")
        for hardware in ("cpu", "rocm")
        for size in (1, 4)
    ]
    answered = advisor.predict_many(BatchQuery(queries=queries))
    assert len(answered.answers) == len(queries)
    for query, answer in zip(queries, answered.answers, strict=True):
        assert answer.batch_size == query.batch_size
        fine = query.model != "no-such-model" and query.hardware == "cpu"
        assert isinstance(answer, PredictAnswer if fine else Unanswered)
        if isinstance(answer, PredictAnswer):
            assert answer == advisor.predict(query)
        elif query.model == "no-such-model":
            assert "No model is called" in answer.problem.detail
        else:
            assert "accel bench run" in answer.problem.detail


def test_from_python(home: Path) -> None:
    answer = ask("bert-base", home=home, batch_size=4, hardware=["cpu", "NVIDIA L4"])
    assert answer.recommendations[0].rank == 1
    assert ask_one("bert-base", "cpu", home=home, batch_size=4).provenance == "measured"
    with pytest.raises(InvalidInput, match="batch_size"):
        ask("bert-base", home=home, batch_size=0)


QUESTIONS = st.fixed_dictionaries(
    {"model": st.sampled_from([*(m.model_id for m in MODELS), "bert-large", FIGURES])},
    optional={
        "batch_size": st.sampled_from([1, 2, 3, 4, 8, 64, 4096]),
        "sequence_length": st.sampled_from([16, 64]),
        "objective": st.sampled_from(["latency", "throughput", "cost", "energy", "memory"]),
        "mode": st.sampled_from(["inference", "inference", "training"]),
        "precision": st.sampled_from(["float32", "fp16", "int8"]),
        "constraints": st.fixed_dictionaries(
            {},
            optional={
                "max_latency_ms": st.floats(1, 500),
                "max_memory_mib": st.floats(300, 2000),
                "max_usd_per_hour": st.floats(0.1, 10),
                "max_watts": st.floats(10, 500),
            },
        ),
        "hardware": st.lists(
            st.sampled_from(["cpu", "openvino", CPU, "cuda", "rocm", "NVIDIA L4", "H100 SXM", "TPU v4", "Apple M2"])
            | st.just(OWN),
            min_size=1,
            max_size=4,
        ),
    },
)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(QUESTIONS)
def test_every_answer_is_in_order_within_limits_and_says_each_thing_once(
    advisor: Advisor, question: dict[str, Any]
) -> None:
    answer = _ask(advisor, **question)
    assert answer == _ask(advisor, **question)
    json.loads(answer.model_dump_json())
    assert [r.rank for r in answer.recommendations[:1]] in ([], [1])
    for place, (before, r) in enumerate(pairwise(answer.recommendations), start=2):
        # Equals share a rank, as GPUs do that all wait for the host.
        assert r.rank == place or (r.rank, r.ranked_by) == (before.rank, before.ranked_by)
    told = [(r.hardware, r.device, r.device_id) for r in answer.recommendations]
    gone = [(e.hardware, e.device, e.device_id) for e in answer.excluded]
    assert not set(told) & set(gone)
    limits = question.get("constraints", {})
    for r in answer.recommendations:
        cost, energy = r.cost and r.cost.usd_per_million_items, r.energy and r.energy.j_per_item
        for interval in (r.latency_ms, r.items_per_s, r.memory_peak_mib, cost, energy):
            if interval is not None:
                assert 0 < (interval.low or interval.p50) <= interval.p50 <= (interval.high or interval.p50)
        assert (r.latency_ms.high or r.latency_ms.p50) <= limits.get("max_latency_ms", 1e9)
        if "max_memory_mib" in limits:
            assert r.memory_peak_mib is not None
            assert (r.memory_peak_mib.high or r.memory_peak_mib.p50) <= limits["max_memory_mib"]
        if "max_usd_per_hour" in limits:
            assert r.cost is not None
            assert r.cost.usd_per_hour <= limits["max_usd_per_hour"]
        assert r.evidence or r.provenance == "predicted"
    for left_out in answer.excluded:
        assert left_out.reason
        assert left_out.suggestion


def test_results_under_another_name_than_the_catalogs_are_found(tmp_path: Path) -> None:
    """Logs name models that the catalog came to know later."""
    older = "facebookai-roberta-large"
    named = replace(MODELS[0], model_id=older)
    settings = world(tmp_path, [result(named, "cpu", 1), verified(named, "cpu", 1)])
    advisor = Advisor(settings)
    as_catalog = replace(resolve_model("roberta-large"), model_id=older)
    for name in (older, "acme/roberta-large", "roberta-large"):
        model = resolve_queried_model(name, advisor.state().evidence)
        assert (model.model_id, model.spec) == (older, as_catalog)


def test_language_models_of_engines_lead_to_the_command_that_answers(tmp_path: Path) -> None:
    named = replace(MODELS[0], model_id="Vicuna-13B")
    advisor = Advisor(world(tmp_path, [result(named, "cpu", 1), verified(named, "cpu", 1)]))
    command = "`accel serving {}` answers"
    with pytest.raises(NotFound, match=command.format("codellama/CodeLlama-70B")):
        _ask(advisor, "codellama/CodeLlama-70B")
    assert any(command.format("Vicuna-13B") in warning for warning in _ask(advisor, "Vicuna-13B").warnings)
    assert not any("accel serving" in warning for warning in _ask(advisor, "bert-base").warnings)


def test_a_model_that_barely_fits_warns_of_memory(advisor: Advisor) -> None:
    query = {"model": "flux.1-dev", "precision": "bfloat16"}
    warnings = [_ask(advisor, **query, hardware=[name]).warnings for name in ("RTX 5090", "A100 SXM4 80GB")]
    short = "NVIDIA GeForce RTX 5090): it may run out of memory: its weights, and inputs and outputs of its largest"
    assert [any(short in warning for warning in of) for of in warnings] == [True, False]
    assert not any("run out of memory" in warning for warning in warnings[1])


def test_whisper_says_that_an_item_is_no_transcript(advisor: Advisor) -> None:
    query = {"model": "whisper-large-v3", "precision": "float16", "hardware": ["RTX 4090"]}
    said = "An item of whisper-large-v3 is one pass over 30 s of sound and 16 tokens of text at once. A transcript"
    assert any(warning.startswith(said) for warning in _ask(advisor, **query).warnings)
    assert not any("transcript" in w for w in _ask(advisor, model="wav2vec2-base", hardware=["RTX 4090"]).warnings)


def test_what_answers_an_image_says_that_an_item_is_no_answer(advisor: Advisor) -> None:
    items = {
        "trocr-base": "an image and 16 tokens of text at once",
        "florence-2-base": "an image and 16 tokens of text at once",
        "llava-1.5-7b": "an image and a question about it",
    }
    for model, read in items.items():
        warnings = _ask(advisor, model, hardware=["RTX 4090"]).warnings
        assert any(w.startswith(f"An item of {model} is one pass over {read}. An answer") for w in warnings)


def test_a_model_of_the_catalog_that_sees_is_answered_for_text_alone(advisor: Advisor) -> None:
    left_out = "is costed for text alone"
    answer = _ask(advisor, "Qwen/Qwen3-VL-2B-Instruct", hardware=["RTX 4090"], precision="bfloat16")
    assert answer.recommendations
    assert any(warning.startswith(f"qwen3-vl-2b {left_out}") for warning in answer.warnings)
    assert not any(left_out in w for w in _ask(advisor, "qwen3-1.7b", hardware=["RTX 4090"]).warnings)
    with pytest.raises(InvalidInput, match="leave out image_size"):
        _ask(advisor, "qwen3-vl-2b", image_size=448)


def test_models_that_draw_say_what_an_item_is_and_take_its_size_and_steps(advisor: Advisor) -> None:
    def drawn(**more: Any) -> tuple[float, float, list[str]]:
        query = {"model": "sd-turbo", "hardware": ["RTX 4090"], "precision": "float16", "batch_size": 8, **more}
        answer = _ask(advisor, **query)
        [one] = answer.recommendations
        assert one.latency_ms.level is None
        assert any("of 29 published times of models that draw images 18 lay" in warning for warning in answer.warnings)
        return one.latency_ms.p50, one.items_per_s.p50, answer.warnings

    once, images_per_s, warnings = drawn()
    assert images_per_s == pytest.approx(8e3 / once, rel=1e-3)
    assert "An item of sd-turbo is an image of 512 x 512 pixels, drawn in 1 step." in warnings
    assert drawn(steps=1, image_size=512)[0] == once
    small, _, warnings = drawn(steps=2, image_size=256)
    assert small < once
    assert "An item of sd-turbo is an image of 256 x 256 pixels, drawn in 2 steps." in warnings
    [left_out] = _ask(advisor, model="sd-turbo", hardware=["onnxruntime"]).excluded
    assert left_out.reason.endswith("onnxruntime holds no loop, and images are drawn step by step")
    for more, fault in (
        ({"mode": "training"}, "draws images, which is priced in the mode inference, not in training"),
        ({"image_size": 500}, "multiples of 8 pixels, not of 500: ask for 496 or 504"),
        ({"model": "bert-base", "steps": 4}, "bert-base draws no images: leave out steps"),
    ):
        with pytest.raises(InvalidInput, match=fault):
            drawn(**more)
