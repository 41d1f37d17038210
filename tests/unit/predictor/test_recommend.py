"""The ranked answer: which kind of evidence wins, when it abstains, and what it says then."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from accel_platform.errors import InvalidInput, NotFound, WarehouseEmpty
from accel_platform.events import EventLog
from accel_platform.events.types import Payload
from accel_platform.precisions import canonical_precision
from accel_platform.settings import Settings
from predictor.advisor.advisor import Advisor
from predictor.advisor.answer_cache import CandidateResult
from predictor.advisor.answers import _one_per_reason_first
from predictor.advisor.objectives import batch_spread
from predictor.advisor.queries import _other_choices
from predictor.schemas.requests import PredictQuery, RecommendQuery
from predictor.schemas.responses import INTERVAL_LEVEL, Answer, Excluded, Figures, PredictAnswer
from predictor.training.train import train
from predictor_world import (
    BACKENDS,
    CPU,
    CPU_ID,
    MODELS,
    Model,
    append,
    described,
    latency_of,
    measured_grid,
    result,
    verified,
    world,
)

BERT, VIT = MODELS[0], MODELS[1]
GPU = "Test GPU"
"""No device of the catalogue, so that its operators have no price."""


@pytest.fixture(scope="module")
def advisor(tmp_path_factory: pytest.TempPathFactory) -> Advisor:
    """All models on three runtimes; vit-base on openvino is left out; some on a GPU of another host."""
    grid = [
        p
        for p in measured_grid()
        if (getattr(p, "model_id", ""), getattr(p, "hardware", "")) != ("vit-base", "openvino")
    ]
    gpu = [result(m, "cuda", 1, device=GPU, provenance="imported") for m in (MODELS[2], MODELS[4])]
    settings = world(tmp_path_factory.mktemp("world"), [*grid, *gpu])
    train(settings, EventLog.open(settings))
    return Advisor(settings)


def _ask(advisor: Advisor, model: str, **more: object) -> Answer:
    return advisor.recommend(RecommendQuery.model_validate({"model": model, **more}))


def test_measured_beats_scaled_beats_predicted(advisor: Advisor) -> None:
    def provenance(model: str, **more: object) -> dict[str, str]:
        return {r.hardware: r.provenance for r in _ask(advisor, model, **more).recommendations}

    assert provenance("bert-base") == {"cpu": "measured", "openvino": "measured", "onnxruntime": "measured"}
    # Not measured on openvino: from another runtime, although the learned model could speak as well.
    assert provenance("vit-base") == {"cpu": "measured", "onnxruntime": "measured", "openvino": "scaled"}
    assert provenance("bert-base", batch_size=2, hardware=["cpu"]) == {"cpu": "scaled"}
    assert provenance("bert-base", batch_size=8, hardware=["cpu"]) == {"cpu": "predicted"}
    assert provenance("bert-large") == {"cpu": "predicted", "openvino": "predicted", "onnxruntime": "predicted"}


@pytest.mark.parametrize("model", ["bert-base", "bert-large", "vit-base", "whisper-base"])
@pytest.mark.parametrize("batch_size", [1, 2, 4, 7])
def test_every_figure_is_in_order_and_consistent(advisor: Advisor, model: str, batch_size: int) -> None:
    answer = _ask(advisor, model, batch_size=batch_size)
    assert [r.rank for r in answer.recommendations] == [1, 2, 3]
    for r in answer.recommendations:
        for interval in (r.latency_ms, r.items_per_s, r.memory_peak_mib):
            if interval is not None and interval.low is not None and interval.high is not None:
                assert 0 < interval.low <= interval.p50 <= interval.high
        assert r.items_per_s.p50 == pytest.approx(batch_size * 1e3 / r.latency_ms.p50)
        assert r.items_per_s.low == pytest.approx(batch_size * 1e3 / (r.latency_ms.high or 0))
        assert r.evidence
    for a, b in itertools.pairwise(answer.recommendations):
        assert a.latency_ms.p50 <= b.latency_ms.p50


def test_one_published_figure_has_the_limits_that_others_differ_by(tmp_path: Path) -> None:
    published: dict[str, Any] = {"provenance": "imported", "device": GPU}
    pairs = [
        result(model, "cuda", size, scale=scale, fingerprint=f"version {scale}", **published)
        for model in MODELS
        for size in (1, 2)
        for scale in (1.0, 1.2)
    ]
    alone = result(BERT, "cuda", 4, **published)
    before = Advisor(world(tmp_path / "before", [alone]))
    assert _ask(before, "bert-base", batch_size=4, hardware=["cuda"]).recommendations[0].latency_ms.high is None
    advisor = Advisor(world(tmp_path / "after", [*pairs, alone]))
    [only] = _ask(advisor, "bert-base", batch_size=4, hardware=["cuda"]).recommendations
    latency = only.latency_ms
    assert latency.level == INTERVAL_LEVEL
    assert latency.low is not None
    assert latency.high is not None
    assert (latency.p50 / latency.low, latency.high / latency.p50) == pytest.approx((1.2, 1.2), rel=0.01)
    assert any("x 1.2 of others" in why for why in only.why)
    limits = {"max_latency_ms": 1.3 * latency.p50}
    assert _ask(advisor, "bert-base", batch_size=4, hardware=["cuda"], constraints=limits).recommendations
    limits = {"max_latency_ms": 1.1 * latency.p50}
    assert not _ask(advisor, "bert-base", batch_size=4, hardware=["cuda"], constraints=limits).recommendations


def test_a_model_that_was_measured_otherwise_there_says_what_to_ask(tmp_path: Path) -> None:
    phone = {"device": "Some Phone 7", "device_id": "imported:Some Phone 7", "provenance": "imported"}
    measured = [result(BERT, "cpu", size, precision="int8", **phone) for size in (1, 8)]
    advisor = Advisor(world(tmp_path, [*measured, result(BERT, "cpu", 1, **phone, mode="training")]))

    def hints(**query: Any) -> list[str]:
        answer = _ask(advisor, "bert-base", hardware=["Some Phone 7"], **query)
        return [warning for warning in answer.warnings if "in other settings" in warning]

    [hint] = hints(batch_size=6)
    place = "bert-base was measured in other settings on cpu (Some Phone 7)"
    assert hint == f"{place}: ask for precision int8, batch_size 8."
    assert hints(precision="int8", batch_size=8) == []
    assert hints(precision="float32", mode="generation") == []


def test_objectives_rank_by_what_they_name(advisor: Advisor) -> None:
    fastest = _ask(advisor, "bert-base", objective="throughput").recommendations
    assert [r.items_per_s.p50 for r in fastest] == sorted((r.items_per_s.p50 for r in fastest), reverse=True)
    # vit-base on openvino is scaled from another runtime, which tells nothing of memory: last, not first.
    smallest = _ask(advisor, "vit-base", objective="memory").recommendations
    assert smallest[-1].hardware == "openvino"
    assert smallest[-1].memory_peak_mib is None


def test_a_hopeful_guess_does_not_outrank_what_can_be_relied_on(advisor: Advisor) -> None:
    answer = _ask(advisor, "vit-base", batch_size=2)
    worst = [r.latency_ms.high or r.latency_ms.p50 for r in answer.recommendations]
    assert len(worst) > 1
    assert worst == sorted(worst)
    least = [r.items_per_s.low or r.items_per_s.p50
             for r in _ask(advisor, "vit-base", batch_size=2, objective="throughput").recommendations]  # fmt: skip
    assert least == sorted(least, reverse=True)


def test_evidence_names_the_events(advisor: Advisor) -> None:
    [r] = _ask(advisor, "bert-base", hardware=["cpu"]).recommendations
    rows = advisor.reader.rows("SELECT event_id, model_id, hardware FROM results WHERE event_id = ?::UUID", r.evidence)
    assert [(row["model_id"], row["hardware"]) for row in rows] == [("bert-base", "cpu")]


def test_what_no_host_has_is_left_out_with_the_command(advisor: Advisor) -> None:
    answer = _ask(advisor, "bert-base")
    [gpu] = [e for e in answer.excluded if e.device == GPU]
    # Two families were measured there: too few to scale by, and too few to learn the device from.
    assert "too little was measured to tell how far a figure would be off" in gpu.reason
    assert "accel bench run --models bert-base --hardware cuda --batch-sizes 1 --sequence-length 128" in gpu.suggestion


def test_an_unavailable_device_says_why(tmp_path: Path) -> None:
    answer = _ask(Advisor(world(tmp_path)), "bert-base")
    [cuda] = answer.excluded
    assert (cuda.hardware, cuda.device) == ("cuda", None)
    assert "no NVIDIA driver" in cuda.reason
    assert cuda.suggestion.startswith("on a host that has it: accel bench run")


def test_a_gpu_that_others_measured_with_their_engine_is_priced_with_our_runtime(tmp_path: Path) -> None:
    served, own = "NVIDIA H100 SXM5 80GB", "NVIDIA A100 PCIe 40GB"
    more = {"provenance": "imported", "mode": "generation", "output_tokens": 8}
    known = [
        result(BERT, "cuda", 1, device=served, device_id="a", backend="vllm", **more),
        result(BERT, "cuda", 1, device="NVIDIA H200 SXM", device_id="b", backend="vllm", **more),
        result(BERT, "cuda", 1, device=own, device_id="c", provenance="imported"),
    ]
    advisor = Advisor(world(tmp_path, known))
    for hardware in (None, ["cuda"]):
        answer = _ask(advisor, "bert-base", hardware=hardware)
        found = {(r.device, r.backend): r.provenance for r in answer.recommendations}
        assert found.pop((own, "pytorch")) != "predicted"
        assert found == {(served, "pytorch"): "predicted", ("NVIDIA H200 SXM", "pytorch"): "predicted"}
        [said] = [w for w in answer.warnings if "no whole model was measured there" in w]
        assert said.startswith("cuda (NVIDIA H100 SXM5 80GB), cuda (NVIDIA H200 SXM): no whole")
    assert not _ask(advisor, "bert-base", where="mine").recommendations
    assert not _ask(advisor, "bert-base", mode="generation", hardware=["rocm"]).recommendations


def test_without_a_predictor_measurements_still_answer(tmp_path: Path) -> None:
    answer = _ask(Advisor(world(tmp_path)), "bert-base")
    assert len(answer.recommendations) == 3
    assert answer.predictor_id is None
    unmeasured = _ask(Advisor(Settings(home=tmp_path)), "bert-large")
    assert not unmeasured.recommendations
    assert all("accel train" in e.reason or "unavailable" in e.reason for e in unmeasured.excluded)


def test_hub_ids_and_legacy_names_resolve(tmp_path: Path) -> None:
    legacy = Model("My_Old.Model", "unknown", "text", 1, 5.0)
    settings = world(tmp_path, [*measured_grid(MODELS[:1]), result(legacy, "cpu", 1, provenance="imported")])
    advisor = Advisor(settings)
    for name in ("bert-base-uncased", "google-bert/bert-base-uncased", "BERT"):
        assert _ask(advisor, name).model == "bert-base"
    answer = _ask(advisor, "my-old_model")
    assert answer.model == "My_Old.Model"
    assert [(r.hardware, r.provenance) for r in answer.recommendations] == [("cpu", "measured")]
    assert all("accel migrate" in e.suggestion for e in answer.excluded)
    with pytest.raises(NotFound, match=r"Did you mean .*bert-base"):
        _ask(advisor, "bert-bse")
    with pytest.raises(NotFound, match=r"My_Old\.Model"):
        _ask(advisor, "my-old-modell")


def test_the_length_that_was_measured_is_the_default_and_said(advisor: Advisor) -> None:
    answer = _ask(advisor, "bert-base")
    assert answer.sequence_length == 128
    assert any("No sequence_length given" in w and "128" in w for w in answer.warnings)
    other = _ask(advisor, "bert-base", sequence_length=64)
    assert other.sequence_length == 64
    assert {r.provenance for r in other.recommendations} == {"predicted"}
    ignored = _ask(advisor, "vit-base", sequence_length=64)
    assert ignored.sequence_length is None
    assert any("ignored" in w for w in ignored.warnings)


def test_a_length_is_ignored_for_a_model_whose_results_state_none(tmp_path: Path) -> None:
    unstated = result(VIT, "cpu", 1, provenance="imported", model_id="an-old-net", sequence_length=None)
    advisor = Advisor(world(tmp_path, [*measured_grid(MODELS[:2]), unstated]))
    plain, with_length = (_ask(advisor, "an-old-net", sequence_length=length) for length in (None, 128))
    assert with_length.recommendations == plain.recommendations
    assert [r.provenance for r in plain.recommendations] == ["measured"]
    assert "No result of an-old-net states a sequence_length: ignored." in with_length.warnings


def test_a_length_the_model_cannot_read_is_invalid(advisor: Advisor) -> None:
    with pytest.raises(InvalidInput, match="512"):
        _ask(advisor, "bert-base", sequence_length=100_000)


def test_far_beyond_what_was_learned_it_abstains_and_near_it_warns(advisor: Advisor) -> None:
    near = _ask(advisor, "bert-base", batch_size=8)
    assert near.recommendations
    assert any("2.0 times beyond" in w for w in near.warnings)
    far = _ask(advisor, "bert-base", batch_size=4096)
    assert not far.recommendations
    assert all("times beyond anything learned from" in e.reason for e in far.excluded if e.device == CPU)


@pytest.mark.parametrize(("more", "words"), [({"mode": "training"}, "mode training"), ({"precision": "int8"}, "int8")])
def test_another_mode_or_precision_abstains(advisor: Advisor, more: dict[str, str], words: str) -> None:
    answer = _ask(advisor, "bert-base", hardware=["cpu"], **more)
    assert not answer.recommendations
    assert words in answer.excluded[0].reason


def test_the_command_asks_for_the_precision_or_for_hardware_that_has_it(advisor: Advisor) -> None:
    from accel_platform.backends.registry import RUNTIMES

    for precision in ("bf16", "int8", "float16"):
        answer = _ask(advisor, "bert-base", precision=precision)
        assert not answer.recommendations
        for left_out in answer.excluded:
            refusal = RUNTIMES[left_out.hardware].precision_problem(canonical_precision(precision))
            if refusal is None:
                assert f"--precision {canonical_precision(precision)}" in left_out.suggestion
            else:
                assert "accel bench" not in left_out.suggestion
                assert left_out.suggestion.startswith("ask for hardware that has")
                assert left_out.suggestion.endswith(f", which {left_out.hardware} has")
                assert left_out.reason == refusal or "unavailable" in left_out.reason
    assert all("--precision" not in e.suggestion for e in _ask(advisor, "bert-base").excluded)


def test_parts_that_were_measured_are_named_where_nothing_answers_for_the_whole(tmp_path: Path) -> None:
    whole, turbo = "whisper-large-v3", "whisper-large-v3-turbo-decoder"
    rows = [
        result(replace(BERT, model_id=name, family="whisper"), "openvino", 1, provenance="imported", device="Phone")
        for name in (f"{whole}-encoder", f"{whole}-decoder", turbo)
    ]
    advisor = Advisor(world(tmp_path, rows))
    named = f"ask for {whole}-decoder, {whole}-encoder."
    assert any(warning.endswith(named) for warning in _ask(advisor, whole, hardware=["openvino"]).warnings)
    assert not any("parts of it" in warning for warning in _ask(advisor, whole, hardware=["cpu"]).warnings)
    with pytest.raises(NotFound, match=named):
        advisor.predict(PredictQuery(model=whole, hardware="openvino"))


def test_hardware_that_only_infers_is_not_suggested_for_training(advisor: Advisor) -> None:
    excluded = _ask(advisor, "bert-base", mode="training").excluded
    [openvino] = [e.suggestion for e in excluded if e.hardware == "openvino"]
    assert openvino == "ask for hardware that runs training: cpu, cuda, rocm, mps"


def test_precision_names_mean_the_same(advisor: Advisor) -> None:
    for name in ("fp32", "float32", "FP32"):
        assert _ask(advisor, "bert-base", precision=name, hardware=["cpu"]).recommendations[0].provenance == "measured"


def test_a_precision_is_one_of_the_platform_or_of_a_result(tmp_path: Path) -> None:
    advisor = Advisor(world(tmp_path, [result(BERT, "cpu", 1, provenance="imported", precision="w8a8")]))
    assert _ask(advisor, "bert-base", hardware=["cpu"], precision="w8a8").recommendations
    for name, says in (("fp7", r"Known: float64, float32, .*, int4, w8a8\.$"), ("w8a", r"Did you mean w8a8\?$")):
        with pytest.raises(InvalidInput, match=rf"called '{name}'\. {says}"):
            advisor.predict(PredictQuery(model="bert-base", hardware="cpu", precision=name))


def test_figures_without_a_precision_are_used_with_a_warning_unless_one_is_asked(tmp_path: Path) -> None:
    advisor = Advisor(world(tmp_path, [result(BERT, "cpu", 1, provenance="imported", precision=None)]))
    answer = _ask(advisor, "bert-base", hardware=["cpu"])
    assert answer.recommendations[0].provenance == "measured"
    assert any("state no precision" in w for w in answer.warnings)
    assert not _ask(advisor, "bert-base", hardware=["cpu"], precision="float32").recommendations


def test_a_failed_cell_is_left_out_with_the_failure(tmp_path: Path) -> None:
    failed = result(BERT, "cpu", 64).model_copy(
        update={"status": "failed", "samples_ns": (), "reason": "out of memory: 61 GiB", "memory_peak_mib": None}
    )
    settings = world(tmp_path, [*measured_grid(MODELS[:4]), failed])
    train(settings, EventLog.open(settings))
    [excluded] = _ask(Advisor(settings), "bert-base", batch_size=64, hardware=["cpu"]).excluded
    assert "out of memory: 61 GiB" in excluded.reason
    assert "event" in excluded.reason


def test_the_evidence_knows_a_model_that_only_failed(tmp_path: Path) -> None:
    failed = result(BERT, "cpu", 64).model_copy(
        update={"status": "failed", "samples_ns": (), "reason": "out of memory: 61 GiB", "memory_peak_mib": None}
    )
    evidence = Advisor(world(tmp_path, [*measured_grid(MODELS[1:2]), failed])).state().evidence
    known = {model.model_id for model in MODELS if evidence.knows(model.model_id)}
    assert known == {BERT.model_id, VIT.model_id}


def test_a_model_whose_outputs_are_wrong_is_left_out(tmp_path: Path) -> None:
    wrong: list[Payload] = [described(BERT)]
    for batch_size in (1, 4):
        wrong += [result(BERT, "openvino", batch_size), verified(BERT, "openvino", batch_size, passed=False)]
    answer = _ask(Advisor(world(tmp_path, [*measured_grid(MODELS[1:4]), *wrong])), "bert-base", hardware=["openvino"])
    assert not answer.recommendations
    assert "outputs differ from the reference" in answer.excluded[0].reason


def test_simulated_suspect_and_emulated_figures_are_never_recommended(tmp_path: Path) -> None:
    rows = [result(BERT, "cpu", 1, provenance=p) for p in ("simulated", "suspect", "emulated")]
    answer = _ask(Advisor(world(tmp_path, [described(BERT), *rows])), "bert-base")
    assert not answer.recommendations


def test_an_imported_device_is_suggested_once(tmp_path: Path) -> None:
    phone = {"device": "Some Phone 7", "device_id": "imported:Some Phone 7", "provenance": "imported"}
    advisor = Advisor(world(tmp_path, [described(BERT), result(BERT, "cuda", 1, **phone)]))
    with pytest.raises(InvalidInput, match=r"Did you mean Some Phone 7\?"):
        _ask(advisor, "bert-base", hardware=["Phone 7"])


def test_hardware_by_hardware_device_and_catalogue_name(advisor: Advisor) -> None:
    assert [r.hardware for r in _ask(advisor, "bert-base", hardware=["CPU"]).recommendations] == ["cpu"]
    for name in (CPU, CPU.lower(), CPU_ID):
        assert len(_ask(advisor, "bert-base", hardware=[name]).recommendations) == 3
    [known] = _ask(advisor, "bert-base", hardware=["nvidia h200"]).recommendations
    assert (known.hardware, known.device, known.provenance) == ("cuda", "NVIDIA H200 SXM", "predicted")
    [rocm] = _ask(advisor, "bert-base", hardware=["rocm"]).excluded
    assert "nothing was measured there" in rocm.reason
    gpus = _ask(advisor, "bert-base", hardware=["GPU"])
    assert {each.hardware for each in (*gpus.recommendations, *gpus.excluded)} == {"cuda"}
    [npu] = _ask(advisor, "bert-base", hardware=["npu"]).excluded
    assert "nothing was measured there" in npu.reason
    with pytest.raises(InvalidInput, match="Did you mean NVIDIA H100 SXM5 80GB"):
        _ask(advisor, "bert-base", hardware=["H10"])  # spelled like H100, which leaves the form factor open
    with pytest.raises(InvalidInput, match=r"gpu does not run openvino\. Known of it: cuda"):
        _ask(advisor, "bert-base", hardware=["openvino:gpu"])
    with pytest.raises(InvalidInput, match="Did you mean cuda"):
        _ask(advisor, "bert-base", hardware=["cudaa"])
    with pytest.raises(InvalidInput, match="Did you mean NVIDIA A100 PCIe 40GB, NVIDIA A100 PCIe 80GB"):
        _ask(advisor, "bert-base", hardware=["nvidia A100 PCIe"])
    with pytest.raises(InvalidInput, match="Did you mean NVIDIA A100 SXM4 80GB"):
        _ask(advisor, "bert-base", hardware=["A100x"])
    with pytest.raises(InvalidInput, match="Did you mean NVIDIA GeForce RTX 4090, NVIDIA GeForce RTX 4090 D"):
        _ask(advisor, "bert-base", hardware=["RTX 4090 48GB"])
    with pytest.raises(InvalidInput, match="Did you mean NVIDIA GeForce RTX 4090, NVIDIA GeForce RTX 4090 D"):
        _ask(advisor, "bert-base", hardware=["4090 laptop"])
    with pytest.raises(InvalidInput, match=r"Did you mean Intel Core i7-12700H, "):
        _ask(advisor, "bert-base", hardware=["i7-12700"])
    with pytest.raises(InvalidInput, match="`accel devices WORD` finds a device") as unlike:
        _ask(advisor, "bert-base", hardware=["abacus"])
    assert len(str(unlike.value)) < 250


def test_a_chip_stands_for_the_phones_that_carry_it(tmp_path: Path) -> None:
    phone = {"device": "Samsung Galaxy S24", "provenance": "imported", "backend": "tflite"}
    other = {"device": "Samsung Galaxy S25", "provenance": "imported", "backend": "tflite"}
    advisor = Advisor(world(tmp_path, [result(BERT, "cpu", 1, **phone), result(BERT, "cpu", 1, **other)]))
    answer = _ask(advisor, "bert-base", hardware=["snapdragon 8 gen 3"])
    assert [r.device for r in answer.recommendations] == ["Samsung Galaxy S24"]
    assert [e.device for e in answer.excluded] == ["Qualcomm Snapdragon 8 Gen 3"]
    query = {"model": "bert-base", "hardware": "Snapdragon 8 Gen 3", "sequence_length": 128}
    assert advisor.predict(PredictQuery.model_validate(query)).device == "Samsung Galaxy S24"


def test_a_name_that_leaves_the_form_factor_open_is_taken_for_the_commonest_with_a_warning(advisor: Advisor) -> None:
    answer = _ask(advisor, "bert-base", hardware=["nvidia A100"])
    assert [r.device for r in answer.recommendations] == ["NVIDIA A100 SXM4 80GB"]
    [warning] = [w for w in answer.warnings if "taken for" in w]
    assert "NVIDIA A100 PCIe 40GB" in warning


def test_a_clouds_instance_is_its_device_and_says_how_many_it_has(advisor: Advisor) -> None:
    names = ["P5en.48xlarge", "a3-ultragpu-8g", "H200"]
    answer = _ask(advisor, "bert-base", hardware=names)
    alone = _ask(advisor, "bert-base", hardware=["H200"])
    assert answer.recommendations == alone.recommendations, "one device is one row, whatever it is called"
    assert [r.device for r in answer.recommendations] == ["NVIDIA H200 SXM"]
    told = [warning for warning in answer.warnings if " has " in warning]
    assert told == [f"{name} has 8 x NVIDIA H200 SXM; each figure is of one." for name in names[:2]]
    one = advisor.predict(PredictQuery(model="bert-base", hardware="p5.4xlarge"))
    assert one.device == "NVIDIA H100 SXM5 80GB"
    assert "p5.4xlarge has one NVIDIA H100 SXM5 80GB." in one.warnings
    for name, near in (("g5.3xlarge", "g5.xlarge, "), ("c5.4xlarg", "AWS c5.4xlarge"), ("p4d", "p4d.24xlarge, ")):
        with pytest.raises(InvalidInput, match=f"Did you mean {near}"):
            _ask(advisor, "bert-base", hardware=[name])


def test_predict_answers_one_cell_or_says_what_to_measure(advisor: Advisor) -> None:
    answer = advisor.predict(PredictQuery(model="bert-base", hardware="cpu", batch_size=2))
    assert (answer.hardware, answer.provenance, answer.batch_size) == ("cpu", "scaled", 2)
    with pytest.raises(NotFound, match="accel bench run --models bert-base --hardware rocm"):
        advisor.predict(PredictQuery(model="bert-base", hardware="rocm"))
    for name in (CPU, CPU_ID):
        one = advisor.predict(PredictQuery(model="bert-base", hardware=name))
        [choice] = [w for w in one.warnings if "several" in w]
        # The device is settled, so only the runtime can be chosen.
        assert choice.startswith(f"{name} has several runtimes: this is {one.hardware}. Ask for another by name: ")
        others = choice.partition("name: ")[2].rstrip(".").split(", ")
        runtimes = sorted({*BACKENDS} - {"cuda", one.hardware})
        assert others == [f"{runtime}:{name}" for runtime in runtimes], "in one order, whatever their speed"
        picked = [advisor.predict(PredictQuery(model="bert-base", hardware=other)) for other in others]
        assert [(p.hardware, p.device_id) for p in picked] == [(runtime, one.device_id) for runtime in runtimes]
    with pytest.raises(InvalidInput, match=r"does not run cuda\. Known of it: cpu, "):
        advisor.predict(PredictQuery(model="bert-base", hardware=f"cuda:{CPU}"))
    with pytest.raises(InvalidInput, match="No hardware is called 'abacus'"):
        advisor.predict(PredictQuery(model="bert-base", hardware="cpu:abacus"))


@pytest.mark.slow
def test_the_advisor_follows_new_evidence_and_refuses_a_damaged_predictor(tmp_path: Path) -> None:
    settings = world(tmp_path)
    advisor = Advisor(settings)
    before = _ask(advisor, "bert-base", hardware=["cpu"])
    append(settings, [result(BERT, "cpu", 1, fingerprint="new driver", scale=0.5), verified(BERT, "cpu", 1)])
    after = _ask(advisor, "bert-base", hardware=["cpu"])
    assert after.snapshot_id != before.snapshot_id
    assert after.recommendations[0].latency_ms.p50 < 0.6 * before.recommendations[0].latency_ms.p50
    report = train(settings, EventLog.open(settings))
    assert _ask(advisor, "bert-base").predictor_id == report.predictor_id
    (settings.models_dir / report.predictor_id / "inference_specialist_plain.txt").write_text("altered")
    fresh = Advisor(settings)
    assert _ask(fresh, "bert-base", hardware=["cpu"]).recommendations[0].provenance == "measured"
    reasons = [e.reason for e in _ask(fresh, "bert-large", hardware=["cpu"]).excluded]
    assert "refused" in reasons[0]
    assert "accel train" in reasons[0]


def test_an_empty_warehouse_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(WarehouseEmpty, match="accel bench run"):
        _ask(Advisor(Settings(home=tmp_path)), "bert-base")


def test_a_device_that_nobody_named_answers_for_itself_alone(tmp_path: Path) -> None:
    nowhere: dict[str, Any] = {"provenance": "imported", "device_id": None, "device_name": None}
    elsewhere = [result(m, "cpu", 1, **nowhere) for m in MODELS[:4]]
    settings = world(tmp_path, [*measured_grid(MODELS[1:4]), described(BERT), *elsewhere])
    answer = _ask(Advisor(settings), "bert-base")
    # Nothing is scaled from it, although three models were measured on both sides.
    assert [(r.hardware, r.device, r.provenance) for r in answer.recommendations] == [("cpu", None, "measured")]
    assert all(e.device is not None or e.hardware == "cuda" for e in answer.excluded)
    assert not _ask(Advisor(settings), "bert-base", batch_size=2).recommendations


def test_figures_without_a_length_do_not_answer_for_one(tmp_path: Path) -> None:
    settings = world(tmp_path, [result(BERT, "cpu", 1, provenance="imported", sequence_length=None)])
    answer = _ask(Advisor(settings), "bert-base")
    assert answer.sequence_length == 128
    assert not answer.recommendations


def test_noisy_figures_carry_a_warning(tmp_path: Path) -> None:
    settings = world(tmp_path, [result(BERT, "cpu", 1, noisy=True), verified(BERT, "cpu", 1)])
    assert any("are noisy" in w for w in _ask(Advisor(settings), "bert-base").warnings)
    append(settings, [result(BERT, "cpu", 1, seed=1, noisy=False)])
    assert not any("are noisy" in w for w in _ask(Advisor(settings), "bert-base").warnings)


def test_own_noisy_cells_widen_no_figure_of_other_devices(tmp_path: Path) -> None:
    quiet = [result(MODELS[0], "cpu", size) for size in (1, 2, 4)]
    settings = world(tmp_path, [*quiet, *(verified(MODELS[0], "cpu", size) for size in (1, 2, 4))])
    before = batch_spread(Advisor(settings).state().evidence)
    wild = result(MODELS[1], "cpu", 1, noisy=True)
    scattered = tuple(ns * (1 + 20 * (i % 3)) for i, ns in enumerate(wild.samples_ns))
    append(settings, [wild.model_copy(update={"samples_ns": scattered}), verified(MODELS[1], "cpu", 1)])
    assert before is not None
    assert batch_spread(Advisor(settings).state().evidence) == before < math.log(1.5)


def test_where_nothing_answers_for_a_generation_the_command_that_does_is_named(advisor: Advisor) -> None:
    for model, is_named in (("gpt2", True), ("t5-small", False), ("bert-base", False)):
        answer = _ask(advisor, model, mode="generation", hardware=["NVIDIA L4"])
        assert not answer.recommendations
        assert any(f"`accel serving {model}` answers" in warning for warning in answer.warnings) == is_named, model


def test_a_model_known_only_as_served_names_the_command_that_knows_it(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"`accel serving codellama-70b` answers"):
        _ask(Advisor(world(tmp_path)), "codellama-70b")


def test_two_machines_that_call_their_processor_the_same_stay_apart(tmp_path: Path) -> None:
    faster = result(BERT, "cpu", 1, provenance="imported", device_id="imported-64-core", scale=0.1)
    advisor = Advisor(world(tmp_path, [result(BERT, "cpu", 1), verified(BERT, "cpu", 1), faster]))
    first, second = _ask(advisor, "bert-base", hardware=["cpu"]).recommendations
    assert first.device == second.device == CPU
    assert (first.device_id, second.device_id) == ("imported-64-core", CPU_ID)
    assert second.latency_ms.p50 > 5 * first.latency_ms.p50
    answer = advisor.predict(PredictQuery(model="bert-base", hardware="cpu"))
    assert answer.device_id == CPU_ID
    assert any(CPU_ID in w and "imported-64-core" in w for w in answer.warnings)


def test_a_prediction_bears_no_warning_of_the_devices_beside_it(tmp_path: Path) -> None:
    claimed = result(
        BERT, "cpu", 1, provenance="imported", device_id="imported-64-core", device="Huge CPU", precision=None
    )
    advisor = Advisor(world(tmp_path, [result(BERT, "cpu", 1), verified(BERT, "cpu", 1), claimed]))
    ranked = _ask(advisor, "bert-base", hardware=["cpu"])
    assert any("state no precision" in w for w in ranked.warnings)
    assert any("is ranked as if" in w for w in ranked.warnings)
    for name, its_own in (("cpu", False), ("imported-64-core", True)):
        warnings = advisor.predict(PredictQuery(model="bert-base", hardware=name)).warnings
        assert any("state no precision" in w for w in warnings) is its_own
        assert not any("ranked" in w for w in warnings)


def test_figures_of_several_image_sizes_are_kept_apart(tmp_path: Path) -> None:
    claims = [
        result(VIT, "cuda", 8, device=GPU, provenance="imported", model_id="net_x", original={"image_size": size},
               latency_mean_ms=ms)
        for size, ms in ((224, 10.0), (384, 30.0))
    ]  # fmt: skip
    settings = world(tmp_path, claims)
    advisor = Advisor(settings)

    def asked(**more: Any) -> PredictAnswer:
        return advisor.predict(PredictQuery(model="net_x", hardware=GPU, batch_size=8, **more))

    assert asked(image_size=384).latency_ms.p50 == 30.0
    largest = asked()
    assert largest.latency_ms.p50 == 30.0
    assert largest.warnings[0] == "No image_size given: answering for 384, as net_x was measured most often."
    with pytest.raises(InvalidInput, match="224, 384: ask for one"):
        asked(image_size=300)
    append(settings, [claims[0].model_copy(update={"batch_size": 16})])
    assert asked().latency_ms.p50 == 10.0, "two cells of 224 are more than one of 384"


def test_the_spec_sheet_of_a_device_and_what_others_measured_there_are_of_one_device() -> None:
    """An L4 of the catalog has no id; the one that others measured has `imported:NVIDIA L4`."""
    measured, priced, own = (
        Figures.model_construct(hardware=hardware, backend=backend, device_id=device_id, device="NVIDIA L4")
        for hardware, backend, device_id in (
            ("cpu", "tflite", "imported:NVIDIA L4"), ("cuda", "pytorch", None), ("cuda", "pytorch", "gpu-1")
        )
    )  # fmt: skip
    assert _other_choices("L4", measured, [measured, priced]) == [
        "L4 has several runtimes: this is cpu. Ask for another by name: cuda:L4."
    ]
    assert _other_choices("L4", measured, [measured, own])[0].startswith("L4 stands for 2 devices")


def test_what_was_asked_before_changes_no_answer(advisor: Advisor) -> None:
    """To the byte: neither what is remembered of ways to run, nor what was asked beside, nor what was made ready."""
    hardware = ["NVIDIA L4", "cpu", "NVIDIA L4", "Apple M2 Max", "cuda", "openvino"]
    asked = ({"batch_size": 8}, {"batch_size": 7}, {"model": "bert-large", "precision": "int8"}, {"mode": "training"})
    queries = [RecommendQuery.model_validate({"model": "bert-base", "hardware": hardware, **more}) for more in asked]
    settings = advisor._settings
    asked_before = Advisor(settings)
    asked_before.warm_up()
    asked_before.answer(queries[0].model_copy(update={"hardware": ["openvino", "cpu"]}))
    for query in queries:
        assert asked_before.answer(query) == Advisor(settings).answer(query)


def test_a_generation_is_of_as_many_tokens_as_came_out(tmp_path: Path) -> None:
    def wrote(tokens: int, ms: float, **more: Any) -> Payload:
        long = {"mode": "generation", "output_tokens": tokens, "sequence_length": 128, "precision": None}
        return result(
            MODELS[4], "cuda", 1, device="NVIDIA H100 SXM5 80GB", provenance="imported",
            **{**long, "latency_mean_ms": ms, **more},
        )  # fmt: skip

    # At 1,024 tokens in 1 ms, each would be read from 124 M weights in a microsecond.
    advisor = Advisor(world(tmp_path, [wrote(128, 400.0), wrote(32, 100.0), wrote(128, 410.0), wrote(1024, 1.0)]))

    def asked(**more: object) -> Answer:
        return _ask(advisor, "gpt2", mode="generation", sequence_length=128, hardware=["NVIDIA H100 SXM5 80GB"], **more)

    few, many = asked(), asked(output_tokens=128)
    assert [(a.output_tokens, a.recommendations[0].latency_ms.p50) for a in (few, many)] == [(32, 100), (128, 405)]
    assert "answering for 32, at which gpt2 was measured most" in few.warnings[0]
    assert few.recommendations[0].bound is not None
    assert few.recommendations[0].bound.by == "memory"
    [cannot_be] = asked(output_tokens=1024).excluded
    assert "cannot be" in cannot_be.reason
    assert not asked(output_tokens=64).recommendations
    with pytest.raises(ValueError, match="belong to mode generation"):
        _ask(advisor, "gpt2", output_tokens=5)


def test_where_an_objective_tells_none_apart_the_faster_goes_first(advisor: Advisor) -> None:
    ranked = _ask(advisor, "bert-base", objective="cost").recommendations
    highs = [r.latency_ms.high for r in ranked]
    assert all(r.cost is None for r in ranked)
    assert highs == sorted(highs, key=float)


def test_a_precision_that_a_runtime_has_not_is_not_predicted_by_its_width(advisor: Advisor) -> None:
    told = _ask(advisor, "bert-base", precision="float64", hardware=["cpu"])
    assert [e.cause for e in told.excluded] == ["no_runtime"]
    assert "ask in a precision that it has: float32" in told.excluded[0].suggestion


def test_a_gpu_without_units_for_a_precision_is_left_out_and_no_command_measures_it(advisor: Advisor) -> None:
    """As the backend refuses it there (`PyTorchBackend`), which would only emulate it."""
    old, new = ("NVIDIA T4", "NVIDIA V100 SXM2 16GB", "NVIDIA GeForce GTX 1080 Ti"), "NVIDIA A100 SXM4 80GB"
    told = _ask(advisor, "bert-tiny", precision="bfloat16", hardware=[*old, new])
    assert [r.device for r in told.recommendations] == [new]
    assert {e.device for e in told.excluded} == set(old)
    for left_out in told.excluded:
        assert left_out.cause == "no_runtime"
        assert left_out.reason == f"{left_out.device} has no bfloat16: its runtime would only emulate it"
        assert left_out.suggestion == "ask in float16 or float32, or for a GPU of NVIDIA since Ampere"
    assert len(_ask(advisor, "bert-tiny", precision="float16", hardware=[*old, new]).recommendations) == 4


def test_what_waits_for_its_host_scales_no_model_beyond_the_speed_of_its_device(tmp_path: Path) -> None:
    """Four models take as long at 32 items as at one, because launching takes it; a fifth computes for longer."""
    heavy = next(model for model in MODELS if model.model_id == "whisper-base")
    light = [model for model in MODELS if model.gflops < 15][:4]
    claim = {"provenance": "imported", "device_name": "NVIDIA L4", "device": "NVIDIA L4", "precision": "float16"}
    rows = [
        result(model, "cuda", batch, scale=8 / latency_of(model, "cuda", batch), **claim)
        for model, batch in [*itertools.product(light, (1, 32)), (heavy, 1)]
    ]
    advisor = Advisor(world(tmp_path, [*map(described, MODELS), *rows]))
    least_ms = heavy.gflops * 1e9 * 32 / 121e12 * 1e3
    told = _ask(advisor, heavy.model_id, batch_size=32, precision="float16", hardware=["NVIDIA L4"])
    assert [r.provenance for r in told.recommendations] == ["predicted"]
    assert told.recommendations[0].latency_ms.p50 > least_ms
    lighter = _ask(advisor, light[0].model_id, batch_size=32, precision="float16", hardware=["NVIDIA L4"])
    assert lighter.recommendations[0].provenance == "measured"


def test_one_die_of_a_card_is_bounded_and_paid_for_as_one(advisor: Advisor) -> None:
    """Its latency is that of a die, and two of them run side by side for the price of the card."""
    from accel_platform.hardware.catalog import find_spec

    card = find_spec("NVIDIA K80")
    assert card is not None
    assert card.peak_fp32_tflops is not None
    assert card.usd_per_hour is not None
    [one] = _ask(advisor, "bert-base", batch_size=64, hardware=[card.name]).recommendations
    assert one.bound is not None
    assert one.cost is not None
    assert one.bound.compute_ms == pytest.approx(64 * 22.4 / (card.peak_fp32_tflops / 2), rel=0.2)
    assert one.cost.usd_per_hour == card.usd_per_hour / 2
    assert one.cost.usd_per_million_items.p50 == pytest.approx(one.cost.usd_per_hour / 3600 * 1e6 / one.items_per_s.p50)


def test_an_unknown_model_gets_close_names_or_the_commands_that_list_all(tmp_path: Path) -> None:
    named = result(BERT, "cpu", 1, provenance="imported", model_id="hurricane_net")
    advisor = Advisor(world(tmp_path, [named]))
    for name, expected in (
        ("hurricane-nett", "Results name hurricane_net."),
        ("bert-bse", "Did you mean bert-base"),
        ("qqqqq", "`accel bench models` lists those that can be measured"),
        ("qqqqq", '`accel db query "SELECT model_id FROM models"` lists those that results name'),
    ):
        with pytest.raises(NotFound) as unknown:
            _ask(advisor, name)
        assert expected in str(unknown.value)
        assert len(str(unknown.value)) < 250
    measured = Advisor(world(tmp_path / "another", [result(BERT, "cpu", 1, provenance="imported")]))
    with pytest.raises(NotFound, match=r"Did you mean bert-base[^?]*\? Of any other"):
        _ask(measured, "bert-bse")


def test_equal_figures_share_a_rank(advisor: Advisor) -> None:
    waiting = ["NVIDIA H200 SXM", "NVIDIA B200 SXM", "NVIDIA GB200"]
    ranked = _ask(advisor, "bert-tiny", hardware=[*waiting, "NVIDIA T4", CPU]).recommendations
    ranks: dict[float | None, set[int]] = {}
    for place, r in enumerate(ranked, start=1):
        ranks.setdefault(r.ranked_by, set()).add(r.rank)
        assert r.rank <= place
    # Each of these GPUs waits for the host, which takes equally long whichever it is.
    assert len({r.ranked_by for r in ranked if r.device in waiting}) == 1
    joules = [r.energy.j_per_item.p50 for r in ranked if r.device in waiting and r.energy]
    assert joules == sorted(joules)
    assert len(set(joules)) > 1, "the one of the least energy comes first"
    assert all(len(shared) == 1 for shared in ranks.values())
    last = ranked[-1]
    assert last.rank == 1 + sum(r.ranked_by != last.ranked_by for r in ranked)


def test_a_limit_cuts_the_answer_and_counts_all(advisor: Advisor) -> None:
    query: dict[str, Any] = {"model": "bert-base", "hardware": ["cpu", "H100 SXM", "A100 PCIe 40GB", "L4", "openvino"]}
    every, few = (advisor.recommend(RecommendQuery(**query, limit=limit)) for limit in (None, 2))
    first = [r for r in every.recommendations if r.where == "elsewhere"][:2]
    own = [r for r in every.recommendations if r.where != "elsewhere"]
    assert len(own) >= 2
    assert few.recommendations == sorted([*own, *first], key=lambda r: r.rank), "own hardware is never cut"
    assert few.recommendations_total == every.recommendations_total == len(every.recommendations)
    assert len(few.recommendations) < len(every.recommendations)
    assert few.warnings == every.warnings
    cut = advisor.answer(RecommendQuery(**query, limit=2))
    assert Answer.model_validate_json(cut).model_dump() == few.model_dump()


def test_what_was_left_out_is_told_once_per_reason_first() -> None:
    def left_out(cause: str, reason: str, device: str) -> CandidateResult:
        about = {"hardware": "cuda", "device": device, "cause": cause, "reason": reason, "suggestion": "measure it"}
        return CandidateResult(excluded=Excluded.model_validate(about))

    unknown = [left_out("unsupported", "not measured", name) for name in "abc"]
    late, small = left_out("constraint", "too slow", "d"), left_out("does_not_fit", "too small", "e")
    assert _one_per_reason_first([*unknown, small, late]) == [late, small, *unknown]


def test_a_limit_counts_what_was_left_out(advisor: Advisor) -> None:
    query = {"hardware": ["cpu", "TPU v4", "TPU v3"], "constraints": {"max_latency_ms": 1e-6}}
    few = _ask(advisor, "bert-base", limit=1, **query)
    assert [excluded.cause for excluded in few.excluded] == ["constraint"]
    assert few.excluded_by_cause == {"constraint": 1, "no_runtime": 2}
