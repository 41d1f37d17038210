"""Event types of the log: the envelope and one frozen payload class per type. Add event types here.

Once a version of a payload is written, the meaning of its fields never changes. To change one, raise `VERSION` and add
the step from the old version to `upcast.py`. Unknown is None (absent in storage), never 0.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any, ClassVar, Literal
from uuid import UUID

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, NaiveDatetime, SerializeAsAny, field_validator
from uuid_utils.compat import uuid7

Hardware = Literal["cpu", "cuda", "rocm", "mps", "openvino", "onnxruntime", "qnn", "jax", "webnn", "webgpu", "wasm"]
"""User-facing hardware names. `backend` is the runtime that served one, `device_id` the silicon."""

Provenance = Literal["measured", "emulated", "imported", "simulated", "suspect"]
"""Origin of a figure."""
TRUST_ORDER: tuple[Provenance, ...] = ("measured", "imported", "emulated", "suspect", "simulated")
"""Provenances, the most trusted first."""
TRUSTED = TRUST_ORDER[:2]
"""Provenances that feed matrix, regressions and predictor."""

Status = Literal["ok", "failed", "timeout", "unavailable"]
RunStatus = Literal["succeeded", "failed", "cancelled"]
CoverageStatus = Literal["ok", "failed", "timeout"]
Mode = Literal["inference", "generation", "training"]
Measure = Literal["latency", "memory", "device_memory", "failures"]
"""Figure of a series that can shift.

`latency` is the median of a batch, `failures` the share of processes that fail. `memory` is the peak of the measuring
process, `device_memory` that of the device's allocator.
"""

Count = Annotated[int, Field(ge=0)]
Positive = Annotated[int, Field(ge=1)]
Quantity = Annotated[float, Field(ge=0, allow_inf_nan=False)]


class Payload(BaseModel):
    """Base of all payloads: frozen, and strict about field names, so that a misspelled one is an error, not a loss."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    VERSION: ClassVar[int] = 1


class HostObserved(Payload):
    """A machine as observed: its hardware and its software versions."""

    hostname: str
    os: str
    cpu_model: str
    cpu_cores_physical: Positive | None = None
    cpu_cores_logical: Positive
    memory_mib: Quantity
    software: dict[str, str] = {}


class DeviceObserved(Payload):
    """One hardware name on one host: the device behind it, or why there is none."""

    hardware: Hardware
    choice: str | None = None
    """The runtime's device or browser, if it is not the default one: `gpu.1`, `firefox`."""
    backend: str
    available: bool
    reason: str | None = None
    device_id: str | None = None
    name: str | None = None
    vendor: str | None = None
    driver: str | None = None
    runtime_versions: dict[str, str] = {}
    memory_mib: Quantity | None = None
    cores: Positive | None = None
    clock_max_mhz: Quantity | None = None
    architecture: str | None = None
    """The generation of a device as its vendor calls it: compute capability `9.0` (NVIDIA), `gfx942` (AMD)."""
    vector_bits: Positive | None = None
    """Width in bits of a processor's widest fused multiply-add; with cores and clock it gives the peak rate."""
    governor: str | None = None
    emulated: bool = False


class ModelDescribed(Payload):
    """A model's identity and cost, from its config alone."""

    model_id: str
    architecture: str
    family: str
    modality: str
    aliases: tuple[str, ...] = ()
    config: dict[str, Any] = {}
    size: str | None = None
    """Common name of its size, such as `base`."""
    parameters: Count | None = None
    layers: Count | None = None
    flops_per_item: Count | None = None
    """Forward FLOPs (2 per multiply-add) for one item at the model's default input shape."""
    activation_bytes_per_item: Count | None = None
    """Bytes written by all operators, in float32."""
    layer_output_bytes_per_item: Count | None = None
    """The part of these written by matrix products and convolutions: four times the activations that timm and fvcore
    count."""
    image_size: Positive | None = None
    """Edge in pixels of the image that the costs hold for; None if the model reads no image, or no square one."""
    sequence_length: Positive | None = None
    """Tokens that the costs hold for; None for inputs of a fixed size, and in events of older versions."""
    operators: str | None = None
    """Operators of one pass, in the JSON of `workloads.operators`, of a model whose code only its user has."""


class RunStarted(Payload):
    """Work of some kind began: a benchmark, or a check of coverage."""

    kind: str
    plan: dict[str, Any] = {}
    software: dict[str, str] = {}
    labels: dict[str, str] = {}
    """Labels given by the user; `commit` is the code that was measured."""


class RunFinished(Payload):
    """The end of the run whose id the envelope carries."""

    status: RunStatus
    cells_ok: Count = 0
    cells_failed: Count = 0
    cells_skipped: Count = 0
    duration_s: Quantity
    reason: str | None = None


class BenchmarkRequested(Payload):
    """A request for a benchmark on one hardware name, on `host` or any that has it. The event's id is the request's."""

    requested_by: Literal["cli", "api", "schedule", "suite"]
    hardware: str
    """Hardware name, with its choice if it has one: `cuda`, `openvino:gpu`."""
    config: dict[str, Any] = {}
    """The keys of `bench.plan.config.BenchmarkConfig` that differ from their defaults."""
    priority: int = 0
    """Higher values run first among the requests that wait for one device."""
    max_runtime_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    host: str | None = None
    """Name of the only host that may take it, as in `claimed_by`; None for any host with the hardware."""


class BenchmarkClaimed(Payload):
    """A host's claim of a request. Each attempt has one claim: the first one stored."""

    request_id: UUID
    attempt: Positive
    claimed_by: str
    """The host's name in Dagster, because the envelope's `host_id` does not tell two servers of one machine apart."""
    direct: bool = False
    """True if `accel bench take` measures it, so that Dagster has no run of it."""


class BenchmarkClosed(Payload):
    """The end of a request and its outcome. A request ends once: the event stored first counts."""

    request_id: UUID
    status: Literal["done", "failed", "cancelled"]
    reason: str | None = None
    attempts: Count = 0
    run_ids: tuple[str, ...] = ()
    """The benchmark runs in which it was measured."""


class Suspicion(BaseModel):
    """One reason to doubt an imported figure."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    rule: str
    verdict: Literal["simulated", "suspect"]
    evidence: str
    confidence: Annotated[float, Field(ge=0, le=1)]


class ResultRecorded(Payload):
    """One benchmark cell: a model on a device in one configuration, measured here or claimed by an imported file.

    A sample is the time of one whole batch, in integer nanoseconds. Where `samples_ns` is present, the projection
    derives every latency statistic from it. The `latency_*` and `throughput_*` fields are for imported documents that
    state statistics without their samples.
    """

    VERSION: ClassVar[int] = 2

    model_id: str
    model_family: str
    hardware: str
    choice: str | None = None
    """The runtime's device or browser, if it is not the default one, as in DeviceObserved."""
    backend: str
    status: Status
    provenance: Provenance
    mode: Mode = "inference"
    precision: str | None = None
    batch_size: Positive | None = None
    sequence_length: Positive | None = None
    weights_source: str | None = None
    """Folder or hub revision of real weights; None for random ones, and where a file does not state it."""
    weights_sha256: str | None = None
    device_id: str | None = None
    device_name: str | None = None
    fingerprint: str | None = None
    """Hash of everything that must be equal for figures to be comparable: device, driver, runtimes, threads."""
    threads: Positive | None = None
    reason: str | None = None
    failure_class: str | None = None
    remedy: str | None = None
    """The fallback that made a cell work whose usual configuration failed; `environment` says which cell, and how."""
    samples_ns: tuple[Count, ...] = ()
    iterations: Count | None = Field(
        default=None, description="Number of samples behind the figures; null where unknown."
    )
    warmup_iterations: Count | None = Field(
        default=None, description="Runs before the samples, which do not count; null where unknown."
    )
    latency_mean_ms: Quantity | None = None
    latency_p50_ms: Quantity | None = None
    latency_p90_ms: Quantity | None = None
    latency_p95_ms: Quantity | None = None
    latency_p99_ms: Quantity | None = None
    latency_min_ms: Quantity | None = None
    latency_max_ms: Quantity | None = None
    latency_std_ms: Quantity | None = None
    throughput_items_per_s: Quantity | None = None
    first_ms: Quantity | None = None
    load_ms: Quantity | None = None
    compile_ms: Quantity | None = None
    memory_peak_mib: Quantity | None = None
    """Peak resident memory of the measuring process (VmHWM, the mapped files of the model in full) and its children.

    For browsers: of their processes, where `environment` says how they were summed. For imports: the stated peak.
    """
    memory_device_peak_mib: Quantity | None = None
    output_tokens: Positive | None = None
    """Generation: new tokens per sequence. A sample is then one whole generation of them for the batch."""
    prefill_ms: Quantity | None = None
    """Generation, median: the prompt's forward pass, with the encoder's where there is one."""
    time_to_first_token_ms: Quantity | None = None
    """Generation, median: prefill and selection of the first token."""
    time_per_output_token_ms: Quantity | None = None
    """Generation, median of `token_samples_ns`."""
    throughput_tokens_per_s: Quantity | None = None
    """Generation: new tokens of all sequences per second, where an imported document states it. Tables prefer the value
    computed from batch, tokens and time."""
    token_samples_ns: tuple[Count, ...] | None = Field(
        default=None,
        description="Generation: ns of each later token for the batch, in order; `output_tokens` - 1 of them per "
        "sample. Null where they were not timed.",
    )
    forward_ms: Quantity | None = None
    """Training, median, like the next two fields. A sample is then one whole step: forward, backward, optimizer."""
    backward_ms: Quantity | None = None
    optimizer_ms: Quantity | None = None
    processes: Positive | None = None
    """Training: number of processes that trained together, each on its own batch of `batch_size`."""
    scaling_efficiency: Quantity | None = None
    """Training: items/s of all processes over (`processes` times the items/s of one alone with the same threads)."""
    energy_j_per_item: Quantity | None = None
    """Joules counted over the steady phase, divided by its runs and their batch size. None where no counter exists;
    `environment["energy"]` then says why."""
    energy_source: str | None = None
    """The counter: `rapl: package-0, dram`, or `nvml: NVIDIA A10`."""
    noisy: bool | None = None
    noisy_reason: str | None = Field(
        default=None, description="Why the median is not trusted; null where no reason is known."
    )
    environment: dict[str, Any] = Field(
        default={}, description="Circumstances of the measurement, such as threads, runtime versions and other load."
    )
    suspicions: tuple[Suspicion, ...] = ()
    original: dict[str, Any] = Field(default={}, description="Identity and units as written in the imported file.")
    occurred_local: NaiveDatetime | None = None
    """The file's own time if it names no zone; the envelope's `occurred_at` is then None."""
    source_path: str | None = None

    @field_validator("suspicions")
    @classmethod
    def _sorted(cls, value: tuple[Suspicion, ...]) -> tuple[Suspicion, ...]:
        return tuple(sorted(value, key=lambda s: (s.rule, s.evidence)))


class VerificationRecorded(Payload):
    """Comparison of a backend's outputs with the float32 PyTorch CPU reference, with the same weights and inputs."""

    model_id: str
    hardware: str
    choice: str | None = None
    backend: str
    device_id: str | None = None
    precision: str
    batch_size: Positive
    sequence_length: Positive | None = None
    mode: Mode = "inference"
    processes: Positive | None = None
    weights_sha256: str | None = None
    passed: bool
    reference: str
    max_abs_error: Quantity | None = None
    relative_error: Quantity | None = None
    """Root mean square error over the root mean square of the reference."""
    tolerance: Quantity
    constant_output: bool
    reason: str | None = None


class ArchitectureChecked(Payload):
    """Check that one model type of transformers, shrunk and with random weights, runs on one hardware name here."""

    model_type: str
    family: str
    category: str
    hardware: Hardware
    status: CoverageStatus
    failure_class: str | None = None
    reason: str | None = None
    relative_error: Quantity | None = None
    """Error against the float32 PyTorch outputs; None on the hardware that is the reference itself."""
    max_abs_error: Quantity | None = None
    tolerance: Quantity | None = None
    parameters: Count | None = None
    scale: str | None = None
    """Scale that its config was shrunk to: narrow, shallow or default."""
    inputs: tuple[str, ...] = ()
    duration_s: Quantity | None = None
    versions: dict[str, str] = {}
    """Versions of the packages that decide the outcome."""


class DocumentImported(Payload):
    """One entry of the import ledger: the outcome for one document."""

    source_path: str
    content_sha256: str
    format: str
    outcome: Literal["imported", "duplicate", "not_results", "quarantined"]
    size_bytes: Count
    records: Count = 0
    failures: Count = 0
    suspects: Count = 0
    reason: str | None = None
    supersedes: UUID | None = None
    """The entry of the same document that this one replaces, because a quarantined document was read again."""


class SourceDeleted(Payload):
    """Deletion of a source file whose every event was read back equal.

    It is stored before the file is deleted. A file that is still there survived a crash; the next clean-up verifies it
    again.
    """

    source_path: str
    content_sha256: str
    size_bytes: Count
    ledger_id: UUID
    """The ledger entry that accounts for it."""


class RecordQuarantined(Payload):
    """Content that could not become a result, stored unchanged with the reason."""

    source_path: str
    content_sha256: str | None = None
    pointer: str | None = None
    """JSON pointer or row number inside the document."""
    rule: str
    reason: str
    content: str


class ResultSuspected(Suspicion, Payload):
    """A further reason to doubt an imported result, found after it was stored by comparing it with other documents."""

    result_id: UUID


class ImportsChecked(Payload):
    """Comparison of all imported documents with each other; the suspicions it found are in the same segment."""

    rules_version: Positive
    """Version of the rules that compare documents."""
    snapshot_id: str
    """Id of the snapshot of the import segments that were compared."""
    segments: Count
    """Number of these segments."""
    suspicions: Count
    """Number of new suspicions."""


class SuspicionOverruled(Payload):
    """A person's decision that one rule is wrong about one result. The suspicion stays but no longer counts."""

    result_id: UUID
    rule: str
    by: str
    reason: str


class MeasuredSeries(BaseModel):
    """Identity shared by all comparable results: one model in one configuration under one fingerprint."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    model_id: str
    hardware: str
    choice: str | None = None
    device_id: str
    fingerprint: str
    mode: Mode
    precision: str
    batch_size: Positive
    sequence_length: Positive | None = None
    processes: Positive | None = None
    weights_sha256: str | None = None


class RegressionFound(MeasuredSeries, Payload):
    """A shift of a series of measurements that more than one process shows."""

    regression_id: str
    """Hash of the series and its first result at the new level, so finding it twice gives one id."""
    found_by: Literal["check", "history"]
    state: Literal["regressed", "improved"]
    measure: Measure = "latency"
    before_ms: Quantity | None = None
    """Median batch latency before and (`after_ms`) at the new level; None where the cell failed, and of memory."""
    after_ms: Quantity | None = None
    before_mib: Quantity | None = None
    """Median peak memory before and (`after_mib`) at the new level; None for other measures."""
    after_mib: Quantity | None = None
    change_percent: Annotated[float, Field(allow_inf_nan=False)] | None = None
    p_value: Annotated[float, Field(ge=0, le=1)] | None = None
    noise_percent: Quantity | None = None
    """Change that noise alone seldom exceeds in this series with so many processes; None if found by `history`."""
    processes_before: Positive
    processes_after: Positive
    """Number of measuring processes, whose results are the evidence."""
    first_result: UUID
    """Id of the first result at the new level."""
    evidence: tuple[UUID, ...]
    commits_before: tuple[str, ...] = ()
    commits_after: tuple[str, ...] = ()
    reason: str | None = None
    notified: bool = False
    """True if the shift was a message to the webhook of its own. Others are told by the check of their commit."""


class ShiftAccepted(MeasuredSeries, Payload):
    """A person's acceptance of a series' new level from one result on. Earlier measurements stay."""

    regression_id: str
    first_result: UUID
    by: str
    reason: str


class ShiftRejected(MeasuredSeries, Payload):
    """A person's rejection of a shift as noise or a machine in a wrong state.

    The measurements stay but no longer count in their series; the baseline is unchanged.
    """

    regression_id: str
    first_result: UUID
    results: tuple[UUID, ...]
    """Results at the rejected level at the time of rejection; the same level measured later is a shift again."""
    by: str
    reason: str


class ShiftReopened(MeasuredSeries, Payload):
    """A person's withdrawal of the last decision about a shift, which is as if nobody had decided."""

    regression_id: str
    first_result: UUID
    by: str
    reason: str


DecidedShift = ShiftAccepted | ShiftRejected | ShiftReopened
"""A person's decision about a shift. The last one counts."""


class CommitChecked(Payload):
    """Comparison of a commit's results with those of its baseline. Shifts are RegressionFound events."""

    commit: str
    baseline: str | None = None
    """The commit it was compared with; None if there was none."""
    outcome: Literal["passed", "regressed", "undecided"]
    reason: str | None = None
    candidate_runs: tuple[str, ...]
    baseline_runs: tuple[str, ...] = ()
    cells: dict[str, Count] = {}
    """Number of decisions by state: one of each cell, and one of each other measure that moved, or may have."""
    regressions: tuple[str, ...] = ()
    """Ids of the regressions found, improvements included."""
    snapshot_id: str


class RunFailed(Payload):
    """Failure of a run that Dagster started."""

    dagster_run_id: str
    job: str
    partition: str | None = None
    failures: dict[str, str] = {}
    """Reason of the failure by failed step."""
    reason: str


class SnapshotTaken(Payload):
    """A snapshot of the log taken for later use, and its name."""

    snapshot_id: str
    name: str | None = None
    segments: Count
    events: Count


class SegmentQuarantined(Payload):
    """Move of a damaged blob of the log into quarantine."""

    key: str
    """The blob's key in the log."""
    moved_to: str
    reason: str
    segments: tuple[str, ...]
    """Segments that it held, as far as they are known."""


class SegmentsForgotten(Payload):
    """Lost segments that were given up; their events are in no table from now on."""

    segments: tuple[str, ...]
    by: str | None = None


class KnowledgeAdded(Payload):
    """Use of a knowledge pack from now on, in one version. The pack's results are in a segment of their own."""

    pack: str
    version: str | None = None
    """Version of the results, as the card states it; None for a pack without results."""
    card: dict[str, Any]
    """Its card, because the folder that it came from may go."""


class KnowledgeRemoved(Payload):
    """A knowledge pack taken out of use. Its events stay in the log but no longer count."""

    pack: str
    by: str | None = None


class WriteAudited(Payload):
    """A write through the service, stored in one append with the events written, so neither exists alone."""

    by: str
    """Name of the key that was sent; `loopback` where no key is required."""
    key_id: str | None = None
    client: str | None = None
    """Network address of the client."""
    method: str
    path: str
    request_id: str
    """Id of the request, as in the service's log."""
    events: Positive
    """Number of events written."""


class PredictorTrained(Payload):
    """A trained predictor; `promoted` says whether it was put into service."""

    predictor_id: str
    snapshot_id: str
    artifact_sha256: str
    rows: Count
    promoted: bool
    metrics: dict[str, Any] = {}
    reason: str | None = None
    """Reason why it was not promoted; None if it was."""


class PredictorPromoted(Payload):
    """A predictor put into service, because it is not worse than the one before or because a person rolled back."""

    predictor_id: str
    replaced: str | None = None
    """Id of the predictor that served before; None for the first."""
    cause: Literal["trained", "rollback"]
    reason: str
    report: dict[str, Any] = {}
    """Errors of both on the same held-out groups, by mode."""
    reference: str | None = None
    """Id of the best predictor so far, which later ones are compared with; None in events of older versions."""


PAYLOADS: dict[str, type[Payload]] = {
    cls.__name__: cls
    for cls in (
        HostObserved,
        DeviceObserved,
        ModelDescribed,
        RunStarted,
        RunFinished,
        BenchmarkRequested,
        BenchmarkClaimed,
        BenchmarkClosed,
        ResultRecorded,
        VerificationRecorded,
        ArchitectureChecked,
        DocumentImported,
        SourceDeleted,
        RecordQuarantined,
        ResultSuspected,
        ImportsChecked,
        SuspicionOverruled,
        RegressionFound,
        ShiftAccepted,
        ShiftRejected,
        ShiftReopened,
        CommitChecked,
        RunFailed,
        SnapshotTaken,
        SegmentQuarantined,
        SegmentsForgotten,
        KnowledgeAdded,
        KnowledgeRemoved,
        WriteAudited,
        PredictorTrained,
        PredictorPromoted,
    )
}


class Event(BaseModel):
    """The envelope of one payload.

    `occurred_at` is the time in the world, None if unknown; `recorded_at` is the time of writing.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    event_id: UUID
    type: str
    schema_version: int
    occurred_at: AwareDatetime | None
    recorded_at: AwareDatetime
    source: str
    host_id: str | None = None
    run_id: str | None = None
    causation_id: UUID | None = None
    payload: SerializeAsAny[Payload]

    @classmethod
    def of(
        cls,
        payload: Payload,
        *,
        source: str,
        occurred_at: datetime | Literal["now"] | None = "now",
        host_id: str | None = None,
        run_id: str | None = None,
        causation_id: UUID | None = None,
        event_id: UUID | None = None,
    ) -> Event:
        """Wrap a payload in a new envelope.

        Pass `occurred_at=None` if the time is unknown, and an `event_id` derived from the content if the same event may
        be made twice.
        """
        now = datetime.now(UTC)
        return cls(
            event_id=event_id or uuid7(),
            type=type(payload).__name__,
            schema_version=payload.VERSION,
            occurred_at=now if occurred_at == "now" else occurred_at,
            recorded_at=now,
            source=source,
            host_id=host_id,
            run_id=run_id,
            causation_id=causation_id,
            payload=payload,
        )
