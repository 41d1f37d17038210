"""Right outputs pass; wrong, constant and input-blind ones do not."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from accel_platform.bench.measure.verification import TOLERANCE, is_constant, relative_rms, spread_items, verify
from accel_platform.bench.prepare.worker import _build_reference
from accel_platform.precisions import MEASURABLE, PRECISIONS

Array = npt.NDArray[np.float32]
arrays = hnp.arrays(
    np.float32, hnp.array_shapes(max_dims=3), elements=st.floats(-100, 100, width=32, allow_subnormal=False)
)


def random(seed: int) -> dict[str, Array]:
    generator = np.random.default_rng(seed)
    return {name: generator.standard_normal((2, 5), dtype=np.float32) for name in ("hidden", "pooled")}


def test_equal_outputs_pass() -> None:
    verdict = verify(random(0), random(1), random(0), precision="float32")
    assert verdict.passed
    assert verdict.reason is None
    assert verdict.relative_error == verdict.max_abs_error == 0


def test_one_wrong_output_fails_all() -> None:
    wrong = random(0)
    wrong["pooled"] = wrong["pooled"] * np.float32(1.01)
    verdict = verify(wrong, random(1), random(0), precision="float32")
    assert not verdict.passed
    assert "pooled differs" in (verdict.reason or "")
    assert verdict.relative_error == pytest.approx(0.01, rel=0.01)


def test_constant_outputs_fail_though_they_equal_the_reference() -> None:
    constant = {"hidden": np.full((2, 5), 3.0, dtype=np.float32)}
    verdict = verify(constant, constant, constant, precision="float32")
    assert verdict.constant_output
    assert not verdict.passed


def test_outputs_that_ignore_the_input_fail_though_they_equal_the_reference() -> None:
    verdict = verify(random(0), random(0), random(0), precision="float32")
    assert not verdict.passed
    assert "do not depend on the input" in (verdict.reason or "")


def test_what_cannot_be_compared_fails_with_a_reason() -> None:
    reference = random(0)
    missing = verify({"hidden": reference["hidden"]}, random(1), reference, precision="float32")
    reshaped = verify({**reference, "hidden": reference["hidden"][:1]}, random(1), reference, precision="float32")
    not_finite = {**reference, "hidden": np.full((2, 5), np.nan, dtype=np.float32)}
    infinite = verify(not_finite, random(1), reference, precision="float32")
    for verdict in (missing, reshaped, infinite):
        assert not verdict.passed
        assert verdict.reason
        assert verdict.relative_error is None


def test_the_lower_the_precision_the_wider_the_tolerance_and_none_takes_what_is_wrong() -> None:
    assert (
        TOLERANCE["float32"]
        < TOLERANCE["float16"]
        < TOLERANCE["bfloat16"]
        < TOLERANCE["int8"]
        < 0.2
        < TOLERANCE["int4"]
        < 0.5
    )
    assert set(TOLERANCE) == set(MEASURABLE)


@pytest.mark.parametrize("precision", ["float16", "bfloat16", "int8"])
def test_rounding_passes_and_breakage_fails_in_every_precision(precision: str) -> None:
    reference, other = random(0), random(1)
    generator = np.random.default_rng(5)
    roundoff = PRECISIONS[precision].roundoff

    def disturbed(by: float) -> dict[str, Array]:
        noise = generator.standard_normal((2, 5))
        return {name: (a * (1 + by * noise)).astype(np.float32) for name, a in reference.items()}

    assert verify(disturbed(3 * roundoff), other, reference, precision=precision).passed
    broken = {
        "a layer left out": {n: np.roll(a, 1, axis=-1) for n, a in reference.items()},
        "a scale off by a quarter": {n: a * np.float32(1.25) for n, a in reference.items()},
        "a zero point off": {n: a + np.float32(0.3) for n, a in reference.items()},
        "saturated": {n: np.clip(a, -0.5, 0.5) for n, a in reference.items()},
        "the other input's": other,
        "too much noise": disturbed(0.5),
    }
    for what, outputs in broken.items():
        verdict = verify(outputs, random(2), reference, precision=precision)
        assert not verdict.passed, what
        assert "differs from the reference" in (verdict.reason or "")


def test_a_tolerance_no_wider_than_what_the_input_changes() -> None:
    # Random weights may make outputs that hardly depend on the input: then rounding can pass for an answer.
    reference = random(0)
    nearby = {name: a + np.float32(0.01) * random(3)[name] for name, a in reference.items()}
    rounded = {name: a + np.float32(0.02) * random(4)[name] for name, a in reference.items()}
    verdict = verify(rounded, nearby, reference, precision="int8")
    assert not verdict.passed
    assert "input" in (verdict.reason or "")


@given(arrays, st.floats(0.5, 2.0))
def test_scaling_by_a_factor_is_an_error_of_its_distance_from_one(reference: Array, factor: float) -> None:
    error = relative_rms(reference.astype(np.float64) * factor, reference)
    expected = abs(factor - 1) if np.any(reference) else 0.0
    assert error == pytest.approx(expected, rel=1e-6, abs=1e-9)


@given(arrays)
def test_constancy_is_having_one_value(values: Array) -> None:
    assert is_constant({"out": values}) == (values.size > 1 and len(np.unique(values)) == 1)


def test_of_a_large_batch_some_items_from_the_first_to_the_last_are_compared() -> None:
    assert spread_items(16) is None
    items = spread_items(64)
    assert items is not None
    assert items.tolist() == [0, 9, 18, 27, 36, 45, 54, 63]

    batch, other = ({"hidden": np.random.default_rng(seed).standard_normal((64, 5))} for seed in (0, 1))
    reference = {"hidden": batch["hidden"][items]}
    right = verify(batch, other, reference, precision="float32", items=items)
    assert (right.passed, right.compared_items, right.relative_error) == (True, 8, 0)

    of_fewer = {"hidden": batch["hidden"][:63]}
    half_wrong = {"hidden": np.concatenate([batch["hidden"][:32], other["hidden"][32:]])}
    not_finite = {"hidden": np.where(np.arange(64)[:, None] == 5, np.nan, batch["hidden"])}
    for wrong, reason in ((of_fewer, "batch of 64"), (half_wrong, "differs"), (not_finite, "not finite")):
        verdict = verify(wrong, other, reference, precision="float32", items=items)
        assert not verdict.passed
        assert reason in (verdict.reason or "")
    assert not verify(batch, batch, reference, precision="float32", items=items).passed


def test_the_reference_of_a_large_batch_is_whole_where_items_depend_on_one_another() -> None:
    pytest.importorskip("torch")
    inputs = {"x": np.random.default_rng(0).standard_normal((64, 5), dtype=np.float32)}
    models = {
        "alone": (lambda x: {"hidden": 2 * x}, True),
        "all pairs": (lambda x: {"hidden": 2 * x, "likeness": x @ x.T}, False),
        "mean of the batch": (lambda x: {"hidden": x - x.mean(dim=0)}, False),
        "sum over the batch": (lambda x: {"loss": x.sum(dim=0)}, False),
        "a number for all": (lambda x: {"hidden": 2 * x, "loss": x.sum()}, False),
        "as many rows always": (lambda x: {"hidden": 2 * x, "codes": x.new_ones(3)}, False),
    }
    for name, (model, independent) in models.items():
        built = _build_reference(model, inputs, 64)
        assert ("items/compared" in built) is independent, name
        assert len(built.get("reference/hidden", [0] * 64)) == (8 if independent else 64), name
    alone = _build_reference(models["alone"][0], inputs, 64)
    np.testing.assert_array_equal(alone["reference/hidden"], 2 * inputs["x"][alone["items/compared"]])
    assert "items/compared" not in _build_reference(models["alone"][0], {"x": inputs["x"][:16]}, 16)
