"""Judging: what a question lacks decides its interval, what lies outside widens or abstains, reasons add up, risks."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from law_world import FACTORS, GPUS, case, world

from predictor.calibration.cross_validation import cross_validate
from predictor.calibration.failure_model import OUT_OF_MEMORY, FailureModel
from predictor.calibration.memory_model import MemoryModel
from predictor.calibration.predictor import Prediction, Predictor
from predictor.data.samples import ALL_OPERATORS, TOKENS, Sample
from predictor.models.analytical import AdditiveRoofline
from predictor.models.gaussian_process import ArchitectureGP
from predictor.models.latency_model import log_latency
from predictor.training.train import fit_predictor

DEVICES = (*GPUS, "RTX 3080", "NVIDIA A100-SXM4-80GB")


def _measured() -> list[Sample]:
    """The world in which the law holds, with a peak of memory that follows from weights and activations."""
    cases = world(DEVICES, per_family=4)
    return [replace(c, memory_peak_mib=500 + 1.1 * 76 + c.work.activation_bytes / 2**20 / 9) for c in cases]


@pytest.fixture(scope="module")
def predictor() -> Predictor:
    made, _, _ = fit_predictor({"inference": _measured()}, [], lambda _: None)
    return made


def _judged(predictor: Predictor, name: str, model: str = "resnet_0", **more: Any) -> Prediction:
    asked = replace(case(model, name, gmacs=4, macts=10), **{"latency_ms": math.nan, **more})
    [judgement] = predictor.predict([asked])
    return judgement


def test_what_is_lacking_decides_the_interval(predictor: Predictor) -> None:
    asked = {
        "nothing": _judged(predictor, "RTX 3090"),
        "family": _judged(predictor, "RTX 3090", "unheard_of"),
        "hardware": _judged(predictor, "RTX 4080"),
        "both": _judged(predictor, "RTX 4080", "unheard_of"),
    }
    for lack, judgement in asked.items():
        assert judgement.regime == lack
        assert judgement.supported, judgement.reason
        interval = judgement.latency_ms
        assert interval is not None
        assert interval.low is not None
        assert interval.high is not None
        assert 0 < interval.low < interval.p50 < interval.high
        # Of four devices held out one after the other no more than four fifths of nine tenths is promised.
        assert interval.level == pytest.approx(0.9 if lack in ("nothing", "family") else 0.72)


def test_beyond_what_was_learned_it_widens_and_then_abstains(predictor: Predictor) -> None:
    def spread(batch: int) -> float:
        work = case("resnet_0", "RTX 3090", gmacs=4, macts=10, batch=batch).work
        judgement = _judged(predictor, "RTX 3090", batch_size=batch, work=work)
        interval = judgement.latency_ms
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
def test_it_says_why_it_does_not_stand_behind_a_figure(predictor: Predictor, more: dict[str, Any], words: str) -> None:
    judgement = _judged(predictor, "RTX 3090", **more)
    assert not judgement.supported
    assert words in judgement.reason
    assert judgement.latency_ms is None or judgement.latency_ms.high is None


def test_one_device_calibrates_no_other() -> None:
    made, _, _ = fit_predictor({"inference": world(("RTX 3090",))}, [], lambda _: None)
    judgement = _judged(made, "RTX 4090")
    assert not judgement.supported
    assert "too little was measured to tell" in judgement.reason


def test_reasons_multiply_to_the_prediction(predictor: Predictor) -> None:
    asked = [case("resnet_0", name, gmacs=4, macts=10) for name in ("RTX 3090", "RTX 4080")]
    for judgement in predictor.predict(asked, explain=True):
        assert judgement.latency_ms is not None
        product = math.prod(reason.factor for reason in judgement.contributions)
        typical = math.exp(predictor.modes["inference"].median_log_ms)
        assert typical * product == pytest.approx(judgement.latency_ms.p50)
        assert {"physical law", "same work measured elsewhere"} <= {reason.name for reason in judgement.contributions}
        assert all(reason.value for reason in judgement.contributions)


def test_a_peak_is_predicted_and_running_out_follows_from_it(predictor: Predictor) -> None:
    known = _judged(predictor, "RTX 3090")
    assert known.memory_peak_mib is not None
    assert known.memory_peak_mib.p50 == pytest.approx(584 + 10e6 * 2 * 64 / 2**20 / 9, rel=0.1)
    assert known.risks[OUT_OF_MEMORY] < 0.05
    tight = _judged(predictor, "RTX 3090", memory_mib=300.0)
    assert tight.risks[OUT_OF_MEMORY] > 0.95
    assert OUT_OF_MEMORY not in _judged(predictor, "RTX 3090", memory_mib=math.nan).risks


def test_failures_are_learned_where_there_are_enough_and_never_claimed_without() -> None:
    measured = _measured()
    memory = MemoryModel.fit(measured)
    assert memory is not None
    none = FailureModel.fit(measured, [], memory)
    assert none.boosters == {}
    assert none.curve is None
    # Everything fails in one precision, and what fails elsewhere follows nothing.
    chance = random.Random(3)
    refused = [(replace(c, precision="int8"), "unsupported_operator") for c in measured[::3]]
    crashed = [(replace(c, version=999.0), "crash") for c in chance.sample(measured, 25)]
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
    for asked, least, most in ((small[0], 0.5, 1.0), (ran[0], 0.0, 0.5)):
        [peak] = memory.predict([asked])
        assert least <= learned.predict([asked], [peak])[0][OUT_OF_MEMORY] <= most


def test_nothing_is_held_out_of_too_little() -> None:
    assert cross_validate(world()[:8]) == {}


def test_compiled_code_moves_less_and_how_much_less_is_learned() -> None:
    cases = world()
    compiled = [replace(c, compiler="dynamo") for c in cases[::2]]
    law = AdditiveRoofline(FACTORS)
    told = [replace(c, latency_ms=math.exp(log)) for c, log in zip(compiled, law.predict_log(compiled), strict=True)]
    assert (law.predict_log(compiled) < law.predict_log(cases[::2])).all()
    learned = AdditiveRoofline.fit([*cases, *told], log_latency([*cases, *told]))
    assert math.exp(learned.factors[4]) == pytest.approx(0.5, rel=0.1)
    # Where nothing compiled was measured it is what counting passes over memory says.
    assert math.exp(AdditiveRoofline.fit(cases, log_latency(cases)).factors[4]) == pytest.approx(3 / 5)


def test_a_model_measured_nowhere_is_told_by_models_like_it() -> None:
    cases = [replace(c, latency_ms=c.latency_ms * (2 if c.family == "swin" else 1)) for c in world(per_family=12)]
    law, logs = AdditiveRoofline.fit(cases, log_latency(cases)), log_latency(cases)
    asked = case("swin_99", "RTX 3090", gmacs=4, macts=10)
    alike = ArchitectureGP(cases, logs, law)
    plain = math.exp(AdditiveRoofline(FACTORS).predict_log([asked])[0])
    assert math.exp(alike.predict_log([asked])[0]) > 1.3 * plain
    assert math.isnan(alike.predict_log([replace(asked, compiler="dynamo")])[0])
