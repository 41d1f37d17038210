"""Answers that CLI, service and Python share."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from accel_platform.errors import AccelError

Provenance = Literal["measured", "scaled", "predicted"]
Where = Literal["here", "mine", "elsewhere"]
"""Place of a device: this host, another host that measured into this log, or known from others only."""
ExclusionCause = Literal[
    "unsupported", "unavailable", "measured_failure", "predicted_failure", "does_not_fit", "constraint", "no_runtime"
]
"""Cause of an exclusion; `unsupported` means that no evidence supports an answer."""

INTERVAL_LEVEL = 0.9
"""Coverage that every interval aims at. With little evidence an interval states a lower level."""


def _to_per_mille(level: float) -> float:
    # Down, because no more can be promised; the tolerance keeps 0.9 · 9 / 10, a little below 0.81 in binary.
    return math.floor(level * 1000 + 1e-9) / 1000


Level = Annotated[float, AfterValidator(_to_per_mille)]
"""Share of figures within limits, 0 to 1, in whole thousandths."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Interval(_Value):
    """A figure and its limits. `level` is the share of single batches (measured), of published figures of one
    configuration (imported), or of unseen cells (predicted) inside them.

    Limits are null where one claimed figure is all there is; `level` is null where the limits are bounds, not a share,
    or where nobody knows the share.
    """

    p50: float = Field(description="The figure itself: the median.")
    low: float | None = Field(default=None, description="Lower limit.")
    high: float | None = Field(default=None, description="Upper limit.")
    level: Level | None = Field(
        default=None, description="Share of single batches, of published figures, or of unseen cells, in the limits."
    )

    @property
    def high_over_low(self) -> float:
        """Ratio of the limits; infinite without limits."""
        return self.high / self.low if self.low and self.high else math.inf


class Compatibility(_Value):
    """State of the model on this device in the compatibility matrix."""

    state: Literal["compatible", "failed", "unknown"] = Field(
        description="What the newest attempt showed; unknown where nobody tried."
    )
    rating: Literal["high", "medium", "low"] | None = None


class Cost(_Value):
    """Cost of a million items on rented, fully used hardware."""

    usd_per_million_items: Interval = Field(description="USD for a million items at this throughput.")
    usd_per_hour: float = Field(description="Price of the device in USD per hour.")
    source: str = Field(description="Source of the price.")
    date: str | None = Field(description="Date of the price. Null for the user's own price.")


class Energy(_Value):
    """Joules per item.

    `measured` comes from a counter. `bounded` is the most that the thermal design power allows over the latency, so the
    real figure lies below.
    """

    j_per_item: Interval = Field(description="Joules per item; where `bounded`, at most that.")
    how: Literal["measured", "bounded"] = Field(
        description="measured: by a counter. bounded: by the thermal design power over the latency."
    )
    tdp_w: float | None = Field(
        default=None, description="Thermal design power behind the bound, in W; null where energy was measured."
    )


class Bound(_Value):
    """Bottleneck by roofline: peak rate or bandwidth, whichever needs longer at full speed."""

    by: Literal["compute", "memory"] = Field(
        description="What takes longer at full speed: computing, or moving data through memory."
    )
    compute_ms: float = Field(description="Least time to compute one whole batch, at the peak rate, in ms.")
    memory_ms: float = Field(
        description="Least time to move the data of one whole batch, at the memory's bandwidth, in ms."
    )


class Neighbour(_Value):
    """A measured cell with work like that of the query."""

    event_id: str
    model: str = Field(description="Model, by its id.")
    hardware: str
    device: str | None = Field(description="Device name, or its id where no name is known; null where neither is.")
    batch_size: int
    sequence_length: int | None
    latency_ms: float


class Figures(_Value):
    """Measured, scaled or predicted figures of one model on one device."""

    hardware: str
    backend: str = Field(description="Runtime: pytorch, openvino, vllm, ...")
    device: str | None = Field(description="Device name, or its id where no name is known.")
    device_id: str | None = Field(
        description="Id of the device, since two of one name may differ. Null for a device that no host has."
    )
    where: Where = Field(
        description="here: this host. mine: another host of this log. elsewhere: known from others only."
    )
    precision: str | None = Field(description="Precision of the figures. Null for figures that state none.")
    latency_ms: Interval = Field(description="Latency of one whole batch.")
    items_per_s: Interval = Field(
        description="1000 * batch_size / latency_ms at each point of its interval. `throughput_items_per_s` of results "
        "is by the mean time of all batches instead."
    )
    output_tokens_per_s: Interval | None = Field(
        default=None, description="Generated tokens of the whole batch per second, at each point of the latency's "
        "interval. Null except in generation.",
    )  # fmt: skip
    memory_peak_mib: Interval | None = None
    cost: Cost | None = Field(default=None, description="Null where no price is known.")
    energy: Energy | None = Field(default=None, description="Null where nothing was metered and no TDP is known.")
    bound: Bound | None = Field(default=None, description="Null where cost, peak or bandwidth is not known.")
    provenance: Provenance = Field(
        description="measured: the very cell. scaled: from measured cells like it. predicted: by a learned model."
    )
    evidence: list[str] = Field(
        description="Ids of the events behind the figures; of the nearest cells for a learned prediction. Empty where "
        "published rates alone are behind it."
    )
    neighbours: list[Neighbour] = Field(default=[], description="For a prediction: measured cells of similar work.")
    basis: str = Field(description="Origin of the figures, in words.")
    why: list[str] = Field(
        default=[], description="Runs and spread, or the strongest contributions to the prediction first."
    )
    compatibility: Compatibility = Field(description="Cell of the matrix.")
    host_limited: bool = Field(default=False, exclude=True)
    """True if the latency's upper limit is the time of a slow host; only for ranking and constraints."""


class Recommendation(Figures):
    """One way to run the model."""

    rank: int = Field(ge=1, description="Rank by `ranked_by`, the smallest first; equal figures share one.")
    ranked_by: float | None = Field(
        description="Unfavorable end of the objective: ms of a single batch, ms per item, USD per million items, J per "
        "item or MiB. Null where it is not known."
    )


class Excluded(_Value):
    """Hardware without evidence, that cannot run the model, or that breaks a constraint."""

    hardware: str
    backend: str | None = Field(
        default=None, description="Runtime that it is left out with; null for hardware that was not found at all."
    )
    device: str | None = Field(
        default=None, description="Device name, or its id where no name is known; null where neither is."
    )
    device_id: str | None = None
    cause: ExclusionCause = Field(description="Kind of reason; unsupported means that no evidence supports an answer.")
    reason: str
    suggestion: str = Field(description="What to do: a command that measures it, or another query.")


_Model = Annotated[str, Field(description="Name of the resolved model; a generated name for a config or figures.")]
_Warnings = Annotated[list[str], Field(description="What to know before the figures are used.")]
_SnapshotId = Annotated[str, Field(description="Snapshot of the log that answered.")]
_PredictorId = Annotated[str | None, Field(description="Predictor in service; null before the first training.")]


class Answer(_Value):
    """Ranked ways to run a model, and what was left out."""

    model: _Model
    batch_size: int
    sequence_length: int | None
    output_tokens: int | None = Field(description="Generated tokens per item; null except in generation.")
    recommendations: list[Recommendation] = Field(
        description="Best first: all of hosts of this log, and of others up to the limit."
    )
    excluded: list[Excluded] = Field(
        description="What was left out, with the reason. Up to the limit: one of each reason first."
    )
    recommendations_total: int = Field(description="Number of ways to run the model that have figures.")
    excluded_by_cause: dict[ExclusionCause, int] = Field(description="Number of all that was left out, by cause.")
    warnings: _Warnings
    snapshot_id: _SnapshotId
    predictor_id: _PredictorId


class PredictAnswer(Figures):
    """One cell."""

    model: _Model
    batch_size: int
    sequence_length: int | None
    output_tokens: int | None = Field(description="Generated tokens per item; null except in generation.")
    warnings: _Warnings
    snapshot_id: _SnapshotId
    predictor_id: _PredictorId


PROBLEM_TYPE = "urn:accel:problem:"
"""Beginning of the type of every problem."""


class CellProblem(_Value):
    """Problem of one cell, with the words of the problem document that it alone would be answered with."""

    type: str = Field(description="What kind of problem it is, for programs.", examples=["urn:accel:problem:no-figure"])
    title: str = Field(description="What kind of problem it is, in words.")
    detail: str = Field(description="Why there are no figures, and what to do.")

    @classmethod
    def of(cls, error: AccelError) -> CellProblem:
        return cls(type=f"{PROBLEM_TYPE}{error.kind}", title=error.title, detail=str(error))


class Unanswered(_Value):
    """A cell without a supported figure or with an invalid query, and what to do."""

    model: str = Field(
        description="Name of the resolved model, else the query's; `a config` or `cost figures` where it has none."
    )
    hardware: str
    batch_size: int
    problem: CellProblem = Field(description="Why there are no figures, and what to do.")


class BatchAnswer(_Value):
    """One answer per query, in order."""

    answers: list[PredictAnswer | Unanswered] = Field(
        description="One per query, in order; without figures it has the problem instead."
    )
    snapshot_id: _SnapshotId
    predictor_id: _PredictorId
