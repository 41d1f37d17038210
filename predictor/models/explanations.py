"""Explanations of predictions: named factors on a typical latency.

The factors come from the trees' SHAP values and the ridge's terms, by group of features. Their product times the
typical latency is the prediction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from accel_platform.table_io.values import count_of, rounded
from predictor.data.samples import Sample
from predictor.models.latency_model import LatencyModel


class Contribution(NamedTuple):
    """One factor of a prediction."""

    name: str
    value: str
    """The sample's value, in words."""
    factor: float
    """Factor on the latency: 2 doubles it."""


def rank_contributions(
    latency_model: LatencyModel, sample: Sample, added: Mapping[str, float], typical: float
) -> tuple[Contribution, ...]:
    """Rank what makes a sample's latency differ from the typical one, the strongest first.

    `added` holds the terms of the natural log by name, `typical` the natural log of the typical latency in ms.
    exp(typical) times all factors is the predicted latency.
    """
    groups = {**added, "physical law": added["physical law"] - typical}
    values = _describe_values(latency_model, sample, typical)
    ranked = sorted(groups.items(), key=lambda item: (-abs(item[1]), item[0]))
    return tuple(Contribution(name, values[name], math.exp(log)) for name, log in ranked if log != 0.0)


def _describe_values(latency_model: LatencyModel, sample: Sample, typical: float) -> dict[str, str]:
    computing, moving, reading, _ = sample.roofline
    work, per_item = sample.work, sample.work.flops / sample.batch_size
    count = f"{sample.devices} x " if sample.devices > 1 else ""
    runtime = " ".join(filter(None, (sample.backend, sample.compiler, sample.layout)))
    return {
        "physical law": f"computing and moving its bytes, against a typical {rounded(math.exp(typical))} ms",
        "roofline": f"{rounded(computing)} ms of computing at peak, "
        f"{rounded(moving + reading)} ms of moving bytes at bandwidth",
        "model cost": f"{rounded(work.parameters / 1e6)} M parameters, {rounded(per_item / 1e9)} GFLOPs per item",
        "architecture": f"{sample.family}, by the name {sample.model}",
        "batch": f"batch of {sample.batch_size}",
        "input size": "fixed size" if math.isnan(sample.size) else f"size {sample.size:g}",
        "device": f"{count}{sample.device}",
        "runtime": runtime,
        "precision": sample.precision,
        "mode": sample.mode,
        "models like it": "what they leave over on this device",
        "same work measured elsewhere": count_of(latency_model.count_same_workload(sample), "figure"),
        "few figures of this device": sample.device,
    }
