"""Schemas of posted results and events.

`POST /results` takes stated figures: they are `imported`, name their source, and count like an imported file. `POST
/events` takes measurements of a process of this platform on another machine: raw samples, device and fingerprint. They
come with the verification of their outputs, because nothing unverified counts as compatible.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    UUID7,
    AwareDatetime,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    NaiveDatetime,
    Tag,
    WithJsonSchema,
)

from accel_platform.errors import InvalidInput
from accel_platform.events.types import (
    ArchitectureChecked,
    DeviceObserved,
    HostObserved,
    ModelDescribed,
    Payload,
    Positive,
    ResultRecorded,
    RunFinished,
    RunStarted,
    Status,
    VerificationRecorded,
)
from accel_platform.precisions import canonical_precision, require_precision
from accel_platform.warehouse.layers import OUTPUT
from accel_platform.workloads.model_catalog import find_model

Path = tuple[str | int, ...]
"""Fields and indices that lead to a value inside a body."""
MAX_ITEMS = 1_000
"""Results or events in one request."""
_MOST_DEPTH = 32
_MOST_INTEGER = 2**53 - 1
"""Largest integer that all JSON readers agree about."""
_MOST_TEXT = 100_000


class NotStorable(ValueError):
    """A value that some reader of the log could not read; `path` leads to it."""

    def __init__(self, path: Path, message: str) -> None:
        self.path = path
        super().__init__(message)


def require_storable(value: Any, path: Path = ()) -> None:
    """Raise NotStorable for a value that some reader of the log could not read."""
    if len(path) > _MOST_DEPTH:
        raise NotStorable((), f"it is nested more than {_MOST_DEPTH} deep")
    if isinstance(value, str):
        if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
            raise NotStorable(path, "text with a NUL or half a surrogate pair cannot be stored")
        if len(value) > _MOST_TEXT:
            raise NotStorable(path, f"a text is longer than {_MOST_TEXT:,} characters")
    elif isinstance(value, float) and not math.isfinite(value):
        raise NotStorable(path, "a number is not finite: leave out what is unknown, or send null")
    elif isinstance(value, int) and abs(value) > _MOST_INTEGER:
        raise NotStorable(path, f"a whole number is beyond {_MOST_INTEGER:,}")
    elif isinstance(value, Mapping):
        for key, member in value.items():
            require_storable(key, path)
            require_storable(member, (*path, key))
    elif isinstance(value, list | tuple):
        for index, member in enumerate(value):
            require_storable(member, (*path, index))


Id = Annotated[str, Field(min_length=1, max_length=200)]
_UUID7 = "^[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$"
EventId = Annotated[UUID7, WithJsonSchema({"type": "string", "pattern": _UUID7})]
Local = Annotated[
    NaiveDatetime,
    WithJsonSchema({"type": "string", "pattern": r"^20[0-9]{2}-0[1-9]-[012][1-8]T[01][0-9]:[0-5][0-9]:[0-5][0-9]$"}),
]
"""A time without a zone, for which JSON schema has no format."""
NoSuspicions = Annotated[
    tuple[()],
    Field(description="Always empty: the platform's own rules doubt results."),
    WithJsonSchema({"type": "array", "items": {}, "maxItems": 0}),  # generators need items
]


class ClaimedResult(ResultRecorded):
    """A stated result; unknown fields are left out, never 0. A sample is the time of one whole batch."""

    model_config = ConfigDict(
        title="ClaimedResult",
        json_schema_extra={
            "examples": [
                {
                    "model_id": "bert-base",
                    "model_family": "bert",
                    "hardware": "cuda",
                    "backend": "tensorrt",
                    "device_name": "NVIDIA A10",
                    "precision": "float16",
                    "batch_size": 8,
                    "sequence_length": 128,
                    "latency_mean_ms": 6.2,
                    "source_path": "https://example.com/our-report.html",
                }
            ]
        },
    )
    ENVELOPE: ClassVar[frozenset[str]] = frozenset(("occurred_at", "host_id", "run_id"))

    model_id: Id
    model_family: Id
    hardware: Id
    backend: Id
    status: Status = "ok"
    provenance: Literal["imported"] = "imported"
    suspicions: NoSuspicions = ()
    occurred_local: Local | None = None
    source_path: str = Field(
        min_length=1, max_length=2000, description="Where the figures come from: a URL, a file, a person."
    )
    occurred_at: AwareDatetime | None = Field(default=None, description="When it was measured; null where unknown.")
    host_id: Id | None = None
    run_id: Id | None = None

    def recorded(self) -> ResultRecorded:
        """Return the payload of its event, with the names that imported files get; `original` keeps other words."""
        known = find_model(self.model_id)
        names = {} if known is None else {"model_id": known.model_id, "model_family": known.family}
        if self.precision is not None:
            names["precision"] = canonical_precision(self.precision)
        stated = {name: getattr(self, name) for name in names}
        fields = self.model_dump(exclude=set(self.ENVELOPE)) | names
        if changed := {_WORDS[name]: text for name, text in stated.items() if text != names[name]}:
            fields["original"] = changed | self.original
        return ResultRecorded(**fields)


_WORDS = {"model_id": "model", "model_family": "family", "precision": "precision"}
"""Keys of `original` for the words of whoever states a result, as in imported files."""
_FIGURES = tuple(
    name
    for name in ResultRecorded.model_fields
    if name.endswith(("_ms", "_mib", "_per_s", "samples_ns", "energy_j_per_item", "scaling_efficiency"))
)


def unusable_claims(results: Iterable[ClaimedResult]) -> list[tuple[int, str]]:
    """Return index and reason of each stated success without a figure, and of each with an unknown precision."""
    errors = []
    for index, result in enumerate(results):
        if result.status == "ok" and not any(getattr(result, name) for name in _FIGURES):
            errors.append((index, "a success states a figure, such as latency_mean_ms or throughput_items_per_s"))
        if result.precision is not None:
            try:
                require_precision(result.precision)
            except InvalidInput as error:
                errors.append((index, str(error)))
    return errors


class Posted(BaseModel):
    """One posted event, as a measuring process writes it."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    type: str
    payload: Payload
    event_id: EventId | None = Field(default=None, description="An event id counts once; default: one is given.")
    occurred_at: AwareDatetime | None = Field(default=None, description="When it happened; null where unknown.")
    host_id: Id | None = None
    run_id: Id | None = None

    def recorded(self) -> Payload:
        """Return the payload of its event."""
        return self.payload


class Measurement(ResultRecorded):
    """A measurement of a process of this platform: a figure with its samples, or the reason for none."""

    provenance: Literal["measured", "emulated"]
    precision: Id
    batch_size: Positive
    suspicions: NoSuspicions = ()
    occurred_local: None = None
    source_path: None = None


class PostedHost(Posted):
    type: Literal["HostObserved"]
    payload: HostObserved
    host_id: Id


class PostedDevice(Posted):
    type: Literal["DeviceObserved"]
    payload: DeviceObserved
    host_id: Id


class PostedModel(Posted):
    type: Literal["ModelDescribed"]
    payload: ModelDescribed


class PostedRunStart(Posted):
    type: Literal["RunStarted"]
    payload: RunStarted
    run_id: Id


class PostedRunEnd(Posted):
    type: Literal["RunFinished"]
    payload: RunFinished
    run_id: Id


class PostedResult(Posted):
    type: Literal["ResultRecorded"]
    payload: Measurement
    run_id: Id

    def recorded(self) -> ResultRecorded:
        return ResultRecorded(**self.payload.model_dump())


class PostedVerification(Posted):
    type: Literal["VerificationRecorded"]
    payload: VerificationRecorded
    run_id: Id


class PostedArchitecture(Posted):
    type: Literal["ArchitectureChecked"]
    payload: ArchitectureChecked


AnyPosted = Annotated[
    PostedHost
    | PostedDevice
    | PostedModel
    | PostedRunStart
    | PostedRunEnd
    | PostedResult
    | PostedVerification
    | PostedArchitecture,
    Field(discriminator="type"),
]


def _kind(value: Any) -> str:
    return "<list>" if isinstance(value, list | tuple) else "<one>"


Claims = Annotated[
    Annotated[ClaimedResult, Tag("<one>")]
    | Annotated[list[ClaimedResult], Field(min_length=1, max_length=MAX_ITEMS), Tag("<list>")],
    Discriminator(_kind),
]
PostedEvents = Annotated[
    Annotated[AnyPosted, Tag("<one>")]
    | Annotated[list[AnyPosted], Field(min_length=1, max_length=MAX_ITEMS), Tag("<list>")],
    Discriminator(_kind),
]


def unsupported_claims(events: Iterable[Posted]) -> list[tuple[int, str]]:
    """Return index and reason of each event without the evidence that it needs."""
    events = list(events)
    verified = {_output(event) for event in events if isinstance(event, PostedVerification)}
    errors = []
    for index, event in enumerate(events):
        if not isinstance(event, PostedResult):
            continue
        result = event.payload
        if result.status == "ok" and not (result.samples_ns and result.device_id and result.fingerprint):
            errors.append((index, "a measurement brings samples_ns, device_id and fingerprint; claims go to /results"))
        elif result.status == "ok" and _output(event) not in verified:
            errors.append((index, "a measurement brings the VerificationRecorded of its cell and run in one request"))
    return errors


def _output(event: Posted) -> tuple[Any, ...]:
    return (event.run_id, *(getattr(event.payload, name) for name in OUTPUT if name != "run_id"))
