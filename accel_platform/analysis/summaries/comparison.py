"""Comparison of cells of equal shape side by side: one model over hardware, or several models on one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast
from uuid import UUID

from accel_platform.analysis.query.cells import PLACE, SETUP, SHAPE, PooledCell, read_cells
from accel_platform.analysis.query.filters import Selection, canonical_model_id, measure_command, require_known
from accel_platform.analysis.query.run_refs import ObservedDevices, differing_keys, observed_devices
from accel_platform.analysis.stats.significance import ratio_interval
from accel_platform.analysis.summaries.baselines import Baselines, CellRow
from accel_platform.events.types import TRUST_ORDER
from accel_platform.hardware.device_names import distinct_name, shared_names
from accel_platform.warehouse.reader import Reader

By = Literal["hardware", "model_id"]
_DETAILS = """
SELECT r.result_id, r.run_id, r.hardware, r.choice, r.threads, e.samples_ns
FROM results AS r
JOIN events AS e ON e.event_id = r.result_id
WHERE r.result_id IN (SELECT unnest($ids))
"""


class ComparedCell(PooledCell):
    """A cell with its ratio to its baseline, which is a cell of the first compared name."""

    baseline: bool
    """True if it is its own baseline."""
    baseline_device_id: str | None
    baseline_backend: str | None
    ratio: float | None
    """Latency over the baseline's; None for a baseline, and where `note` says why."""
    ratio_low: float | None
    ratio_high: float | None
    interval_of: str | None
    """Scope of the ratio's interval: processes, or samples alone."""
    differs: list[str]
    """Differences of device, threads and versions from the baseline, in words."""
    note: str | None
    """Reason why there is no ratio, or why the cell's figure is uncertain."""


@dataclass(frozen=True)
class Comparison:
    """Cells of equal shapes side by side."""

    snapshot_id: str
    by: By
    names: tuple[str, ...]
    """Compared names, of which the first is the baseline of the others: ids of models, or hardware or device names."""
    rows: list[ComparedCell]
    unpaired: list[PooledCell]
    """Cells of shapes that only one name was measured at."""
    lacking: dict[str, str]
    """For each name without any figure, the command that measures one."""


def compare_side_by_side(
    reader: Reader, selection: Selection, by: By, *, cells: Sequence[PooledCell] | None = None
) -> Comparison:
    """Compare the selected models on one hardware name (`by` is `model_id`), or one model on its hardware names.

    Only equal shapes are compared, and models only under one backend. The baseline of a row is a cell of the first name
    at the same shape and provenance. It is on the same device, and of the same backend if there is one. `cells` are
    those of the selection, if they are read already. Raises NotFound for an unknown name, and WarehouseEmpty before the
    first publish.
    """
    require_known(reader, selection)
    cells = read_cells(reader, selection) if cells is None else cells
    names = _names(cells, selection.model if by == "model_id" else _columns(selection), by)
    shapes: dict[tuple[Any, ...], list[PooledCell]] = {}
    for cell in sorted(cells, key=lambda cell: _order(cell, by, names)):
        shapes.setdefault(_shape(cell, by), []).append(cell)
    pairs: list[list[PooledCell]] = []
    unpaired: list[PooledCell] = []
    for group in shapes.values():
        if len({_name_of(cell, by, names) for cell in group}) > 1:
            pairs.append(group)
        else:
            unpaired += group
    details = _Details.of(reader, [cell for group in pairs for cell in group])
    measured = {_name_of(cell, by, names) for cell in cells}
    part = "model" if by == "model_id" else "hardware"
    return Comparison(
        snapshot_id=reader.snapshot_id,
        by=by,
        names=names,
        rows=[row for group in pairs for row in _with_ratios(group, by, names, details)],
        unpaired=unpaired,
        lacking={
            name: measure_command(selection.model_copy(update={part: (name,)}))
            for name in names
            if name not in measured
        },
    )


def _columns(selection: Selection) -> list[str]:
    """Return the selection's hardware names, devices among them by their names in the spec sheet."""
    return [selection.hardware_devices.get(name, name) for name in selection.hardware]


def _names(cells: Sequence[Mapping[str, Any]], requested: Sequence[str], by: By) -> tuple[str, ...]:
    """Return the requested names, with families replaced by their measured models; all measured names by default."""
    measured = sorted({cell[by] for cell in cells}, key=lambda name: (name != "cpu", name))
    if not requested or by == "hardware":
        return tuple(dict.fromkeys(requested)) or tuple(measured)
    families = {cell["model_id"]: cell["model_family"] for cell in cells}
    members = [[one for one in measured if families[one] == name] or [canonical_model_id(name)] for name in requested]
    return tuple(dict.fromkeys(model for found in members for model in found))


def _name_of(cell: Mapping[str, Any], by: By, names: Sequence[str]) -> str:
    """Return the compared name that a cell belongs to: model or hardware name, or device or choice if requested."""
    named = (f"{cell['hardware']}:{cell['choice']}", cell["device_name"]) if by == "hardware" else ()
    return next((name for name in named if name in names), str(cell[by]))


@dataclass(frozen=True)
class _Details:
    """Samples, threads and observed devices of the newest results of every cell."""

    results: Mapping[UUID, Mapping[str, Any]]
    seen: ObservedDevices
    shared: frozenset[str]
    """Names that several devices of the cells share."""

    @classmethod
    def of(cls, reader: Reader, cells: Sequence[Mapping[str, Any]]) -> _Details:
        """Read the details of these cells."""
        shared = shared_names((cell["device_name"], cell["device_id"]) for cell in cells)
        ids = [result_id for cell in cells for result_id in cell["evidence"]]
        rows = {row["result_id"]: row for row in reader.rows(_DETAILS, {"ids": ids})} if ids else {}
        runs = {row["run_id"] for row in rows.values() if row["run_id"]}
        return cls(rows, observed_devices(reader, runs) if runs else {}, shared)

    def samples(self, cell: Mapping[str, Any]) -> list[Sequence[int]]:
        """Return the raw samples in ns of each of a cell's results."""
        return [self.results[result_id]["samples_ns"] or () for result_id in cell["evidence"]]

    def environment(self, cell: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
        """Return device, threads and versions of a cell by name, each with several values if its results differ."""
        device = distinct_name(cell["device_name"], cell["device_id"], self.shared)
        found: dict[str, set[str]] = {"device": {device or "unknown"}}
        if cell["software"]:
            found["software"] = {", ".join(cell["software"])}
        for result_id in cell["evidence"]:
            row = self.results[result_id]
            seen = self.seen.get((row["run_id"], row["hardware"], row["choice"]), {})
            for name, value in {"threads": row["threads"], **seen}.items():
                if value is not None:
                    found.setdefault(name, set()).add(str(value))
        return {name: tuple(sorted(values)) for name, values in found.items()}


def _with_ratios(group: Sequence[CellRow], by: By, names: Sequence[str], details: _Details) -> Iterable[ComparedCell]:
    """Yield the cells of one shape, each with its ratio to a cell of the first name, the interval, and differences."""
    firsts = _find_baselines(group, by, names)
    for cell, first in zip(group, firsts, strict=True):
        note = _no_ratio(cell, first, names[0])
        ratio = interval = None
        if first is not None and first is not cell and note is None:
            ratio = cell["latency_ms"] / first["latency_ms"]
            interval = ratio_interval(ratio, details.samples(first), details.samples(cell))
        fields = {
            **cell,
            "baseline": first is cell,
            "baseline_device_id": first and first["device_id"],
            "baseline_backend": first and first["backend"],
            "ratio": ratio,
            "ratio_low": interval and interval.low,
            "ratio_high": interval and interval.high,
            "interval_of": interval and interval.covers,
            "differs": _differs(details.environment(cell), details.environment(first)) if first else [],
            "note": note or _doubt(cell),
        }
        yield cast("ComparedCell", fields)


def _find_baselines(group: Sequence[CellRow], by: By, names: Sequence[str]) -> list[CellRow | None]:
    """Return the baseline of each cell: a cell of the first name with its provenance; None if there is none.

    A cell of the first name is its own baseline if others are compared with it.
    """
    firsts = Baselines([cell for cell in group if _name_of(cell, by, names) == names[0]], ("provenance",))
    others = [next(iter(firsts.closest(cell)), None) for cell in group if _name_of(cell, by, names) != names[0]]
    compared = {id(first) for first in others if first is not None}

    def baseline(cell: CellRow) -> CellRow | None:
        candidates = firsts.closest(cell)
        if _name_of(cell, by, names) != names[0]:
            return next(iter(candidates), None)
        used = [first for first in (cell, *candidates) if id(first) in compared]
        return (used or candidates[-1:])[0]

    return [baseline(cell) for cell in group]


def _no_ratio(cell: Mapping[str, Any], first: Mapping[str, Any] | None, called: str) -> str | None:
    """Return why a cell has no ratio to its baseline, which is of the name `called`; None if it has one."""
    if first is None:
        return f"{cell['provenance']}, and nothing {cell['provenance']} of {called} stands at this shape"
    if cell["verified"] is False:
        return "its outputs differ from the reference"
    if first["verified"] is False:
        return f"the outputs of {called} differ from the reference"
    for name, one in (("it", cell), (called, first)):
        if one["disturbed"]:
            return f"other processes disturbed {name}: measure again"
    if not cell["latency_ms"] or not first["latency_ms"]:
        return "no latency is known"
    return None


def _doubt(cell: Mapping[str, Any]) -> str | None:
    """Return why a cell's figure is uncertain; None if it is not."""
    if cell["provenance"] == "measured" and cell["verified"] is None:
        return "its outputs were never compared with the reference"
    return "noisy" if cell["noisy"] else None


def _differs(cell: Mapping[str, tuple[str, ...]], first: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return in words what differs between two environments, and what varies within the first.

    Versions that only one of them has are left out, because comparing such runtimes is the purpose.
    """
    both = {*cell} & {*first}
    return [
        f"{name} {' and '.join(cell[name])} against {' and '.join(first[name])}"
        for name in differing_keys({n: cell[n] for n in both}, {n: first[n] for n in both})
    ] + [f"{name} {' and '.join(values)} within" for name, values in cell.items() if len(values) > 1]


def _shape(cell: Mapping[str, Any], by: By) -> tuple[Any, ...]:
    """Return the fields in which compared cells have to be equal."""
    same = (*PLACE, "backend") if by == "model_id" else ("model_id",)
    return tuple(cell[name] for name in (*same, *SHAPE))


def _order(cell: Mapping[str, Any], by: By, names: Sequence[str]) -> tuple[Any, ...]:
    place = names.index(_name_of(cell, by, names))
    shape = tuple((value is not None, value or 0, "") if not isinstance(value, str) else (True, 0, value)
                  for value in _shape(cell, by))  # fmt: skip
    setup = tuple(str(cell[name]) for name in SETUP)
    return (
        shape,
        place,
        cell["device_name"] or "",
        cell["device_id"] or "",
        setup,
        TRUST_ORDER.index(cell["provenance"]),
    )
