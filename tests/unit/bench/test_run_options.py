"""Options of a run: which cells are stale, which an interrupted run has left, how long a plan takes."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_platform.analysis.stats.medians import MIN_MEDIAN_SAMPLES
from accel_platform.bench.plan.plan import (
    SEGMENT_PREFIX,
    Cell,
    cell_key,
    done_cells,
    plan_cells,
    previous_medians,
    valid_results,
)
from accel_platform.bench.plan.resume import describe_plan, find_interrupted_run
from accel_platform.bench.plan.run_locks import hold_run_lock, is_running, lock_devices, lock_host
from accel_platform.bench.plan.run_options import EFFORTS, RunOptions, resolve_work, stale_cutoff
from accel_platform.bench.plan.time_estimate import estimate_times, sampling_time_s
from accel_platform.errors import InvalidInput, NotFound
from accel_platform.events import EventLog
from accel_platform.events.types import RunFinished, RunStarted
from accel_platform.settings import Settings
from accel_platform.workloads.model_catalog import resolve_model
from factories import event, result

BERT, VIT = resolve_model("bert-tiny"), resolve_model("vit-tiny")
NOW = datetime(2026, 11, 20, tzinfo=UTC)


def of(cell: Cell, **changes: Any) -> Any:
    figures = {
        "model_id": cell.model.model_id,
        "hardware": cell.hardware,
        "batch_size": cell.batch_size,
        "sequence_length": cell.sequence_length,
        "precision": cell.precision,
    }
    return result(**{**figures, **changes})


def test_an_age_is_hours_days_or_weeks() -> None:
    assert stale_cutoff("30d", missing=True, now=NOW) == NOW - timedelta(days=30)
    assert stale_cutoff(" 12H", missing=True, now=NOW) == NOW - timedelta(hours=12)
    assert stale_cutoff("2w", missing=True, now=NOW) == NOW - timedelta(days=14)
    assert stale_cutoff(None, missing=False) is None
    with pytest.raises(InvalidInput, match="give both"):
        stale_cutoff("30d", missing=False)
    for wrong in ("30", "d", "-3d", "1y", "30 days"):
        with pytest.raises(InvalidInput, match="30d"):
            stale_cutoff(wrong, missing=True)


def test_only_one_half_of_the_work_can_be_left_out() -> None:
    assert (resolve_work(False, False), resolve_work(True, False), resolve_work(False, True)) == (
        "all",
        "verify",
        "measure",
    )
    with pytest.raises(InvalidInput, match="nothing to do"):
        resolve_work(True, True)


def test_what_is_stale_or_unverified_is_not_done(log: EventLog) -> None:
    fresh, stale, unverified = (Cell(BERT, "cpu", size, 128) for size in (1, 2, 4))
    log.append(
        [
            event(of(fresh), occurred_at=NOW - timedelta(days=3)),
            event(of(stale), occurred_at=NOW - timedelta(days=90)),
            event(of(unverified, environment={"verified": False}), occurred_at=NOW),
        ],
        key=f"{SEGMENT_PREFIX}one",
    )
    assert done_cells(log) == {cell_key(cell, "test") for cell in (fresh, stale)}
    assert done_cells(log, since=NOW - timedelta(days=30)) == {cell_key(fresh, "test")}


def test_of_two_results_of_a_cell_the_newer_counts(log: EventLog) -> None:
    cell = Cell(BERT, "cpu", 1, 128)
    newer, older = of(cell, load_ms=2.0), of(cell, load_ms=1.0)
    log.append([event(newer, occurred_at=NOW)], key=f"{SEGMENT_PREFIX}a")
    log.append([event(older, occurred_at=NOW - timedelta(days=1))], key=f"{SEGMENT_PREFIX}b")
    assert [found.load_ms for found in valid_results(log).values()] == [2.0]


def test_earlier_medians_of_a_cell_come_in_order_of_time(log: EventLog) -> None:
    (cell,) = plan_cells([BERT], ["cpu"], [1])
    for number, ms in enumerate((3, 1, 2)):
        good = of(cell, samples_ns=(ms * 1_000_000,) * MIN_MEDIAN_SAMPLES)
        log.append(
            [event(good), event(of(cell, samples_ns=(9,) * (MIN_MEDIAN_SAMPLES - 1)))], key=f"{SEGMENT_PREFIX}{number}"
        )
    found = previous_medians(log, None)
    assert found == {cell_key(cell, good.fingerprint): [3e6, 1e6, 2e6]}


def test_medians_of_another_commit_are_left_out(log: EventLog) -> None:
    (cell,) = plan_cells([BERT], ["cpu"], [1])
    for run_id, ms, labels in (("a", 1, {"commit": "one"}), ("b", 2, {"commit": "two"}), ("c", 3, {})):
        good = of(cell, samples_ns=(ms * 1_000_000,) * MIN_MEDIAN_SAMPLES)
        started = RunStarted(kind="benchmark", labels=labels)
        log.append([event(good, run_id=run_id)], key=f"{SEGMENT_PREFIX}{run_id}-0001")
        log.append([event(started, run_id=run_id)], key=f"{SEGMENT_PREFIX}{run_id}-0002")
    key = cell_key(cell, good.fingerprint)
    assert [previous_medians(log, commit)[key] for commit in ("one", "two", None, "three")] == [[1e6], [2e6], [3e6], []]


def interrupted(log: EventLog, run_id: str, cells: tuple[Cell, ...], done: tuple[Cell, ...], **plan_: Any) -> None:
    started = RunStarted(
        kind="benchmark",
        plan=describe_plan(cells, EFFORTS["quick"], RunOptions(fix=False, parallel=True), threads=2, **plan_),
    )
    events = [event(started, run_id=run_id), *(event(of(cell), run_id=run_id) for cell in done)]
    log.append(events, key=f"{SEGMENT_PREFIX}{run_id}-0000")


def end(log: EventLog, run_id: str, status: str) -> None:
    payload = RunFinished.model_validate({"status": status, "duration_s": 1.0})
    log.append([event(payload, run_id=run_id)], key=f"{SEGMENT_PREFIX}{run_id}-0009")


def test_a_run_goes_on_with_what_it_had_left_in_its_own_ways(log: EventLog, settings: Settings) -> None:
    cells = plan_cells([BERT, VIT], ["cpu", "openvino"], [1, 2])
    interrupted(log, "a", cells, cells[:3])
    left = find_interrupted_run(log, settings, "host-test")
    assert (left.run_id, left.cells) == ("a", cells[3:])
    assert left.effort == EFFORTS["quick"]
    assert left.options == RunOptions(fix=False, parallel=True)
    end(log, "a", "cancelled")
    assert find_interrupted_run(log, settings, "host-test").cells == cells[3:], "a run stopped by Ctrl-C is one too"


def test_what_ended_was_resumed_or_is_of_another_host_is_not_gone_on_with(log: EventLog, settings: Settings) -> None:
    cells = plan_cells([BERT], ["cpu"], [1, 2, 4])
    with pytest.raises(NotFound, match="nothing to resume"):
        find_interrupted_run(log, settings, "host-test")
    interrupted(log, "a", cells, cells[:1])
    interrupted(log, "b", cells[1:], cells[1:2], resumes="a")
    assert find_interrupted_run(log, settings, "host-test").cells == cells[2:]
    end(log, "b", "succeeded")
    for host in ("host-test", "another"):
        with pytest.raises(NotFound):
            find_interrupted_run(log, settings, host)


def test_a_run_whose_cells_are_all_there_leaves_nothing(log: EventLog, settings: Settings) -> None:
    cells = plan_cells([BERT], ["cpu"], [1])
    interrupted(log, "a", cells, cells)
    with pytest.raises(NotFound):
        find_interrupted_run(log, settings, "host-test")


def test_a_run_under_way_is_not_gone_on_with(log: EventLog, settings: Settings) -> None:
    cells = plan_cells([BERT], ["cpu"], [1, 2])
    interrupted(log, "a", cells, cells[:1])
    with hold_run_lock(settings, "a"), pytest.raises(NotFound):
        find_interrupted_run(log, settings, "host-test")
    assert find_interrupted_run(log, settings, "host-test").run_id == "a"


def test_a_killed_process_is_no_longer_under_way(settings: Settings) -> None:
    code = (
        "import sys, time; from accel_platform.bench.plan.run_locks import hold_run_lock;"
        " from accel_platform.settings import Settings\n"
        "with hold_run_lock(Settings(home=sys.argv[1]), 'a'): print('held', flush=True); time.sleep(60)"
    )
    command = [sys.executable, "-c", code, str(settings.home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert is_running(settings, "a")
        process.kill()
    assert not is_running(settings, "a")


@given(st.lists(st.integers(10_000, 10**10), min_size=11, max_size=60))
def test_sampling_takes_at_least_its_minimum_and_at_most_its_limits(samples: list[int]) -> None:
    sampling = EFFORTS["standard"].sampling
    seconds = sampling_time_s(result(samples_ns=tuple(samples)), sampling)
    longest = max(samples) / 1e9
    assert sampling.min_time_s <= seconds <= sampling.limit_s + sampling.warmup_max_s + longest


def test_an_estimate_says_what_it_rests_on() -> None:
    sampling = EFFORTS["quick"].sampling
    known, new = Cell(BERT, "cpu", 1, 128), Cell(BERT, "cpu", 2, 128)
    environment = {"import_ms": 2000.0}
    earlier = of(known, samples_ns=(10_000_000,) * 30, load_ms=500.0, first_ms=40.0, environment=environment)
    found = estimate_times([known, new], {cell_key(known, "f"): earlier}, {"cpu": "f"}, sampling)
    assert found[known].basis == "earlier result"
    assert found[known].seconds == pytest.approx(2.54 + 0.04 + sampling.min_time_s, abs=0.01)
    assert found[new].basis == "effort limits"
    assert found[new].seconds == sampling.warmup_max_s + sampling.max_time_s, "the process is running by then"
    alone = replace(new, hardware="openvino")
    assert estimate_times([alone], {}, {}, sampling)[alone].basis == "effort limits"


def test_a_device_is_one_benchmarks_at_a_time(settings: Settings) -> None:
    said: list[str] = []
    order: list[str] = []

    def other() -> None:
        with lock_devices(settings, {"cpu-b", "cpu-a"}, said.append):
            order.append("other")

    with lock_devices(settings, {"cpu-c"}, said.append), lock_devices(settings, {"cpu-a"}, said.append):
        waiting = threading.Thread(target=other)
        waiting.start()
        while not said:
            time.sleep(0.01)
        order.append("first")
    waiting.join(10)
    assert order == ["first", "other"]
    assert said == ["another benchmark has cpu-a: waiting until it ends"]


@pytest.mark.parametrize("measuring_first", [True, False])
def test_a_host_measures_or_computes(settings: Settings, measuring_first: bool) -> None:
    said: list[str] = []
    order: list[str] = []

    def measure(device: str) -> AbstractContextManager[None]:
        return lock_devices(settings, {device}, said.append)

    def compute(_: str) -> AbstractContextManager[None]:
        return lock_host(settings, said.append)

    first, other = (measure, compute) if measuring_first else (compute, measure)

    def wait() -> None:
        with other("cpu-b"):
            order.append("other")

    with first("cpu-a"):
        waiting = threading.Thread(target=wait)
        waiting.start()
        while not said:
            time.sleep(0.01)
        order.append("first")
    waiting.join(10)
    assert order == ["first", "other"]
    [line] = said
    assert ("this host measures" in line) == measuring_first
    with measure("cpu-a"), measure("cpu-b"):  # devices do not wait for each other
        assert len(said) == 1
