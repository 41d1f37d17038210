"""Training: cases, what is held out of them, the fits, the artefact, whether it serves, and the events that tell."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import astuple, dataclass
from typing import Any

import lightgbm

from accel_platform.errors import AccelError
from accel_platform.events import Event, EventLog
from accel_platform.events.types import PredictorTrained
from accel_platform.settings import Settings
from accel_platform.warehouse.reader import Reader
from predictor.calibration.conformal import MIN_GROUPS
from predictor.calibration.cross_validation import (
    MIN_SAMPLES,
    HoldoutPredictions,
    Regime,
    calibrate_regimes,
    cross_validate,
    regime_metrics,
)
from predictor.calibration.failure_model import FailureModel
from predictor.calibration.memory_model import MemoryModel
from predictor.calibration.predictor import ModeModel, Predictor, TrainingRange, median_log_latency
from predictor.data.dataset import TrainingSet, load_training_set
from predictor.data.samples import Sample
from predictor.models.latency_model import LatencyModel
from predictor.models.residual_trees import FEATURE_SCHEMA
from predictor.training import artifact
from predictor.training.artifact import Manifest
from predictor.training.promotion import PromotionDecision, compare, promote, refusal_reason, rolled_back_ids

Progress = Callable[[str], None]


class NotEnoughEvidence(AccelError):
    """Too little has been measured to learn from. Recommendations still come from what was measured."""


@dataclass(frozen=True)
class TrainingReport:
    """What a training did. `new` is False where a predictor of exactly these data serves, or was refused."""

    predictor_id: str
    snapshot_id: str
    rows: int
    families: int
    skipped: dict[str, int]
    metrics: dict[str, Any]
    promoted: bool
    reason: str
    """Why it serves or does not."""
    new: bool


def train(settings: Settings, log: EventLog, *, progress: Progress | None = None) -> TrainingReport:
    """Train on the projection in service, store the predictor, and put it into service if it is not worse.

    Deterministic: equal data give an equal artefact. Raises NotEnoughEvidence, saying what to measure, and
    WarehouseEmpty before the first projection.
    """
    say = progress or (lambda _: None)
    snapshot_id, book = _read_training_set(settings)
    skipped = dict(book.skipped)
    samples = _group_by_mode(book, skipped)
    rows = sum(map(len, samples.values()))
    say(f"{rows} cases of {len(_families(samples))} families at snapshot {snapshot_id[:12]}")
    digest = _dataset_sha256(samples, book.failed)
    serving = _serving(settings)
    manifest = None if serving is None else artifact.load_manifest(settings, serving.predictor_id)
    if serving and manifest and (manifest.dataset_sha256, manifest.lightgbm) == (digest, lightgbm.__version__):
        same = "on exactly these data" if manifest.snapshot_id != snapshot_id else "at this very snapshot"
        say(f"the predictor in service was trained {same}: kept")
        predictor_id, new, verdict = serving.predictor_id, False, PromotionDecision(True, "in service already", {})
    elif (known := _refused_before(settings, log, digest)) is not None:
        predictor_id, manifest, verdict = known
        new = False
        say("a predictor was trained on exactly these data before, and refused: not trained again")
    else:
        candidate, held, metrics = fit_predictor(samples, book.failed, say)
        verdict = compare(candidate, serving)
        metrics["compared"] = verdict.report
        about = {"snapshot_id": snapshot_id, "dataset_sha256": digest}
        manifest, files = artifact.serialize(candidate, held, **about, metrics=metrics)
        predictor_id, new = artifact.store(settings, manifest, files), True
    # Also when kept: a training that died between publishing and telling tells now. The keys make it once.
    log.append([_event(predictor_id, manifest, verdict)], key=f"trained-{predictor_id}")
    if verdict.promoted and new:
        promote(settings, log, predictor_id, verdict)
    say(f"{predictor_id} {'serves' if verdict.promoted else 'does not serve'}: {verdict.reason}")
    return TrainingReport(
        predictor_id=predictor_id,
        snapshot_id=snapshot_id,
        rows=manifest.rows,
        families=len(manifest.families),
        skipped=skipped,
        metrics=manifest.metrics,
        promoted=verdict.promoted,
        reason=verdict.reason,
        new=new,
    )


def fit_predictor(
    samples: dict[str, list[Sample]], failed: Sequence[tuple[Sample, str]], say: Progress
) -> tuple[Predictor, dict[str, dict[Regime, HoldoutPredictions]], dict[str, Any]]:
    """A predictor of these cases, what was held out of them by mode, and how far it errs on that."""
    modes: dict[str, ModeModel] = {}
    held: dict[str, dict[Regime, HoldoutPredictions]] = {}
    latency: dict[str, Any] = {}
    for mode, told in samples.items():
        latency_model = LatencyModel(told)
        with ThreadPoolExecutor(max_workers=2) as pool:
            testing, growing = pool.submit(cross_validate, told), pool.submit(latency_model.fit)
            held[mode] = testing.result()
            growing.result()
        latency[mode] = regime_metrics(held[mode])
        modes[mode] = ModeModel(
            latency_model, calibrate_regimes(held[mode]), TrainingRange.fit(told), median_log_latency(latency_model)
        )
        errors = ", ".join(f"{found['median_ape']:.1%} lacking {regime}" for regime, found in latency[mode].items())
        say(f"{mode}: {len(told)} cases; median error {errors}")
    everything = [sample for told in samples.values() for sample in told]
    memory = MemoryModel.fit(everything)
    risks = FailureModel.fit(everything, failed, memory)
    metrics = {"latency": latency, "failures": risks.metrics}
    if memory is not None:
        metrics["memory"] = memory.metrics
        say(f"memory: median error {memory.metrics['median_ape']:.1%} on unseen families")
    predictor = Predictor("", "", len(everything), tuple(sorted(_families(samples))), modes, memory, risks)
    return predictor, held, metrics


def metric_rows(metrics: dict[str, Any]) -> list[dict[str, Any]]:
    """The metrics of an artefact for people: a line per mode and lack, and one for memory."""

    def percent(value: float | None) -> str | None:
        return None if value is None else f"{value:.1%}"

    rows = [
        {
            "figure": f"latency, {mode}",
            "lacking": regime,
            "held out": found["rows"],
            "groups": found["groups"],
            "median error": percent(found["median_ape"]),
            "coverage": percent(found["coverage"]),
            "aimed at": percent(found["coverage_aimed_at"]),
        }
        for mode, lacks in metrics["latency"].items()
        for regime, found in lacks.items()
    ]
    memory = metrics.get("memory")
    if memory is not None:
        rows.append(
            {
                "figure": "memory peak",
                "lacking": "family",
                "held out": memory["rows"],
                "groups": memory["groups"],
                "median error": percent(memory["median_ape"]),
                "coverage": percent(memory["coverage"]),
                "aimed at": percent(memory["coverage_aimed_at"]),
            }
        )
    return rows


def _read_training_set(settings: Settings) -> tuple[str, TrainingSet]:
    reader = Reader(settings)
    while True:
        snapshot_id = reader.snapshot_id
        book = load_training_set(reader)
        # Another snapshot may have been published between two of the queries: then read again, from one.
        if reader.snapshot_id == snapshot_id:
            return snapshot_id, book


def _group_by_mode(book: TrainingSet, skipped: dict[str, int]) -> dict[str, list[Sample]]:
    """The cases of each mode that has enough; those of the others count as skipped."""
    modes: dict[str, list[Sample]] = {}
    for mode in sorted({sample.mode for sample in book.measured}):
        told = [sample for sample in book.measured if sample.mode == mode]
        if len(told) >= MIN_SAMPLES and len({sample.family for sample in told}) >= MIN_GROUPS:
            modes[mode] = told
        else:
            skipped[f"too few figures in mode {mode}"] = len(told)
    if not modes:
        families = sorted({sample.family for sample in book.measured})
        left_out = "".join(f"; {count} left out: {reason}" for reason, count in book.skipped.items())
        raise NotEnoughEvidence(
            f"A predictor needs {MIN_SAMPLES} measured cells of {MIN_GROUPS} model families in one mode; the warehouse "
            f"has {len(book.measured)} of {len(families)} ({', '.join(families) or 'none'}){left_out}. Measure more "
            "with `accel bench run`, then `accel db rebuild` and `accel train`. What was measured can be recommended "
            "already."
        )
    return modes


def _refused_before(settings: Settings, log: EventLog, digest: str) -> tuple[str, Manifest, PromotionDecision] | None:
    """A predictor of exactly these data that somebody went back from, or that was worse than the one still in service:
    it would be made again, and refused again."""
    gone = rolled_back_ids(log)
    for name in artifact.list_ids(settings):
        try:
            manifest = artifact.load_manifest(settings, name)
        except artifact.ArtifactRejected:
            continue
        if (manifest.dataset_sha256, manifest.lightgbm) != (digest, lightgbm.__version__):
            continue
        again = f"somebody went back from it: `accel predictor rollback {name}` puts it into service"
        reason = again if name in gone else refusal_reason(log, name)
        if reason is not None:
            return name, manifest, PromotionDecision(False, reason, manifest.metrics.get("compared", {}))
    return None


def _serving(settings: Settings) -> Predictor | None:
    """The predictor in service, None where there is none that can be read."""
    try:
        serving = artifact.current_id(settings)
        return None if serving is None else artifact.load(settings, serving)
    except artifact.ArtifactRejected:
        return None


def _families(samples: dict[str, list[Sample]]) -> set[str]:
    return {sample.family for told in samples.values() for sample in told}


def _dataset_sha256(samples: dict[str, list[Sample]], failed: Sequence[tuple[Sample, str]]) -> str:
    """Of everything the training depends on but the code: equal data need not be trained on twice."""
    rows = [[astuple(sample) for sample in told] for told in samples.values()]
    failures = sorted([repr(astuple(sample)), kind] for sample, kind in failed)
    return hashlib.sha256(json.dumps([FEATURE_SCHEMA, rows, failures]).encode()).hexdigest()


def _event(predictor_id: str, manifest: Manifest, verdict: PromotionDecision) -> Event:
    return Event.of(
        PredictorTrained(
            predictor_id=predictor_id,
            snapshot_id=manifest.snapshot_id,
            artifact_sha256=artifact.manifest_sha256(manifest),
            rows=manifest.rows,
            promoted=verdict.promoted,
            metrics=manifest.metrics,
            reason=None if verdict.promoted else verdict.reason,
        ),
        source="predictor.training.train",
    )
