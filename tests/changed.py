"""Unit tests of what changed, for `make check`: test files that changed or import a changed module, a line each."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PACKAGES = ("accel_platform", "assets", "migrations", "predictor")


def changed_files(since: str) -> list[str]:
    """Return the paths that differ from the commit `since`, files unknown to git among them."""
    tracked = _git("diff", "--name-only", "--diff-filter=d", since)
    return [*tracked, *_git("ls-files", "--others", "--exclude-standard")]


def tests_of(changed: list[str], tests: dict[str, str]) -> list[str]:
    """Return the test files (path to text in `tests`) that are among `changed` or import a module of it."""
    modules = [Path(path).with_suffix("").parts for path in changed if path.endswith(".py")]
    patterns = [_import_of(parts) for parts in modules if parts[0] in PACKAGES and len(parts) > 1]
    imports = re.compile("|".join(patterns), re.MULTILINE) if patterns else None
    return [path for path, text in tests.items() if path in changed or (imports and imports.search(text))]


def _import_of(parts: tuple[str, ...]) -> str:
    package, module = ".".join(parts[:-1]), parts[-1]
    return rf"^\s*from {re.escape(package)}(\.{module} import| import .*\b{module}\b)"


def _git(*arguments: str) -> list[str]:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout.splitlines()


if __name__ == "__main__":
    found = changed_files(sys.argv[1] if len(sys.argv) > 1 else "HEAD")
    unit = {str(path): path.read_text(encoding="utf-8") for path in sorted(Path("tests/unit").rglob("test_*.py"))}
    print("\n".join(tests_of(found or changed_files("HEAD~1"), unit)))
