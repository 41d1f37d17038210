"""Predictions for processors that nobody measured, by their published rates."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_platform.hardware.catalog import DeviceSpec, catalog, find_spec
from predictor.advisor.advisor import Advisor
from predictor.data.samples import Sample, Setup, Workload, make_sample
from predictor.data.traced_models import ItemCost
from predictor.models.analytical import AdditiveRoofline
from predictor.processors.fit import fit, held_out_errors, processor_offsets
from predictor.processors.predictor import SHIPPED, TERMS, save, shipped_predictor
from predictor.schemas.requests import RecommendQuery
from predictor.schemas.responses import Answer
from predictor_world import CPU, measured_grid, world

KNOWN = [spec for spec in catalog() if spec.kind == "cpu" and spec.peak_fp32_tflops and spec.bandwidth_gb_s]
RUNTIMES = [("openvino", "int8"), ("pytorch", "float32")]


def sample(
    spec: DeviceSpec | str = "Xeon Platinum 8380", backend: str = "pytorch", precision: str = "float32",
    *, model: str = "some-model", family: str = "some", size: float = 1.0, batch_size: int = 1, mode: str = "inference",
) -> Sample:  # fmt: skip
    """Return a query for a model of 25 M parameters and 8 GFLOPs an item, times `size`."""
    device = find_spec(spec) if isinstance(spec, str) else spec
    assert device is not None
    cost = ItemCost(25e6 * size, 50, 8e9 * size, 40e6 * size, layer_output_bytes=40e6 * size, image_size=224)
    workload = Workload(
        model=model, family=family, mode=mode, batch_size=batch_size, size=None, precision=precision, cost=cost
    )
    made = make_sample(workload, Setup(device, "openvino" if backend == "openvino" else "cpu", backend))
    assert isinstance(made, Sample), made
    return made


@pytest.mark.parametrize(("backend", "precision"), RUNTIMES)
def test_every_processor_with_published_rates_has_an_answer(backend: str, precision: str) -> None:
    predictor = shipped_predictor()
    assert len(KNOWN) >= 40
    for spec in KNOWN:
        query = sample(spec, backend, precision)
        assert predictor.unsupported_reason(query) is None
        found = predictor.predict(query)
        low, middle, high = found.latency_ms.low, found.latency_ms.p50, found.latency_ms.high
        assert low is not None
        assert high is not None
        assert low < middle < high < 11 * low, spec.name
        assert (found.latency_ms.level is None) == (spec.vendor != "Intel") != found.vendor_measured
        assert sum(found.shares) == pytest.approx(1)
        assert len(found.shares) == len(TERMS)
        assert found.batch_measured
        assert not predictor.predict(sample(spec, backend, precision, batch_size=3)).batch_measured


@given(
    st.sampled_from(RUNTIMES), st.sampled_from(KNOWN), st.floats(1, 4), st.floats(1, 4), st.floats(1, 9),
    st.integers(1, 64),
)  # fmt: skip
def test_higher_rates_are_no_slower_and_more_work_is_no_faster(
    runtime: tuple[str, str], spec: DeviceSpec, peak: float, bandwidth: float, work: float, batch_size: int
) -> None:
    predict = shipped_predictor().predict
    base = sample(spec, *runtime, batch_size=batch_size)
    faster = replace(base, peak_flops=base.peak_flops * peak, bandwidth=base.bandwidth * bandwidth)
    more = sample(spec, *runtime, batch_size=batch_size, size=work)
    assert predict(faster).latency_ms.p50 <= predict(base).latency_ms.p50 * (1 + 1e-9)
    assert predict(more).latency_ms.p50 >= predict(base).latency_ms.p50 * (1 - 1e-9)


def test_what_is_not_covered_says_why() -> None:
    reason = shipped_predictor().unsupported_reason
    assert reason(sample("H100")) == "processors are predicted by their rates with openvino and pytorch only"
    assert reason(sample(backend="jax")) == "processors are predicted by their rates with openvino and pytorch only"
    assert (
        reason(sample(mode="training")) == "processors are predicted by their rates in inference only, not in training"
    )
    assert reason(sample(precision="bfloat16")) == (
        "pytorch on processors was learned from in float32 only, not in bfloat16"
    )
    assert reason(sample("Raspberry Pi 5")) == "the peak or the bandwidth of Raspberry Pi 5 is not published"


def _measured(processors: int, spread: float) -> list[Sample]:
    """Return figures of processors that are each off one law by a factor, and of one of them with another runtime."""
    law, rng = AdditiveRoofline((0.5, 0.2, 0.4, -1.0, 0.0)), np.random.default_rng(0)
    found = []
    for i, spec in enumerate([*KNOWN[:processors], KNOWN[0]]):
        runtime, off = RUNTIMES[i == processors], rng.normal(0, spread)
        for model in range(12):
            query = sample(spec, *runtime, model=f"m{model}", family=f"f{model}", size=0.2 * 1.6**model)
            found.append(replace(query, latency_ms=float(np.exp(law.predict_log([query])[0] + off))))
    return found


@pytest.mark.slow
def test_limits_are_as_wide_as_processors_differ() -> None:
    exact, apart = (fit(_measured(14, spread)).runtimes for spread in (0.0, 0.4))
    assert [*exact] == ["openvino", "pytorch"]
    assert exact["openvino"].new_model.half_width < 0.05
    assert apart["openvino"].known_model.half_width > 0.4
    several = [s for s in _measured(14, 0.4) if s.backend == "openvino"]
    offsets = processor_offsets(several, held_out_errors(several, lambda sample: sample.device))
    differences = np.abs(offsets[:, None] - offsets[None, :])[~np.eye(len(offsets), dtype=bool)]
    # Both processors are off their rates: the one that was measured, and the one that is asked about.
    assert apart["pytorch"].new_model.half_width == pytest.approx(np.quantile(differences, 0.9), abs=0.1)
    assert apart["pytorch"].new_model.level == pytest.approx(0.9 * 14 / 15)
    assert apart["pytorch"].processors == (KNOWN[0].name,)
    # Too few processors tell how far another one is off, so no runtime of one is learned from.
    assert fit(_measured(3, 0.0)).runtimes == {}


def test_the_shipped_file_is_what_is_saved(tmp_path: Path) -> None:
    save(shipped_predictor(), tmp_path / "fitted.json")
    assert (tmp_path / "fitted.json").read_bytes() == SHIPPED.read_bytes()


def test_an_unmeasured_processor_is_answered_for_beside_the_own_one(tmp_path: Path) -> None:
    settings = world(tmp_path, measured_grid())
    advisor = Advisor(settings)

    def ask(model: str, *hardware: str, **more: object) -> Answer:
        return advisor.recommend(RecommendQuery.model_validate({"model": model, "hardware": hardware, **more}))

    answer = ask("bert-base", "cpu", "AMD EPYC 9654", "Xeon Platinum 8592+")
    by_device = {r.device: r for r in answer.recommendations}
    assert by_device["AMD EPYC 9654"].provenance == by_device["Intel Xeon Platinum 8592+"].provenance == "predicted"
    assert by_device["AMD EPYC 9654"].latency_ms.level is None
    assert by_device["Intel Xeon Platinum 8592+"].latency_ms.level == pytest.approx(0.85, abs=0.01)
    assert by_device[CPU].provenance == "measured"
    warnings = " ".join(answer.warnings)
    assert "no processor of AMD was learned from, so nobody knows how often the limits hold" in warnings
    assert "its published rates stand for it" in warnings
    assert "by what one other processor took" in by_device["AMD EPYC 9654"].basis
    board = {"name": "Board 7", "kind": "cpu", "peak_fp32_tflops": 1.2, "bandwidth_gb_s": 80}
    own = advisor.recommend(RecommendQuery.model_validate({"model": "bert-base", "hardware": [board]}))
    assert "its maker is unknown, so nobody knows how often the limits hold" in " ".join(own.warnings)
    training = ask("bert-base", "AMD EPYC 9654", mode="training")
    assert "in inference only, not in training" in training.excluded[0].reason
    small = ask("bert-base", "Xeon Platinum 8592+", "AMD EPYC 9654", "openvino:Xeon Gold 6240R", precision="int8")
    assert {r.device for r in small.recommendations if r.hardware == "openvino"} == {
        "Intel Xeon Platinum 8592+", "Intel Xeon Gold 6240R"
    }  # fmt: skip
    elsewhere = ask("bert-base", "openvino:AMD EPYC 9654", precision="int8").recommendations
    assert [(r.hardware, r.latency_ms.level) for r in elsewhere] == [("openvino", None)]
