"""Best measured configuration of a model on a device, compared with the plainest one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypedDict, cast

from accel_platform.analysis.query.cells import SETUP, WORK_OF_ANY_BATCH
from accel_platform.analysis.summaries.baselines import CellRow
from accel_platform.events.types import Provenance

_ONE = ("model_id", *WORK_OF_ANY_BATCH, "provenance", "device_id", "device_name")
"""Fields that all configurations of a row share: the model, its work, the device."""
CHOICES = {"backend": ("hardware", *SETUP), "precision": ("precision",), "batch": ("batch_size",)}
"""Fields of a cell by configuration choice."""
_PLAIN = ("cpu", "cuda", "rocm", "mps")
"""Hardware names that PyTorch serves, the default for a model."""


class GainOfChoice(TypedDict):
    """The best value of one choice, all others as in the plainest cell."""

    to: Any
    """That value: a batch size, a precision, or a hardware name with its runtime."""
    gain: float
    """Its throughput over the plainest cell's."""


class BestConfiguration(TypedDict):
    """The plainest and the best configuration of a model's work on a device; the first fields are those of `_ONE`."""

    model_id: str
    mode: str
    sequence_length: int | None
    image_size: float | None
    output_tokens: int | None
    processes: int | None
    provenance: Provenance
    device_id: str | None
    device_name: str | None
    configurations: int
    """Number of cells that the best is chosen from."""
    results: int
    plain: CellRow
    best: CellRow
    gain: float
    """Best throughput over the plainest."""
    changes: list[str]
    """Choices in which the best differs from the plainest, in words."""
    alone: dict[str, GainOfChoice]
    """By choice, the gain if the plainest cell changes in that choice alone; choices not measured so are left out."""
    share: float | None
    bound: str | None
    roofline_ms: float | None
    unavailable: str | None
    """These four are the best cell's place under its roofline."""


def best_configurations(cells: Iterable[CellRow]) -> list[BestConfiguration]:
    """Return the plainest and the best configuration of each model on each device.

    `cells` are those of `Rooflines.rows`, with `runtime` where `with_distinct_runtimes` named it. Emulated and
    disturbed ones do not count, because they say nothing about a device. The plainest is PyTorch's if measured, in
    float32 if measured, at the smallest batch. The best has the highest throughput. Rows are ordered by the distance of
    the best from its roofline, the farthest first and unknown last.
    """
    groups: dict[tuple[Any, ...], list[CellRow]] = {}
    for cell in cells:
        answers = cell["verified"] is not False and cell["provenance"] != "emulated" and not cell["disturbed"]
        if answers and cell["throughput_items_per_s"] and cell["batch_size"]:
            groups.setdefault(tuple(cell[name] for name in _ONE), []).append(cell)
    rows = [_row(group) for group in groups.values()]
    return sorted(rows, key=lambda row: (row["share"] is None, row["share"] or 0.0, -row["gain"], str(row["model_id"])))


def _row(group: Sequence[CellRow]) -> BestConfiguration:
    plain = min(group, key=_plainness)
    best = max(group, key=_rate)
    gains = {choice: _gain_of_choice(group, plain, choice) for choice in CHOICES}
    return cast(
        "BestConfiguration",
        {
            **{name: plain[name] for name in _ONE},
            "configurations": len(group),
            "results": sum(cell["results"] for cell in group),
            "plain": plain,
            "best": best,
            "gain": _rate(best) / _rate(plain),
            "changes": [
                f"{choice} {_chosen(plain, choice)} -> {_chosen(best, choice)}"
                for choice in CHOICES
                if not _agree(plain, best, choice)
            ],
            "alone": {choice: gain for choice, gain in gains.items() if gain is not None},
            "share": best["share"],
            "bound": best["bound"],
            "roofline_ms": best["roofline_ms"],
            "unavailable": best["unavailable"],
        },
    )


def _gain_of_choice(group: Sequence[CellRow], plain: CellRow, choice: str) -> GainOfChoice | None:
    """Return the best value of one choice; None if no cell differs from the plainest in it alone."""
    others = [name for name in CHOICES if name != choice]
    comparable = [c for c in group if c is not plain and all(_agree(c, plain, name) for name in others)]
    if not comparable:
        return None
    best = max(comparable, key=_rate)
    return {"to": _chosen(best, choice), "gain": _rate(best) / _rate(plain)}


def _agree(one: CellRow, other: CellRow, choice: str) -> bool:
    """Return whether two cells have the same value of a choice."""
    return all(one[field] == other[field] for field in CHOICES[choice])


def _chosen(cell: CellRow, choice: str) -> Any:
    """Return a cell's value of a choice. That of a backend is the hardware name, and the runtime if it has several."""
    value = cell[CHOICES[choice][0]]
    return f"{value} ({cell['runtime']})" if choice == "backend" and cell.get("runtime") else value


def _plainness(cell: CellRow) -> tuple[Any, ...]:
    """Return the sort key that puts the plainest cell first: by hardware name, backend, precision and batch."""
    hardware, precision = str(cell["hardware"]), cell["precision"]
    order = _PLAIN.index(hardware) if hardware in _PLAIN else len(_PLAIN)
    other = cell["backend"] != "pytorch"
    return order, other, precision != "float32", cell["batch_size"], hardware, str(precision), -_rate(cell)


def _rate(cell: CellRow) -> float:
    return float(cell["throughput_items_per_s"])
