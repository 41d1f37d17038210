"""Cells in measuring children: a process per group, another for what is left whenever one dies, and what came of each.

Nothing is recorded here, and no remedy is tried.
"""

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
    """The run was stopped: what its children say no longer counts."""


@dataclass(frozen=True)
class MeasuredCell:
    """What a child said of a cell that ran, and of loading its model."""

    cell: Cell
    answer: Message
    loaded: Message


@dataclass(frozen=True)
class FailedMeasurement:
    """A cell that did not run, and why."""

    cell: Cell
    why: FailureReason


@dataclass(frozen=True)
class OperatorProfile:
    """What the pass with the operator profiler found, or why there is none."""

    cell: Cell
    told: Message


Outcome = MeasuredCell | FailedMeasurement | OperatorProfile


@dataclass
class WorkerPool:
    """The measuring children of one run, several at once where lanes run side by side; `stop` ends them all."""

    threads: int
    timeout_s: float
    """For loading, and for each cell."""
    _living: set[Child] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _stopped: bool = False

    preparing: list[Child] = field(default_factory=list)
    """Children of others that `stop` is to end too."""

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            for child in (*self._living, *self.preparing):
                child.kill()

    def check(self) -> None:
        """Raises Stopped after `stop`."""
        if self._stopped:
            raise WorkersStopped

    def measure(
        self, data: Mapping[Cell, Path], job: dict[str, Any], trace: Callable[[Cell], Path] | None = None
    ) -> Iterator[Outcome]:
        """What becomes of each cell; all of them share one loaded model. Raises Stopped after `stop`.

        `data` is where the inputs of each cell lie, `job` what else the worker wants, `trace` where the operators of
        each go; without it no operator is looked at.
        """
        left = list(data)
        while left:
            mine = {
                "cells": [str(data[cell]) for cell in left],
                "traces": [str(trace(c)) for c in left] if trace else [],
            }
            yield from self._in_child(left, {**job, **mine})

    def _in_child(self, left: list[Cell], job: dict[str, Any]) -> Iterator[Outcome]:
        """Measure the cells of `left` in one process, taking each out as it ends, well or badly."""
        here = tuple(left)
        loaded: Message = {}
        with self._child(job) as child:
            try:
                for answer in child.messages(self.timeout_s):
                    if answer["kind"] == "loaded":
                        loaded = answer
                    elif answer["kind"] == "measured":
                        yield MeasuredCell(left.pop(0), answer, loaded)
                    elif answer["kind"] == "operators":
                        yield OperatorProfile(here[answer.pop("cell")], answer)
                    elif answer["kind"] == "failed":
                        yield FailedMeasurement(
                            left.pop(0), FailureReason("failed", answer["failure_class"], answer["reason"])
                        )
                    else:
                        why = FailureReason("failed", answer["failure_class"], answer["reason"])
                        yield from (FailedMeasurement(cell, why) for cell in left)
                        left.clear()
                why = FailureReason("failed", "crash", "the process ended without measuring it")
            except ChildTimeout as error:
                why = FailureReason("timeout", "timeout", str(error))
            except ChildCrashed as error:
                why = FailureReason("failed", classify_death(str(error)), str(error))
            self.check()
        if left:
            # A fault before the model was loaded is not one cell's: the others would meet it too.
            struck = left[:1] if loaded else left[:]
            del left[: len(struck)]
            yield from (FailedMeasurement(cell, why) for cell in struck)

    @contextmanager
    def _child(self, job: dict[str, Any]) -> Iterator[Child]:
        with Child(WORKER, job, env=child_environment(self.threads)) as child:
            with self._lock:
                self.check()
                self._living.add(child)
            try:
                yield child
            finally:
                with self._lock:
                    self._living.discard(child)
