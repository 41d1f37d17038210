"""The best supported estimate for each query and candidate: measured beats scaled beats predicted."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from accel_platform.backends.registry import RUNTIMES
from accel_platform.bench.plan.support import runs_loops, supports_mode
from accel_platform.precisions import PRECISIONS
from accel_platform.table_io.values import rounded
from predictor.advisor.candidates import Candidate
from predictor.advisor.model_estimates import Cell, predict_all, queried_sample
from predictor.advisor.operator_estimates import operator_estimate, predict_by_operators
from predictor.advisor.processor_estimates import predict_on_processor, processor_estimate
from predictor.advisor.resolved_query import DEFAULT_PRECISION, ResolvedQuery
from predictor.advisor.scaling import (
    Abstention,
    Estimate,
    keep_above_narrower,
    keep_between_measured,
    measured_estimate,
    scaled_estimate,
)
from predictor.advisor.serving_state import ServingState
from predictor.calibration.predictor import MAX_INTERVAL_RATIO
from predictor.data.evidence import CellKey, Evidence, Target
from predictor.data.model_resolution import ResolvedModel, resolve_operators
from predictor.data.samples import MAX_SPEED_LIMIT_RATIO, speed_limit_ratio
from predictor.data.traced_models import InputSizes
from predictor.operators.predictor import OperatorPrediction
from predictor.processors.predictor import ProcessorPrediction
from predictor.schemas.responses import INTERVAL_LEVEL, Compatibility

RatesPrediction = OperatorPrediction | ProcessorPrediction
"""Prediction from a device's published rates: of a GPU by its operators, of a processor by its roofline."""
_WHOLE_TENSORS = ("gpu", "cpu")
"""Kinds of silicon whose runtimes hold each operator's whole output; NPU compilers stream through several operators."""
_SINCE_AMPERE = ("bfloat16", "tf32")
"""Precisions for which NVIDIA's GPUs have units since Ampere."""
_LEAST_MEASURED = 10
"""Fewest cells of a target from which the learned predictor knows it, as its correction of few figures is designed."""
_MAX_PREDICTED_SPEED_LIMIT_RATIO = 1.05
"""Speed-limit ratio above which a prediction is impossible, because its precision is known. Published rates are less
exact than smaller excesses."""
_SCARCE_MEMORY_SHARE = 0.9
"""Share of a device's memory above which an answer warns. Serving engines take no more than that by default, either."""
_UNKNOWN = Compatibility(state="unknown"), None
_WAITED = "its operators explain less time, so it seems to have waited for its host; another host may take less."


def estimate_all(state: ServingState, cells: Sequence[Cell]) -> list[Estimate | Abstention]:
    """Return for each query and candidate, in order, an estimate or the reason for none.

    Each predictor is called once, for all cells that have no estimate from measurements.
    """
    found: list[Estimate | Abstention | None] = [_estimate_from_evidence(state.evidence, *cell) for cell in cells]
    _warn_of_slow_hosts(cells, found)
    unsettled = [i for i, estimate in enumerate(found) if estimate is None]
    open_cells = [cells[i] for i in unsettled]
    predictions = zip(unsettled, predict_all(state, open_cells), predict_by_operators(open_cells), strict=True)
    for i, estimate, by_operators in predictions:
        query, candidate = cells[i]
        if lacks_units(query, candidate):
            reason = f"{candidate.spec.name} has no {query.precision}: its runtime would only emulate it"
            found[i] = Abstention("no_runtime", reason)
        elif isinstance(estimate, Estimate):
            learned = _check_precision(state.evidence, query, candidate, estimate)
            by_rates = _predict_by_rates(state.evidence, cells[i], by_operators, estimate)
            found[i] = _choose_prediction(learned, by_rates, state.evidence, cells[i])
        elif (unsupported := _unsupported_runtime(state.evidence, query, candidate)) is not None:
            found[i] = unsupported
        else:
            by_rates = _predict_by_rates(state.evidence, cells[i], by_operators, estimate)
            found[i] = _fall_back_to_rates(estimate, by_rates, state.evidence, cells[i])
        found[i] = _keep_to_measurements(state.evidence, cells[i], found[i], by_operators)
    found = [_keep_above_narrower(state.evidence, cell, estimate) for cell, estimate in zip(cells, found, strict=True)]
    checked = [
        _check_plausible(state.evidence, cell, _warn_of_scarce_memory(cell, estimate))
        for cell, estimate in zip(cells, found, strict=True)
        if estimate is not None
    ]
    return [_widen_to_published(state.evidence, *cell) for cell in zip(cells, checked, strict=True)]


def _widen_to_published(evidence: Evidence, cell: Cell, estimate: Estimate | Abstention) -> Estimate | Abstention:
    """Return an imported figure with limits at least as wide as published figures of one configuration scatter."""
    if isinstance(estimate, Abstention) or estimate.own or estimate.provenance != "measured":
        return estimate
    latency, backend = estimate.latency_ms, cell[1].target.backend
    scatter = evidence.published.log_factor(backend)
    if scatter is None or (latency.level or 0.0) >= INTERVAL_LEVEL:
        return estimate
    factor = math.exp(scatter)
    limits = {
        "low": min(latency.p50 / factor, latency.low or math.inf),
        "high": max(latency.p50 * factor, latency.high or 0.0),
        "level": INTERVAL_LEVEL,
    }
    why = f"{INTERVAL_LEVEL:.0%} of published figures lie within x {rounded(factor)} of others of their configuration"
    return replace(estimate, latency_ms=latency.model_copy(update=limits), why=(*estimate.why, why))


def _warn_of_slow_hosts(cells: Sequence[Cell], found: list[Estimate | Abstention | None]) -> None:
    """Add a caution to estimates from measurements on GPUs that seem to have waited for their host."""
    known = [i for i, estimate in enumerate(found) if isinstance(estimate, Estimate)]
    for i, prediction in zip(known, predict_by_operators([cells[i] for i in known]), strict=True):
        estimate = found[i]
        assert isinstance(estimate, Estimate)
        found[i] = _with_wait(estimate, prediction)


def _with_wait(estimate: Estimate, by_operators: OperatorPrediction | Abstention) -> Estimate:
    """Return the estimate, with a caution if it takes longer than the GPU itself is predicted to at most."""
    if isinstance(by_operators, Abstention) or estimate.latency_ms.p50 <= by_operators.device_high_ms:
        return estimate
    return replace(estimate, cautions=(*estimate.cautions, _WAITED))


def _keep_to_measurements(
    evidence: Evidence,
    cell: Cell,
    predicted: Estimate | Abstention | None,
    by_operators: OperatorPrediction | Abstention,
) -> Estimate | Abstention | None:
    """Return a prediction for the users' own device no shorter than less work took there, and no longer than more.

    Others' measurements on such a device took their host's time, and tell less of hosts in general than a prediction.
    """
    query, candidate = cell
    measured = candidate.target in evidence.by_target and query.subject.model_id in evidence.by_model
    if not measured or not isinstance(predicted, Estimate) or evidence.where(candidate.target) == "elsewhere":
        return predicted
    kept = predicted
    for key in query.cells(candidate.target):
        kept = keep_between_measured(evidence, key, kept)
    return predicted if kept is predicted else _with_wait(kept, by_operators)


def _keep_above_narrower(
    evidence: Evidence, cell: Cell, estimate: Estimate | Abstention | None
) -> Estimate | Abstention | None:
    """Return a scaled or predicted figure no shorter than a narrower precision was measured there."""
    query, candidate = cell
    if not isinstance(estimate, Estimate) or estimate.provenance == "measured":
        return estimate
    if query.subject.model_id not in evidence.by_model or candidate.target not in evidence.by_target:
        return estimate
    for key in query.cells(candidate.target):
        estimate = keep_above_narrower(evidence, key, estimate)
    return estimate


def _predict_by_rates(
    evidence: Evidence, cell: Cell, by_operators: OperatorPrediction | Abstention, learned: Estimate | Abstention
) -> RatesPrediction | Abstention:
    """Return the prediction from the device's published rates: of a processor its roofline's, else its operators'.

    A learned estimate on the users' own processor is not compared, because what they measured there tells more.
    """
    target, spec = cell[1].target, cell[1].spec
    if spec.kind != "cpu" or (isinstance(learned, Estimate) and evidence.where(target) != "elsewhere"):
        return by_operators
    return predict_on_processor(evidence, cell)


def _choose_prediction(
    learned: Estimate | Abstention, by_rates: RatesPrediction | Abstention, evidence: Evidence, cell: Cell
) -> Estimate | Abstention:
    """Return the learned estimate or that of the device's published rates, whichever is better supported.

    On a processor the rates are chosen if their interval is narrower at no lower level. On a GPU the learned estimate
    is chosen if all of these hold:

    * the target was measured in this precision, by `_LEAST_MEASURED` cells with the same kind of input (tokens or not);
    * its interval is no wider, at a level that is no lower;
    * the operator predictor finds no waiting for the host, of which the learned one knows nothing.
    """
    if isinstance(learned, Abstention) or isinstance(by_rates, Abstention):
        return learned
    query, candidate = cell
    ours, theirs = learned.latency_ms, by_rates.latency_ms
    if isinstance(by_rates, ProcessorPrediction):
        keep = theirs.high_over_low >= ours.high_over_low or (theirs.level or 0.0) < (ours.level or 0.0)
    else:
        kind = (query.precision, query.sequence_length is None)
        no_lower_level = (ours.level or 0.0) >= (theirs.level or 0.0)
        no_wider = ours.high_over_low <= theirs.high_over_low
        is_measured = kind in _measured_kinds(evidence, candidate.target)
        keep = is_measured and no_lower_level and no_wider and not by_rates.host_bound
    if keep:
        return learned
    estimate = _estimate_by_rates(evidence, cell, by_rates)
    return replace(estimate, memory_peak_mib=learned.memory_peak_mib, sample=learned.sample)


def _estimate_by_rates(evidence: Evidence, cell: Cell, by_rates: RatesPrediction) -> Estimate:
    if isinstance(by_rates, ProcessorPrediction):
        return processor_estimate(evidence, cell, by_rates)
    return operator_estimate(evidence, *cell, by_rates)


def _measured_kinds(evidence: Evidence, target: Target) -> set[tuple[str | None, bool]]:
    """Return in which precisions, and with or without a sequence length, enough cells were measured on a target."""

    def count() -> set[tuple[str | None, bool]]:
        kinds = Counter((s.cell.precision, s.cell.sequence_length is None) for s in evidence.by_target.get(target, ()))
        return {kind for kind, cells in kinds.items() if cells >= _LEAST_MEASURED}

    return evidence.memoize(("measured kinds", target), count)


def _fall_back_to_rates(
    abstention: Abstention, by_rates: RatesPrediction | Abstention, evidence: Evidence, cell: Cell
) -> Estimate | Abstention:
    """Return the estimate of the device's published rates where the learned predictor has none, else both reasons."""
    if abstention.cause != "unsupported":
        return abstention
    if isinstance(by_rates, Abstention):
        return replace(abstention, reason=f"{abstention.reason}; {by_rates.reason}")
    return _estimate_by_rates(evidence, cell, by_rates)


def _check_plausible(evidence: Evidence, cell: Cell, estimate: Estimate | Abstention) -> Estimate | Abstention:
    """Return the estimate, or an abstention if it is faster than its device can be.

    The platform's own measurements pass, because their clocks are trusted.
    """
    if isinstance(estimate, Abstention) or estimate.own:
        return estimate
    query, candidate = cell
    sample = estimate.sample or queried_sample(evidence, in_answering_precision(query, estimate), candidate)
    if isinstance(sample, str):
        return estimate
    latency = estimate.latency_ms
    # The low limit of imported figures counts, because every one of those pooled has to be possible.
    least_ms = latency.low if estimate.provenance == "measured" and latency.low is not None else latency.p50
    times = speed_limit_ratio(sample, least_ms)
    if times <= (_MAX_PREDICTED_SPEED_LIMIT_RATIO if estimate.provenance == "predicted" else MAX_SPEED_LIMIT_RATIO):
        return estimate
    excess = f"{rounded(least_ms)} ms would be {rounded(times, 2)} times faster than its published rates allow"
    return Abstention("unsupported", f"what is {estimate.provenance} there cannot be: {excess}")


def in_answering_precision(query: ResolvedQuery, estimate: Estimate) -> ResolvedQuery:
    """Return the query in the precision of its estimate; figures that state none have the one assumed for them."""
    return replace(query, precisions=(None,)) if estimate.unstated else query


def matrix_verdict(evidence: Evidence, query: ResolvedQuery, target: Target) -> tuple[Compatibility, str | None]:
    """Return the compatibility matrix's verdict on the model there, and the reason where it failed."""
    key = (query.subject.model_id, target.hardware, target.device_id, query.mode)
    return evidence.compatibility.get(key, _UNKNOWN)


def _estimate_from_evidence(
    evidence: Evidence, query: ResolvedQuery, candidate: Candidate
) -> Estimate | Abstention | None:
    """Return the estimate from measurements, or why there can be none; None if only a predictor can tell."""
    if candidate.target not in evidence.by_target and not candidate.here:
        return memory_abstention(query, candidate)
    verdict, reason = matrix_verdict(evidence, query, candidate.target)
    if verdict.state == "failed":
        return Abstention("measured_failure", f"does not run there: {reason}")
    cells = query.cells(candidate.target) if evidence.knows(query.subject.model_id) else []
    found = measured_estimate(evidence, cells) or _rule_out(evidence, query, candidate, cells)
    if found is not None or query.subject.model_id not in evidence.by_model:
        return found
    stated = evidence.memoize(
        ("stated precisions", query.subject.model_id),
        lambda: {summary.cell.precision for summary in evidence.by_model[query.subject.model_id]},
    )
    best = min(
        filter(None, (scaled_estimate(evidence, cell) for cell in cells if cell.precision in stated)),
        key=lambda e: e.latency_ms.high_over_low,
        default=None,
    )
    if best is None or best.latency_ms.high_over_low > MAX_INTERVAL_RATIO:
        return None
    # Ratios of models that waited for their host do not hold for a model that keeps the device busy.
    sample = queried_sample(evidence, in_answering_precision(query, best), candidate)
    impossible = not isinstance(sample, str) and speed_limit_ratio(sample, best.latency_ms.p50) > 1
    return None if impossible else best


def _rule_out(
    evidence: Evidence, query: ResolvedQuery, candidate: Candidate, cells: Sequence[CellKey]
) -> Abstention | None:
    """Return why nothing can be estimated without a measurement; None if something can."""
    target = candidate.target
    failure = next((evidence.failures[cell] for cell in cells if cell in evidence.failures), None)
    if failure is not None:
        reason = f"this configuration failed there: {failure.reason} (event {failure.event_id})"
        return Abstention("measured_failure", reason)
    device = evidence.by_device.get(target)
    if device is not None and not device.available:
        place = "here" if device.host_id == evidence.this_host else f"on {device.host_id or 'another host'}"
        return Abstention("unavailable", f"unavailable {place}: {device.reason}")
    if device is not None and device.emulated:
        return Abstention("unavailable", "an emulated device: its speed tells nothing of the real one")
    if target.device_id is None:
        return Abstention("unsupported", "not measured, and the device is not named")
    return memory_abstention(query, candidate)


def _unsupported_runtime(evidence: Evidence, query: ResolvedQuery, candidate: Candidate) -> Abstention | None:
    """Return why the cell cannot be measured there at all; None if it can."""
    hardware = candidate.target.hardware
    if hardware not in RUNTIMES:
        # Imported files may name hardware that no runtime of the platform drives.
        return Abstention("no_runtime", f"not measured, and no runtime of this platform drives {hardware}")
    if not supports_mode(hardware, query.mode) and RUNTIMES[hardware].backend == candidate.target.backend:
        return Abstention("no_runtime", f"{candidate.target.backend} runs inference only here, not {query.mode}")
    if query.subject.draws_images and not runs_loops(hardware):
        return Abstention("no_runtime", f"{hardware} holds no loop, and images are drawn step by step")
    measured = _measured_in(evidence, query, candidate.target)
    reason = None if measured else _unsupported_precision(query, candidate.target)
    return None if reason is None else Abstention("no_runtime", reason)


def lacks_units(query: ResolvedQuery, candidate: Candidate) -> bool:
    """Return whether the platform's runtime refuses the precision there, because the device has no units for it."""
    if query.precision not in _SINCE_AMPERE or not candidate.spec.before_ampere:
        return False
    runtime = RUNTIMES.get(candidate.target.hardware)
    return runtime is not None and runtime.backend == candidate.target.backend


def _unsupported_precision(query: ResolvedQuery, target: Target) -> str | None:
    """Return why the platform's runtime lacks the precision there; None where it has it, and for other runtimes."""
    runtime = RUNTIMES.get(target.hardware)
    if runtime is None or runtime.backend != target.backend:
        return None
    return runtime.in_mode(query.mode).precision_problem(query.precision)


def _measured_in(evidence: Evidence, query: ResolvedQuery, target: Target) -> bool:
    """Return whether results in this precision with the target's backend exist, even if the platform lacks it (amp)."""
    measured = evidence.memoize(
        "precisions", lambda: {(c.target.backend, c.precision or DEFAULT_PRECISION) for c in evidence.summaries}
    )
    return (target.backend, query.precision) in measured


def _check_precision(
    evidence: Evidence, query: ResolvedQuery, candidate: Candidate, estimate: Estimate
) -> Estimate | Abstention:
    """Return the estimate, with a warning if its precision was never measured with the backend.

    Return an abstention if the platform's runtime lacks the precision.
    """
    target = candidate.target
    if _measured_in(evidence, query, target):
        return estimate
    reason = _unsupported_precision(query, target)
    if reason is not None:
        return Abstention("no_runtime", reason)
    caution = f"nothing in {query.precision} was measured with {target.backend}, others stand for it."
    return replace(estimate, cautions=(*estimate.cautions, caution))


def memory_abstention(query: ResolvedQuery, candidate: Candidate) -> Abstention | None:
    """Return an abstention if the model certainly exceeds the device's memory; None if it may fit."""
    memory_gib, least = candidate.used_spec.usable_memory_gib, _least_memory(query, candidate)
    if memory_gib is None or least is None or least[0] <= memory_gib:
        return None
    needed_gib, what, batch = least
    return Abstention(
        "does_not_fit",
        f"does not fit in memory: its {what} alone take {rounded(needed_gib)} GiB in {query.precision}{batch}, "
        f"{'a die of ' if candidate.used_spec != candidate.spec else ''}{candidate.target.device} has "
        f"{rounded(memory_gib)} GiB",
    )


def _warn_of_scarce_memory(cell: Cell, estimate: Estimate | Abstention) -> Estimate | Abstention:
    """Return the estimate, with a caution if what the model certainly takes leaves little of the device's memory."""
    query, candidate = cell
    if isinstance(estimate, Abstention) or estimate.provenance == "measured":
        return estimate
    memory_gib, least = candidate.used_spec.usable_memory_gib, _least_memory(query, candidate)
    if memory_gib is None or least is None or least[0] <= _SCARCE_MEMORY_SHARE * memory_gib:
        return estimate
    caution = (
        f"it may run out of memory: its {least[1]} take {rounded(least[0])} of {rounded(memory_gib)} GiB, and driver "
        "and other tensors need room, too."
    )
    return replace(estimate, cautions=(*estimate.cautions, caution))


def _least_memory(query: ResolvedQuery, candidate: Candidate) -> tuple[float, str, str] | None:
    """Return the GiB that the model certainly takes, what takes them, and at which batch if that matters, in words.

    Certain are its weights (in training with their gradients) and the inputs and outputs of its largest operator. None
    if the device's memory or the model's weights are unknown.
    """
    if query.weights_mib is None or candidate.used_spec.usable_memory_gib is None:
        return None
    training = query.mode == "training"
    what = "weights and gradients" if training else "weights"
    weights_gib = query.weights_mib * (2 if training else 1) / 1024
    free_gib = candidate.used_spec.usable_memory_gib - weights_gib
    activations_gib = _least_activations_gib(query, candidate, free_gib) if free_gib >= 0 else 0.0
    if not activations_gib:
        return weights_gib, what, ""
    what += ", and inputs and outputs of its largest operator,"
    return weights_gib + activations_gib, what, f" at batch {query.batch_size:,}"


def _least_activations_gib(query: ResolvedQuery, candidate: Candidate, free_gib: float) -> float:
    """Return a lower bound of the memory besides the weights; 0 where it is unknown or surely below `free_gib`.

    In generation it is unknown, because engines take a batch in parts.
    """
    subject, cost, precision = query.subject, query.cost, PRECISIONS.get(query.precision)
    if query.mode == "generation" or candidate.spec.kind not in _WHOLE_TENSORS or not subject.traceable:
        return 0.0
    if cost is None or precision is None:
        return 0.0
    # Quantizing runtimes may keep activations as narrow as the weights.
    width = min(precision.weight_bytes, precision.activation_bytes)
    # Not traced where it cannot matter, because that takes seconds: one operator reads and writes less than all write.
    if 2 * (cost.written_bytes or 0.0) / 4 * width * query.batch_size <= free_gib * 2**30:
        return 0.0
    numbers = _least_numbers_per_item(subject, query.sequence_length, query.sizes)
    return numbers * query.batch_size * width / 2**30


@lru_cache(maxsize=256)
def _least_numbers_per_item(model: ResolvedModel, sequence_length: int | None, sizes: InputSizes) -> float:
    """Return the numbers per item that the model's largest operator holds; 0 if its operators are unknown."""
    profile = resolve_operators(model, sequence_length, sizes)
    return 0.0 if isinstance(profile, str) else profile.least_numbers_per_item()
