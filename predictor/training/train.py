"""Training: from samples to fitted models, held-out errors, the artifact, its promotion and the events."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from functools import cached_property
from typing import Any, NamedTuple

import lightgbm
from threadpoolctl import threadpool_limits

from accel_platform.errors import AccelError, NotFound
from accel_platform.events import Event, EventLog
from accel_platform.events.types import PredictorTrained
from accel_platform.settings import Settings
from accel_platform.table_io.values import count_of
from accel_platform.warehouse.reader import Reader
from predictor.calibration.conformal import MIN_GROUPS
from predictor.calibration.cross_validation import (
    MIN_SAMPLES,
    CrossValidated,
    HoldoutPredictions,
    Regime,
    RegimeCalibrations,
    calibrate_regimes,
    cross_validate,
    regime_metrics,
)
from predictor.calibration.failure_model import FailureModel
from predictor.calibration.memory_model import MemoryModel
from predictor.calibration.predictor import (
    ModeModel,
    Predictor,
    TrainingRange,
    median_log_latency,
    own_group,
)
from predictor.data.dataset import TrainingSet, load_training_set
from predictor.data.samples import Sample, WorkloadCost, field_values
from predictor.models.latency_model import LatencyModel, known_of
from predictor.models.residual_trees import FEATURE_SCHEMA
from predictor.training import artifact, sharing
from predictor.training.comparison import PromotionDecision, TrainedPredictor, compare
from predictor.training.manifest import Manifest, fitting_code_sha256
from predictor.training.promotion import promote, reference_id, refusal_reason, rolled_back_ids

Progress = Callable[[str], None]


class NotEnoughEvidence(AccelError):
    """Too few measurements to train on. Recommendations still come from the measurements."""


@dataclass(frozen=True)
class TrainingReport:
    """Result of a training."""

    predictor_id: str
    snapshot_id: str
    rows: int
    families: int
    skipped: dict[str, int]
    metrics: dict[str, Any]
    promoted: bool
    reason: str
    """Reason why it was promoted or not."""
    new: bool
    """False if a predictor of exactly these data serves already, or was refused before."""


def train(settings: Settings, log: EventLog, *, progress: Progress | None = None) -> TrainingReport:
    """Train on the published warehouse, store the predictor, and put it into service if it is not worse.

    Deterministic: equal data give an equal artifact. Raises NotEnoughEvidence, which says what to measure, and
    WarehouseEmpty before the first publish.
    """
    notify = progress or (lambda _: None)
    # First, because it may change the predictor in service, which is loaded beside the training set.
    _follow(settings, log, notify)
    with ThreadPoolExecutor(max_workers=1) as pool:
        loading = pool.submit(_load_serving, settings)
        data = _read_training_data(settings)
        serving = loading.result()
    notify(
        f"{count_of(sum(map(len, data.samples.values())), 'figure')} of "
        f"{count_of(len(_families(data.samples)), 'family')} at snapshot {data.snapshot_id[:12]}"
    )
    trained = (
        _keep_serving(settings, log, data, serving, notify)
        or _refused_before(settings, log, data, notify)
        or _train_anew(settings, log, data, serving, notify)
    )
    # Also if nothing is new, because an earlier training may have died before this line. The key makes it one event.
    log.append([_event(trained)], key=f"trained-{trained.predictor_id}")
    decision = trained.decision
    if decision.promoted and trained.new:
        promote(settings, log, trained.predictor_id, decision)
    notify(f"{trained.predictor_id} {'serves' if decision.promoted else 'does not serve'}: {decision.reason}")
    return TrainingReport(
        predictor_id=trained.predictor_id,
        snapshot_id=data.snapshot_id,
        rows=trained.manifest.rows,
        families=len(trained.manifest.families),
        skipped=data.skipped,
        metrics=trained.manifest.metrics,
        promoted=decision.promoted,
        reason=decision.reason,
        new=trained.new,
    )


@dataclass(frozen=True)
class _TrainingData:
    """Samples of one snapshot by mode, and the number of results left out by reason."""

    snapshot_id: str
    samples: dict[str, list[Sample]]
    failed: Sequence[tuple[Sample, str]]
    """Samples of failed cells, with the class of failure."""
    skipped: dict[str, int]
    """Number of results left out, by reason."""

    @cached_property
    def sha256(self) -> str:
        """Hash of all that training depends on except the code."""
        rows = [[_plain_values(sample) for sample in samples] for samples in self.samples.values()]
        failures = sorted([repr(astuple(sample)), kind] for sample, kind in self.failed)
        return hashlib.sha256(json.dumps([FEATURE_SCHEMA, rows, failures]).encode()).hexdigest()


class _TrainingOutcome(NamedTuple):
    """A stored predictor of the training data, and the decision on it."""

    predictor_id: str
    manifest: Manifest
    decision: PromotionDecision
    new: bool


def _plain_values(sample: Sample) -> list[Any]:
    """Return a sample's values as JSON holds them, its workload as a list."""
    # Not by `astuple`, because copying 25,000 samples takes a second.
    return [[*vars(value).values()] if isinstance(value, WorkloadCost) else value for value in field_values(sample)]


def _keep_serving(
    settings: Settings, log: EventLog, data: _TrainingData, serving: Predictor | None, notify: Progress
) -> _TrainingOutcome | None:
    """Return the predictor in service if training on these data would yield it again; else None."""
    if serving is None:
        return None
    manifest = artifact.load_manifest(settings, serving.predictor_id)
    if not _would_fit_again(manifest, data):
        return None
    same = "on exactly these data" if manifest.snapshot_id != data.snapshot_id else "at this very snapshot"
    notify(f"the predictor in service was trained {same}: kept")
    sharing.share(settings, log, serving.predictor_id)
    return _TrainingOutcome(
        serving.predictor_id, manifest, PromotionDecision(True, "in service already", {}), new=False
    )


def _train_anew(
    settings: Settings, log: EventLog, data: _TrainingData, serving: Predictor | None, notify: Progress
) -> _TrainingOutcome:
    """Fit a predictor, compare it with the one in service, and store it."""
    artifact.require_storable(settings)
    log.require_writable()
    before = None if serving is None else attach_holdouts(settings, serving)
    fitted = {}
    if before is not None:
        fitted = fitted_groups(before, artifact.load_manifest(settings, before.predictor.predictor_id))
    candidate, holdouts, metrics = fit_predictor(data.samples, data.failed, notify, fitted)
    if _follow(settings, log, notify):
        # Another machine promoted a predictor meanwhile.
        serving = _load_serving(settings)
        before = None if serving is None else attach_holdouts(settings, serving)
    decision = compare(TrainedPredictor(candidate, holdouts), before, _load_reference(settings, log, serving))
    manifest, files = artifact.serialize(
        candidate,
        holdouts,
        snapshot_id=data.snapshot_id,
        dataset_sha256=data.sha256,
        metrics=metrics | {"compared": decision.report},
    )
    return _TrainingOutcome(artifact.store(settings, manifest, files), manifest, decision, new=True)


class FittedGroup(NamedTuple):
    """Model of one group of samples, with its held-out errors and their metrics."""

    model: ModeModel
    holdouts: dict[Regime, HoldoutPredictions]
    metrics: dict[str, Any]


def attach_holdouts(settings: Settings, predictor: Predictor) -> TrainedPredictor:
    """Return a stored predictor with its held-out errors; without them where other code computed them."""
    manifest = artifact.load_manifest(settings, predictor.predictor_id)
    if not _fits_alike(manifest):
        return TrainedPredictor(predictor, {})
    return TrainedPredictor(predictor, artifact.load_holdout(settings, predictor.predictor_id, predictor))


def _fits_alike(manifest: Manifest) -> bool:
    """Return whether the code here would fit equal models to the data of a predictor."""
    return (manifest.code_sha256, manifest.lightgbm) == (fitting_code_sha256(), lightgbm.__version__)


def _would_fit_again(manifest: Manifest, data: _TrainingData) -> bool:
    """Return whether training on these data would yield the predictor again."""
    return manifest.dataset_sha256 == data.sha256 and _fits_alike(manifest)


def fitted_groups(before: TrainedPredictor, manifest: Manifest) -> dict[str, FittedGroup]:
    """Return the fitted groups of a stored predictor by name; none where other code fitted them."""
    modes = before.predictor.modes
    return {
        name: FittedGroup(modes[name], held_out, manifest.metrics["latency"][name])
        for name, held_out in before.holdouts.items()
    }


def fit_modes(
    samples: dict[str, list[Sample]], notify: Progress, fitted: Mapping[str, FittedGroup] | None = None
) -> tuple[dict[str, ModeModel], dict[str, dict[Regime, HoldoutPredictions]], dict[str, Any]]:
    """Fit and calibrate a latency model for each mode, and for own devices of each kind.

    Own devices of each kind have a model of their own, because a few figures of GPUs make the intervals of CPUs several
    times as wide. A group whose samples equal those in `fitted` is not fitted again, because the result would be the
    same. The trees are taken from `fitted` where the samples of known devices are equal.

    Returns
    -------
    Models, held-out errors by regime, and their metrics; each by group (`own_group`, or the mode).
    """
    groups = dict(samples)
    for mode, mode_samples in samples.items():
        for kind in sorted({sample.kind for sample in mode_samples}):
            own = [sample for sample in mode_samples if sample.own and sample.kind == kind]
            if len(own) < len(mode_samples) and _is_enough(own):
                groups[own_group(mode, kind)] = own
    modes: dict[str, ModeModel] = {}
    holdouts: dict[str, dict[Regime, HoldoutPredictions]] = {}
    latency: dict[str, Any] = {}
    for mode, mode_samples in groups.items():
        earlier = fitted.get(mode) if fitted else None
        if earlier is not None and earlier.model.latency_model.samples == mode_samples:
            modes[mode], holdouts[mode], latency[mode] = earlier
            notify(f"{mode}: {count_of(len(mode_samples), 'figure')}, all as before: kept")
            continue
        # Each fit has one thread, because further threads of the linear algebra would spin while they wait for work.
        with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(max_workers=2) as pool:
            validation = pool.submit(_validate, mode_samples, earlier)
            fitting = pool.submit(_fit, mode_samples, earlier)
            holdouts[mode], latency[mode], calibrations = validation.result()
            model = fitting.result()
        modes[mode] = ModeModel(model, calibrations, TrainingRange.fit(mode_samples), median_log_latency(model))
        errors = ", ".join(
            f"{found['median_ape']:.1%} lacking {Regime(regime).label}" for regime, found in latency[mode].items()
        )
        notify(
            f"{mode}: {count_of(len(mode_samples), 'figure')}; "
            f"median error {errors or 'not known: too few to hold some out'}"
        )
    return modes, holdouts, latency


def _fit(samples: Sequence[Sample], earlier: FittedGroup | None) -> LatencyModel:
    """Fit a latency model. Trees of an earlier one are taken where they were fitted to the same samples."""
    ensembles = None
    if earlier is not None and earlier.model.latency_model.known_samples == known_of(samples):
        ensembles = earlier.model.latency_model.fit()
    model = LatencyModel(samples, ensembles=ensembles)
    model.fit()
    return model


def _validate(
    samples: Sequence[Sample], earlier: FittedGroup | None
) -> tuple[dict[Regime, HoldoutPredictions], dict[str, dict[str, Any]], RegimeCalibrations]:
    before = None if earlier is None else CrossValidated(earlier.model.latency_model.samples, earlier.holdouts)
    holdouts = cross_validate(samples, before)
    return holdouts, regime_metrics(holdouts), calibrate_regimes(holdouts)


def fit_predictor(
    samples: dict[str, list[Sample]],
    failed: Sequence[tuple[Sample, str]],
    notify: Progress,
    fitted: Mapping[str, FittedGroup] | None = None,
) -> tuple[Predictor, dict[str, dict[Regime, HoldoutPredictions]], dict[str, Any]]:
    """Fit a predictor to the samples by mode; return it with its held-out errors by mode, and its metrics."""
    modes, holdouts, latency = fit_modes(samples, notify, fitted)
    everything = [sample for mode_samples in samples.values() for sample in mode_samples]
    # Only own figures are used: publishers' peak memory may be of something else than the process (AI Hub: the driver).
    memory = MemoryModel.fit([sample for sample in everything if sample.own])
    risks = FailureModel.fit(everything, failed, memory)
    metrics = {"latency": latency, "failures": risks.metrics}
    if memory is not None:
        metrics["memory"] = memory.metrics
        notify(f"memory: median error {memory.metrics['median_ape']:.1%} on unseen families")
    predictor = Predictor("", "", len(everything), tuple(sorted(_families(samples))), modes, memory, risks)
    return predictor, holdouts, metrics


def metric_rows(metrics: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the metrics of an artifact as table rows: one per mode and regime, and one for memory."""
    rows = [
        _metric_row(f"latency, {mode}", Regime(regime), found)
        for mode, by_regime in metrics["latency"].items()
        for regime, found in by_regime.items()
    ]
    memory = metrics.get("memory")
    return rows if memory is None else [*rows, _metric_row("memory peak", Regime.UNSEEN_FAMILY, memory)]


def _metric_row(figure: str, regime: Regime, found: Mapping[str, Any]) -> dict[str, Any]:
    def percent(value: float | None) -> str | None:
        return None if value is None else f"{value:.1%}"

    return {
        "figure": figure,
        "lacking": regime.label,
        "held out": found["rows"],
        "groups": found["groups"],
        "median error": percent(found["median_ape"]),
        "coverage": percent(found["coverage"]),
        "aimed at": percent(found["coverage_aimed_at"]),
    }


def _read_training_data(settings: Settings) -> _TrainingData:
    reader = Reader(settings)
    while True:
        snapshot_id = reader.snapshot_id
        training_set = load_training_set(reader)
        # Read again if another snapshot was published between two queries.
        if reader.snapshot_id == snapshot_id:
            break
    samples, too_few = _group_by_mode(training_set)
    return _TrainingData(snapshot_id, samples, training_set.failed, {**training_set.skipped, **too_few})


def _group_by_mode(training_set: TrainingSet) -> tuple[dict[str, list[Sample]], dict[str, int]]:
    """Return the samples of each mode that has enough of them, and the number of all others by reason."""
    skipped: dict[str, int] = {}
    modes: dict[str, list[Sample]] = {}
    for mode in sorted({sample.mode for sample in training_set.measured}):
        samples = [sample for sample in training_set.measured if sample.mode == mode]
        if _is_enough(samples):
            modes[mode] = samples
        else:
            skipped[f"too few figures in mode {mode}"] = len(samples)
    if not modes:
        families = sorted({sample.family for sample in training_set.measured})
        left_out = "".join(f"; {count} left out: {reason}" for reason, count in training_set.skipped.items())
        raise NotEnoughEvidence(
            f"A predictor needs {MIN_SAMPLES} measured cells of {MIN_GROUPS} model families in one mode; the tables "
            f"have {_count_by_mode(training_set.measured)} ({', '.join(families) or 'no family'}){left_out}. "
            "Measure more with `accel bench run`, or add what others published with `accel knowledge add --all`; then "
            "`accel db rebuild` and `accel train`. What was measured can be recommended already."
        )
    return modes, skipped


def _count_by_mode(samples: Sequence[Sample]) -> str:
    """Return how many cells and families each mode has."""
    modes = sorted({sample.mode for sample in samples})
    each = [(mode, [sample for sample in samples if sample.mode == mode]) for mode in modes]
    return ", ".join(f"{len(s)} of {len({x.family for x in s})} in {mode}" for mode, s in each) or "none"


def _is_enough(samples: Sequence[Sample]) -> bool:
    return len(samples) >= MIN_SAMPLES and len({sample.family for sample in samples}) >= MIN_GROUPS


def _refused_before(
    settings: Settings, log: EventLog, data: _TrainingData, notify: Progress
) -> _TrainingOutcome | None:
    """Return a predictor of exactly these data that was rolled back, or refused by comparison with the one in service.

    Training again would yield the same predictor, and refuse it again.
    """
    rolled_back = rolled_back_ids(log)
    for name in artifact.list_ids(settings):
        try:
            manifest = artifact.load_manifest(settings, name)
        except artifact.ArtifactRejected:
            continue
        if not _would_fit_again(manifest, data):
            continue
        again = f"somebody went back from it: `accel predictor rollback {name}` puts it into service"
        reason = again if name in rolled_back else refusal_reason(log, name)
        if reason is not None:
            notify("a predictor was trained on exactly these data before, and refused: not trained again")
            decision = PromotionDecision(False, reason, manifest.metrics.get("compared", {}))
            return _TrainingOutcome(name, manifest, decision, new=False)
    return None


def _follow(settings: Settings, log: EventLog, notify: Progress) -> bool:
    """Put what another machine of a shared log promoted into service, with all that training looks back on."""
    adopted = None
    try:
        adopted = sharing.follow_promotions(settings)
        serving = artifact.current_id(settings)
        looked_at = {*rolled_back_ids(log), *filter(None, [reference_id(log, serving)])} if settings.log_uri else set()
        sharing.fetch_missing(settings, log, looked_at)
    except (NotFound, artifact.ArtifactRejected) as error:
        notify(str(error))
    if adopted:
        notify(f"{adopted} serves: another machine promoted it")
    return adopted is not None


def _load_serving(settings: Settings) -> Predictor | None:
    """Load the predictor in service; None where there is none that can be read."""
    try:
        serving = artifact.current_id(settings)
        return None if serving is None else artifact.load(settings, serving)
    except artifact.ArtifactRejected:
        return None


def _load_reference(settings: Settings, log: EventLog, serving: Predictor | None) -> TrainedPredictor | None:
    """Load the best predictor so far; None where it serves or can no longer be read."""
    name = None if serving is None else reference_id(log, serving.predictor_id)
    if name is None or (serving is not None and name == serving.predictor_id):
        return None
    try:
        return attach_holdouts(settings, artifact.load(settings, name))
    except artifact.ArtifactRejected:
        return None


def _families(samples: dict[str, list[Sample]]) -> set[str]:
    return {sample.family for group in samples.values() for sample in group}


def _event(trained: _TrainingOutcome) -> Event:
    manifest, decision = trained.manifest, trained.decision
    return Event.of(
        PredictorTrained(
            predictor_id=trained.predictor_id,
            snapshot_id=manifest.snapshot_id,
            artifact_sha256=artifact.manifest_sha256(manifest),
            rows=manifest.rows,
            promoted=decision.promoted,
            metrics=manifest.metrics,
            reason=None if decision.promoted else decision.reason,
        ),
        source="predictor.training.train",
    )
