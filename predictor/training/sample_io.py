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


def write_samples(cases: Sequence[Sample], known: Collection[str], grown: FittedEnsembles) -> bytes:
    """The cases in their order, with what the trees leave over of those whose device is known; NaN of the others."""
    columns = {name: [getattr(case, name) for case in cases] for name in _SAMPLE_COLUMNS}
    columns |= {f"work_{name}": [float(getattr(case.work, name)) for case in cases] for name in _WORK_COLUMNS}
    learned = np.array([case.device in known for case in cases], dtype=bool)
    for name, left in zip(_RESIDUAL_COLUMNS, (grown.left_known, grown.left_new), strict=True):
        column = np.full(len(cases), np.nan)
        column[learned] = left
        columns[name] = column.tolist()
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, compression="zstd")
    return out.getvalue()


def read_samples(content: bytes) -> tuple[list[Sample], Array, Array]:
    """The cases, and what the specialist and the generalists leave over of the learned ones."""
    table = pq.read_table(io.BytesIO(content))
    columns = table.to_pydict()
    works = [WorkloadCost(*row) for row in zip(*(columns[f"work_{name}"] for name in _WORK_COLUMNS), strict=True)]
    cases = [
        Sample(work=work, **dict(zip(_SAMPLE_COLUMNS, row, strict=True)))
        for work, row in zip(works, zip(*(columns[name] for name in _SAMPLE_COLUMNS), strict=True), strict=True)
    ]
    left = [np.array([v for v in columns[name] if not math.isnan(v)]) for name in _RESIDUAL_COLUMNS]
    return cases, left[0], left[1]


def write_holdout(cases: Sequence[Sample], found: Mapping[Regime, HoldoutPredictions]) -> bytes:
    """What was held out of these cases: which one, what it was taken to lack, and the error."""
    places = {id(case): place for place, case in enumerate(cases)}
    columns: dict[str, list[Any]] = {"case": [], "lacks": [], "error": []}
    for lack, held in found.items():
        columns["case"] += [places[id(case)] for case in held.cases]
        columns["lacks"] += [lack] * len(held.cases)
        columns["error"] += held.errors
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, compression="zstd")
    return out.getvalue()


def read_holdout(content: bytes, cases: Sequence[Sample]) -> dict[Regime, HoldoutPredictions]:
    """The same again, of the same cases in the same order."""
    found: dict[Regime, HoldoutPredictions] = {}
    for row in pq.read_table(io.BytesIO(content)).to_pylist():
        held = found.setdefault(row["lacks"], HoldoutPredictions())
        held.cases.append(cases[row["case"]])
        held.errors.append(row["error"])
    return found
