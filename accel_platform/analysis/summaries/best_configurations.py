"""Best measured configuration of a model on a device, compared with the plainest one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from accel_platform.analysis.query.cells import SETUP, WORK_OF_ANY_BATCH

Cell = Mapping[str, Any]
_ONE = ("model_id", *WORK_OF_ANY_BATCH, "provenance", "device_id", "device_name")
"""Fields that all configurations of a row share: the model, its work, the device."""
CHOICES = {"backend": ("hardware", *SETUP), "precision": ("precision",), "batch": ("batch_size",)}
"""Fields of a cell by configuration choice."""
_PLAIN = ("cpu", "cuda", "rocm", "mps")
"""Hardware names that PyTorch serves, the default for a model."""


def best_configurations(cells: Iterable[Cell]) -> list[dict[str, Any]]:
    """Return a row per model and device: the plainest configuration, the best, and the gain of each choice alone.

    `cells` are those of `Rooflines.rows`; emulated and disturbed ones do not count, because they say nothing about a
    device. The plainest is PyTorch's if measured, in float32 if measured, at the smallest batch. The best has the
    highest throughput.

    `gain` is the best throughput over the plainest. `alone` holds, by choice, the cell that differs from the plainest
    in that choice alone and gains most. Rows are ordered by the distance of the best from its roofline, the farthest
    first and unknown last.
    """
    groups: dict[tuple[Any, ...], list[Cell]] = {}
    for cell in cells:
        answers = cell["verified"] is not False and cell["provenance"] != "emulated" and not cell["disturbed"]
        if answers and cell["throughput_items_per_s"] and cell["batch_size"]:
            groups.setdefault(tuple(cell[name] for name in _ONE), []).append(cell)
    rows = [_row(group) for group in groups.values()]
    return sorted(rows, key=lambda row: (row["share"] is None, row["share"] or 0.0, -row["gain"], str(row["model_id"])))


def _row(group: Sequence[Cell]) -> dict[str, Any]:
    plain = min(group, key=_plainness)
    best = max(group, key=_rate)
    return {
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
        "alone": {choice: found for choice in CHOICES if (found := _gain_of_choice(group, plain, choice)) is not None},
        "share": best["share"],
        "bound": best["bound"],
        "roofline_ms": best["roofline_ms"],
        "unavailable": best["unavailable"],
    }


def _gain_of_choice(group: Sequence[Cell], plain: Cell, choice: str) -> dict[str, Any] | None:
    """Return the best value of one choice, all others as in the plainest cell, with its gain; None if not measured."""
    others = [name for name in CHOICES if name != choice]
    comparable = [c for c in group if c is not plain and all(_agree(c, plain, name) for name in others)]
    if not comparable:
        return None
    best = max(comparable, key=_rate)
    return {"to": _chosen(best, choice), "gain": _rate(best) / _rate(plain)}


def _agree(one: Cell, other: Cell, choice: str) -> bool:
    """Return whether two cells have the same value of a choice."""
    return all(one[field] == other[field] for field in CHOICES[choice])


def _chosen(cell: Cell, choice: str) -> Any:
    """Return a cell's value of a choice. That of a backend is the hardware name, and the runtime if it has several."""
    value = cell[CHOICES[choice][0]]
    return f"{value} ({cell['runtime']})" if choice == "backend" and cell.get("runtime") else value


def _plainness(cell: Cell) -> tuple[Any, ...]:
    """Return the sort key that puts the plainest cell first: by hardware name, backend, precision and batch."""
    hardware, precision = str(cell["hardware"]), cell["precision"]
    order = _PLAIN.index(hardware) if hardware in _PLAIN else len(_PLAIN)
    other = cell["backend"] != "pytorch"
    return order, other, precision != "float32", cell["batch_size"], hardware, str(precision), -_rate(cell)


def _rate(cell: Cell) -> float:
    return float(cell["throughput_items_per_s"])
