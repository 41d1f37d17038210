"""HEAD for every route that answers GET, with the headers of that answer, as RFC 9110 asks of a server."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send


class HeadMiddleware:
    """Asks the routes by GET and ends with the first piece of the body, which the server does not send."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] != "HEAD":
            await self._app(scope, receive, send)
            return
        asked = {**scope, "method": "GET"}

        async def ending(message: Message) -> None:
            more = message.get("more_body", False)
            await send({**message, "more_body": False} if more else message)
            if more:
                raise _Answered

        try:
            await self._app(asked, receive, ending)
        except _Answered:
            pass
        finally:
            # Whoever counts requests names them by their route.
            scope["route"] = asked.get("route")


class _Answered(Exception):
    """Ends a stream, which may have no end of its own."""
