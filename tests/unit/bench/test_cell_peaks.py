"""Peak memory of the cells of one worker process: no cell shows what an earlier one held."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from accel_platform.bench.measure import worker
from accel_platform.bench.measure.sampling import Sampling
from accel_platform.hardware import memory
from accel_platform.subprocesses.json_child import Message

pytestmark = pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="the kernel keeps no peak to reset")


class HoldingBackend:
    """Backend whose runs hold as many MiB as the input says."""

    name, compiles = "holding", False

    def compile(self, inputs: Any) -> None: ...

    def bind(self, inputs: Any) -> None:
        self._mib = int(inputs["mib"][0])

    def run(self) -> None:
        bytearray(self._mib << 20)

    def outputs(self) -> Any:
        return {"held": np.array([float(self._mib)], np.float32)}

    def nothing(self) -> None: ...

    memory_device_peak_mib = precision_share = confirm = placement = close = nothing


def measure(sizes_mib: list[int], folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[Message]:
    monkeypatch.setattr(worker, "load_backend", lambda job, send: HoldingBackend())
    monkeypatch.setattr(worker, "sampling_for", lambda job: Sampling(0.0, 1, 0.0, 0.0, 0.0))
    paths = []
    for number, size in enumerate(sizes_mib):
        paths.append(str(folder / f"{number}.npz"))
        np.savez(paths[-1], **{"input/mib": [size], "other/mib": [1]})
    job = {"hardware": "cpu", "mode": "inference", "work": "measure", "precision": "float32", "energy": None}
    sent: list[Message] = []
    worker.measure_job({**job, "processes": 1, "cells": paths, "traces": [], "artifact": str(folder)}, sent.append)
    assert [message["kind"] for message in sent] == ["measured"] * len(sizes_mib), sent
    return sent


@pytest.fixture(autouse=True)
def no_earlier_peak() -> None:
    """Reset the peak that earlier tests of this process left: rising above gigabytes takes seconds."""
    memory.reset_peak(os.getpid())


def mib_above_any_peak() -> int:
    return int(memory.own_peak_mib() - psutil.Process().memory_info().rss / 2**20) + 200


@pytest.mark.slow
def test_a_small_cell_does_not_show_the_peak_of_a_large_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = memory.own_peak_mib()
    large = mib_above_any_peak()
    first, second = (answer["memory_peak_mib"] for answer in measure([large, 10], tmp_path, monkeypatch))
    assert first > before + 150
    assert second == pytest.approx(before, abs=20), "as if it ran alone after loading"


@pytest.mark.slow
def test_where_the_system_resets_no_peak_a_smaller_cell_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "reset_peak", lambda pid: None)
    large = mib_above_any_peak()
    first, second, third = measure([large, 10, large + 200], tmp_path, monkeypatch)
    assert second["memory_peak_mib"] is None
    assert "an earlier cell of this process" in second["memory_peak_unavailable"]
    assert third["memory_peak_mib"] > first["memory_peak_mib"] + 150, "what rises above the earlier peak is its own"
