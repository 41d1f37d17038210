"""What a cell looks like to the model: roofline, precision, and nothing guessed where nothing is known."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from accel_platform.events.types import DeviceObserved
from accel_platform.hardware import cpu
from accel_platform.hardware.catalog import find_spec
from accel_platform.warehouse.query import Reader
from predictor.evidence import Target, load_evidence
from predictor.features import CATEGORICAL, NUMERIC, Features, device_spec, features_of, precision_bits, roofline_ms
from predictor.subject import ItemCost
from predictor_world import CPU, CPU_ID, MODELS, result, world

COST = ItemCost(parameters=1e8, layers=12, flops=2e10, activation_bytes=3e8)
TARGET = Target("cuda", "pytorch", "cuda-l4", "NVIDIA L4")


def _features(*, precision: str | None = "float32", batch_size: int = 4, known: bool = True) -> dict[str, float]:
    row = features_of(
        COST,
        modality="text",
        target=TARGET,
        precision=precision,
        batch_size=batch_size,
        sequence_length=128,
        spec=find_spec("NVIDIA L4") if known else None,
    )
    return dict(zip(NUMERIC, row.numeric, strict=True))


def test_the_roofline_is_the_longer_of_computing_and_moving() -> None:
    assert roofline_ms(1e12, 1e9, peak_flops=1e13, bandwidth=1e11) == pytest.approx(100)
    assert roofline_ms(1e12, 5e10, peak_flops=1e13, bandwidth=1e11) == pytest.approx(500)
    assert roofline_ms(1e12, 5e10, peak_flops=1e13, bandwidth=math.nan) == pytest.approx(100)
    assert math.isnan(roofline_ms(1e12, 5e10, peak_flops=math.nan, bandwidth=1e11))


def test_work_and_activations_grow_with_the_batch_and_weights_do_not() -> None:
    one, four = _features(batch_size=1), _features(batch_size=4)
    assert four["log_flops"] - one["log_flops"] == pytest.approx(math.log(4))
    assert four["log_activation_bytes"] - one["log_activation_bytes"] == pytest.approx(math.log(4))
    assert four["log_weight_bytes"] == one["log_weight_bytes"] == pytest.approx(math.log(4e8))
    assert four["log_intensity"] > one["log_intensity"]


def test_half_precision_moves_half_and_computes_on_the_matrix_units() -> None:
    full, half = _features(precision="float32"), _features(precision="float16")
    assert half["log_weight_bytes"] - full["log_weight_bytes"] == pytest.approx(math.log(0.5))
    assert half["log_peak_flops"] == pytest.approx(math.log(121e12))
    assert full["log_peak_flops"] == pytest.approx(math.log(30.3e12))


def test_int8_shrinks_weights_and_not_what_layers_hand_on() -> None:
    full, small = _features(precision="float32"), _features(precision="int8")
    assert small["log_weight_bytes"] - full["log_weight_bytes"] == pytest.approx(math.log(0.25))
    assert small["log_activation_bytes"] == full["log_activation_bytes"]


def test_what_is_not_known_is_nan_and_not_a_number() -> None:
    unknown = _features(known=False)
    assert {name for name, value in unknown.items() if math.isnan(value)} == {
        "log_peak_flops",
        "log_bandwidth",
        "log_roofline_ms",
    }
    assert math.isnan(_features(precision=None)["precision_bits"])
    assert math.isnan(_features(precision=None)["log_weight_bytes"])


def test_names_are_kept_as_names() -> None:
    row: Features = features_of(
        COST, modality=None, target=TARGET, precision=None, batch_size=1, sequence_length=None, spec=None
    )
    assert dict(zip(CATEGORICAL, row.categorical, strict=True)) == {
        "modality": None,
        "hardware": "cuda",
        "backend": "pytorch",
        "device": "cuda-l4",
        "precision": None,
    }


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("float32", 32),
        ("fp16", 16),
        ("bfloat16", 16),
        ("int8", 8),
        ("tf32", 32),
        ("q4", 4),
        ("mixed", None),
        (None, None),
    ],
)
def test_bits_of_a_precision(name: str | None, bits: int | None) -> None:
    assert precision_bits(name) == bits


def test_a_processors_peak_comes_from_what_its_host_observed(tmp_path: Path) -> None:
    seen = DeviceObserved(
        hardware="cpu", backend="pytorch", available=True, device_id=CPU_ID, name=CPU, cores=8, clock_max_mhz=3000.0
    )
    target = Target("cpu", "pytorch", CPU_ID, CPU)

    def peak(home: Path, device: DeviceObserved) -> float | None:
        evidence = load_evidence(Reader(world(home, [device, result(MODELS[0], "cpu", 1, provenance="imported")])))
        spec = device_spec(target, {d.target: d for d in evidence.devices if d.vector_bits or d.cores})
        return None if spec is None else spec.peak_fp32_tflops

    assert peak(tmp_path / "a", seen.model_copy(update={"vector_bits": 512})) == pytest.approx(8 * 3e9 * 16 * 4 / 1e12)
    assert peak(tmp_path / "b", seen) is None
    assert device_spec(target, {}) is None


@pytest.mark.parametrize(
    ("features", "bits"),
    [
        ("avx2 avx512f fma", 512),
        ("avx avx2 fma", 256),
        ("avx avx2", None),
        ("asimd", 128),
        ("asimd sve", None),
        ("", None),
    ],
)
def test_vector_width_from_the_instruction_sets(
    monkeypatch: pytest.MonkeyPatch, features: str, bits: int | None
) -> None:
    monkeypatch.setattr(cpu, "cpu_facts", lambda: {"name": "x", "features": features})
    assert cpu.vector_bits() == bits
