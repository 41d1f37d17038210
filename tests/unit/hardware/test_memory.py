"""Peak memory of a process and of what it started, against what the kernel says of each."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from accel_platform.hardware.memory import joint_peak_mib, own_peak_mib

pytestmark = pytest.mark.skipif(not Path("/proc/self/smaps_rollup").is_file(), reason="the kernel does not tell")

_HOLD = "held = bytearray({now} << 20); del held; held = bytearray({then} << 20); print(flush=True); input()"


def hwm_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM:")).split()[1]) / 1024


def started(code: str) -> subprocess.Popen[str]:
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


def end(process: subprocess.Popen[str]) -> None:
    process.communicate("\n")


def test_alone_it_is_the_kernels_own_figure() -> None:
    """In a process of its own: other tests leave children to this one, and reset the kernel's figure."""
    code = "import accel_platform.hardware.memory as m; print(m.own_peak_mib(), flush=True); input()"
    process = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        assert float(process.stdout.readline()) == pytest.approx(hwm_mib(process.pid), rel=0.01)
    finally:
        end(process)


@pytest.mark.parametrize("pages_read", [1, 64])
def test_a_mapped_model_counts_in_full_however_much_of_it_is_resident(tmp_path: Path, pages_read: int) -> None:
    """The cache makes more or less resident with each page, as the file was written, copied or restored."""
    weights = tmp_path / "folder" / "model.data"
    weights.parent.mkdir()
    weights.write_bytes(bytes(64 << 20))
    code = f"""
import mmap, accel_platform.hardware.memory as m
from pathlib import Path
before = m.own_peak_mib()
file = open({str(weights)!r}, "rb")
mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
read = [mapped[page << 20] for page in range({pages_read})]
print(*(m.own_peak_mib(Path(p)) - before for p in ({str(weights)!r}, {str(weights.parent)!r})))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    of_file, of_folder = map(float, done.stdout.split())
    assert of_file == pytest.approx(64, abs=2)
    assert of_folder == pytest.approx(64, abs=2)


def test_a_child_adds_what_it_held_at_most_and_does_not_share() -> None:
    before = own_peak_mib()
    child = started(_HOLD.format(now=120, then=40))
    try:
        added = own_peak_mib() - before
        assert 120 < added <= hwm_mib(child.pid)
    finally:
        end(child)
    assert own_peak_mib() == pytest.approx(before, abs=5)


def test_processes_together_are_no_more_than_their_sum_and_no_less_than_what_they_hold() -> None:
    both = [started(_HOLD.format(now=60, then=60)) for _ in range(2)]
    try:
        joint = joint_peak_mib(process.pid for process in both)
        assert joint is not None
        assert 120 < joint < sum(hwm_mib(process.pid) for process in both)
    finally:
        for process in both:
            end(process)
    assert joint_peak_mib(process.pid for process in both) is None
