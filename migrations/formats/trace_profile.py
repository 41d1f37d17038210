"""Traces and counters of single operators (ONNX Runtime, PyTorch, OpenVINO, TensorRT): no figure of a whole model."""

from __future__ import annotations

from migrations.normalize.row_access import object_of
from migrations.sources.documents import Document

NOT_RESULTS = "a trace of a profiler, of single operators"

_LAYERS = {"layerName", "execStatus", "layerType"}
_COUNTERS = {"avg_performance", "detailed_performance"}
_TENSORRT = {"name", "timeMs", "averageMs", "percentage"}
_SPAN = {"ph", "ts", "pid", "name"}


def detect(document: Document) -> float:
    """Return high confidence where the events have phases and times of a trace."""
    if {column.strip() for column in document.columns} >= _LAYERS:
        return 0.9
    if isinstance(document.value, list) and document.value[1:]:
        layers = [row for row in document.value[1:200] if isinstance(row, dict) and row.keys() >= _TENSORRT]
        if len(layers) == len(document.value[1:200]):
            return 0.9
    if object_of(document.value).keys() & _COUNTERS:
        return 0.85
    events = object_of(document.value).get("traceEvents", document.value)
    if not isinstance(events, list) or not events:
        return 0.0
    spans = [event for event in events[:200] if isinstance(event, dict) and len(event.keys() & _SPAN) >= 3]
    return 0.9 if len(spans) >= 0.9 * len(events[:200]) else 0.0
