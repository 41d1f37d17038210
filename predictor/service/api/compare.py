"""Routes for comparisons: side by side, over time, and between two snapshots."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from accel_platform.analysis.query.filters import Selection
from accel_platform.analysis.regressions.thresholds import MIN_CHANGE_PERCENT
from accel_platform.analysis.regressions.trend import Metric, Point, Shift, trends
from accel_platform.analysis.summaries.comparison import By, compare_side_by_side
from accel_platform.warehouse.reader import Reader
from predictor.advisor.advisor import Advisor
from predictor.schemas.rows import SnapshotId
from predictor.service.background.past_tables import PastTables
from predictor.service.http.conditional import NOT_MODIFIED, table_response
from predictor.service.http.problems import problem_responses

Models = Annotated[tuple[str, ...], Field(min_length=1, max_length=50, description="Keys, ids or families.")]
Ref = Annotated[str, Field(min_length=1, max_length=200)]
Rows = list[dict[str, Any]]


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


class SideBySide(BaseModel):
    """Figures of equal shapes; ratios are of latencies, to those of the first name."""

    snapshot_id: SnapshotId
    by: By = Field(description="What is compared: hardware names of one model, or models on one of them (model_id).")
    names: list[str] = Field(description="What is compared, the first of them with the others.")
    rows: Rows = Field(description="Cells of each shape together: `backend`, `software`, figures, spread, provenance,"
                       " evidence; `ratio` or `note` why there is none.")  # fmt: skip
    unpaired: Rows = Field(description="Cells of shapes that one name alone was measured at.")
    lacking: dict[str, str] = Field(description="Names without any figure, and the command that would measure one.")


class Changed(BaseModel):
    """Cells of two snapshots: those with a result before and another since in rows, the others counted."""

    before: str = Field(description="Id of the snapshot.")
    after: str = Field(description="Id of the later snapshot.")
    rows: Rows = Field(description="With a `verdict`: slower, faster, fails now, works now, undecided or same.")
    only_before: int = Field(
        description="Number of selected cells that have a result at the earlier snapshot, and none since that compares"
        " with it."
    )
    only_after: int = Field(description="Number of selected cells whose first result came since.")


class OneTrend(BaseModel):
    """One cell under one fingerprint, oldest point first."""

    series: dict[str, Any] = Field(
        description="What all points share: model, configuration, device, fingerprint and provenance."
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

    trends: list[OneTrend] = Field(description="One per cell, device and fingerprint, those with most points first.")
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
        """Return a figure over time: a series per cell, device and fingerprint, its shifts, and the commits around."""

        def read(tables: Reader) -> dict[str, Any]:
            found = trends(tables, query.filters(), query.metric, min_change_percent=query.min_change_percent)
            found.sort(key=lambda trend: -len(trend.points))
            documents = [series.document() for series in found[: query.limit]]
            return {"trends": documents, "series": len(found)}

        return table_response(reader, request, read)

    return routes
