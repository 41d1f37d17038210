"""Sign-in page for browsers, where API keys are required.

The cookie is the key itself: no script can read it, no other site can send it, and it ends with the key.
"""

from __future__ import annotations

import html
from urllib.parse import parse_qs, urlsplit

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse

from accel_platform.api_keys import KeyStore
from accel_platform.settings import Settings
from predictor.service.middleware.auth import COOKIE, SIGN_IN, client_address
from predictor.service.middleware.rate_limit import TokenBuckets

_HOURS = 12
_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Sign in · accel</title>
<link rel="icon" href="data:,">
<style>
:root {{ color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }}
main {{ max-width: 26rem; margin: 15vh auto; padding: 0 1rem }}
input, button {{ font: inherit; width: 100%; box-sizing: border-box; padding: .6rem; margin-top: .4rem }}
.wrong {{ color: #b00020; color: light-dark(#b00020, #ff8a80) }}
</style></head>
<body><main><h1>Sign in</h1>
<form method="post" action="{action}">
{problem}<label for="key">API key</label>
<input id="key" name="key" type="password" autocomplete="current-password" required autofocus>
<input type="hidden" name="next" value="{next}">
<button>Sign in</button></form>
<p>Where the service runs, <code>accel keys create NAME</code> makes one.</p>
</main></body></html>
"""


def router(settings: Settings, wrong_keys: TokenBuckets) -> APIRouter:
    routes = APIRouter(include_in_schema=False)
    keys = KeyStore(settings)

    @routes.get(SIGN_IN)
    def form(request: Request, next: str = "/") -> HTMLResponse:  # noqa: A002
        return _page(request, next)

    @routes.post(SIGN_IN)
    async def sign_in(request: Request) -> Response:
        fields = parse_qs((await request.body()).decode(errors="replace"))
        target = _local_path(fields.get("next", ["/"])[0])
        key = fields.get("key", [""])[0].strip()
        if keys.check(key) is None:
            if wait_s := wrong_keys.take(client_address(request.scope)):
                return _page(request, target, problem=f"Too many wrong keys: wait {wait_s} s.", status=429)
            return _page(request, target, problem="This is no key that works.", status=401)
        answer = RedirectResponse(target, 303)
        answer.set_cookie(
            COOKIE, key, max_age=_HOURS * 3600, httponly=True, samesite="strict", secure=request.url.scheme == "https"
        )
        return answer

    @routes.post("/sign-out")
    def sign_out() -> RedirectResponse:
        answer = RedirectResponse(SIGN_IN, 303)
        answer.delete_cookie(COOKIE, httponly=True, samesite="strict")
        return answer

    return routes


def _page(request: Request, target: str, *, problem: str = "", status: int = 200) -> HTMLResponse:
    alert = f'<p class="wrong" role="alert">{html.escape(problem)}</p>' if problem else ""
    action = html.escape(f"{request.scope.get('root_path', '')}{SIGN_IN}")
    page = _PAGE.format(problem=alert, next=html.escape(_local_path(target)), action=action)
    return HTMLResponse(page, status, headers={"Cache-Control": "no-store"})


def _local_path(target: str) -> str:
    """Return the path to go to after signing in; `/` for a target outside this service."""
    parts = urlsplit(target.replace("\\", "/"))
    is_local = target.startswith("/") and not parts.scheme and not parts.netloc and target.isprintable()
    return target if is_local and "\\" not in target and not target.startswith("//") else "/"
