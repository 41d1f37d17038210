"""Routes for comparisons: side by side, over time, and between two snapshots."""

from __future__ import annotations

from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from accel_platform.analysis.query.filters import Selection
from accel_platform.analysis.regressions.snapshot_comparison import Verdict
from accel_platform.analysis.regressions.thresholds import MIN_CHANGE_PERCENT
from accel_platform.analysis.regressions.trend import Metric, Point, Shift, trends
from accel_platform.analysis.summaries.comparison import By, compare_side_by_side
from accel_platform.events.types import Provenance
from accel_platform.warehouse.reader import Reader
from predictor.advisor.advisor import Advisor
from predictor.schemas.rows import SnapshotId
from predictor.service.background.past_tables import PastTables
from predictor.service.http.conditional import NOT_MODIFIED, table_response
from predictor.service.http.problems import problem_responses

Models = Annotated[tuple[str, ...], Field(min_length=1, max_length=50, description="Keys, ids or families.")]
Ref = Annotated[str, Field(min_length=1, max_length=200)]


class CompareQuery(Selection):
    """Models or hardware to compare."""

    model: Models
    by: By = Field(default="hardware", description="One model over hardware names, or models on one of them.")


class ChangesQuery(Selection):
    """Cells and snapshots to compare."""

    model: Models
    before: Ref = Field(description="A snapshot's name or id, or a date.")
    after: Ref | None = Field(default=None, description="Default: what is in service.")
    min_change_percent: float = Field(default=MIN_CHANGE_PERCENT, ge=1, le=1000)


class TrendQuery(Selection):
    """Series of one figure."""

    model: Models
    metric: Metric = "latency_ms"
    min_change_percent: float = Field(default=MIN_CHANGE_PERCENT, ge=1, le=1000)
    limit: int = Field(default=50, ge=1, le=500, description="Series, those with most points first.")


class ComparableShape(BaseModel):
    """Configuration and device of a figure. Figures of one model and mode are comparable where it is equal."""

    model_id: str
    hardware: str
    choice: str | None
    device_id: str | None
    mode: str
    precision: str | None
    batch_size: int | None
    sequence_length: int | None
    image_size: float | None
    output_tokens: int | None
    processes: int | None
    provenance: Provenance


class FiguresOfCell(ComparableShape):
    """A cell: what its results have in common, and the medians of their figures."""

    backend: str | None
    setup: str | None = Field(description="Fingerprint of an import's setup; null for own measurements.")
    threads: int | None
    verified: bool | None = Field(description="null where outputs were never compared, as with imports.")
    model_family: str
    device_name: str | None
    software: list[str] | None = Field(description="Versions and settings that an import states; null without any.")
    results: int
    runs: int = Field(description="Different runs that the results are of.")
    fingerprints: int = Field(description="Different devices, drivers and versions that the results are of.")
    samples: int | None
    noisy: bool | None
    disturbed: bool = Field(description="Whether other processes disturbed all results.")
    published: bool = Field(description="Whether all results are of knowledge packs.")
    latency_ms: float | None = Field(description="Time of one batch, the median over the results.")
    latency_low_ms: float | None = Field(description="Shortest of the results' latencies.")
    latency_high_ms: float | None = Field(description="Longest of the results' latencies.")
    latency_std_ms: float | None
    throughput_items_per_s: float | None = Field(description="Items per second, the median over the results.")
    throughput_low_items_per_s: float | None = Field(description="Least of the results' throughputs.")
    throughput_high_items_per_s: float | None = Field(description="Greatest of the results' throughputs.")
    throughput_tokens_per_s: float | None
    memory_peak_mib: float | None = Field(description="Largest of the results' peak memories.")
    memory_peak_low_mib: float | None = Field(description="Least of the results' peak memories.")
    memory_device_peak_mib: float | None
    energy_j_per_item: float | None
    load_ms: float | None
    first_ms: float | None
    newest_at: datetime | None = Field(description="Time of the newest result; null where unknown.")
    evidence: list[UUID] | None = Field(description="Ids of the newest results, at most 20.")


class CellBesideOthers(FiguresOfCell):
    """A cell with its ratio to its baseline, a cell of the first name."""

    baseline: bool = Field(description="Whether it is its own baseline.")
    baseline_device_id: str | None = Field(description="Device of its baseline.")
    baseline_backend: str | None = Field(description="Runtime of its baseline.")
    ratio: float | None = Field(
        description="Latency over that of the baseline; null for a baseline, and where `note` says why."
    )
    ratio_low: float | None = Field(description="Lower limit of the ratio.")
    ratio_high: float | None = Field(description="Upper limit of the ratio.")
    interval_of: str | None = Field(description="What the limits are of: processes, or samples alone.")
    differs: list[str] = Field(description="What differs from the baseline's device, threads and versions, in words.")
    note: str | None = Field(description="Why there is no ratio, or why the figure is uncertain.")


class ChangeOfCell(ComparableShape):
    """A cell with results before and since."""

    runtime: str | None = Field(description="In words, where the hardware name has several; null for own measurements.")
    verdict: Verdict = Field(description="What became of it; undecided where no test can tell.")
    before_ms: float | None
    after_ms: float | None
    ratio: float | None = Field(description="Median after over before; null where one side has only failures.")
    change_percent: float | None
    noise_percent: float | None
    p_value: float | None
    processes_before: int
    processes_after: int = Field(description="Number of processes, or of results where it was not measured here.")
    reason: str | None
    evidence: list[UUID]


class SideBySide(BaseModel):
    """Figures of equal shapes; ratios are of latencies, to those of the first name."""

    snapshot_id: SnapshotId
    by: By = Field(description="What is compared: hardware names of one model, or models on one of them (model_id).")
    names: list[str] = Field(description="What is compared, the first of them with the others.")
    rows: list[CellBesideOthers] = Field(description="Cells of each shape together.")
    unpaired: list[FiguresOfCell] = Field(description="Cells of shapes that one name alone was measured at.")
    lacking: dict[str, str] = Field(description="Names without any figure, and the command that would measure one.")


class Changed(BaseModel):
    """Cells of two snapshots: rows for those with a result before and another since, counts of all others."""

    before: str = Field(description="Id of the snapshot.")
    after: str = Field(description="Id of the later snapshot.")
    rows: list[ChangeOfCell] = Field(description="Cells with results before and since.")
    only_before: int = Field(
        description="Number of selected cells that have a result at the earlier snapshot, and none since that compares"
        " with it."
    )
    only_after: int = Field(description="Number of selected cells whose first result came since.")


class OneTrend(BaseModel):
    """One cell under one fingerprint on one branch, oldest point first."""

    series: dict[str, Any] = Field(
        description="What all points share: model, configuration, device, fingerprint, branch and provenance."
    )
    metric: Metric = Field(description="Figure that the points are of; its name has the unit.")
    median: float | None = Field(description="Median of all points, in the metric's unit; null without points.")
    spread_percent: float | None = Field(
        description="Coefficient of variation of the points since the last shift, in percent; null for fewer than two."
    )
    points: list[Point] = Field(description="Results whose time is known, oldest first.")
    shifts: list[Shift] = Field(description="Lasting changes of the level, oldest first.")
    undated: int = Field(description="Results that are in no point, for nobody knows when they occurred.")


class Trends(BaseModel):
    """Series of one figure."""

    trends: list[OneTrend] = Field(description="One per cell, fingerprint and branch, those with most points first.")
    series: int = Field(description="How many there are, also beyond the limit.")
    snapshot_id: SnapshotId


def router(advisor: Advisor, past: PastTables) -> APIRouter:
    routes = APIRouter(tags=["comparing"])
    reader = advisor.reader
    problems = problem_responses(400, 404, 422, 503)

    @routes.get("/compare", response_model=SideBySide, responses=problems | NOT_MODIFIED)
    def compare(request: Request, query: Annotated[CompareQuery, Query()]) -> Response:
        """Compare equal shapes side by side: one model over its hardware, or several models on one hardware name.

        Nothing is averaged over unlike shapes, runtimes, devices or provenance.
        """
        return table_response(
            reader, request, lambda tables: asdict(compare_side_by_side(tables, query.filters(), query.by))
        )

    @routes.get("/changes", responses=problems)
    def changes(query: Annotated[ChangesQuery, Query()]) -> Changed:
        """List cells that got slower, faster or broke between two snapshots.

        Tables of a past snapshot may have to be built, which takes seconds; other clients get 503 meanwhile.
        """
        found = past.compare(query.before, query.after, query.filters(), query.min_change_percent)
        return Changed.model_validate(asdict(found))

    @routes.get("/trend", response_model=Trends, responses=problems | NOT_MODIFIED)
    def trend(request: Request, query: Annotated[TrendQuery, Query()]) -> Response:
        """Return a figure over time: a series per cell, fingerprint and branch, its shifts, and the commits around."""

        def read(tables: Reader) -> dict[str, Any]:
            found = trends(tables, query.filters(), query.metric, min_change_percent=query.min_change_percent)
            found.sort(key=lambda trend: -len(trend.points))
            documents = [series.document() for series in found[: query.limit]]
            return {"trends": documents, "series": len(found)}

        return table_response(reader, request, read)

    return routes
