"""A client of the service: one method per operation, pages as iterators, writes that may be sent again.

    from accel_platform.client import Client

    with Client("http://127.0.0.1:8000") as accel:
        for result in accel.results(model="bert-base", status="ok"):
            print(result["hardware"], result["latency_p50_ms"])

Answers are the JSON of the service as dicts; `/docs` of the service describes every field. A test holds the methods
against its OpenAPI document.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import quote
from uuid import uuid4

import httpx

from accel_platform.atomic_write import require_writable
from accel_platform.errors import AccelError, InvalidInput

JsonObject = dict[str, Any]
_RETRYABLE_STATUSES = (429, 502, 503, 504)
_MAX_PAUSE_S = 10.0
_MAX_WAIT_S = 60.0
"""Longest stated wait that is kept; a longer one is the caller's to decide about."""
_PAGE_ROWS = 1_000
"""Rows of a page, the most that every route gives, because many small pages take six times as long."""


class RequestRefused(AccelError):
    """The service answered with a problem; `status` is HTTP's, `problem` the RFC 9457 document."""

    def __init__(self, status: int, problem: Mapping[str, Any]) -> None:
        self.status = status
        self.problem = dict(problem)
        super().__init__(f"{problem.get('detail') or problem.get('title') or 'The service refused'} (HTTP {status})")


class Unreachable(AccelError):
    """No answer, or an incomplete one."""


class NotYet(AccelError):
    """The request is stored, but the tables do not have it yet."""


@dataclass(frozen=True)
class ServerEvent:
    """One event from `progress`."""

    id: str
    kind: str
    """`snapshot` or `request`."""
    data: JsonObject


class Client:
    """Client of one service; safe to share between threads.

    Temporary failures (no connection, 429, 503) are tried again up to `tries` times, after the time that the service
    states or growing pauses; streams (`export`, `progress`) are not. Writes carry an Idempotency-Key, so one whose
    answer was lost is stored once. Numbers and times may be those of NumPy and pandas. Iterators fetch page by page:
    `limit` is the size of a page, and `itertools.islice` takes the first rows.

    Raises RequestRefused, Unreachable or NotYet; InvalidInput for a malformed `url` or `key`.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1:8000",
        *,
        key: str | None = None,
        timeout_s: float = 60.0,
        tries: int = 4,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise InvalidInput(f"{url!r} is no address of a service: it begins with http:// or https://.")
        if key is not None and not (key.isascii() and key.isprintable()):
            raise InvalidInput("An API key has letters, digits, - and _ only: `accel keys create NAME` makes one.")
        headers = {"Authorization": f"Bearer {key}"} if key is not None else {}
        try:
            self._http = httpx.Client(base_url=url, headers=headers, timeout=timeout_s, transport=transport)
        except httpx.InvalidURL as error:
            raise InvalidInput(f"{url!r} is no address of a service: {error}.") from error
        self._tries = max(1, tries)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    # Questions

    def recommend(self, model: str | Mapping[str, Any], **question: Any) -> JsonObject:
        """`POST /recommend`: rank hardware for a model, or in mode `serving` deployments of a language model.

        Parameters
        ----------
        model
            A name, a transformers config or cost figures.
        **question
            Other fields of `RecommendQuery`, such as `batch_size`, `hardware` (a list) and `constraints`; with
            `mode="serving"` those of `ServingQuery`, such as `users` and `goals`.
        """
        return self._json("POST", "/recommend", body={"model": model, **question})

    def predict(self, model: str | Mapping[str, Any], hardware: str | Mapping[str, Any], **question: Any) -> JsonObject:
        """`POST /predict`: the figures of one model on one piece of hardware: `predict("bert-base", "NVIDIA T4")`.

        `question` has the other fields of `PredictQuery`. Raises RequestRefused with status 404 where nothing supports
        a figure (its problem's `type` ends in `no-figure`) and for an unknown model (`not-found`).
        """
        return self._json("POST", "/predict", body={"model": model, "hardware": hardware, **question})

    def predict_many(self, queries: Sequence[Mapping[str, Any]]) -> JsonObject:
        """`POST /predict/batch`: up to 1,000 cells at once, each with the fields of `predict`.

        `answers` are in the order of the queries; one that cannot be answered has a `problem` (`type`,
        `title` and `detail`) in place of figures.
        """
        return self._json("POST", "/predict/batch", body={"queries": list(queries)})

    def query(
        self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = (), *, max_rows: int = 1000
    ) -> JsonObject:
        """`POST /query`: one SELECT over the tables."""
        values = dict(parameters) if isinstance(parameters, Mapping) else list(parameters)
        return self._json("POST", "/query", body={"sql": sql, "parameters": values, "max_rows": max_rows})

    # Reading

    def health(self) -> JsonObject:
        """`GET /health`."""
        return self._json("GET", "/health")

    def results(self, **filters: Any) -> Iterator[JsonObject]:
        """`GET /results`: every result that the filters leave, newest first, fetched page by page.

        `filters` are those of the route: `model`, `hardware`, `device`, `backend`, `mode`, `precision`, `batch_size`,
        `sequence_length`, `provenance`, `status`, `since` and `until`; lists where several are meant.
        """
        return self._rows("/results", "results", filters)

    def result(self, result_id: str) -> JsonObject:
        """`GET /results/{result_id}`: with samples, verifications, suspicions and event."""
        return self._json("GET", f"/results/{_quote_segment(result_id)}")

    def export(self, path: Path | str, form: Literal["arrow", "csv", "ndjson"], **filters: Any) -> int:
        """`GET /results.{form}`: stream all results into a file; its size in bytes. What breaks off leaves no file.

        Raises InvalidInput, before the service is asked, for a path at which no file can be written.
        """
        path = Path(path)
        require_writable(path)
        part = path.with_name(f".{path.name}.part")
        try:
            with (
                self._http.stream("GET", f"/results.{form}", params=_query_params(filters)) as response,
                part.open("wb") as to,
            ):
                if response.status_code != 200:
                    response.read()
                    raise _rejection(response)
                for piece in response.iter_bytes():
                    to.write(piece)
            part.rename(path)
        except httpx.TransportError as error:
            raise Unreachable(f"The service broke off: {error}.") from error
        finally:
            part.unlink(missing_ok=True)
        return path.stat().st_size

    def models(self, **filters: Any) -> Iterator[JsonObject]:
        """`GET /models`."""
        return self._rows("/models", "models", filters)

    def model(self, model_id: str) -> JsonObject:
        """`GET /models/{model_id}`, by any of its names."""
        return self._json("GET", f"/models/{quote(model_id)}")

    def hardware(self) -> list[JsonObject]:
        """`GET /hardware`."""
        return list(self._json("GET", "/hardware")["hardware"])

    def one_hardware(self, name: str) -> JsonObject:
        """`GET /hardware/{name}`: what hosts found under it, and the devices results are of."""
        return self._json("GET", f"/hardware/{_quote_segment(name)}")

    def devices(self, **filters: Any) -> Iterator[JsonObject]:
        """`GET /devices`."""
        return self._rows("/devices", "devices", filters)

    def catalogue(self) -> list[JsonObject]:
        """`GET /catalogue`: the public spec sheet."""
        return list(self._json("GET", "/catalogue")["devices"])

    def runs(self, **filters: Any) -> Iterator[JsonObject]:
        """`GET /runs`."""
        return self._rows("/runs", "runs", filters)

    def run(self, run_id: str) -> JsonObject:
        """`GET /runs/{run_id}`."""
        return self._json("GET", f"/runs/{quote(run_id)}")

    def matrix(self, **filters: Any) -> Iterator[JsonObject]:
        """`GET /matrix`: cells of the compatibility matrix."""
        return self._rows("/matrix", "cells", filters)

    def matrix_history(self, **filters: Any) -> list[JsonObject]:
        """`GET /matrix/history`: how verdicts changed, the oldest first."""
        return list(self._json("GET", "/matrix/history", params=filters)["changes"])

    def coverage(self, **filters: Any) -> Iterator[JsonObject]:
        """`GET /coverage`."""
        return self._rows("/coverage", "coverage", filters)

    def compare(self, **filters: Any) -> JsonObject:
        """`GET /compare`: equal shapes side by side."""
        return self._json("GET", "/compare", params=filters)

    def changes(self, **filters: Any) -> JsonObject:
        """`GET /changes`: what moved between two snapshots."""
        return self._json("GET", "/changes", params=filters)

    def trend(self, **filters: Any) -> JsonObject:
        """`GET /trend`: a figure over time."""
        return self._json("GET", "/trend", params=filters)

    def charts(self) -> list[JsonObject]:
        """`GET /charts`: the kinds that `chart` draws."""
        return list(self._json("GET", "/charts")["charts"])

    def chart(self, name: str, kind: Literal["json", "svg", "png", "html"] = "svg", **filters: Any) -> bytes:
        """`GET /charts/{name}.{kind}`: a chart of what the filters leave."""
        return self._response("GET", f"/charts/{_quote_segment(name)}.{kind}", params=filters).content

    def regressions(self, **filters: Any) -> Iterator[JsonObject]:
        """`GET /regressions`."""
        return self._rows("/regressions", "regressions", filters)

    def regression(self, regression_id: str) -> JsonObject:
        """`GET /regressions/{regression_id}`."""
        return self._json("GET", f"/regressions/{_quote_segment(regression_id)}")

    def events(self, **filters: Any) -> Iterator[JsonObject]:
        """`GET /events`."""
        return self._rows("/events", "events", filters)

    def event(self, event_id: str) -> JsonObject:
        """`GET /events/{event_id}`."""
        return self._json("GET", f"/events/{_quote_segment(event_id)}")

    def snapshots(self) -> JsonObject:
        """`GET /snapshots`."""
        return self._json("GET", "/snapshots")

    def requests(self, **filters: Any) -> Iterator[JsonObject]:
        """`GET /requests`: benchmarks that were asked for."""
        return self._rows("/requests", "requests", filters)

    def request(self, request_id: str) -> JsonObject:
        """`GET /requests/{id}`."""
        return self._json("GET", f"/requests/{_quote_segment(request_id)}")

    def progress(self, *, for_s: float = 3600.0, after: str | None = None) -> Iterator[ServerEvent]:
        """`GET /progress`: what happens, as it happens; `after` is the id of the last thing that was told."""
        headers = {"Last-Event-ID": after} if after is not None else {}
        fields: dict[str, str] = {}
        timeout = httpx.Timeout(self._http.timeout.connect, read=60.0)
        try:
            with self._http.stream(
                "GET", "/progress", params={"for_s": for_s}, headers=headers, timeout=timeout
            ) as response:
                if response.status_code != 200:
                    response.read()
                    raise _rejection(response)
                for line in response.iter_lines():
                    name, _, value = line.partition(": ")
                    if name:
                        fields[name] = value
                    elif "data" in fields:
                        yield ServerEvent(fields["id"], fields["event"], json.loads(fields["data"]))
                        fields = {}
        except httpx.TransportError as error:
            raise Unreachable(f"The service broke off: {error}.") from error

    # Writing

    def add_results(self, claims: Sequence[Mapping[str, Any]], *, key: str | None = None) -> JsonObject:
        """`POST /results`: add figures that somebody states, all or none. `key` names the request for ever; by default
        it is new for each call."""
        return self._write("/results", list(claims), key)

    def add_events(self, events: Sequence[Mapping[str, Any]], *, key: str | None = None) -> JsonObject:
        """`POST /events`: add events of measurements made elsewhere, all or none."""
        return self._write("/events", list(events), key)

    def ask_for_benchmark(self, *, key: str | None = None, **benchmark: Any) -> list[JsonObject]:
        """`POST /benchmarks`: the requests, one per hardware name."""
        return list(self._write("/benchmarks", benchmark, key)["requests"])

    def cancel(self, request_id: str) -> JsonObject:
        """`POST /requests/{id}/cancel`."""
        return self._json("POST", f"/requests/{_quote_segment(request_id)}/cancel", again=False)

    def accept(self, regression_id: str, *, reason: str, by: str | None = None, key: str | None = None) -> JsonObject:
        """`POST /regressions/{regression_id}/accept`: its level is the baseline. `by` is needed without API keys."""
        return self._write(f"/regressions/{_quote_segment(regression_id)}/accept", {"by": by, "reason": reason}, key)

    def reject(self, regression_id: str, *, reason: str, by: str | None = None, key: str | None = None) -> JsonObject:
        """`POST /regressions/{regression_id}/reject`: it is none. `by` is needed without API keys."""
        return self._write(f"/regressions/{_quote_segment(regression_id)}/reject", {"by": by, "reason": reason}, key)

    def reopen(self, regression_id: str, *, reason: str, by: str | None = None, key: str | None = None) -> JsonObject:
        """`POST /regressions/{regression_id}/reopen`: withdraws the decision. `by` is needed without API keys."""
        return self._write(f"/regressions/{_quote_segment(regression_id)}/reopen", {"by": by, "reason": reason}, key)

    def _write(self, path: str, body: Any, key: str | None) -> JsonObject:
        return self._json("POST", path, body=body, headers={"Idempotency-Key": key or str(uuid4())})

    def _rows(self, path: str, name: str, filters: Mapping[str, Any]) -> Iterator[JsonObject]:
        cursor = filters.get("cursor")
        while True:
            page = self._json("GET", path, params={"limit": _PAGE_ROWS, **filters, "cursor": cursor})
            yield from page[name]
            cursor = page["next_cursor"]
            if cursor is None:
                return

    def _json(self, method: str, path: str, **request: Any) -> JsonObject:
        response = self._response(method, path, **request)
        try:
            answer: JsonObject = response.json()
        except ValueError as error:
            raise Unreachable(_no_service(response)) from error
        return answer

    def _response(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        again: bool = True,
    ) -> httpx.Response:
        content = None if body is None else json.dumps(body, default=_plain).encode()
        sent = {**({"Content-Type": "application/json"} if content is not None else {}), **(headers or {})}
        for number in range(1, self._tries + 1):
            last, pause_s = number == self._tries, _pause_s(number)
            try:
                response = self._http.request(
                    method, path, params=_query_params(params or {}), content=content, headers=sent
                )
            except httpx.TransportError as error:
                # A repeated cancellation is refused, because the first one may have ended the request.
                if last or not again:
                    raise Unreachable(f"No answer from {self._http.base_url}: {error}.") from error
            else:
                soon = method == "GET" and response.status_code == 202  # the tables are about to have it
                if response.status_code < 400 and not soon:
                    return response
                if last and soon:
                    raise NotYet(f"{path} is stored; the tables follow within seconds: ask again, or await `progress`.")
                stated = response.headers.get("Retry-After", "")
                pause_s = max(pause_s, int(stated)) if stated.isdecimal() else pause_s
                again_soon = (soon or response.status_code in _RETRYABLE_STATUSES) and pause_s <= _MAX_WAIT_S
                if last or not again_soon:
                    raise _rejection(response)
            time.sleep(pause_s)
        raise AssertionError("the last try returns or raises")


def _pause_s(number: int) -> float:
    """Return a random pause with an exponential limit, so that clients that failed together do not return together."""
    return random.uniform(0.1, 1.0) * min(_MAX_PAUSE_S, 0.25 * float(2**number))  # noqa: S311


def _plain(value: Any) -> Any:
    """Return a value that JSON lacks as one that it has: numbers and arrays of NumPy as Python's, others as text."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def _query_params(params: Mapping[str, Any]) -> httpx.QueryParams:
    """Return query parameters without None values; lists become repeated parameters."""
    pairs: list[tuple[str, str | int | float | bool | None]] = []
    for name, given in params.items():
        value = given.tolist() if hasattr(given, "tolist") else given
        for one in value if isinstance(value, list | tuple) else [value]:
            if one is not None:
                text = one.isoformat() if hasattr(one, "isoformat") else str(one)
                pairs.append((name, text.lower() if isinstance(one, bool) else text))
    return httpx.QueryParams(pairs)


def _quote_segment(text: str) -> str:
    return quote(str(text), safe="")


def _no_service(response: httpx.Response) -> str:
    """Return what to say of an answer without JSON, which the service does not give."""
    kind = response.headers.get("Content-Type", "no media type").partition(";")[0]
    return f"{response.url} answered {kind} in place of JSON: a proxy or another program did."


def _rejection(response: httpx.Response) -> RequestRefused:
    try:
        problem = response.json()
    except ValueError:
        problem = {"title": _no_service(response)}
    return RequestRefused(response.status_code, problem if isinstance(problem, dict) else {"title": str(problem)[:200]})
