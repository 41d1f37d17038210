"""What is answered: the typed answers that CLI, service and Python share. Questions are in `requests.py`; no logic."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Provenance = Literal["measured", "scaled", "predicted"]
ExclusionCause = Literal[
    "unsupported", "unavailable", "measured_failure", "predicted_failure", "does_not_fit", "constraint", "no_runtime"
]
"""Why hardware is left out; `unsupported` is that nothing supports an answer there."""

INTERVAL_LEVEL = 0.9
"""Coverage that every interval aims at. With little evidence an interval states the lower level it can really claim."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Interval(_Value):
    """A figure and its limits. `level` is the share of single batches (measured), or of unseen cells, inside them.

    Limits are null where one claimed figure is all there is; `level` is null where the limits are bounds, not a share.
    """

    p50: float
    low: float | None = None
    high: float | None = None
    level: float | None = None

    @property
    def high_over_low(self) -> float:
        """How wide it is; infinite without limits."""
        return self.high / self.low if self.low and self.high else math.inf


class Compatibility(_Value):
    """What the compatibility matrix says of the model on this device."""

    state: Literal["compatible", "failed", "unknown"]
    rating: Literal["high", "medium", "low"] | None = None


class Cost(_Value):
    """What a million items cost on rented hardware, kept busy."""

    usd_per_million_items: Interval
    usd_per_hour: float
    source: str = Field(description="Who asks this price.")
    date: str | None = Field(description="The day the price is of; prices change. Null for the asker's own.")


class Energy(_Value):
    """Joules per item. `measured` are those of a counter; `bounded` is what the device's thermal design power allows at
    most over the latency, so the real figure lies below."""

    j_per_item: Interval
    how: Literal["measured", "bounded"]
    tdp_w: float | None = None


class Bound(_Value):
    """What holds the device up, by roofline: its peak rate or its bandwidth, whichever needs longer at full speed."""

    by: Literal["compute", "memory"]
    compute_ms: float
    memory_ms: float


class Neighbour(_Value):
    """A measured cell whose work is like what was asked."""

    event_id: str
    model: str
    hardware: str
    device: str | None
    batch_size: int
    sequence_length: int | None
    latency_ms: float


class Figures(_Value):
    """What is known or thought of one model on one device."""

    hardware: str
    backend: str = Field(description="The runtime that drives it: pytorch, openvino, vllm, ...")
    device: str | None = Field(description="Its name; its id where no name is known.")
    device_id: str | None = Field(
        description="Names this very silicon: two devices of one name may differ. Null where nobody here has it."
    )
    latency_ms: Interval = Field(description="Of one whole batch.")
    throughput_items_per_s: Interval
    memory_peak_mib: Interval | None = None
    cost: Cost | None = Field(default=None, description="Null where no price is known.")
    energy: Energy | None = Field(default=None, description="Null where nothing was counted and no TDP is known.")
    bound: Bound | None = Field(default=None, description="Null where cost, peak or bandwidth is not known.")
    provenance: Provenance
    evidence: list[str] = Field(description="Ids of the events this rests on; those of the nearest cells if predicted.")
    neighbours: list[Neighbour] = Field(default=[], description="Of a prediction: measured cells of like work.")
    basis: str = Field(description="How the figures came about, in words.")
    why: list[str] = Field(
        default=[], description="Runs and spread, or what moved the prediction most, the strongest first."
    )
    compatibility: Compatibility


class Recommendation(Figures):
    """One way to run the model."""

    rank: int = Field(
        ge=1, description="By the unfavourable limit of the objective: what can be relied on, not what is hoped for."
    )


class Excluded(_Value):
    """Hardware that nothing can be said for, that cannot run the model, or that breaks a constraint."""

    hardware: str
    device: str | None = None
    device_id: str | None = None
    cause: ExclusionCause
    reason: str
    suggestion: str


class Answer(_Value):
    """Ranked ways to run a model, and what was left out."""

    model: str = Field(description="The known model that was asked for; a made-up name for a config or figures.")
    batch_size: int
    sequence_length: int | None
    output_tokens: int | None = Field(description="That each item comes to; null but in generation.")
    recommendations: list[Recommendation]
    excluded: list[Excluded]
    warnings: list[str]
    snapshot_id: str
    predictor_id: str | None


class PredictAnswer(Figures):
    """One cell."""

    model: str
    batch_size: int
    sequence_length: int | None
    output_tokens: int | None = Field(description="That each item comes to; null but in generation.")
    warnings: list[str]
    snapshot_id: str
    predictor_id: str | None


class Unanswered(_Value):
    """A cell that nothing supports a figure for, or that was asked wrongly; and what to do."""

    model: str
    hardware: str
    batch_size: int
    problem: str


class BatchAnswer(_Value):
    """One answer per question, in their order."""

    answers: list[PredictAnswer | Unanswered]
    snapshot_id: str
    predictor_id: str | None
