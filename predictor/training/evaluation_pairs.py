"""Predicted and measured latencies of the predictor in service, from its held-out samples."""

from __future__ import annotations

import math
from typing import Any

from accel_platform.analysis.query.filters import Selection, canonical_model_id, reject_choices
from accel_platform.errors import InvalidInput
from accel_platform.reports.charts.parts import NothingToDraw
from accel_platform.settings import Settings
from predictor.calibration.cross_validation import Regime
from predictor.data.samples import Sample
from predictor.training import artifact

_REGIME_TEXT = {
    Regime.SEEN: "nothing",
    Regime.UNSEEN_FAMILY: "the model's family",
    Regime.UNSEEN_DEVICE: "the device",
    Regime.UNSEEN_BOTH: "family and device",
    Regime.FEW_SHOT: "all but a few figures of the device",
    Regime.FEW_SHOT_UNSEEN_FAMILY: "the family and all but a few figures of the device",
}


def holdout_rows(settings: Settings, selection: Selection) -> list[dict[str, Any]]:
    """Return a row per held-out sample and regime of the predictor in service.

    Raises NothingToDraw where no predictor is in service that can be read, and InvalidInput for a filter that does not
    apply to samples.
    """
    reject_choices(selection.hardware)
    if unknown := {"provenance", "status", "since", "until"} & {*selection.model_dump(exclude_defaults=True)}:
        raise InvalidInput(f"Cases of a predictor have no {' and no '.join(sorted(unknown))}: leave that filter out.")
    try:
        predictor_id = artifact.current_id(settings)
        holdouts = {} if predictor_id is None else artifact.load_holdout(settings, predictor_id)
    except artifact.ArtifactRejected as refused:
        raise NothingToDraw(str(refused)) from refused
    if predictor_id is None:
        raise NothingToDraw("No predictor is in service: `accel train` makes one.")
    return [
        _row(sample, _REGIME_TEXT[regime], error)
        for _, by_regime in sorted(holdouts.items())
        for regime, holdout in sorted(by_regime.items())
        for sample, error in zip(holdout.samples, holdout.errors, strict=True)
        if _matches(sample, selection)
    ]


def _row(sample: Sample, lacking: str, error: float) -> dict[str, Any]:
    """Return a row; `error` is the natural log of predicted over measured latency."""
    return {
        "lacking": lacking,
        "model_id": sample.model,
        "hardware": sample.hardware,
        "device_name": sample.device,
        "mode": sample.mode,
        "precision": sample.precision,
        "batch_size": sample.batch_size,
        "sequence_length": None if math.isnan(sample.size) else int(sample.size),
        "measured_ms": sample.latency_ms,
        "predicted_ms": sample.latency_ms * math.exp(error),
    }


def _matches(sample: Sample, selection: Selection) -> bool:
    names = [canonical_model_id(name) for name in selection.model]
    shown = {*selection.hardware, *selection.hardware_devices.values()}
    return (
        (not names or sample.model in names or sample.family in names)
        and (not shown or sample.hardware in shown or sample.device in shown)
        and selection.device in (None, sample.device)
        and selection.backend in (None, sample.backend)
        and selection.mode in (None, sample.mode)
        and selection.precision in (None, sample.precision)
        and selection.batch_size in (None, sample.batch_size)
        and selection.sequence_length in (None, sample.size)
    )
