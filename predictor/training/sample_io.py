"""Cases as a Parquet table and back: what an artefact keeps to carry figures over from. Nothing is chosen here."""

from __future__ import annotations

import io
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from predictor.calibration.cross_validation import HoldoutPredictions, Regime
from predictor.data.samples import Sample, WorkloadCost
from predictor.models.latency_model import FittedEnsembles

Array = npt.NDArray[np.float64]
_WORK_COLUMNS = tuple(field.name for field in fields(WorkloadCost))
_SAMPLE_COLUMNS = tuple(field.name for field in fields(Sample) if field.name != "work")
COLUMNS = (*_SAMPLE_COLUMNS, *(f"work_{name}" for name in _WORK_COLUMNS))
"""What a case is made of: a table of other columns is of another version."""
_RESIDUAL_COLUMNS = ("left_known", "left_new")


def write_samples(samples: Sequence[Sample], known: Collection[str], ensembles: FittedEnsembles) -> bytes:
    """The cases in their order, with what the trees leave over of those whose device is known; NaN of the others."""
    columns = {name: [getattr(sample, name) for sample in samples] for name in _SAMPLE_COLUMNS}
    columns |= {f"work_{name}": [float(getattr(sample.work, name)) for sample in samples] for name in _WORK_COLUMNS}
    learned = np.array([sample.device in known for sample in samples], dtype=bool)
    for name, values in zip(
        _RESIDUAL_COLUMNS, (ensembles.known_device_residuals, ensembles.new_device_residuals), strict=True
    ):
        column = np.full(len(samples), np.nan)
        column[learned] = values
        columns[name] = column.tolist()
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, compression="zstd")
    return out.getvalue()


def read_samples(content: bytes) -> tuple[list[Sample], Array, Array]:
    """The cases, and what the specialist and the generalists leave over of the learned ones."""
    table = pq.read_table(io.BytesIO(content))
    columns = table.to_pydict()
    works = [WorkloadCost(*row) for row in zip(*(columns[f"work_{name}"] for name in _WORK_COLUMNS), strict=True)]
    samples = [
        Sample(work=work, **dict(zip(_SAMPLE_COLUMNS, row, strict=True)))
        for work, row in zip(works, zip(*(columns[name] for name in _SAMPLE_COLUMNS), strict=True), strict=True)
    ]
    left = [np.array([v for v in columns[name] if not math.isnan(v)]) for name in _RESIDUAL_COLUMNS]
    return samples, left[0], left[1]


def write_holdout(samples: Sequence[Sample], found: Mapping[Regime, HoldoutPredictions]) -> bytes:
    """What was held out of these cases: which one, what it was taken to lack, and the error."""
    places = {id(sample): place for place, sample in enumerate(samples)}
    columns: dict[str, list[Any]] = {"case": [], "lacks": [], "error": []}
    for regime, held in found.items():
        columns["case"] += [places[id(sample)] for sample in held.samples]
        columns["lacks"] += [regime.value] * len(held.samples)
        columns["error"] += held.errors
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, compression="zstd")
    return out.getvalue()


def read_holdout(content: bytes, samples: Sequence[Sample]) -> dict[Regime, HoldoutPredictions]:
    """The same again, of the same cases in the same order."""
    found: dict[Regime, HoldoutPredictions] = {}
    for row in pq.read_table(io.BytesIO(content)).to_pylist():
        held = found.setdefault(Regime(row["lacks"]), HoldoutPredictions())
        held.samples.append(samples[row["case"]])
        held.errors.append(row["error"])
    return found
