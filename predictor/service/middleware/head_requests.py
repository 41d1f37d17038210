"""HEAD for every route that answers GET, with the headers of that answer (RFC 9110)."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadMiddleware:
    """Calls the routes with GET and ends at the first chunk of the body, which the server does not send."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        get_scope = {**scope, "method": "GET"}

        async def send_first_chunk(message: Message) -> None:
            more = message.get("more_body", False)
            await send({**message, "more_body": False} if more else message)
            if more:
                raise _HeadAnswered

        try:
            await self._app(get_scope, receive, send_first_chunk)
        except _HeadAnswered:
            pass
        finally:
            # Telemetry labels requests by their route.
            scope["route"] = get_scope.get("route")


class _HeadAnswered(Exception):
    """Signal that ends a response, because a stream may have no end."""
