"""Logs of what a device drew and held over time (`nvidia-smi --query-gpu`, `dmon`, `rocm-smi`): no run, no model."""

from __future__ import annotations

import re

from migrations.sources.documents import Document

NOT_RESULTS = "a log of a device's load, memory and power"

_READING = re.compile(
    r"(?:utilization\.\w+|memory\.(?:used|free|total)|power\.(?:draw|limit)\S*|temperature\.\w+|clocks\.\S+|fan\.speed|"
    r"pcie\.\S+)(?: \[[^]]+\])?|GPU use \(%\)|(?:GFX|Average Graphics Package) (?:Activity|Power) \([%W]\)|"
    r"Temperature \(Sensor .*\) \(C\)|GPU Memory Allocated \(VRAM%\)|VRAM Total .*Memory \(B\)",
    re.IGNORECASE,
)
_RUN = re.compile(r"latenc|throughput|tokens|model|batch|per_sec|fps", re.IGNORECASE)
_DMON = re.compile(r"# gpu\s+(?:pwr|sm|mem)\b", re.IGNORECASE)


def detect(document: Document) -> float:
    """Return high confidence where two columns are readings of a device and none is of a run."""
    if document.kind == "text":
        return 0.85 if any(_DMON.match(line) for line in document.value[:5]) else 0.0
    readings = sum(_READING.fullmatch(column) is not None for column in document.columns)
    return 0.85 if readings >= 2 and not any(_RUN.search(column) for column in document.columns) else 0.0
