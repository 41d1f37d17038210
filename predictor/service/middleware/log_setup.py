"""Logging setup of the service: text with errors for people, or JSON with a line per request for machines."""

from __future__ import annotations

import json
import logging
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Literal

Form = Literal["text", "json"]
REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Id of the request that is being answered, also in the threads that work for it."""
_STANDARD_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "color_message"}
"""Attributes of every log record; a line's other attributes are written out."""


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "request_id": REQUEST_ID.get(),
            **{name: value for name, value in vars(record).items() if name not in _STANDARD_FIELDS},
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)
        return json.dumps({name: value for name, value in line.items() if value is not None}, default=str)


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        request_id = REQUEST_ID.get()
        text = super().format(record)
        return f"{text} (request {request_id})" if request_id and not record.exc_info else text


def configure(form: Form) -> None:
    """Configure logging to stderr in this form; each request gets a line only in JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(_JsonFormatter() if form == "json" else _TextFormatter("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("accel.requests").setLevel(logging.INFO if form == "json" else logging.WARNING)
