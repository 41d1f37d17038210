"""Page that compares models or hardware side by side, shape by shape."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field

from accel_platform.analysis.query.cells import PLACE, SHAPE, PooledCell, read_cells
from accel_platform.analysis.query.filters import Selection, require_known_unless_found
from accel_platform.analysis.query.setups import with_distinct_runtimes
from accel_platform.analysis.summaries.comparison import Comparison, compare_side_by_side
from accel_platform.events.types import TRUSTED
from accel_platform.hardware.device_names import with_distinct_names
from predictor.service.dashboard.pages.models import known_models
from predictor.service.dashboard.pages.results import filter_choices
from predictor.service.dashboard.rendering import DashboardSite
from predictor.service.http.query_strings import FilledForm, PageForm

Metric = Literal["latency_ms", "throughput_items_per_s", "memory_peak_mib", "energy_j_per_item"]
METRICS: dict[Metric, tuple[str, bool]] = {
    "latency_ms": ("latency, ms", True),
    "throughput_items_per_s": ("throughput, items/s", False),
    "memory_peak_mib": ("peak memory, MiB", True),
    "energy_j_per_item": ("energy, J per item", True),
}
"""Label of each metric, and True if less is better."""
_MOST_ROWS = 200
_MAX_COMPARED = 80
"""Largest number of cells with ratios, because ratios read the samples of all cells."""


class ComparePageParams(Selection):
    """Query of the compare page: filters, metric and columns."""

    metric: Metric = "latency_ms"
    by: Literal["hardware", "model"] = Field(default="hardware", description="The columns of the table.")


def router(site: DashboardSite) -> APIRouter:
    routes = APIRouter(include_in_schema=False, prefix="/compare")

    @routes.get("")
    def compare(
        request: Request, form: Annotated[FilledForm[ComparePageParams], Depends(PageForm(ComparePageParams))]
    ) -> Response:
        return site.form_page(request, "compare.html", form, lambda query: _content(site, query))

    return routes


def _content(site: DashboardSite, query: ComparePageParams) -> dict[str, Any]:
    models = [row["model_id"] for row in known_models(site)]
    selection = query.filters()
    complete = bool(query.model) or (query.by == "model" and bool(query.hardware))
    cells = read_cells(site.reader, selection) if complete else []
    require_known_unless_found(cells, site.reader, selection)
    comparison = _compare_cells(site, selection, query.by, cells) if complete and len(cells) <= _MAX_COMPARED else None
    cells = [cell for cell in cells if cell[query.metric] is not None]
    columns, rows = _table(with_distinct_runtimes(with_distinct_names(cells)), query)
    return {
        "query": query,
        "complete": complete,
        "comparison": comparison,
        "filters": selection.model_dump(exclude_defaults=True, mode="json"),
        "max_compared": _MAX_COMPARED,
        "columns": columns,
        "rows": rows[:_MOST_ROWS],
        "found": len(rows),
        "metrics": METRICS,
        "less_is_better": METRICS[query.metric][1],
        "choices": {**filter_choices(site), "model": models},
    }


def _compare_cells(site: DashboardSite, selection: Selection, by: str, cells: list[PooledCell]) -> Comparison:
    return compare_side_by_side(site.reader, selection, "model_id" if by == "model" else "hardware", cells=cells)


def _table(cells: list[dict[str, Any]], query: ComparePageParams) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the columns and rows of the comparison.

    A column is a hardware name with its backend and device, or a model. A row is one shape of the other. Each
    provenance and each setup within a row and column has a line of its own.
    """
    lower = METRICS[query.metric][1]
    columns: dict[tuple[Any, ...], dict[str, Any]] = {}
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for cell in cells:
        place = tuple(cell[name] for name in (*PLACE, "backend"))
        column = place if query.by == "hardware" else (cell["model_id"],)
        about = (cell["model_id"],) if query.by == "hardware" else place
        columns.setdefault(column, cell)
        key = (*about, *(cell[name] for name in SHAPE))
        row = rows.setdefault(key, {"cell": cell, "columns": {}, "best": {}})
        row["columns"].setdefault(column, []).append(cell)
    shared = sorted(rows.values(), key=lambda row: -len(row["columns"]))
    for row in shared:
        for provenance in TRUSTED:  # the best of each is marked
            alike = [
                cell[query.metric]
                for found in row["columns"].values()
                for cell in found
                if cell["provenance"] == provenance and cell["verified"] is not False
            ]
            if len(alike) > 1:
                row["best"][provenance] = (min if lower else max)(alike)
    return [{"key": key, "cell": cell} for key, cell in columns.items()], shared
