"""Peak resident memory of processes, as the system counts it. Memory of devices is asked of their runtimes."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

Kib = dict[str, int]


def own_peak_mib(weights: Path | None = None) -> float:
    """Return the peak resident memory of this process and its present children, in MiB.

    Its own is VmHWM, or the present size with the mapped files of `weights` in full, if that is more: of a mapped file
    the system makes 4 KiB to 2 MiB resident for each page that is read, depending on how its cache holds the file. So
    a model just prepared and its copy differed by 12 of 83 MiB. A child adds its unshared memory (USS) and how far its
    resident size had been higher (VmHWM - VmRSS). Children that have ended are not counted.

    Parameters
    ----------
    weights
        File of the model, whose neighbors belong to it, or its folder; None if nothing of it is mapped.
    """
    if not Path("/proc/self/status").is_file():
        return _rusage_mib()
    own = _status(os.getpid())
    assert own is not None, "this process has not ended"
    with_weights = own["VmRSS"] + (0 if weights is None else _absent_kib(weights))
    children = [_beyond_kib(child.pid) for child in psutil.Process().children(recursive=True)]
    return (max(own["VmHWM"], with_weights) + sum(children)) / 1024


def joint_peak_mib(pids: Iterable[int]) -> float | None:
    """Return the peak memory in MiB of processes that share much: proportional sizes (PSS), each plus VmHWM - VmRSS.

    None where the system does not tell; a process that has just ended adds nothing.
    """
    if not Path("/proc/self/smaps_rollup").is_file():
        return None
    total = 0
    for pid in pids:
        try:
            status, share = _status(pid), _kib(pid, "smaps_rollup")
        except PermissionError:
            return None
        if status and share:
            total += share["Pss"] + status["VmHWM"] - status["VmRSS"]
    return total / 1024 if total else None


MAX_INHERITED_SHARE = 0.02
"""Share of a peak that an earlier cell may have left resident; more makes the figure unavailable."""


@dataclass
class CellPeaks:
    """Peak memory of each of several cells that one loaded model runs in turn, each as if it ran alone.

    Make it after loading: loading belongs to the peak of every cell.
    """

    read: Callable[[], float | None]
    """Peak of the runtime's processes so far, in MiB."""
    pids: Callable[[], Iterable[int]]
    """The runtime's processes."""

    def __post_init__(self) -> None:
        self._loaded = self.read()
        self._before: float | None = None

    def begin_next(self) -> None:
        """Forget the peak of the earlier cells, as far as the system allows. Call before each cell but the first."""
        release_free_memory()
        for pid in self.pids():
            reset_peak(pid)
        self._before = self.read()

    def own_peak(self, peak: float | None) -> tuple[float | None, str | None]:
        """Return the cell's own peak in MiB from `read` at its end, or None and the reason."""
        if peak is None:
            return None, "the system does not tell this process the memory of its runtime"
        if self._before is None or self._loaded is None or peak > self._before:
            return max(peak, self._loaded or 0.0), None
        inherited = self._before - self._loaded
        if inherited <= MAX_INHERITED_SHARE * self._loaded:
            return max(peak, self._loaded), None
        return (
            None,
            f"an earlier cell of this process left a peak of {self._before:,.0f} MiB, which this one kept within",
        )


def own_pids() -> list[int]:
    """Return the ids of this process and its present descendants."""
    return [os.getpid(), *(child.pid for child in psutil.Process().children(recursive=True))]


def reset_peak(pid: int) -> None:
    """Set a process's VmHWM to its present size where the system can; else it stays as it is."""
    # 5 resets the peak only; the page bits that other values clear would slow the process down.
    with suppress(OSError):
        (Path("/proc") / str(pid) / "clear_refs").write_text("5", encoding="ascii")


def release_free_memory() -> None:
    """Return to the system what Python and the C library hold but do not use, as far as they can."""
    gc.collect()
    with suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)


def _beyond_kib(pid: int) -> int:
    status, share = _status(pid), _kib(pid, "smaps_rollup")
    if not status or not share:
        return 0
    return share["Private_Clean"] + share["Private_Dirty"] + status["VmHWM"] - status["VmRSS"]


def _absent_kib(weights: Path) -> int:
    """Return how much of its mappings of the files in a folder, or beside a file, this process has not resident."""
    folder = weights if weights.is_dir() else weights.parent
    files = {str(path.resolve()) for path in folder.iterdir() if path.is_file()}
    total, counts = 0, False
    with Path("/proc/self/smaps").open(encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name == "Size" and counts:
                total += int(value.split()[0])
            elif name == "Rss" and counts:
                total -= int(value.split()[0])
            elif "-" in name:  # a mapping begins: addresses, rights, offset, device, inode and path
                counts = line.rstrip("\n").split(maxsplit=5)[-1] in files
    return total


def _status(pid: int) -> Kib | None:
    found = _kib(pid, "status")
    # A process that has ended but was not waited for has no memory left.
    return found if found and "VmHWM" in found else None


def _kib(pid: int, file: str) -> Kib | None:
    """Return the values in kB of a file of /proc by name; None for a process that has just ended."""
    try:
        text = (Path("/proc") / str(pid) / file).read_text(encoding="utf-8")
    except (FileNotFoundError, ProcessLookupError):
        return None
    pairs = (line.split(":", 1) for line in text.splitlines() if line.endswith("kB") and ":" in line)
    return {name: int(value.split()[0]) for name, value in pairs}


def _rusage_mib() -> float:
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 1024
