"""Session with our page in a headless Firefox, which polls our server for calls.

Playwright drives only its own builds of Firefox; a page that polls needs no driver.
"""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import psutil

from accel_platform.backends.browser import package
from accel_platform.backends.browser.server import Loopback
from accel_platform.backends.browser.session import Browser
from accel_platform.errors import AccelError
from accel_platform.hardware.memory import joint_peak_mib

_PREFERENCES = {
    "app.update.enabled": False,
    "app.normandy.enabled": False,
    "browser.shell.checkDefaultBrowser": False,
    "browser.startup.homepage_override.mstone": "ignore",
    "datareporting.policy.dataSubmissionEnabled": False,
    "datareporting.healthreport.uploadEnabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "services.settings.server": "data:,",
    "toolkit.telemetry.enabled": False,
    "dom.webgpu.enabled": True,
    # Otherwise its clock is coarsened and jittered.
    "privacy.reduceTimerPrecision": False,
}
_START_S = 60.0


class FirefoxTab:
    """A `Tab`."""

    def __init__(self, browser: Browser) -> None:
        self._closing = contextlib.ExitStack()
        try:
            self.server = Loopback({"page": Path(__file__).parent / "page", "runtime": package.folder() / "dist"})
            self._closing.callback(self.server.close)
            profile = Path(self._closing.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
            lines = (f"user_pref({json.dumps(key)}, {json.dumps(value)});\n" for key, value in _PREFERENCES.items())
            (profile / "user.js").write_text("".join(lines), encoding="utf-8")
            self._log = self._closing.enter_context((profile / "log").open("w+b"))
            self._process = subprocess.Popen(
                [
                    browser.path,
                    "--headless",
                    "--no-remote",
                    "--profile",
                    profile,
                    f"{self.server.url}/page/asking.html",
                ],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
            )
            self._closing.callback(self._end)
            seen = self._ask("look", {}, _START_S)
        except BaseException:
            self._closing.close()
            raise
        self.facts: dict[str, Any] = {"browser": browser.name, package.NAME: package.VERSION, **seen}
        self.facts["version"] = seen["agent"].rpartition("Firefox/")[2]

    def call(self, function: str, **arguments: Any) -> Any:
        return self._ask(function, arguments, None)

    def memory_peak_mib(self) -> float | None:
        return joint_peak_mib(self.process_ids())

    def process_ids(self) -> list[int]:
        root = psutil.Process(self._process.pid)
        return [process.pid for process in (root, *root.children(recursive=True))]

    def close(self) -> None:
        self._closing.close()

    def _ask(self, function: str, arguments: dict[str, Any], limit_s: float | None) -> Any:
        """Send the page a call and wait for its answer, while the browser lives and the limit allows."""
        self.server.calls.put(json.dumps([function, arguments]).encode())
        waited_s = 0.0
        while True:
            try:
                answer = json.loads(self.server.answers.get(timeout=1.0))
                break
            except queue.Empty:
                waited_s += 1.0
            if self._process.poll() is not None:
                self._log.seek(0)
                words = self._log.read().decode(errors="replace").strip().splitlines()
                raise AccelError(f"Firefox ended with exit code {self._process.returncode}: {'; '.join(words[-3:])}")
            if limit_s is not None and waited_s >= limit_s:
                raise AccelError(f"Firefox did not show the page within {limit_s:g} s.")
        if "error" in answer:
            raise AccelError(answer["error"])
        return answer.get("value")

    def _end(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self._process.pid)
            for process in (*root.children(recursive=True), root):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self._process.wait()
