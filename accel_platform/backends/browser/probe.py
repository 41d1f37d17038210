"""Facts that a page sees in this host's browser, collected in a process of its own because of its event loop."""

from __future__ import annotations

import functools
import importlib.util
import json
import subprocess
import sys
from typing import Any

from accel_platform.backends.browser import package
from accel_platform.backends.browser.launch import find_browser, open_tab

_LIMIT_S = 90.0


class NoBrowser(Exception):
    """Reason why no page can run here, with the remedy."""


def look(name: str | None = None) -> dict[str, Any]:
    """Return `Tab.facts` of the named browser, or of the default one; starts each once per process (1 to 4 s).

    Raises NoBrowser.
    """
    if name != "firefox" and importlib.util.find_spec("playwright") is None:
        raise NoBrowser("playwright, which drives the browser, is not installed: pip install 'accel-platform[web]'")
    if find_browser(name) is None:
        wanted = "no browser of the Chromium family" if name is None else f"no {name}"
        raise NoBrowser(f"{wanted} is on this machine: install {name or 'chromium'}")
    if not package.is_installed():
        raise NoBrowser(f"{package.NAME} {package.VERSION} is not installed: run `accel bench setup-web`")
    return _look(name)


@functools.cache
def _look(name: str | None) -> dict[str, Any]:
    command = [sys.executable, "-P", "-m", __name__, *([name] if name else [])]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired as error:
        raise NoBrowser(f"the browser did not answer within {_LIMIT_S:g} s") from error
    if answer.returncode != 0:
        lines = [line for line in answer.stderr.splitlines() if line.strip()]
        raise NoBrowser(f"the browser does not start: {lines[-1] if lines else f'exit code {answer.returncode}'}")
    facts: dict[str, Any] = json.loads(answer.stdout)
    return facts


def main() -> None:
    browser = find_browser(*sys.argv[1:])
    assert browser is not None, "`look` asks only for one that is there"
    tab = open_tab(browser)
    try:
        facts = tab.facts
    finally:
        tab.close()
    json.dump(facts, sys.stdout)


if __name__ == "__main__":
    main()
