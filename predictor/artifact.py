"""A trained predictor on disk: LightGBM text and one JSON manifest, named by its hash, published whole or not at all.

`models/<predictor_id>/` never changes; `models/CURRENT` names the one in service. The id is the hash of the manifest
and the manifest holds the hash of every other file, so an artefact that was altered no longer fits its own name.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from accel_platform.durable import write_durably
from accel_platform.errors import AccelError
from accel_platform.settings import Settings
from predictor.answers import Interval
from predictor.evidence import Target
from predictor.features import CATEGORICAL, NUMERIC, SCHEMA, Features
from predictor.intervals import Calibration
from predictor.quantiles import QUANTILES, Encoder, QuantileModel

FORMAT = 1
_MANIFEST = "manifest.json"


class ArtifactRefused(AccelError):
    """The artefact is damaged, altered, or made by another version of the predictor."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StoredModel(_Part):
    """One quantile model: everything but its trees, which lie in `files` (name to SHA-256), one per quantile."""

    categories: tuple[tuple[str, ...], ...]
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    coefficients: tuple[float, ...]
    calibration: Calibration
    files: dict[str, str]


class Manifest(_Part):
    """What the artefact is, what it was made from, and how well it did."""

    format: int
    snapshot_id: str
    dataset_sha256: str
    feature_schema: int
    numeric: tuple[str, ...]
    categorical: tuple[str, ...]
    quantiles: tuple[float, ...]
    lightgbm: str
    rows: int
    families: tuple[str, ...]
    targets: tuple[tuple[str, str, str | None], ...]
    """Hardware, backend and device id of every target seen with enough families; of no other anything is predicted."""
    precisions: tuple[str | None, ...]
    flops_range: tuple[float, float]
    """Least and most FLOPs of one batch seen."""
    batch_range: tuple[int, int]
    """Smallest and largest batch seen."""
    latency: StoredModel
    memory: StoredModel | None
    metrics: dict[str, Any]


@dataclass(frozen=True)
class Trained:
    """A model and its calibration, as fitted."""

    model: QuantileModel
    calibration: Calibration

    def interval(self, features: Features) -> Interval:
        """The calibrated interval of one cell, back from logarithms."""
        low, middle, high = np.exp(self.calibration.apply(self.model.predict([features]))[0])
        return Interval(p50=float(middle), low=float(low), high=float(high), level=self.calibration.level)


@dataclass(frozen=True)
class Predictor:
    """What serves: the fitted models and their manifest."""

    predictor_id: str
    manifest: Manifest
    latency: Trained
    memory: Trained | None

    def knows(self, target: Target) -> bool:
        return (target.hardware, target.backend, target.device_id) in self.manifest.targets

    def times_outside(self, flops: float, batch_size: int) -> float:
        """How many times larger (or smaller) a batch or its work is than any seen in training; 1 inside the range."""
        ranges = ((flops, *self.manifest.flops_range), (batch_size, *self.manifest.batch_range))
        return max(1.0, *(max(value / most, least / value) for value, least, most in ranges))


def publish(settings: Settings, manifest: Manifest, files: dict[str, str]) -> str:
    """Store an artefact and point `CURRENT` at it; returns its id. Storing the same one twice is a no-op."""
    content = _encode(manifest)
    predictor_id = _id_of(content)
    try:
        settings.models_dir.mkdir(parents=True, exist_ok=True)
        building = Path(tempfile.mkdtemp(prefix=".building-", dir=settings.models_dir))
    except OSError as error:
        raise AccelError(f"The predictor cannot be stored in {settings.models_dir}: {error.strerror}.") from error
    try:
        for name, text in files.items():
            write_durably(building / name, text)
        write_durably(building / _MANIFEST, content)
        final = settings.models_dir / predictor_id
        if final.exists():
            # Equal names promise equal contents; one that was damaged since is replaced by the good one.
            aside = building / "replaced"
            os.rename(final, aside)
            shutil.rmtree(aside)
        building.chmod(0o755)
        os.rename(building, final)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    write_durably(settings.models_dir / "CURRENT", predictor_id)
    return predictor_id


def current_id(settings: Settings) -> str | None:
    """The predictor in service, None before the first. Raises ArtifactRefused where the system refuses to tell."""
    pointer = settings.models_dir / "CURRENT"
    try:
        return pointer.read_text().strip() or None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ArtifactRefused(f"{pointer} cannot be read ({error.strerror}).") from error


def load(settings: Settings, predictor_id: str) -> Predictor:
    """Load an artefact after checking every byte of it. Raises ArtifactRefused."""
    directory = settings.models_dir / predictor_id
    content = _read(directory / _MANIFEST)
    if Path(predictor_id).name != predictor_id or _id_of(content) != predictor_id:
        raise ArtifactRefused(f"The predictor {predictor_id} was altered after training: run `accel train` again.")
    try:
        manifest = Manifest.model_validate_json(content)
    except ValidationError as error:
        raise ArtifactRefused(
            f"The predictor {predictor_id} is of another version ({error.error_count()} fields differ): "
            "run `accel train` again."
        ) from error
    made_for = (manifest.format, manifest.feature_schema, manifest.numeric, manifest.categorical, manifest.quantiles)
    if made_for != (FORMAT, SCHEMA, NUMERIC, CATEGORICAL, QUANTILES):
        raise ArtifactRefused(f"The predictor {predictor_id} has other features: run `accel train` again.")
    return Predictor(
        predictor_id=predictor_id,
        manifest=manifest,
        latency=_restore(directory, manifest.latency),
        memory=None if manifest.memory is None else _restore(directory, manifest.memory),
    )


def stored(trained: Trained, target: str) -> tuple[StoredModel, dict[str, str]]:
    """A model as manifest entry and files, the files named after what it predicts."""
    model = trained.model
    texts = {
        f"{target}_p{quantile * 100:02.0f}.txt": booster.model_to_string(num_iteration=-1)
        for quantile, booster in zip(QUANTILES, model.boosters, strict=True)
    }
    entry = StoredModel(
        categories=model.encoder.categories,
        mean=model.encoder.mean,
        scale=model.encoder.scale,
        coefficients=model.coefficients,
        calibration=trained.calibration,
        files={name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()},
    )
    return entry, texts


def sha256_of(manifest: Manifest) -> str:
    """The hash that the artefact's id begins with; it covers every file."""
    return hashlib.sha256(_encode(manifest)).hexdigest()


def _encode(manifest: Manifest) -> bytes:
    return json.dumps(manifest.model_dump(mode="json"), indent=1, sort_keys=True, allow_nan=False).encode()


def _restore(directory: Path, entry: StoredModel) -> Trained:
    boosters = []
    for name, sha256 in entry.files.items():
        content = _read(directory / name)
        if hashlib.sha256(content).hexdigest() != sha256:
            raise ArtifactRefused(f"{directory / name} was altered after training: run `accel train` again.")
        boosters.append(lgb.Booster(model_str=content.decode()))
    if len(boosters) != len(QUANTILES) or not all(map(math.isfinite, entry.coefficients)):
        raise ArtifactRefused(f"The predictor in {directory} is incomplete: run `accel train` again.")
    encoder = Encoder(entry.categories, entry.mean, entry.scale)
    return Trained(QuantileModel(encoder, entry.coefficients, tuple(boosters)), entry.calibration)


def _id_of(manifest: bytes) -> str:
    return f"lgbm-{hashlib.sha256(manifest).hexdigest()[:32]}"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ArtifactRefused(f"{path} cannot be read ({error.strerror}): run `accel train` again.") from error
