"""What every answer tells the browser it may not do. Scripts come from this host alone; a page that brings one in
itself names it by its hash."""

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
"""Swagger's pages, the only ones with scripts in them; nothing that anybody sends comes into them."""
_SCRIPT = re.compile(r"<script(?![^>]*\bsrc=)[^>]*>(.*?)</script>", re.DOTALL | re.IGNORECASE)
DENY_ALL = b"default-src 'none'; frame-ancestors 'none'"
"""For what is no page: should a browser take it for one, it may load and run nothing."""


def page_policy(html: str = "") -> str:
    """The content security policy of a page: all from this host, and of scripts inside it only those it has now.

    Styles may stand in the page: charts and Swagger's pages have them, and they cannot act.
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
"""For a page that brings everything with it and needs nobody: its scripts run, and in a sandbox, where neither requests
nor cookies are to be had."""


class SecurityHeadersMiddleware:
    """Adds the headers, unless an answer brings stricter or other ones of its own.

    They follow from the media type, so a 304 names the type of what the browser kept: the browser applies the headers
    of a 304 to its copy. A 304 that names none gets only what every type has, and the copy keeps the rest.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        held: Message | None = None

        async def adding(message: Message) -> None:
            nonlocal held
            if message["type"] == "http.response.start":
                if scope["path"] in _WITH_SCRIPTS and _type_of(message).startswith(b"text/html"):
                    held = message
                    return
                self._add(scope, message)
            elif held is not None:
                own = page_policy(message.get("body", b"").decode())
                held["headers"].append((_POLICY, own.encode()))
                self._add(scope, held)
                await send(held)
                held = None
            await send(message)

        await self._app(scope, receive, adding)

    def _add(self, scope: Scope, message: Message) -> None:
        sent, media_type = dict(message["headers"]), _type_of(message)
        kept = message["status"] == 304
        # RFC 9110, 15.4.5: a 304 has no metadata but what validates the copy.
        headers = [(name, value) for name, value in message["headers"] if not (kept and name == b"content-type")]
        headers += _ALWAYS
        page = media_type.startswith(b"text/html")
        if page:
            headers += [(name, value) for name, value in _PAGES if name not in sent]
        if _POLICY not in sent and (media_type or not kept):
            headers.append((_POLICY, _PAGE if page else DENY_ALL))
        if scope["scheme"] == "https":
            headers.append((b"strict-transport-security", b"max-age=31536000"))
        message["headers"] = headers


def _type_of(message: Message) -> bytes:
    headers: list[tuple[bytes, bytes]] = message["headers"]
    return dict(headers).get(b"content-type", b"")
