"""The training set: one row per measured cell, with its features, at one snapshot. Nothing is fitted here."""

from __future__ import annotations

import hashlib
import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from accel_platform.errors import InvalidInput
from predictor.evidence import Evidence, Pooled, Target
from predictor.features import CATEGORICAL, NUMERIC, SCHEMA, Features, device_spec, features_of
from predictor.subject import item_cost, spec_of

MODE = "inference"
"""The only mode learned from; the others are answered from measurements alone."""


@dataclass(frozen=True)
class Dataset:
    """Parallel lists, in a fixed order: equal evidence gives equal datasets."""

    snapshot_id: str
    cells: tuple[Pooled, ...]
    features: tuple[Features, ...]
    skipped: dict[str, int]
    """Cells that could not be used, by reason."""

    @cached_property
    def latency_ms(self) -> npt.NDArray[np.float64]:
        return np.array([cell.latency_ms.p50 for cell in self.cells], dtype=np.float64)

    @cached_property
    def memory_peak_mib(self) -> npt.NDArray[np.float64]:
        """NaN where no peak was measured."""
        known = [None if cell.memory_peak_mib is None else cell.memory_peak_mib.p50 for cell in self.cells]
        return np.array([np.nan if value is None else value for value in known], dtype=np.float64)

    @property
    def families(self) -> list[str]:
        """The group each row belongs to when the model is tested on families it has not seen."""
        return [cell.model_family for cell in self.cells]

    def targets(self, fewest_families: int) -> list[Target]:
        """The targets with cells of at least that many families, in a fixed order."""
        families: dict[Target, set[str]] = defaultdict(set)
        for cell in self.cells:
            families[cell.cell.target].add(cell.model_family)
        enough = (target for target, names in families.items() if len(names) >= fewest_families)
        return sorted(enough, key=Target.order)

    @cached_property
    def sha256(self) -> str:
        """Of everything the training depends on but the code: equal data need not be trained on twice."""
        rows = [
            [f.numeric, f.categorical, c.model_family, c.latency_ms.p50, c.memory_peak_mib and c.memory_peak_mib.p50]
            for f, c in zip(self.features, self.cells, strict=True)
        ]
        return hashlib.sha256(json.dumps([SCHEMA, NUMERIC, CATEGORICAL, rows]).encode()).hexdigest()


def build_dataset(evidence: Evidence) -> Dataset:
    """Every pooled cell whose model's cost is known. Models known by config but not described yet are traced."""
    devices = {device.target: device for device in evidence.devices}
    cells: list[Pooled] = []
    features: list[Features] = []
    skipped: Counter[str] = Counter()
    for pooled in sorted(evidence.pooled.values(), key=_order):
        cell = pooled.cell
        if cell.mode != MODE:
            skipped[f"mode {cell.mode}"] += 1
            continue
        if cell.target.device_id is None:
            skipped["device not named"] += 1
            continue
        spec = spec_of(cell.model_id)
        try:
            cost = item_cost(cell.model_id, spec, cell.sequence_length, evidence.models)
        except InvalidInput:
            skipped["sequence length beyond what the model reads"] += 1
            continue
        if cost is None or cost.flops <= 0:
            skipped["cost of the model, or the length it was measured at, unknown"] += 1
            continue
        row = evidence.models.get(cell.model_id)
        cells.append(pooled)
        features.append(
            features_of(
                cost,
                modality=spec.modality if spec else row["modality"] if row else None,
                target=cell.target,
                precision=cell.precision,
                batch_size=cell.batch_size,
                sequence_length=cell.sequence_length,
                spec=device_spec(cell.target, devices),
            )
        )
    return Dataset(evidence.snapshot_id, tuple(cells), tuple(features), dict(sorted(skipped.items())))


def _order(pooled: Pooled) -> tuple[str, ...]:
    cell = pooled.cell
    shape = f"{cell.batch_size:09d} {cell.sequence_length or 0:09d}"
    return (cell.model_id, *cell.target.order(), cell.precision or "", cell.mode, shape)
