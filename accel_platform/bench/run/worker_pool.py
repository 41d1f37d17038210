"""Measuring worker processes: one per group of cells, and a new one for the remaining cells whenever one dies."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accel_platform.bench.measure.failures import FailureReason, classify_death
from accel_platform.bench.plan.plan import Cell
from accel_platform.subprocesses.json_child import Child, ChildCrashed, ChildTimeout, Message, child_environment

WORKER = "accel_platform.bench.measure.worker"


class WorkersStopped(Exception):
    """The run was stopped: its workers' answers no longer count."""


@dataclass(frozen=True)
class MeasuredCell:
    """A worker's answer for a cell that ran, and its report of loading the model."""

    cell: Cell
    answer: Message
    loaded: Message


@dataclass(frozen=True)
class FailedMeasurement:
    """A cell that did not run, and the reason."""

    cell: Cell
    cause: FailureReason


@dataclass(frozen=True)
class OperatorProfile:
    """The operators found by the runtime's profiler, or the reason for none."""

    cell: Cell
    message: Message


Outcome = MeasuredCell | FailedMeasurement | OperatorProfile


@dataclass
class WorkerPool:
    """The worker processes of one run, several at once where lanes run side by side; `stop` kills them all."""

    threads: int
    timeout_s: float
    """Timeout of loading, and of each cell."""
    _workers: set[Child] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopped: bool = False

    preparing: list[Child] = field(default_factory=list)
    """Children of others that `stop` is to end too."""

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for child in (*self._workers, *self.preparing):
                child.kill()

    def check(self) -> None:
        """Raise WorkersStopped after `stop`."""
        if self._stopped:
            raise WorkersStopped

    def measure(
        self, data: Mapping[Cell, Path], job: dict[str, Any], trace: Callable[[Cell], Path] | None = None
    ) -> Iterator[Outcome]:
        """Yield the outcome of each cell; all of them share one loaded model. Raises WorkersStopped after `stop`.

        Parameters
        ----------
        data
            Path of each cell's inputs.
        job
            The worker's other parameters.
        trace
            Path of each cell's operator trace; without it no operator is profiled.
        """
        remaining = list(data)
        while remaining:
            cell_paths = {
                "cells": [str(data[cell]) for cell in remaining],
                "traces": [str(trace(c)) for c in remaining] if trace else [],
            }
            yield from self._measure_in_worker(remaining, {**job, **cell_paths})

    def _measure_in_worker(self, remaining: list[Cell], job: dict[str, Any]) -> Iterator[Outcome]:
        """Measure the cells of `remaining` in one process, removing each as it ends, successful or failed."""
        planned = tuple(remaining)
        loaded: Message = {}
        with self._start_worker(job) as child:
            try:
                for answer in child.messages(self.timeout_s):
                    match answer["kind"]:
                        case "loaded":
                            loaded = answer
                        case "measured":
                            yield MeasuredCell(remaining.pop(0), answer, loaded)
                        case "operators":
                            yield OperatorProfile(planned[answer.pop("cell")], answer)
                        case "failed":
                            yield FailedMeasurement(remaining.pop(0), _stated_cause(answer))
                        case "restart":
                            return
                        case _:  # the worker itself failed, and with it all that it was to measure
                            yield from (FailedMeasurement(cell, _stated_cause(answer)) for cell in remaining)
                            remaining.clear()
                cause = FailureReason("failed", "crash", "the process ended without measuring it")
            except ChildTimeout as error:
                cause = FailureReason("timeout", "timeout", str(error))
            except ChildCrashed as error:
                cause = FailureReason("failed", classify_death(str(error)), str(error))
            self.check()
        if remaining:
            # A fault before the model was loaded fails all cells, because each would meet it.
            affected = remaining[:1] if loaded else remaining[:]
            del remaining[: len(affected)]
            yield from (FailedMeasurement(cell, cause) for cell in affected)

    @contextmanager
    def _start_worker(self, job: dict[str, Any]) -> Iterator[Child]:
        with Child(WORKER, job, env=child_environment(self.threads)) as child:
            with self._lock:
                self.check()
                self._workers.add(child)
            try:
                yield child
            finally:
                with self._lock:
                    self._workers.discard(child)


def _stated_cause(answer: Message) -> FailureReason:
    """Return the reason for a failure, as a worker states it."""
    return FailureReason("failed", answer["failure_class"], answer["reason"])
