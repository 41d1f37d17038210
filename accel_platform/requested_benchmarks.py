"""Requested benchmarks measured on this host, with their outcome; taken from the log without Dagster, too."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Literal
from uuid import UUID

import pyarrow as pa

from accel_platform.bench.plan.plan import SEGMENT_PREFIX
from accel_platform.bench.plan.resume import remaining_cells
from accel_platform.bench.plan.run_locks import hold_run_lock, is_running
from accel_platform.bench.requests.lifecycle import REQUEST_LABEL, Request, Requests, claim, close, offered, runs_of
from accel_platform.benchmark_api import PlannedRun, execute, plan_benchmark
from accel_platform.errors import AccelError, InvalidInput, LogUnavailable, NotFound
from accel_platform.events import EventLog
from accel_platform.events.log import AppendResult
from accel_platform.events.types import ResultRecorded, VerificationRecorded
from accel_platform.hardware.host import host_name
from accel_platform.settings import Settings

_LOOK_S = 1.0
"""Time between two looks at the log."""
_AGAIN_S = 5.0
"""Time until an interruption is repeated, because Python drops one that meets a callback of its garbage collector."""
_SUPERSEDED = "a later attempt has begun"

Outcome = tuple[Literal["done", "failed", "cancelled"], str | None]
"""Status and reason with which a request is closed."""


class AttemptLog(EventLog):
    """Log that takes the results of an attempt while no later one has begun, so that no cell is recorded twice.

    A host that was cut off, and given up, would write what it holds when it joins again.
    """

    def __init__(self, log: EventLog, request: Request) -> None:
        super().__init__(log.store)
        self._requests, self._request = Requests(log), request

    def append_table(self, table: pa.Table, *, key: str) -> AppendResult:
        """Append as a log does. Raises AccelError once a later attempt has begun, and LogUnavailable."""
        self._requests.refresh()
        if self._requests[self._request.id].attempts != self._request.attempts:
            raise _superseded(self._request)
        return super().append_table(table, key=key)


def _superseded(request: Request) -> AccelError:
    return AccelError(f"Attempt {request.attempts} at the request {request.id} ends here: {_SUPERSEDED}.")


def measure_request(request: Request, log: EventLog, settings: Settings, report: Callable[[str], None]) -> Outcome:
    """Measure what earlier attempts at a request have not recorded; return how it ends. The request stays open.

    Raises AccelError once a later attempt has begun, and LogUnavailable.
    """
    try:
        planned = plan_benchmark(request.payload.config, home=settings.home)
    except (InvalidInput, NotFound) as error:
        return "failed", str(error)
    wanted = remaining_cells(planned.wanted, log, runs_of(log, request.id))
    labels = {**planned.labels, REQUEST_LABEL: str(request.id)}
    todo = replace(planned, labels=labels, wanted=wanted)
    summary = execute(todo, on_progress=report, log=AttemptLog(log, request))
    return _outcome(log, request, todo, [f"{name} is unavailable: {why}" for name, why in summary.unavailable.items()])


def open_attempt(log: EventLog, request_id: UUID, attempt: int) -> Request | None:
    """Return a request whose newest attempt is this one; None where it has ended or a later one has begun.

    Raises NotFound, LogUnavailable.
    """
    requests = Requests(log)
    requests.refresh()
    request = requests[request_id]
    return request if request.closed is None and request.attempts == attempt else None


def take_requests(
    log: EventLog,
    settings: Settings,
    hardware: Collection[str],
    *,
    wait: bool = False,
    report: Callable[[str], None] = lambda _: None,
) -> Iterator[Request]:
    """Take the requests for this host's hardware, the most urgent first; yield each when it has ended.

    One that this host took before and did not end is gone on with. What Dagster has a run of is left to Dagster. With
    `wait` new requests are waited for without end. Call it in the main thread. Raises LogUnavailable.
    """
    requests = Requests(log)
    while True:
        requests.refresh()
        ended = None
        for request in requests.unfinished():
            ended = _take(request, requests, log, settings, hardware, report)
            if ended is not None:
                yield ended
                break  # a more urgent one may wait by now
        if ended is None:
            if not wait:
                return
            time.sleep(_LOOK_S)


def _take(
    request: Request,
    requests: Requests,
    log: EventLog,
    settings: Settings,
    hardware: Collection[str],
    report: Callable[[str], None],
) -> Request | None:
    """Measure one request and return it ended; None where it is not this process's to take."""
    if not _may_take(request, hardware) or is_running(settings, lock := f"request-{request.id}"):
        return None
    with hold_run_lock(settings, lock):
        requests.refresh()
        request = requests[request.id]  # another process of this host may have ended it
        if not _may_take(request, hardware):
            return None
        if not request.attempts and not claim(log, request.id, 1, claimed_by=host_name(), direct=True):
            return None
        requests.refresh()
        request = requests[request.id]
        report(f"request {str(request.id)[-12:]}: {request.payload.hardware}")
        close(log, request, *measure_within_limits(request, log, settings, report))
        requests.refresh()
        return requests[request.id]


def _may_take(request: Request, hardware: Collection[str]) -> bool:
    if request.closed is not None or offered(request, hardware, host_name()) is None:
        return False
    return not request.attempts or (request.direct and request.claimed_by == host_name())


def measure_within_limits(
    request: Request, log: EventLog, settings: Settings, report: Callable[[str], None]
) -> Outcome:
    """Measure as `measure_request` does, and stop when the request is cancelled or takes longer than its limit.

    Call it in the main thread. Raises AccelError when a later attempt begins elsewhere, and LogUnavailable.
    """
    reason: list[str] = []
    try:
        with _interrupted_at_its_end(request, log, reason):
            return measure_request(request, log, settings, report)
    except KeyboardInterrupt:
        if not reason:
            raise  # Ctrl-C: what is measured is kept, and the request goes on next time
    if reason[0] == _SUPERSEDED:
        raise _superseded(request)
    return "failed", reason[0]


@contextmanager
def _interrupted_at_its_end(request: Request, log: EventLog, reason: list[str]) -> Iterator[None]:
    """Interrupt the main thread when the request was cancelled or its time is over, after noting the reason."""
    if sys.platform == "win32":  # it has no signal that a program may send to its main thread
        yield
        return
    left = threading.Event()
    limit_s, begun = request.payload.max_runtime_s, time.monotonic()

    def interrupt(*_: object) -> None:
        if not left.is_set():
            raise KeyboardInterrupt

    def watch() -> None:
        requests = Requests(log)
        while not reason and not left.wait(_LOOK_S):
            if limit_s is not None and time.monotonic() - begun >= limit_s:
                reason.append(f"it took longer than {limit_s:g} s, its limit")
            elif (end := _end_elsewhere(requests, request)) is not None:
                reason.append(end)
        while not left.is_set():
            # Not SIGINT, because what a script starts with `&` ignores that.
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)
            left.wait(_AGAIN_S)

    before = signal.signal(signal.SIGUSR1, interrupt)
    watcher = threading.Thread(target=watch, name="request watcher", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        left.set()
        watcher.join()
        signal.signal(signal.SIGUSR1, before)


def _end_elsewhere(requests: Requests, request: Request) -> str | None:
    try:
        requests.refresh()
    except LogUnavailable:
        return None
    now = requests[request.id]
    if now.closed is not None:
        return "it was cancelled"
    return _SUPERSEDED if now.attempts != request.attempts else None


def _outcome(log: EventLog, request: Request, todo: PlannedRun, reasons: list[str]) -> Outcome:
    """Return how a request ends, from the results of all of its attempts."""
    segments = log.snapshot()
    good, doubtful = 0, []
    for run_id in runs_of(log, request.id):
        for event in log.read(segments.beginning(f"{SEGMENT_PREFIX}{run_id}-")):
            if isinstance(event.payload, ResultRecorded) and event.payload.status != "ok":
                reasons.append(event.payload.reason or event.payload.status)
            elif isinstance(event.payload, ResultRecorded):
                good += 1
                doubtful += [event.payload.noisy_reason or "its samples scatter"] if event.payload.noisy else []
            elif isinstance(event.payload, VerificationRecorded) and todo.options.work == "verify":
                good += event.payload.passed
                reasons += [] if event.payload.passed else [event.payload.reason or "its outputs differ"]
    if good:
        failed = [f"{len(reasons)} of {len(todo.cells)} cells failed: {reasons[0]}"] if reasons else []
        noisy = [f"{len(doubtful)} of {good} figures are noisy: {doubtful[0]}"] if doubtful else []
        return "done", "; ".join(failed + noisy) or None
    return ("failed", reasons[0]) if reasons else ("done", "all of it was measured already")
