"""Placement of graph nodes by onnxruntime-web, read from its log."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from accel_platform.backends.base import Placement

PROVIDERS = {"wasm": "CPUExecutionProvider", "webgpu": "WebGpuExecutionProvider", "webnn": "WebNNExecutionProvider"}
"""Runtime's name of the execution provider for each hardware name."""
_PROVIDER = re.compile(r"placed on \[(\w+)\]\. Number of nodes: (\d+)")
_NODE = re.compile(r"VerifyEachNodeIsAssignedToAnEp\]\s+(\w+) \(")


def placement_of(lines: Iterable[str], hardware: str) -> Placement | None:
    """Count nodes by provider, and those of other providers by operator; None where the lines name no node."""
    accelerated, others, provider = 0, Counter[str](), None
    for line in lines:
        if found := _PROVIDER.search(line):
            provider = found[1]
            accelerated += int(found[2]) if provider == PROVIDERS[hardware] else 0
        elif provider not in (None, PROVIDERS[hardware]) and (found := _NODE.search(line)):
            others[found[1]] += 1
    return Placement(accelerated, dict(others)) if provider else None
