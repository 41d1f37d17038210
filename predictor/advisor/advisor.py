"""The advisor in service: it follows new snapshots and predictors, and answers queries as JSON.

A new state is loaded whole beside the one in service, and replaces it in one assignment. So every query sees one
snapshot and one predictor from beginning to end. Answers are cached with the state they came from.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import compress

from accel_platform.backends.registry import RUNTIMES
from accel_platform.errors import AccelError, NotFound, WarehouseEmpty
from accel_platform.settings import Settings
from accel_platform.warehouse.reader import Reader
from predictor.advisor.answer_cache import CandidateResult, LRUByteCache
from predictor.advisor.answers import (
    build_answer,
    candidate_result,
    candidate_results,
    excluded_by_reason,
    listed,
    measured_parts,
)
from predictor.advisor.estimation import estimate_all
from predictor.advisor.model_estimates import warm_up
from predictor.advisor.resolved_query import ResolvedQuery, resolve_query
from predictor.advisor.serving.ranking import recommend_serving
from predictor.advisor.serving_state import ServingState
from predictor.calibration.predictor import Predictor
from predictor.data.evidence import Evidence, load_evidence
from predictor.data.fast_path import SlowPathRequired, fast_path_only
from predictor.schemas.requests import BatchQuery, ModelConfig, PredictQuery, RecommendQuery
from predictor.schemas.responses import (
    Answer,
    BatchAnswer,
    Excluded,
    Figures,
    PredictAnswer,
    Unanswered,
)
from predictor.schemas.serving import ServingAnswer, ServingQuery
from predictor.serving.measured_loads import MeasuredLoad, measured_loads_in
from predictor.training import artifact, sharing
from predictor.training.artifact import ArtifactRejected

POLL_INTERVAL_S = 0.2
"""Pause between two looks at the pointers."""
PROMOTIONS_INTERVAL_S = 60.0
"""Pause between two looks at the promotions of other machines."""
_PAUSE_FACTOR = 4
"""Wait 4 times the last load time before reloading, because loading slows the answers down."""
CACHE_BYTES = 64 << 20
_log = logging.getLogger("accel.advisor")


class Advisor:
    """Answers from the newest published snapshot and predictor; safe to share between threads.

    `swapped` is called whenever a new state comes into service.
    """

    def __init__(self, settings: Settings, swapped: Callable[[], None] | None = None) -> None:
        self.reader = Reader(settings)
        self._settings = settings
        self._loading = threading.Lock()
        self._serving: _Serving | None = None
        self._loads: tuple[str, list[MeasuredLoad]] | None = None
        self._swapped = swapped or (lambda: None)
        self._following = False

    def state(self) -> ServingState:
        """Return the newest state, loaded first where a pointer has moved; while `follow` runs, the one in service.

        A rejected predictor is no error: answers come from measurements, and contain the reason. Raises WarehouseEmpty
        before the first snapshot is published.
        """
        serving = self._serving if self._following else None
        return (serving or self._load_newest()).state

    def recommend(self, query: RecommendQuery) -> Answer:
        return recommend(self.state(), query)

    def predict(self, query: PredictQuery) -> PredictAnswer:
        return predict(self.state(), query)

    def predict_many(self, query: BatchQuery) -> BatchAnswer:
        return predict_many(self.state(), query.queries)

    def recommend_serving(self, query: ServingQuery) -> ServingAnswer:
        """Rank deployments for a load; without tables, from what comes with the package alone."""
        try:
            snapshot_id, measured = self._measured_loads()
        except WarehouseEmpty:
            return recommend_serving(query, (), None)
        return recommend_serving(query, measured, snapshot_id)

    def _measured_loads(self) -> tuple[str, list[MeasuredLoad]]:
        """Return the newest snapshot's id and loads, without the rest of the evidence, which takes three times as
        long. Raises WarehouseEmpty before the first snapshot is published."""
        if self._loads is None or self._loads[0] != self.reader.snapshot_id:
            reader = self.reader.pinned()
            self._loads = reader.snapshot_id, measured_loads_in(reader)
        return self._loads

    def cached_answer(self, query: RecommendQuery) -> bytes | None:
        """Return the cached JSON of the answer, None where there is none; never waits."""
        return None if self._serving is None else self._serving.answers.get(_cache_key(query))

    def answer(self, query: RecommendQuery) -> bytes:
        """Return the JSON of `recommend(query)` from the state in service; only `follow` and `state` renew that."""
        serving = self._serving or self._load_newest()
        content = recommend(serving.state, query).model_dump_json().encode()
        serving.answers.put(_cache_key(query), content)
        return content

    def try_answer(self, query: RecommendQuery) -> bytes | None:
        """Return the answer where it needs no slow path; None where it does, and before the first load."""
        if self._serving is None:
            return None
        try:
            with fast_path_only():
                return self.answer(query)
        except SlowPathRequired:
            return None

    def warm_up(self) -> None:
        """Put the newest state into service, with all that its first queries would wait for. Raises as `state` does.

        The first state answers meanwhile, because nothing else would.
        """
        self._load_newest(warm=self._serving is not None).warm_up()

    def follow(self, stop: threading.Event) -> None:
        """Put new states into service until `stop` is set; where one cannot be loaded, the present one stays."""
        problem, pause_s, self._following = "", POLL_INTERVAL_S, True
        followed_s = -math.inf
        while not stop.wait(pause_s):
            if time.monotonic() - followed_s > PROMOTIONS_INTERVAL_S:
                followed_s = time.monotonic()
                self.follow_promotions()
            began = time.monotonic()
            try:
                self.warm_up()
                problem = ""
            except WarehouseEmpty:
                continue  # because there is no state to keep, and every query gets this error
            except Exception as error:  # noqa: BLE001  # because the present state goes on serving whatever the error
                if str(error) != problem:
                    problem = str(error)
                    # The log gets the traceback of an unforeseen error only.
                    traceback = None if isinstance(error, AccelError) else error
                    _log.error("still answering from the snapshot before: %s", problem, exc_info=traceback)
            pause_s = max(POLL_INTERVAL_S, _PAUSE_FACTOR * (time.monotonic() - began))
        self._following = False

    def _load_newest(self, *, warm: bool = False) -> _Serving:
        """Load the newest state unless it is in service already; `warm` warms it up first."""
        with self._loading:
            snapshot_id = self.reader.snapshot_id
            serving = self._serving
            same_evidence = serving is not None and serving.state.evidence.snapshot_id == snapshot_id
            predictor_id = artifact.current_id(self._settings)
            if predictor_id is None and not self._following:
                self.follow_promotions()
                predictor_id = artifact.current_id(self._settings)
            same_predictor = serving is not None and serving.predictor_id == predictor_id
            if serving is not None and same_evidence and same_predictor:
                return serving
            evidence = serving.state.evidence if serving and same_evidence else load_evidence(self.reader)
            if serving and same_predictor:
                predictor, problem = serving.state.predictor, serving.state.no_predictor
            else:
                predictor, problem = self._load_predictor(predictor_id)
            loaded = _Serving(ServingState(evidence, predictor, problem), predictor_id)
            if warm:
                loaded.warm_up()
            self._serving = loaded
            self._swapped()
            return loaded

    def follow_promotions(self) -> None:
        """Put into service what another machine of a shared log promoted; if it cannot serve, the present one stays."""
        try:
            if adopted := sharing.follow_promotions(self._settings):
                _log.info("%s serves: another machine promoted it", adopted)
        except (AccelError, OSError) as error:
            _log.warning("the predictor that other machines use does not serve here: %s", error)

    def _load_predictor(self, predictor_id: str | None) -> tuple[Predictor | None, str]:
        if predictor_id is None:
            return None, "no predictor was trained yet (`accel train`)"
        try:
            return artifact.load(self._settings, predictor_id), ""
        except ArtifactRejected as error:
            return None, f"the predictor was refused: {error}"


class _Serving:
    """The state in service, and the answers from it."""

    def __init__(self, state: ServingState, predictor_id: str | None) -> None:
        self.state = state
        self.predictor_id = predictor_id
        """Id that the pointer named, even if that predictor was rejected."""
        self.answers = LRUByteCache(CACHE_BYTES)
        self._warming = threading.Lock()
        self._warm = False

    def warm_up(self) -> None:
        with self._warming:
            if not self._warm:
                warm_up(self.state)
                self._warm = True


def _cache_key(query: RecommendQuery) -> str:
    """Return equal keys for equal queries: every field in its order, with its default."""
    return query.model_dump_json()


_PROVENANCE_RANK = {"measured": 0, "scaled": 1, "predicted": 2}
_MAX_REASONS = 2
"""Reasons for no figure that an error names."""
_WHERE_RANK = {"here": 0, "mine": 1, "elsewhere": 2}


def recommend(state: ServingState, query: RecommendQuery) -> Answer:
    """Rank every candidate that has an estimate.

    Raises NotFound for the model, InvalidInput for hardware, a config or sizes that cannot be.
    """
    resolved = resolve_query(state, query, query.hardware, add_unmeasured_gpus=query.where == "anywhere")
    results = candidate_results(state, resolved)
    if query.where != "anywhere":
        allowed = {"here"} if query.where == "here" else {"here", "mine"}
        near = [state.evidence.where(c.target) in allowed for c in resolved.candidates]
        results = list(compress(results, near))
        resolved = replace(resolved, candidates=tuple(compress(resolved.candidates, near)))
    return build_answer(state, resolved, results, query.objective, query.constraints)


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
    ranked = answer.recommendations
    if not ranked:
        reasons = _reasons_for_nothing(state.evidence, resolved, results, answer.excluded)
        parts = measured_parts(state.evidence, resolved)
        raise NotFound(
            " ".join(filter(None, [f"Nothing supports a figure for {answer.model} on {name}: {reasons}", parts]))
        )
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
    warnings = build_answer(state, alone, list(compress(results, chosen))).warnings
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
    devices = {r.device_id or r.device: _device_label(r) for r in [best, *ranked]}
    if len(devices) > 1:
        first, *others = devices.values()
        return [f"{name} stands for {len(devices)} devices: this is {first}. Others, by name or id: {listed(others)}."]
    runtimes = dict.fromkeys(r.hardware for r in ranked if r.hardware != best.hardware)
    if runtimes:
        return [
            f"{name} has several runtimes: this is {best.hardware}. Ask for another by name: {', '.join(runtimes)}."
        ]
    backends = dict.fromkeys(r.backend for r in ranked if r.backend != best.backend)
    if backends:
        return [f"{name} was measured with several runtimes: this is {best.backend}, the others {', '.join(backends)}."]
    return []


def _device_label(figures: Figures) -> str:
    named = figures.device or "one without a name"
    return f"{named} ({figures.device_id})" if figures.device_id else named


def _unanswered(query: PredictQuery, resolved: ResolvedQuery | AccelError, error: AccelError) -> Unanswered:
    if isinstance(resolved, ResolvedQuery):
        model = resolved.subject.model_id
    elif isinstance(query.model, str):
        model = query.model
    else:
        model = "a config" if isinstance(query.model, ModelConfig) else "cost figures"
    return Unanswered(model=model, hardware=query.place, batch_size=query.batch_size, problem=str(error))
