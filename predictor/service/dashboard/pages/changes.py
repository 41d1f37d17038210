"""Page of the changes between two snapshots."""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any, get_args

from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field

from accel_platform.analysis.query.filters import Selection
from accel_platform.analysis.regressions.snapshot_comparison import Verdict
from accel_platform.analysis.regressions.thresholds import MIN_CHANGE_PERCENT
from accel_platform.events import EventLog
from accel_platform.events.snapshots import read_snapshot_events
from accel_platform.events.types import SnapshotTaken
from predictor.service.background.past_tables import PastTables
from predictor.service.dashboard.pages.models import known_models
from predictor.service.dashboard.pages.results import filter_choices
from predictor.service.dashboard.rendering import DashboardSite
from predictor.service.http.query_strings import FilledForm, PageForm

_MOST_ROWS = 200
_ORDER: tuple[Verdict, ...] = ("fails now", "slower", "works now", "faster", "undecided", "same")
assert {*_ORDER} == {*get_args(Verdict)}


class ChangesPageParams(Selection):
    """Query of the changes page: cells, snapshots and verdict."""

    before: str | None = Field(default=None, max_length=200)
    after: str | None = Field(default=None, max_length=200)
    min_change_percent: float = Field(default=MIN_CHANGE_PERCENT, ge=1, le=1000)
    verdict: Verdict | None = None


def router(site: DashboardSite, past: PastTables) -> APIRouter:
    routes = APIRouter(include_in_schema=False, prefix="/compare/changes")

    @routes.get("")
    def changed(
        request: Request, form: Annotated[FilledForm[ChangesPageParams], Depends(PageForm(ChangesPageParams))]
    ) -> Response:
        return site.form_page(request, "changes.html", form, lambda query: _content(site, past, query))

    return routes


def _content(site: DashboardSite, past: PastTables, query: ChangesPageParams) -> dict[str, Any]:
    snapshots = [
        e.payload for e in read_snapshot_events(EventLog.open(site.settings)) if isinstance(e.payload, SnapshotTaken)
    ]
    content: dict[str, Any] = {
        "query": query,
        "snapshots": [one.name for one in snapshots[::-1] if one.name],
        "verdicts": _ORDER,
        "choices": {**filter_choices(site), "model": [row["model_id"] for row in known_models(site)]},
        "changed": None,
    }
    if query.before is None or not query.model:
        return content
    found = past.compare(query.before, query.after, query.filters(), query.min_change_percent)
    rows = [row for row in found.rows if query.verdict in (None, row["verdict"])]
    rows.sort(key=lambda row: (_ORDER.index(row["verdict"]), -abs(row["change_percent"] or 0)))
    counts = Counter(row["verdict"] for row in found.rows)
    return {
        **content,
        "changed": found,
        "counts": {verdict: counts[verdict] for verdict in _ORDER},
        "rows": rows[:_MOST_ROWS],
        "found": len(rows),
    }
