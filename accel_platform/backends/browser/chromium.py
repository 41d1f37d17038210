"""Session with our page in a headless browser of the Chromium family, driven by playwright."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import Browser as Playwright
from playwright.sync_api import Page, sync_playwright

from accel_platform.backends.browser import package
from accel_platform.backends.browser.server import Loopback
from accel_platform.backends.browser.session import Browser
from accel_platform.hardware.memory import joint_peak_mib

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
        return joint_peak_mib(process.pid for process in self._processes())

    def close(self) -> None:
        self._closing.close()

    def _processes(self) -> list[psutil.Process]:
        """Return the browser and its descendants; playwright's own process, its parent, is a child of this one."""
        found = []
        for driver in psutil.Process().children():
            for child in driver.children():
                if "--headless" in child.cmdline():
                    found += [child, *child.children(recursive=True)]
        return found
