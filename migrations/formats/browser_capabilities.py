"""What a browser says it can do: WebNN, WebGPU, WebGL and WebAssembly features, and no figure."""

from __future__ import annotations

from migrations.sources.documents import Document

NOT_RESULTS = "a browser's capabilities"

_FEATURES = {"webnn", "webgpu", "webgl", "wasm"}


def detect(document: Document) -> float:
    """Sure where at least two features say whether they are supported, beside the browser or alone."""
    value = document.value
    if not isinstance(value, dict) or {"metrics", "results", "benchmarks"} & value.keys():
        return 0.0
    told = [key for key in value.keys() & _FEATURES if isinstance(value[key], dict) and "supported" in value[key]]
    return 0.9 if len(told) >= 2 or (told and "browser" in value) else 0.0
