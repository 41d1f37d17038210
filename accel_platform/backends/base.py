"""Protocol of a backend, so that the worker can measure any runtime alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from accel_platform.errors import AccelError

if TYPE_CHECKING:
    from accel_platform.workloads.heads import Head

Arrays = Mapping[str, npt.NDArray[Any]]


class Unsupported(AccelError):
    """The runtime cannot do what the cell asks (a precision, a device); the cell fails, the suite goes on."""


class UnsupportedMode(Unsupported):
    """The model or the runtime cannot do what the cell's mode asks: generate, or be trained."""

    failure_class: ClassVar[str] = "unsupported_mode"


class UnsupportedPrecision(Unsupported):
    """The runtime or this device does not compute in the precision asked, whatever it accepts to be told."""

    failure_class: ClassVar[str] = "unsupported_precision"


@dataclass(frozen=True)
class Placement:
    """Division of a graph by its runtime: operators on the requested device, and those left elsewhere."""

    accelerated: int
    elsewhere: dict[str, int] = field(default_factory=dict)
    """Operator type to how many."""

    @property
    def accelerated_share(self) -> float | None:
        """Return the share of all operators on the requested device; None for a graph without operators."""
        total = self.accelerated + sum(self.elsewhere.values())
        return self.accelerated / total if total else None


def share(counts: Mapping[bool, int]) -> float | None:
    """Return the share of counted products in the requested precision (True); None without products."""
    total = sum(counts.values())
    return counts.get(True, 0) / total if total else None


@dataclass(frozen=True)
class Confirmation:
    """The device that was asked for and those the runtime says it used, both in its own words.

    Events hold it under these field names, as they hold `Placement`.
    """

    asked: str
    seen: tuple[str, ...]

    @property
    def agrees(self) -> bool:
        return set(self.seen) == {self.asked}


class Backend(Protocol):
    """One runtime on one device. Calls come in this order: load once; then per shape compile, bind, run, outputs.

    Every call returns only when the device has finished, so a clock around it tells the truth.
    """

    name: str
    compiles: bool
    """Whether `compile` does work worth timing; where False the figure is recorded as unknown, not as 0."""

    def __init__(self, *, device: str, threads: int) -> None: ...

    def versions(self) -> dict[str, str]:
        """Return runtime versions as the loaded libraries report them."""
        ...

    def load(self, artifact: Path, *, precision: str) -> None:
        """Bring the model from disk to the device. Raises Unsupported for a precision it has not."""
        ...

    def compile(self, inputs: Arrays) -> None:
        """Specialize for exactly these shapes, replacing what was compiled before."""
        ...

    def bind(self, inputs: Arrays) -> None:
        """Place the inputs of the following runs on the device; shapes are those compiled for."""
        ...

    def run(self) -> None:
        """Run one forward pass."""
        ...

    def outputs(self) -> dict[str, npt.NDArray[np.float32]]:
        """Return copies of the last run's outputs by name."""
        ...

    def placement(self) -> Placement | None:
        """Return where the compiled operators last ran; None where the runtime has no graph to divide."""
        ...

    def precision_share(self) -> float | None:
        """Return the share of the last run's matrix products and convolutions in the loaded precision.

        Read from what ran (executed graph, compiled program, dispatched operators), never from what was requested. None
        without products, or where the runtime does not tell.
        """
        ...

    def confirm(self) -> Confirmation | None:
        """Return the device of the last run as the runtime reports it; None where it does not."""
        ...

    def memory_device_peak_mib(self) -> float | None:
        """Return the peak memory taken on a device with memory of its own, in MiB; None on a processor."""
        ...

    def close(self) -> None:
        """Free everything; no call follows."""
        ...


@runtime_checkable
class Eager(Protocol):
    """Backend whose model is a torch module, which generation and training drive themselves."""

    model: Any
    """The torch module, once loaded."""
    device: Any
    """The torch device it lies on."""

    def load(self, artifact: Path, *, precision: str, head: Head = "AutoModel") -> None:
        """Load as `Backend.load` does, with a head."""
        ...

    def confirm(self, results: Sequence[Any] | None = None) -> Confirmation:
        """Confirm as `Backend.confirm` does, by these tensors that the model computed."""
        ...

    def synchronize(self) -> None:
        """Return only when the device has finished what it was given."""
        ...


@runtime_checkable
class Remote(Protocol):
    """Backend whose runtime works in other processes, which hold its clock and its memory."""

    def clock_ns(self) -> int:
        """Time that runs have taken so far by the runtime's own clock; it stands still between them."""
        ...

    def memory_peak_mib(self) -> float | None:
        """Return the peak resident memory of the runtime's processes in MiB; None where the system does not tell."""
        ...

    def process_ids(self) -> list[int]:
        """Return the ids of the runtime's processes."""
        ...

    def notes(self) -> dict[str, Any]:
        """Return further facts of a result: clock, adapter, how memory was summed."""
        ...
