"""Pages of results: the filtered list, and one result with its raw samples."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from typing import Annotated, Any
from uuid import UUID

import numpy as np
from fastapi import APIRouter, Depends, Request, Response
from pydantic import Field

from accel_platform.analysis.query.filters import require_known_unless_found
from accel_platform.errors import NotFound
from accel_platform.warehouse.layers import SAME_OUTPUT
from accel_platform.warehouse.reader import Reader
from predictor.schemas.queries import PageQuery, ResultsQuery
from predictor.service.dashboard.rendering import DashboardSite
from predictor.service.http.paging import NEWEST_RESULTS, PagedTable
from predictor.service.http.query_strings import FilledForm, PageForm

_BINS = 40
_COLUMNS = """r.result_id, r.run_id, r.model_id, r.hardware, r.device_id, r.device_name, r.mode, r.precision,
    r.batch_size, r.sequence_length, r.processes, coalesce(r.latency_p50_ms, r.latency_mean_ms) AS latency_ms,
    r.throughput_items_per_s, r.memory_peak_mib, r.samples, r.noisy, r.provenance, r.status, r.reason, r.occurred_at"""
_RESULTS = PagedTable("results", _COLUMNS, NEWEST_RESULTS)
_FACTS = """
SELECT j.* EXCLUDE (counts, failed), e.payload
FROM judged_results AS j JOIN events AS e USING (event_id) WHERE j.result_id = ?
"""
_SAMPLES = "SELECT samples_ns FROM events WHERE event_id = ?"
_SUSPICIONS = """
SELECT s.rule, s.verdict, s.evidence, s.confidence, o.overruled_by, o.reason AS overruled_reason
FROM suspicions AS s LEFT JOIN suspicion_overrides AS o USING (result_id, rule)
WHERE s.result_id = ? ORDER BY s.confidence DESC, s.rule
"""
_VERIFICATIONS = f"""
SELECT v.* FROM verifications AS v JOIN results AS r ON {SAME_OUTPUT} WHERE r.result_id = ? LIMIT 5
"""


class ResultsPageParams(ResultsQuery):
    """Filters and page of results."""

    limit: int = Field(default=50, ge=1, le=1000)


def router(site: DashboardSite) -> APIRouter:
    routes = APIRouter(include_in_schema=False, prefix="/results")

    @routes.get("")
    def results(
        request: Request, form: Annotated[FilledForm[ResultsPageParams], Depends(PageForm(ResultsPageParams))]
    ) -> Response:
        return site.form_page(request, "results.html", form, lambda query: _list(site, query))

    @routes.get("/{result_id}")
    def result(request: Request, result_id: UUID) -> Response:
        return site.page(request, "result.html", lambda: _one(site, result_id))

    @routes.get("/{result_id}/samples.csv")
    def samples(result_id: UUID) -> Response:
        text = io.StringIO()
        writer = csv.writer(text)
        writer.writerow(["sample", "latency_ns"])
        writer.writerows(enumerate(_samples(site, result_id), start=1))
        disposition = f'attachment; filename="samples-{result_id}.csv"'
        return Response(text.getvalue(), media_type="text/csv", headers={"content-disposition": disposition})

    return routes


def filter_choices(site: DashboardSite) -> dict[str, list[str]]:
    """Return the filter values of all results."""
    return site.choices("results", "hardware", "backend", "mode", "precision", "provenance", "status")


def newest_results(reader: Reader, condition: str, values: Mapping[str, Any], limit: int) -> list[dict[str, Any]]:
    """Return at most `limit` results (as `r`) that meet a condition, as `parts.results` shows them."""
    return _RESULTS.page(reader, PageQuery(limit=limit), condition, values)[0]


def _list(site: DashboardSite, query: ResultsPageParams) -> dict[str, Any]:
    rows, more = _RESULTS.page(site.reader, query, *query.where())
    require_known_unless_found(rows, site.reader, query)
    return {"query": query, "results": rows, "more": more, "choices": filter_choices(site)}


def _one(site: DashboardSite, result_id: UUID) -> dict[str, Any]:
    found = site.reader.rows(_FACTS, (result_id,))
    if not found:
        raise NotFound(f"No result has the id {result_id}: the list of results shows all there are")
    [row] = found
    payload = json.loads(row.pop("payload"))
    samples_ms = [ns / 1e6 for ns in _samples(site, result_id)]
    return {
        "result": row,
        "environment": payload.get("environment") or {},
        "original": payload.get("original") or {},
        "noisy_reason": payload.get("noisy_reason"),
        "samples": samples_ms,
        "bins": _bins(samples_ms),
        "suspicions": site.reader.rows(_SUSPICIONS, (result_id,)),
        "verifications": site.reader.rows(_VERIFICATIONS, (result_id,)),
    }


def _samples(site: DashboardSite, result_id: UUID) -> list[int]:
    rows = site.reader.rows(_SAMPLES, (result_id,))
    return rows[0]["samples_ns"] or [] if rows else []


def _bins(samples_ms: list[float]) -> list[dict[str, float]]:
    """Return a histogram up to the 99th percentile; larger samples count in the last bin."""
    if len(samples_ms) < 2:
        return []
    most = float(np.percentile(samples_ms, 99))
    counts, edges = np.histogram(np.minimum(samples_ms, most), bins=min(_BINS, len(samples_ms)))
    top = counts.max()
    return [
        {"low": float(edges[i]), "high": float(edges[i + 1]), "count": int(n), "share": float(n / top)}
        for i, n in enumerate(counts)
    ]
