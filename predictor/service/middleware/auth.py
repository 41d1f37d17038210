"""Authentication and authorization of every request: Host, Origin, API key, scope and rate.

A key is required once one was ever created, and always where other machines can connect. Without keys the service is
for programs of this machine. A browser could then be tricked into sending requests, so pages of other sites are
rejected, and so are host names of theirs that resolve to this machine.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import quote, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from accel_platform.api_keys import ApiKey, KeyStore
from accel_platform.api_keys import Scope as Allowed
from accel_platform.errors import AccelError
from accel_platform.settings import Settings
from predictor.service.http import problems
from predictor.service.middleware.identity import LOOPBACK, Caller
from predictor.service.middleware.rate_limit import TokenBuckets

COOKIE = "accel_key"
SIGN_IN = "/sign-in"
OPEN_PATHS = frozenset((SIGN_IN, "/sign-out", "/health", "/ready"))
"""Paths without a key: probes, and signing in."""
QUERY_PATHS = frozenset(("/recommend", "/predict", "/predict/batch", "/query"))
"""Paths whose POST only reads, because the query does not fit into a URL."""
_READS = frozenset(("GET", "HEAD", "OPTIONS"))
_BURST_S = 5
"""Size of a burst, in seconds of the allowed rate."""


class AuthMiddleware:
    """Passes a request on with its `Caller` in the scope's state, or answers it with a problem."""

    def __init__(self, app: ASGIApp, settings: Settings, host: str | None, wrong_keys: TokenBuckets) -> None:
        self._app = app
        self._keys = KeyStore(settings)
        self._always_requires_key = host is not None and not is_loopback(host)
        self._knows_host = host is not None
        self._origins = frozenset(settings.cors_origins)
        self._rates = TokenBuckets(settings.rate_per_s, max(1.0, settings.rate_per_s * _BURST_S))
        self._wrong_keys = wrong_keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            rejection = self._rejection(scope)
        except AccelError as error:
            rejection = await problems.accel_error_response(Request(scope), error)
        await (rejection or self._app)(scope, receive, send)

    def _rejection(self, scope: Scope) -> Response | None:
        headers: dict[bytes, bytes] = dict(scope["headers"])
        requires_key = self._always_requires_key or bool(self._keys.all())
        if (
            self._knows_host
            and not requires_key
            and not _is_loopback_header(headers.get(b"host", b"").decode("latin-1"))
        ):
            return _problem(
                scope, 421, "misdirected", "This service answers to localhost and 127.0.0.1 only: its name may be "
                "somebody's trick. With API keys (`accel keys create NAME`) it answers to every name.",
            )  # fmt: skip
        if scope["method"] not in _READS and self._is_cross_site(headers) and not _Credentials.of(headers).by_program:
            return _problem(
                scope, 403, "cross-site", "A page of another site sent this. ACCEL_CORS_ORIGINS names those that may; "
                "behind a proxy, have it pass the Host header on.",
            )  # fmt: skip
        if not requires_key:
            scope["state"]["caller"] = LOOPBACK
            return None
        if scope["path"] in OPEN_PATHS:
            return None
        return self._rejection_by_key(scope, headers)

    def _rejection_by_key(self, scope: Scope, headers: dict[bytes, bytes]) -> Response | None:
        credentials = _Credentials.of(headers)
        key = self._keys.check(credentials.key) if credentials.key is not None else None
        if key is None:
            if credentials.key is not None and (wait_s := self._wrong_keys.take(client_address(scope))):
                return _too_many_requests(scope, wait_s, "wrong keys")
            return _unauthorized(scope, headers, rejected_key=credentials.key is not None)
        # The caller is known from here on, so that an error page lets them sign out and the log names them.
        scope["state"]["caller"] = _caller(key)
        required = required_scope(scope["method"], scope["path"])
        if not key.scope.includes(required):
            return _problem(
                scope, 403, "scope", f"The key {key.name!r} may {key.scope}; this needs {required}: `accel keys create "
                f"NAME --scope {required}` makes one that may.",
                {"WWW-Authenticate": f'Bearer realm="accel", error="insufficient_scope", scope="{required}"'},
            )  # fmt: skip
        if wait_s := self._rates.take(key.key_id):
            return _too_many_requests(scope, wait_s, "requests with this key")
        return None

    def _is_cross_site(self, headers: dict[bytes, bytes]) -> bool:
        origin = headers.get(b"origin")
        if origin is None:
            return headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin")
        text = origin.decode("latin-1")
        return text not in self._origins and urlsplit(text).netloc != headers.get(b"host", b"").decode("latin-1")


@dataclass(frozen=True)
class _Credentials:
    """The key of a request, and whether a program sent it, because a browser sends only its cookie unasked."""

    key: str | None
    by_program: bool

    @classmethod
    def of(cls, headers: dict[bytes, bytes]) -> _Credentials:
        scheme, _, bearer = headers.get(b"authorization", b"").decode("latin-1").partition(" ")
        if scheme.lower() == "bearer" and bearer:
            return cls(bearer.strip(), by_program=True)
        if b"x-api-key" in headers:
            return cls(headers[b"x-api-key"].decode("latin-1").strip(), by_program=True)
        for pair in headers.get(b"cookie", b"").decode("latin-1").split(";"):
            name, _, value = pair.strip().partition("=")
            if name == COOKIE and value:
                return cls(value, by_program=False)
        return cls(None, by_program=False)


def client_address(scope: Scope) -> str:
    """Return the address that a request comes from."""
    return scope["client"][0] if scope.get("client") else "unknown"


def required_scope(method: str, path: str) -> Allowed:
    """Return the scope a request needs: read for queries, write for changes."""
    return Allowed.read if method in _READS or path in QUERY_PATHS else Allowed.write


def is_loopback(host: str) -> bool:
    """Return whether only this machine can connect to an address; names other than `localhost` may resolve anywhere."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


@lru_cache(maxsize=256)
def _is_loopback_header(host: str) -> bool:
    """Return whether a Host header (with a port or an IPv6 address in brackets) names this machine."""
    try:
        return is_loopback(urlsplit(f"//{host}").hostname or "")
    except ValueError:
        return False


def _caller(key: ApiKey) -> Caller:
    return Caller(key.name, key.key_id, key.scope)


def _unauthorized(scope: Scope, headers: dict[bytes, bytes], *, rejected_key: bool) -> Response:
    """Answer a request without a valid key: 401 for a program, the sign-in page for a browser."""
    if scope["method"] in _READS and b"text/html" in headers.get(b"accept", b""):
        query = f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else ""
        return RedirectResponse(f"{SIGN_IN}?next={quote(scope['path'] + query, safe='')}", 303)
    detail = "The API key is not one that works" if rejected_key else "An API key is needed"
    return _problem(
        scope, 401, "unauthorized", f"{detail}: send `Authorization: Bearer KEY` or `X-API-Key: KEY`. "
        "`accel keys create NAME`, where the service runs, makes one.",
        {"WWW-Authenticate": 'Bearer realm="accel"' + (', error="invalid_token"' if rejected_key else "")},
    )  # fmt: skip


def _too_many_requests(scope: Scope, wait_s: int, what: str) -> Response:
    return _problem(scope, 429, "too-many", f"Too many {what}: wait {wait_s} s.", {"Retry-After": str(wait_s)})


def _problem(scope: Scope, status: int, kind: str, detail: str, headers: dict[str, str] | None = None) -> Response:
    return problems.problem_response(Request(scope), status, kind, detail, headers or {})
