"""Pages of requested benchmarks: the list with a form to ask for one, and one request that can be taken back."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Annotated, Any, Literal
from urllib.parse import parse_qsl
from uuid import UUID, uuid4

from fastapi import APIRouter, Depends, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import RedirectResponse
from pydantic import BaseModel, ConfigDict, Field

from accel_platform.backends.registry import RUNTIMES
from accel_platform.bench.requests.lifecycle import REQUEST_PREFIX, State, build_request_events, close
from accel_platform.bench.requests.lifecycle import Request as QueuedRequest
from accel_platform.errors import Conflict, InvalidInput, NotFound
from accel_platform.events.types import Mode
from accel_platform.settings import Settings
from predictor.service.background.intake import request_id as request_id_of
from predictor.service.background.intake import store_once
from predictor.service.background.request_lookup import RequestLookup
from predictor.service.dashboard.pages.models import known_models
from predictor.service.dashboard.rendering import DashboardSite
from predictor.service.dashboard.urls import link
from predictor.service.http.query_strings import FilledForm, PageForm, read_pairs
from predictor.service.middleware.identity import audited_log_for

_SHOWN = 100
# Hardware of known hosts, so that the form can name the requests that would wait for a host.
_AVAILABLE = "SELECT DISTINCT hardware FROM devices WHERE available ORDER BY hardware"


class RequestsPageParams(BaseModel):
    """Filters of the page of requests."""

    model_config = ConfigDict(extra="forbid")
    state: State | None = None
    hardware: str | None = Field(default=None, max_length=200)


class RequestForm(BaseModel):
    """A benchmark as the form sends it; several models and batch sizes stand with commas between."""

    model_config = ConfigDict(extra="forbid")
    models: str = Field(default="", max_length=2000)
    hardware: tuple[str, ...] = ()
    batch_sizes: str = Field(default="1,4", max_length=200)
    sequence_length: int | None = Field(default=None, ge=1)
    precision: str | None = Field(default=None, max_length=40)
    mode: Mode = "inference"
    effort: Literal["quick", "standard", "thorough"] = "standard"
    priority: int = Field(default=0, ge=-1000, le=1000)
    host: str = Field(default="", max_length=200)
    key: UUID | None = Field(default=None, description="Key of the page, by which a form sent twice is stored once.")

    def config(self) -> dict[str, Any]:
        """Return the configuration of the benchmark. Raises InvalidInput for a missing or unusable entry."""
        models = _words(self.models)
        if not models or not self.hardware:
            raise InvalidInput("Name at least one model, and choose hardware.")
        if not all(word.isdecimal() for word in _words(self.batch_sizes)):
            raise InvalidInput(f"Batch sizes are whole numbers such as 1,4, not {self.batch_sizes!r}.")
        return {
            "models": models,
            "hardware_types": list(self.hardware),
            "batch_sizes": [int(word) for word in _words(self.batch_sizes)],
            "sequence_lengths": None if self.sequence_length is None else [self.sequence_length],
            "precisions": None if self.precision is None else [self.precision],
            "modes": [self.mode],
            "effort": self.effort,
        }


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def router(
    site: DashboardSite, settings: Settings, lookup: RequestLookup, request_update: Callable[[], None]
) -> APIRouter:
    routes = APIRouter(include_in_schema=False, prefix="/requests")

    def listed(request: Request, form: FilledForm[RequestsPageParams], **more: Any) -> Response:
        found = lookup.all()
        return site.form_page(
            request, "requests.html", form, lambda query: _list(site, found, query) | more, also=_digest(found)
        )

    @routes.get("")
    def requests(
        request: Request, form: Annotated[FilledForm[RequestsPageParams], Depends(PageForm(RequestsPageParams))]
    ) -> Response:
        return listed(request, form)

    @routes.get("/{request_id}")
    def one(request: Request, request_id: UUID) -> Response:
        found = lookup.get(request_id)
        return site.page(request, "request.html", lambda: {"entry": found}, also=_digest([found]))

    @routes.post("")
    async def ask(request: Request) -> Response:
        pairs = parse_qsl((await request.body()).decode("utf-8", "replace"), keep_blank_values=True)
        # Looking up models takes seconds, in which the event loop would answer nobody.
        return await run_in_threadpool(store, request, pairs)

    def store(request: Request, pairs: list[tuple[str, str]]) -> Response:
        try:
            form = read_pairs(RequestForm, pairs)
            # From key and content, because a page that is shown again may send another benchmark under its key.
            cause = request_id_of(request.url.path, form)
            host = form.host.strip() or None
            events = build_request_events(
                form.config(), by="api", priority=form.priority, host=host, causation_id=cause
            )
        except (InvalidInput, NotFound) as error:
            given = {name: [v for n, v in pairs if n == name] for name, _ in pairs}
            return listed(request, FilledForm(RequestsPageParams, ()), given=given, problem=str(error), status_code=422)
        key = None if form.key is None else str(cause)
        stored = store_once(audited_log_for(request, settings), events, key=key, prefix=REQUEST_PREFIX)
        request_update()
        only = [stored.events[0].event_id] if len(events) == 1 else []
        return RedirectResponse(link("requests", *only), status_code=303)

    # At the address of the page, so that the page of a refused cancellation can be loaded again.
    @routes.post("/{request_id}")
    def cancel(request: Request, request_id: UUID) -> Response:
        found = lookup.get(request_id)
        log = audited_log_for(request, settings)
        if found.closed is not None or not close(log, found, "cancelled", "taken back on its page"):
            raise Conflict(f"The request {request_id} has ended already: {lookup.get(request_id).state}.")
        request_update()
        return RedirectResponse(link("requests", request_id), status_code=303)

    return routes


def _digest(found: list[QueuedRequest]) -> str:
    """Return a hash of the requests' states, which change between two snapshots of the tables."""
    states = "".join(f"{entry.id}{entry.state}{entry.attempts}" for entry in found)
    return hashlib.sha256(states.encode()).hexdigest()[:12]


def _list(site: DashboardSite, found: list[QueuedRequest], query: RequestsPageParams) -> dict[str, Any]:
    known = sorted({entry.payload.hardware for entry in found} | {*RUNTIMES})
    if query.hardware is not None and query.hardware not in known:
        raise NotFound(f"Nothing was requested on a hardware {query.hardware!r}: {', '.join(known)} are known.")
    rows = [
        entry
        for entry in found
        if query.state in (None, entry.state) and query.hardware in (None, entry.payload.hardware)
    ]
    return {
        "query": query,
        "requests": rows[:_SHOWN],
        "found": len(rows),
        "hardware": known,
        "available": {row["hardware"] for row in site.reader.rows(_AVAILABLE)},
        "runtimes": [*RUNTIMES],
        "models": [row["model_id"] for row in known_models(site)],
        "given": {},
        "key": uuid4(),
        "problem": None,
    }
