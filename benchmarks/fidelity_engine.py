"""One measurement by the platform's own measuring child, made as the runner makes it, for `fidelity.py` to test."""

from __future__ import annotations

import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from accel_platform.analysis.stats.medians import median_ns
from accel_platform.backends.registry import runtime_for
from accel_platform.bench.measure.contention import Contention, contention_reason
from accel_platform.bench.measure.sampling import Sampling, noise_reason
from accel_platform.bench.plan.plan import plan_cells
from accel_platform.bench.prepare.artifacts import Artifacts
from accel_platform.bench.prepare.preparation import prepare_models
from accel_platform.bench.run.worker_pool import WORKER
from accel_platform.settings import Settings
from accel_platform.subprocesses.json_child import Child, child_environment
from accel_platform.workloads.model_catalog import resolve_model

MODEL = "bert-mini"
"""Some ten milliseconds on one core: long beside any harness, short enough for many processes."""
HARDWARE = ("cpu", "onnxruntime", "openvino")


@dataclass(frozen=True)
class Prepared:
    """The model on disk: for every hardware name what it loads, and the inputs that all of them get."""

    artifacts: Artifacts
    sequence_length: int | None

    def loads(self, hardware: str) -> Path:
        return self.artifacts.artifact(runtime_for(hardware).reads, self.sequence_length)

    @property
    def data(self) -> Path:
        return self.artifacts.data((1, self.sequence_length))


@dataclass(frozen=True)
class Measured:
    """Answer of one child, and the parent's observations meanwhile."""

    samples_ns: list[int]
    noisy: str | None
    contention: Contention
    memory_peak_mib: float
    kernel_peak_mib: float | None
    """VmHWM as the parent read it; None where the child had gone already."""
    parent_cpu_share: float
    """CPU time of the parent over the time that passed while the child measured."""

    @property
    def p50_ns(self) -> float:
        return median_ns(self.samples_ns)


def prepare(home: Path, threads: int) -> Prepared:
    """Write the model's artifacts under `home`, unless they are there."""
    settings = Settings(home=home)
    cells = plan_cells([resolve_model(MODEL)], HARDWARE, [1])
    failures = prepare_models(cells, settings, threads=threads, timeout_s=600, report=lambda _: None)
    if failures:
        raise SystemExit(f"{MODEL} cannot be prepared: {failures}")
    return Prepared(Artifacts.of(cells[0].model, settings), cells[0].sequence_length)


def measure(prepared: Prepared, hardware: str, threads: int, sampling: Sampling) -> Measured:
    """Measure the model in a fresh child."""
    job = {
        "hardware": hardware,
        "mode": "inference",
        "processes": 1,
        "work": "all",
        "energy": None,
        "traces": [],
        "precision": "float32",
        "threads": threads,
        "artifact": str(prepared.loads(hardware)),
        "cells": [str(prepared.data)],
        "sampling": asdict(sampling),
    }
    with Child(WORKER, job, env=child_environment(threads)) as child:
        messages = child.messages(300)
        loaded = next(messages)
        wall, used = time.perf_counter(), time.process_time()
        answer = next(messages)
        share = (time.process_time() - used) / (time.perf_counter() - wall)
        peak = _peak_mib(child.pid)
        if (loaded["kind"], answer["kind"]) != ("loaded", "measured"):
            raise SystemExit(f"{hardware} cannot be measured: {loaded} {answer}")
    return Measured(
        samples_ns=answer["samples_ns"],
        noisy=noise_reason(answer["samples_ns"], sampling) or contention_reason(Contention(**answer["contention"])),
        contention=Contention(**answer["contention"]),
        memory_peak_mib=answer["memory_peak_mib"],
        kernel_peak_mib=peak,
        parent_cpu_share=share,
    )


def _peak_mib(pid: int) -> float | None:
    try:
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    found = re.search(r"^VmHWM:\s*(\d+) kB$", status, flags=re.MULTILINE)
    return int(found[1]) / 1024 if found else None
