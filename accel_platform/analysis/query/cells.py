"""Results pooled into cells, with the number of runs, the spread and the evidence of each figure.

Results are pooled only within one shape, runtime, device, precision, mode and provenance; imports also only within one
setup. `CELL` is the definition that tables, charts and comparisons share.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, TypedDict, cast
from uuid import UUID

from accel_platform.analysis.query.filters import Selection
from accel_platform.analysis.query.setups import read_setups
from accel_platform.events.types import Provenance
from accel_platform.knowledge.cards import SOURCE_PREFIX
from accel_platform.warehouse.reader import Reader

Row = Mapping[str, Any]
EVIDENCE_LIMIT = 20
"""Largest number of result ids per cell, newest first."""
SHAPE = ("mode", "precision", "batch_size", "sequence_length", "image_size", "output_tokens", "processes")
"""Fields that describe the work of a cell. Figures are comparable only if all of them are equal."""
WORK = tuple(name for name in SHAPE if name != "precision")
"""Fields of `SHAPE` but the precision."""
WORK_OF_ANY_BATCH = tuple(name for name in WORK if name != "batch_size")
PLACE = ("hardware", "choice", "device_id")
"""Fields that identify the hardware."""
SETUP = ("backend", "setup", "threads")
"""Fields that identify the software: the runtime or engine, then the setup and threads that an import states.

`setup` is the fingerprint of an import. Own measurements have neither, because their versions follow one another in
time; `fingerprints` counts these.
"""
CELL = ("model_id", *PLACE, *SETUP, *SHAPE, "provenance", "verified")
"""Fields that identify a cell."""


class CellShape(TypedDict):
    """Configuration of a figure: figures of one model and mode are comparable at equal ones."""

    precision: str | None
    batch_size: int | None
    sequence_length: int | None
    output_tokens: int | None
    image_size: float | None
    processes: int | None


class PooledCell(CellShape):
    """Row of `read_cells`: the fields of `CELL`, then what the cell's results have in common, then its figures.

    A figure is None where no result states it.
    """

    model_id: str
    hardware: str
    choice: str | None
    device_id: str | None
    backend: str | None
    setup: str | None
    threads: int | None
    mode: str
    provenance: Provenance
    verified: bool | None
    """None where outputs were never compared, as with imports."""
    model_family: str
    device_name: str | None
    software: list[str] | None
    """Versions and settings that an import states; None without any."""
    results: int
    runs: int
    fingerprints: int
    samples: int | None
    noisy: bool | None
    disturbed: bool
    """True if other processes disturbed all results."""
    published: bool
    """True if all results are of knowledge packs."""
    latency_ms: float | None
    latency_low_ms: float | None
    latency_high_ms: float | None
    latency_std_ms: float | None
    throughput_items_per_s: float | None
    throughput_low_items_per_s: float | None
    throughput_high_items_per_s: float | None
    throughput_tokens_per_s: float | None
    memory_peak_mib: float | None
    memory_peak_low_mib: float | None
    memory_device_peak_mib: float | None
    energy_j_per_item: float | None
    load_ms: float | None
    first_ms: float | None
    newest_at: datetime | None
    evidence: list[UUID] | None
    """Ids of the newest results. None without evidence, as is `newest_at`."""


# A cell's figure is the median over its results; low and high are the extremes over them. Results that other processes
# disturbed take part only where there are no others. The standard deviation is the median of those of the samples
# within a result. Runtime versions may differ between own measurements of a cell: `fingerprints` counts them.
# The order is total and no value is arbitrary, because equal data must give equal charts and reports.
_OWN = "r.provenance IN ('measured', 'emulated')"
_SETUPS = f"CASE WHEN NOT {_OWN} THEN r.fingerprint END AS setup, CASE WHEN NOT {_OWN} THEN r.threads END AS threads"
_KEY = ", ".join(f"r.{name}" for name in CELL)
_ORDER = (
    "model_id", "hardware", "device_name", "mode", "precision", "batch_size", "sequence_length", "image_size",
    "output_tokens", "provenance", "backend", "setup", "threads", "choice", "device_id", "processes", "verified",
)  # fmt: skip
_SORTED = ", ".join(name if name == "device_name" else f"r.{name}" for name in _ORDER)
_CELLS = f"""
SELECT {_KEY}, min(r.model_family) AS model_family,
    min(r.device_name) AS device_name, count(*) AS results, count(DISTINCT r.run_id) AS runs,
    count(DISTINCT r.fingerprint) AS fingerprints, sum(r.samples)::BIGINT AS samples, bool_or(r.noisy) AS noisy,
    bool_and(r.disturbed IS TRUE) AS disturbed, bool_and(starts_with(r.source, '{{published}}')) AS published,
    median(coalesce(r.latency_p50_ms, r.latency_mean_ms)) AS latency_ms,
    min(coalesce(r.latency_p50_ms, r.latency_mean_ms)) AS latency_low_ms,
    max(coalesce(r.latency_p50_ms, r.latency_mean_ms)) AS latency_high_ms,
    median(r.latency_std_ms) AS latency_std_ms,
    median(r.throughput_items_per_s) AS throughput_items_per_s,
    min(r.throughput_items_per_s) AS throughput_low_items_per_s,
    max(r.throughput_items_per_s) AS throughput_high_items_per_s,
    median(r.throughput_tokens_per_s) AS throughput_tokens_per_s,
    max(r.memory_peak_mib) AS memory_peak_mib, min(r.memory_peak_mib) AS memory_peak_low_mib,
    max(r.memory_device_peak_mib) AS memory_device_peak_mib,
    median(r.energy_j_per_item) AS energy_j_per_item, median(r.load_ms) AS load_ms, median(r.first_ms) AS first_ms,
    {{newest}} AS newest_at, {{evidence}} AS evidence
FROM (
    FROM (
        SELECT r.* EXCLUDE (threads), {_SETUPS} FROM judged_results AS r
        WHERE r.status = 'ok' AND r.model_family <> 'microbenchmark' AND {{condition}}
    ) AS r
    QUALIFY r.disturbed IS NOT TRUE OR bool_and(r.disturbed IS TRUE) OVER (PARTITION BY {_KEY})
) AS r
GROUP BY {_KEY}
ORDER BY {_SORTED}
"""


def read_cells(reader: Reader, selection: Selection, *, evidence: bool = True) -> list[PooledCell]:
    """Return one row per selected cell, in a fixed order by model, hardware and shape; figures are medians of results.

    Without `evidence`, the columns `evidence` and `newest_at`, which take long to read, are None. Raises WarehouseEmpty
    before the first publish.
    """
    condition, values = selection.where()
    ids = f"max(r.result_id, {EVIDENCE_LIMIT})" if evidence else "NULL"
    newest = "max(r.occurred_at)" if evidence else "NULL"
    sql = _CELLS.format(evidence=ids, newest=newest, published=SOURCE_PREFIX, condition=condition)
    cells = reader.rows(sql, values)
    software = read_setups(reader, {cell["setup"] for cell in cells} - {None})
    return [cast("PooledCell", {**cell, "software": software.get(cell["setup"])}) for cell in cells]


def group_comparable(cells: Sequence[Row]) -> list[list[Row]]:
    """Return for each model the cells of the shape that most devices ran, then the smallest; most devices first.

    Cells of all precisions and provenances of that shape are in the group.
    """
    shapes: dict[tuple[Any, ...], list[Row]] = {}
    for cell in cells:
        shapes.setdefault((cell["model_id"], *(cell[name] for name in WORK)), []).append(cell)
    best: dict[str, list[Row]] = {}
    for group in sorted(shapes.values(), key=_order):
        best.setdefault(group[0]["model_id"], group)
    return list(best.values())


def _order(group: Sequence[Row]) -> tuple[Any, ...]:
    places = len({tuple(cell[name] for name in PLACE) for cell in group})
    first = group[0]
    sizes = (first[name] or 0 for name in WORK if name != "mode")
    return -places, -len(group), *sizes, str(first["model_id"]), str(first["mode"])
