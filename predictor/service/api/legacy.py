"""Deprecated routes of the API that this service replaced, under the column names of its tables.

`/hardware`, `/models` and `POST /query` keep their paths with new answers; `POST /performance` became `POST /results`.
Memory is in MiB under names that end in `_mb`, as in those tables; unknown is null where they wrote 0.
"""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from accel_platform.analysis.query.cells import read_cells
from accel_platform.analysis.query.filters import (
    Selection,
    canonical_model_id,
    require_known,
    require_known_unless_found,
)
from accel_platform.errors import NotFound
from accel_platform.warehouse.reader import Reader
from predictor.advisor.advisor import Advisor
from predictor.schemas.queries import MatrixQuery, ResultsQuery
from predictor.schemas.rows import Page, SnapshotId
from predictor.service.http.conditional import NOT_MODIFIED, table_response
from predictor.service.http.paging import BY_MATRIX_CELL, NEWEST_RESULTS, PagedTable
from predictor.service.http.problems import problem_responses

_PERFORMANCE = PagedTable(
    "results",
    """r.result_id, r.model_id AS model_name, r.model_family, r.hardware AS hardware_type, r.device_name,
    r.batch_size, r.precision, r.sequence_length, r.mode AS test_case, r.latency_mean_ms AS average_latency_ms,
    r.latency_p50_ms AS median_latency_ms, r.throughput_items_per_s AS throughput_items_per_second,
    r.memory_peak_mib AS memory_peak_mb, r.status, r.reason AS error_message, r.provenance,
    coalesce(r.occurred_at, timezone('UTC', r.occurred_local)) AS test_timestamp, r.source_path AS source_file""",
    NEWEST_RESULTS,
    row_id="result_id",
)
_COMPATIBILITY = PagedTable(
    "compat_matrix",
    """r.model_id AS model_name, r.model_family, r.hardware AS hardware_type, r.device_name, r.mode AS test_case,
    r.state = 'compatible' AS is_compatible, r.rating AS performance_rating, r.latency_p50_ms AS median_latency_ms,
    r.batch_size, r.reason AS error_message""",
    BY_MATRIX_CELL,
    descending=False,
)


class Performance(BaseModel):
    """A row of `performance_results`."""

    result_id: UUID
    model_name: str = Field(description="Model, by its id.")
    model_family: str
    hardware_type: str = Field(description="Hardware name: selects a runtime and a device.")
    device_name: str | None
    batch_size: int | None
    precision: str | None
    sequence_length: int | None
    test_case: str = Field(description="inference, generation or training.")
    average_latency_ms: float | None = Field(description="Mean time of one batch, in ms; null where unknown.")
    median_latency_ms: float | None = Field(description="Median time of one batch, in ms; null below 11 samples.")
    throughput_items_per_second: float | None = Field(
        description="Items per second by the mean time, of all processes; null where unknown."
    )
    memory_peak_mb: float | None = Field(
        description="Peak resident memory of the measuring process, in MiB; null where another cell may hide it."
    )
    status: str
    error_message: str | None = Field(description="Why it failed or is unavailable; null where nothing says so.")
    provenance: str
    test_timestamp: datetime | None = Field(
        description="When it happened; a local time without a zone is taken for UTC, and null is unknown."
    )
    source_file: str | None = Field(description="File that it comes from; null where it comes from none.")


class PerformancePage(Page):
    """Results, newest first."""

    performance: list[Performance] = Field(description="Results of this page, newest first.")


class HardwareFigures(BaseModel):
    """One cell of a model on one device: the median over its results of one runtime and provenance."""

    hardware_type: str = Field(description="Hardware name: selects a runtime and a device.")
    device_name: str | None
    backend: str = Field(description="Runtime or engine: `vllm` and `llama.cpp` on one GPU are two cells.")
    software: list[str] | None = Field(description="Versions and settings that an import states; null without any.")
    batch_size: int | None
    precision: str | None
    sequence_length: int | None
    test_case: str = Field(description="inference, generation or training.")
    median_latency_ms: float | None = Field(
        description="Time of one batch in ms, the median over the cell's results; null where unknown."
    )
    throughput_items_per_second: float | None = Field(
        description="Items per second, the median over the cell's results; null where unknown."
    )
    memory_peak_mb: float | None = Field(
        description="Peak memory in MiB, the largest of the cell's results; null where unknown."
    )
    provenance: str
    results: int


class ModelComparison(BaseModel):
    """A model on all hardware with figures of it, by shape."""

    model_name: str = Field(description="Model, by its id.")
    comparison: list[HardwareFigures] = Field(description="One per device, runtime, shape and provenance.")
    snapshot_id: SnapshotId


class LegacyCompatibility(BaseModel):
    """A row of `hardware_compatibility`."""

    model_name: str = Field(description="Model, by its id.")
    model_family: str | None
    hardware_type: str = Field(description="Hardware name: selects a runtime and a device.")
    device_name: str | None
    test_case: str = Field(description="inference, generation or training.")
    is_compatible: bool = Field(description="Whether the newest attempt at some shape worked.")
    performance_rating: str | None = Field(
        description="high (at least 0.8 of the best device's speed), medium (0.4) or low; null without another device."
    )
    median_latency_ms: float | None = Field(
        description="Median over the results of the shape shown, in ms; null where unknown."
    )
    batch_size: int | None
    error_message: str | None = Field(description="Newest problem; null where there is none.")


class CompatibilityPage(Page):
    """Compatibility by model and hardware."""

    compatibility: list[LegacyCompatibility] = Field(
        description="Cells of this page, by model, hardware, device and mode."
    )


def router(advisor: Advisor) -> APIRouter:
    routes = APIRouter(tags=["old routes"], deprecated=True)
    reader = advisor.reader

    @routes.get(
        "/performance",
        name="legacy_performance",
        response_model=PerformancePage,
        responses=problem_responses(404, 422, 503) | NOT_MODIFIED,
    )
    def performance(request: Request, query: Annotated[ResultsQuery, Query()]) -> Response:
        """List `GET /results` under the old names."""

        def read(tables: Reader) -> dict[str, Any]:
            rows, more = _PERFORMANCE.page(tables, query, *query.where())
            require_known_unless_found(rows, tables, query)
            return {"performance": rows, "next_cursor": more}

        return table_response(reader, request, read)

    @routes.get(
        "/performance/comparison/{model:name}",
        name="legacy_comparison",
        response_model=ModelComparison,
        responses=problem_responses(404, 422, 503) | NOT_MODIFIED,
    )
    def comparison(request: Request, model: str) -> Response:
        """Return a model's figures on all hardware; `GET /compare` says more."""

        def read(tables: Reader) -> dict[str, Any]:
            cells = read_cells(tables, Selection(model=(model,)))
            if not cells:
                require_known(tables, Selection(model=(model,)))
                raise NotFound(f"There are no figures of a model {model!r}: GET /models has those that there are.")
            figures = [
                {
                    "hardware_type": cell["hardware"],
                    "device_name": cell["device_name"],
                    "backend": cell["backend"],
                    "software": cell["software"],
                    "batch_size": cell["batch_size"],
                    "precision": cell["precision"],
                    "sequence_length": cell["sequence_length"],
                    "test_case": cell["mode"],
                    "median_latency_ms": cell["latency_ms"],
                    "throughput_items_per_second": cell["throughput_items_per_s"],
                    "memory_peak_mb": cell["memory_peak_mib"],
                    "provenance": cell["provenance"],
                    "results": cell["results"],
                }
                for cell in cells
            ]
            return {"model_name": canonical_model_id(model), "comparison": figures}

        return table_response(reader, request, read)

    @routes.get(
        "/compatibility",
        name="legacy_compatibility",
        response_model=CompatibilityPage,
        responses=problem_responses(404, 422, 503) | NOT_MODIFIED,
    )
    def compatibility(request: Request, query: Annotated[MatrixQuery, Query()]) -> Response:
        """List `GET /matrix` under the old names."""

        def read(tables: Reader) -> dict[str, Any]:
            rows, more = _COMPATIBILITY.page(tables, query, *query.where())
            require_known_unless_found(rows, tables, query.selection())
            return {"compatibility": rows, "next_cursor": more}

        return table_response(reader, request, read)

    return routes
