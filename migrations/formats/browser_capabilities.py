"""Capabilities of a browser: WebNN, WebGPU, WebGL and WebAssembly features without figures."""

from __future__ import annotations

from migrations.sources.documents import Document

NOT_RESULTS = "a browser's capabilities"

_FEATURES = {"webnn", "webgpu", "webgl", "wasm"}


def detect(document: Document) -> float:
    """Return high confidence where at least two features say whether they are supported, beside the browser or
    alone.
    """
    value = document.value
    if not isinstance(value, dict) or {"metrics", "results", "benchmarks"} & value.keys():
        return 0.0
    features = [key for key in value.keys() & _FEATURES if isinstance(value[key], dict) and "supported" in value[key]]
    return 0.9 if len(features) >= 2 or (features and "browser" in value) else 0.0
