"""WebGPU adapters by their own description."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def is_software(adapter: Mapping[str, Any]) -> bool:
    """Return whether a processor emulates the device (SwiftShader, llvmpipe, WARP), so its figures are not a GPU's."""
    return bool(adapter["isFallbackAdapter"]) or adapter["type"] == "CPU" or adapter["architecture"] == "swiftshader"


def name_of(adapter: Mapping[str, Any]) -> str:
    """Return the adapter's most telling name; browsers omit what would identify the visitor's machine."""
    words = [adapter[key] for key in ("vendor", "architecture") if adapter[key]]
    return adapter["description"] or " ".join(words) or "a WebGPU adapter that does not say its name"
