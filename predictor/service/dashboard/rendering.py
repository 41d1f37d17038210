"""Page rendering: templates, ETags, a cache per snapshot, and problems as pages."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from fastapi import Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from pydantic import BaseModel

from accel_platform.analysis.query.filters import Selection
from accel_platform.errors import InvalidInput, NotFound
from accel_platform.hardware.instances import naming_caution
from accel_platform.settings import Settings
from accel_platform.warehouse.reader import Reader
from predictor.advisor.advisor import Advisor
from predictor.schemas.queries import Problem
from predictor.service.dashboard import formatting, sparklines, urls
from predictor.service.http.conditional import cache_headers, conditional_response
from predictor.service.http.problems import status_of
from predictor.service.http.query_strings import FilledForm

HERE = Path(__file__).parent
ROOT = urls.ROOT
HTML = "text/html; charset=utf-8"
_MAX_SNAPSHOTS = 2
_NEWEST = "SELECT max(recorded_at) AS newest_at FROM events"
T = TypeVar("T")
Q = TypeVar("Q", bound=BaseModel)
Content = dict[str, Any]


class DashboardSite:
    """Data sources of the pages, with a cache per published snapshot."""

    def __init__(self, advisor: Advisor, settings: Settings) -> None:
        self.advisor, self.settings = advisor, settings
        self.reader: Reader = advisor.reader
        self._lock = threading.Lock()
        self._values: OrderedDict[str, dict[Hashable, Any]] = OrderedDict()

    def cached(self, key: Hashable, make: Callable[[], T]) -> T:
        """Return a value that depends only on the snapshot, computed on first use; threads may both compute it.

        Keys must be few, because nothing is evicted within a snapshot: never use user input as a key.
        """
        projection_id = self.reader.projection_id
        with self._lock:
            values = self._values.setdefault(projection_id, {})
            while len(self._values) > _MAX_SNAPSHOTS:
                self._values.popitem(last=False)
        if key not in values:
            values[key] = make()
        value: T = values[key]
        return value

    def choices(self, table: str, *columns: str) -> dict[str, list[Any]]:
        """Return the values of columns of a table, for the lists that filters are chosen from."""
        return self.cached(("choices", table), lambda: distinct_values(self.reader, table, columns))

    def page(self, request: Request, template: str, make: Callable[[], Content], *, also: str = "") -> Response:
        """Return a page of the current snapshot, or 304 if the browser has it.

        `also` names further state that the page depends on. The page is rendered again if another snapshot was
        published meanwhile.
        """
        while True:
            snapshot_id, projection_id = self.reader.snapshot_id, self.reader.projection_id
            form = f"{release()}{also}{_key_of(request) or ''}"
            headers = cache_headers(self.reader, request, form, media_type=HTML)
            headers |= {"ETag": f"W/{headers['ETag']}", "Vary": "accept-encoding, cookie"}
            response = conditional_response(
                request, headers, partial(self._respond, request, template, make, snapshot_id, headers)
            )
            if self.reader.projection_id == projection_id:
                return response

    def form_page(
        self, request: Request, template: str, form: FilledForm[Q], make: Callable[[Q], Content], *, also: str = ""
    ) -> Response:
        """Return the page of a filled form.

        A form with errors is shown again, with its values as they were written and a message beside them. Its other
        content is that of an empty form, from which the template shows the choices only.
        """

        def content() -> Content:
            try:
                query = form.validated()
                return {"cautions": _naming_cautions(query), **make(query)}
            except (InvalidInput, NotFound) as error:
                about = {"query": form.as_written(), "problem": str(error), "status_code": status_of(error)}
                return make(form.kind()) | about

        return self.page(request, template, content, also=also)

    def _respond(
        self, request: Request, template: str, make: Callable[[], Content], snapshot_id: str, headers: dict[str, str]
    ) -> Response:
        content = make()
        newest = self.cached("newest", lambda: self.reader.rows(_NEWEST)[0]["newest_at"])
        text = render(template, request, snapshot_id=snapshot_id, newest_at=newest, **content)
        status = content.get("status_code", 200)
        # Errors are not cached, because a later 304 would present them as answers.
        return Response(text, status, headers if status == 200 else {"Cache-Control": "no-store"}, HTML)


def _naming_cautions(query: BaseModel) -> list[str]:
    """Return a caution for each hardware name in the filters that could mean another device."""
    names = query.hardware if isinstance(query, Selection) else ()
    return [*filter(None, map(naming_caution, names))]


def distinct_values(
    reader: Reader, rows: str, columns: Sequence[str], values: Sequence[Any] = ()
) -> dict[str, list[Any]]:
    """Return the sorted values of each column in these rows: a table, or one with a condition and its `values`."""
    lists = ", ".join(f"list_sort(list(DISTINCT {name})) AS {name}" for name in columns)
    [found] = reader.rows(f"SELECT {lists} FROM {rows}", values)
    return {name: found[name] or [] for name in columns}


def render(template: str, request: Request, **content: Any) -> str:
    """Return the page as text. Values are escaped unless they are Markup."""
    here = request.url.path
    about = {
        "here": here,
        "query_pairs": request.query_params.multi_items(),
        "signed_in": _key_of(request) is not None,
        "snapshot_id": None,
        "newest_at": None,
        "problem": None,
        "cautions": [],
    }
    return _environment().get_template(template).render(**{**about, **content})


def problem_page(request: Request, problem: Problem) -> HTMLResponse | None:
    """Return the problem as a page of the dashboard; None for a request to another route.

    An empty installation gets a page with first steps and status 200, because nothing failed.
    """
    if request.url.path != ROOT and not request.url.path.startswith(f"{ROOT}/"):
        return None
    empty = problem.type.endswith("warehouse-empty")
    text = render("empty_home.html" if empty else "error.html", request, problem=problem)
    return HTMLResponse(text, status_code=200 if empty else problem.status, headers={"cache-control": "no-store"})


def _key_of(request: Request) -> str | None:
    """Return the id of the caller's API key; None for an anonymous caller."""
    caller = request.scope.get("state", {}).get("caller")
    return caller.key_id if caller else None


@cache
def release() -> str:
    """Return a hash of templates, styles and scripts, which is part of every page's ETag."""
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
