"""Overview page: totals, new results, regressions, coverage and quarantine, cached per snapshot."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from accel_platform.knowledge.cards import SOURCE_PREFIX
from accel_platform.reports.regressions import with_cells
from accel_platform.warehouse.reader import Reader
from predictor.service.dashboard.rendering import DashboardSite

_TOTALS = """
SELECT (SELECT count(*) FROM results) AS results, (SELECT count(*) FROM events) AS events,
    (SELECT count(*) FROM models WHERE results > 0) AS models, (SELECT count(*) FROM runs) AS runs,
    (SELECT count(DISTINCT device_id) FROM devices WHERE available) AS devices,
    (SELECT count(*) FROM regressions WHERE state = 'open' AND direction = 'regressed') AS regressed,
    (SELECT count(*) FROM regressions WHERE state = 'open' AND direction = 'improved') AS improved,
    (SELECT count(*) FROM quarantine) AS quarantined
"""
# Published figures are counted apart, because they far outnumber the log's own.
_ORIGINS = f"""
SELECT CASE WHEN starts_with(source, '{SOURCE_PREFIX}') THEN 'published' ELSE provenance END AS origin,
    count(*) AS results, count(*) FILTER (WHERE failed) AS failed
FROM judged_results GROUP BY origin ORDER BY origin = 'published', results DESC, origin
"""
_DAYS = f"""
SELECT recorded_at::DATE AS day, count(*) AS results FROM results
WHERE NOT starts_with(source, '{SOURCE_PREFIX}') GROUP BY day ORDER BY day DESC LIMIT 30
"""
_RUNS = """
SELECT run_id, kind, source, status, started_at, finished_at, results, cells_ok, cells_failed, "commit" FROM runs
ORDER BY coalesce(started_at, finished_at) DESC NULLS LAST, run_id DESC LIMIT 8
"""
_IMPORTED = """
SELECT event_id, parse_filename(source_path) AS file, format, outcome, records, occurred_at FROM import_ledger
WHERE records > 0 ORDER BY occurred_at DESC, event_id DESC LIMIT 6
"""
_COVERAGE = """
SELECT hardware, count(DISTINCT model_id) FILTER (WHERE state = 'compatible') AS compatible,
    count(DISTINCT model_id) FILTER (WHERE state = 'failed') AS failed, count(DISTINCT model_id) AS models
FROM compat_matrix WHERE mode = 'inference' GROUP BY hardware ORDER BY compatible DESC, hardware
"""
_OPEN = """
SELECT * FROM regressions WHERE state = 'open'
ORDER BY direction = 'regressed' DESC, abs(change_percent) DESC NULLS FIRST, regression_id LIMIT 6
"""
_QUARANTINE = "SELECT rule, count(*) AS records FROM quarantine GROUP BY rule ORDER BY records DESC, rule LIMIT 6"
_ARCHITECTURES = """
SELECT hardware, count(*) FILTER (WHERE status = 'ok') AS ok, count(*) AS checked FROM coverage
GROUP BY hardware ORDER BY hardware
"""


def router(site: DashboardSite) -> APIRouter:
    routes = APIRouter(include_in_schema=False)

    @routes.get("/")
    @routes.get("")
    def overview(request: Request) -> Response:
        return site.page(request, "overview.html", lambda: site.cached("overview", lambda: _content(site.reader)))

    return routes


def _content(reader: Reader) -> dict[str, Any]:
    [totals] = reader.rows(_TOTALS)
    days = reader.rows(_DAYS)[::-1]
    origins = reader.rows(_ORIGINS)
    return {
        "totals": totals,
        "origins": origins,
        "own": sum(row["results"] for row in origins if row["origin"] != "published"),
        "days": days,
        "runs": reader.rows(_RUNS),
        "imported": reader.rows(_IMPORTED),
        "coverage": reader.rows(_COVERAGE),
        "open": with_cells(reader.rows(_OPEN)),
        "quarantine": reader.rows(_QUARANTINE),
        "architectures": reader.rows(_ARCHITECTURES),
    }
