"""Installed browsers, and starting one with our page."""

from __future__ import annotations

import shutil
from pathlib import Path

from accel_platform.backends.browser.session import Browser, Tab
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


def find_browser(name: str | None = None) -> Browser | None:
    """Return the browser of that name, by default the first of the Chromium family; None if not installed."""
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
