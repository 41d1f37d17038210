"""How the service's log looks: lines for people, which tell what went wrong, or JSON for machines, a line a request."""

from __future__ import annotations

import json
import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal

Form = Literal["text", "json"]
REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Of the request that is being answered, also in the threads that work for it."""
_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}
"""Attributes of every record; what a line has beside them is its own."""


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": REQUEST_ID.get(),
            **{name: value for name, value in vars(record).items() if name not in _OWN},
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps({name: value for name, value in line.items() if value is not None}, default=str)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        request_id = REQUEST_ID.get()
        text = super().format(record)
        return f"{text} (request {request_id})" if request_id and not record.exc_info else text


def configure(form: Form) -> None:
    """Log to stderr in this form; requests have lines of their own only in JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Json() if form == "json" else _Text("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("accel.requests").setLevel(logging.INFO if form == "json" else logging.WARNING)
