"""Installed browsers, and starting one with our page."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import psutil

from accel_platform.backends.browser import package
from accel_platform.backends.browser.server import Loopback
from accel_platform.backends.browser.session import Browser, Tab
from accel_platform.backends.registry import BROWSERS
from accel_platform.hardware.memory import joint_peak_mib

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

    return ChromiumTab(browser)


_FLAGS = (
    "--enable-unsafe-webgpu",
    "--enable-features=Vulkan,WebMachineLearningNeuralNetwork",
    # The adapter tells its full name and driver, and whether it is software.
    "--enable-webgpu-developer-features",
    "--disable-component-update",
)
_START_MS = 60_000


class ChromiumTab:
    """A `Tab`."""

    def __init__(self, browser: Browser) -> None:
        from playwright.sync_api import Browser as Playwright
        from playwright.sync_api import Page, sync_playwright

        self._closing = contextlib.ExitStack()
        try:
            self.server = Loopback({"page": Path(__file__).parent / "page", "runtime": package.folder() / "dist"})
            self._closing.callback(self.server.close)
            playwright = self._closing.enter_context(sync_playwright())
            driven: Playwright = playwright.chromium.launch(
                executable_path=browser.path, args=list(_FLAGS), timeout=_START_MS
            )
            self._closing.callback(driven.close)
            self._page: Page = driven.new_page()
            self._page.goto(f"{self.server.url}/page/index.html", timeout=_START_MS)
            self._page.wait_for_function("window.bench !== undefined", timeout=_START_MS)
            seen = self.call("look")
        except BaseException:
            self._closing.close()
            raise
        self.facts: dict[str, Any] = {
            "browser": browser.name,
            "version": driven.version,
            package.NAME: package.VERSION,
            **seen,
        }

    def call(self, function: str, **arguments: Any) -> Any:
        return self._page.evaluate("([name, given]) => bench[name](given)", [function, arguments])

    def memory_peak_mib(self) -> float | None:
        return joint_peak_mib(self.process_ids())

    def process_ids(self) -> list[int]:
        # The browser's parent is playwright's own process, which is a child of this one.
        found = []
        for driver in psutil.Process().children():
            for child in driver.children():
                if "--headless" in child.cmdline():
                    found += [child.pid, *(descendant.pid for descendant in child.children(recursive=True))]
        return found

    def close(self) -> None:
        self._closing.close()
