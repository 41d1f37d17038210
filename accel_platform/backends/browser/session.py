"""A browser, its session with our page, its WebGPU adapter, and how its memory is counted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from accel_platform.backends.browser.server import Loopback

MEMORY_METHOD = (
    "the browser's processes, without the harness: their proportional resident sizes at the end of the cell, each plus"
    " how far its resident size had been higher (VmHWM - VmRSS)"
)


@dataclass(frozen=True)
class Browser:
    """An installed browser. `name` is one of BROWSERS."""

    name: str
    path: Path


class Tab(Protocol):
    """Our page, open and cross-origin isolated. `server` gives it its files. Close it, or its processes stay."""

    server: Loopback
    facts: dict[str, Any]
    """Facts that the page reports: `isolated`, its clock's `resolution_ms`, `webgpu` adapter, `webnn` device, or
    `error`; and the `browser` that it runs in, its `version`, and that of onnxruntime-web."""

    def call(self, function: str, **arguments: Any) -> Any:
        """Call a function of `page.js` and wait for its answer. Raises what it throws, in its words."""
        ...

    def memory_peak_mib(self) -> float | None:
        """Return the peak memory of all browser processes in MiB by `MEMORY_METHOD`; None where unknown."""
        ...

    def process_ids(self) -> list[int]:
        """Return the ids of all browser processes."""
        ...

    def close(self) -> None: ...


def is_software(adapter: Mapping[str, Any]) -> bool:
    """Return whether a processor emulates the device (SwiftShader, llvmpipe, WARP), so its figures are not a GPU's."""
    return bool(adapter["isFallbackAdapter"]) or adapter["type"] == "CPU" or adapter["architecture"] == "swiftshader"


def adapter_name(adapter: Mapping[str, Any]) -> str:
    """Return the adapter's most telling name; browsers omit what would identify the visitor's machine."""
    words = [adapter[key] for key in ("vendor", "architecture") if adapter[key]]
    return adapter["description"] or " ".join(words) or "a WebGPU adapter that does not say its name"
