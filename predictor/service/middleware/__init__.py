"""Middleware before every route: authentication, rate limits, security headers and telemetry."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from accel_platform.settings import Settings
from predictor.service.middleware import sign_in
from predictor.service.middleware.auth import AuthMiddleware
from predictor.service.middleware.head_requests import HeadMiddleware
from predictor.service.middleware.rate_limit import TokenBuckets
from predictor.service.middleware.security_headers import SecurityHeadersMiddleware
from predictor.service.middleware.telemetry import TelemetryMiddleware

_WRONG_KEYS_PER_MINUTE = 10
"""Limit for one address, whether it sends them with requests or signs in with them."""

_SENT = [
    "Authorization", "X-API-Key", "Content-Type", "Idempotency-Key", "If-None-Match", "Last-Event-ID", "X-Request-ID",
]  # fmt: skip
"""Headers of requests that routes know, and that a page of an allowed origin may send."""
_READ = [
    "ETag", "Content-Disposition", "Idempotency-Replayed", "Location", "Retry-After", "X-Request-ID", "X-Snapshot-ID",
    "X-Truncated",
]  # fmt: skip
"""Headers of answers that such a page may read: one that cannot read X-Truncated takes a part for all."""


def install(app: FastAPI, settings: Settings, host: str | None) -> None:
    """Install the middleware; `host` is the address the app listens on, None where something else decides that."""
    wrong_keys = TokenBuckets(_WRONG_KEYS_PER_MINUTE / 60, _WRONG_KEYS_PER_MINUTE)
    app.include_router(sign_in.router(settings, wrong_keys))
    # The last one added runs first.
    app.add_middleware(HeadMiddleware)
    app.add_middleware(AuthMiddleware, settings=settings, host=host, wrong_keys=wrong_keys)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=_SENT,
            expose_headers=_READ,
        )
    app.add_middleware(TelemetryMiddleware)
    app.add_middleware(SecurityHeadersMiddleware)
