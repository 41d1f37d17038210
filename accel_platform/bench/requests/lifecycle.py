"""Life cycle of benchmark requests, as events in the log.

A request is `open` until a host claims it, `running` while its attempts go on, then `done`, `failed` or `cancelled`.
Claims and closings are segments with fixed names, so the log decides races: the first writer wins.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from accel_platform.bench.plan.config import BenchmarkConfig, is_web, resolve_config
from accel_platform.bench.plan.plan import SEGMENT_PREFIX
from accel_platform.bench.plan.run_options import add_commit_label
from accel_platform.errors import InvalidInput, NotFound
from accel_platform.events import Event, EventLog, Snapshot
from accel_platform.events.types import BenchmarkClaimed, BenchmarkClosed, BenchmarkRequested, Payload, RunStarted
from accel_platform.hardware.host import host_id

MAX_ATTEMPTS = 3
"""Number of attempts after which a request has failed."""
REQUEST_LABEL = "request"
"""Label of a benchmark run: the request that it was made for."""
_MAX_CLOCK_SKEW_MS = 3_600_000
"""Tolerated difference between the clocks of two hosts."""
REQUEST_PREFIX = "request-"
"""Prefix of the segments of requests."""
_SOURCE = "accel bench request"

State = Literal["open", "running", "done", "failed", "cancelled"]


@dataclass(frozen=True)
class Request:
    """One request and its state in the log."""

    id: UUID
    payload: BenchmarkRequested
    requested_at: datetime
    attempts: int = 0
    claimed_by: str | None = None
    """Claimant of the newest attempt."""
    claimed_at: datetime | None = None
    direct: bool = False
    """True if the newest attempt is measured without Dagster."""
    closed: BenchmarkClosed | None = None
    closed_at: datetime | None = None

    @property
    def state(self) -> State:
        if self.closed is not None:
            return self.closed.status
        return "running" if self.attempts else "open"


def name_models(config: Mapping[str, Any]) -> str:
    """Return which models a request is for, in words: their names, a set or a file."""
    families = config.get("model_families") or {}
    named = [name for names in families.values() for name in names]
    what = config.get("models") or config.get("set") or config.get("models_file") or named
    return ", ".join(what) if isinstance(what, list | tuple) and what else what or "small"


class Requests:
    """The requests of a log, as of the last `refresh`. Refreshing reads only what is new."""

    def __init__(self, log: EventLog) -> None:
        self._log = log
        self._seen: frozenset[str] = frozenset()
        self._requested: dict[UUID, Event] = {}
        self._claims: dict[UUID, dict[int, Event]] = {}
        self._closed: dict[UUID, Event] = {}

    def refresh(self) -> bool:
        """Read the log's new segments; return whether there were any. Raises LogUnavailable."""
        now = self._log.snapshot().beginning(REQUEST_PREFIX).segments
        new = now - self._seen
        for event in self._log.read(Snapshot(new)):
            payload = event.payload
            if isinstance(payload, BenchmarkRequested):
                self._requested[event.event_id] = event
            elif isinstance(payload, BenchmarkClaimed):
                self._claims.setdefault(payload.request_id, {})[payload.attempt] = event
            elif isinstance(payload, BenchmarkClosed):
                self._closed[payload.request_id] = event
        self._seen = now
        return bool(new)

    def all(self) -> list[Request]:
        """Return every request, the oldest first."""
        # A UUIDv7 begins with its time, so it sorts by it.
        return [self._request(request_id) for request_id in sorted(self._requested)]

    def unfinished(self) -> list[Request]:
        """Return the requests without an end, the most urgent first, then the oldest."""
        found = [self._request(request_id) for request_id in sorted(self._requested.keys() - self._closed.keys())]
        return sorted(found, key=lambda request: -request.payload.priority)

    def __getitem__(self, request_id: UUID) -> Request:
        """Return the request of this id. Raises NotFound."""
        if request_id not in self._requested:
            raise NotFound(f"The log holds no request {request_id}.")
        return self._request(request_id)

    def find(self, text: str) -> Request:
        """Return the one request whose id begins or ends with a text. Raises NotFound, InvalidInput for several."""
        wanted = text.strip().casefold()
        found = [i for i in self._requested if str(i).startswith(wanted) or str(i).endswith(wanted)] if wanted else []
        if not found:
            raise NotFound(f"There is no request {text!r}: `accel bench requests` shows them.")
        if len(found) > 1:
            raise InvalidInput(f"{len(found)} requests have {text!r} in common: write more of the id.")
        return self._request(found[0])

    def _request(self, request_id: UUID) -> Request:
        requested = self._requested[request_id]
        assert isinstance(requested.payload, BenchmarkRequested)
        request = Request(request_id, requested.payload, requested.recorded_at)
        changes: dict[str, Any] = {}
        if claims := self._claims.get(request_id):
            attempt, event = max(claims.items())
            assert isinstance(event.payload, BenchmarkClaimed)
            changes |= {
                "attempts": attempt,
                "claimed_by": event.payload.claimed_by,
                "claimed_at": event.recorded_at,
                "direct": event.payload.direct,
            }
        if closed := self._closed.get(request_id):
            changes |= {"closed": closed.payload, "closed_at": closed.recorded_at}
        return Request(**{**vars(request), **changes})


def request_benchmark(
    config: BenchmarkConfig | Mapping[str, Any],
    log: EventLog,
    *,
    by: Literal["cli", "api", "schedule", "suite"] = "api",
    priority: int = 0,
    max_runtime_s: float | None = None,
    host: str | None = None,
) -> list[UUID]:
    """Request a benchmark, one request per hardware name; return their ids.

    `max_runtime_s` ends a run that takes longer; only `host` may take it, where one is named. Raises InvalidInput or
    NotFound for what no host could measure, and where no hardware is named.
    """
    events = build_request_events(config, by=by, priority=priority, max_runtime_s=max_runtime_s, host=host)
    log.append(events, key=f"{REQUEST_PREFIX}{events[0].event_id}")
    return [event.event_id for event in events]


def build_request_events(
    config: BenchmarkConfig | Mapping[str, Any],
    *,
    by: Literal["cli", "api", "schedule", "suite"],
    priority: int,
    max_runtime_s: float | None = None,
    host: str | None,
    causation_id: UUID | None = None,
) -> list[Event]:
    """Return the events that request a benchmark, to be stored in one segment whose name begins with REQUEST_PREFIX.

    Raises as `request_benchmark` does.
    """
    resolved = resolve_config(config)
    names = _validated_hardware(resolved)
    # Resolve paths and the commit here, because the measuring host may differ in folder, commit and clock.
    paths = {
        name: path.absolute() for name in ("models_file", "report_dir", "csv") if (path := getattr(resolved, name))
    }
    changes = {**paths, "labels": add_commit_label(resolved.labels), "schedule": None}
    changes |= {"include_web_platforms": None, "browser": None}  # part of the names
    events = []
    for name in names:
        one = resolved.model_copy(update={**changes, "hardware_types": (name,)})
        payload = BenchmarkRequested(
            requested_by=by,
            hardware=name,
            config=one.model_dump(mode="json", exclude_defaults=True),
            priority=priority,
            max_runtime_s=max_runtime_s,
            host=host,
        )
        events.append(Event.of(payload, source=_SOURCE, host_id=host_id(), causation_id=causation_id))
    return events


def hardware_for_request(request: Request, hardware: Collection[str], host: str) -> str | None:
    """Return the host's hardware name that serves a request: its own, or the plain one for a browser.

    None where the host lacks it, or another host was named.
    """
    if request.payload.host not in (None, host):
        return None
    name = request.payload.hardware
    plain = name.partition(":")[0] if is_web(name) else name
    return next((one for one in (name, plain) if one in hardware), None)


def claim(log: EventLog, request_id: UUID, attempt: int, *, claimed_by: str, direct: bool = False) -> bool:
    """Claim an attempt at a request, `direct` where Dagster is to have no run of it.

    Return False where another host was first. Raises LogUnavailable.
    """
    payload = BenchmarkClaimed(request_id=request_id, attempt=attempt, claimed_by=claimed_by, direct=direct)
    return _append(log, payload, request_id, f"claim-{attempt}")


def close(
    log: EventLog,
    request: Request,
    status: Literal["done", "failed", "cancelled"],
    reason: str | None = None,
) -> bool:
    """End a request; return False where it had ended already. Raises LogUnavailable."""
    payload = BenchmarkClosed(
        request_id=request.id,
        status=status,
        reason=reason,
        attempts=request.attempts,
        run_ids=tuple(runs_of(log, request.id)) if request.attempts else (),
    )
    return _append(log, payload, request.id, "closed")


def runs_of(log: EventLog, request_id: UUID) -> list[str]:
    """Return the ids of the benchmark runs of a request, the oldest first."""
    # Skip older segments: a UUIDv7 begins with 48 bits of its time in ms, and a segment's name with its run's UUID.
    since_ms = max(0, (request_id.int >> 80) - _MAX_CLOCK_SKEW_MS)
    first = f"{SEGMENT_PREFIX}{UUID(int=since_ms << 80)}"
    candidates = {name for name in log.snapshot().beginning(SEGMENT_PREFIX).segments if name >= first}
    found = set()
    for event in log.read(Snapshot(frozenset(candidates)), types={"RunStarted"}):
        started = event.payload
        if isinstance(started, RunStarted) and started.labels.get(REQUEST_LABEL) == str(request_id) and event.run_id:
            found.add(event.run_id)
    return sorted(found)


def _append(log: EventLog, payload: Payload, request_id: UUID, what: str) -> bool:
    event = Event.of(payload, source=_SOURCE, host_id=host_id(), causation_id=request_id)
    return log.append([event], key=f"{REQUEST_PREFIX}{request_id}-{what}").new


def _validated_hardware(config: BenchmarkConfig) -> list[str]:
    """Return a configuration's hardware names. Raises what would stop it on any host, except for missing weights."""
    from accel_platform.bench.plan.config_resolution import resolve_effort, resolve_hardware, resolve_models
    from accel_platform.bench.plan.plan import plan_cells
    from accel_platform.bench.plan.run_options import stale_cutoff
    from accel_platform.precisions import resolve_precision

    if config.hardware_types is None:
        raise InvalidInput("A request names its hardware, such as cpu,cuda: another host may measure it.")
    resolve_effort(config)
    stale_cutoff(config.older_than, missing=config.missing)
    models, _ = resolve_models(config.model_copy(update={"weights": {}}))
    names = resolve_hardware(config)
    precisions = [resolve_precision(name) for name in config.precisions or ()] or (None,)
    lengths = config.sequence_lengths or (None,)
    plan_cells(models, names, config.batch_sizes, lengths, precisions, config.modes, config.processes)
    return names
