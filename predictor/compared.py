"""What the predictor in service says of its own cases when they are held out of it, beside what was measured."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from accel_platform.analysis.selection import Selection, recorded_id
from accel_platform.errors import NotFound
from accel_platform.settings import Settings
from predictor import artifact
from predictor.cases import Case
from predictor.held_out import hold_out

_SAID = {
    "nothing": "nothing",
    "family": "the model's family",
    "hardware": "the device",
    "both": "family and device",
    "few": "all but a few figures of the device",
    "few, family": "the family and all but a few figures of the device",
}


def held_out_rows(settings: Settings, selection: Selection, say: Callable[[str], None]) -> list[dict[str, Any]]:
    """A row per case and what it was taken to lack; it is fitted anew as in training, which may take minutes.

    Raises NotFound where no predictor is in service, ArtifactRefused where it cannot be read.
    """
    predictor_id = artifact.current_id(settings)
    if predictor_id is None:
        raise NotFound("No predictor is in service: `accel train` makes one.")
    rows = []
    for mode, known in artifact.load(settings, predictor_id).modes.items():
        say(f"{mode}: holding out of {len(known.learner.told):,} cases of {predictor_id}")
        for lack, held in sorted(hold_out(known.learner.told).items()):
            rows += [
                _row(case, _SAID.get(lack, lack), error)
                for case, error in zip(held.cases, held.errors, strict=True)
                if _asked(case, selection)
            ]
    return rows


def _row(case: Case, lacking: str, error: float) -> dict[str, Any]:
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


def _asked(case: Case, selection: Selection) -> bool:
    names = [recorded_id(name) for name in selection.model]
    return (
        (not names or case.model in names or case.family in names)
        and (not selection.hardware or case.hardware in selection.hardware)
        and selection.device in (None, case.device)
        and selection.mode in (None, case.mode)
        and selection.precision in (None, case.precision)
        and selection.batch_size in (None, case.batch_size)
    )
