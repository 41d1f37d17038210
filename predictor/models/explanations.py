"""Explanations of predictions: named factors on a typical latency.

The factors come from the trees' SHAP values and the ridge's terms, by group of features. Their product times the
typical latency is the prediction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from accel_platform.table_io.values import count_of, rounded
from predictor.data.samples import Sample
from predictor.models.latency_model import LatencyModel


class Contribution(NamedTuple):
    """One factor of a prediction."""

    name: str
    factor: float
    """On the latency: 2 doubles it."""
    describe: Callable[[], str]

    @property
    def value(self) -> str:
        """The sample's value, in words."""
        return self.describe()


def rank_contributions(
    latency_model: LatencyModel, sample: Sample, added: Mapping[str, float], typical: float
) -> tuple[Contribution, ...]:
    """Rank what makes a sample's latency differ from the typical one, the strongest first.

    `added` holds the terms of the natural log by name, `typical` the natural log of the typical latency in ms.
    exp(typical) times all factors is the predicted latency.
    """
    groups = {**added, "physical law": added["physical law"] - typical}
    ranked = sorted(groups.items(), key=lambda item: (-abs(item[1]), item[0]))
    texts = _value_texts(latency_model, sample, typical)
    return tuple(Contribution(name, math.exp(log), texts[name]) for name, log in ranked if log != 0.0)


def _value_texts(latency_model: LatencyModel, sample: Sample, typical: float) -> dict[str, Callable[[], str]]:
    """Return how to put each value into words: few of them are read."""
    computing, moving, reading, _ = sample.roofline
    work, per_item = sample.work, sample.work.flops / sample.batch_size
    count = f"{sample.devices} x " if sample.devices > 1 else ""
    return {
        "physical law": lambda: f"computing and moving its bytes, against a typical {rounded(math.exp(typical))} ms",
        "roofline": lambda: (
            f"{rounded(computing)} ms of computing at peak, {rounded(moving + reading)} ms of moving bytes at bandwidth"
        ),
        "model cost": lambda: (
            f"{rounded(work.parameters / 1e6)} M parameters, {rounded(per_item / 1e9)} GFLOPs per item"
        ),
        "architecture": lambda: f"{sample.family}, by the name {sample.model}",
        "batch": lambda: f"batch of {sample.batch_size}",
        "input size": lambda: "fixed size" if math.isnan(sample.size) else f"size {sample.size:g}",
        "device": lambda: f"{count}{sample.device}",
        "runtime": lambda: " ".join(filter(None, (sample.backend, sample.compiler, sample.layout))),
        "precision": lambda: sample.precision,
        "mode": lambda: sample.mode,
        "models like it": lambda: "what they leave over on this device",
        "same work measured elsewhere": lambda: count_of(latency_model.count_same_workload(sample), "figure"),
        "few figures of this device": lambda: sample.device,
    }
