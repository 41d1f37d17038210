"""The device that `gpu_proof.py` proves, what a check returns, and a model loaded or measured there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from accel_platform.backends.base import Unsupported
from accel_platform.backends.registry import make_backend, runtime_for
from accel_platform.bench.measure.ddp import loopback_environment
from accel_platform.bench.measure.sampling import Sampling
from accel_platform.bench.plan.plan import Cell, plan_cells
from accel_platform.bench.plan.support import head_for
from accel_platform.bench.prepare.artifacts import Artifacts
from accel_platform.bench.prepare.preparation import prepare_models
from accel_platform.bench.run.worker_pool import WORKER
from accel_platform.events.types import Mode
from accel_platform.settings import Settings
from accel_platform.subprocesses.json_child import Child, child_environment
from accel_platform.workloads.model_catalog import ModelSpec, resolve_model

Arrays = dict[str, Any]


REPOSITORY = Path(__file__).parents[1]


@dataclass(frozen=True)
class Target:
    """The device to prove, or a processor that stands in for it."""

    hardware: str
    home: Path
    stand_in: bool = False

    @property
    def device(self) -> torch.device:
        return torch.device(runtime_for(self.hardware).device)

    @property
    def threads(self) -> int:
        return torch.get_num_threads()


@dataclass
class Outcome:
    """Outcome of a check. One wrong figure makes it fail; without any figure it is unavailable."""

    figures: list[dict[str, Any]] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    """Parts that this machine does not have, with the reason."""
    complete: bool = True
    """False where time ran out: the next call goes on."""

    def add(self, what: str, got: Any, reach: str, met: bool | None, detail: str = "") -> None:
        """Add a figure; `met` is None for a figure that is only reported."""
        self.figures.append({"what": what, "got": got, "reach": reach, "met": met, "detail": detail})

    @property
    def status(self) -> str:
        if any(figure["met"] is False for figure in self.figures):
            return "fail"
        return "pass" if any(figure["met"] for figure in self.figures) else "unavailable"


@contextmanager
def loaded(target: Target, name: str, batch: int, *, precision: str = "float32") -> Iterator[tuple[Any, Arrays]]:
    """Yield the backend with the model loaded and inputs of this batch bound, and the inputs."""
    spec = resolve_model(name)
    inputs = _inputs(target, spec, batch)
    with closing(make_backend(target.hardware, threads=target.threads)) as backend:
        backend.load(artifacts_of(target, spec).weights, precision=precision)
        backend.compile(inputs)
        backend.bind(inputs)
        yield backend, inputs
    if target.device.type == "cuda":
        torch.cuda.empty_cache()


def artifacts_of(target: Target, spec: ModelSpec, mode: Any = "inference") -> Artifacts:
    return Artifacts.of(spec, Settings(home=target.home), "dynamo", mode)


def _inputs(target: Target, spec: ModelSpec, batch: int) -> Arrays:
    """Return inputs of the model after preparing its weights; no reference is computed."""
    from accel_platform.workloads.inputs import make_inputs

    if not artifacts_of(target, spec).weights.exists():
        prepare(target, [(spec.model_id, "inference")], reference=False)
    return make_inputs(spec, batch_size=batch, sequence_length=spec.sequence_length)


def prepare(target: Target, pairs: Sequence[tuple[str, Mode]], *, reference: bool = True) -> list[Cell]:
    """Prepare models in modes, which share the cores, and return their cells. Raises Unsupported where one cannot be.

    Five that had all cores each took over three minutes.
    """
    cells = [
        cell for name, mode in pairs for cell in plan_cells([resolve_model(name)], [target.hardware], [1], modes=[mode])
    ]
    settings = Settings(home=target.home)
    failures = prepare_models(
        cells, settings, threads=target.threads, timeout_s=300, report=lambda _: None, reference=reference
    )
    for (model, *_), failure in failures.items():
        raise Unsupported(f"{model.model_id} cannot be prepared: {failure.reason}")
    return cells


def job_for(
    target: Target, name: str, *, mode: Any = "inference", sampling: Sampling | None = None
) -> tuple[dict[str, Any], ModelSpec]:
    spec = resolve_model(name)
    [cell] = prepare(target, [(name, mode)])
    artifacts = artifacts_of(target, spec, mode)
    job = {
        "hardware": target.hardware,
        "mode": mode,
        "head": head_for(spec, mode),
        "processes": 1,
        "work": "all",
        "energy": None,
        "traces": [],
        "precision": "float32",
        "threads": target.threads,
        "artifact": str(artifacts.weights),
        "cells": [str(artifacts.data((1, cell.sequence_length)))],
        "sampling": asdict(sampling or replace(Sampling(), min_time_s=0.5, max_time_s=2.0, warmup_max_s=1.0)),
    }
    return job, spec


def measure_by_worker(
    target: Target, name: str, *, mode: Any, module: str = WORKER, extra: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Return the worker's last message on the model's one cell."""
    job, _ = job_for(target, name, mode=mode)
    with Child(
        module, {**job, **(extra or {})}, env={**child_environment(target.threads), **loopback_environment()}
    ) as child:
        for message in child.messages(240):
            if message["kind"] in ("measured", "failed", "not_loaded"):
                return dict(message)
    raise Unsupported(f"the worker ended without measuring {name} in {mode}")
