"""Runs side by side never share silicon, and one fault ends all."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_platform.backends.detect import Inventory
from accel_platform.bench.measure.job import leave_cores_to_measure_on, turn
from accel_platform.bench.plan import run_locks
from accel_platform.bench.plan.device_scheduling import (
    Group,
    assign_lanes,
    physical_device_id,
    run_lanes,
    split_lane,
)
from accel_platform.bench.plan.plan import Cell, group_by_process
from accel_platform.events.types import DeviceObserved, HostObserved
from accel_platform.settings import Settings
from accel_platform.workloads.model_catalog import resolve_model

DEVICES = {
    "cpu": ("cpu-1", False),
    "openvino": ("cpu-1", False),
    "onnxruntime": ("cpu-1", False),
    "jax": ("cpu-1", False),
    "cuda": ("gpu-1", False),
    "webgpu": ("webgpu-swiftshader", True),
}
INVENTORY = Inventory(
    "host",
    HostObserved(hostname="h", os="o", cpu_model="c", cpu_cores_logical=2, memory_mib=1),
    tuple(
        DeviceObserved.model_validate(
            {"hardware": name, "backend": "b", "available": True, "device_id": device_id, "emulated": emulated}
        )
        for name, (device_id, emulated) in DEVICES.items()
    ),
)
MODELS = [resolve_model(name) for name in ("bert-tiny", "vit-tiny")]
cells = st.lists(
    st.builds(Cell, st.sampled_from(MODELS), st.sampled_from(sorted(DEVICES)), st.integers(1, 4)), unique=True
)


def test_runtimes_of_one_processor_share_a_lane_and_so_does_what_it_plays() -> None:
    assert {name: physical_device_id(name, INVENTORY) for name in DEVICES} == {
        **dict.fromkeys(("cpu", "openvino", "onnxruntime", "jax", "webgpu"), "cpu-1"),
        "cuda": "gpu-1",
    }


@given(cells)
def test_lanes_keep_every_group_once_and_in_order(found: list[Cell]) -> None:
    given_ = group_by_process(found)
    kept = assign_lanes(given_, INVENTORY)
    assert sorted(group for lane in kept for group in map(given_.index, lane)) == list(range(len(given_)))
    for lane in kept:
        assert [given_.index(group) for group in lane] == sorted(given_.index(group) for group in lane)
        assert len({physical_device_id(group[0].hardware, INVENTORY) for group in lane}) == 1
    assert len({physical_device_id(lane[0][0].hardware, INVENTORY) for lane in kept}) == len(kept)


@given(cells, st.integers(1, 4))
def test_an_accelerators_groups_are_dealt_and_a_processors_are_not(found: list[Cell], at_once: int) -> None:
    for lane in assign_lanes(group_by_process(found), INVENTORY):
        parts = split_lane(lane, INVENTORY, at_once)
        assert sorted(map(lane.index, (group for part in parts for group in part))) == list(range(len(lane)))
        assert all(parts)
        on_gpu = physical_device_id(lane[0][0].hardware, INVENTORY) == "gpu-1"
        assert len(parts) == (min(at_once, len(lane)) if on_gpu else 1)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no thread to cores")
def test_the_worker_whose_turn_it_is_has_cores_that_the_others_leave_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {"turn": str(tmp_path / "turn")}
    pinned: set[int] = set(range(16))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(pinned))

    def pin(_: int, cores: Collection[int]) -> None:
        nonlocal pinned
        pinned = set(cores)

    monkeypatch.setattr(os, "sched_setaffinity", pin)
    leave_cores_to_measure_on(job)
    assert pinned == set(range(12))
    with turn(job):
        assert pinned == {12, 13, 14, 15}
    assert pinned == set(range(12))

    pinned = set(range(4))
    few = {"turn": job["turn"]}
    leave_cores_to_measure_on(few)
    with turn(few):
        assert pinned == {0, 1, 2, 3}


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no thread to cores")
def test_a_turn_moves_this_thread_alone_and_moves_it_back(tmp_path: Path) -> None:
    before = os.sched_getaffinity(0)
    core = max(before)
    done = threading.Event()
    other = threading.Thread(target=done.wait, daemon=True)
    other.start()
    assert other.native_id is not None
    with turn({"turn": str(tmp_path / "turn"), "measuring_cores": [core]}):
        assert os.sched_getaffinity(0) == {core}
        assert os.sched_getaffinity(other.native_id) == before
    done.set()
    other.join()
    assert os.sched_getaffinity(0) == before


def test_workers_of_one_device_measure_in_turns(tmp_path: Path) -> None:
    path = run_locks.turn_path(Settings(home=tmp_path), "gpu-1")
    path.parent.mkdir(parents=True)
    jobs: list[dict[str, str | None]] = [{"turn": str(path)}, {"turn": None}]
    measured, waiting = threading.Event(), threading.Event()

    def measure(job: dict[str, str | None]) -> None:
        waiting.set()
        with turn(job):
            measured.set()

    for job in jobs:
        measured.clear()
        waiting.clear()
        with turn(jobs[0]):
            worker = threading.Thread(target=measure, args=(job,))
            worker.start()
            assert waiting.wait(20)
            assert measured.wait(0.2 if job["turn"] else 20) == (job["turn"] is None)
        worker.join(20)
        assert measured.is_set()


def test_two_devices_overlap_and_one_never_does() -> None:
    model = MODELS[0]
    found = group_by_process([Cell(model, name, 1, 16) for name in DEVICES])
    busy: dict[str | None, int] = {}
    most: dict[str | None, int] = {}
    lock, together = threading.Lock(), threading.Barrier(2, timeout=20)
    met = []

    def measure(group: Group) -> None:
        lane = physical_device_id(group[0].hardware, INVENTORY)
        with lock:
            busy[lane] = busy.get(lane, 0) + 1
            most[lane] = max(most.get(lane, 0), busy[lane])
        if group[0].hardware in ("cpu", "cuda"):
            met.append(together.wait())
        with lock:
            busy[lane] -= 1

    run_lanes(assign_lanes(found, INVENTORY), measure, lambda: None)
    assert most == {"cpu-1": 1, "gpu-1": 1}
    assert len(met) == 2, "the processor and the GPU were at work at the same time"


def test_a_fault_stops_the_other_lanes_and_comes_up() -> None:
    found = group_by_process([Cell(MODELS[0], name, 1, 16) for name in ("cpu", "cuda")])
    stopped = threading.Event()

    def measure(group: Group) -> None:
        if group[0].hardware == "cuda":
            raise OSError("the disk is full")
        assert stopped.wait(20)

    start = time.monotonic()
    with pytest.raises(OSError, match="disk is full"):
        run_lanes(assign_lanes(found, INVENTORY), measure, stopped.set)
    assert time.monotonic() - start < 15
