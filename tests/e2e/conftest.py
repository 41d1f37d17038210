"""Fixtures of benchmark runs: this host's inventory, and homes with prepared models."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench_world import HARDWARE, SPEC, World

from accel_platform.bench.plan import plan
from accel_platform.hardware import Inventory, detect


@pytest.fixture(scope="session")
def inventory() -> Inventory:
    return detect()


@pytest.fixture
def one_core() -> Iterator[None]:
    """One core measures: other work then slows all processes alike, and none waits for its own threads."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    yield
    os.sched_setaffinity(0, cores)


@pytest.fixture(scope="session")
def measured(tmp_path_factory: pytest.TempPathFactory, inventory: Inventory) -> World:
    world = World(tmp_path_factory.mktemp("measured"), inventory)
    summary = world.run(plan([SPEC], HARDWARE, [1, 2], [16]))
    assert (summary.ok, summary.failed, summary.skipped) == (6, 0, 0), world.lines
    return world


@pytest.fixture
def world(tmp_path: Path, measured: World, inventory: Inventory) -> World:
    """A fresh log beside the prepared models of `measured`, which are not to be made again for each fault."""
    fresh = World(tmp_path, inventory)
    source = measured.settings.cache_dir / "prepared"
    subprocess.run(["cp", "-r", str(source), str(tmp_path)], check=True)
    fresh.settings.cache_dir.mkdir()
    (tmp_path / "prepared").rename(fresh.settings.cache_dir / "prepared")
    return fresh
