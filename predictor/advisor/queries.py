"""Answers to the three kinds of queries, as pure functions of one serving state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import compress

from accel_platform.backends.registry import RUNTIMES
from accel_platform.errors import AccelError, NoFigure
from predictor.advisor.answer_cache import CandidateResult
from predictor.advisor.answers import (
    RankedAnswer,
    candidate_result,
    candidate_results,
    excluded_by_reason,
    join_first,
    measured_parts,
    rank_results,
)
from predictor.advisor.estimation import estimate_all
from predictor.advisor.resolved_query import ResolvedQuery, resolve_query
from predictor.advisor.serving_state import ServingState
from predictor.data.evidence import Evidence
from predictor.schemas.requests import PredictQuery, RecommendQuery, TransformersConfig
from predictor.schemas.responses import Answer, BatchAnswer, CellProblem, Excluded, Figures, PredictAnswer, Unanswered

_PROVENANCE_RANK = {"measured": 0, "scaled": 1, "predicted": 2}
_MAX_REASONS = 2
"""Reasons for no figure that an error names."""
_NONE_NEAR = {
    "here": "No such hardware is of this host: `accel bench run` measures it, and `anywhere` ranks all.",
    "mine": "No such hardware is of a host that measured into this log: `accel bench run` there measures it, and "
    "`anywhere` ranks all.",
}
"""Warning where `where` leaves no hardware, because nothing is excluded with a reason then."""
_WHERE_RANK = {"here": 0, "mine": 1, "elsewhere": 2}


def recommend(state: ServingState, query: RecommendQuery) -> Answer:
    """Rank every candidate that has an estimate.

    Raises NotFound for the model, InvalidInput for hardware, a config or sizes that cannot be.
    """
    return _rank(state, query).answer()


def recommend_json(state: ServingState, query: RecommendQuery) -> bytes:
    """Return the JSON of `recommend`, without building the answer first. Raises as that does."""
    return _rank(state, query).json()


def _rank(state: ServingState, query: RecommendQuery) -> RankedAnswer:
    resolved = resolve_query(state, query, query.hardware, add_unmeasured_gpus=query.where == "anywhere")
    results = candidate_results(state, resolved)
    if query.where != "anywhere":
        allowed = {"here"} if query.where == "here" else {"here", "mine"}
        near = [state.evidence.where(c.target) in allowed for c in resolved.candidates]
        results = list(compress(results, near))
        warnings = resolved.warnings if any(near) else (*resolved.warnings, _NONE_NEAR[query.where])
        resolved = replace(resolved, candidates=tuple(compress(resolved.candidates, near)), warnings=warnings)
    return rank_results(state, resolved, results, query.objective, query.constraints, query.limit)


def predict(state: ServingState, query: PredictQuery) -> PredictAnswer:
    """Return the figures of one cell, on a device of a known host rather than one known from imported files only.

    Raises NoFigure, with what to measure, where none is supported.
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
    answer = rank_results(state, resolved, results).answer()
    name = query.place
    ranked = answer.recommendations
    if not ranked:
        reasons = _reasons_for_nothing(state.evidence, resolved, results, answer.excluded)
        nothing = f"Nothing supports a figure for {answer.model} on {name}: {reasons}"
        raise NoFigure(" ".join(filter(None, [nothing, measured_parts(state.evidence, resolved)])))
    available = {(target.hardware, target.device_id) for target in state.evidence.available}
    best = min(
        ranked,
        key=lambda r: (
            _WHERE_RANK[r.where],
            (r.hardware, r.device_id) not in available,
            _PROVENANCE_RANK[r.provenance],
            r.rank,
        ),
    )
    # Warnings about the others, and about how they compare, tell nothing of the one figure that is answered.
    chosen = [result.figures is not None and _is_of(result.figures, best) for result in results]
    alone = replace(resolved, candidates=tuple(compress(resolved.candidates, chosen)))
    warnings = rank_results(state, alone, list(compress(results, chosen))).frame.warnings
    return PredictAnswer(
        model=answer.model,
        batch_size=answer.batch_size,
        sequence_length=answer.sequence_length,
        output_tokens=answer.output_tokens,
        **{field: value for field, value in best if field not in ("rank", "ranked_by")},
        warnings=[*warnings, *_other_choices(name, best, ranked)],
        snapshot_id=answer.snapshot_id,
        predictor_id=answer.predictor_id,
    )


def _reasons_for_nothing(
    evidence: Evidence, resolved: ResolvedQuery, results: Sequence[CandidateResult], excluded: Sequence[Excluded]
) -> str:
    """Return why there is no figure and what to do: first for this host, and for runtimes of this platform."""
    targets = {
        result.excluded: candidate.target
        for candidate, result in zip(resolved.candidates, results, strict=True)
        if result.excluded is not None
    }

    def distance(item: Excluded) -> tuple[int, bool]:
        target = targets.get(item)
        if target is None:
            return 0, False
        device, runtime = evidence.by_device.get(target), RUNTIMES.get(target.hardware)
        seen_here = device is not None and device.host_id == evidence.this_host
        foreign = runtime is None or runtime.backend != target.backend
        return 0 if seen_here else _WHERE_RANK[evidence.where(target)], foreign

    groups = sorted(excluded_by_reason(excluded).values(), key=lambda group: min(map(distance, group)))
    reasons = [
        group[0].reason.rstrip(".") + (f" ({len(group)} devices)" if len(group) > 1 else "")
        for group in groups[:_MAX_REASONS]
    ]
    if len(groups) > _MAX_REASONS:
        reasons.append(f"and for {len(groups) - _MAX_REASONS} more reasons, which `accel recommend --verbose` lists")
    return f"{'; '.join(reasons)}. To settle it: {groups[0][0].suggestion}." if groups else "nothing of it is known."


def _is_of(figures: Figures, best: Figures) -> bool:
    """Return whether both are of one runtime on one device."""
    return all(getattr(figures, name) == getattr(best, name) for name in ("hardware", "backend", "device_id", "device"))


def _other_choices(name: str, best: Figures, ranked: Sequence[Figures]) -> list[str]:
    """Return a warning where a name stands for several devices, or for one with several runtimes; else nothing."""
    # A device of the catalog has no id of its own: others' figures of it and its spec sheet are of one device.
    devices = {(r.device_id or f"imported:{r.device}"): _device_label(r) for r in [best, *ranked]}
    if len(devices) > 1:
        first, *others = devices.values()
        return [
            f"{name} stands for {len(devices)} devices: this is {first}. Others, by name or id: {join_first(others)}."
        ]
    # In one order, so that many cells do not say the same in different words.
    used, others = best.hardware, sorted({r.hardware for r in ranked if r.hardware != best.hardware})
    if not others:
        used, others = best.backend, sorted({r.backend for r in ranked if r.backend != best.backend})
    if not others:
        return []
    names = ", ".join(f"{runtime}:{name}" for runtime in others)
    return [f"{name} has several runtimes: this is {used}. Ask for another by name: {names}."]


def _device_label(figures: Figures) -> str:
    named = figures.device or "one without a name"
    return f"{named} ({figures.device_id})" if figures.device_id else named


def _unanswered(query: PredictQuery, resolved: ResolvedQuery | AccelError, error: AccelError) -> Unanswered:
    if isinstance(resolved, ResolvedQuery):
        model = resolved.subject.model_id
    elif isinstance(query.model, str):
        model = query.model
    else:
        model = "a config" if isinstance(query.model, TransformersConfig) else "cost figures"
    return Unanswered(model=model, hardware=query.place, batch_size=query.batch_size, problem=CellProblem.of(error))
