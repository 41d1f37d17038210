"""Compatibility matrix of models by hardware, untested cells included, rated by `warehouse/sql/compat_matrix.sql`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from itertools import groupby
from operator import itemgetter
from typing import Any, Literal, TypedDict, get_args

from accel_platform.analysis.query.cells import CellShape
from accel_platform.analysis.query.filters import Selection
from accel_platform.events.types import TRUSTED
from accel_platform.hardware.device_names import with_distinct_names
from accel_platform.warehouse.compat_matrix import filtered_matrix_sql
from accel_platform.warehouse.reader import Reader

Verdict = Literal["high", "medium", "low", "works", "n/a", "failed", "untested"]
"""Verdict of a cell. `works`: no other device measured any shape of that model to compare with. `n/a`: the runtime
cannot do this."""

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
CANNOT = ("unsupported_mode", "unsupported_operator")
"""Classes of failures by which a runtime says that it cannot do this at all."""
RATING_RULE = (
    "the newest attempt at a shape decides whether it works; "
    "speed against the best device for equal shapes, the median over shapes: high >= 0.8, medium >= 0.4, low below; "
    "works: no other device is there to compare with; n/a: the runtime cannot; "
    "only verified measurements and unsuspected imports"
)


class RatedCell(CellShape):
    """One model on one hardware name, by the best of its devices. `state`: compatible, failed or untested."""

    verdict: Verdict
    state: str
    rating: str | None
    relative_speed: float | None
    latency_p50_ms: float | None
    disturbed: bool | None
    """True if other processes disturbed all results of that shape; it has no rating then."""
    device: str | None
    failure_class: str | None
    reason: str | None
    """Reason why it failed; for an untested cell, the results that do not count."""
    results_ok: int
    results_failed: int
    last_worked_at: datetime | None
    last_failed_at: datetime | None
    provenance: list[str]
    """Provenances of the results that count."""
    evidence: list[str]


class Matrix(TypedDict):
    """A row per model, a column per hardware name."""

    snapshot_id: str
    hardware: list[str]
    """Columns: hardware names, or hardware names with a device."""
    devices: dict[str, int]
    """Number of devices behind each column; each cell shows the fastest at its row's shape, or else the best rated."""
    shapes: dict[str, CellShape | None]
    """The shape that most hardware names, then most devices, have a figure of, by model: those figures are comparable.
    None without figures."""
    models: dict[str, dict[str, RatedCell]]


class FamilyCell(TypedDict):
    """All models of a family on one hardware name.

    `verdict` is the most frequent one of the tested models, the worse of equally frequent ones.
    """

    verdict: Verdict
    counts: dict[str, int]
    """Number of models by verdict."""
    models: dict[str, RatedCell]


_DEVICES = """
SELECT model_id, hardware, device_id, device_name, state, rating, relative_speed, latency_p50_ms, disturbed, precision,
    batch_size, sequence_length, output_tokens, image_size, processes, failure_class, reason, results_ok,
    results_failed, last_worked_at, last_failed_at, evidence
FROM ({matrix})
WHERE mode = $mode AND (len($models) = 0 OR list_contains($models, model_id) OR list_contains($models, model_family))
    AND (len($hardware) = 0 OR list_contains($hardware, hardware) OR list_contains($hardware, device_name))
    AND ($devices IS NULL OR list_contains($devices, device_id) OR list_contains($devices, device_name))
ORDER BY model_id, hardware, device_id
"""
_RESULT_COUNTS = """
SELECT model_id, hardware, device_id, count(*) AS results,
    CASE WHEN provenance = 'measured' AND NOT failed AND verified IS NULL THEN 'not verified' ELSE provenance END
        AS kind
FROM judged_results
WHERE mode = $mode AND (len($models) = 0 OR list_contains($models, model_id) OR list_contains($models, model_family))
GROUP BY ALL ORDER BY ALL
"""


def compatibility_matrix(
    reader: Reader, selection: Selection | None = None, *, mode: str = "inference", by_device: bool = False
) -> Matrix:
    """Return the matrix of the selected models and the selected hardware names that have evidence in this mode.

    A column is a hardware name, or `by_device` a device of one. A figure is comparable with those of its row unless its
    shape is another than the row's. The selection's other filters limit the evidence that verdicts are based on. Raises
    WarehouseEmpty before the first publish.
    """
    selection = selection or Selection()
    matrix, values = matrix_sql(selection)
    outer = {
        "mode": mode,
        "models": selection.recorded_models(),
        "hardware": [*selection.hardware_names, *selection.hardware_devices.values()],
        "devices": selection.device_names,
    }
    found = reader.rows(_DEVICES.format(matrix=matrix), outer | values)
    places: dict[Any, set[Any]] = {}
    for row in found:
        place = (row["hardware"], row["device_id"], row["device_name"]) if by_device else row["hardware"]
        places.setdefault(place, set()).add(row["device_id"] or row["device_name"])
        row["place"] = place
    shapes, best = _best_by_place(found)
    rows = [{**row, "column": _column(row, by_device=by_device)} for row in with_distinct_names(best)]
    counts = _count_results(reader, {name: outer[name] for name in ("mode", "models")})
    columns = {row["column"]: row for row in rows}
    models: dict[str, dict[str, RatedCell]] = {}
    for row in rows:
        name = row["model_id"]
        if name not in models:
            models[name] = {
                column: _untested_cell(_counts_in(counts.get((name, one["hardware"]), {}), one, by_device=by_device))
                for column, one in sorted(columns.items())
            }
        models[name][row["column"]] = _cell(row, counts.get((name, row["hardware"]), {}))
    return Matrix(
        snapshot_id=reader.snapshot_id,
        hardware=sorted(columns),
        devices={column: len(places[columns[column]["place"]]) for column in sorted(columns)},
        shapes=shapes,
        models=models,
    )


def _column(row: dict[str, Any], *, by_device: bool) -> str:
    return f"{row['hardware']} · {row['device_name'] or 'not named'}" if by_device else str(row["hardware"])


def shape_of(cell: Mapping[str, Any]) -> CellShape:
    """Return the shape that a cell's latency was measured at."""
    return CellShape(
        precision=cell["precision"],
        batch_size=cell["batch_size"],
        sequence_length=cell["sequence_length"],
        output_tokens=cell["output_tokens"],
        image_size=cell["image_size"],
        processes=cell["processes"],
    )


def _best_by_place(devices: list[dict[str, Any]]) -> tuple[dict[str, CellShape | None], list[dict[str, Any]]]:
    """Return the most common shape of each model, and for each model the best device of each place (matrix column).

    A device that works is better than one that failed. The fastest at the most common shape comes first, then the
    others by relative speed.
    """
    shapes: dict[str, CellShape | None] = {}
    best: list[dict[str, Any]] = []
    for model, rows in groupby(devices, key=itemgetter("model_id")):
        of_model = list(rows)
        shapes[model] = shape = _most_common_shape(of_model)
        found: dict[Any, dict[str, Any]] = {}
        for row in sorted(of_model, key=lambda row: _order(row, shape)):
            found.setdefault(row["place"], row)
        best += found.values()
    return shapes, best


def _order(row: Mapping[str, Any], shape: CellShape | None) -> tuple[Any, ...]:
    latency_ms, speed = row["latency_p50_ms"], row["relative_speed"]
    slowness = (math.inf if latency_ms is None else latency_ms, row["device_id"] or "")
    if latency_ms is not None and shape_of(row) == shape:
        return (row["state"], False, bool(row["disturbed"]), *slowness)
    return (row["state"], True, math.inf if speed is None else -speed, *slowness)


def _most_common_shape(rows: list[dict[str, Any]]) -> CellShape | None:
    """Return the shape that most hardware names, then most devices, have a figure of; then in float32, the smallest."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["latency_p50_ms"] is not None:
            found.setdefault(repr(shape_of(row)), []).append(row)

    def order(text: str) -> tuple[Any, ...]:
        of_shape = found[text]
        names = {row["hardware"] for row in of_shape}
        other = of_shape[0]["precision"] != "float32"
        return -len(names), -len(of_shape), other, of_shape[0]["batch_size"] or math.inf, text

    return shape_of(found[min(found, key=order)][0]) if found else None


def _counts_in(counts: ResultCounts, column: dict[str, Any], *, by_device: bool) -> ResultCounts:
    device = column["device_id"]
    return {device: counts[device]} if by_device and device in counts else {} if by_device else counts


def matrix_sql(selection: Selection) -> tuple[str, dict[str, Any]]:
    """Return SQL for `compat_matrix` over the selected evidence, and its values.

    Models, modes and plain hardware names do not limit the evidence, because a cell is rated against the others; they
    filter the rows. A device does: its runtimes are rated against each other.
    """
    narrowed = selection.model_copy(update=dict.fromkeys(("model", "hardware"), ()) | {"mode": None})
    condition, values = narrowed.where()
    if selection.choices:
        # Results of other hardware stay, because a choice is rated against them.
        chosen = "list_contains($choices, r.hardware || ':' || r.choice)"
        condition += f" AND (NOT list_contains($with_choices, r.hardware) OR {chosen})"
        names = {name.partition(":")[0] for name in selection.choices} - set(selection.hardware)
        values |= {"choices": list(selection.choices), "with_choices": sorted(names)}
    return (filtered_matrix_sql(condition) if values else "FROM compat_matrix"), values


def group_by_family(reader: Reader, matrix: Matrix) -> dict[str, dict[str, FamilyCell]]:
    """Group the matrix into a row per family; models without a known family are under `unknown`."""
    known = {row["model_id"]: row["family"] for row in reader.rows("SELECT model_id, family FROM models")}
    found: dict[str, dict[str, dict[str, RatedCell]]] = {}
    for model, cells in matrix["models"].items():
        for hardware, cell in cells.items():
            found.setdefault(known.get(model) or "unknown", {}).setdefault(hardware, {})[model] = cell
    return {
        family: {hardware: _family_cell(members) for hardware, members in cells.items()}
        for family, cells in sorted(found.items())
    }


def cell_verdict(state: str, rating: str | None, failure_class: str | None) -> Verdict:
    """Return the verdict of a cell of `compat_matrix`."""
    if state == "failed":
        return "n/a" if failure_class in CANNOT else "failed"
    if state != "compatible":
        return "untested"
    return next((verdict for verdict in VERDICTS if verdict == rating), "works")


def _family_cell(members: dict[str, RatedCell]) -> FamilyCell:
    counts = Counter(cell["verdict"] for cell in members.values())
    tested: list[Verdict] = [verdict for verdict in VERDICTS if counts[verdict] and verdict != "untested"]
    most: Verdict = max(tested, key=lambda verdict: (counts[verdict], VERDICTS.index(verdict)), default="untested")
    by_verdict: dict[str, int] = {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]}
    return FamilyCell(verdict=most, counts=by_verdict, models=members)


ResultCounts = dict[str | None, dict[str, int]]
"""Results of one model on one hardware name, by device and provenance; `not verified` for unchecked measurements."""


def _count_results(reader: Reader, values: dict[str, Any]) -> dict[tuple[str, str], ResultCounts]:
    found: dict[tuple[str, str], ResultCounts] = {}
    for row in reader.rows(_RESULT_COUNTS, values):
        devices = found.setdefault((row["model_id"], row["hardware"]), {})
        devices.setdefault(row["device_id"], {})[row["kind"]] = row["results"]
    return found


def _cell(row: dict[str, Any], counts: ResultCounts) -> RatedCell:
    return RatedCell(
        verdict=cell_verdict(row["state"], row["rating"], row["failure_class"]),
        state=row["state"],
        rating=row["rating"],
        relative_speed=row["relative_speed"],
        latency_p50_ms=row["latency_p50_ms"],
        disturbed=row["disturbed"],
        **shape_of(row),
        device=row["device_name"],
        failure_class=row["failure_class"],
        reason=row["reason"],
        results_ok=row["results_ok"],
        results_failed=row["results_failed"],
        last_worked_at=row["last_worked_at"],
        last_failed_at=row["last_failed_at"],
        provenance=[name for name in TRUSTED if name in counts.get(row["device_id"], {})],
        evidence=[str(event_id) for event_id in row["evidence"]],
    )


def _untested_cell(counts: ResultCounts) -> RatedCell:
    """Build an untested cell, with the count of results that are no evidence: unverified, emulated and suspect ones."""
    total: Counter[str] = Counter()
    for device in counts.values():
        total.update(device)
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(total.items()))
    return RatedCell(verdict="untested", state="untested", rating=None, relative_speed=None, latency_p50_ms=None,
                disturbed=None, precision=None, batch_size=None, sequence_length=None, output_tokens=None,
                image_size=None, processes=None, device=None, failure_class=None,
                reason=f"results that do not count here: {kinds}" if kinds else None,
                results_ok=0, results_failed=0, last_worked_at=None, last_failed_at=None,
                provenance=[], evidence=[])  # fmt: skip
