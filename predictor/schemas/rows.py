"""Rows of the public tables, one class per table, and pages of them; unknown is null, never 0.

A test compares the fields with the tables' columns.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from pydantic import BaseModel, Field, NaiveDatetime, WithJsonSchema

Texts = dict[str, Any]
_LOCAL = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9.]+$"
Local = Annotated[NaiveDatetime, WithJsonSchema({"type": "string", "pattern": _LOCAL})]
"""A time without a zone, for which JSON schema has no format."""
SnapshotId = Annotated[str, Field(description="The log's snapshot that the tables were projected from.")]


class Result(BaseModel):
    """One benchmark cell as it was measured or imported; latencies are of whole batches."""

    result_id: UUID
    run_id: str | None
    event_id: UUID
    host_id: str | None
    model_id: str
    model_family: str
    hardware: str
    choice: str | None = Field(description="Which of the runtime's devices or browsers, where not the usual one.")
    backend: str
    device_id: str | None
    device_name: str | None = Field(description="As the spec sheet calls it, if it knows an imported result's device.")
    source_device_name: str | None = Field(description="As the source calls it; it may leave the form factor open.")
    device_count: int | None = Field(description="How many devices worked together: 4 of `4 x H100`.")
    fingerprint: str | None = Field(description="Figures are comparable where it is equal: device, driver, runtimes.")
    threads: int | None
    mode: str
    precision: str | None
    batch_size: int | None
    sequence_length: int | None
    image_size: float | None = Field(description="Pixels along an edge, where a file states them.")
    weights_source: str | None
    weights_sha256: str | None
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
    memory_device_peak_mib: float | None
    energy_j_per_item: float | None
    energy_source: str | None
    output_tokens: int | None
    prefill_ms: float | None
    time_to_first_token_ms: float | None
    time_per_output_token_ms: float | None
    throughput_tokens_per_s: float | None
    forward_ms: float | None
    backward_ms: float | None
    optimizer_ms: float | None
    processes: int | None
    scaling_efficiency: float | None
    samples: int | None
    noisy: bool | None
    disturbed: bool | None = Field(description="Whether other processes slowed it down; null where that is unknown.")
    provenance: str
    status: str
    reason: str | None
    failure_class: str | None
    remedy: str | None
    occurred_at: datetime | None
    occurred_local: Local | None = Field(description="The source's own time, where it names no zone.")
    recorded_at: datetime
    source: str
    source_path: str | None
    verified: bool | None


class Verification(BaseModel):
    """A comparison of outputs with the float32 PyTorch CPU reference."""

    event_id: UUID
    run_id: str | None
    host_id: str | None
    occurred_at: datetime | None
    model_id: str
    hardware: str
    choice: str | None
    backend: str
    device_id: str | None
    mode: str
    precision: str
    batch_size: int
    sequence_length: int | None
    processes: int | None
    weights_sha256: str | None
    passed: bool
    reference: str
    max_abs_error: float | None
    relative_error: float | None
    tolerance: float
    constant_output: bool
    reason: str | None


class ResultSuspicion(BaseModel):
    """One reason to doubt an imported result."""

    event_id: UUID
    rule: str
    verdict: str
    evidence: str
    confidence: float
    overruled_by: str | None = Field(description="Who said that the rule is wrong about it; it then no longer counts.")


class Model(BaseModel):
    """A model; one that only results name has no config and no cost."""

    model_id: str
    architecture: str | None
    family: str | None
    modality: str | None
    aliases: list[str] | None
    config: Texts | None
    size: str | None
    parameters: int | None
    layers: int | None
    flops_per_item: int | None
    activation_bytes_per_item: int | None
    layer_output_bytes_per_item: int | None
    image_size: int | None
    sequence_length: int | None
    results: int


class Device(BaseModel):
    """One hardware name on one host: the device behind it, or why there is none."""

    host_id: str | None
    observed_at: datetime
    event_id: UUID
    hardware: str
    choice: str | None
    backend: str
    available: bool
    reason: str | None
    device_id: str | None
    name: str | None
    source_name: str | None
    vendor: str | None
    driver: str | None
    runtime_versions: Texts | None
    memory_mib: float | None
    cores: int | None
    clock_max_mhz: float | None
    architecture: str | None
    vector_bits: int | None
    governor: str | None
    emulated: bool | None


class Run(BaseModel):
    """Work of some kind: a benchmark run, an import, a training."""

    run_id: str
    kind: str | None
    source: str | None
    host_id: str | None
    started_at: datetime | None
    finished_at: datetime | None
    duration_s: float | None
    status: str | None
    reason: str | None
    cells_ok: int | None
    cells_failed: int | None
    cells_skipped: int | None
    results: int
    plan: Texts | None
    software: Texts | None
    labels: Texts | None
    commit: str | None


class MatrixCell(BaseModel):
    """Compatibility of a model with a device, and its speed relative to the model's other devices."""

    model_id: str
    model_family: str | None
    hardware: str
    device_id: str | None
    device_name: str | None
    device_count: int | None
    mode: str
    state: str
    rating: str | None
    relative_speed: float | None
    precision: str | None = Field(description="Of the shape shown, which most hardware names have a figure of.")
    batch_size: int | None
    sequence_length: int | None
    output_tokens: int | None
    image_size: float | None
    processes: int | None
    latency_p50_ms: float | None = Field(description="Median at the shape that the fields before it name.")
    disturbed: bool | None
    results_ok: int
    results_failed: int
    reason: str | None = Field(description="Newest problem; it says so where the same shape worked before.")
    failure_class: str | None
    last_worked_at: datetime | None
    last_failed_at: datetime | None
    evidence: list[UUID]


class Regression(BaseModel):
    """A shift found in a series of measurements, and the decision about it."""

    regression_id: str
    state: str = Field(description="open, accepted, rejected or gone.")
    direction: str | None = Field(description="regressed or improved.")
    found_by: str | None
    model_id: str
    hardware: str
    choice: str | None
    device_id: str
    fingerprint: str
    mode: str
    precision: str
    batch_size: int
    sequence_length: int | None
    processes: int | None
    weights_sha256: str | None
    measure: str = Field(description="latency, memory, device_memory or failures.")
    before_ms: float | None
    after_ms: float | None
    before_mib: float | None
    after_mib: float | None
    change_percent: float | None
    p_value: float | None
    noise_percent: float | None
    processes_before: int
    processes_after: int
    first_result: UUID
    evidence: list[UUID]
    commits_before: list[str] | None
    commits_after: list[str] | None
    branch: str | None = Field(description="Branch of its first result, by the label of the run.")
    reason: str | None
    found_at: datetime | None
    runs: int = Field(description="Runs of its branch that were at the new level, from the first on.")
    last_seen: datetime | None = Field(description="Time of the newest result at the new level.")
    accepted_at: datetime | None
    accepted_by: str | None
    accepted_reason: str | None
    rejected_at: datetime | None
    rejected_by: str | None
    rejected_reason: str | None
    rejected_results: list[UUID] | None = Field(description="What no longer counts in its series, where rejected.")


class Coverage(BaseModel):
    """Last check of one architecture of transformers on one hardware name of one host."""

    host_id: str | None
    event_id: UUID
    run_id: str | None
    checked_at: datetime
    model_type: str
    family: str
    category: str
    hardware: str
    status: str
    failure_class: str | None
    reason: str | None
    relative_error: float | None
    max_abs_error: float | None
    tolerance: float | None
    parameters: int | None
    scale: str | None
    inputs: list[str] | None
    duration_s: float | None
    versions: Texts | None


class StoredEvent(BaseModel):
    """An event of the log: its envelope, its payload, and the raw samples if it has any."""

    event_id: UUID
    type: str
    schema_version: int
    occurred_at: datetime | None
    recorded_at: datetime
    source: str
    host_id: str | None
    run_id: str | None
    causation_id: UUID | None
    payload: Texts
    samples_ns: list[int] | None


class Page(BaseModel):
    """Fields of every page beside its rows."""

    next_cursor: str | None = Field(description="Pass it as `cursor` for the next page; null after the last.")
    snapshot_id: SnapshotId


class ResultPage(Page):
    """Results, newest first."""

    results: list[Result] = Field(description="Results of this page, newest first.")


class ModelPage(Page):
    """Models by id."""

    models: list[Model] = Field(description="Models of this page, by id.")


class DevicePage(Page):
    """Devices by host and hardware name."""

    devices: list[Device] = Field(description="Devices of this page, by host and hardware name.")


class RunPage(Page):
    """Runs, the latest start first; those without a known start last."""

    runs: list[Run] = Field(description="Runs of this page, the latest start first; those without a known start last.")


class MatrixPage(Page):
    """Cells of the compatibility matrix by model, hardware, device and mode."""

    cells: list[MatrixCell] = Field(description="Cells of this page, by model, hardware, device and mode.")


class RegressionPage(Page):
    """Regressions, the latest found first."""

    regressions: list[Regression] = Field(description="Regressions of this page, the latest found first.")


class CoveragePage(Page):
    """Architectures by name, hardware and host."""

    coverage: list[Coverage] = Field(description="Architectures of this page, by name, hardware and host.")


class EventPage(Page):
    """Events, the latest recorded first."""

    events: list[StoredEvent] = Field(description="Events of this page, the latest recorded first.")
