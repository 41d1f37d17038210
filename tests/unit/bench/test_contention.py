"""Whether a measurement knows that it had company: arithmetic on counters, and real busy neighbours."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accel_platform.bench.measure.contention import (
    MAX_OTHERS_SHARE,
    MAX_WAITING_SHARE,
    Contention,
    LoadCounters,
    contention_reason,
    measure_contention,
    read_load_counters,
)

seconds = st.floats(min_value=0, max_value=1e6)
growth = st.floats(min_value=0, max_value=1e4)
SPIN = "import time\nend = time.monotonic() + {}\nwhile time.monotonic() < end: pass"


@given(seconds, growth, growth, growth, st.one_of(st.none(), growth), st.integers(1, 256))
def test_shares_are_shares(start: float, wall: float, own: float, others: float, waited: float | None, n: int) -> None:
    before = LoadCounters(start, start, start, None if waited is None else start, n)
    waiting = None if waited is None else start + waited
    seen = measure_contention(before, LoadCounters(start + wall, start + own + others, start + own, waiting, n))
    assert 0 <= seen.others_share <= 1
    assert seen.waiting_share is None if waited is None else 0 <= (seen.waiting_share or 0) <= 1


def test_others_are_what_is_not_ours() -> None:
    before = LoadCounters(wall_s=10, machine_s=100, own_s=5, waiting_s=1, cores=4)
    alone = measure_contention(before, LoadCounters(wall_s=12, machine_s=104, own_s=9, waiting_s=1, cores=4))
    assert alone == Contention(others_share=0, waiting_share=0)
    assert contention_reason(alone) is None
    company = measure_contention(before, LoadCounters(wall_s=12, machine_s=108, own_s=9, waiting_s=2, cores=4))
    assert company == Contention(others_share=0.5, waiting_share=0.2)


def test_company_is_named_by_its_kind() -> None:
    assert contention_reason(Contention(MAX_OTHERS_SHARE, MAX_WAITING_SHARE)) is None
    assert (
        contention_reason(Contention(0.1, 0.3)) == "it waited for a core 30% of its time: other processes were running"
    )
    assert (
        contention_reason(Contention(0.0, 0.3))
        == "it waited for a core 30% of its time: it has more threads than cores"
    )
    assert "used 40% of the processor" in (contention_reason(Contention(0.4, 0.0)) or "")
    assert contention_reason(Contention(0.4, None)) is not None
    assert contention_reason(Contention(0.0, None)) is None


def test_busy_neighbours_are_seen() -> None:
    # They are no children of ours, as far as anyone can tell: a shell starts them and goes away.
    count = 2 * (os.cpu_count() or 1)
    command = [sys.executable, "-c", SPIN.format(2.5)]
    script = "import subprocess, sys; [subprocess.Popen(sys.argv[2:]) for _ in range(int(sys.argv[1]))]"
    subprocess.run([sys.executable, "-c", script, str(count), *command], check=True)
    time.sleep(0.5)
    before = read_load_counters()
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        pass
    seen = measure_contention(before, read_load_counters())
    assert seen.others_share > MAX_OTHERS_SHARE
    assert contention_reason(seen) is not None
    if sys.platform == "linux":
        assert seen.waiting_share is not None
        assert seen.waiting_share > MAX_WAITING_SHARE


@pytest.mark.parametrize("ended", [False, True])
def test_our_own_children_are_not_others(ended: bool) -> None:
    before = read_load_counters()
    child = subprocess.Popen([sys.executable, "-c", SPIN.format(30)])
    deadline = time.monotonic() + 25
    while psutil.Process(child.pid).cpu_times().user < 0.3:  # a busy machine takes its time to give it that
        assert time.monotonic() < deadline
        time.sleep(0.05)
    if ended:
        child.kill()
        child.wait()
    after = read_load_counters()
    child.kill()
    child.wait()
    assert after.own_s - before.own_s > 0.15
