"""A trained predictor on disk: LightGBM text, its cases, and a JSON manifest whose hash names it; stored whole or not.

`models/<predictor_id>/` never changes; `models/CURRENT` names the one in service. The id is the hash of the manifest
and the manifest holds the hash of every other file, so an artefact that was altered no longer fits its own name.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
from pydantic import BaseModel, ConfigDict, ValidationError

from accel_platform.atomic_write import make_directory, sync_directory, write_durably
from accel_platform.errors import AccelError, storage_unavailable
from accel_platform.settings import Settings
from predictor.calibration.conformal import Calibration
from predictor.calibration.cross_validation import HoldoutPredictions, Regime
from predictor.calibration.failure_model import FailureModel
from predictor.calibration.memory_model import MemoryModel
from predictor.calibration.predictor import ModeModel, Predictor, TrainingRange
from predictor.models.analytical import AdditiveRoofline
from predictor.models.latency_model import FittedEnsembles, LatencyModel
from predictor.models.residual_trees import FEATURE_SCHEMA, Encoder, ResidualTrees
from predictor.training.sample_io import COLUMNS, read_holdout, read_samples, write_holdout, write_samples

FORMAT = 4
_MANIFEST = "manifest.json"
_CURRENT = "CURRENT"
_PREFIX = "lgbm-"
_INVALID_POINTER = (
    "{pointer} names no predictor: `accel predictor rollback ID` names one anew (`accel predictor list`)."
)


class ArtifactRejected(AccelError):
    """The artefact is damaged, altered, or made by another version of the predictor."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


Codes = tuple[tuple[str, dict[str, int]], ...]
"""In order: it is that of the columns, which JSON's sorted keys would lose."""


class StoredTrees(_Part):
    """Two boosted models but for their trees, which lie in `files`."""

    factors: tuple[float, ...]
    levels: dict[str, float]
    codes: Codes
    mean: tuple[float, ...]
    scale: tuple[float, ...]
    coefficients: tuple[float, ...]
    files: tuple[str, str]


class StoredMode(_Part):
    """What is known of one mode; its cases, with what the trees leave over of each, lie in `cases`, and how far
    each was missed while held out in `held_out`."""

    specialist: StoredTrees
    generalists: dict[str, StoredTrees]
    calibrations: dict[Regime, Calibration]
    flops_range: tuple[float, float]
    batch_range: tuple[float, float]
    size_range: tuple[float, float]
    typical: float
    cases: str
    held_out: str


class StoredFailureModel(_Part):
    """What was learned of failures; one file of trees per class."""

    curve: tuple[float, float] | None
    codes: Codes
    files: dict[str, str]


class Manifest(_Part):
    """What the artefact is, what it was made from, and how well it did."""

    format: int
    snapshot_id: str
    dataset_sha256: str
    feature_schema: int
    case_columns: tuple[str, ...]
    features: dict[str, tuple[str, ...]]
    """By mode, what each number is that the trees see."""
    lightgbm: str
    rows: int
    families: tuple[str, ...]
    devices: tuple[str, ...]
    modes: dict[str, StoredMode]
    memory: MemoryModel | None
    risks: StoredFailureModel
    metrics: dict[str, Any]
    files: dict[str, str]
    """SHA-256 of every other file."""


Files = dict[str, bytes]


def serialize(
    predictor: Predictor,
    held: Mapping[str, Mapping[Regime, HoldoutPredictions]],
    *,
    snapshot_id: str,
    dataset_sha256: str,
    metrics: dict[str, Any],
) -> tuple[Manifest, Files]:
    """A fitted predictor as manifest and files, with what was held out of it by mode."""
    files: Files = {}
    modes = {}
    for mode, known in predictor.modes.items():
        ensembles = known.latency_model.fit()
        files[f"{mode}_cases.parquet"] = write_samples(
            known.latency_model.samples, known.latency_model.known_devices, ensembles
        )
        files[f"{mode}_held_out.parquet"] = write_holdout(known.latency_model.samples, held[mode])
        modes[mode] = StoredMode(
            specialist=_pack_trees(f"{mode}_specialist", ensembles.specialist, files),
            generalists={k: _pack_trees(f"{mode}_{k}", trees, files) for k, trees in ensembles.generalists.items()},
            calibrations=known.calibrations,
            flops_range=known.range.flops,
            batch_range=known.range.batch,
            size_range=known.range.size,
            typical=known.median_log_ms,
            cases=f"{mode}_cases.parquet",
            held_out=f"{mode}_held_out.parquet",
        )
    risks = predictor.risks
    for kind, booster in risks.boosters.items():
        files[f"risk_{kind}.txt"] = _text(booster)
    told = [sample for known in predictor.modes.values() for sample in known.latency_model.samples]
    manifest = Manifest(
        format=FORMAT,
        snapshot_id=snapshot_id,
        dataset_sha256=dataset_sha256,
        feature_schema=FEATURE_SCHEMA,
        case_columns=COLUMNS,
        features={
            m: tuple(known.latency_model.fit().specialist.encoder.feature_names())
            for m, known in predictor.modes.items()
        },
        lightgbm=lgb.__version__,
        rows=predictor.rows,
        families=predictor.families,
        devices=tuple(sorted({sample.device for sample in told})),
        modes=modes,
        memory=predictor.memory,
        risks=StoredFailureModel(
            curve=risks.curve,
            codes=tuple(risks.encoder.codes.items()),
            files={kind: f"risk_{kind}.txt" for kind in risks.boosters},
        ),
        metrics=metrics,
        files={name: hashlib.sha256(content).hexdigest() for name, content in files.items()},
    )
    return manifest, files


def store(settings: Settings, manifest: Manifest, files: Files) -> str:
    """Store an artefact; returns its id. Storing the same one twice is a no-op, or heals it."""
    content = _encode(manifest)
    predictor_id = _predictor_id(content)
    try:
        make_directory(settings.models_dir)
        building = Path(tempfile.mkdtemp(prefix=".building-", dir=settings.models_dir))
    except OSError as error:
        raise AccelError(f"The predictor cannot be stored in {settings.models_dir}: {error.strerror}.") from error
    try:
        for name, data in files.items():
            write_durably(building / name, data)
        write_durably(building / _MANIFEST, content)
        final = settings.models_dir / predictor_id
        if final.exists():
            # Equal names promise equal contents; one that was damaged since is replaced by the good one.
            aside = building / "replaced"
            os.rename(final, aside)
            shutil.rmtree(aside)
        building.chmod(0o755)
        os.rename(building, final)
        sync_directory(settings.models_dir)
    except OSError as error:
        raise storage_unavailable(error, settings.models_dir) or error  # noqa: B904 - the error itself, or its sentence
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return predictor_id


def activate(settings: Settings, predictor_id: str) -> None:
    """Point `CURRENT` at a stored artefact."""
    write_durably(settings.models_dir / _CURRENT, predictor_id)


def current_id(settings: Settings) -> str | None:
    """The predictor in service, None before the first. Raises ArtifactRefused where the system refuses to tell."""
    pointer = settings.models_dir / _CURRENT
    try:
        predictor_id = pointer.read_text().strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        said = storage_unavailable(error) or f"{pointer} cannot be read ({error.strerror})."
        raise ArtifactRejected(str(said)) from error
    except UnicodeDecodeError as error:
        raise ArtifactRejected(_INVALID_POINTER.format(pointer=pointer)) from error
    if "\0" in predictor_id or "/" in predictor_id:
        raise ArtifactRejected(_INVALID_POINTER.format(pointer=pointer))
    return predictor_id or None


def list_ids(settings: Settings) -> list[str]:
    """Every artefact kept, in the order of their names."""
    return sorted(path.name for path in settings.models_dir.glob(f"{_PREFIX}*") if path.is_dir())


def remove(settings: Settings, predictor_id: str) -> None:
    """Delete a stored artifact; killed half-way, none of it is left under its name."""
    aside = settings.models_dir / f".removed-{predictor_id}"
    os.rename(settings.models_dir / predictor_id, aside)
    shutil.rmtree(aside)


def load_manifest(settings: Settings, predictor_id: str) -> Manifest:
    """The manifest of an artefact, checked against its name. Raises ArtifactRefused."""
    content = _read(settings.models_dir / predictor_id / _MANIFEST)
    if Path(predictor_id).name != predictor_id or _predictor_id(content) != predictor_id:
        raise ArtifactRejected(f"The predictor {predictor_id} was altered after training: run `accel train` again.")
    try:
        stated = json.loads(content)
        if stated.get("format") != FORMAT:
            raise ArtifactRejected(
                f"The predictor {predictor_id} is of another version (format {stated.get('format')}, this one reads "
                f"{FORMAT}): run `accel train` again."
            )
        manifest = Manifest.model_validate_json(content)
    except (ValidationError, ValueError) as error:
        raise ArtifactRejected(
            f"The predictor {predictor_id} is of another version: run `accel train` again."
        ) from error
    if (manifest.feature_schema, manifest.case_columns) != (FEATURE_SCHEMA, COLUMNS):
        raise ArtifactRejected(f"The predictor {predictor_id} has other features: run `accel train` again.")
    return manifest


def load_checked(settings: Settings, predictor_id: str) -> tuple[Manifest, Files]:
    """The manifest of an artefact and its files, every byte as it was stored. Raises ArtifactRefused."""
    manifest = load_manifest(settings, predictor_id)
    return manifest, {name: _read_checked(settings, predictor_id, manifest, name) for name in manifest.files}


def load(settings: Settings, predictor_id: str) -> Predictor:
    """Load an artefact after checking every byte of it. Raises ArtifactRefused."""
    manifest, files = load_checked(settings, predictor_id)
    return Predictor(
        predictor_id=predictor_id,
        snapshot_id=manifest.snapshot_id,
        rows=manifest.rows,
        families=manifest.families,
        modes={mode: _unpack_mode(entry, files) for mode, entry in manifest.modes.items()},
        memory=manifest.memory,
        risks=FailureModel(
            errors=manifest.memory.errors if manifest.memory else (),
            curve=manifest.risks.curve,
            encoder=Encoder(dict(manifest.risks.codes)),
            boosters={kind: _booster(files[name]) for kind, name in manifest.risks.files.items()},
            metrics=manifest.metrics.get("failures", {}),
        ),
    )


def load_holdout(settings: Settings, predictor_id: str) -> dict[str, dict[Regime, HoldoutPredictions]]:
    """What was held out of a predictor while it was trained, by mode. Raises ArtifactRefused."""
    manifest = load_manifest(settings, predictor_id)
    found = {}
    for mode, stored in manifest.modes.items():
        samples, held = (
            _read_checked(settings, predictor_id, manifest, name) for name in (stored.cases, stored.held_out)
        )
        found[mode] = read_holdout(held, read_samples(samples)[0])
    return found


def manifest_sha256(manifest: Manifest) -> str:
    """The hash that the artefact's id begins with; it covers every file."""
    return hashlib.sha256(_encode(manifest)).hexdigest()


def _pack_trees(name: str, trees: ResidualTrees, files: Files) -> StoredTrees:
    names = (f"{name}_plain.txt", f"{name}_over_ridge.txt")
    for file, booster in zip(names, trees.boosters, strict=True):
        files[file] = _text(booster)
    return StoredTrees(
        factors=trees.analytical.factors,
        levels=trees.levels,
        codes=tuple(trees.encoder.codes.items()),
        mean=tuple(trees.mean.tolist()),
        scale=tuple(trees.scale.tolist()),
        coefficients=tuple(trees.coefficients.tolist()),
        files=names,
    )


def _unpack_trees(entry: StoredTrees, files: Files) -> ResidualTrees:
    plain, over_ridge = (_booster(files[name]) for name in entry.files)
    mean, scale, coefficients = (np.array(values) for values in (entry.mean, entry.scale, entry.coefficients))
    analytical, encoder = AdditiveRoofline(entry.factors), Encoder(dict(entry.codes))
    return ResidualTrees(analytical, entry.levels, encoder, mean, scale, coefficients, (plain, over_ridge))


def _unpack_mode(entry: StoredMode, files: Files) -> ModeModel:
    samples, known_residuals, new_residuals = read_samples(files[entry.cases])
    generalists = {kind: _unpack_trees(trees, files) for kind, trees in entry.generalists.items()}
    ensembles = FittedEnsembles(_unpack_trees(entry.specialist, files), generalists, known_residuals, new_residuals)
    return ModeModel(
        latency_model=LatencyModel(samples, ensembles=ensembles),
        calibrations=entry.calibrations,
        range=TrainingRange(entry.flops_range, entry.batch_range, entry.size_range),
        median_log_ms=entry.typical,
    )


def _text(booster: lgb.Booster) -> bytes:
    text: str = booster.model_to_string(num_iteration=-1)
    return text.encode()


def _booster(text: bytes) -> lgb.Booster:
    return lgb.Booster(model_str=text.decode())


def _encode(manifest: Manifest) -> bytes:
    return json.dumps(manifest.model_dump(mode="json"), indent=1, sort_keys=True, allow_nan=False).encode()


def _predictor_id(manifest: bytes) -> str:
    return f"{_PREFIX}{hashlib.sha256(manifest).hexdigest()[:32]}"


def _read_checked(settings: Settings, predictor_id: str, manifest: Manifest, name: str) -> bytes:
    path = settings.models_dir / predictor_id / name
    content = _read(path)
    if hashlib.sha256(content).hexdigest() != manifest.files[name]:
        raise ArtifactRejected(f"{path} was altered after training: run `accel train` again.")
    return content


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ArtifactRejected(f"{path} cannot be read ({error.strerror}): run `accel train` again.") from error
