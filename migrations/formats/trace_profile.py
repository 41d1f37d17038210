"""Traces of single operators (ONNX Runtime's or PyTorch's profiler): spans on a time line, no figure of a model."""

from __future__ import annotations

from migrations.documents import Document
from migrations.tables import object_of

NOT_RESULTS = "a trace of a profiler, of single operators"

_SPAN = {"ph", "ts", "pid", "name"}


def recognise(document: Document) -> float:
    """Sure where the events have phases and times of a trace."""
    events = object_of(document.value).get("traceEvents", document.value)
    if not isinstance(events, list) or not events:
        return 0.0
    spans = [event for event in events[:200] if isinstance(event, dict) and len(event.keys() & _SPAN) >= 3]
    return 0.9 if len(spans) >= 0.9 * len(events[:200]) else 0.0
