"""One peak per device and precision, wherever it is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from accel_platform.analysis.summaries.roofline import ItemWork, roofline_limits
from accel_platform.hardware.catalog import DeviceSpec, catalog, find_spec
from accel_platform.hardware.device_spec import peak_ops_per_s
from predictor.data.samples import Sample, Setup, Workload, make_sample
from predictor.data.traced_models import ItemCost
from predictor.operators.device_rates import DeviceRates, device_rates


def _spec(name: str) -> DeviceSpec:
    spec = find_spec(name)
    assert spec is not None, name
    return spec


@pytest.mark.parametrize(
    ("device", "precision", "tera"),
    [
        ("A100 SXM", "float32", 19.5),
        ("A100 SXM", "tf32", 156),
        ("A100 SXM", "amp", 312),
        ("A100 SXM", "bfloat16", 312),
        ("A100 SXM", "int8", 624),
        ("A100 SXM", "w8a8", 624),
        ("A100 SXM", "w8a16", 312),
        ("A100 SXM", "int4", 312),
        ("A100 SXM", "fp8", 312),
        ("A100 SXM", "float64", None),
        ("H100 SXM", "fp8", 1979),
        ("H100 SXM", "fp8_e4m3", 1979),
        ("H100 SXM", "mxfp4", 1979),
        ("B200 SXM", "nvfp4", 9000),
        ("Tesla T4", "tf32", 8.1),
        ("Tesla P4", "float16", 5.5),
        ("MI210", "float32", 45.3),
        ("MI300X", "float32", 163.4),
    ],
)
def test_a_precision_computes_at_its_own_rate_or_at_the_next_wider(
    device: str, precision: str, tera: float | None
) -> None:
    assert peak_ops_per_s(_spec(device), precision) == (None if tera is None else pytest.approx(tera * 1e12))


@pytest.mark.parametrize("precision", ["float32", "float16", "bfloat16", "int8"])
def test_rooflines_samples_and_operators_take_the_same_peak(precision: str) -> None:
    cost = ItemCost(1e8, None, 2e10, None, 4e8, None)
    for spec in catalog():
        expected = peak_ops_per_s(spec, precision)
        limits = roofline_limits(ItemWork(1e8, 2e10, 4e8), precision, 1, spec)
        assert limits is not None
        assert limits.peak_flops_per_s == expected
        workload = Workload("m", "f", "inference", 1, size=128, precision=precision, cost=cost)
        sample = make_sample(workload, Setup(spec, "cuda", "pytorch", devices=2))
        assert isinstance(sample, Sample)
        assert sample.peak_flops == pytest.approx(float("nan") if expected is None else 2 * expected, nan_ok=True)
        rates = device_rates(replace(spec, tdp_w=None))
        if isinstance(rates, DeviceRates) and precision in ("float32", "float16"):
            assert rates.flops[int(precision.removeprefix("float"))] == pytest.approx((expected or 0) / spec.dies)


def test_a_sample_that_states_no_precision_computes_in_float32_and_a_generation_in_16_bits() -> None:
    cost = ItemCost(1e8, None, 2e10, None, 4e8, None)
    workload = Workload("llama-2-7b", "llama", "inference", 1, size=128, precision=None, cost=cost)
    gpu = Setup(_spec("A100 SXM"), "cuda", "pytorch")
    inference = make_sample(workload, gpu)
    generation = make_sample(replace(workload, mode="generation", output_tokens=16), gpu)
    assert isinstance(inference, Sample)
    assert isinstance(generation, Sample)
    assert (inference.peak_flops, generation.peak_flops) == (pytest.approx(19.5e12), pytest.approx(312e12))


def test_a_card_of_two_dies_is_two_devices_to_a_process() -> None:
    card, one = _spec("MI250"), _spec("MI210")
    die = card.one_die()
    assert (die.memory_gib, die.compute_units, die.dies) == (one.memory_gib, one.compute_units, 1)
    rates = [device_rates(replace(spec, tdp_w=None)) for spec in (card, one)]
    assert all(isinstance(each, DeviceRates) for each in rates)
    of_card, of_one = (each for each in rates if isinstance(each, DeviceRates))
    assert of_card.flops[16] == pytest.approx(of_one.flops[16], rel=0.01)
    assert of_card.bandwidth == pytest.approx(of_one.bandwidth, rel=0.01)
    assert one.one_die() == one
