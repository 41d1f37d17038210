"""The answer: candidates ranked, and what is left out and why. A pure function of a question and what is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from accel_platform.backends.registry import RUNTIMES
from accel_platform.errors import AccelError, NotFound
from predictor.advisor.answer_cache import CandidateResult
from predictor.advisor.bound import bound_of, bound_of_generation
from predictor.advisor.candidates import AbsentDevice, Candidate, choose_candidates
from predictor.advisor.constraints import violations
from predictor.advisor.estimation import Abstention, as_found, compatibility_of, estimates
from predictor.advisor.model_estimates import queried_sample
from predictor.advisor.objectives import cost_of_items, energy_of_item, ranking, unknown_for, unlike_levels
from predictor.advisor.resolved_query import ResolvedQuery, resolve_query
from predictor.advisor.scaling import Estimate
from predictor.advisor.serving_state import ServingState
from predictor.advisor.suggestions import suggestion
from predictor.data.evidence import Evidence
from predictor.schemas.requests import (
    Constraints,
    ModelConfig,
    Objective,
    OwnDevice,
    PredictQuery,
    Query,
    RecommendQuery,
)
from predictor.schemas.responses import (
    Answer,
    BatchAnswer,
    Excluded,
    ExclusionCause,
    Figures,
    Interval,
    PredictAnswer,
    Recommendation,
    Unanswered,
)

_INSTEAD: dict[ExclusionCause, str] = {
    "constraint": "ask with a wider limit, or for other hardware",
    "does_not_fit": "ask for a device with more memory, or in a smaller precision",
}
"""What to do where no measurement would help."""
_DRIVEN = f"ask for a device that one of these drives: {', '.join(RUNTIMES)}"
_ORDER = {"measured": 0, "scaled": 1, "predicted": 2}


@dataclass(frozen=True)
class _Prepared:
    """A question and all that it may be answered with."""

    asked: ResolvedQuery
    candidates: list[Candidate]
    missing: list[AbsentDevice]
    warnings: list[str]


def recommend(knowledge: ServingState, query: RecommendQuery) -> Answer:
    """Rank every candidate that something is known for.

    Raises NotFound for the model, InvalidInput for hardware, config or sizes that cannot be.
    """
    prepared = _prepare(knowledge, query, query.hardware)
    return _answer(knowledge, prepared, _said(knowledge, prepared), query.objective, query.constraints)


def predict(knowledge: ServingState, query: PredictQuery) -> PredictAnswer:
    """One cell, on a device that a known host has rather than on one that only imported files tell of.

    Raises NotFound, with what to measure, where nothing supports a figure.
    """
    prepared = _prepare(knowledge, query, [query.hardware])
    return _one(knowledge, query, prepared, _said(knowledge, prepared))


def predict_many(knowledge: ServingState, queries: Sequence[PredictQuery]) -> BatchAnswer:
    """One answer per question, in their order; one that cannot be answered says why and stops no other."""
    prepared: list[_Prepared | AccelError] = []
    for query in queries:
        try:
            prepared.append(_prepare(knowledge, query, [query.hardware]))
        except AccelError as error:
            prepared.append(error)
    wanted = [(p.asked, candidate) for p in prepared if isinstance(p, _Prepared) for candidate in p.candidates]
    found = iter(estimates(knowledge, wanted))
    answers: list[PredictAnswer | Unanswered] = []
    for query, ready in zip(queries, prepared, strict=True):
        try:
            if isinstance(ready, AccelError):
                raise ready
            told = [_told(knowledge.evidence, ready.asked, candidate, next(found)) for candidate in ready.candidates]
            answers.append(_one(knowledge, query, ready, told))
        except AccelError as error:
            answers.append(_unanswered(query, ready, error))
    return BatchAnswer(answers=answers, snapshot_id=knowledge.evidence.snapshot_id, predictor_id=_predictor(knowledge))


def _prepare(knowledge: ServingState, query: Query, hardware: Sequence[str | OwnDevice] | None) -> _Prepared:
    asked, warnings = resolve_query(knowledge, query)
    candidates, missing = choose_candidates(knowledge.evidence, hardware)
    return _Prepared(asked, candidates, missing, warnings)


def _said(knowledge: ServingState, prepared: _Prepared) -> list[CandidateResult]:
    """What is said of each candidate; what was said before is said again."""
    asked, before = prepared.asked, knowledge.said.about(prepared.asked)
    new = [c for c in prepared.candidates if c.own or c.target not in before]
    if not new:
        return [before[candidate.target] for candidate in prepared.candidates]
    found = estimates(knowledge, [(asked, candidate) for candidate in new])
    told = iter([_told(knowledge.evidence, asked, c, said) for c, said in zip(new, found, strict=True)])
    said = [next(told) if c.own or c.target not in before else before[c.target] for c in prepared.candidates]
    knowledge.said.keep(asked, {c.target: s for c, s in zip(prepared.candidates, said, strict=True) if not c.own})
    return said


def _told(
    evidence: Evidence, asked: ResolvedQuery, candidate: Candidate, said: Estimate | Abstention
) -> CandidateResult:
    if isinstance(said, Estimate):
        return CandidateResult(figures=_figures(evidence, asked, candidate, said), cautions=said.cautions)
    target = candidate.target
    # Figures of a device that nobody named are no hardware one could measure on.
    named = target.device_id is not None or target not in evidence.by_target
    return CandidateResult(excluded=_excluded(evidence, asked, candidate, said) if named else None)


def _answer(
    knowledge: ServingState,
    prepared: _Prepared,
    found: Sequence[CandidateResult],
    objective: Objective = "latency",
    constraints: Constraints | None = None,
) -> Answer:
    evidence, asked = knowledge.evidence, prepared.asked
    warnings = list(prepared.warnings)
    excluded = [
        Excluded(
            hardware=gone.hardware,
            device=gone.device,
            cause=gone.cause,
            reason=gone.reason,
            suggestion=_DRIVEN if gone.cause == "no_runtime" else suggestion(asked, gone.hardware, here=False),
        )
        for gone in prepared.missing
    ]
    figures: list[Figures] = []
    for candidate, said in zip(prepared.candidates, found, strict=True):
        if said.figures is None:
            excluded += filter(None, [said.excluded])
            continue
        wrong = violations(constraints, said.figures, candidate.spec) if constraints else None
        if wrong is None:
            warnings += said.cautions
            figures.append(said.figures)
        else:
            excluded.append(_excluded(evidence, asked, candidate, Abstention("constraint", wrong)))
    key = ranking(objective)
    # Where the objective tells none apart, as where no price is known, the faster goes first.
    fast = ranking("latency")
    ranked = sorted(figures, key=lambda r: (key(r), fast(r), r.hardware, r.device_id or r.device or ""))
    for told in ranked:
        if (unknown := unknown_for(objective, told)) is not None:
            warnings.append(f"{told.hardware}{f' ({told.device})' if told.device else ''}: {unknown}.")
    warnings += filter(None, [unlike_levels(objective, ranked)])
    # "cuda is unavailable here" is no news where a cuda device of another host can be recommended.
    answered = {r.hardware for r in ranked}
    return Answer(
        model=asked.subject.model_id,
        batch_size=asked.batch_size,
        sequence_length=asked.sequence_length,
        output_tokens=asked.output_tokens,
        recommendations=[Recommendation(**vars(told), rank=i) for i, told in enumerate(ranked, start=1)],
        excluded=[e for e in excluded if e.device is not None or e.hardware not in answered],
        warnings=list(dict.fromkeys(warnings)),
        snapshot_id=evidence.snapshot_id,
        predictor_id=_predictor(knowledge),
    )


def _one(
    knowledge: ServingState, query: PredictQuery, prepared: _Prepared, found: Sequence[CandidateResult]
) -> PredictAnswer:
    answer = _answer(knowledge, prepared, found)
    name = query.place
    if not answer.recommendations:
        why = "; ".join(dict.fromkeys(f"{e.reason.rstrip('.')}: {e.suggestion}" for e in answer.excluded))
        raise NotFound(f"Nothing supports a figure for {answer.model} on {name}: {why}.")
    ranked = answer.recommendations
    ours = {(target.hardware, target.device_id) for target in knowledge.evidence.available}
    best = min(ranked, key=lambda r: ((r.hardware, r.device_id) not in ours, _ORDER[r.provenance], r.rank))
    warnings = list(answer.warnings)
    if len(ranked) > 1:
        names = ", ".join(f"{r.device} ({r.device_id})" if r.device else "one without a name" for r in ranked)
        warnings.append(f"{name} stands for several: {names}. Ask for one by its id.")
    return PredictAnswer(
        model=answer.model,
        batch_size=answer.batch_size,
        sequence_length=answer.sequence_length,
        output_tokens=answer.output_tokens,
        **{field: value for field, value in best if field != "rank"},
        warnings=warnings,
        snapshot_id=answer.snapshot_id,
        predictor_id=answer.predictor_id,
    )


def _unanswered(query: PredictQuery, ready: _Prepared | AccelError, error: AccelError) -> Unanswered:
    if isinstance(ready, _Prepared):
        model = ready.asked.subject.model_id
    else:
        model = query.model if isinstance(query.model, str) else _kind_of(query.model)
    return Unanswered(
        model=model,
        hardware=query.place,
        batch_size=query.batch_size,
        problem=str(error),
    )


def _kind_of(model: object) -> str:
    return "a config" if isinstance(model, ModelConfig) else "cost figures"


def _figures(evidence: Evidence, asked: ResolvedQuery, candidate: Candidate, estimate: Estimate) -> Figures:
    latency, target = estimate.latency_ms, candidate.target
    items_ms = asked.batch_size * 1e3
    throughput = Interval(
        p50=items_ms / latency.p50,
        low=items_ms / latency.high if latency.high else None,
        high=items_ms / latency.low if latency.low else None,
        level=latency.level,
    )
    return Figures(
        hardware=target.hardware,
        backend=target.backend,
        device=target.device,
        device_id=candidate.device_id,
        latency_ms=latency,
        throughput_items_per_s=throughput,
        memory_peak_mib=estimate.memory_peak_mib,
        cost=cost_of_items(throughput, candidate.spec),
        energy=energy_of_item(estimate.energy_j_per_item, latency, asked.batch_size, candidate.spec),
        bound=bound_of_generation(queried_sample(evidence, as_found(asked, estimate), candidate))
        if asked.mode == "generation"
        else bound_of(asked, candidate.spec),
        provenance=estimate.provenance,
        evidence=list(estimate.event_ids),
        neighbours=list(estimate.neighbours),
        basis=estimate.basis,
        why=list(estimate.why),
        compatibility=compatibility_of(evidence, asked, target)[0],
    )


def _excluded(evidence: Evidence, asked: ResolvedQuery, candidate: Candidate, why: Abstention) -> Excluded:
    target = candidate.target
    device = evidence.by_device.get(target)
    # Measuring an emulated one would settle nothing.
    here = device is not None and device.available and not device.emulated
    return Excluded(
        hardware=target.hardware,
        device=target.device,
        device_id=candidate.device_id,
        cause=why.cause,
        reason=why.reason,
        suggestion=_INSTEAD.get(why.cause) or suggestion(asked, candidate.hardware_name, here=here),
    )


def _predictor(knowledge: ServingState) -> str | None:
    return knowledge.predictor.predictor_id if knowledge.predictor else None
