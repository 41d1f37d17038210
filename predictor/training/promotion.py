"""Which predictor serves: a candidate that is not worse than the one in service, or an earlier one that somebody wants.

What the two learned from is compared, not what they happen to hold: a predictor answers well for what it was told. So
the learner is fitted to the cases of either, the same families held out, and asked about them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from accel_platform.errors import AccelError, NotFound
from accel_platform.events import Event, EventLog
from accel_platform.events.types import PredictorPromoted, PredictorTrained
from accel_platform.settings import Settings
from predictor.calibration.cross_validation import MIN_SAMPLES, ROUNDS, subsample_models
from predictor.calibration.cv_splits import group_folds
from predictor.calibration.predictor import Predictor
from predictor.data.samples import Sample
from predictor.models.latency_model import LatencyModel, log_latency
from predictor.training import artifact
from predictor.training.artifact import Manifest

_FOLDS = 3
MAX_RELATIVE_INCREASE = 0.10
"""By how much of the other's median error a candidate may err more, and still count as not worse,"""
MAX_ABSOLUTE_INCREASE = 0.01
"""plus this: two fits to nearly equal cases differ by about as much."""


KEEP_NEWEST = 5
"""Artifacts that stay, beside the one in service and those it replaced."""


class NoPreviousModel(AccelError):
    """No predictor served before this one."""


@dataclass(frozen=True)
class PromotionDecision:
    """Whether a candidate may serve."""

    promoted: bool
    reason: str
    report: dict[str, Any]


def compare(candidate: Predictor, serving: Predictor | None) -> PromotionDecision:
    """Median errors of both on the same held-out families, by mode; the candidate must not be worse in any.

    Not worse is at most (1 + MORE) times the other's median error plus MORE_POINTS. Asked is about cells that both
    know, or, where those are too few, all that the candidate knows.
    """
    if serving is None:
        return PromotionDecision(True, "nothing that could be read was in service", {})
    report: dict[str, Any] = {}
    worse = []
    for mode in sorted(candidate.modes.keys() & serving.modes.keys()):
        found = _paired_errors(candidate.modes[mode].latency_model.samples, serving.modes[mode].latency_model.samples)
        if found is None:
            continue
        ours, theirs, count = found
        report[mode] = {"cases": count, "median_ape": ours, "median_ape_in_service": theirs}
        if ours > theirs * (1 + MAX_RELATIVE_INCREASE) + MAX_ABSOLUTE_INCREASE:
            worse.append(f"{mode}: {ours:.1%} against {theirs:.1%}")
    if worse:
        return PromotionDecision(
            False, f"it errs more on unseen families than {serving.predictor_id} ({'; '.join(worse)})", report
        )
    return PromotionDecision(True, f"not worse than {serving.predictor_id} on the same unseen families", report)


def promote(settings: Settings, log: EventLog, predictor_id: str, verdict: PromotionDecision) -> None:
    """Put a stored predictor into service and tell why."""
    replaced = _serving_id(settings)
    artifact.activate(settings, predictor_id)
    told = PredictorPromoted(
        predictor_id=predictor_id,
        replaced=replaced if replaced != predictor_id else None,
        cause="trained",
        reason=verdict.reason,
        report=verdict.report,
    )
    log.append([Event.of(told, source="predictor.training.train")], key=f"promoted-{predictor_id}")


def roll_back(settings: Settings, log: EventLog, predictor_id: str | None = None) -> PredictorPromoted:
    """Put an earlier predictor into service: the one named, or the one that served before this one.

    Raises NotFound for one that is not kept, NothingToGoBackTo where none served before, and ArtifactRefused for one
    that cannot be read any more; then nothing changes.
    """
    serving = _serving_id(settings)
    before = predictor_id or _previous_id(promotions(log), serving)
    if before is None:
        raise NoPreviousModel(
            "No predictor served before this one. `accel predictor list` shows those that are kept; name one."
        )
    wanted = _find_id(settings, before)
    artifact.load(settings, wanted)
    artifact.activate(settings, wanted)
    told = PredictorPromoted(
        predictor_id=wanted, replaced=serving, cause="rollback", reason="somebody asked for it", report={}
    )
    log.append([Event.of(told, source="predictor.rollback")])
    return told


def find_manifest(settings: Settings, predictor_id: str | None) -> Manifest:
    """The manifest of the one named, else of the one in service. Raises NotFound and ArtifactRefused."""
    wanted = predictor_id or artifact.current_id(settings)
    if wanted is None:
        raise NotFound("No predictor serves yet: `accel train` makes one.")
    return artifact.load_manifest(settings, _find_id(settings, wanted))


def list_predictors(settings: Settings, log: EventLog) -> list[dict[str, Any]]:
    """Every predictor kept, the newest first: when it was trained, from what, and whether it serves."""
    trained = {}
    for event in log.read(types={"PredictorTrained"}):
        if isinstance(event.payload, PredictorTrained):
            trained[event.payload.predictor_id] = (event.recorded_at, event.payload)
    serving = _serving_id(settings)
    rows = []
    for name in artifact.list_ids(settings):
        at, told = trained.get(name, (None, None))
        try:
            artifact.load_checked(settings, name)
            state = "serves" if name == serving else "kept"
        except artifact.ArtifactRejected as error:
            state = f"refused: {error}"
        rows.append(
            {
                "predictor": name,
                "state": state,
                "trained_at": at,
                "cases": told.rows if told else None,
                "snapshot": told.snapshot_id[:12] if told else None,
                "why_not": told.reason if told else None,
            }
        )
    return sorted(rows, key=lambda row: str(row["trained_at"] or ""), reverse=True)


def promotions(log: EventLog) -> list[PredictorPromoted]:
    """Every change of service, the oldest first."""
    events = sorted(log.read(types={"PredictorPromoted"}), key=lambda event: (event.recorded_at, event.event_id))
    return [event.payload for event in events if isinstance(event.payload, PredictorPromoted)]


def remove_old_predictors(settings: Settings, log: EventLog) -> list[str]:
    """Delete the artifacts but the newest few, the one in service and those it replaced; returns their ids."""
    ids = artifact.list_ids(settings)
    by_age = sorted(ids, key=lambda name: (settings.models_dir / name).stat().st_mtime_ns)
    serving = _serving_id(settings)
    if serving is None:
        return []
    replaced = {change.replaced for change in promotions(log) if change.predictor_id == serving}
    gone = [name for name in by_age[:-KEEP_NEWEST] if name != serving and name not in replaced]
    for name in gone:
        artifact.remove(settings, name)
    return gone


def refusal_reason(log: EventLog, predictor_id: str) -> str | None:
    """Why a candidate does not serve; None where it was not judged, or another serves than it was compared with."""
    events = sorted(
        log.read(types={"PredictorTrained", "PredictorPromoted"}), key=lambda event: (event.recorded_at, event.event_id)
    )
    reason = None
    for event in events:
        told = event.payload
        if isinstance(told, PredictorPromoted):
            reason = None
        elif isinstance(told, PredictorTrained) and told.predictor_id == predictor_id:
            reason = told.reason
    return reason


def rolled_back_ids(log: EventLog) -> set[str]:
    """Predictors that somebody went back from and nobody put into service again."""
    out: set[str] = set()
    for change in promotions(log):
        out.discard(change.predictor_id)
        if change.cause == "rollback" and change.replaced is not None:
            out.add(change.replaced)
    return out


def _previous_id(changes: Sequence[PredictorPromoted], serving: str | None) -> str | None:
    """What a predictor replaced when it was trained: going back twice goes back two."""
    mine = [change for change in changes if change.predictor_id == serving]
    trained = [change for change in mine if change.cause == "trained"]
    return (trained or mine)[-1].replaced if mine else None


def _find_id(settings: Settings, beginning: str) -> str:
    ids = artifact.list_ids(settings)
    found = [name for name in ids if name.startswith(beginning)]
    if len(found) != 1:
        what = f"Several predictors begin with {beginning!r}" if found else f"No predictor kept is called {beginning!r}"
        raise NotFound(f"{what}. Kept: {', '.join(ids) or 'none'}.")
    return found[0]


def _serving_id(settings: Settings) -> str | None:
    try:
        return artifact.current_id(settings)
    except artifact.ArtifactRejected:
        return None


def _paired_errors(ours: Sequence[Sample], theirs: Sequence[Sample]) -> tuple[float, float, int] | None:
    """Median errors of a learner of our cases and of one of theirs, on families that neither is told of; and of how
    many cases. None where there are too few."""
    known = Counter(sample.without_figures() for sample in theirs)
    both = [sample for sample in ours if sample.without_figures() in known]
    asked = subsample_models(both if len(both) >= MIN_SAMPLES else ours)
    models = {sample.model for sample in asked}
    # Of large sets the learner sees the models asked about and as many others as a sample holds.
    told = [
        [sample for sample in samples if sample.model in models] or list(samples)
        for samples in map(subsample_models, (ours, theirs))
    ]
    folds = group_folds([sample.family for sample in asked], _FOLDS)
    errors: list[tuple[float, float]] = []
    for fold in np.unique(folds):
        held = {asked[i].family for i in np.flatnonzero(folds == fold)}
        latency_models = []
        for samples in told:
            train = [sample for sample in samples if sample.family not in held]
            if len(train) >= MIN_SAMPLES:
                latency_models.append(LatencyModel(train, rounds=ROUNDS))
        about = [asked[i] for i in np.flatnonzero(folds == fold)]
        about = [
            sample for sample in about if all(model.unsupported_reason(sample) is None for model in latency_models)
        ]
        if len(latency_models) == 2 and about:
            truth = log_latency(about)
            found = [np.abs(np.expm1(model.predict(about).logs - truth)).tolist() for model in latency_models]
            errors += zip(*found, strict=True)
    if not errors:
        return None
    mine, other = np.median(np.array(errors), axis=0).tolist()
    return mine, other, len(errors)
