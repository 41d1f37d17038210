"""Pooling of measurements and scaling of neighbours, on evidence that was really projected."""

from __future__ import annotations

import math
import random
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_platform.analysis.query.cells import read_cells
from accel_platform.analysis.query.filters import Selection
from accel_platform.events.types import Payload
from accel_platform.warehouse.reader import Reader
from predictor.advisor.advisor import Advisor
from predictor.advisor.scaling import (
    Estimate,
    combine_intervals,
    keep_above_narrower,
    measured_estimate,
    pooled_ratio,
    scaled_estimate,
    warm_up,
)
from predictor.data import evidence
from predictor.data.dataset import load_training_set
from predictor.data.evidence import CellKey, Evidence, Target, load_evidence
from predictor.data.fast_path import SlowPathRequired, fast_path_only
from predictor.schemas.requests import PredictQuery
from predictor.schemas.responses import Interval
from predictor_world import CPU_ID, MODELS, append, described, latency_of, result, verified, world

BERT, VIT = MODELS[0], MODELS[1]


def _evidence(home: Path, payloads: list[Payload]) -> Evidence:
    return load_evidence(Reader(world(home, payloads)))


def _cell(model_id: str, hardware: str = "cpu", batch_size: int = 1, length: int | None = 128) -> CellKey:
    backend = {"cpu": "pytorch", "openvino": "openvino"}[hardware]
    return CellKey(model_id, Target(hardware, backend, CPU_ID), "inference", "float32", batch_size, length)


def test_runs_of_a_cell_are_pooled_with_their_spread(tmp_path: Path) -> None:
    runs = [result(BERT, "cpu", 1, seed=seed) for seed in range(3)]
    evidence = _evidence(tmp_path, [*runs, verified(BERT, "cpu", 1)])
    found = measured_estimate(evidence, [_cell("bert-base")])
    assert found is not None
    assert found.provenance == "measured"
    assert len(found.event_ids) == 3
    samples = sorted(ns / 1e6 for run in runs for ns in run.samples_ns)
    latency = found.latency_ms
    # The limits are the 4th of 90 samples from either end: (91 - 8) / 91 is the nearest level above 90 %.
    assert (latency.low, latency.high, latency.level) == (samples[3], samples[-4], 0.9)
    assert latency.p50 == pytest.approx(sorted(median(run.samples_ns) / 1e6 for run in runs)[1])
    peak = found.memory_peak_mib
    assert peak is not None
    assert peak.level == pytest.approx(0.5)


def test_summaries_do_not_depend_on_the_parts_they_are_made_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cells = [(model, batch_size) for model in MODELS for batch_size in (1, 2)]
    runs = [result(model, "cpu", size, seed=seed) for model, size in cells for seed in range(3)]
    settings = world(tmp_path, [*runs, *(verified(model, "cpu", size) for model, size in cells)])
    at_once = load_evidence(Reader(settings))
    monkeypatch.setattr(evidence, "_MAX_RESULTS", 2)
    assert load_evidence(Reader(settings)) == at_once
    assert len(at_once.summaries) == len(cells)


def test_every_table_has_one_median_of_a_cell(tmp_path: Path) -> None:
    """A long quick run, two short slow ones and an older driver: in advice, training set, matrix and comparison."""
    runs = [
        result(BERT, "cpu", 1, samples=400),
        result(BERT, "cpu", 1, samples=12, seed=1, scale=2.0),
        result(BERT, "cpu", 1, samples=14, seed=2, scale=3.0),
    ]
    settings = world(tmp_path, [described(BERT), *runs, verified(BERT, "cpu", 1)])
    reader = Reader(settings)
    expected = pytest.approx(sorted(median(run.samples_ns) / 1e6 for run in runs)[1])
    found = measured_estimate(load_evidence(reader), [_cell("bert-base")])
    assert found is not None
    assert found.latency_ms.p50 == expected
    assert found.latency_ms.low is not None
    assert found.latency_ms.high is not None
    assert found.latency_ms.low <= found.latency_ms.p50 <= found.latency_ms.high
    assert [sample.latency_ms for sample in load_training_set(reader).measured] == [expected]
    assert [row["latency_p50_ms"] for row in reader.rows("SELECT latency_p50_ms FROM compat_matrix")] == [expected]
    assert [row["latency_ms"] for row in read_cells(reader, Selection())] == [expected]
    # Results of an even number have a mean of two in the middle, and an older driver's results tell of another machine.
    more = [result(BERT, "cpu", 1, samples=20, seed=3, scale=4.0)]
    older = [result(BERT, "cpu", 1, seed=4, scale=9.0, fingerprint="old driver")]
    settings = world(tmp_path / "more", [described(BERT), *older, verified(BERT, "cpu", 1)])
    append(settings, [*runs, *more])
    reader = Reader(settings)
    middle = sorted(median(run.samples_ns) / 1e6 for run in [*runs, *more])
    expected = pytest.approx((middle[1] + middle[2]) / 2)
    found = measured_estimate(load_evidence(reader), [_cell("bert-base")])
    assert found is not None
    assert found.latency_ms.p50 == expected
    assert [sample.latency_ms for sample in load_training_set(reader).measured] == [expected]
    assert [row["latency_p50_ms"] for row in reader.rows("SELECT latency_p50_ms FROM compat_matrix")] == [expected]


def test_few_samples_claim_only_the_level_they_have(tmp_path: Path) -> None:
    evidence = _evidence(tmp_path, [result(BERT, "cpu", 1, samples=7), verified(BERT, "cpu", 1)])
    found = measured_estimate(evidence, [_cell("bert-base")])
    assert found is not None
    assert found.latency_ms.level == pytest.approx(6 / 8)


def test_one_imported_mean_has_no_limits(tmp_path: Path) -> None:
    evidence = _evidence(tmp_path, [result(BERT, "cpu", 1, provenance="imported")])
    found = measured_estimate(evidence, [_cell("bert-base")])
    assert found is not None
    assert (found.latency_ms.low, found.latency_ms.high, found.latency_ms.level) == (None, None, None)


def test_claimed_extremes_are_limits(tmp_path: Path) -> None:
    claim: dict[str, Any] = {"latency_mean_ms": 50.0, "latency_min_ms": 45.0, "latency_max_ms": 60.0, "iterations": 9}
    evidence = _evidence(tmp_path, [result(BERT, "cpu", 1, provenance="imported", **claim)])
    found = measured_estimate(evidence, [_cell("bert-base")])
    assert found is not None
    latency = found.latency_ms
    assert (latency.p50, latency.low, latency.high, latency.level) == (50.0, 45.0, 60.0, 0.8)


@pytest.mark.slow
def test_the_newest_fingerprint_replaces_the_older_and_measured_replaces_imported(tmp_path: Path) -> None:
    old = result(BERT, "cpu", 1, fingerprint="old driver", scale=3.0)
    evidence = _evidence(
        tmp_path, [result(BERT, "cpu", 1, provenance="imported", scale=9.0), old, verified(BERT, "cpu", 1)]
    )
    settings = world(tmp_path, [result(BERT, "cpu", 1), result(BERT, "cpu", 1, provenance="imported", scale=9.0)])
    before, after = evidence, load_evidence(Reader(settings))
    cell = _cell("bert-base")
    assert before.summaries[cell].latency_ms.p50 == pytest.approx(3 * latency_of(BERT, "cpu", 1), rel=0.05)
    assert after.summaries[cell].latency_ms.p50 == pytest.approx(latency_of(BERT, "cpu", 1), rel=0.05)


def test_another_length_is_another_cell(tmp_path: Path) -> None:
    evidence = _evidence(tmp_path, [result(BERT, "cpu", 1), verified(BERT, "cpu", 1)])
    assert measured_estimate(evidence, [_cell("bert-base", length=128)]) is not None
    assert measured_estimate(evidence, [_cell("bert-base", length=64)]) is None
    assert measured_estimate(evidence, [_cell("bert-base", length=None)]) is None


def test_outputs_that_nobody_verified_are_no_evidence(tmp_path: Path) -> None:
    assert _evidence(tmp_path, [result(BERT, "cpu", 1)]).summaries == {}


def test_wrong_outputs_are_no_evidence(tmp_path: Path) -> None:
    evidence = _evidence(
        tmp_path,
        [
            result(BERT, "cpu", 1),
            verified(BERT, "cpu", 1, passed=False),
            result(BERT, "cpu", 4),
            verified(BERT, "cpu", 4),
        ],
    )
    assert [cell.batch_size for cell in evidence.summaries] == [4]


def test_a_neighbour_on_another_target_is_scaled_by_the_models_both_ran(tmp_path: Path) -> None:
    payloads: list[Payload] = []
    for seed, model in enumerate(MODELS[:6]):
        # On this world's openvino every model takes 0.4 of the time, give or take a little.
        factor = 0.4 * math.exp(random.Random(seed).gauss(0, 0.05))
        payloads += [result(model, "cpu", 1), verified(model, "cpu", 1)]
        if model is not VIT:
            time_ms = latency_of(model, "cpu", 1) * factor
            payloads += [
                result(model, "openvino", 1, samples_ns=(int(time_ms * 1e6),) * 20),
                verified(model, "openvino", 1),
            ]
    evidence = _evidence(tmp_path, payloads)
    with fast_path_only(), pytest.raises(SlowPathRequired):
        scaled_estimate(evidence, _cell("vit-base", "openvino", length=None))
    warm_up(evidence)
    with fast_path_only():
        found = scaled_estimate(evidence, _cell("vit-base", "openvino", length=None))
    assert found is not None
    assert found.provenance == "scaled"
    truth = 0.4 * latency_of(VIT, "cpu", 1)
    latency = found.latency_ms
    assert latency.low is not None
    assert latency.high is not None
    assert latency.level == 0.9
    assert latency.low < truth < latency.high
    assert latency.high / latency.low < 1.9
    assert latency.p50 == pytest.approx(truth, rel=0.1)
    assert "cpu" in found.basis
    assert "5 other models" in found.basis
    assert [str(e) for e in found.event_ids] == [str(e) for e in measured_ids(evidence, "vit-base")]


def measured_ids(evidence: Evidence, model_id: str) -> tuple[str, ...]:
    [pooled] = evidence.by_model[model_id]
    return pooled.event_ids


def test_two_shared_models_scale_nothing(tmp_path: Path) -> None:
    cells = [(m, h) for m in MODELS[2:4] for h in ("cpu", "openvino")] + [(VIT, "cpu")]
    evidence = _evidence(tmp_path, [p for m, h in cells for p in (result(m, h, 1), verified(m, h, 1))])
    assert scaled_estimate(evidence, _cell("vit-base", "openvino", length=None)) is None


def test_figures_scaled_from_those_of_no_precision_have_none(tmp_path: Path) -> None:
    claims = [result(BERT, "cpu", size, provenance="imported", precision=None) for size in (1, 16)]
    settings = world(tmp_path, claims)
    answer = Advisor(settings).predict(PredictQuery(model="bert-base", hardware="cpu", batch_size=7))
    assert (answer.provenance, answer.precision) == ("scaled", None)
    assert any("the figures state no precision" in warning for warning in answer.warnings)


def test_between_measured_batches_the_figures_are_bounded_by_them(tmp_path: Path) -> None:
    cells = [p for batch in (1, 4) for p in (result(BERT, "cpu", batch), verified(BERT, "cpu", batch))]
    evidence = _evidence(tmp_path, [described(BERT), *cells])
    found = scaled_estimate(evidence, _cell("bert-base", batch_size=2))
    one, four = (evidence.summaries[_cell("bert-base", batch_size=b)].latency_ms for b in (1, 4))
    assert found is not None
    assert found.provenance == "scaled"
    assert found.latency_ms.level is None
    assert found.latency_ms.low == one.low
    assert found.latency_ms.high == four.high
    assert one.p50 < found.latency_ms.p50 < four.p50
    assert found.memory_peak_mib is not None
    # Nothing is known beyond the largest batch.
    assert scaled_estimate(evidence, _cell("bert-base", batch_size=8)) is None


def test_a_scaled_figure_is_no_shorter_than_a_smaller_batch_and_no_longer_than_a_larger_one(tmp_path: Path) -> None:
    """The other models take 3 times as long on openvino; of this one openvino measured another batch."""
    payloads: list[Payload] = []
    for model in [BERT, *MODELS[2:6]]:
        slower = (int(3e6 * latency_of(model, "cpu", 4)),) * 20
        payloads += [result(model, "cpu", 4), result(model, "openvino", 4, samples_ns=slower)]
        payloads += [verified(model, hardware, 4) for hardware in ("cpu", "openvino")]
    payloads += [result(VIT, "cpu", 4), verified(VIT, "cpu", 4)]
    vit_ms = latency_of(VIT, "cpu", 4)
    cell = _cell("vit-base", "openvino", batch_size=4, length=None)
    for measured_batch, factor, word in ((1, 5.0, "no less"), (8, 2.0, "no more")):
        other = result(VIT, "openvino", measured_batch, samples_ns=(int(factor * vit_ms * 1e6),) * 20)
        evidence = _evidence(tmp_path / word, [*payloads, other, verified(VIT, "openvino", measured_batch)])
        found = scaled_estimate(evidence, cell)
        assert found is not None
        assert found.latency_ms.p50 == pytest.approx(factor * vit_ms, rel=1e-6)
        assert found.latency_ms.low is not None
        assert found.latency_ms.high is not None
        assert found.latency_ms.low <= 3 * vit_ms * 1.02
        assert found.latency_ms.high >= 3 * vit_ms * 0.98
        assert f"{word} than was measured at batch size {measured_batch}" in found.basis
        bound = evidence.summaries[_cell("vit-base", "openvino", batch_size=measured_batch, length=None)]
        assert set(bound.event_ids) <= set(found.event_ids)


@pytest.mark.parametrize(
    ("backend", "device", "slower", "expected"),
    [
        ("tensorrt", "NVIDIA T4", 0, 3.0),
        ("tensorrt", "NVIDIA V100 SXM2 16GB", 0, 1.0),  # it has no units for int8
        ("tensorrt", "NVIDIA T4", 6, 1.0),  # the runtime emulates int8 in some operators
        ("pytorch", "NVIDIA T4", 0, 1.0),  # it may have waited for its host
    ],
)
def test_no_wider_precision_is_faster_than_a_measured_narrower_one(
    tmp_path: Path, backend: str, device: str, slower: int, expected: float
) -> None:
    place: dict[str, Any] = {"device": device, "device_id": device, "provenance": "imported", "backend": backend}
    both = [
        result(model, "cuda", size, precision=precision, scale=scale, **place)
        for number, model in enumerate(MODELS)
        for size in (1, 2)
        for precision, scale in (("float16", 2.0), ("int8", 3.0 if number < slower else 1.0))
        if model is not BERT
    ]
    alone = result(BERT, "cuda", 1, precision="int8", **(place | {"latency_mean_ms": 3.0}))
    evidence = _evidence(tmp_path, [described(BERT), *both, alone])
    target = Target("cuda", backend, device, device)
    predicted = Estimate("predicted", Interval(p50=1.0, low=0.5, high=2.0, level=0.9), None, (), "learned")
    kept = keep_above_narrower(evidence, CellKey("bert-base", target, "inference", "float16", 1, 128), predicted)
    assert kept.latency_ms.p50 == expected
    assert ("no less than was measured in int8" in kept.basis) == (expected > 1)
    narrower = CellKey("bert-base", target, "inference", "int4", 1, 128)
    assert keep_above_narrower(evidence, narrower, predicted) is predicted


def test_a_figure_scaled_to_another_batch_is_no_shorter_than_a_narrower_precision_took(tmp_path: Path) -> None:
    place: dict[str, Any] = {"device": "NVIDIA T4", "device_id": "t4", "provenance": "imported", "backend": "tensorrt"}
    both = [
        result(model, "cuda", size, precision=precision, scale=scale, **place)
        for model in MODELS
        for size in (1, 2)
        for precision, scale in (("float16", 1.0), ("int8", 0.6))
        if model is not BERT
    ]
    own = [
        result(BERT, "cuda", 2, precision="float16", scale=0.4, **place),
        result(BERT, "cuda", 1, precision="int8", **(place | {"latency_mean_ms": 3.0})),
    ]
    advisor = Advisor(world(tmp_path, [described(BERT), *both, *own]))
    answer = advisor.predict(PredictQuery(model="bert-base", hardware="t4", precision="float16", sequence_length=128))
    assert answer.provenance == "scaled"
    assert answer.latency_ms.p50 == 3.0


def test_a_larger_batch_that_was_faster_bounds_nothing_and_is_named(tmp_path: Path) -> None:
    slow = (int(9e6 * latency_of(BERT, "cpu", 8)),) * 20
    cells = [result(BERT, "cpu", 1, samples_ns=slow), verified(BERT, "cpu", 1)]
    cells += [result(BERT, "cpu", 8), verified(BERT, "cpu", 8)]
    found = scaled_estimate(_evidence(tmp_path, [described(BERT), *cells]), _cell("bert-base", batch_size=2))
    assert found is not None
    assert "one of the two was disturbed" in found.why[0]
    assert "no less" not in found.basis


log_ratios = st.lists(st.floats(-3, 3), min_size=3, max_size=12)


@given(log_ratios)
def test_the_ratio_lies_within_what_was_seen(logs: list[float]) -> None:
    ratio = pooled_ratio([(str(i), value) for i, value in enumerate(logs)])
    assert ratio is not None
    assert ratio.models == len(logs)
    assert min(logs) - 1e-9 <= ratio.mean <= max(logs) + 1e-9
    assert ratio.half_width >= 0


@given(st.permutations([(str(i % 7), math.sin(i) * 10 ** (i % 5 - 3)) for i in range(20)]))
def test_the_order_of_rows_changes_no_digit_of_a_ratio(pairs: list[tuple[str, float]]) -> None:
    assert pooled_ratio(pairs) == pooled_ratio(sorted(pairs))


@given(log_ratios, st.integers(2, 5))
def test_a_model_measured_often_counts_once(logs: list[float], times: int) -> None:
    once = pooled_ratio([(str(i), value) for i, value in enumerate(logs)])
    often = pooled_ratio([(str(i), value) for i, value in enumerate(logs) for _ in range(times if i == 0 else 1)])
    assert once is not None
    assert often is not None
    assert often.models == once.models
    assert often.mean == pytest.approx(once.mean, abs=1e-9)


def test_the_ratios_interval_holds_the_next_model_as_often_as_it_says() -> None:
    """The scatter itself is drawn from the prior: 4 models' worth of 0.2, by a scaled inverse chi-square."""
    rng = random.Random(3)
    held, rounds = 0, 1500
    for _ in range(rounds):
        std = 0.2 * math.sqrt(4 / rng.gammavariate(2, 2))
        ratio = pooled_ratio([(str(i), rng.gauss(0.5, std)) for i in range(4)])
        assert ratio is not None
        held += abs(rng.gauss(0.5, std) - ratio.mean) <= ratio.half_width
    assert 0.875 <= held / rounds <= 0.925


def test_three_ratios_that_happen_to_agree_are_not_taken_for_sure() -> None:
    lucky = pooled_ratio([("a", 0.5), ("b", 0.5), ("c", 0.5)])
    assert lucky is not None
    assert lucky.half_width > 0.2


@pytest.mark.parametrize("shared", [0.0, 0.5, 1.0])
def test_the_interval_of_several_neighbors_holds_the_truth_at_least_as_often_as_it_says(shared: float) -> None:
    """`shared` is how alike the model's deviations from the others are in all neighbors."""
    rng = random.Random(5)
    held = 0
    rounds = 800
    for _ in range(rounds):
        own = rng.gauss(0, 0.2)
        intervals = []
        for _ in range(8):
            ratio = pooled_ratio([(str(i), rng.gauss(0, 0.2)) for i in range(4)])
            assert ratio is not None
            # The truth is 1; the source deviates from what other models show.
            middle = ratio.mean + math.sqrt(shared) * own + math.sqrt(1 - shared) * rng.gauss(0, 0.2)
            low, high = (math.exp(middle + sign * ratio.half_width) for sign in (-1, 1))
            intervals.append(Interval(p50=math.exp(middle), low=low, high=high, level=0.9))
        interval = combine_intervals(intervals)
        assert interval.low is not None
        assert interval.high is not None
        held += interval.low <= 1 <= interval.high
    assert held / rounds >= 0.87
