"""The operator predictor: roofline times, what is learned from kernels, corrections, and the predictor that ships."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_platform.events import EventLog
from accel_platform.hardware.catalog import catalog, find_spec
from accel_platform.workloads.operators import DIMENSIONS, Operator, OperatorProfile
from predictor.advisor.advisor import Advisor
from predictor.data.roofline import HOST_MS_PER_OPERATOR
from predictor.operators.device_rates import DeviceRates, device_rates, have_same_chip, power_headroom
from predictor.operators.features import roofline_features
from predictor.operators.fit import load_whole_models
from predictor.operators.fit import main as fit_main
from predictor.operators.kernels import KernelTable
from predictor.operators.predictor import load, save, shipped_predictor
from predictor.operators.tables import ProfileTables, kernel_parts, operator_tables
from predictor.operators.training import training_step
from predictor.operators.utilization import ClassUtilization, fit_utilization
from predictor.operators.whole_models import OperatorTotals, fit_correction
from predictor.schemas.requests import RecommendQuery
from predictor.training.train import train
from predictor_world import MODELS, append, described, latency_of, measured_grid, result, verified, world

T4 = find_spec("NVIDIA T4")


def _rates(name: str) -> DeviceRates:
    spec = find_spec(name)
    assert spec is not None
    rates = device_rates(spec)
    assert isinstance(rates, DeviceRates)
    return rates


def test_a_card_of_little_power_holds_less_of_its_peak() -> None:
    assert T4 is not None
    assert power_headroom(T4) < 0.6
    assert T4.peak_fp32_tflops is not None
    assert _rates("NVIDIA T4").flops[32] < 0.8e12 * T4.peak_fp32_tflops


def test_matrix_units_at_half_rate_hold_it_where_vector_units_lack_the_power() -> None:
    card, chip = find_spec("NVIDIA GeForce RTX 4090"), find_spec("NVIDIA L4")
    assert card is not None
    assert card.peak_fp16_tensor_tflops is not None
    assert card.peak_fp32_tflops is not None
    assert power_headroom(card) < 1
    assert _rates(card.name).flops[32] < 0.9e12 * card.peak_fp32_tflops
    assert _rates(card.name).flops[16] == pytest.approx(1e12 * card.peak_fp16_tensor_tflops)
    assert chip is not None
    assert chip.peak_fp16_tensor_tflops is not None
    assert _rates(chip.name).flops[16] < 0.8e12 * chip.peak_fp16_tensor_tflops


def test_what_has_no_published_rates_or_is_no_gpu_is_refused_with_the_reason() -> None:
    for spec in catalog():
        rates = device_rates(spec)
        if isinstance(rates, str):
            assert spec.name in rates
        else:
            assert spec.kind == "gpu"
            assert 0 < rates.flops[32] <= rates.flops[16]
            assert rates.compute_units > 0
    assert T4 is not None
    assert device_rates(replace(T4, compute_units=None)) == (
        "the number of compute units of NVIDIA T4 is not published"
    )


@given(
    st.sampled_from(sorted(DIMENSIONS)),
    st.lists(st.integers(1, 4096), min_size=9, max_size=9),
    st.sampled_from((16, 32)),
)
def test_roofline_times_and_features_are_finite_and_positive(kind: Any, numbers: list[int], bits: int) -> None:
    dimensions = np.array([numbers[: len(DIMENSIONS[kind])]], dtype=float)
    light, features = roofline_features(kind, dimensions, _rates("NVIDIA L4"), bits)
    assert light.shape == (1,)
    assert light[0] > 0
    assert features.shape[0] == 1
    assert np.isfinite(features).all()


def test_speed_of_light_of_a_product_is_the_longer_of_computing_and_moving() -> None:
    rates = _rates("NVIDIA A100 SXM4 80GB")
    [light], _ = roofline_features("linear", np.array([[4096.0, 4096.0, 4096.0]]), rates, 16)
    assert light == pytest.approx(2e3 * 4096**3 / rates.flops[16])
    [thin], _ = roofline_features("linear", np.array([[1.0, 4096.0, 4096.0]]), rates, 16)
    assert thin == pytest.approx(1e3 * 2 * (4096 + 4096**2 + 4096) / rates.bandwidth)


def test_a_device_that_reaches_less_than_others_teaches_its_effect_and_not_the_trees() -> None:
    generator = np.random.default_rng(0)
    features = generator.normal(size=(1200, 2))
    groups = np.array([f"device {i % 3} 32" for i in range(1200)])
    log_time = 0.3 * features[:, 0] + 1.0 * (groups == "device 2 32")
    table = KernelTable(log_time, features, np.exp(generator.normal(size=1200)), groups)
    utilization = fit_utilization({"linear": table})
    assert utilization.classes["linear"].effects["device 2 32"] == pytest.approx(1.0, abs=0.15)
    points = np.array([[-1.0, 0.0], [1.0, 0.0]])
    assert utilization.trees.predict(points, np.zeros(2, dtype=np.int64)) == pytest.approx([-0.3, 0.3], abs=0.15)


def test_a_device_of_one_kernel_teaches_its_effect_and_the_trees_nothing() -> None:
    generator = np.random.default_rng(0)
    features = generator.normal(size=(1001, 2))
    groups = np.array(["one kernel 16" if i == 0 else f"device {i % 2} 16" for i in range(1001)])
    log_time = 0.3 * features[:, 0] + 1.0 * (groups == "one kernel 16")
    table = KernelTable(log_time, features, np.exp(generator.normal(size=1001)), groups)
    fitted, without = (fit_utilization({"linear": each}) for each in (table, table.select(groups != "one kernel 16")))
    assert fitted.classes["linear"].effects["one kernel 16"] == pytest.approx(1.0, abs=0.15)
    first = features[:1], np.zeros(1, dtype=np.int64)
    assert fitted.trees.predict(*first) == pytest.approx(without.trees.predict(*first), abs=0.02)


def test_a_device_nobody_measured_is_taken_for_one_with_its_chip_and_halfway_for_one_of_its_architecture() -> None:
    known = _rates("NVIDIA T4")
    learned = ClassUtilization(shipped_predictor().utilization.classes["linear"].trees, {f"{known.name} 32": 0.4})
    of_chip = replace(known, name="another", bandwidth=2 * known.bandwidth)
    assert [learned.effect(device, 32) for device in (known, of_chip)] == [0.4, 0.4]
    other_chip = replace(of_chip, compute_units=2 * known.compute_units)
    more_power = replace(of_chip, flops={bits: 2 * flops for bits, flops in known.flops.items()})
    assert [learned.effect(device, 32) for device in (other_chip, more_power)] == pytest.approx([0.2, 0.2])
    assert learned.effect(of_chip, 16) == 0.0
    assert learned.effect(_rates("NVIDIA L4"), 32) == 0.0
    assert learned.effect(replace(known, name="another", architecture=None), 32) == 0.0


def test_devices_of_one_name_share_cached_figures_only_if_their_rates_are_equal() -> None:
    known = _rates("NVIDIA T4")
    faster = replace(known, flops={bits: 2 * flops for bits, flops in known.flops.items()})
    cached = {known: "cached"}
    assert cached[replace(known)] == "cached"
    assert faster not in cached


def test_what_is_particular_to_a_device_scales_its_times_alone() -> None:
    known = _rates("AMD Instinct MI100")
    utilization = shipped_predictor().utilization
    operators = np.array([[1e6, 1e6, 0.0], [3e4, 3e4, 1.0]])
    [times] = utilization.times_ms(
        [("elementwise", operators)], [known, replace(known, name="another", architecture=None)], 32
    )
    effect = utilization.classes["elementwise"].effects[f"{known.name} 32"]
    assert effect != 0.0
    assert times[0] / times[1] == pytest.approx(math.exp(effect))


def test_a_chip_with_slower_matrix_units_is_another_one() -> None:
    h100, h200, l40s, rtx_4090 = map(
        _rates, ("NVIDIA H100 SXM5 80GB", "NVIDIA H200 SXM", "NVIDIA L40S", "NVIDIA GeForce RTX 4090")
    )
    assert have_same_chip(h100, h200)
    assert not have_same_chip(l40s, rtx_4090)


def test_measured_models_correct_devices_with_their_chip_and_less_so_their_makers_others() -> None:
    v100, same_chip, t4, mi100 = map(
        _rates, ("NVIDIA V100 PCIe 32GB", "NVIDIA V100 SXM2 16GB", "NVIDIA T4", "AMD Instinct MI100")
    )
    models = [
        OperatorTotals(f"model {i}", v100, 32, 2.0 * (products + moving), products, moving)
        for i, (products, moving) in enumerate([(10.0, 1.0), (1.0, 10.0), (5.0, 5.0), (20.0, 3.0)] * 3)
    ]
    correction = fit_correction(models)
    assert correction.log_factors(v100, 32) == pytest.approx((math.log(2), math.log(2)), abs=0.15)
    assert correction.log_factors(same_chip, 32) == correction.log_factors(v100, 32)
    assert 0 < correction.log_factors(t4, 32)[0] < math.log(2) / 2
    assert correction.log_factors(mi100, 32) == (0.0, 0.0)
    assert correction.log_factors(v100, 16) == correction.log_factors(same_chip, 16) == (0.0, 0.0)


@pytest.mark.slow  # it traces the measured models
def test_the_shipped_correction_is_what_this_code_fits() -> None:
    shipped = shipped_predictor()
    fitted = fit_correction([model.operator_totals(shipped.utilization) for model in load_whole_models()])
    assert fitted.training == pytest.approx(shipped.correction.training, abs=1e-4)
    for key, factors in fitted.devices.items():
        assert factors == pytest.approx(shipped.correction.devices[key], abs=1e-4), key


def test_training_steps_correct_training_steps_alone() -> None:
    v100, t4, mi100 = map(_rates, ("NVIDIA V100 PCIe 32GB", "NVIDIA T4", "AMD Instinct MI100"))
    passes = [OperatorTotals(f"model {i}", v100, 32, 11.0, 10.0, 1.0) for i in range(8)]
    # The device with more steps has no more say.
    steps = [replace(passes[0], device=device, latency_ms=factor * 11.0, training=True)
             for device, factor in [(v100, 1.2), (t4, 1.3), *[(mi100, 3.0)] * 9]]  # fmt: skip
    correction = fit_correction([*passes, *steps])
    assert correction.log_factors(v100, 32) == fit_correction(passes).log_factors(v100, 32)
    assert correction.training == pytest.approx(math.log(1.3), abs=0.02)
    both = correction.log_factors(mi100, 32, training=True)
    assert both == (correction.training, correction.training)
    assert correction.log_error(steps[1]) == pytest.approx(0.0, abs=0.02)


def _training_step(*forward: Operator, parameters: float = 0.0) -> tuple[Operator, ...]:
    return training_step(OperatorProfile(forward, forward, parameters)).of_two


def test_a_training_step_has_three_times_the_products_of_a_pass() -> None:
    forward = (Operator("linear", "addmm", (64.0, 32.0, 16.0), 5), Operator("elementwise", "gelu", (64.0, 64.0, 1.0)))
    step = _training_step(*forward, parameters=1000.0)
    assert sum(operator.flops * operator.count for operator in step) == 3 * 2 * 64 * 32 * 16 * 5
    gelu, its_gradient, adam = (operator.dimensions for operator in step if operator.kind == "elementwise")
    assert (gelu, its_gradient) == ((64, 64, 1), (128, 64, 1))
    assert adam == (4000, 3000, 1)
    profile = OperatorProfile(forward, forward, 1000.0)
    assert training_step(profile, updates_weights=False).of_three == step[:-1]


def test_norms_read_more_in_a_training_step() -> None:
    batch_norm = Operator("elementwise", "native_batch_norm", (104.0, 100.0, 0.0), 2)
    layer_norm = Operator("layer_norm", "native_layer_norm", (10.0, 8.0), 3)
    step = [(of.kind, of.dimensions, of.count) for of in _training_step(batch_norm, layer_norm)]
    assert step == [
        ("elementwise", (204, 100, 0), 2),
        ("layer_norm", (10, 8), 3),
        ("elementwise", (400, 100, 0), 2),
        ("elementwise", (320, 80, 0), 3),
    ]


def test_depthwise_convolutions_are_slow_backwards_and_others_are_not() -> None:
    dense = (2.0, 100.0, 16.0, 72.0, 1.0, 9.0, 900.0, 1600.0)
    depthwise = (2.0, 100.0, 1.0, 9.0, 8.0, 9.0, 850.0, 1600.0)
    _, _, of_dense, of_depthwise = _training_step(
        *(Operator("convolution", "convolution", of) for of in (dense, depthwise))
    )
    assert (of_dense.dimensions, of_dense.count, of_depthwise.count) == (dense, 2, 2)
    read, written = of_depthwise.dimensions[-2:]
    assert read / 850 == written / 1600 > 2


@given(st.data(), st.integers(1, 512))
def test_tables_hold_the_operators_of_a_profile_at_any_batch(data: st.DataObject, batch_size: int) -> None:
    kinds = data.draw(st.lists(st.sampled_from(sorted(DIMENSIONS)), min_size=1, max_size=8))
    two, three = (
        tuple(
            Operator(kind, kind, tuple(data.draw(st.tuples(*[st.integers(1, 500)] * len(DIMENSIONS[kind])))), place + 1)
            for place, kind in enumerate(kinds)
        )
        for _ in range(2)
    )
    profile = OperatorProfile(two, three, 0.0)
    expected = operator_tables(profile.at(batch_size))
    for table, same in zip(ProfileTables.of(profile).at(batch_size), expected, strict=True):
        assert (table.kind, table.count) == (same.kind, same.count)
        assert (table.columns == same.columns).all()


def test_gradients_follow_the_pass_in_its_order() -> None:
    forward = (
        Operator("softmax", "_softmax", (8.0, 2.0)),
        Operator("elementwise", "add", (6.0, 3.0, 0.0), 7),
        Operator("embedding", "embedding", (5.0, 2.0)),
    )
    gradients = [(of.kind, of.dimensions, of.count) for of in _training_step(*forward)[3:]]
    assert gradients == [
        ("elementwise", (32, 16, 0), 1),
        ("elementwise", (9, 6, 0), 7),
        ("elementwise", (10, 10, 0), 1),
    ]


def test_convolutions_are_priced_by_what_they_are_computed_as() -> None:
    dense = (2.0, 100.0, 16.0, 72.0, 1.0, 9.0, 900.0, 1600.0)
    pointwise = (2.0, 100.0, 16.0, 8.0, 1.0, 1.0, 800.0, 1600.0)
    depthwise = (2.0, 100.0, 1.0, 9.0, 8.0, 9.0, 850.0, 1600.0)
    operators = [Operator("convolution", "convolution", of, 3) for of in (pointwise, dense, depthwise, pointwise)]
    [table] = operator_tables(operators)
    parts = [(part.kernel_kind, part.columns.T.tolist()) for part in kernel_parts(table, 32)]
    assert parts == [
        ("linear", [[200, 16, 8], [200, 16, 8]]),
        ("convolution", [list(dense)]),
        ("elementwise", [[850, 1600, 0]]),
    ]


def test_attention_in_32_bits_is_priced_as_its_two_products() -> None:
    operators = [Operator("attention", "attention", (2, heads, 4, 10, 20, 64, 32, 200), heads) for heads in (4, 8)]
    [table] = operator_tables(operators)
    [part] = kernel_parts(table, 32)
    assert part.columns.T.tolist() == [[8, 10, 20, 64], [8, 10, 32, 20], [16, 10, 20, 64], [16, 10, 32, 20]]
    assert part.counts.tolist() == [4, 4, 8, 8]
    [whole] = kernel_parts(table, 16)
    assert whole.kernel_kind == "attention"


@pytest.mark.usefixtures("compressed_quickly")
def test_the_shipped_predictor_orders_devices_and_widths_and_covers_its_median(tmp_path: Path) -> None:
    shipped = shipped_predictor()
    operators = operator_tables(
        (
            Operator("linear", "addmm", (8192.0, 4096.0, 1024.0), 24),
            Operator("softmax", "_softmax", (65536.0, 512.0), 24),
        )
    )
    slow, fast = shipped.predict(operators, [_rates("NVIDIA T4"), _rates("NVIDIA H100 SXM5 80GB")], 32)
    [half] = shipped.predict(operators, [_rates("NVIDIA H100 SXM5 80GB")], 16)
    assert slow.latency_ms.p50 > 3 * fast.latency_ms.p50
    assert half.latency_ms.p50 < fast.latency_ms.p50
    for latency in (slow.latency_ms, fast.latency_ms, half.latency_ms):
        assert latency.low is not None
        assert latency.high is not None
        assert latency.low < latency.p50 < latency.high
        assert latency.level is not None
        assert latency.level >= 0.8
    save(shipped, tmp_path / "again.json.xz")
    [again] = load(tmp_path / "again.json.xz").predict(operators, [_rates("NVIDIA T4")], 32)
    assert again == slow, "alone as beside others"


@given(st.floats(64, 1e8), st.floats(1, 1e4), st.sampled_from([32, 16]), st.sampled_from(["RTX 4090", "NVIDIA T4"]))
def test_a_mean_over_many_numbers_takes_no_longer_than_copying_them(
    numbers: float, ratio: float, bits: int, device: str
) -> None:
    """No kernel was measured that reads far more than it writes: its time is that of one that moves as much."""
    utilization = shipped_predictor().utilization
    operators = np.array([[numbers, numbers / ratio, 0.0], [numbers, numbers, 0.0]])
    [times] = utilization.times_ms([("elementwise", operators)], [_rates(device)], bits)
    mean, copy = times[0]
    launch_ms = 0.03
    assert mean <= 3 * max(copy, launch_ms)


def test_files_that_state_no_runtime_are_taken_for_pytorch_and_it_is_said(tmp_path: Path) -> None:
    settings = world(tmp_path, measured_grid(MODELS[:1]))
    claim = {"provenance": "imported", "source_path": "mine.csv", "device_name": "NVIDIA A10G", "device": "a10g"}
    append(settings, [result(MODELS[0], "cuda", 64, backend="unstated", **claim)])
    asked = {"model": MODELS[0].model_id, "batch_size": 8, "hardware": ["NVIDIA A10G"]}
    answer = Advisor(settings).recommend(RecommendQuery.model_validate(asked))
    predicted = [one for one in answer.recommendations if one.backend == "unstated"]
    assert [one.provenance for one in predicted] == ["predicted"], answer.excluded
    assert any("PyTorch is taken for it" in warning for warning in answer.warnings)


def test_little_work_waits_for_the_host_and_says_so() -> None:
    tiny = operator_tables([Operator("elementwise", f"add {i}", (8.0, 8.0, 0.0), 50) for i in range(20)])
    [prediction] = shipped_predictor().predict(tiny, [_rates("NVIDIA H100 SXM5 80GB")], 16)
    assert prediction.latency_ms.p50 >= 1000 * HOST_MS_PER_OPERATOR
    assert prediction.host_bound


@pytest.mark.slow
def test_where_a_gpu_waits_for_its_host_what_was_learned_from_larger_batches_does_not_answer(tmp_path: Path) -> None:
    devices = ("NVIDIA L4", "NVIDIA T4", "NVIDIA A10", "NVIDIA A100 PCIe 40GB", "NVIDIA V100 PCIe 32GB")
    published = [
        result(model, "cuda", batch, device=device, device_id=device, provenance="imported", precision="float16")
        for model in MODELS
        for device in devices
        for batch in (4, 8, 16, 32)
    ]
    settings = world(tmp_path, [*map(described, MODELS), *published])
    train(settings, EventLog.open(settings))
    asked = {"model": "bert-base", "hardware": ["NVIDIA L4"], "batch_size": 2, "precision": "float16"}
    answer = Advisor(settings).recommend(RecommendQuery.model_validate(asked))
    assert [predicted.basis.partition(" at ")[0] for predicted in answer.recommendations] == [
        "the sum of its operators"
    ], answer
    assert any("waits for the host" in warning for warning in answer.warnings)


def test_a_figure_that_its_operators_do_not_explain_waited_for_its_host_and_says_so(tmp_path: Path) -> None:
    device = "NVIDIA H100 SXM5 80GB"
    asked = {"model": "bert-base", "hardware": [device], "batch_size": 128, "precision": "float16"}
    query = RecommendQuery.model_validate(asked)
    [predicted] = Advisor(world(tmp_path / "none")).recommend(query).recommendations
    for latency_ms, waited in ((predicted.latency_ms.p50, False), (1.1 * predicted.latency_ms.high, True)):
        figure = result(MODELS[0], "cuda", 128, device=device, provenance="imported", precision="float16")
        known = [*map(described, MODELS), figure.model_copy(update={"latency_mean_ms": latency_ms})]
        answer = Advisor(world(tmp_path / str(waited), known)).recommend(query)
        assert [found.provenance for found in answer.recommendations] == ["measured"]
        assert any("waited for its host" in warning for warning in answer.warnings) is waited, answer


def test_a_prediction_for_a_device_of_ones_own_is_no_shorter_than_less_work_took(tmp_path: Path) -> None:
    device, model = "NVIDIA H100 SXM5 80GB", MODELS[0]
    asked = {"model": model.model_id, "hardware": [device], "batch_size": 128, "precision": "float16"}
    query = RecommendQuery.model_validate(asked)
    [predicted] = Advisor(world(tmp_path / "none")).recommend(query).recommendations
    p50 = predicted.latency_ms.p50
    for batch_size, factor, provenance, expected in (
        (64, 3, "measured", 3),
        (256, 1 / 3, "measured", 1 / 3),
        (64, 1 / 2, "measured", 1),
        (64, 3, "imported", 1),
    ):
        scale = factor * p50 / latency_of(model, "cuda", batch_size)
        how = {"device": device, "precision": "float16", "provenance": provenance}
        figures = [result(model, "cuda", batch_size, scale=scale, **how)]
        if provenance == "measured":
            figures.append(verified(model, "cuda", batch_size).model_copy(update={"precision": "float16"}))
        home = tmp_path / f"{batch_size} {factor} {provenance}"
        answer = Advisor(world(home, [*map(described, MODELS), *figures])).recommend(query)
        [kept] = answer.recommendations
        assert (kept.provenance, kept.latency_ms.p50 / p50) == ("predicted", pytest.approx(expected, rel=0.05))
        assert any("waited for its host" in warning for warning in answer.warnings) is (expected > 1)


@pytest.mark.parametrize("texts", [0, 1])
@pytest.mark.slow
def test_what_was_learned_of_images_does_not_answer_for_text(texts: int, tmp_path: Path) -> None:
    images = [model for model in MODELS if model.modality == "vision"]
    text = next(model for model in MODELS if model.modality == "text")
    devices = ("NVIDIA L4", "NVIDIA T4", "NVIDIA A10", "NVIDIA A100 PCIe 40GB", "NVIDIA V100 PCIe 32GB")
    published = [
        result(model, "cuda", batch, device=device, device_id=device, provenance="imported", precision="float16")
        for model in MODELS
        for device in devices
        for batch in (4, 8, 16, 32, 64)
        if model in images or device != "NVIDIA L4" or (model == text and batch == 4 and texts)
    ]
    settings = world(tmp_path, [*map(described, MODELS), *published])
    train(settings, EventLog.open(settings))
    advisor = Advisor(settings)
    for model, basis in (("bert-large", "the sum of its operators"), ("vit-large", "learned from")):
        query = {"model": model, "hardware": ["NVIDIA L4"], "batch_size": 32, "precision": "float16"}
        [answered] = advisor.recommend(RecommendQuery.model_validate(query)).recommendations
        assert answered.basis.startswith(basis), answered


def test_a_gpu_nobody_measured_is_answered_with_an_interval_and_its_operators(tmp_path: Path) -> None:
    advisor = Advisor(world(tmp_path))
    for precision in ("float32", "float16"):
        query = {
            "model": "bert-base",
            "batch_size": 8,
            "precision": precision,
            "hardware": ["RTX 4090", "H100", "MI300X"],
        }
        answer = advisor.recommend(RecommendQuery.model_validate(query))
        assert len(answer.recommendations) == 3, answer.excluded
        for recommendation in answer.recommendations:
            assert recommendation.provenance == "predicted"
            assert recommendation.latency_ms.high_over_low <= 6
            assert any("matrix products" in reason for reason in recommendation.why)
    refused = advisor.recommend(RecommendQuery.model_validate({**query, "precision": "int8", "hardware": ["H100"]}))
    assert not refused.recommendations


def test_amp_is_priced_as_float16_and_it_is_said(tmp_path: Path) -> None:
    """Else models and batches unlike the few large ones that were measured in it take less than to launch them."""
    settings = world(tmp_path)
    claim = {"provenance": "imported", "source_path": "mine.csv", "device_name": "NVIDIA A10G", "device": "a10g"}
    append(settings, [result(MODELS[0], "cuda", 64, precision="amp", **claim)])
    query = {"model": "bert-base", "batch_size": 8, "hardware": ["RTX 4090"]}
    amp, half = (
        Advisor(settings).recommend(RecommendQuery.model_validate({**query, "precision": precision}))
        for precision in ("amp", "float16")
    )
    assert amp.recommendations[0].latency_ms == half.recommendations[0].latency_ms
    assert any("amp is priced as float16" in warning for warning in amp.warnings)


def test_float32_convolutions_are_never_priced_in_tf32() -> None:
    """An H100 computes TF32 seven times as fast as float32, and the platform's float32 is measured without it."""
    b, pixels, n, k = 32.0, 56.0**2, 64.0, 64.0 * 9
    convolution = np.array([[b, pixels, n, k, 1.0, 9.0, b * pixels * 64, b * pixels * n]])
    light, _ = roofline_features("convolution", convolution, _rates("NVIDIA H100 SXM5 80GB"), 32)
    assert light[0] == pytest.approx(2e3 * b * pixels * n * k / _rates("NVIDIA H100 SXM5 80GB").flops[32])
    assert _rates("NVIDIA H100 SXM5 80GB").flops[32] <= 67e12


def test_help_of_the_fit_says_what_it_does_and_fits_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("predictor.operators.fit.fit", lambda: pytest.fail("it was fitted"))
    with pytest.raises(SystemExit, match=r"^0$"):
        fit_main(["--help"])
    assert "python -m predictor.operators.fit" in capsys.readouterr().out
