"""Pages of hardware: the hosts' devices, the spec sheet, and one device with its results."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from accel_platform.errors import NotFound
from accel_platform.hardware.catalog import DeviceSpec, catalog, cpu_spec, find_spec
from accel_platform.hardware.device_names import distinct_name, shared_names, with_distinct_names
from predictor.service.dashboard.rendering import DashboardSite
from predictor.service.http.query_strings import FilledForm, FormQuery, PageForm

_SEEN = """
SELECT d.*, h.hostname, h.os, h.cpu_model FROM devices AS d LEFT JOIN hosts AS h USING (host_id)
ORDER BY h.hostname, d.available DESC, d.hardware, d.choice
"""
# Hardware named in results, detected on a host or not.
_MEASURED = """
SELECT r.hardware, r.device_id, any_value(r.device_name) AS device_name, count(*) AS results,
    count(DISTINCT r.model_id) AS models, count(*) FILTER (WHERE r.failed) AS failed,
    list_sort(list(DISTINCT r.provenance)) AS provenance, max(r.occurred_at) AS newest_at
FROM judged_results AS r GROUP BY r.hardware, r.device_id ORDER BY results DESC, r.hardware, r.device_id
"""
_MODELS = """
SELECT * EXCLUDE (evidence), len(evidence) AS evidence FROM compat_matrix
WHERE hardware = $hardware AND device_id IS NOT DISTINCT FROM $device
ORDER BY relative_speed DESC NULLS LAST, model_id LIMIT 200
"""


class SheetQuery(BaseModel):
    """Filters of the spec sheet."""

    model_config = ConfigDict(extra="forbid")
    q: str | None = Field(default=None, max_length=200)
    kind: Literal["gpu", "cpu", "npu"] | None = None


class DeviceQuery(BaseModel):
    """Query of a device page. None means results without a device, else the device with most results."""

    model_config = ConfigDict(extra="forbid")
    device: str | None = Field(default=None, max_length=300)


def router(site: DashboardSite) -> APIRouter:
    routes = APIRouter(include_in_schema=False, prefix="/hardware")

    @routes.get("")
    def hardware(request: Request, form: Annotated[FilledForm[SheetQuery], Depends(PageForm(SheetQuery))]) -> Response:
        return site.form_page(request, "hardware.html", form, lambda query: _list(site, query))

    @routes.get("/{name}")
    def device(request: Request, name: str, query: Annotated[DeviceQuery, Depends(FormQuery(DeviceQuery))]) -> Response:
        return site.page(request, "device.html", lambda: _one(site, name, query.device))

    return routes


def _list(site: DashboardSite, query: SheetQuery) -> dict[str, Any]:
    wanted = (query.q or "").casefold()
    sheet = [
        spec
        for spec in catalog()
        if wanted in " ".join((spec.name, spec.vendor or "", *spec.aliases, spec.chip or "")).casefold()
        and query.kind in (None, spec.kind)
    ]
    hosts: dict[str, list[dict[str, Any]]] = {}
    for row in _seen(site):
        hosts.setdefault(row["host_id"], []).append(row)
    return {"query": query, "hosts": hosts, "measured": _measured(site), "sheet": sheet, "kinds": ("gpu", "cpu", "npu")}


def _seen(site: DashboardSite) -> list[dict[str, Any]]:
    """Return every device as its host last saw it, with host names that tell the hosts apart."""
    return site.cached(
        "devices", lambda: with_distinct_names(site.reader.rows(_SEEN), name="hostname", device_id="host_id")
    )


def _measured(site: DashboardSite) -> list[dict[str, Any]]:
    return site.cached("measured hardware", lambda: site.reader.rows(_MEASURED))


def _one(site: DashboardSite, name: str, device_id: str | None) -> dict[str, Any]:
    hosts = [row for row in _seen(site) if row["hardware"] == name]
    under = [row for row in _measured(site) if row["hardware"] == name]
    names = {row["device_id"]: row["device_name"] for row in under}
    names = {row["device_id"]: row["name"] for row in hosts if row["available"]} | names
    if not names or (device_id is not None and device_id not in names):
        known = f"device {device_id!r}" if device_id else "device or result"
        raise NotFound(f"There is no {known} under the hardware name {name!r}: the page of all hardware shows what is")
    if device_id not in names:
        device_id = next(iter([row["device_id"] for row in under] or names))
    seen = [
        {**row, "runtime_versions": json.loads(row["runtime_versions"] or "{}")}
        for row in hosts
        if row["device_id"] == device_id
    ]
    measured = [row for row in under if row["device_id"] == device_id]
    shared = shared_names((label, one) for one, label in names.items())
    called = (seen[0]["name"] if seen else None) or (measured[0]["device_name"] if measured else None)
    return {
        "hardware": name,
        "device_id": device_id,
        "others": [(one, distinct_name(label, one, shared)) for one, label in names.items() if one != device_id],
        "called": called,
        "seen": seen,
        "measured": measured,
        "spec": _spec(called, seen),
        "models": site.reader.rows(_MODELS, {"hardware": name, "device": device_id}),
    }


def _spec(called: str | None, seen: list[dict[str, Any]]) -> DeviceSpec | None:
    """Return the spec of a device from the sheet, or of a processor as its host detected it; else None."""
    found = find_spec(called)
    if found is None and seen and seen[0]["vector_bits"]:
        row = seen[0]
        fields = {name: row[name] for name in ("cores", "clock_max_mhz", "vector_bits", "memory_mib")}
        found = cpu_spec(row["name"], **fields)
    return found
