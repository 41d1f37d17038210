"""Next steps of requested benchmarks, from the state of the log and of Dagster.

A host claims an attempt in the log before it requests a run, so no two hosts take one. Whichever host sees a run end
badly may claim the next attempt.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

import dagster as dg

from accel_platform.bench.requests.lifecycle import MAX_ATTEMPTS, Request, Requests, claim, close, hardware_for_request
from accel_platform.events import EventLog
from assets.executors.heartbeat import STOPPED, was_stopped
from assets.failures import reason_of

REQUEST_TAG = "accel/request"
ATTEMPT_TAG = "accel/attempt"
LIMIT_TAG = "dagster/max_runtime"
"""Tag of a run: the seconds after which Dagster ends it."""
NO_LIMIT = "0"
"""Value of `LIMIT_TAG` for a run whose time is limited elsewhere."""
LOST_S = 60
"""Age of a claim without a run in Dagster, in seconds, after which another host may claim the next attempt."""
STOPPING_S = 30
"""Seconds after a stop of `accel ui` from which on the next attempt may be claimed, because its runs are gone then."""

_ADVICE = "For more information about the failure, try"
_REASON_CHARS = 400
"""Characters of Dagster's reason that are recorded."""

RunState = Literal["under way", "failed", "canceled", "stopped"]
"""State of a run. `stopped` means that its `accel ui` ended, which does not count as an attempt."""


@dataclass(frozen=True)
class AttemptRun:
    """Facts about the run of a request's newest attempt, which decide the next step."""

    state: RunState
    reason: str
    seconds: float | None = None
    """Duration; None if it never started, has not ended, or has its time limited elsewhere."""
    stops: int = 0
    """Number of the request's runs that were stopped."""


@dataclass(frozen=True)
class Step:
    """Next step of a request."""

    do: Literal["claim", "start", "close", "wait"]
    attempt: int = 0
    status: Literal["failed", "cancelled"] = "failed"
    reason: str | None = None


def next_step(request: Request, run: AttemptRun | None, *, host: str, now: datetime) -> Step:
    """Return a host's next step for an open request, for which it has the hardware; `run` is of the newest attempt."""
    attempt = request.attempts
    if attempt == 0:
        return Step("claim", 1)
    if run is None and request.direct:
        return Step("wait")  # `accel bench take` measures it, and continues after a crash
    if run is None and request.claimed_by == host:
        return Step("start", attempt)
    if run is None:
        assert request.claimed_at is not None
        lost = (now - request.claimed_at).total_seconds() >= LOST_S
        run = AttemptRun("failed" if lost else "under way", f"{request.claimed_by} took it and never began")
    if run.state == "under way":
        return Step("wait")
    return _step_after(request, run)


def _step_after(request: Request, run: AttemptRun) -> Step:
    """Return the step after a run that ended without closing its request."""
    attempt, tries = request.attempts, request.attempts - run.stops
    limit_s = request.payload.max_runtime_s
    if run.state == "stopped":
        return Step("claim", attempt + 1)
    if limit_s is not None and run.seconds is not None and run.seconds >= limit_s:
        return Step("close", reason=f"it took longer than {limit_s:g} s, its limit")
    if run.state == "canceled":
        return Step("close", status="cancelled", reason=run.reason)
    if tries < MAX_ATTEMPTS:
        return Step("claim", attempt + 1)
    return Step("close", reason=f"tried {tries} times; the last time: {run.reason}")


def claim_request(
    requests: Requests, log: EventLog, instance: dg.DagsterInstance, *, hardware: Collection[str], host: str
) -> list[Request]:
    """Claim requests for this host and return those that need runs now; close those that must end.

    `hardware` are the names that this host has. Raises LogUnavailable.
    """
    requests.refresh()
    _stop_closed(requests, instance)
    taken = []
    for request in requests.unfinished():
        if hardware_for_request(request, hardware, host) is None:
            continue
        run = _run_of(instance, request) if request.attempts else None
        if run is not None and run.state != "under way":
            # A run ends its request before it ends itself.
            requests.refresh()
            if requests[request.id] != request:
                continue
        step = next_step(request, run, host=host, now=datetime.now(UTC))
        if step.do == "close":
            close(log, request, step.status, step.reason)
        elif step.do == "claim" and claim(log, request.id, step.attempt, claimed_by=host):
            requests.refresh()
            taken.append(requests[request.id])
        elif step.do == "start":
            taken.append(request)
    return taken


def _run_of(instance: dg.DagsterInstance, request: Request) -> AttemptRun | None:
    """Return the run of a request's newest attempt; None if Dagster has none."""
    wanted = dg.RunsFilter(tags={REQUEST_TAG: str(request.id), ATTEMPT_TAG: str(request.attempts)})
    records = instance.get_run_records(wanted, limit=1)
    if not records:
        return None
    [record] = records
    run = record.dagster_run
    if not run.is_finished:
        return AttemptRun("under way", "")
    limited_here = run.tags.get(LIMIT_TAG) != NO_LIMIT
    seconds = record.end_time - record.start_time if limited_here and record.start_time and record.end_time else None
    stops = _count_stops(instance, request)
    if run.status is dg.DagsterRunStatus.CANCELED and was_stopped(instance, run):
        stopping = record.end_time is not None and time.time() - record.end_time < STOPPING_S
        return AttemptRun("under way" if stopping else "stopped", STOPPED, seconds, stops)
    if run.status is dg.DagsterRunStatus.CANCELED:
        return AttemptRun("canceled", "its run was cancelled in Dagster", seconds, stops)
    if run.status is dg.DagsterRunStatus.SUCCESS:
        return AttemptRun("failed", "its run ended without an outcome", seconds, stops)
    return AttemptRun("failed", _failure_reason(instance, run.run_id), seconds, stops)


def _count_stops(instance: dg.DagsterInstance, request: Request) -> int:
    """Return how many runs of a request were stopped with their `accel ui`."""
    canceled = dg.RunsFilter(tags={REQUEST_TAG: str(request.id)}, statuses=[dg.DagsterRunStatus.CANCELED])
    return sum(was_stopped(instance, run) for run in instance.get_runs(canceled))


def _failure_reason(instance: dg.DagsterInstance, run_id: str) -> str:
    """Return Dagster's reason for a failure: of the step, else of the process, else of the run."""
    kinds = {
        dg.DagsterEventType.STEP_FAILURE,
        dg.DagsterEventType.RUN_FAILURE,
        dg.DagsterEventType.ENGINE_EVENT,
    }
    found: dict[dg.DagsterEventType, str] = {}
    for entry in instance.all_logs(run_id, of_type=kinds):
        event = entry.dagster_event
        assert event is not None
        if event.event_type is dg.DagsterEventType.ENGINE_EVENT and "unexpectedly" not in str(event.message):
            continue
        text = reason_of(event) if event.is_step_failure else event.message or ""
        found[event.event_type] = " ".join(text.split())
    # Dagster adds commands for people at a terminal to what Kubernetes said.
    found = {kind: text.partition(_ADVICE)[0].strip()[:_REASON_CHARS] for kind, text in found.items()}
    order = (dg.DagsterEventType.STEP_FAILURE, dg.DagsterEventType.ENGINE_EVENT, dg.DagsterEventType.RUN_FAILURE)
    return next((found[kind] for kind in order if found.get(kind)), "its run failed")


def _stop_closed(requests: Requests, instance: dg.DagsterInstance) -> None:
    """Cancel the runs of requests that somebody cancelled."""
    alive = [dg.DagsterRunStatus.QUEUED, dg.DagsterRunStatus.STARTING, dg.DagsterRunStatus.STARTED]
    ended = {str(request.id) for request in requests.all() if request.state == "cancelled"}
    for run in instance.get_runs(dg.RunsFilter(statuses=alive)):
        if run.tags.get(REQUEST_TAG) in ended:
            instance.run_coordinator.cancel_run(run.run_id)
