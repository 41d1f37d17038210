"""bert-tiny prepared for every runtime, once for all processes that run contract tests."""

from __future__ import annotations

import fcntl
from dataclasses import asdict
from typing import get_args

import pytest

from accel_platform.backends.registry import Artifact
from accel_platform.bench.prepare.artifacts import Artifacts, Shape
from accel_platform.settings import Settings
from accel_platform.subprocesses.json_child import Child
from accel_platform.workloads.model_catalog import resolve_model

SPEC = resolve_model("bert-tiny")
SHAPES: tuple[Shape, ...] = ((1, 16), (3, 16))
KINDS: list[Artifact] = sorted(kind for kind in get_args(Artifact) if "decoder" not in kind)  # it generates nothing


@pytest.fixture(scope="session")
def prepared(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Artifacts:
    """The artifacts of every kind of one forward pass, for `SHAPES`; no test may change them."""
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if hasattr(request.config, "workerinput") else base
    artifacts = Artifacts.of(SPEC, Settings(home=shared / "prepared"))
    job = {
        "model": asdict(SPEC),
        "mode": "inference",
        "head": "AutoModel",
        "folder": str(artifacts.folder),
        "shapes": SHAPES,
        "kinds": KINDS,
    }
    with (shared / "prepared.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if artifacts.missing(KINDS, SHAPES):
            with Child("accel_platform.bench.prepare.worker", {**job, "threads": 1}) as child:
                assert list(child.messages(300)) == [{"kind": "prepared", "drawn": []}]
    assert not artifacts.missing(KINDS, SHAPES)
    return artifacts
