"""Training: dataset, cross-validation by family, calibration, the final fit, the artefact, and the event that tells."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import lightgbm
import numpy as np
import numpy.typing as npt

from accel_platform.errors import AccelError
from accel_platform.events import Event, EventLog
from accel_platform.events.types import PredictorTrained
from accel_platform.settings import Settings
from accel_platform.warehouse.query import Reader
from predictor import artifact
from predictor.artifact import Manifest, StoredModel, Trained
from predictor.dataset import Dataset, build_dataset
from predictor.evaluate import cross_validate, metrics_of
from predictor.evidence import load_evidence
from predictor.features import CATEGORICAL, NUMERIC, SCHEMA, Features
from predictor.intervals import FEWEST_GROUPS, calibrate
from predictor.quantiles import QUANTILES, QuantileModel

FEWEST_ROWS = 12


class NotEnoughEvidence(AccelError):
    """Too little has been measured to learn from. Recommendations still come from what was measured."""


@dataclass(frozen=True)
class TrainingReport:
    """What a training did. `new` is False where the predictor in service was made from exactly these data."""

    predictor_id: str
    snapshot_id: str
    rows: int
    families: int
    skipped: dict[str, int]
    metrics: dict[str, Any]
    promoted: bool
    new: bool


def train(settings: Settings, log: EventLog, *, progress: Callable[[str], None] | None = None) -> TrainingReport:
    """Train on the projection in service, publish the predictor and append its PredictorTrained event.

    One thread, and deterministic: equal data give an equal artefact. Raises NotEnoughEvidence, saying what to measure,
    and WarehouseEmpty before the first projection.
    """
    say = progress or (lambda _: None)
    dataset = build_dataset(load_evidence(Reader(settings)))
    _require_enough(dataset)
    say(f"{len(dataset.cells)} cells of {len(set(dataset.families))} families at snapshot {dataset.snapshot_id[:12]}")
    manifest = _in_service(settings, dataset)
    new = manifest is None
    if manifest is None:
        manifest, files = _fit(dataset, say)
        predictor_id = artifact.publish(settings, manifest, files)
    else:
        predictor_id = str(artifact.current_id(settings))
        say("the predictor in service was trained on exactly these data: kept")
    # Also when kept: a training that died between publishing and telling tells now. The key makes it once.
    log.append([_event(predictor_id, manifest)], key=f"trained-{predictor_id}")
    return TrainingReport(
        predictor_id=predictor_id,
        snapshot_id=dataset.snapshot_id,
        rows=manifest.rows,
        families=len(manifest.families),
        skipped=dataset.skipped,
        metrics=manifest.metrics,
        promoted=True,
        new=new,
    )


def _require_enough(dataset: Dataset) -> None:
    rows, families = len(dataset.cells), sorted(set(dataset.families))
    if rows >= FEWEST_ROWS and len(families) >= FEWEST_GROUPS:
        return
    skipped = "".join(f"; {count} left out: {reason}" for reason, count in dataset.skipped.items())
    raise NotEnoughEvidence(
        f"A predictor needs {FEWEST_ROWS} measured cells of {FEWEST_GROUPS} model families; the warehouse has {rows} "
        f"of {len(families)} ({', '.join(families) or 'none'}){skipped}. Measure more with `accel bench run`, then "
        "`accel db rebuild` and `accel train`. What was measured can be recommended already."
    )


def _in_service(settings: Settings, dataset: Dataset) -> Manifest | None:
    """The manifest in service if it was made from these very data by this code, else None."""
    serving = artifact.current_id(settings)
    if serving is None:
        return None
    try:
        manifest = artifact.load(settings, serving).manifest
    except artifact.ArtifactRefused:
        return None
    same = (manifest.dataset_sha256, manifest.lightgbm) == (dataset.sha256, lightgbm.__version__)
    return manifest if same else None


def _fit(dataset: Dataset, say: Callable[[str], None]) -> tuple[Manifest, dict[str, str]]:
    latency, files, metrics = _fit_target("latency", dataset.features, dataset.latency_ms, dataset.families, say)
    memory = None
    known = np.flatnonzero(~np.isnan(dataset.memory_peak_mib)).tolist()
    families = [dataset.families[i] for i in known]
    all_metrics = {"latency": metrics}
    if len(known) >= FEWEST_ROWS and len(set(families)) >= FEWEST_GROUPS:
        peaks = dataset.memory_peak_mib[known]
        features = tuple(dataset.features[i] for i in known)
        memory, more, all_metrics["memory"] = _fit_target("memory", features, peaks, families, say)
        files |= more
    flops = np.exp([row.numeric[NUMERIC.index("log_flops")] for row in dataset.features])
    batches = [cell.cell.batch_size for cell in dataset.cells]
    manifest = Manifest(
        format=artifact.FORMAT,
        snapshot_id=dataset.snapshot_id,
        dataset_sha256=dataset.sha256,
        feature_schema=SCHEMA,
        numeric=NUMERIC,
        categorical=CATEGORICAL,
        quantiles=QUANTILES,
        lightgbm=lightgbm.__version__,
        rows=len(dataset.cells),
        families=tuple(sorted(set(dataset.families))),
        targets=tuple((t.hardware, t.backend, t.device_id) for t in dataset.targets(FEWEST_GROUPS)),
        precisions=tuple(sorted({c.cell.precision for c in dataset.cells}, key=lambda p: p or "")),
        flops_range=(float(flops.min()), float(flops.max())),
        batch_range=(min(batches), max(batches)),
        latency=latency,
        memory=memory,
        metrics=all_metrics,
    )
    return manifest, files


def _fit_target(
    name: str,
    features: tuple[Features, ...],
    values: npt.NDArray[np.float64],
    families: list[str],
    say: Callable[[str], None],
) -> tuple[StoredModel, dict[str, str], dict[str, Any]]:
    logs = np.log(values)
    out = cross_validate(features, logs, families)
    calibration = calibrate(out.quantiles, out.truth, out.groups)
    metrics = metrics_of(out)
    say(
        f"{name}: median error {metrics['median_ape']:.1%} on unseen families "
        f"(ridge alone {metrics['ridge_median_ape']:.1%}), intervals at level {calibration.level:.0%}"
    )
    entry, files = artifact.stored(Trained(QuantileModel.fit(list(features), logs), calibration), name)
    return entry, files, metrics


def _event(predictor_id: str, manifest: Manifest) -> Event:
    return Event.of(
        PredictorTrained(
            predictor_id=predictor_id,
            snapshot_id=manifest.snapshot_id,
            artifact_sha256=artifact.sha256_of(manifest),
            rows=manifest.rows,
            promoted=True,
            metrics=manifest.metrics,
        ),
        source="predictor.train",
    )
