"""What is asked and what is answered: the typed question and answer that CLI, service and Python share. No logic."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from accel_platform.bench.plan import MAX_BATCH_SIZE, MAX_SEQUENCE_LENGTH

Objective = Literal["latency", "throughput", "memory"]
Basis = Literal["measured", "scaled", "predicted"]
Name = Annotated[str, Field(min_length=1, max_length=200)]

LEVEL = 0.9
"""Coverage that every interval aims at. With little evidence an interval states the lower level it can really claim."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Query(_Value):
    """A model in one configuration."""

    model: Name = Field(description="A model's key, alias or hub id.", examples=["bert-base-uncased"])
    batch_size: int = Field(default=1, ge=1, le=MAX_BATCH_SIZE, strict=True, description="Items per batch.")
    sequence_length: int | None = Field(
        default=None,
        ge=1,
        le=MAX_SEQUENCE_LENGTH,
        strict=True,
        description="Tokens per item. Default: the length this model was measured at.",
    )
    precision: Annotated[str, Field(max_length=32, pattern=r"^[A-Za-z0-9_.+-]+$")] | None = Field(
        default=None, description="Default: float32, and imported figures that state none."
    )
    mode: Literal["inference", "generation", "training"] = "inference"


class RecommendQuery(Query):
    """Where should this model run?"""

    objective: Objective = Field(default="latency", description="What the ranking goes by.")
    hardware: list[Name] | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="Hardware names, device names or device ids to choose among. Default: all.",
    )


class PredictQuery(Query):
    """How fast is this model on that hardware?"""

    hardware: Name = Field(
        description="A hardware name (cpu, openvino, ...), or a device's name or id.", examples=["cpu"]
    )


class Interval(_Value):
    """A figure and its limits. `level` is the share of single batches (measured), or of unseen cells, inside them.

    Limits are null where one claimed figure is all there is; `level` is null where the limits are bounds, not a share.
    """

    p50: float
    low: float | None = None
    high: float | None = None
    level: float | None = None


class Compatibility(_Value):
    """What the compatibility matrix says of the model on this device."""

    state: Literal["compatible", "failed", "unknown"]
    rating: Literal["high", "medium", "low"] | None = None


class Recommendation(_Value):
    """One way to run the model."""

    hardware: str
    device: str | None = Field(description="Its name; its id where no name is known.")
    device_id: str | None = Field(description="Names this very silicon: two devices of one name may differ.")
    rank: int = Field(
        ge=1, description="By the unfavourable limit of the objective: what can be relied on, not what is hoped for."
    )
    latency_ms: Interval = Field(description="Of one whole batch.")
    throughput_items_per_s: Interval
    memory_peak_mib: Interval | None = None
    provenance: Basis
    evidence: list[str] = Field(description="Ids of the events this rests on; those of the nearest cells if predicted.")
    basis: str = Field(description="How the figures came about, in words.")
    compatibility: Compatibility


class Excluded(_Value):
    """Hardware that nothing can be said for, or that cannot run the model."""

    hardware: str
    device: str | None = None
    device_id: str | None = None
    reason: str
    suggestion: str


class Answer(_Value):
    """Ranked ways to run a model, and what was left out."""

    model: str = Field(description="The known model that was asked for.")
    batch_size: int
    sequence_length: int | None
    recommendations: list[Recommendation]
    excluded: list[Excluded]
    warnings: list[str]
    snapshot_id: str
    predictor_id: str | None


class PredictAnswer(_Value):
    """One cell: the figures of a recommendation without a rank."""

    model: str
    batch_size: int
    sequence_length: int | None
    hardware: str
    device: str | None
    device_id: str | None
    latency_ms: Interval
    throughput_items_per_s: Interval
    memory_peak_mib: Interval | None
    provenance: Basis
    evidence: list[str]
    basis: str
    compatibility: Compatibility
    warnings: list[str]
    snapshot_id: str
    predictor_id: str | None
