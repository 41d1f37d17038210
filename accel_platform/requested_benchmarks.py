"""Requested benchmarks measured on this host, with their outcome; taken from the log without Dagster, too."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from typing import Literal
from uuid import UUID

import psutil
import pyarrow as pa

from accel_platform.bench.plan.plan import SEGMENT_PREFIX
from accel_platform.bench.plan.resume import remaining_cells
from accel_platform.bench.plan.run_locks import hold_run_lock, is_running
from accel_platform.bench.requests.lifecycle import (
    REQUEST_LABEL,
    Request,
    Requests,
    claim,
    close,
    hardware_for_request,
    runs_of,
)
from accel_platform.benchmark_api import PlannedRun, execute, plan_benchmark
from accel_platform.errors import AccelError, InvalidInput, LogUnavailable, NotFound
from accel_platform.events import EventLog
from accel_platform.events.log import AppendResult
from accel_platform.events.types import ResultRecorded, VerificationRecorded
from accel_platform.hardware.host import host_name
from accel_platform.settings import Settings
from accel_platform.signals import block_sigint, interrupt_with_parent
from accel_platform.table_io.values import count_of

_LOOK_S = 1.0
"""Time between two looks at the log."""
_ENDING_S = 15.0
"""Time that an interrupted measurement has to record what it measured."""
_SUPERSEDED = "a later attempt has begun"

Outcome = tuple[Literal["done", "failed", "cancelled"], str | None]
"""Status and reason with which a request is closed."""


class MeasuringCrashed(AccelError):
    """The process that measured ended without an outcome."""


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
            raise _superseded_error(self._request)
        return super().append_table(table, key=key)


def _superseded_error(request: Request) -> AccelError:
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
    models = ", ".join(dict.fromkeys(cell.model.model_id for cell in wanted))
    report(f"{count_of(len(wanted), 'cell')} to measure{f': {models} on {request.payload.hardware}' if models else ''}")
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

    Requests that this host took before and did not end are continued. Requests with a run in Dagster are left to
    Dagster. With `wait` it waits for new requests without end. Raises LogUnavailable.
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
        outcome: Outcome
        try:
            outcome = measure_within_limits(request, log, settings, report)
        except MeasuringCrashed as crash:
            outcome = "failed", str(crash)
        close(log, request, *outcome)
        requests.refresh()
        return requests[request.id]


def _may_take(request: Request, hardware: Collection[str]) -> bool:
    if request.closed is not None or hardware_for_request(request, hardware, host_name()) is None:
        return False
    return not request.attempts or (request.direct and request.claimed_by == host_name())


def measure_within_limits(
    request: Request, log: EventLog, settings: Settings, report: Callable[[str], None]
) -> Outcome:
    """Measure in a process of its own, which is interrupted when the request is cancelled or its time is over.

    On KeyboardInterrupt the process is ended, and what it measured is kept. Raises MeasuringCrashed,
    AccelError when a later attempt begins elsewhere, and the process's own AccelError.
    """
    # A process, because an interruption amid the imports of native libraries could end this one.
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_measure_apart, args=(request, settings, sender), name="requested benchmark")
    requests = Requests(log)
    limit_s, begun = request.payload.max_runtime_s, time.monotonic()
    with block_sigint():
        child.start()
    sender.close()
    try:
        while True:
            if limit_s is not None and time.monotonic() - begun >= limit_s:
                return "failed", f"it took longer than {limit_s:g} s, its limit"
            if (end := _end_elsewhere(requests, request)) == _SUPERSEDED:
                raise _superseded_error(request)
            if end is not None:
                return "failed", end
            if receiver.poll(_LOOK_S):
                message: str | Outcome | AccelError = receiver.recv()
                if isinstance(message, str):
                    report(message)
                    continue
                child.join(_ENDING_S)  # that was its last message, and it ends by itself
                if isinstance(message, AccelError):
                    raise message
                return message
    except EOFError:
        child.join()
        raise MeasuringCrashed(f"The measuring process ended with exit code {child.exitcode}.") from None
    finally:
        _end(child)


def _measure_apart(request: Request, settings: Settings, sender: Connection[str | Outcome | AccelError, None]) -> None:
    """Measure a request and send its progress, then its outcome or the error; nothing where it is interrupted."""
    if sys.platform != "win32":
        os.setpgrp()  # the terminal's Ctrl-C goes to the parent, which interrupts this process once
    signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt_with_parent()
    try:
        # Blocked until here, because an interruption amid this module's imports would print a traceback.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        sender.send(measure_request(request, EventLog.open(settings), settings, sender.send))
    except AccelError as error:
        sender.send(error)
    except (KeyboardInterrupt, BrokenPipeError):
        return  # the parent wants no more, or is gone


def _end(child: SpawnProcess) -> None:
    """Interrupt a process, and kill it with all that it started where it does not end.

    It is killed at once where this process is interrupted meanwhile: else Python would wait for its end at exit, and
    the device with it.
    """
    try:
        if child.is_alive() and child.pid is not None:
            os.kill(child.pid, signal.SIGINT)
        child.join(_ENDING_S)
    finally:
        if child.is_alive() and child.pid is not None:
            process = psutil.Process(child.pid)
            for one in (*process.children(recursive=True), process):
                with suppress(psutil.NoSuchProcess):
                    one.kill()
            child.join()


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
        failed = [f"{len(reasons)} of {count_of(len(todo.cells), 'cell')} failed: {reasons[0]}"] if reasons else []
        noisy = [f"noisy figures: {len(doubtful)} of {good}, {doubtful[0]}"] if doubtful else []
        return "done", "; ".join(failed + noisy) or None
    return ("failed", reasons[0]) if reasons else ("done", "all of it was measured already")
