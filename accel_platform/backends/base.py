"""What every backend does, so that the worker can measure any of them alike. No backend lives here."""

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
    """How a runtime that may divide a graph did so: operators on the device asked for, and those it left elsewhere."""

    accelerated: int
    elsewhere: dict[str, int] = field(default_factory=dict)
    """Operator type to how many."""

    @property
    def accelerated_share(self) -> float | None:
        """Of all operators; None for a graph without any."""
        total = self.accelerated + sum(self.elsewhere.values())
        return self.accelerated / total if total else None


def share(counts: Mapping[bool, int]) -> float | None:
    """Of the products counted, those that are in the precision (True); None of none."""
    total = sum(counts.values())
    return counts.get(True, 0) / total if total else None


@dataclass(frozen=True)
class Confirmation:
    """The device that was asked for and those the runtime says it used, both in its own words."""

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
        """Runtime versions as the loaded libraries report them."""
        ...

    def load(self, artifact: Path, *, precision: str) -> None:
        """Bring the model from disk to the device. Raises Unsupported for a precision it has not."""
        ...

    def compile(self, inputs: Arrays) -> None:
        """Specialise for exactly these shapes; replaces what was compiled before."""
        ...

    def bind(self, inputs: Arrays) -> None:
        """Place the inputs of the following runs on the device; shapes are those compiled for."""
        ...

    def run(self) -> None:
        """One forward pass."""
        ...

    def outputs(self) -> dict[str, npt.NDArray[np.float32]]:
        """Copies of the last run's outputs by name."""
        ...

    def placement(self) -> Placement | None:
        """Where the operators of what was compiled last run; None where the runtime has no graph to divide."""
        ...

    def precision_share(self) -> float | None:
        """Of the matrix products and convolutions of the last run, those computed in the precision that was loaded.

        Read from what ran (executed graph, compiled program, dispatched operators), never from what was asked. None
        where there are none, or the runtime does not tell.
        """
        ...

    def confirm(self) -> Confirmation | None:
        """Which device the last run was on, by the runtime's own word; None where it does not tell."""
        ...

    def memory_device_peak_mib(self) -> float | None:
        """Peak memory taken on a device with memory of its own; None on a processor."""
        ...

    def close(self) -> None:
        """Free everything; no call follows."""
        ...


@runtime_checkable
class Eager(Protocol):
    """What a backend adds whose model is a torch module, which generation and training drive themselves."""

    model: Any
    """The torch module, once loaded."""
    device: Any
    """The torch device it lies on."""

    def load(self, artifact: Path, *, precision: str, head: Head = "AutoModel") -> None:
        """As `Backend.load`, with a head."""
        ...

    def confirm(self, results: Sequence[Any] | None = None) -> Confirmation:
        """As `Backend.confirm`, by these tensors, which the model has made."""
        ...

    def synchronize(self) -> None:
        """Return only when the device has finished what it was given."""
        ...


@runtime_checkable
class Remote(Protocol):
    """What a backend adds whose runtime works in other processes, which keep its time and take its memory."""

    def clock_ns(self) -> int:
        """Time that runs have taken so far by the runtime's own clock; it stands still between them."""
        ...

    def memory_peak_mib(self) -> float | None:
        """Peak resident memory of the runtime's processes; None where the system does not tell."""
        ...

    def notes(self) -> dict[str, Any]:
        """What else belongs to a result: clock, adapter, how memory was summed."""
        ...
