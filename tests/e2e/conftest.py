"""Fixtures of benchmark runs: this host's inventory, and homes with prepared models."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench_world import HARDWARE, SPEC, World

from accel_platform.backends.detect import Inventory, detect
from accel_platform.bench.plan.plan import plan_cells

_BROWSERS = {
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "firefox",
    "firefox-esr",
}


@pytest.fixture(scope="session")
def path_without_browsers(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PATH, but for what would be asked what it can: to start a browser takes each command two seconds and more."""
    folders = []
    for i, folder in enumerate(os.get_exec_path()):
        here = [entry for entry in os.scandir(folder) if entry.is_file()] if os.path.isdir(folder) else []
        if _BROWSERS.isdisjoint(entry.name for entry in here):
            folders.append(folder)
            continue
        others = tmp_path_factory.mktemp(f"bin-{i}")
        for entry in here:
            if entry.name not in _BROWSERS:
                (others / entry.name).symlink_to(entry.path)
        folders.append(str(others))
    path = os.pathsep.join(folders)
    assert not any(shutil.which(name, path=path) for name in _BROWSERS)
    return path


@pytest.fixture(scope="module", autouse=True)
def no_browser(request: pytest.FixtureRequest, path_without_browsers: str) -> Iterator[None]:
    """Only modules that say `BROWSERS = True` see those that are installed."""
    with pytest.MonkeyPatch.context() as patch:
        if not getattr(request.module, "BROWSERS", False):
            patch.setenv("PATH", path_without_browsers)
        yield


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
    summary = world.run(plan_cells([SPEC], HARDWARE, [1, 2], [16]))
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
