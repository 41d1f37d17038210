"""Page of imported results: suspicions, import outcomes and quarantine."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from accel_platform.analysis.summaries.suspicions import count_by_provenance, count_by_rule
from predictor.service.dashboard.rendering import DashboardSite
from predictor.service.http.query_strings import FormQuery

_SHOWN = 50
_LEDGER = """
SELECT format, outcome, count(*) AS documents, sum(records)::BIGINT AS records, sum(failures)::BIGINT AS failures,
    sum(suspects)::BIGINT AS suspects
FROM import_ledger GROUP BY format, outcome ORDER BY records DESC, documents DESC, format, outcome
"""
_QUARANTINE = """
SELECT event_id, rule, reason, source_path, pointer, occurred_at FROM quarantine
WHERE $rule IS NULL OR rule = $rule ORDER BY event_id DESC LIMIT $limit
"""
_SUSPECTED = """
SELECT s.result_id, s.rule, s.verdict, s.evidence, s.confidence, r.model_id, r.hardware, r.source_path,
    o.rule IS NOT NULL AS overruled
FROM suspicions AS s JOIN results AS r USING (result_id)
LEFT JOIN (SELECT DISTINCT result_id, rule FROM suspicion_overrides) AS o USING (result_id, rule)
WHERE s.rule = $rule ORDER BY s.confidence DESC, s.result_id LIMIT $limit
"""


class HistoryPageParams(BaseModel):
    """Query of the history page: the rule whose suspicions or quarantined records are listed."""

    model_config = ConfigDict(extra="forbid")
    rule: str | None = Field(default=None, max_length=200)
    quarantine: str | None = Field(default=None, max_length=200)


def router(site: DashboardSite) -> APIRouter:
    routes = APIRouter(include_in_schema=False, prefix="/history")

    @routes.get("")
    def history(
        request: Request, query: Annotated[HistoryPageParams, Depends(FormQuery(HistoryPageParams))]
    ) -> Response:
        return site.page(request, "history.html", lambda: _content(site, query))

    return routes


def _content(site: DashboardSite, query: HistoryPageParams) -> dict[str, Any]:
    reader = site.reader
    summary = site.cached(
        "history",
        lambda: {
            "provenance": count_by_provenance(reader),
            "verdicts": count_by_rule(reader),
            "ledger": reader.rows(_LEDGER),
            "rules": reader.rows(
                "SELECT rule, count(*) AS records FROM quarantine GROUP BY rule ORDER BY records DESC, rule"
            ),
        },
    )
    suspected = reader.rows(_SUSPECTED, {"rule": query.rule, "limit": _SHOWN}) if query.rule else []
    quarantine = reader.rows(_QUARANTINE, {"rule": query.quarantine, "limit": _SHOWN})
    return {**summary, "query": query, "suspected": suspected, "quarantine": quarantine, "shown": _SHOWN}
