"""What every page has in common: its template, its snapshot, its ETag, and what is counted once per snapshot."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from fastapi import Request, Response
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from accel_platform.settings import Settings
from accel_platform.warehouse.reader import Reader
from predictor.advisor.advisor import Advisor
from predictor.service.dashboard import formatting, sparklines, urls
from predictor.service.http.conditional import cache_headers, conditional_response

HERE = Path(__file__).parent
ROOT = urls.ROOT
HTML = "text/html; charset=utf-8"
_SNAPSHOTS_KEPT = 2
_NEWEST = "SELECT max(recorded_at) AS newest_at FROM events"
T = TypeVar("T")
Content = dict[str, Any]


class DashboardSite:
    """The tables that pages are made of, and what is kept of them while one snapshot is in service."""

    def __init__(self, advisor: Advisor, settings: Settings) -> None:
        self.advisor, self.settings = advisor, settings
        self.reader: Reader = advisor.reader
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, dict[Hashable, Any]] = OrderedDict()

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """What follows from the snapshot alone, made when it is first asked for; threads may both make it.

        Keys must be few: what a question brings along is none.
        """
        projection_id = self.reader.projection_id
        with self._lock:
            kept = self._kept.setdefault(projection_id, {})
            while len(self._kept) > _SNAPSHOTS_KEPT:
                self._kept.popitem(last=False)
        if key not in kept:
            kept[key] = make()
        found: T = kept[key]
        return found

    def page(self, request: Request, template: str, make: Callable[[], Content], *, also: str = "") -> Response:
        """A page of the snapshot in service, or 304 where the browser has it. `also` is what else it depends on.

        Content that came together while another snapshot was published is made again.
        """
        while True:
            snapshot_id, projection_id = self.reader.snapshot_id, self.reader.projection_id
            form = f"{release()}{also}{_key_of(request) or ''}"
            headers = cache_headers(self.reader, request, form, media_type=HTML)
            headers |= {"ETag": f"W/{headers['ETag']}", "Vary": "accept-encoding, cookie"}
            made = conditional_response(
                request, headers, partial(self._made, request, template, make, snapshot_id, headers)
            )
            if self.reader.projection_id == projection_id:
                return made

    def _made(
        self, request: Request, template: str, make: Callable[[], Content], snapshot_id: str, headers: dict[str, str]
    ) -> Response:
        content = make()
        newest = self.once("newest", lambda: self.reader.rows(_NEWEST)[0]["newest_at"])
        text = render(template, request, snapshot_id=snapshot_id, newest_at=newest, **content)
        status = content.get("status_code", 200)
        # What is no answer may not be kept: its address would be asked for with the ETag, and the 304 call it one.
        return Response(text, status, headers if status == 200 else {"Cache-Control": "no-store"}, HTML)


def render(template: str, request: Request, **content: Any) -> str:
    """The page as text; everything that is not markup of ours is escaped."""
    here = request.url.path
    about = {
        "here": here,
        "asked": request.query_params.multi_items(),
        "signed_in": _key_of(request) is not None,
        "snapshot_id": None,
        "newest_at": None,
    }
    return _environment().get_template(template).render(**{**about, **content})


def _key_of(request: Request) -> str | None:
    """The id of the key that the door let in; None where it asks for none, or was shown none."""
    caller = request.scope.get("state", {}).get("caller")
    return caller.key_id if caller else None


@cache
def release() -> str:
    """Hash of templates, styles and scripts: pages of another release are other pages."""
    files = sorted(path for folder in ("templates", "static") for path in (HERE / folder).iterdir())
    return hashlib.sha256(b"\0".join(path.read_bytes() for path in files)).hexdigest()[:12]


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(formatting.FILTERS)
    environment.globals.update(
        link=urls.link,
        sorted_by=urls.sorted_by,
        shape=formatting.shape,
        spark=sparklines.spark,
        log_scale=sparklines.log_scale,
        release=release(),
        ROOT=ROOT,
    )
    return environment
