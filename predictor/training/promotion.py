"""Promotion of predictors into service, rollback, and removal of old artifacts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from accel_platform.errors import AccelError, NotFound
from accel_platform.events import EventLog
from accel_platform.events.types import PredictorPromoted, PredictorTrained
from accel_platform.settings import Settings
from predictor.training import artifact, sharing
from predictor.training.comparison import PromotionDecision
from predictor.training.manifest import Manifest

KEEP_NEWEST = 5
"""Artifacts to keep beside the one in service and those it replaced."""
REFUSED = "refused: "
"""Prefix of the state of a predictor that cannot be used, before the reason."""


class NoPreviousModel(AccelError):
    """Raised by a rollback where no predictor served before the one in service."""


def reference_id(log: EventLog, serving: str | None) -> str | None:
    """Return the id of the best predictor so far, as the last promotion of the serving one names it.

    It is the serving one's own id where that promotion names none.
    """
    own = [change for change in promotions(log) if change.predictor_id == serving]
    return serving if not own else own[-1].reference or serving


def promote(settings: Settings, log: EventLog, predictor_id: str, decision: PromotionDecision) -> None:
    """Put a stored predictor into service and log the event."""
    replaced = _serving_id(settings)
    reference = predictor_id if decision.best else reference_id(log, replaced)
    sharing.share(settings, log, predictor_id)
    promotion = PredictorPromoted(
        predictor_id=predictor_id,
        replaced=replaced if replaced != predictor_id else None,
        cause="trained",
        reason=decision.reason,
        report=decision.report,
        reference=reference,
    )
    sharing.record(log, promotion, "predictor.training.train")
    artifact.activate(settings, predictor_id)


def roll_back(settings: Settings, log: EventLog, predictor_id: str | None = None) -> PredictorPromoted:
    """Put an earlier predictor into service: the one named, or the one that served before this one.

    A predictor that only another machine has is fetched from the shared log's store.

    Raises NotFound for a predictor that is not stored, NoPreviousModel where none served before, and ArtifactRejected
    for one that cannot be read. The serving predictor then stays.
    """
    # A predictor that another machine promoted may be missing or damaged; then this machine's own one is rolled back.
    with suppress(NotFound, artifact.ArtifactRejected):
        sharing.follow_promotions(settings)
    serving = _serving_id(settings)
    previous = predictor_id or _previous_id(promotions(log), serving)
    if previous is None:
        raise NoPreviousModel(
            "No predictor served before this one. `accel predictor list` shows the stored ones; name one."
        )
    sharing.fetch_missing(settings, log, {previous})
    chosen = _find_id(settings, previous)
    artifact.load(settings, chosen)
    sharing.share(settings, log, chosen)
    promotion = PredictorPromoted(
        predictor_id=chosen, replaced=serving, cause="rollback", reason="somebody asked for it", report={}
    )
    sharing.record(log, promotion, "predictor.rollback")
    artifact.activate(settings, chosen)
    return promotion


def find_manifest(settings: Settings, predictor_id: str | None) -> Manifest:
    """Return the manifest of the predictor named, else of the one in service.

    Raises NotFound and ArtifactRejected.
    """
    chosen = predictor_id or artifact.current_id(settings)
    if chosen is None:
        raise NotFound("No predictor serves yet: `accel train` makes one.")
    return artifact.load_manifest(settings, _find_id(settings, chosen))


def list_predictors(settings: Settings, log: EventLog) -> list[dict[str, Any]]:
    """Return a row per stored predictor, the newest first: state, time of training, and snapshot it was trained on."""
    trained = {}
    for logged in log.read(types={"PredictorTrained"}):
        if isinstance(logged.payload, PredictorTrained):
            trained[logged.payload.predictor_id] = (logged.recorded_at, logged.payload)
    serving = _serving_id(settings)
    rows = []
    for name in artifact.list_ids(settings):
        recorded_at, event = trained.get(name, (None, None))
        try:
            artifact.load_checked(settings, name)
            state = "serves" if name == serving else "kept"
        except artifact.ArtifactRejected as error:
            state = f"{REFUSED}{error}"
        rows.append(
            {
                "predictor": name,
                "state": state,
                "trained_at": recorded_at,
                "cases": event.rows if event else None,
                "snapshot": event.snapshot_id[:12] if event else None,
                "why_not": event.reason if event else None,
            }
        )
    return sorted(rows, key=lambda row: str(row["trained_at"] or ""), reverse=True)


def promotions(log: EventLog) -> list[PredictorPromoted]:
    """Return all promotions and rollbacks, the oldest first."""
    events = sorted(log.read(types={"PredictorPromoted"}), key=lambda event: (event.recorded_at, event.event_id))
    return [event.payload for event in events if isinstance(event.payload, PredictorPromoted)]


def remove_old_predictors(settings: Settings, log: EventLog) -> list[str]:
    """Delete old artifacts and return their ids.

    The newest few, the one in service, those it replaced and the best so far stay.
    """
    ids = artifact.list_ids(settings)
    by_age = sorted(ids, key=lambda name: (settings.models_dir / name).stat().st_mtime_ns)
    serving, changes = _serving_id(settings), promotions(log)
    if changes:
        sharing.remove_shared(settings, log, _named_predictors(changes))
    if serving is None:
        return []
    replaced = {change.replaced for change in changes if change.predictor_id == serving}
    kept = {serving, reference_id(log, serving), *replaced}
    removed = [name for name in by_age[:-KEEP_NEWEST] if name not in kept]
    for name in removed:
        artifact.remove(settings, name)
    return removed


def share_promoted(settings: Settings, log: EventLog, notify: Callable[[str], None]) -> list[str]:
    """Store this machine's promoted predictors next to a shared log, as after a restore, and return their ids.

    It skips a predictor that cannot be read, such as one of another version, and notifies of it. Raises LogUnavailable.
    """
    here = set(artifact.list_ids(settings)) if settings.log_uri is not None else set()
    shared = []
    for name in _named_predictors(promotions(log)):
        if name in here:
            try:
                sharing.share(settings, log, name)
                shared.append(name)
            except artifact.ArtifactRejected as error:
                notify(str(error))
    return shared


def _named_predictors(changes: Sequence[PredictorPromoted]) -> list[str]:
    """Return the ids of predictors that the last promotions put into service, replaced or refer to, newest first."""
    named = [name for change in reversed(changes) for name in (change.predictor_id, change.replaced, change.reference)]
    return list(dict.fromkeys(name for name in named if name))[: 3 * KEEP_NEWEST]


def refusal_reason(log: EventLog, predictor_id: str) -> str | None:
    """Return the reason why a candidate was refused.

    None where it was not compared, or where another predictor was put into service since.
    """
    events = sorted(
        log.read(types={"PredictorTrained", "PredictorPromoted"}), key=lambda event: (event.recorded_at, event.event_id)
    )
    reason = None
    for event in events:
        payload = event.payload
        if isinstance(payload, PredictorPromoted):
            reason = None
        elif isinstance(payload, PredictorTrained) and payload.predictor_id == predictor_id:
            reason = payload.reason
    return reason


def rolled_back_ids(log: EventLog) -> set[str]:
    """Return the ids of predictors that were rolled back and not promoted again."""
    ids: set[str] = set()
    for change in promotions(log):
        ids.discard(change.predictor_id)
        if change.cause == "rollback" and change.replaced is not None:
            ids.add(change.replaced)
    return ids


def _previous_id(changes: Sequence[PredictorPromoted], serving: str | None) -> str | None:
    """Return the predictor that the serving one replaced when trained, so that two rollbacks go back two steps."""
    own = [change for change in changes if change.predictor_id == serving]
    trained = [change for change in own if change.cause == "trained"]
    return (trained or own)[-1].replaced if own else None


def _find_id(settings: Settings, prefix: str) -> str:
    """Return the stored id that begins with `prefix`. Raises NotFound for none or several."""
    ids = artifact.list_ids(settings)
    matches = [name for name in ids if name.startswith(prefix)]
    if len(matches) != 1:
        problem = (
            f"Several predictors begin with {prefix!r}" if matches else f"No stored predictor is called {prefix!r}"
        )
        raise NotFound(f"{problem}. Stored: {', '.join(ids) or 'none'}.")
    return matches[0]


def _serving_id(settings: Settings) -> str | None:
    try:
        return artifact.current_id(settings)
    except artifact.ArtifactRejected:
        return None
