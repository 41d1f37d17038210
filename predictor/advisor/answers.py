"""Answers to resolved queries: results of the candidates, ranked, and those left out with the reason."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace

from pydantic_core import to_json

from accel_platform.backends.registry import RUNTIMES
from accel_platform.workloads.model_catalog import ENCODER_DECODERS, known_models
from predictor.advisor.answer_cache import CandidateResult
from predictor.advisor.bound import generation_bound, roofline_bound
from predictor.advisor.candidates import AbsentDevice, Candidate
from predictor.advisor.device_labels import place_label, shared_devices
from predictor.advisor.estimation import (
    estimate_all,
    in_answering_precision,
    lacks_units,
    matrix_verdict,
    memory_abstention,
)
from predictor.advisor.intervals import divide
from predictor.advisor.model_estimates import queried_sample
from predictor.advisor.objectives import (
    Merit,
    assumed_spread,
    batch_spread,
    cost_per_items,
    energy_per_item,
    level_mismatch,
    missing_figure,
    ranking,
    violations,
)
from predictor.advisor.resolved_query import ResolvedQuery
from predictor.advisor.scaling import Abstention, Estimate
from predictor.advisor.serving_state import ServingState
from predictor.advisor.suggestions import nearest_settings, suggest_measurement
from predictor.data.evidence import Evidence, Target
from predictor.data.fast_path import require_slow_path
from predictor.data.model_resolution import ResolvedModel
from predictor.data.traced_models import lookup_decoder
from predictor.schemas.requests import Constraints, Objective
from predictor.schemas.responses import (
    Answer,
    Excluded,
    ExclusionCause,
    Figures,
    Recommendation,
)
from predictor.serving.models import find_served_model

_OTHER_QUERY: dict[ExclusionCause, str] = {
    "constraint": "ask with a wider limit, or for other hardware",
    "does_not_fit": "ask for a device with more memory, in a smaller precision, or for a smaller batch",
}
"""Suggestion for causes that no measurement would remove."""
_OTHER_PRECISION = "ask in float16 or float32, or for a GPU of NVIDIA since Ampere"
_MAX_NAMED = 3
"""Devices that a warning names."""
_MAX_FAST_CANDIDATES = 32
"""Candidates that the fast path estimates: more take tens of milliseconds."""
_MAX_SETTINGS = 3
"""Sentences on other settings."""
_WITHOUT_FIGURE = ("unsupported", "no_runtime")
"""Causes of exclusions that another setting may not have."""
_NO_CONSTRAINTS = Constraints()
_DRIVEN_DEVICES = f"ask for a device that one of these drives: {', '.join(RUNTIMES)}"


def candidate_results(state: ServingState, query: ResolvedQuery) -> list[CandidateResult]:
    """Return the result of each candidate, from the cache where it is there; custom devices are never cached."""
    cached = state.results.get(query)
    new = [c for c in query.candidates if c.own or c.target not in cached]
    if not new:
        return [cached[c.target] for c in query.candidates]
    if len(new) > _MAX_FAST_CANDIDATES:
        require_slow_path()
    estimates = estimate_all(state, [(query, candidate) for candidate in new])
    computed = iter([candidate_result(state.evidence, query, c, e) for c, e in zip(new, estimates, strict=True)])
    results = [next(computed) if c.own or c.target not in cached else cached[c.target] for c in query.candidates]
    state.results.put(query, {c.target: r for c, r in zip(query.candidates, results, strict=True) if not c.own})
    return results


def candidate_result(
    evidence: Evidence, query: ResolvedQuery, candidate: Candidate, estimate: Estimate | Abstention
) -> CandidateResult:
    if isinstance(estimate, Estimate):
        return CandidateResult(figures=_figures(evidence, query, candidate, estimate), cautions=estimate.cautions)
    target = candidate.target
    # Figures of an unnamed device are not reported, because nobody could measure on it.
    named = target.device_id is not None or target not in evidence.by_target
    reported = named and not _lacked_elsewhere(evidence, target)
    return CandidateResult(excluded=_exclusion(evidence, query, candidate, estimate) if reported else None)


def _lacked_elsewhere(evidence: Evidence, target: Target) -> bool:
    """Return whether it is only another host that lacks the hardware, while some host has it."""
    device = evidence.by_device.get(target)
    if device is None or device.available or device.host_id == evidence.this_host:
        return False
    return target.hardware in evidence.memoize("present hardware", lambda: {t.hardware for t in evidence.available})


_UNFILLED = '"recommendations":[],"excluded":[]'
"""Place in the JSON of an answer's frame. No text holds it, because quotes in texts are escaped."""


@dataclass(frozen=True)
class RankedAnswer:
    """Answer before its results are filled in: as values by `answer`, or as JSON by `json`."""

    frame: Answer
    """Answer without recommendations and exclusions."""
    ranked: list[tuple[CandidateResult, int, float | None]]
    """Results with figures, the best first, with their `rank` and `ranked_by`."""
    excluded: list[CandidateResult]

    def answer(self) -> Answer:
        recommendations = [
            Recommendation(**vars(result.figures), rank=rank, ranked_by=ranked_by)
            for result, rank, ranked_by in self.ranked
        ]
        excluded = [result.excluded for result in self.excluded]
        return self.frame.model_copy(update={"recommendations": recommendations, "excluded": excluded})

    def json(self) -> bytes:
        """Return the JSON of `answer()`, from the cached texts of the results."""
        recommendations = ",".join(
            f'{result.json[:-1]},"rank":{rank},"ranked_by":{to_json(ranked_by).decode()}}}'
            for result, rank, ranked_by in self.ranked
        )
        excluded = ",".join(result.json for result in self.excluded)
        filled = f'"recommendations":[{recommendations}],"excluded":[{excluded}]'
        return self.frame.model_dump_json().replace(_UNFILLED, filled, 1).encode()


def rank_results(
    state: ServingState,
    query: ResolvedQuery,
    results: Sequence[CandidateResult],
    objective: Objective = "latency",
    constraints: Constraints | None = None,
    limit: int | None = None,
) -> RankedAnswer:
    """Rank the results of the candidates by the objective, and exclude those that violate a constraint.

    The answer has all own hardware, at most `limit` recommendations elsewhere and exclusions, and counts all.
    """
    evidence, warnings = state.evidence, list(query.warnings)
    spread = batch_spread(evidence)
    remaining, excluded = _apply_constraints(evidence, query, results, constraints, spread)
    excluded = [*(CandidateResult(excluded=_exclude_absent(query, absent)) for absent in query.absent), *excluded]
    merits = _sort_by_merit(remaining, objective, spread)
    ranked = [figures for figures, _, _ in merits]
    shared = shared_devices(ranked)
    warnings += _join_cautions(
        [(figures, caution) for figures, result in remaining for caution in result.cautions], shared
    )
    if len(ranked) > 1:
        missing = [(figures, missing_figure(objective, merit[0])) for figures, _, merit in merits]
        warnings += _join_cautions([(figures, reason) for figures, reason in missing if reason is not None], shared)
        warnings += filter(None, [level_mismatch(objective, ranked), assumed_spread(ranked, spread)])
    if query.open_precision:
        warnings += filter(None, [_usual_precision(query, results)])
    if not ranked and query.mode == "generation" and _is_served(evidence, query.subject):
        command = f"`accel serving {query.subject.model_id}`"
        warnings.append(f"Served by an engine on GPUs of NVIDIA or AMD it is known: {command} answers.")
    if not ranked:
        warnings += filter(None, [measured_parts(evidence, query)])
    warnings += _other_settings(evidence, query, results, {figures.device for figures in ranked})
    # "cuda is unavailable here" is no news where a cuda device of another host can be recommended.
    answered = {figures.hardware for figures in ranked}
    reported = [
        r for r in excluded if r.excluded and (r.excluded.device is not None or r.excluded.hardware not in answered)
    ]
    frame = Answer(
        model=query.subject.model_id,
        batch_size=query.batch_size,
        sequence_length=query.sequence_length,
        output_tokens=query.output_tokens,
        recommendations=[],
        excluded=[],
        recommendations_total=len(merits),
        excluded_by_cause=Counter(r.excluded.cause for r in reported if r.excluded),
        warnings=list(dict.fromkeys(warnings)),
        snapshot_id=evidence.snapshot_id,
        predictor_id=state.predictor_id,
    )
    ranks = _shared_ranks([merit for _, _, merit in merits])
    return RankedAnswer(
        frame,
        [
            (result, rank, merit[0] if math.isfinite(merit[0]) else None)
            for (_, result, merit), rank in _own_and_first(list(zip(merits, ranks, strict=True)), limit)
        ],
        reported if limit is None or len(reported) <= limit else _one_per_reason_first(reported)[:limit],
    )


def _own_and_first(
    ranked: Sequence[tuple[tuple[Figures, CandidateResult, Merit], int]], limit: int | None
) -> list[tuple[tuple[Figures, CandidateResult, Merit], int]]:
    """Return what is of own hardware, and the first ones elsewhere up to the limit."""
    elsewhere = [item[0][0].where == "elsewhere" for item in ranked]
    counts = itertools.accumulate(elsewhere)
    return [
        item
        for item, away, count in zip(ranked, elsewhere, counts, strict=True)
        if not away or limit is None or count <= limit
    ]


def _one_per_reason_first(results: Sequence[CandidateResult]) -> list[CandidateResult]:
    """Return the exclusions so that the first ones tell most: one per reason, what nothing is known of last."""
    seen = Counter[str]()
    ordered: list[tuple[int, bool, bool, CandidateResult]] = []
    for result in results:
        assert result.excluded is not None
        cause, reason = result.excluded.cause, result.excluded.reason
        ordered.append((seen[reason], cause in _WITHOUT_FIGURE, cause != "constraint", result))
        seen[reason] += 1
    return [result for *_, result in sorted(ordered, key=lambda item: item[:3])]


def _is_served(evidence: Evidence, subject: ResolvedModel) -> bool:
    """Return whether `accel serving` answers for the model by its name."""
    if find_served_model(subject.model_id) is not None:
        return True
    if subject.spec is None or subject.spec.architecture in ENCODER_DECODERS:
        return False
    return lookup_decoder(subject.model_id, subject.spec, evidence.models) is not None


def _sort_by_merit(
    remaining: Sequence[tuple[Figures, CandidateResult]], objective: Objective, spread: float | None
) -> list[tuple[Figures, CandidateResult, Merit]]:
    """Return the results with their merits, the best first; `spread` is that of `batch_spread`.

    Of equal ones that of the least energy comes first: GPUs that wait for the host take equally long, and the smallest
    will do.
    """
    merit = ranking(objective, spread)
    merits = [(figures, result, merit(figures)) for figures, result in remaining]

    def order(item: tuple[Figures, CandidateResult, Merit]) -> tuple[float | str, ...]:
        figures, _, merit = item
        joules = figures.energy.j_per_item.p50 if figures.energy else math.inf
        return (*merit, joules, figures.hardware, figures.device_id or figures.device or "")

    merits.sort(key=order)
    return merits


def measured_parts(evidence: Evidence, query: ResolvedQuery) -> str | None:
    """Return a sentence that names parts of the model, such as its encoder, measured on the queried hardware."""
    if query.subject.named_only:
        return None
    prefix, hardware = f"{query.subject.model_id}-", {candidate.target.hardware for candidate in query.candidates}
    # Parts of whisper-large-v3-turbo are none of whisper-large-v3.
    longer = tuple(f"{spec.model_id}-" for spec in known_models() if spec.model_id.startswith(prefix))
    parts = [
        name
        for name, summaries in evidence.by_model.items()
        if name.startswith(prefix)
        and not f"{name}-".startswith(longer)
        and any(summary.cell.target.hardware in hardware for summary in summaries)
    ]
    return (
        f"Results of that hardware name variants or parts of it: ask for {join_first(sorted(parts))}."
        if parts
        else None
    )


def _apply_constraints(
    evidence: Evidence,
    query: ResolvedQuery,
    results: Sequence[CandidateResult],
    constraints: Constraints | None,
    spread: float | None,
) -> tuple[list[tuple[Figures, CandidateResult]], list[CandidateResult]]:
    """Return the results to rank, with their figures, and those that are excluded.

    `spread` is that of `batch_spread`.
    """
    limits = None if constraints == _NO_CONSTRAINTS else constraints
    remaining: list[tuple[Figures, CandidateResult]] = []
    excluded: list[CandidateResult] = []
    for candidate, result in zip(query.candidates, results, strict=True):
        if result.figures is None:
            excluded.append(result)
            continue
        violated = violations(limits, result.figures, candidate.spec, spread) if limits else None
        if violated is None:
            remaining.append((result.figures, result))
        else:
            exclusion = _exclusion(evidence, query, candidate, Abstention("constraint", violated))
            excluded.append(CandidateResult(excluded=exclusion))
    return remaining, excluded


def _exclude_absent(query: ResolvedQuery, absent: AbsentDevice) -> Excluded:
    """Return the exclusion of hardware that a query names and that has no target."""
    suggestion = _DRIVEN_DEVICES
    if absent.cause != "no_runtime":
        suggestion = suggest_measurement(query, absent.hardware, here=False)
    return Excluded(
        hardware=absent.hardware,
        device=absent.device,
        cause=absent.cause,
        reason=absent.reason,
        suggestion=suggestion,
    )


def _shared_ranks(ordered: Sequence[tuple[float, ...]]) -> list[int]:
    """Return the rank of each sorted key, from 1. Equal keys share a rank, and the next one counts all: 1, 1, 3."""
    ranks: list[int] = []
    for i, key in enumerate(ordered):
        ranks.append(ranks[-1] if i and key == ordered[i - 1] else i + 1)
    return ranks


def _other_settings(
    evidence: Evidence, query: ResolvedQuery, results: Sequence[CandidateResult], answered: Set[str | None]
) -> list[str]:
    """Return sentences on devices without an answer where the model was measured otherwise, and on what to ask."""
    unanswered = [
        (candidate, result.excluded)
        for candidate, result in zip(query.candidates, results, strict=True)
        if result.excluded is not None
        and result.excluded.cause in _WITHOUT_FIGURE
        and result.excluded.device not in answered
    ]
    places = nearest_settings(evidence, query, unanswered)
    return [
        f"{query.subject.model_id} was measured in other settings on "
        f"{join_first([place_label(place, shared_devices(where)) for place in where])}: "
        f"ask for {', '.join(f'{name} {value}' for name, value in changes)}."
        for changes, where in itertools.islice(places.items(), _MAX_SETTINGS)
    ]


def _usual_precision(query: ResolvedQuery, results: Sequence[CandidateResult]) -> str | None:
    """Return a warning where the answer is in the default precision, and a shorter one is usual or would fit."""
    answered = [
        candidate
        for candidate, result in zip(query.candidates, results, strict=True)
        if result.figures is not None and result.figures.precision is not None
    ]
    faster = dict.fromkeys(c.spec.name for c in answered if c.spec.peak_fp16_tensor_tflops)
    if faster:
        return (
            f"No precision was given: figures that state theirs are of {query.precision}. "
            f"On {join_first(list(faster))} float16 or bfloat16 is usual and faster: ask for it."
        )
    if query.precision not in ("float32", "tf32"):
        return None
    half = replace(query, precisions=("float16",))
    too_small = [
        result.excluded
        for candidate, result in zip(query.candidates, results, strict=True)
        if result.excluded is not None
        and result.excluded.cause == "does_not_fit"
        and memory_abstention(half, candidate) is None
    ]
    if not too_small:
        return None
    labels = [place_label(excluded, shared_devices(too_small)) for excluded in too_small]
    return (
        f"No precision was given, and in {query.precision} the model does not fit on {join_first(labels)}: in float16 "
        "it takes half, so ask for that."
    )


def _join_cautions(cautions: Sequence[tuple[Figures, str]], shared: Set[str]) -> list[str]:
    """Return each text once, after the places that it holds for."""
    labels: dict[str, list[str]] = {}
    for figures, text in cautions:
        labels.setdefault(text, []).append(place_label(figures, shared))
    return [f"{join_first([*dict.fromkeys(of)])}: {text}" for text, of in labels.items()]


def join_first(names: Sequence[str]) -> str:
    """Return the first names in words, and how many more there are."""
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more


def excluded_by_reason(excluded: Sequence[Excluded]) -> dict[str, list[Excluded]]:
    """Return the excluded hardware by reason: what is beyond the limits first, then the most frequent reason."""
    groups: dict[str, list[Excluded]] = {}
    for item in excluded:
        groups.setdefault(item.reason, []).append(item)
    return dict(sorted(groups.items(), key=lambda group: (group[1][0].cause != "constraint", -len(group[1]))))


def empty_reason(excluded: Sequence[Excluded]) -> str:
    """Return why nothing is recommended."""
    beyond = sum(e.cause == "constraint" for e in excluded)
    if not beyond:
        return "Nothing supports a recommendation."
    return f"No hardware keeps to the limits; {beyond} {'has' if beyond == 1 else 'have'} a figure beyond them."


def other_runtimes(answer: Answer) -> list[Excluded]:
    """Return what was left out for lack of a figure on devices that are recommended under another runtime.

    Imports of a device of the spec sheet have its name as their id. They are of any recommended device of that name.
    """
    shared = shared_devices([*answer.recommendations, *answer.excluded])
    recommended = {place_label(r, shared) for r in answer.recommendations}
    named = {(r.hardware, f"imported:{r.device}") for r in answer.recommendations}
    return [
        e
        for e in answer.excluded
        if e.cause == "unsupported" and (place_label(e, shared) in recommended or (e.hardware, e.device_id) in named)
    ]


def _figures(evidence: Evidence, query: ResolvedQuery, candidate: Candidate, estimate: Estimate) -> Figures:
    latency, target = estimate.latency_ms, candidate.target
    throughput = divide(1e3 * query.batch_size, latency)
    return Figures(
        hardware=target.hardware,
        backend=target.backend,
        device=target.device,
        device_id=candidate.device_id,
        where=evidence.where(target),
        precision=None if estimate.unstated else query.precision,
        latency_ms=latency,
        items_per_s=throughput,
        output_tokens_per_s=None
        if query.output_tokens is None
        else divide(1e3 * query.batch_size * query.output_tokens, latency),
        memory_peak_mib=estimate.memory_peak_mib,
        cost=cost_per_items(throughput, candidate.used_spec),
        energy=energy_per_item(estimate.energy_j_per_item, latency, query.batch_size, candidate.spec),
        bound=generation_bound(queried_sample(evidence, in_answering_precision(query, estimate), candidate))
        if query.mode == "generation"
        else roofline_bound(query, candidate.used_spec),
        provenance=estimate.provenance,
        evidence=list(estimate.event_ids),
        neighbours=list(estimate.neighbours),
        basis=estimate.basis,
        why=list(estimate.why),
        host_limited=estimate.host_limited,
        compatibility=matrix_verdict(evidence, query, target)[0],
    )


def _exclusion(evidence: Evidence, query: ResolvedQuery, candidate: Candidate, abstention: Abstention) -> Excluded:
    target = candidate.target
    device = evidence.by_device.get(target)
    # An emulated device does not count as present, because measuring it would settle nothing.
    here = device is not None and device.available and not device.emulated and evidence.where(target) == "here"
    suggestion = _OTHER_QUERY.get(abstention.cause) or (
        _OTHER_PRECISION
        if lacks_units(query, candidate)
        else suggest_measurement(query, candidate.hardware_name, here=here)
    )
    return Excluded(
        hardware=target.hardware,
        backend=target.backend,
        device=target.device,
        device_id=candidate.device_id,
        cause=abstention.cause,
        reason=abstention.reason,
        suggestion=suggestion,
    )
