"""Recommendations and predictions: pure functions of a query and the serving state."""

from __future__ import annotations

from collections.abc import Sequence

from accel_platform.errors import AccelError, NotFound
from predictor.advisor.answer_cache import CandidateResult
from predictor.advisor.answers import build_answer, candidate_result, candidate_results
from predictor.advisor.estimation import estimate_all
from predictor.advisor.resolved_query import ResolvedQuery, resolve_query
from predictor.advisor.serving_state import ServingState
from predictor.schemas.requests import ModelConfig, PredictQuery, RecommendQuery
from predictor.schemas.responses import (
    Answer,
    BatchAnswer,
    PredictAnswer,
    Unanswered,
)

_PROVENANCE_RANK = {"measured": 0, "scaled": 1, "predicted": 2}


def recommend(state: ServingState, query: RecommendQuery) -> Answer:
    """Rank every candidate that has an estimate.

    Raises NotFound for the model, InvalidInput for hardware, a config or sizes that cannot be.
    """
    resolved = resolve_query(state, query, query.hardware)
    return build_answer(state, resolved, candidate_results(state, resolved), query.objective, query.constraints)


def predict(state: ServingState, query: PredictQuery) -> PredictAnswer:
    """Return the figures of one cell, on a device of a known host rather than one known from imported files only.

    Raises NotFound, with what to measure, where no figure is supported.
    """
    resolved = resolve_query(state, query, [query.hardware])
    return _best(state, query, resolved, candidate_results(state, resolved))


def predict_many(state: ServingState, queries: Sequence[PredictQuery]) -> BatchAnswer:
    """Return one answer per query, in their order; a query without an answer has the reason instead."""
    resolved: list[ResolvedQuery | AccelError] = []
    for query in queries:
        try:
            resolved.append(resolve_query(state, query, [query.hardware]))
        except AccelError as error:
            resolved.append(error)
    cells = [(item, candidate) for item in resolved if isinstance(item, ResolvedQuery) for candidate in item.candidates]
    estimates = iter(estimate_all(state, cells))
    answers: list[PredictAnswer | Unanswered] = []
    for query, item in zip(queries, resolved, strict=True):
        try:
            if isinstance(item, AccelError):
                raise item
            results = [
                candidate_result(state.evidence, item, candidate, next(estimates)) for candidate in item.candidates
            ]
            answers.append(_best(state, query, item, results))
        except AccelError as error:
            answers.append(_unanswered(query, item, error))
    return BatchAnswer(answers=answers, snapshot_id=state.evidence.snapshot_id, predictor_id=state.predictor_id)


def _best(
    state: ServingState, query: PredictQuery, resolved: ResolvedQuery, results: Sequence[CandidateResult]
) -> PredictAnswer:
    answer = build_answer(state, resolved, results)
    name = query.place
    if not answer.recommendations:
        reasons = "; ".join(dict.fromkeys(f"{e.reason.rstrip('.')}: {e.suggestion}" for e in answer.excluded))
        raise NotFound(f"Nothing supports a figure for {answer.model} on {name}: {reasons}.")
    ranked = answer.recommendations
    available = {(target.hardware, target.device_id) for target in state.evidence.available}
    best = min(
        ranked, key=lambda r: ((r.hardware, r.device_id) not in available, _PROVENANCE_RANK[r.provenance], r.rank)
    )
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


def _unanswered(query: PredictQuery, resolved: ResolvedQuery | AccelError, error: AccelError) -> Unanswered:
    if isinstance(resolved, ResolvedQuery):
        model = resolved.subject.model_id
    elif isinstance(query.model, str):
        model = query.model
    else:
        model = "a config" if isinstance(query.model, ModelConfig) else "cost figures"
    return Unanswered(model=model, hardware=query.place, batch_size=query.batch_size, problem=str(error))
