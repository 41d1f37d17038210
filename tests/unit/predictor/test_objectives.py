"""Dollars, joules, the roofline's bound and the asker's limits: plain functions of figures and a spec."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_platform.hardware.catalog import DeviceSpec, find_spec
from accel_platform.workloads.kv_cache import Decoder
from predictor.advisor.answers import generation_bound, roofline_bound
from predictor.advisor.candidates import choose_candidates
from predictor.advisor.estimation import _check_plausible
from predictor.advisor.model_estimates import device_caution
from predictor.advisor.objectives import (
    assumed_spread,
    cost_per_items,
    energy_per_item,
    level_mismatch,
    missing_figure,
    ranking,
    unfavorable_latency_ms,
    violations,
)
from predictor.advisor.resolved_query import ResolvedQuery
from predictor.advisor.scaling import Abstention, Estimate
from predictor.calibration.cross_validation import Regime
from predictor.data.evidence import Evidence
from predictor.data.model_resolution import ResolvedModel
from predictor.data.samples import Setup, Workload, make_sample, speed_limit_ratio
from predictor.data.traced_models import InputSizes, ItemCost
from predictor.schemas.requests import Constraints
from predictor.schemas.responses import Compatibility, Figures, Interval, Provenance

_found = find_spec("NVIDIA H100 SXM5 80GB")
assert _found is not None
H100: DeviceSpec = _found
NO_EVIDENCE = Evidence("snapshot", {}, {}, {}, [], {}, "host-1", "cpu-1")
NOTHING = replace(H100, usd_per_hour=None, tdp_w=None)
ASKED = ResolvedQuery(
    subject=ResolvedModel("bert-base", "bert", "text", None),
    mode="inference",
    precisions=("float32", None),
    batch_size=4,
    sequence_length=128,
    sizes=InputSizes(),
    cost=ItemCost(parameters=1e8, layers=12, flops=2e10, activation_bytes=4e8),
    model="bert-base",
    family="bert",
    size=128,
    image_size=None,
)


def _figures(p50: float, low: float | None = None, high: float | None = None, **more: object) -> Figures:
    latency = Interval(p50=p50, low=low, high=high)
    throughput = Interval(p50=4e3 / p50, low=high and 4e3 / high, high=low and 4e3 / low)
    return Figures.model_validate(
        {
            "hardware": "cuda",
            "where": "elsewhere",
            "backend": "pytorch",
            "device": H100.name,
            "device_id": None,
            "precision": "float32",
            "latency_ms": latency,
            "items_per_s": throughput,
            "provenance": "predicted",
            "evidence": [],
            "basis": "",
            "compatibility": Compatibility(state="unknown"),
            **more,
        }
    )


def test_a_million_items_cost_the_hours_they_take() -> None:
    cost = cost_per_items(Interval(p50=1000.0, low=500.0, high=2000.0, level=0.9), H100)
    assert cost is not None
    assert H100.usd_per_hour is not None
    assert cost.usd_per_million_items.p50 == pytest.approx(H100.usd_per_hour * 1e6 / 1000 / 3600)
    assert cost.usd_per_million_items.high == pytest.approx(2 * cost.usd_per_million_items.p50)
    assert cost.usd_per_million_items.low == pytest.approx(cost.usd_per_million_items.p50 / 2)
    assert (cost.date, cost.source) == (H100.usd_date, H100.usd_source)
    assert cost.date is not None
    assert cost_per_items(Interval(p50=1.0), replace(H100, usd_per_hour=None)) is None


def test_energy_is_what_was_counted_else_at_most_what_the_design_power_allows() -> None:
    counted = energy_per_item(Interval(p50=0.5), Interval(p50=10.0), 4, H100)
    assert counted is not None
    assert (counted.how, counted.j_per_item.p50, counted.tdp_w) == ("measured", 0.5, None)
    bounded = energy_per_item(None, Interval(p50=10.0, high=20.0), 4, H100)
    assert bounded is not None
    assert (bounded.how, bounded.tdp_w) == ("bounded", 700)
    # 700 W for 20 ms are 14 J, of four items.
    assert bounded.j_per_item == Interval(p50=1.75, low=None, high=3.5, level=None)
    assert energy_per_item(None, Interval(p50=10.0), 4, replace(H100, tdp_w=None)) is None


def test_the_bound_is_the_longer_side_of_the_roofline() -> None:
    assert H100.peak_fp32_tflops is not None
    assert H100.bandwidth_gb_s is not None
    bound = roofline_bound(ASKED, H100)
    assert bound is not None
    assert bound.compute_ms == pytest.approx(1e3 * 8e10 / (H100.peak_fp32_tflops * 1e12))
    assert bound.memory_ms == pytest.approx(1e3 * (4e8 + 16e8) / (H100.bandwidth_gb_s * 1e9))
    assert bound.by == "compute"
    half = roofline_bound(replace(ASKED, precisions=("float16",)), H100)
    assert half is not None
    # Matrix units compute twenty times faster and move half the bytes: now memory holds them up.
    assert half.memory_ms == pytest.approx(bound.memory_ms / 2)
    assert half.by == "memory"
    assert roofline_bound(replace(ASKED, precisions=("amp",)), H100) == half
    step = roofline_bound(replace(ASKED, mode="training"), H100)
    assert step is not None
    assert (step.by, step.compute_ms) == ("compute", pytest.approx(3 * bound.compute_ms))
    small = roofline_bound(replace(ASKED, precisions=("int8",)), H100)
    assert small is not None
    assert small.compute_ms < half.compute_ms
    # TensorRT keeps what it hands on in 8 bits too, and was measured faster than with 32 of them.
    assert small.memory_ms == pytest.approx(bound.memory_ms / 4)
    npu = roofline_bound(ASKED, replace(H100, kind="npu"))
    assert npu is not None
    assert npu.memory_ms == pytest.approx(1e3 * 4e8 / (H100.bandwidth_gb_s * 1e9))


def test_a_decoder_that_writes_one_token_at_a_time_is_held_up_by_memory() -> None:
    decoder = Decoder(7e9, 7e9, layers=32, kept_per_token=2 * 32 * 8 * 128)
    asked = Workload("llama", "llama", "generation", 1, 128, "float16", output_tokens=32, decoder=decoder)
    gpu = Setup(H100, "cuda", "pytorch")
    one = generation_bound(make_sample(asked, gpu))
    many = generation_bound(make_sample(replace(asked, batch_size=512, output_tokens=1), gpu))
    assert one is not None
    assert many is not None
    # 14 GB, 32 times, at 3,350 GB/s.
    assert (one.by, many.by, one.memory_ms) == ("memory", "compute", pytest.approx(134, rel=0.02))
    assert generation_bound(make_sample(replace(asked, output_tokens=None), gpu)) is None


def test_limits_of_different_levels_are_compared_at_one() -> None:
    sure = _figures(10, latency_ms=Interval(p50=10.0, low=8.0, high=13.0, level=0.9))
    hardly = _figures(10, latency_ms=Interval(p50=10.0, low=8.0, high=12.0, level=0.6))
    assert level_mismatch("latency", [sure, sure]) is None
    assert "at 60% for some and at 90%" in str(level_mismatch("cost", [sure, hardly]))
    assert level_mismatch("memory", [sure, hardly]) is None
    less = _figures(10, latency_ms=Interval(p50=10.0, low=8.0, high=12.0, level=0.8))
    assert "at 80% for some and at 90%" in str(level_mismatch("latency", [sure, less]))
    # 60 % of normal errors are within 0.842 standard deviations, 80 % within 1.282 and 90 % within 1.645.
    at_most = [unfavorable_latency_ms(each, None) for each in (sure, hardly, less)]
    assert at_most == pytest.approx([13.0, 10 * 1.2 ** (1.645 / 0.842), 10 * 1.2 ** (1.645 / 1.282)], rel=1e-3)
    assert ranking("latency", None)(less) < ranking("latency", None)(sure) < ranking("latency", None)(hardly)
    over = "latency may reach 14.28 ms, over the 13 asked (its median up to 14.3 at 90%)"
    assert violations(Constraints(max_latency_ms=13), hardly, H100, None) == over


def test_a_prediction_faster_than_its_device_at_full_speed_is_refused() -> None:
    """A measurement may be four times faster, because its precision may be unstated."""
    workload = Workload("bert-base", "bert", "inference", 4, size=128, precision="float32", cost=ASKED.cost)
    sample = make_sample(workload, Setup(H100, "cuda", "tensorrt"))
    full_speed_ms = speed_limit_ratio(sample, 1.0)
    cell = (ASKED, choose_candidates(NO_EVIDENCE, [H100.name])[0][0])

    def checked(provenance: Provenance, times: float) -> Estimate | Abstention:
        latency = Interval(p50=full_speed_ms / times)
        return _check_plausible(NO_EVIDENCE, cell, Estimate(provenance, latency, None, (), "", sample=sample))

    assert isinstance(checked("predicted", 0.9), Estimate)
    refused = checked("predicted", 1.5)
    assert isinstance(refused, Abstention)
    assert "what is predicted there cannot be" in refused.reason
    assert "1.5 times faster" in refused.reason
    assert isinstance(checked("measured", 1.5), Estimate)
    assert isinstance(checked("measured", 4.5), Abstention)


@pytest.mark.parametrize("spread", [None, 0.1])
def test_a_faster_device_is_not_ranked_below_a_slower_one_on_the_same_slow_host(spread: float | None) -> None:
    """As of a B200 and a P4: both wait for a slow host, which the P4 alone keeps waiting, too."""
    fast = _figures(4.7, latency_ms=Interval(p50=4.7, low=1.9, high=11.4, level=0.81), host_limited=True)
    slow = _figures(7.0, latency_ms=Interval(p50=7.0, low=4.4, high=11.4, level=0.81), host_limited=True)
    for objective in ("latency", "throughput"):
        assert ranking(objective, spread)(fast) < ranking(objective, spread)(slow)  # type: ignore[arg-type]
    limits = Constraints(max_latency_ms=1.001 * unfavorable_latency_ms(slow, spread))
    assert violations(limits, slow, H100, spread) is None
    assert violations(limits, fast, H100, spread) is None
    assert "host_limited" not in fast.model_dump()
    assert "host_limited" not in Figures.model_json_schema(mode="serialization")["properties"]


@pytest.mark.parametrize(
    ("asked", "spec"),
    [
        (ASKED, replace(H100, bandwidth_gb_s=None)),
        (ASKED, replace(H100, peak_fp32_tflops=None)),
        (replace(ASKED, cost=None), H100),
        (replace(ASKED, mode="generation"), H100),
        (replace(ASKED, precisions=("int8",)), replace(H100, peak_int8_tensor_tops=None)),
        (replace(ASKED, precisions=("mxfp4",)), H100),
    ],
)
def test_without_every_figure_there_is_no_bound(asked: ResolvedQuery, spec: DeviceSpec) -> None:
    assert roofline_bound(asked, spec) is None


def test_a_limit_is_judged_by_the_unfavourable_end() -> None:
    told = _figures(10, 8, 15, provenance="measured")
    assert violations(Constraints(max_latency_ms=15), told, H100, None) is None
    wrong = violations(Constraints(max_latency_ms=12), told, H100, None)
    assert wrong == "latency may reach 15 ms, over the 12 asked (p50 10)"
    assert violations(Constraints(max_latency_ms=9), told, H100, None) == "latency 10 ms (p50), over the 9 asked"


def test_a_figure_without_limits_is_not_taken_for_one_that_never_scatters() -> None:
    claimed = _figures(100, provenance="measured")
    measured = _figures(98, 95, 105, provenance="measured")
    spread = math.log(1.1)
    assert unfavorable_latency_ms(claimed, spread) == pytest.approx(110)
    assert unfavorable_latency_ms(measured, spread) == 105
    assert ranking("latency", spread)(measured) < ranking("latency", spread)(claimed)
    assert ranking("throughput", spread)(measured) < ranking("throughput", spread)(claimed)
    assert "may reach 110 ms" in str(violations(Constraints(max_latency_ms=105), claimed, H100, spread))
    assert violations(Constraints(max_latency_ms=111), claimed, H100, spread) is None
    # Where nothing is known of how batches scatter, it keeps no limit, and is no worse than a slower prediction.
    predicted = _figures(95, 80, 130)
    assert ranking("latency", None)(claimed) < ranking("latency", None)(predicted)
    assert "by their medians" in str(assumed_spread([claimed, predicted], None))
    assert assumed_spread([measured, predicted], None) is None
    assert "is not known" in str(violations(Constraints(max_latency_ms=105), claimed, H100, None))
    assert "1.1 times its median" in str(assumed_spread([measured, claimed], spread))
    assert assumed_spread([measured], spread) is None


def test_a_predicted_median_scatters_like_a_measured_one() -> None:
    """Its limits are of the median, those of a measured cell of single batches: compared are single batches."""
    predicted = _figures(100, 50, 200)
    assert unfavorable_latency_ms(predicted, None) == pytest.approx(200)
    assert unfavorable_latency_ms(predicted, math.log(2)) == pytest.approx(100 * 2 ** math.sqrt(2))


def test_what_is_not_known_keeps_no_limit() -> None:
    told = _figures(10)
    limits = Constraints(max_memory_mib=1e6, max_usd_per_hour=100, max_watts=1000)
    wrong = violations(limits, told, NOTHING, 0.1)
    assert wrong is not None
    assert wrong.count("is not known") == 3
    assert violations(limits, _figures(10, memory_peak_mib=Interval(p50=500)), H100, 0.1) is None
    assert "700 W, over the 300 asked" in str(violations(Constraints(max_watts=300), told, H100, 0.1))


@given(st.floats(0.1, 1e5), st.floats(1, 10), st.floats(0.01, 1e6))
def test_whatever_keeps_its_limit_stays_under_it(p50: float, spread: float, most: float) -> None:
    told = _figures(p50, p50 / spread, p50 * spread, provenance="measured")
    kept = violations(Constraints(max_latency_ms=most), told, NOTHING, 0.1) is None
    assert kept == (told.latency_ms.high is not None and told.latency_ms.high <= most)


def test_unknown_cost_energy_and_memory_rank_last_and_are_said() -> None:
    told = _figures(10)
    for objective in ("cost", "energy", "memory"):
        key = ranking(objective, 0.1)(told)[0]  # type: ignore[arg-type]
        assert key == math.inf
        assert "ranks last" in str(missing_figure(objective, key))  # type: ignore[arg-type]
    assert missing_figure("latency", math.inf) is None
    priced = told.model_copy(update={"cost": cost_per_items(told.items_per_s, H100)})
    assert ranking("cost", 0.1)(priced)[0] < math.inf


def test_no_caution_names_a_spec_sheet_that_is_empty() -> None:
    known, empty = find_spec("NVIDIA L4"), find_spec("NVIDIA RTX A3000 Laptop GPU 6GB")
    assert known is not None
    assert empty is not None
    assert "its spec sheet and a few figures" in str(device_caution(Regime.FEW_SHOT, known))
    assert "its rates are not known" in str(device_caution(Regime.FEW_SHOT, empty))
    assert "its spec sheet stands" in str(device_caution(Regime.UNSEEN_DEVICE, known))
    assert device_caution(Regime.SEEN, known) is None
