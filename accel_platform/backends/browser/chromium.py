"""One page in one headless Chromium of its own: found, started, asked, weighed, ended. What is asked is not known."""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path
from typing import Any

import psutil
from playwright.sync_api import Browser, Page, Playwright, sync_playwright

from accel_platform.backends.browser import package
from accel_platform.backends.browser.server import Loopback
from accel_platform.errors import AccelError

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge", "microsoft-edge")
_PLACES = (
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "C:/Program Files/Google/Chrome/Application/chrome.exe",
    "C:/Program Files (x86)/Microsoft/Edge/Application/msedge.exe",
)
_FLAGS = (
    "--enable-unsafe-webgpu",
    "--enable-features=Vulkan,WebMachineLearningNeuralNetwork",
    # The adapter tells its full name and driver, and whether it is software.
    "--enable-webgpu-developer-features",
    "--disable-component-update",
)
_START_MS = 60_000
MEMORY_METHOD = (
    "the browser's processes, without the harness: their proportional resident sizes at the end of the cell, each plus"
    " how far its resident size had been higher (VmHWM - VmRSS)"
)


def find_browser() -> Path | None:
    """An installed browser of the Chromium family; None where there is none."""
    found = next((path for name in _NAMES if (path := shutil.which(name))), None)
    return Path(found) if found else next((Path(p) for p in _PLACES if Path(p).is_file()), None)


class Tab:
    """Our page, open and cross-origin isolated. `server` gives it its files. Close it, or its processes stay."""

    def __init__(self) -> None:
        browser = find_browser()
        if browser is None:
            raise AccelError("No browser of the Chromium family is installed here.")
        self._closing = contextlib.ExitStack()
        try:
            self.server = Loopback({"page": Path(__file__).parent / "page", "runtime": package.folder() / "dist"})
            self._closing.callback(self.server.close)
            self._playwright: Playwright = self._closing.enter_context(sync_playwright())
            self._browser: Browser = self._playwright.chromium.launch(
                executable_path=browser, args=list(_FLAGS), timeout=_START_MS
            )
            self._closing.callback(self._browser.close)
            self._page: Page = self._browser.new_page()
            self._page.goto(f"{self.server.url}/page/index.html", timeout=_START_MS)
            self._page.wait_for_function("window.bench !== undefined", timeout=_START_MS)
            seen = self.call("look")
        except BaseException:
            self._closing.close()
            raise
        self.facts: dict[str, Any] = {"version": self._browser.version, package.NAME: package.VERSION, **seen}
        """What the page sees: `isolated`, its clock's `resolution_ms`, `webgpu` adapter, `webnn` device, or `error`."""

    def call(self, function: str, **arguments: Any) -> Any:
        """Call a function of `page.js` and wait for its answer. Raises what it throws, in its words."""
        return self._page.evaluate("([name, given]) => bench[name](given)", [function, arguments])

    def memory_peak_mib(self) -> float | None:
        """Peak memory of all processes of the browser by `MEMORY_METHOD`; None where the system does not tell."""
        sizes = [_peak_kib(process.pid) for process in self._processes()]
        known = [size for size in sizes if size is not None]
        return sum(known) / 1024 if known and len(known) == len(sizes) else None

    def close(self) -> None:
        self._closing.close()

    def _processes(self) -> list[psutil.Process]:
        """The browser and its descendants; playwright's own process, which starts it, is a child of this one."""
        found = []
        for driver in psutil.Process().children():
            for child in driver.children():
                if "--headless" in child.cmdline():
                    found += [child, *child.children(recursive=True)]
        return [process for process in found if process.status() != psutil.STATUS_ZOMBIE]


def _peak_kib(pid: int) -> int | None:
    """What one process adds to the peak; None where the kernel does not say, 0 for one that has just ended."""
    folder = Path("/proc") / str(pid)
    try:
        status = _kib_by_name((folder / "status").read_text(encoding="utf-8"))
        share = _kib_by_name((folder / "smaps_rollup").read_text(encoding="utf-8"))
    except (FileNotFoundError, ProcessLookupError):
        return 0 if Path("/proc/self/smaps_rollup").is_file() else None
    except PermissionError:
        return None
    return share["Pss"] + status["VmHWM"] - status["VmRSS"]


def _kib_by_name(text: str) -> dict[str, int]:
    pairs = (line.split(":", 1) for line in text.splitlines() if line.endswith("kB") and ":" in line)
    return {name: int(value.split()[0]) for name, value in pairs}
