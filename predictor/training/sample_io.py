"""Parquet files of an artifact: training samples with their residuals, and held-out errors."""

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
"""Columns of the samples: a table with other columns is of another version."""
_RESIDUAL_COLUMNS = ("left_known", "left_new")


def write_samples(samples: Sequence[Sample], known: Collection[str], ensembles: FittedEnsembles) -> bytes:
    """Encode the samples in order, with the trees' residuals; NaN for unknown devices."""
    columns = {name: [getattr(sample, name) for sample in samples] for name in _SAMPLE_COLUMNS}
    columns |= {f"work_{name}": [float(getattr(sample.work, name)) for sample in samples] for name in _WORK_COLUMNS}
    is_known = np.array([sample.device in known for sample in samples], dtype=bool)
    for name, values in zip(
        _RESIDUAL_COLUMNS, (ensembles.known_device_residuals, ensembles.new_device_residuals), strict=True
    ):
        column = np.full(len(samples), np.nan)
        column[is_known] = values
        columns[name] = column.tolist()
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, compression="zstd")
    return out.getvalue()


def read_samples(content: bytes) -> tuple[list[Sample], Array, Array]:
    """Decode the samples, and the residuals of specialist and generalists for known devices."""
    columns = pq.read_table(io.BytesIO(content)).to_pydict()
    works = zip(*(columns[f"work_{name}"] for name in _WORK_COLUMNS), strict=True)
    rows = zip(*(columns[name] for name in _SAMPLE_COLUMNS), strict=True)
    samples = [
        Sample(work=WorkloadCost(*work), **dict(zip(_SAMPLE_COLUMNS, row, strict=True)))
        for work, row in zip(works, rows, strict=True)
    ]
    residuals = [np.array([v for v in columns[name] if not math.isnan(v)]) for name in _RESIDUAL_COLUMNS]
    return samples, residuals[0], residuals[1]


def write_holdout(samples: Sequence[Sample], holdouts: Mapping[Regime, HoldoutPredictions]) -> bytes:
    """Encode held-out errors: the index of each sample, its regime and its error."""
    places = {id(sample): place for place, sample in enumerate(samples)}
    columns: dict[str, list[Any]] = {"case": [], "lacks": [], "error": []}
    for regime, holdout in holdouts.items():
        columns["case"] += [places[id(sample)] for sample in holdout.samples]
        columns["lacks"] += [regime.value] * len(holdout.samples)
        columns["error"] += holdout.errors
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, compression="zstd")
    return out.getvalue()


def read_holdout(content: bytes, samples: Sequence[Sample]) -> dict[Regime, HoldoutPredictions]:
    """Decode held-out errors of the same samples in the same order."""
    holdouts: dict[Regime, HoldoutPredictions] = {}
    for row in pq.read_table(io.BytesIO(content)).to_pylist():
        holdout = holdouts.setdefault(Regime(row["lacks"]), HoldoutPredictions())
        holdout.samples.append(samples[row["case"]])
        holdout.errors.append(row["error"])
    return holdouts
