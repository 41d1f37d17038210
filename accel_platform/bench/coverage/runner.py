"""Coverage runner: checks every architecture on the requested hardware in parallel worker processes.

Checks that the log has for the installed versions are not repeated. A worker that dies or hangs loses only its current
architecture: a new worker continues with the next.
"""

from __future__ import annotations

import textwrap
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any, Literal

import psutil
from uuid_utils.compat import uuid7

from accel_platform.bench.coverage import worker
from accel_platform.bench.measure.failures import classify_death
from accel_platform.bench.run.event_buffer import EventBuffer
from accel_platform.errors import InvalidInput
from accel_platform.events import EventLog
from accel_platform.events.types import ArchitectureChecked, RunFinished, RunStarted
from accel_platform.hardware.host import host_id, installed_versions, observe_host
from accel_platform.subprocesses.json_child import Child, ChildCrashed, ChildTimeout, child_environment
from accel_platform.workloads.architectures import classify

HARDWARE = ("cpu", "openvino")
"""`cpu` is PyTorch and the reference of the other."""
SEGMENT_PREFIX = "coverage-"
MAX_PER_CHILD = 40
"""Architectures that one process takes before a fresh one does: what a library leaks ends with it."""
_FLUSH_S = 15.0
"""A run that is killed loses at most what it found in this time."""
_MAX_CHILD_MEMORY_MIB = 8192
"""Memory limit of one worker, unless the machine has less."""
_PACKAGES = {"cpu": ("torch", "transformers"), "openvino": ("torch", "transformers", "openvino")}

Pair = tuple[str, str]
"""Model type and hardware name."""


@dataclass
class CoverageSummary:
    """The outcome of a run. `latest` also holds earlier checks."""

    run_id: str | None = None
    checked: int = 0
    skipped: int = 0
    """Pairs that were on record already."""
    duration_s: float = 0.0
    latest: dict[Pair, ArchitectureChecked] = field(default_factory=dict)


def check_architectures(
    model_types: Sequence[str],
    hardware: Sequence[str],
    log: EventLog,
    *,
    jobs: int,
    retry: bool = False,
    timeout_s: float = 180.0,
    on_progress: Callable[[str], None] | None = None,
) -> CoverageSummary:
    """Check each pair that the log lacks for the installed versions; with `retry` also those that failed.

    On KeyboardInterrupt workers are killed, finished checks are kept, and the exception is raised again. Raises
    InvalidInput for hardware that cannot be checked.
    """
    if unknown := [name for name in hardware if name not in HARDWARE]:
        raise InvalidInput(f"Coverage is checked on {' and '.join(HARDWARE)}, not on {unknown[0]!r}.")
    result = CoverageSummary(latest=latest_checks(log, hardware))
    done = {pair for pair, check in result.latest.items() if check.status == "ok" or not retry}
    todo = [(kind, [name for name in hardware if (kind, name) not in done]) for kind in model_types]
    todo = [(kind, names) for kind, names in todo if names]
    result.skipped = len(model_types) * len(hardware) - sum(len(names) for _, names in todo)
    if todo:
        _CoverageRun(todo, log, jobs, timeout_s, on_progress or (lambda _: None), result).run()
    return result


def latest_checks(log: EventLog, hardware: Iterable[str] = HARDWARE) -> dict[Pair, ArchitectureChecked]:
    """Return the last check of each pair made with the installed versions."""
    now = {name: installed_versions(_PACKAGES[name]) for name in hardware}
    own = log.snapshot().beginning(SEGMENT_PREFIX)
    found: dict[Pair, tuple[Any, ArchitectureChecked]] = {}
    for event in log.read(own, types={"ArchitectureChecked"}):
        check = event.payload
        assert isinstance(check, ArchitectureChecked)
        pair = (check.model_type, check.hardware)
        if check.versions == now.get(check.hardware) and (pair not in found or found[pair][0] < event.event_id):
            found[pair] = (event.event_id, check)
    return {pair: check for pair, (_, check) in found.items()}


class _CoverageRun:
    """One run's state: the remaining checks, and the results not yet in the log."""

    def __init__(
        self,
        todo: list[tuple[str, list[str]]],
        log: EventLog,
        jobs: int,
        timeout_s: float,
        report: Callable[[str], None],
        result: CoverageSummary,
    ) -> None:
        self.remaining, self.jobs, self.timeout_s = deque(todo), jobs, timeout_s
        self.report, self.result = report, result
        self.total = sum(len(names) for _, names in todo)
        self.run_id = result.run_id = str(uuid7())
        self.buffer = EventBuffer(
            log, prefix=SEGMENT_PREFIX, source="accel bench coverage", host_id=host_id(), run_id=self.run_id
        )
        self.versions = {name: installed_versions(packages) for name, packages in _PACKAGES.items()}
        free_mib = psutil.virtual_memory().available // 2**20
        self.memory_mib = min(_MAX_CHILD_MEMORY_MIB, max(1024, free_mib // jobs))
        self.ok = 0
        self.lock = threading.Lock()
        self.workers: list[Child] = []
        self.stopping = False

    def run(self) -> None:
        started = time.monotonic()
        status: Literal["succeeded", "failed", "cancelled"] = "failed"
        reason = None
        plan = {"pairs": self.total, "jobs": self.jobs, "memory_mib": self.memory_mib, "timeout_s": self.timeout_s}
        self.buffer.record(RunStarted(kind="coverage", plan=plan, software=observe_host().software))
        pool = ThreadPoolExecutor(self.jobs)
        try:
            for future in as_completed([pool.submit(self.run_batches) for _ in range(self.jobs)]):
                future.result()
            status = "succeeded"
        except BaseException as error:
            status = "failed" if isinstance(error, Exception) else "cancelled"
            reason = f"{type(error).__name__}: {error}".rstrip(": ")
            raise
        finally:
            # The thread that waits for a worker ends when that is killed.
            self.stopping = True
            for child in self.workers:
                child.kill()
            pool.shutdown()
            self.result.duration_s = time.monotonic() - started
            self.buffer.record(
                RunFinished(
                    status=status,
                    reason=reason,
                    cells_ok=self.ok,
                    cells_failed=self.result.checked - self.ok,
                    cells_skipped=self.total - self.result.checked,
                    duration_s=self.result.duration_s,
                )
            )
            self.buffer.flush()

    def run_batches(self) -> None:
        """Check batches in worker processes until none is left; runs in each thread."""
        while not self.stopping:
            with self.lock:
                # Batches shrink towards the end, so that no thread waits long for another.
                share = max(1, min(MAX_PER_CHILD, len(self.remaining) // (2 * self.jobs)))
                batch = deque(self.remaining.popleft() for _ in range(min(share, len(self.remaining))))
            if not batch:
                return
            while batch and not self.stopping:
                self.check_batch(batch)

    def check_batch(self, batch: deque[tuple[str, list[str]]]) -> None:
        """Check the pairs of `batch` in one process, removing each as it ends, successful or failed."""
        job = {"model_types": list(batch), "threads": 1, "memory_mib": self.memory_mib}
        with Child(worker.__name__, job, env=child_environment(1)) as child:
            self.workers.append(child)
            try:
                for answer in child.messages(self.timeout_s):
                    self.record_answer(batch, {key: value for key, value in answer.items() if key != "kind"})
                failure = {"status": "failed", "failure_class": "crash", "reason": "the process ended without a word"}
            except ChildTimeout as error:
                failure = {"status": "timeout", "failure_class": "timeout", "reason": str(error)}
            except ChildCrashed as error:
                failure = {"status": "failed", "failure_class": classify_death(str(error)), "reason": str(error)}
        self.workers.remove(child)
        if batch and not self.stopping:
            model_type, names = batch[0]
            self.record_answer(batch, {"model_type": model_type, "hardware": names[0], **failure})

    def record_answer(self, batch: deque[tuple[str, list[str]]], answer: Mapping[str, Any]) -> None:
        """Record the answer to the first pair of the batch."""
        model_type, names = batch[0]
        assert (model_type, names[0]) == (answer["model_type"], answer["hardware"])
        batch.popleft()
        if names[1:]:
            batch.appendleft((model_type, names[1:]))
        family, category = classify(model_type)
        check = ArchitectureChecked(
            family=family,
            category=category,
            versions=self.versions[names[0]],
            **{**answer, "inputs": tuple(answer.get("inputs", ()))},
        )
        with self.lock:
            self.result.latest[model_type, names[0]] = check
            self.result.checked += 1
            self.ok += check.status == "ok"
            self.buffer.record(check)
            self.buffer.flush(after_s=_FLUSH_S)
            outcome = "ok" if check.status == "ok" else f"{check.failure_class}, {check.reason}"
            line = f"{self.result.checked}/{self.total} {model_type} · {names[0]}: {outcome}"
            self.report(textwrap.shorten(line, 200, placeholder=" …"))
