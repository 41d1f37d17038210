"""Which browser is here, and our page in it. How each family is driven is in `chromium.py` and `firefox.py`."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from accel_platform.backends.browser.server import Loopback
from accel_platform.backends.registry import BROWSERS

_COMMANDS = {
    "chromium": ("chromium", "chromium-browser"),
    "chrome": ("google-chrome", "google-chrome-stable", "chrome"),
    "edge": ("microsoft-edge", "microsoft-edge-stable", "msedge"),
    "firefox": ("firefox", "firefox-esr"),
}
_PLACES = {
    "chromium": ("/Applications/Chromium.app/Contents/MacOS/Chromium",),
    "chrome": (
        "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
        "C:/Program Files/Google/Chrome/Application/chrome.exe",
    ),
    "edge": (
        "/Applications/Microsoft Edge.app/Contents/MacOS/Microsoft Edge",
        "C:/Program Files (x86)/Microsoft/Edge/Application/msedge.exe",
    ),
    "firefox": (
        "/Applications/Firefox.app/Contents/MacOS/firefox",
        "C:/Program Files/Mozilla Firefox/firefox.exe",
    ),
}
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
    """What the page sees: `isolated`, its clock's `resolution_ms`, `webgpu` adapter, `webnn` device, or `error`; and
    which `browser` it is in, its `version`, and that of onnxruntime-web."""

    def call(self, function: str, **arguments: Any) -> Any:
        """Call a function of `page.js` and wait for its answer. Raises what it throws, in its words."""
        ...

    def memory_peak_mib(self) -> float | None:
        """Peak memory of all processes of the browser by `MEMORY_METHOD`; None where the system does not tell."""
        ...

    def close(self) -> None: ...


def find_browser(name: str | None = None) -> Browser | None:
    """The browser of that name, or without one the first of the Chromium family; None where it is not installed."""
    for candidate in BROWSERS[:3] if name is None else (name,):
        found = next((path for command in _COMMANDS[candidate] if (path := shutil.which(command))), None)
        found = found or next((path for path in _PLACES[candidate] if Path(path).is_file()), None)
        if found:
            return Browser(candidate, Path(found))
    return None


def open_tab(browser: Browser) -> Tab:
    """Start the browser with our page."""
    if browser.name == "firefox":
        from accel_platform.backends.browser.firefox import FirefoxTab

        return FirefoxTab(browser)
    from accel_platform.backends.browser.chromium import ChromiumTab

    return ChromiumTab(browser)
