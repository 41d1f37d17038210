"""Middleware before every route: authentication, rate limits, security headers and telemetry."""

from __future__ import annotations

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from accel_platform.settings import Settings
from predictor.service.middleware import sign_in
from predictor.service.middleware.auth import AuthMiddleware
from predictor.service.middleware.head_requests import HeadMiddleware
from predictor.service.middleware.security_headers import SecurityHeadersMiddleware
from predictor.service.middleware.telemetry import TelemetryMiddleware


def install(app: FastAPI, settings: Settings, host: str | None) -> None:
    """Install the middleware; `host` is the address the app listens on, None where something else decides that."""
    app.include_router(sign_in.router(settings))
    # The last one added runs first.
    app.add_middleware(HeadMiddleware)
    app.add_middleware(AuthMiddleware, settings=settings, host=host)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "X-API-Key", "Content-Type", "Idempotency-Key", "If-None-Match"],
            expose_headers=["ETag", "X-Request-ID", "Retry-After"],
        )
    app.add_middleware(TelemetryMiddleware)
    app.add_middleware(SecurityHeadersMiddleware)
