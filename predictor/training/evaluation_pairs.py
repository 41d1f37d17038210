"""What the predictor in service says of its own cases when they are held out of it, beside what was measured."""

from __future__ import annotations

import math
from typing import Any

from accel_platform.analysis.query.filters import Selection, recorded_id, require_no_choice
from accel_platform.errors import InvalidInput
from accel_platform.reports.charts.parts import NothingToDraw
from accel_platform.settings import Settings
from predictor.data.samples import Sample
from predictor.training import artifact

_REGIME_TEXT = {
    "nothing": "nothing",
    "family": "the model's family",
    "hardware": "the device",
    "both": "family and device",
    "few": "all but a few figures of the device",
    "few, family": "the family and all but a few figures of the device",
}


def holdout_rows(settings: Settings, selection: Selection) -> list[dict[str, Any]]:
    """A row per case of the predictor in service and what it was taken to lack, as its training held them out.

    Raises NothingToDraw where no predictor is in service that can be read, InvalidInput for a filter that cases know
    nothing of.
    """
    require_no_choice(selection.hardware)
    if unheeded := {"provenance", "status", "since", "until"} & {*selection.model_dump(exclude_defaults=True)}:
        raise InvalidInput(f"Cases of a predictor have no {' and no '.join(sorted(unheeded))}: leave that filter out.")
    try:
        predictor_id = artifact.current_id(settings)
        held_out = {} if predictor_id is None else artifact.load_holdout(settings, predictor_id)
    except artifact.ArtifactRejected as refused:
        raise NothingToDraw(str(refused)) from refused
    if predictor_id is None:
        raise NothingToDraw("No predictor is in service: `accel train` makes one.")
    return [
        _row(case, _REGIME_TEXT.get(lack, lack), error)
        for _, found in sorted(held_out.items())
        for lack, held in sorted(found.items())
        for case, error in zip(held.cases, held.errors, strict=True)
        if _matches(case, selection)
    ]


def _row(case: Sample, lacking: str, error: float) -> dict[str, Any]:
    """`error` is the natural log of what was predicted over what was measured."""
    return {
        "lacking": lacking,
        "model_id": case.model,
        "hardware": case.hardware,
        "device_name": case.device,
        "mode": case.mode,
        "precision": case.precision,
        "batch_size": case.batch_size,
        "sequence_length": None if math.isnan(case.size) else int(case.size),
        "measured_ms": case.latency_ms,
        "predicted_ms": case.latency_ms * math.exp(error),
    }


def _matches(case: Sample, selection: Selection) -> bool:
    names = [recorded_id(name) for name in selection.model]
    return (
        (not names or case.model in names or case.family in names)
        and (not selection.hardware or case.hardware in selection.hardware)
        and selection.device in (None, case.device)
        and selection.mode in (None, case.mode)
        and selection.precision in (None, case.precision)
        and selection.batch_size in (None, case.batch_size)
        and selection.sequence_length in (None, case.size)
    )
