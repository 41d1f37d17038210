"""Routes for benchmark requests: submit, follow and cancel."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any, Literal, Self
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, WithJsonSchema, model_validator
from pydantic_core import PydanticCustomError

from accel_platform.backends.registry import RUNTIMES, runtime_for
from accel_platform.bench.plan.config import BenchmarkConfig
from accel_platform.bench.plan.plan import MAX_BATCH_SIZE, MAX_SEQUENCE_LENGTH
from accel_platform.bench.requests.lifecycle import REQUEST_PREFIX, State, build_request_events, close
from accel_platform.bench.requests.lifecycle import Request as QueuedRequest
from accel_platform.errors import Conflict, InvalidInput, NotFound
from accel_platform.events.types import Mode
from predictor.schemas.queries import PageQuery
from predictor.service.api.ingest import Key, LogFor
from predictor.service.background.intake import request_id, store_once
from predictor.service.background.request_lookup import RequestLookup
from predictor.service.http.bodies import JsonRoute, require_strict_body
from predictor.service.http.paging import UNKNOWN_CURSOR
from predictor.service.http.problems import problem_responses

Name = Annotated[str, Field(min_length=1, max_length=200)]
Precision = Literal["float32", "tf32", "float16", "bfloat16", "int8"]
_CONFIG = BenchmarkConfig.model_fields
_HARDWARE = "^({})$".format(
    "|".join(f"{name}(:({runtime.choices}))?" if runtime.choices else name for name, runtime in RUNTIMES.items())
)


def _resolve_hardware(name: str) -> str:
    """Return the platform's spelling of a hardware name. Raises PydanticCustomError with the closest names."""
    try:
        return runtime_for(name).name
    except InvalidInput as error:
        raise PydanticCustomError("hardware", "{message}", {"message": str(error)}) from error


# The pattern is only documented, because its own error would show it in place of the closest names.
HardwareName = Annotated[
    str, AfterValidator(_resolve_hardware), WithJsonSchema({"type": "string", "pattern": _HARDWARE})
]


class Benchmark(BaseModel):
    """Cells to measure, as in a suite file, less what only the measuring host has: files, browsers, weights."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        json_schema_extra={"examples": [{"models": ["bert-base"], "hardware_types": ["cpu"], "batch_sizes": [1, 4]}]},
    )
    models: Annotated[list[Name], Field(min_length=1, max_length=100)] | None = Field(
        default=None, description="Keys, aliases or hub ids of the catalogue."
    )
    set: Name | None = Field(default=None, description="A named set; with neither this nor `models` it is `small`.")
    hardware_types: list[HardwareName] = Field(min_length=1, max_length=20, description="Each is a request of its own.")
    batch_sizes: list[Annotated[int, Field(ge=1, le=MAX_BATCH_SIZE)]] = Field(
        default=[1, 4], min_length=1, max_length=64, description=_CONFIG["batch_sizes"].description
    )
    sequence_lengths: (
        Annotated[list[Annotated[int, Field(ge=1, le=MAX_SEQUENCE_LENGTH)]], Field(min_length=1, max_length=64)] | None
    ) = Field(default=None, description=_CONFIG["sequence_lengths"].description)
    precisions: Annotated[list[Precision], Field(min_length=1, max_length=8)] | None = Field(
        default=None, description=_CONFIG["precisions"].description
    )
    modes: list[Mode] = Field(
        default=["inference"], min_length=1, max_length=3, description=_CONFIG["modes"].description
    )
    processes: int = Field(default=1, ge=1, le=1024)
    effort: Literal["quick", "standard", "thorough"] = Field(
        default="standard", description=_CONFIG["effort"].description
    )
    missing: bool = Field(default=False, description="Only what the log lacks for the host that measures.")
    labels: dict[Name, Name] = Field(default={}, max_length=50)
    priority: int = Field(default=0, ge=-1000, le=1000, description="Higher goes first.")
    max_runtime_s: float | None = Field(default=None, gt=0, le=604_800, description="A run that takes longer is ended.")
    host: Name | None = Field(default=None, description="The only host that may take it, by its name in claims.")

    @model_validator(mode="before")
    @classmethod
    def _named_as_in_a_suite(cls, value: Any) -> Any:
        """Say what the key of a query is called here."""
        if isinstance(value, dict) and "hardware" in value:
            raise PydanticCustomError("extra_forbidden", "no field is called 'hardware' here: write hardware_types")
        return value


class BenchmarkRequest(BaseModel):
    """A requested benchmark on one hardware name, and its state."""

    request_id: UUID
    state: State
    hardware: str
    requested_by: str
    requested_at: datetime
    priority: int
    max_runtime_s: float | None
    host: str | None
    attempts: int
    claimed_by: str | None
    claimed_at: datetime | None
    closed_at: datetime | None
    reason: str | None
    run_ids: list[str]
    config: dict[str, Any]

    @classmethod
    def of(cls, entry: QueuedRequest) -> Self:
        requested, closed = entry.payload, entry.closed
        return cls(
            request_id=entry.id,
            state=entry.state,
            hardware=requested.hardware,
            requested_by=requested.requested_by,
            requested_at=entry.requested_at,
            priority=requested.priority,
            max_runtime_s=requested.max_runtime_s,
            host=requested.host,
            attempts=entry.attempts,
            claimed_by=entry.claimed_by,
            claimed_at=entry.claimed_at,
            closed_at=entry.closed_at,
            reason=closed.reason if closed else None,
            run_ids=list(closed.run_ids) if closed else [],
            config=requested.config,
        )


class BenchmarkRequests(BaseModel):
    """The stored requests, one per hardware name."""

    requests: list[BenchmarkRequest] = Field(description="Requested benchmarks, each on one hardware name.")


class RequestPage(BenchmarkRequests):
    """Requests, the newest first, straight from the log."""

    next_cursor: str | None = Field(description="Pass it as `cursor` for the next page; null after the last.")


class RequestsQuery(PageQuery):
    """Filters and page of requests."""

    state: State | None = None
    hardware: HardwareName | None = Field(default=None, max_length=200)


def _decoded(cursor: str | None) -> UUID | None:
    try:
        return None if cursor is None else UUID(cursor)
    except ValueError as error:
        raise NotFound(UNKNOWN_CURSOR) from error


def router(lookup: RequestLookup, log_for: LogFor, request_update: Callable[[], None]) -> APIRouter:
    routes = APIRouter(tags=["requests"], route_class=JsonRoute)

    @routes.get("/requests", responses=problem_responses(404, 422, 503))
    def requests(query: Annotated[RequestsQuery, Query()]) -> RequestPage:
        """List requested benchmarks, the newest first."""
        before = _decoded(query.cursor)
        found = [
            entry
            for entry in lookup.all()
            if (before is None or entry.id < before)
            and query.state in (None, entry.state)
            and query.hardware in (None, entry.payload.hardware)
        ]
        page = [BenchmarkRequest.of(entry) for entry in found[: query.limit]]
        more = str(page[-1].request_id) if len(found) > query.limit else None
        return RequestPage(requests=page, next_cursor=more)

    @routes.get("/requests/{id}", name="request", responses=problem_responses(404, 422, 503))
    def request_(id: UUID) -> BenchmarkRequest:  # noqa: A002
        """Return one request."""
        return BenchmarkRequest.of(lookup.get(id))

    @routes.post(
        "/benchmarks",
        status_code=202,
        responses=problem_responses(400, 404, 413, 415, 422, 503),
        dependencies=[require_strict_body(Benchmark)],
    )
    def ask_for_benchmark(
        request: Request, response: Response, body: Benchmark, idempotency_key: Key = None
    ) -> BenchmarkRequests:
        """Request a benchmark on whichever host has the hardware; it is measured while that host is at work."""
        config = body.model_dump(exclude={"priority", "max_runtime_s", "host"}, exclude_none=True)
        events = build_request_events(
            config,
            by="api",
            priority=body.priority,
            max_runtime_s=body.max_runtime_s,
            host=body.host,
            causation_id=request_id(request.url.path, body),
        )
        stored = store_once(log_for(request), events, key=idempotency_key, prefix=REQUEST_PREFIX)
        if stored.replayed:
            response.headers["Idempotency-Replayed"] = "true"
        request_update()
        response.headers["Location"] = f"/requests/{stored.events[0].event_id}"
        return BenchmarkRequests(requests=[BenchmarkRequest.of(lookup.get(e.event_id)) for e in stored.events])

    @routes.post("/requests/{id}/cancel", responses=problem_responses(404, 409, 422, 503))
    def cancel(request: Request, id: UUID) -> BenchmarkRequest:  # noqa: A002
        """Cancel a request; it stays on record, and a measurement for it stops within seconds."""
        found = lookup.get(id)
        if found.closed is not None or not close(log_for(request), found, "cancelled", "taken back through the API"):
            raise Conflict(f"The request {id} has ended already: {lookup.get(id).state}.")
        request_update()
        return BenchmarkRequest.of(lookup.get(id))

    return routes
