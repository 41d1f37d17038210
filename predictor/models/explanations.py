"""A prediction taken apart into what each thing contributes, in words: factors on a typical latency. Nothing is fitted.

Of the trees these are SHAP values (`shares`), of the ridge its terms, gathered by what they are of; times the typical
latency the factors make the prediction.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from predictor.data.samples import Sample
from predictor.models.analytical import roofline_terms
from predictor.models.latency_model import LatencyModel


class Contribution(NamedTuple):
    """One reason for a figure."""

    name: str
    value: str
    """What the case has, in words."""
    factor: float
    """On the latency: 2 doubles it."""


def rank_contributions(
    learner: LatencyModel, case: Sample, added: Mapping[str, float], typical: float
) -> tuple[Contribution, ...]:
    """What makes a case's latency (the natural logs that add up to it, by name) differ from the typical one, the
    strongest first.

    exp(typical) times all factors is the predicted latency, in ms.
    """
    groups = {**added, "physical law": added["physical law"] - typical}
    values = _describe_values(learner, case, typical)
    ranked = sorted(groups.items(), key=lambda item: (-abs(item[1]), item[0]))
    return tuple(Contribution(name, values[name], math.exp(log)) for name, log in ranked if log != 0.0)


def _describe_values(learner: LatencyModel, case: Sample, typical: float) -> dict[str, str]:
    computing, moving, reading, _ = roofline_terms(case)
    work, per_item = case.work, case.work.flops / case.batch_size
    count = f"{case.devices} x " if case.devices > 1 else ""
    runtime = " ".join(filter(None, (case.backend, case.compiler, case.layout)))
    return {
        "physical law": f"computing and moving its bytes, against a typical {math.exp(typical):.3g} ms",
        "roofline": f"{computing:.3g} ms of computing at peak, {moving + reading:.3g} ms of moving bytes at bandwidth",
        "model cost": f"{work.parameters / 1e6:.3g} M parameters, {per_item / 1e9:.3g} GFLOPs per item",
        "architecture": f"{case.family}, by the name {case.model}",
        "batch": f"batch of {case.batch_size}",
        "input size": "fixed size" if math.isnan(case.size) else f"size {case.size:g}",
        "device": f"{count}{case.device}",
        "runtime": runtime,
        "precision": case.precision,
        "mode": case.mode,
        "models like it": "what they leave over on this device",
        "same work measured elsewhere": f"{learner.elsewhere(case)} figures",
        "few figures of this device": case.device,
    }
