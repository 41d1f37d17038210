"""Pages of knowledge packs: the list, and the card of one."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from accel_platform.events import EventLog
from accel_platform.knowledge.packs import PackState, pack_states, state_of
from predictor.service.dashboard.rendering import DashboardSite


def router(site: DashboardSite) -> APIRouter:
    routes = APIRouter(include_in_schema=False, prefix="/knowledge")

    @routes.get("")
    def packs(request: Request) -> Response:
        return site.page(request, "knowledge.html", lambda: {"packs": _states(site)})

    @routes.get("/{name}")
    def pack(request: Request, name: str) -> Response:
        return site.page(request, "knowledge_pack.html", lambda: _one(site, name))

    return routes


def _states(site: DashboardSite) -> list[PackState]:
    return site.cached("knowledge", lambda: pack_states(EventLog.open(site.settings)))


def _one(site: DashboardSite, name: str) -> dict[str, Any]:
    return {"pack": state_of(_states(site), name)}
