"""Predictor: intervals by regime, extrapolation, abstention, explanations, memory and failures."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from synthetic_samples import FACTORS, GPUS, synthetic_sample, synthetic_samples

from predictor.calibration.cross_validation import (
    HoldoutPredictions,
    Regime,
    calibrate_regimes,
    cross_validate,
    regime_metrics,
)
from predictor.calibration.failure_model import OUT_OF_MEMORY, FailureModel
from predictor.calibration.memory_model import MemoryModel
from predictor.calibration.predictor import Prediction, Predictor, own_group
from predictor.data.roofline import ALL_OPERATORS
from predictor.data.samples import TOKENS, Sample
from predictor.models.analytical import AdditiveRoofline
from predictor.models.gaussian_process import ArchitectureGP
from predictor.models.latency_model import log_latency
from predictor.training.train import fit_predictor, metric_rows

DEVICES = (*GPUS, "RTX 3080", "NVIDIA A100-SXM4-80GB")


def _measured() -> list[Sample]:
    """Return synthetic samples with a peak of memory that follows from weights and activations."""
    samples = synthetic_samples(DEVICES, per_family=4)
    return [replace(c, memory_peak_mib=500 + 1.1 * 76 + c.work.activation_bytes / 2**20 / 9, own=True) for c in samples]


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    fitted, _, _ = fit_predictor({"inference": _measured()}, [], lambda _: None)
    return fitted


def _predict(predictor: Predictor, name: str, model: str = "resnet_0", **more: Any) -> Prediction:
    query = replace(synthetic_sample(model, name, gmacs=4, macts=10), **{"latency_ms": math.nan, **more})
    [prediction] = predictor.predict([query])
    return prediction


def test_the_regime_decides_the_interval(predictor: Predictor) -> None:
    predictions = {
        Regime.SEEN: _predict(predictor, "RTX 3090"),
        Regime.UNSEEN_FAMILY: _predict(predictor, "RTX 3090", "unheard_of"),
        Regime.UNSEEN_DEVICE: _predict(predictor, "RTX 4080"),
        Regime.UNSEEN_BOTH: _predict(predictor, "RTX 4080", "unheard_of"),
    }
    for regime, prediction in predictions.items():
        assert prediction.regime == regime
        assert prediction.supported, prediction.reason
        interval = prediction.latency_ms
        assert interval is not None
        assert interval.low is not None
        assert interval.high is not None
        assert 0 < interval.low < interval.p50 < interval.high
        # Four devices held out in turn promise at most four fifths of nine tenths.
        assert interval.level == pytest.approx(0.9 if regime in (Regime.SEEN, Regime.UNSEEN_FAMILY) else 0.72)


def test_a_few_figures_of_a_device_are_never_called_none(predictor: Predictor, monkeypatch: pytest.MonkeyPatch) -> None:
    few = [synthetic_sample(f"resnet_{i}", "RTX 4080", gmacs=2 + i, macts=10) for i in range(3)]
    latency_model = predictor.modes["inference"].latency_model
    monkeypatch.setattr(latency_model, "corrections", {})
    monkeypatch.setattr(latency_model, "samples", [*latency_model.samples, *few])
    latency_model.adapt(few)
    for model, regime in (("resnet_0", Regime.FEW_SHOT), ("unheard_of", Regime.FEW_SHOT_UNSEEN_FAMILY)):
        prediction = _predict(predictor, "RTX 4080", model)
        # Those few count among what was learned from, as they do in training.
        assert prediction.reason.startswith(f"learned from {len(_measured()) + 3} figures; the device was hardly")
        assert prediction.regime == regime


def test_what_is_lacking_is_told_apart_in_words() -> None:
    scores = {"rows": 9, "groups": 3, "median_ape": 0.1, "coverage": 0.8, "coverage_aimed_at": 0.9}
    rows = metric_rows({"latency": {"inference": {regime.value: scores for regime in Regime}}})
    lacking = ["nothing", "family", "hardware", "hardware + family", "few", "few + family"]
    assert [row["lacking"] for row in rows] == lacking
    told: list[str] = []
    fit_predictor({"inference": _measured()}, [], told.append)
    [line] = [text for text in told if text.startswith("inference: ")]
    assert line.startswith(f"inference: {len(_measured())} figures; median error ")
    # Commas are between regimes only, so that each error has one of the texts above.
    assert all(part.partition(" lacking ")[2] in lacking for part in line.partition("error ")[2].split(", "))


def test_extrapolation_widens_the_interval_and_then_abstains(predictor: Predictor) -> None:
    def spread(batch: int) -> float:
        work = synthetic_sample("resnet_0", "RTX 3090", gmacs=4, macts=10, batch=batch).work
        prediction = _predict(predictor, "RTX 3090", batch_size=batch, work=work)
        interval = prediction.latency_ms
        assert interval is not None
        return math.inf if interval.low is None or interval.high is None else interval.high / interval.low

    inside, near, far = spread(64), spread(128), spread(64 * 11)
    assert near == pytest.approx(inside * 4)
    assert far == math.inf


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"compiler": "dynamo"}, "compiled by dynamo"),
        ({"backend": "tensorrt"}, "nothing was learned from tensorrt"),
        ({"precision": "int8"}, "as wide as precision int8"),
        ({"counted": ALL_OPERATORS}, "counted by operators"),
        ({"reads": TOKENS}, "reads tokens"),
        ({"mode": "training"}, "mode training"),
        ({"device": "nobody's", "bandwidth": math.nan}, "peak or bandwidth is not known"),
    ],
)
def test_an_unsupported_prediction_says_why(predictor: Predictor, more: dict[str, Any], words: str) -> None:
    prediction = _predict(predictor, "RTX 3090", **more)
    assert not prediction.supported
    assert words in prediction.reason
    assert prediction.latency_ms is None or prediction.latency_ms.high is None


@pytest.mark.slow
def test_a_few_own_figures_do_not_drown_among_many_published_ones() -> None:
    """The own host runs everything ten times slower than its rates say: published devices teach the opposite."""
    published = synthetic_samples(DEVICES, per_family=8)
    figures = synthetic_samples(("RTX 3080",), per_family=2)
    measured = [replace(s, device="host-1", latency_ms=10 * s.latency_ms, own=True) for s in figures]
    # The same model in a second layout, so that one is known from the other.
    slow = [replace(s, layout=layout) for s in measured for layout in ("nchw", "nhwc")]
    processor = [replace(s, device="host-2", kind="cpu", latency_ms=9 * s.latency_ms) for s in slow]
    told, _, metrics = fit_predictor({"inference": [*published, *slow, *processor]}, [], lambda _: None)
    assert set(told.modes) == {"inference", own_group("inference", "gpu"), own_group("inference", "cpu")}
    assert {s.device for s in told.modes[own_group("inference", "gpu")].latency_model.samples} == {"host-1"}
    assert metrics["latency"][own_group("inference", "gpu")]["nothing"]["rows"] <= len(slow)
    wanted = replace(slow[0], latency_ms=math.nan)
    latency = told.predict([wanted])[0].latency_ms
    assert latency is not None
    assert latency.p50 == pytest.approx(slow[0].latency_ms, rel=0.15)
    elsewhere = told.predict([replace(figures[0], latency_ms=math.nan)])[0].latency_ms
    assert elsewhere is not None
    assert elsewhere.p50 == pytest.approx(figures[0].latency_ms, rel=0.3)


def test_two_families_promise_what_the_worse_of_them_holds() -> None:
    families = [replace(synthetic_samples(("RTX 3080",), per_family=1)[0], family=name) for name in "aabb"]
    found = calibrate_regimes({Regime.UNSEEN_FAMILY: HoldoutPredictions(families, [0.1, -0.1, 0.4, 0.4])})
    [limits] = found.by_place[Regime.UNSEEN_FAMILY].values()
    assert (limits.half_width, limits.level) == (0.4, pytest.approx(0.6))
    one = calibrate_regimes({Regime.UNSEEN_FAMILY: HoldoutPredictions(families[:2], [0.1, -0.1])})
    assert not one.by_place


@pytest.mark.slow
def test_own_devices_among_others_are_not_held_out_as_new_ones() -> None:
    """One own GPU a hundred times slower than its rates would widen what is told of every other."""
    published = synthetic_samples(DEVICES, per_family=3)
    slow = [
        replace(s, device="host-1", latency_ms=100 * s.latency_ms, own=True)
        for s in synthetic_samples(("RTX 3080",), per_family=2)
    ]
    new_device = (Regime.UNSEEN_DEVICE, Regime.UNSEEN_BOTH, Regime.FEW_SHOT, Regime.FEW_SHOT_UNSEEN_FAMILY)
    for few in (slow, slow[:5]):
        held_out = cross_validate([*published, *few])
        asked = {regime: {sample.device for sample in held_out[regime].samples} for regime in new_device}
        assert all(devices and "host-1" not in devices for devices in asked.values())
    assert {sample.device for sample in cross_validate(slow)[Regime.UNSEEN_FAMILY].samples} == {"host-1"}


def test_a_place_with_enough_families_is_calibrated_on_its_own() -> None:
    rng = random.Random(0)
    samples = [s for s in synthetic_samples(("RTX 3090", "RTX 4080"), per_family=2) for _ in range(3)]
    noisy = {samples[0].device: 0.02, samples[3].device: 0.5}
    families = [replace(s, family=f"{s.family} {i % 4}") for i, s in enumerate(samples)]
    holdout = HoldoutPredictions(families, [rng.gauss(0, noisy[s.device]) for s in families])
    found = calibrate_regimes({Regime.SEEN: holdout})
    quiet, loud = (found.find(Regime.SEEN, replace(families[0], device=name)) for name in noisy)
    other = found.find(Regime.SEEN, replace(families[0], device="another"))
    assert quiet is not None
    assert loud is not None
    assert other is not None
    assert quiet.half_width < 0.1 < other.half_width < loud.half_width
    assert found.find(Regime.UNSEEN_BOTH, families[0]) is None
    coverage = regime_metrics({Regime.SEEN: holdout})["nothing"]["coverage_by_device"]
    for share in coverage.values():
        assert share == pytest.approx(0.9, abs=0.1)


def test_one_device_calibrates_no_other() -> None:
    fitted, _, _ = fit_predictor({"inference": synthetic_samples(("RTX 3090",))}, [], lambda _: None)
    prediction = _predict(fitted, "RTX 4090")
    assert not prediction.supported
    assert "too little was measured to tell" in prediction.reason


def test_contributions_multiply_to_the_prediction(predictor: Predictor) -> None:
    queries = [synthetic_sample("resnet_0", name, gmacs=4, macts=10) for name in ("RTX 3090", "RTX 4080")]
    for prediction in predictor.predict(queries, explain=True):
        assert prediction.latency_ms is not None
        product = math.prod(reason.factor for reason in prediction.contributions)
        typical = math.exp(predictor.modes["inference"].median_log_ms)
        assert typical * product == pytest.approx(prediction.latency_ms.p50)
        assert {"physical law", "same work measured elsewhere"} <= {reason.name for reason in prediction.contributions}
        assert all(reason.value for reason in prediction.contributions)


def test_a_memory_peak_is_predicted_and_decides_the_risk_of_running_out(predictor: Predictor) -> None:
    known = _predict(predictor, "RTX 3090")
    assert known.memory_peak_mib is not None
    assert known.memory_peak_mib.p50 == pytest.approx(584 + 10e6 * 2 * 64 / 2**20 / 9, rel=0.1)
    assert known.risks[OUT_OF_MEMORY] < 0.05
    tight = _predict(predictor, "RTX 3090", memory_mib=300.0)
    assert tight.risks[OUT_OF_MEMORY] > 0.95
    assert OUT_OF_MEMORY not in _predict(predictor, "RTX 3090", memory_mib=math.nan).risks


def test_failures_are_learned_from_enough_of_them_and_never_claimed_without() -> None:
    measured = _measured()
    memory = MemoryModel.fit(measured)
    assert memory is not None
    none = FailureModel.fit(measured, [], memory)
    assert none.boosters == {}
    assert none.curve is None
    # Everything fails in one precision, and what fails elsewhere follows nothing.
    rng = random.Random(3)
    refused = [(replace(c, precision="int8"), "unsupported_operator") for c in measured[::3]]
    crashed = [(replace(c, version=999.0), "crash") for c in rng.sample(measured, 25)]
    few = [(c, "timeout") for c in measured[:5]]
    learned = FailureModel.fit(measured, [*refused, *crashed, *few], memory)
    assert set(learned.boosters) - {"crash"} == {"unsupported_operator"}
    assert learned.metrics["timeout"] == {"failed": 5, "families": 1, "learned": False}
    sure = learned.predict([refused[0][0]], [None])[0]["unsupported_operator"]
    assert sure > 0.8 > 0.2 > learned.predict([measured[0]], [None])[0]["unsupported_operator"]


def test_cells_that_ran_out_of_memory_move_the_curve() -> None:
    measured = _measured()
    memory = MemoryModel.fit(measured)
    # A runtime that needs four times what it reports: cells fail at a quarter of the memory already.
    small = [replace(c, memory_mib=c.memory_peak_mib * 3) for c in measured]
    ran_out = [(c, OUT_OF_MEMORY) for c in small]
    ran = [replace(c, memory_mib=c.memory_peak_mib * 12) for c in measured]
    learned = FailureModel.fit(ran, ran_out, memory)
    assert learned.curve is not None
    assert memory is not None
    for query, least, most in ((small[0], 0.5, 1.0), (ran[0], 0.0, 0.5)):
        [peak] = memory.predict([query])
        assert least <= learned.predict([query], [peak])[0][OUT_OF_MEMORY] <= most


def test_too_few_samples_are_not_cross_validated() -> None:
    assert cross_validate(synthetic_samples()[:8]) == {}


def test_the_factor_of_compiled_code_is_fitted() -> None:
    samples = synthetic_samples()
    compiled = [replace(c, compiler="dynamo") for c in samples[::2]]
    analytical = AdditiveRoofline(FACTORS)
    compiled_samples = [
        replace(c, latency_ms=math.exp(log)) for c, log in zip(compiled, analytical.predict_log(compiled), strict=True)
    ]
    assert (analytical.predict_log(compiled) < analytical.predict_log(samples[::2])).all()
    learned = AdditiveRoofline.fit([*samples, *compiled_samples], log_latency([*samples, *compiled_samples]))
    assert math.exp(learned.factors[4]) == pytest.approx(0.5, rel=0.1)
    # Where no device ran both, compiled code moves what its fused operators do.
    assert math.exp(AdditiveRoofline.fit(samples, log_latency(samples)).factors[4]) == pytest.approx(1)
    only = AdditiveRoofline.fit(compiled_samples, log_latency(compiled_samples))
    assert math.exp(only.factors[4]) == pytest.approx(1, rel=1e-2)


def test_the_gaussian_process_predicts_an_unmeasured_model_from_similar_ones() -> None:
    samples = [
        replace(c, latency_ms=c.latency_ms * (2 if c.family == "swin" else 1)) for c in synthetic_samples(per_family=12)
    ]
    analytical, logs = AdditiveRoofline.fit(samples, log_latency(samples)), log_latency(samples)
    query = synthetic_sample("swin_99", "RTX 3090", gmacs=4, macts=10)
    gp = ArchitectureGP(samples, logs, analytical)
    plain = math.exp(AdditiveRoofline(FACTORS).predict_log([query])[0])
    assert math.exp(gp.predict_log([query])[0]) > 1.3 * plain
    assert math.isnan(gp.predict_log([replace(query, compiler="dynamo")])[0])
