"""Estimates of the learned predictor for cells without a measurement, where it supports one."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from accel_platform.hardware.catalog import DeviceSpec
from accel_platform.table_io.values import rounded
from accel_platform.workloads.kv_cache import Decoder
from predictor.advisor import scaling
from predictor.advisor.candidates import Candidate
from predictor.advisor.resolved_query import DEFAULT_PRECISION, ResolvedQuery
from predictor.advisor.scaling import Abstention, Estimate
from predictor.advisor.serving_state import ServingState
from predictor.calibration.cross_validation import Regime
from predictor.calibration.predictor import Prediction, Predictor
from predictor.data.evidence import CellSummary, Evidence, Target
from predictor.data.fast_path import require_slow_path
from predictor.data.samples import Sample, Setup, Workload, find_published_decoder, make_sample
from predictor.data.traced_models import lookup_decoder
from predictor.models.explanations import Contribution
from predictor.operators.predictor import shipped_predictor as shipped_operator_predictor
from predictor.processors.predictor import shipped_predictor as shipped_processor_predictor
from predictor.schemas.responses import ExclusionCause, Neighbour

MAX_RISK = 0.5
"""Probability of a failure from which hardware is left out; from a fifth of it there is a warning."""
_MAX_NEIGHBORS = 3
_MAX_REASONS = 5
_MIN_LOG_FACTOR = 0.02
"""Smallest absolute log factor of a contribution that counts as a reason."""

_UNSEEN_DEVICES = frozenset({Regime.UNSEEN_DEVICE, Regime.UNSEEN_BOTH})
_FEW_SHOT = frozenset({Regime.FEW_SHOT, Regime.FEW_SHOT_UNSEEN_FAMILY})

Cell = tuple[ResolvedQuery, Candidate]


def predict_all(state: ServingState, cells: Sequence[Cell]) -> list[Estimate | Abstention]:
    """Return an estimate or the reason for none for each query and candidate, in their order.

    The predictor is called once for all of them.
    """
    predictor = state.predictor
    if predictor is None:
        return [Abstention("unsupported", f"not measured, and {state.no_predictor}") for _ in cells]
    samples = list(_samples(state, predictor, cells))
    complete = [sample for sample in samples if isinstance(sample, Sample)]
    predictions = iter(predictor.predict(complete, explain=True) if complete else [])
    return [
        Abstention("unsupported", f"not measured, and {sample}")
        if isinstance(sample, str)
        else _estimate(state.evidence, query, candidate, sample, next(predictions))
        for sample, (query, candidate) in zip(samples, cells, strict=True)
    ]


def _samples(state: ServingState, predictor: Predictor, cells: Sequence[Cell]) -> Iterator[Sample | str]:
    """Yield the sample of each cell, or the reason why it has none or the predictor never supports one like it."""
    last_query: ResolvedQuery | None = None
    first: Sample | str = ""
    for query, candidate in cells:
        sample: Sample | str | None = None
        if query is not last_query:
            # Only the first candidate is tried, because a query without a sample has none on any device.
            last_query = query
            sample = first = queried_sample(state.evidence, query, candidate)
        if isinstance(first, str):
            yield first
            continue
        kind = candidate.target, first.precision, first.mode, first.counted, first.reads
        reason = None if candidate.own else state.unsupported.get(kind)
        if reason is not None:
            yield reason
            continue
        sample = sample or queried_sample(state.evidence, query, candidate)
        if (
            isinstance(sample, Sample)
            and not candidate.own
            and (reason := predictor.unsupported_reason(sample)) is not None
        ):
            state.unsupported[kind] = reason
        yield sample


def warm_up(state: ServingState) -> None:
    """Compute in advance what first queries would wait for. It takes seconds and changes no answer."""
    evidence, predictor = state.evidence, state.predictor
    shipped_operator_predictor()
    shipped_processor_predictor()
    scaling.warm_up(evidence)
    if predictor is None:
        return
    state.known_model("")
    places: set[Target | str] = {*evidence.by_target, *(target.hardware for target in evidence.by_target)}
    for mode, model in predictor.modes.items():
        model.latency_model.warm_up()
        for place in places:
            _cells_by_work(evidence, place, mode)


def queried_sample(evidence: Evidence, query: ResolvedQuery, candidate: Candidate) -> Sample | str:
    """Return the predictor's input for a query, or the reason why there is none."""
    workload = Workload(
        model=query.model,
        family=query.family,
        mode=query.mode,
        batch_size=query.batch_size,
        size=query.size,
        precision=query.precisions[0],
        cost=query.cost,
        output_tokens=query.output_tokens,
        decoder=_decoder(evidence, query) if query.mode == "generation" else None,
    )
    return make_sample(workload, Setup(candidate.spec, candidate.target.hardware, candidate.target.backend))


def _decoder(evidence: Evidence, query: ResolvedQuery) -> Decoder | None:
    """Return the shape of the model's decoder, as in the training files if they have it, because it is compared."""
    subject = query.subject
    if subject.config is not None:
        return subject.decoder
    return find_published_decoder(query.model) or lookup_decoder(subject.model_id, subject.spec, evidence.models)


def device_caution(regime: Regime, spec: DeviceSpec) -> str | None:
    """Return what stands for a device that was not measured, or hardly; None for one that was."""
    if regime in _UNSEEN_DEVICES:
        return "nothing was measured on the device, its spec sheet stands for it."
    if regime not in _FEW_SHOT:
        return None
    if spec.peak_fp32_tflops is None and spec.bandwidth_gb_s is None:
        return "the device was hardly measured, and its rates are not known: a few figures stand for it."
    return "the device was hardly measured, its spec sheet and a few figures stand for it."


def _estimate(
    evidence: Evidence, query: ResolvedQuery, candidate: Candidate, sample: Sample, prediction: Prediction
) -> Estimate | Abstention:
    target = candidate.target
    failure, risk = max(prediction.risks.items(), key=lambda item: item[1], default=("", 0.0))
    if risk >= MAX_RISK:
        cause: ExclusionCause = "does_not_fit" if failure == "out_of_memory" else "predicted_failure"
        reason = f"{_failure_phrase(failure)} with a probability of {risk:.0%}, by what failed and what did not"
        return Abstention(cause, reason)
    if not prediction.supported or prediction.latency_ms is None:
        return Abstention("unsupported", f"not measured, and {prediction.reason}")
    cautions = []
    if prediction.extrapolation_factor > 1:
        cautions.append(f"{prediction.extrapolation_factor:.1f} times beyond anything learned from.")
    if (caution := device_caution(prediction.regime, candidate.spec)) is not None:
        cautions.append(caution)
    if risk >= MAX_RISK / 5:
        cautions.append(f"{_failure_phrase(failure)} with a probability of {risk:.0%}.")
    neighbors = nearest_neighbors(evidence, query, target)
    reasons = [c for c in prediction.contributions[:_MAX_REASONS] if abs(math.log(c.factor)) > _MIN_LOG_FACTOR]
    return Estimate(
        provenance="predicted",
        latency_ms=prediction.latency_ms,
        memory_peak_mib=prediction.memory_peak_mib,
        event_ids=tuple(n.event_id for n in neighbors),
        basis=prediction.reason,
        cautions=tuple(cautions),
        why=tuple(map(_describe_contribution, reasons)),
        neighbours=neighbors,
        sample=sample,
    )


def _failure_phrase(failure: str) -> str:
    return "it runs out of memory" if failure == "out_of_memory" else f"it fails ({failure.replace('_', ' ')})"


def _describe_contribution(contribution: Contribution) -> str:
    """Return text like `device (NVIDIA L4): 2.1 times slower than typical`."""
    factor = contribution.factor
    times = f"{rounded(factor)} times slower" if factor >= 1 else f"{rounded(1 / factor)} times faster"
    return f"{contribution.name} ({contribution.value}): {times}"


@dataclass(frozen=True)
class _SortedCells:
    """Measured cells in the order of their work per batch."""

    log_flops: list[float]
    neighbors: list[Neighbour]


def nearest_neighbors(evidence: Evidence, query: ResolvedQuery, target: Target) -> tuple[Neighbour, ...]:
    """Return the measured cells on a target whose work is closest to the query's, in the same precision.

    Where the target has none, those on any target with its hardware name.
    """
    if query.cost is None or query.cost.flops <= 0:
        return ()
    cells = None
    if target in evidence.by_target:
        cells = _cells_by_work(evidence, target, query.mode).get(query.precision)
    if cells is None:
        cells = _cells_by_work(evidence, target.hardware, query.mode).get(query.precision)
    if cells is None:
        return ()
    work = math.log(query.cost.flops * query.batch_size)
    middle = bisect_left(cells.log_flops, work)
    around = range(max(0, middle - _MAX_NEIGHBORS), min(len(cells.log_flops), middle + _MAX_NEIGHBORS))
    closest = sorted(around, key=lambda i: (abs(cells.log_flops[i] - work), cells.neighbors[i].event_id))
    return tuple(cells.neighbors[i] for i in closest[:_MAX_NEIGHBORS])


def _cells_by_work(evidence: Evidence, place: Target | str, mode: str) -> dict[str, _SortedCells]:
    return evidence.memoize(("work", place, mode), partial(_sort_by_work, evidence, place, mode))


def _sort_by_work(evidence: Evidence, place: Target | str, mode: str) -> dict[str, _SortedCells]:
    """Return the measured cells of each precision; figures that state none count as float32."""
    require_slow_path()
    if isinstance(place, Target):
        cells = evidence.by_target[place]
    else:
        cells = [cell for target, found in evidence.by_target.items() if target.hardware == place for cell in found]
    by_precision: dict[str, list[tuple[float, str, CellSummary]]] = defaultdict(list)
    for summary in cells:
        row = evidence.models.get(summary.cell.model_id)
        if summary.cell.mode == mode and row is not None and row["flops_per_item"]:
            work = math.log(row["flops_per_item"] * summary.cell.batch_size)
            by_precision[summary.cell.precision or DEFAULT_PRECISION].append((work, summary.event_ids[0], summary))
    return {precision: _sorted_cells(sorted(found, key=lambda e: e[:2])) for precision, found in by_precision.items()}


def _sorted_cells(entries: Sequence[tuple[float, str, CellSummary]]) -> _SortedCells:
    neighbors = [
        Neighbour(
            event_id=event_id,
            model=summary.cell.model_id,
            hardware=summary.cell.target.hardware,
            device=summary.cell.target.device,
            batch_size=summary.cell.batch_size,
            sequence_length=summary.cell.sequence_length,
            latency_ms=summary.latency_ms.p50,
        )
        for _, event_id, summary in entries
    ]
    return _SortedCells([work for work, _, _ in entries], neighbors)
