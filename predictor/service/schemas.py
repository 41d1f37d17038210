"""What the read-only routes are asked and answer, and problem documents. No logic lives here."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field


class MatrixQuery(BaseModel):
    """Which cells of the matrix; a parameter of another name is an error, not a filter that does nothing."""

    model_config = ConfigDict(extra="forbid")
    model: str | None = Field(default=None, max_length=200, description="A model's key, alias or hub id.")
    hardware: str | None = Field(default=None, max_length=200)
    mode: str | None = Field(default=None, max_length=200, description="inference, generation or training.")


class ResultsQuery(MatrixQuery):
    """Which results, and how many at a time."""

    provenance: str | None = Field(default=None, max_length=200)
    status: str | None = Field(default=None, max_length=200)
    limit: int = Field(default=100, ge=1, le=1000)
    cursor: str | None = Field(default=None, max_length=64, description="`next_cursor` of the page before.")


class Health(BaseModel):
    """The service answers; from what it does."""

    status: str = Field(examples=["ok"])
    version: str
    snapshot_id: str = Field(description="The log's snapshot that the tables were projected from.")
    predictor_id: str | None
    predictor_missing: str | None = Field(description="Why there is no predictor; null where there is one.")
    results: int = Field(description="Rows of the results table.")
    cells: int = Field(description="Distinct configurations that answers may rest on.")


class Ready(BaseModel):
    """Questions are answered."""

    status: str = Field(examples=["ready"])
    snapshot_id: str


class Result(BaseModel):
    """One benchmark cell as it was measured or imported. Unknown is null, never 0; latencies are of whole batches."""

    result_id: UUID
    run_id: str | None
    event_id: UUID
    host_id: str | None
    model_id: str
    model_family: str
    hardware: str
    backend: str
    device_id: str | None
    device_name: str | None
    mode: str
    precision: str | None
    batch_size: int | None
    sequence_length: int | None
    latency_mean_ms: float | None
    latency_p50_ms: float | None
    latency_p90_ms: float | None
    latency_p95_ms: float | None
    latency_p99_ms: float | None
    latency_min_ms: float | None
    latency_max_ms: float | None
    latency_std_ms: float | None
    first_ms: float | None
    load_ms: float | None
    compile_ms: float | None
    throughput_items_per_s: float | None
    memory_peak_mib: float | None
    samples: int | None
    noisy: bool | None
    provenance: str
    status: str
    reason: str | None
    occurred_at: datetime | None
    occurred_local: datetime | None
    source_path: str | None


class ResultPage(BaseModel):
    """Results, newest first."""

    results: list[Result]
    next_cursor: str | None = Field(description="Pass it as `cursor` for the next page; null after the last.")
    snapshot_id: str


class MatrixCell(BaseModel):
    """Whether a model runs on a device, and how it compares with the others it runs on."""

    model_id: str
    model_family: str | None
    hardware: str
    device_id: str | None
    device_name: str | None
    mode: str
    state: str
    rating: str | None
    latency_p50_ms: float | None
    batch_size: int | None
    reason: str | None
    evidence: list[UUID]


class Matrix(BaseModel):
    """The compatibility matrix at one snapshot."""

    cells: list[MatrixCell]
    snapshot_id: str


class Problem(BaseModel):
    """An RFC 9457 problem document."""

    model_config = ConfigDict(extra="forbid")
    type: str = Field(examples=["urn:accel:problem:not-found"])
    title: str
    status: int
    detail: str = Field(description="What went wrong and what to do.")
    instance: str = Field(description="The path that was asked for.")
    request_id: str | None = Field(default=None, description="As in the header X-Request-ID and the service's log.")
    errors: list[dict[str, Any]] | None = Field(
        default=None, description="For invalid input: `field` and what is wrong with it, one per error."
    )
