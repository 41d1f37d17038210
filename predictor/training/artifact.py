"""Artifact of a trained predictor: LightGBM text, training samples and a JSON manifest.

`models/<predictor_id>/` never changes; `models/CURRENT` names the one in service. The id is the hash of the manifest,
which holds the hash of every other file. An altered artifact thus no longer fits its own name.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
from pydantic import ValidationError

from accel_platform.atomic_write import make_directory, sync_directory, write_durably
from accel_platform.errors import AccelError, storage_unavailable
from accel_platform.settings import Settings
from predictor.calibration.cross_validation import HoldoutPredictions, Regime, RegimeCalibrations
from predictor.calibration.failure_model import FailureModel
from predictor.calibration.predictor import ModeModel, Predictor, TrainingRange
from predictor.models.analytical import AdditiveRoofline
from predictor.models.latency_model import FittedEnsembles, LatencyModel
from predictor.models.residual_trees import FEATURE_SCHEMA, Encoder, ResidualTrees
from predictor.training.manifest import (
    FORMAT,
    Manifest,
    StoredFailureModel,
    StoredMode,
    StoredTrees,
    fitting_code_sha256,
)
from predictor.training.sample_io import COLUMNS, read_holdout, read_samples, write_holdout, write_samples

_MANIFEST = "manifest.json"
_CURRENT = "CURRENT"
_PREFIX = "lgbm-"
_INVALID_POINTER = (
    "{pointer} names no predictor: `accel predictor rollback ID` names one anew (`accel predictor list`)."
)


class ArtifactRejected(AccelError):
    """The artifact is damaged, altered, or of another version of the predictor."""


Files = dict[str, bytes]


def serialize(
    predictor: Predictor,
    holdouts: Mapping[str, Mapping[Regime, HoldoutPredictions]],
    *,
    snapshot_id: str,
    dataset_sha256: str,
    metrics: dict[str, Any],
) -> tuple[Manifest, Files]:
    """Return a fitted predictor as manifest and files; `holdouts` are its held-out errors by mode and regime."""
    files: Files = {}
    modes = {}
    for mode, mode_model in predictor.modes.items():
        ensembles = mode_model.latency_model.fit()
        files[f"{mode}_cases.parquet"] = write_samples(
            mode_model.latency_model.samples, mode_model.latency_model.known_devices, ensembles
        )
        files[f"{mode}_held_out.parquet"] = write_holdout(mode_model.latency_model.samples, holdouts[mode])
        modes[mode] = _pack_mode(mode, mode_model, ensembles, files)
    risks = predictor.risks
    for kind, booster in risks.boosters.items():
        files[f"risk_{kind}.txt"] = _text(booster)
    samples = [sample for mode_model in predictor.modes.values() for sample in mode_model.latency_model.samples]
    manifest = Manifest(
        format=FORMAT,
        snapshot_id=snapshot_id,
        dataset_sha256=dataset_sha256,
        feature_schema=FEATURE_SCHEMA,
        case_columns=COLUMNS,
        features={
            mode: tuple(mode_model.latency_model.fit().specialist.encoder.feature_names())
            for mode, mode_model in predictor.modes.items()
        },
        lightgbm=lgb.__version__,
        code_sha256=fitting_code_sha256(),
        rows=predictor.rows,
        families=predictor.families,
        devices=tuple(sorted({sample.device for sample in samples})),
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


def _pack_mode(mode: str, model: ModeModel, ensembles: FittedEnsembles, files: Files) -> StoredMode:
    """Add the trees of a mode to the files, and return its entry of the manifest."""
    return StoredMode(
        specialist=_pack_trees(f"{mode}_specialist", ensembles.specialist, files),
        generalists={
            kind: _pack_trees(f"{mode}_{kind}", trees, files) for kind, trees in ensembles.generalists.items()
        },
        calibrations=model.calibrations.by_place,
        flops_range=model.range.flops,
        batch_range=model.range.batch,
        size_range=model.range.size,
        typical=model.median_log_ms,
        cases=f"{mode}_cases.parquet",
        held_out=f"{mode}_held_out.parquet",
    )


def require_storable(settings: Settings) -> None:
    """Raise StorageUnavailable where no artifact can be stored, so that no fit is computed in vain."""
    with _building_folder(settings) as building:
        (building / "room").write_bytes(b"?")


@contextmanager
def _building_folder(settings: Settings) -> Iterator[Path]:
    """Yield a new folder beside the artifacts, and remove it if it is still there. Raises StorageUnavailable."""
    try:
        make_directory(settings.models_dir)
        building = Path(tempfile.mkdtemp(prefix=".building-", dir=settings.models_dir))
        try:
            yield building
        finally:
            shutil.rmtree(building, ignore_errors=True)
    except OSError as error:
        raise storage_unavailable(error, settings.models_dir) or error  # noqa: B904 - the error itself, or its message


def store(settings: Settings, manifest: Manifest, files: Files) -> str:
    """Store an artifact and return its id. Storing one that exists does nothing, or repairs it.

    Raises StorageUnavailable.
    """
    content = _encode(manifest)
    predictor_id = _predictor_id(content)
    with _building_folder(settings) as building:
        for name, data in files.items():
            write_durably(building / name, data)
        write_durably(building / _MANIFEST, content)
        final = settings.models_dir / predictor_id
        if final.exists():
            # Replaced, because an artifact of the same name may have been damaged since.
            aside = building / "replaced"
            os.rename(final, aside)
            shutil.rmtree(aside)
        building.chmod(0o755)
        os.rename(building, final)
        sync_directory(settings.models_dir)
    return predictor_id


def store_checked(settings: Settings, predictor_id: str, files: Files) -> None:
    """Store the files of an artifact from another machine, the manifest among them.

    Raises ArtifactRejected unless every byte matches the id.
    """
    manifest = _parse_manifest(predictor_id, files.get(_MANIFEST, b""))
    for name in manifest.files:
        if Path(name).name != name:
            raise ArtifactRejected(f"The predictor {predictor_id} names a file outside its folder: {name!r}.")
        if hashlib.sha256(files.get(name, b"")).hexdigest() != manifest.files[name]:
            raise ArtifactRejected(f"The file {name} of the predictor {predictor_id} is not what was trained.")
    store(settings, manifest, {name: files[name] for name in manifest.files})


def read_files(settings: Settings, predictor_id: str) -> Files:
    """Return all files of an artifact, its manifest among them, checked by hash. Raises ArtifactRejected."""
    _, files = load_checked(settings, predictor_id)
    return files | {_MANIFEST: _read(settings.models_dir / predictor_id / _MANIFEST)}


def activate(settings: Settings, predictor_id: str) -> None:
    """Make a stored artifact the one in service."""
    write_durably(settings.models_dir / _CURRENT, predictor_id)


def current_id(settings: Settings) -> str | None:
    """Return the id of the predictor in service, None before the first.

    Raises ArtifactRejected for a `CURRENT` that cannot be read or names no predictor.
    """
    pointer = settings.models_dir / _CURRENT
    try:
        predictor_id = pointer.read_text().strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        message = storage_unavailable(error) or f"{pointer} cannot be read ({error.strerror})."
        raise ArtifactRejected(str(message)) from error
    except UnicodeDecodeError as error:
        raise ArtifactRejected(_INVALID_POINTER.format(pointer=pointer)) from error
    if "\0" in predictor_id or "/" in predictor_id:
        raise ArtifactRejected(_INVALID_POINTER.format(pointer=pointer))
    return predictor_id or None


def list_ids(settings: Settings) -> list[str]:
    """Return the ids of all stored artifacts, sorted."""
    return sorted(path.name for path in settings.models_dir.glob(f"{_PREFIX}*") if path.is_dir())


def remove(settings: Settings, predictor_id: str) -> None:
    """Delete a stored artifact: renamed first, so that no partial one is left under its name."""
    aside = settings.models_dir / f".removed-{predictor_id}"
    os.rename(settings.models_dir / predictor_id, aside)
    shutil.rmtree(aside)


def load_manifest(settings: Settings, predictor_id: str) -> Manifest:
    """Return the manifest of an artifact, checked against its id. Raises ArtifactRejected."""
    return _parse_manifest(predictor_id, _read(settings.models_dir / predictor_id / _MANIFEST))


def _parse_manifest(predictor_id: str, content: bytes) -> Manifest:
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
    """Return the manifest of an artifact and its files, all checked by hash. Raises ArtifactRejected."""
    manifest = load_manifest(settings, predictor_id)
    return manifest, {name: _read_checked(settings, predictor_id, manifest, name) for name in manifest.files}


def load(settings: Settings, predictor_id: str) -> Predictor:
    """Load an artifact after checking every byte of it. Raises ArtifactRejected."""
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


def load_holdout(
    settings: Settings, predictor_id: str, predictor: Predictor | None = None
) -> dict[str, dict[Regime, HoldoutPredictions]]:
    """Return the held-out errors of a predictor's training, by mode and regime. Raises ArtifactRejected.

    They refer to the samples of `predictor`, if it is loaded already; else the samples are read from its files.
    """
    manifest = load_manifest(settings, predictor_id)
    holdouts = {}
    for mode, stored in manifest.modes.items():
        if predictor is not None:
            samples = predictor.modes[mode].latency_model.samples
        else:
            samples = read_samples(_read_checked(settings, predictor_id, manifest, stored.cases))[0]
        holdouts[mode] = read_holdout(_read_checked(settings, predictor_id, manifest, stored.held_out), samples)
    return holdouts


def manifest_sha256(manifest: Manifest) -> str:
    """Return the hash of a manifest, which covers every file; the id contains its beginning."""
    return hashlib.sha256(_encode(manifest)).hexdigest()


def _pack_trees(name: str, trees: ResidualTrees, files: Files) -> StoredTrees:
    names = (f"{name}_plain.txt", f"{name}_over_ridge.txt")
    for file, booster in zip(names, trees.boosters, strict=True):
        files[file] = _text(booster)
    return StoredTrees(
        factors=trees.analytical.factors,
        levels=trees.levels,
        codes=tuple(trees.encoder.codes.items()),
        terms=trees.encoder.terms,
        mean=tuple(trees.mean.tolist()),
        scale=tuple(trees.scale.tolist()),
        coefficients=tuple(trees.coefficients.tolist()),
        files=names,
    )


def _unpack_trees(entry: StoredTrees, files: Files) -> ResidualTrees:
    plain, over_ridge = (_booster(files[name]) for name in entry.files)
    mean, scale, coefficients = (np.array(values) for values in (entry.mean, entry.scale, entry.coefficients))
    analytical, encoder = AdditiveRoofline(entry.factors), Encoder(dict(entry.codes), entry.terms)
    return ResidualTrees(analytical, entry.levels, encoder, mean, scale, coefficients, (plain, over_ridge))


def _unpack_mode(entry: StoredMode, files: Files) -> ModeModel:
    samples, known_residuals, new_residuals = read_samples(files[entry.cases])
    generalists = {kind: _unpack_trees(trees, files) for kind, trees in entry.generalists.items()}
    ensembles = FittedEnsembles(_unpack_trees(entry.specialist, files), generalists, known_residuals, new_residuals)
    return ModeModel(
        latency_model=LatencyModel(samples, ensembles=ensembles),
        calibrations=RegimeCalibrations(entry.calibrations),
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
