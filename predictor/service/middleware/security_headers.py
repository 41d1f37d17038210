"""Security headers of every response. Scripts come from this host only; inline ones are allowed by their hash."""

from __future__ import annotations

import base64
import hashlib
import re

from starlette.types import ASGIApp, Message, Receive, Scope, Send

_ALWAYS = [(b"x-content-type-options", b"nosniff"), (b"cross-origin-resource-policy", b"same-origin")]
_PAGES = [
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
]
_POLICY = b"content-security-policy"
_WITH_SCRIPTS = ("/docs", "/docs/oauth2-redirect")
"""Swagger's pages, the only ones with inline scripts; they contain nothing that clients sent."""
_SCRIPT = re.compile(r"<script(?![^>]*\bsrc=)[^>]*>(.*?)</script>", re.DOTALL | re.IGNORECASE)
DENY_ALL = b"default-src 'none'; frame-ancestors 'none'"
"""Policy for responses other than pages: a browser that shows one as a page loads and runs nothing."""


def page_policy(html: str = "") -> str:
    """Return the content security policy of a page: everything from this host, and the page's own inline scripts.

    Inline styles are allowed, because charts and Swagger's pages have them and they run nothing.
    """
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in _SCRIPT.findall(html)]
    scripts = " ".join(("'self'", *(f"'sha256-{digest}'" for digest in hashes)))
    return (
        f"default-src 'self'; script-src {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )


_PAGE = page_policy().encode()
SANDBOX = (
    "sandbox allow-scripts allow-downloads; default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'unsafe-inline'; img-src data:; frame-ancestors 'none'"
)
"""Policy for a self-contained page: its scripts run in a sandbox without requests or cookies."""


class SecurityHeadersMiddleware:
    """Adds the headers, unless a response has its own.

    They depend on the media type, so a 304 names the type of the cached copy, to which the browser applies its headers.
    A 304 without a type gets only the headers of every type, and the copy keeps the rest.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        held: Message | None = None

        async def send_with_headers(message: Message) -> None:
            nonlocal held
            if message["type"] == "http.response.start":
                if scope["path"] in _WITH_SCRIPTS and _type_of(message).startswith(b"text/html"):
                    held = message
                    return
                self._add(scope, message)
            elif held is not None:
                policy = page_policy(message.get("body", b"").decode())
                held["headers"].append((_POLICY, policy.encode()))
                self._add(scope, held)
                await send(held)
                held = None
            await send(message)

        await self._app(scope, receive, send_with_headers)

    def _add(self, scope: Scope, message: Message) -> None:
        present, media_type = dict(message["headers"]), _type_of(message)
        not_modified = message["status"] == 304
        # A 304 sends no metadata but its validators (RFC 9110, 15.4.5).
        headers = [
            (name, value) for name, value in message["headers"] if not (not_modified and name == b"content-type")
        ]
        headers += _ALWAYS
        page = media_type.startswith(b"text/html")
        if page:
            headers += [(name, value) for name, value in _PAGES if name not in present]
        if _POLICY not in present and (media_type or not not_modified):
            headers.append((_POLICY, _PAGE if page else DENY_ALL))
        if scope["scheme"] == "https":
            headers.append((b"strict-transport-security", b"max-age=31536000"))
        message["headers"] = headers


def _type_of(message: Message) -> bytes:
    headers: list[tuple[bytes, bytes]] = message["headers"]
    return dict(headers).get(b"content-type", b"")
