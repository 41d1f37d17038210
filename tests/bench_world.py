"""A home directory in which benchmark runs take place, and striking their measuring children."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from accel_platform.backends.detect import Inventory
from accel_platform.bench.plan.plan import Cell
from accel_platform.bench.plan.run_options import EFFORTS
from accel_platform.bench.run.recorder import RunContext, RunSummary
from accel_platform.bench.run.runner import measure_cells
from accel_platform.events import EventLog
from accel_platform.settings import Settings
from accel_platform.workloads.model_catalog import resolve_model

SPEC = resolve_model("bert-tiny")
HARDWARE = ("cpu", "openvino", "onnxruntime")
QUICK = EFFORTS["quick"]


class World:
    """One home directory with what a run needs."""

    def __init__(self, home: Path, inventory: Inventory) -> None:
        self.settings = Settings(home=home)
        self.log = EventLog.open(self.settings)
        self.inventory = inventory
        self.lines: list[str] = []

    def run(self, cells: tuple[Cell, ...], **options: Any) -> RunSummary:
        context = RunContext(self.settings, self.log, self.inventory, QUICK, report=self.lines.append)
        return measure_cells(cells, replace(context, **options))

    def events(self, type_: str) -> list[Any]:
        return [event.payload for event in self.log.read(types={type_})]


def workers(of: int) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(of).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if "accel_platform.bench.measure.worker" in child.cmdline():
                found.append(child)
    return found


@contextlib.contextmanager
def strike_first_worker(strike: int | Callable[[psutil.Process], object]) -> Iterator[list[int]]:
    """Send the first measuring child that shows up a signal, or do something else to it."""
    struck: list[int] = []

    def hunt() -> None:
        while not struck:
            for worker in workers(os.getpid()):
                worker.send_signal(strike) if isinstance(strike, int) else strike(worker)
                struck.append(worker.pid)
                return
            time.sleep(0.01)

    hunter = threading.Thread(target=hunt, daemon=True)
    hunter.start()
    yield struck
    hunter.join(10)
