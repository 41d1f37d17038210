"""Figures carried over from measured loads nearby: load groups share theirs, strangers keep the prior."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from predictor.serving.neighbors import PRIORS, Neighbors, PairsOfLoads, Points, from_document, to_document
from predictor.serving.work import Array

USERS, DEVICES = (1, 4, 16, 64), (1, 2, 4)
LOAD_GROUPS = (("llama", "H100", "vllm", 0.6), ("llama", "B200", "trtllm", -0.3), ("qwen", "H100", "sglang", 0.1))


def points(rows: list[tuple[str, str, str, int, int]], version: str = "1") -> Points:
    """Loads of these models, devices, engines, users and numbers of devices; their ratios follow from the sizes."""
    ratios = np.array([[np.log(users), np.log(devices), 1.0] for *_, users, devices in rows])
    sizes = np.log(np.array([[users, 1024, 256, devices, 1] for *_, users, devices in rows], dtype=float))
    return Points(ratios, np.array([[*names, version, "fp8"] for *names, _, _ in rows]), sizes)


@pytest.fixture(scope="module")
def rows() -> list[tuple[str, str, str, int, int]]:
    return [(m, d, e, u, n) for m, d, e, _ in LOAD_GROUPS for u in USERS for n in DEVICES]


@pytest.fixture(scope="module")
def fitted(rows: list[tuple[str, str, str, int, int]]) -> Neighbors:
    beyond = {(m, d, e): offset for m, d, e, offset in LOAD_GROUPS}
    drawn = np.random.default_rng(1).normal(0, 0.02, (len(rows), 2))
    residuals = np.array([[beyond[m, d, e], 2 * beyond[m, d, e]] for m, d, e, *_ in rows]) + drawn
    return Neighbors.fit(points(rows), residuals, np.ones(len(rows)))


def test_a_load_group_carries_over_to_a_layout_that_it_lacks(fitted: Neighbors) -> None:
    [[token, first]], [[token_deviation, _]] = fitted.predict(points([("llama", "H100", "vllm", 8, 8)]))
    assert token == pytest.approx(0.6, abs=0.15)
    assert first == pytest.approx(1.2, abs=0.3)
    assert token_deviation < 0.5 * prior(fitted)[0]


def test_an_unknown_version_is_the_newest_measured_and_another_one_is_less_alike(fitted: Neighbors) -> None:
    asked = [("llama", "H100", "vllm", 8, 8)]
    deviations = {version: fitted.predict(points(asked, version))[1][0, 0] for version in ("1", "", "2")}
    assert deviations["1"] == deviations[""] < deviations["2"]


def prior(fitted: Neighbors) -> Array:
    """Return the standard deviations of a load that is like none, by the kernel's variances and the residuals' size."""
    value = {name: float(np.exp(log)) for name, log in fitted.parameters.items()}
    variance = sum(value[name] for name in ("any", "model", "place", "model_engine", "load_group"))
    return np.asarray(np.sqrt((variance + value["noise"] ** 2) * np.mean(fitted.residuals**2, axis=0)))


def test_a_load_like_none_keeps_the_prior(fitted: Neighbors) -> None:
    stranger = points([("mamba", "MI300X", "tgi", 512, 8)])
    stranger = Points(stranger.ratios + 100, stranger.names, stranger.sizes)
    means, deviations = fitted.predict(stranger)
    assert np.abs(means).max() < 0.01
    assert deviations[0] == pytest.approx(prior(fitted), rel=1e-3)


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["llama", "qwen", "mamba"]),
            st.sampled_from(["H100", "B200", "T4"]),
            st.sampled_from(["vllm", "sglang", "trtllm"]),
            st.integers(1, 4096),
            st.integers(1, 16),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_no_prediction_is_surer_than_its_noise_or_less_sure_than_the_prior(
    fitted: Neighbors, asked: list[tuple[str, str, str, int, int]]
) -> None:
    means, deviations = fitted.predict(points(asked))
    assert np.isfinite(means).all()
    assert (deviations > 0).all()
    assert (deviations <= prior(fitted) * (1 + 1e-9)).all()
    # Each is predicted by itself: what is asked beside it changes nothing.
    alone = [fitted.predict(points([one]))[0][0] for one in asked]
    assert np.allclose(means, alone)


@settings(max_examples=25)
@given(st.lists(st.floats(-2, 2), min_size=len(PRIORS), max_size=len(PRIORS)))
def test_the_kernels_slopes_are_those_of_its_differences(
    rows: list[tuple[str, str, str, int, int]], moved: list[float]
) -> None:
    at = np.log(list(PRIORS.values())) + moved
    others = points([("llama", "H100", "vllm", 5, 3), ("qwen", "T4", "tgi", 77, 6)], version="2")
    others.names[0, -1] = "int4"
    pairs = PairsOfLoads.of(points(rows), others, np.zeros(3), np.ones(3))
    value = dict(zip(PRIORS, np.exp(at), strict=True))
    slopes = dict(pairs.slopes(value, pairs.terms(value)))
    assert set(slopes) == set(PRIORS) - {"noise"}
    for name, slope in slopes.items():
        step = 1e-5 * np.array([known == name for known in PRIORS])
        above, below = (pairs.covariance(dict(zip(PRIORS, np.exp(at + d), strict=True))) for d in (step, -step))
        assert np.allclose(slope, (above - below) / 2e-5, rtol=1e-4, atol=1e-7), name


def test_what_is_stored_predicts_the_same(fitted: Neighbors, rows: list[tuple[str, str, str, int, int]]) -> None:
    stored = from_document(json.loads(json.dumps(to_document(fitted))))
    asked = points([(m, d, e, 7, 3) for m, d, e, *_ in rows])
    for mine, its in zip(fitted.predict(asked), stored.predict(asked), strict=True):
        assert np.allclose(mine, its, atol=2e-3)
    assert to_document(stored) == to_document(fitted)


def test_one_wild_residual_counts_for_no_more_than_the_largest(rows: list[tuple[str, str, str, int, int]]) -> None:
    residuals = np.zeros((len(rows), 2))
    residuals[0] = 50.0
    wild = Neighbors.fit(points(rows), residuals, np.ones(len(rows)))
    assert wild.residuals.max() == 1.5
