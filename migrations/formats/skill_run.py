"""Logs of skill test scripts: exit code, output and time of each run, and its printed result (`json_result`).

The runs may stand under `skill_tests`. The time covers the whole script, so it is no latency.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from migrations.normalize.records import NoResult, Part, child, refuse
from migrations.sources.documents import Document
from migrations.tools.legacy_skill_tests import read_body

_RUN = {"test_file", "return_code", "stdout", "stderr", "elapsed_time"}


def detect(document: Document) -> float:
    """Return high confidence where a run's exit code and outputs stand at the top or under `skill_tests`."""
    value = document.value
    if not isinstance(value, dict):
        return 0.0
    if _sections(value):
        return 0.9
    return 0.9 if len(value.keys() & _RUN) >= 4 else 0.0


def parse(document: Document) -> Iterator[Part]:
    """Yield each run's result; a run without one is a log."""
    value = document.value
    sections = _sections(value)
    if not sections:
        yield from _run(document, "", value, value.get("timestamp"))
    for section in sections:
        at = child("", section)
        for key, run in value[section].items():
            yield from _run(document, child(at, key), run, value.get("timestamp"))
        if not value[section]:
            yield NoResult(at, "a run of no tests")


def _sections(value: dict[str, Any]) -> list[str]:
    """Return the keys under which a file lists runs by script: `skill_tests` and similar ones."""
    return [
        key
        for key, runs in value.items()
        if str(key).endswith("_tests")
        and isinstance(runs, dict)
        and (
            key == "skill_tests"
            or (runs and all(isinstance(r, dict) and len(r.keys() & _RUN) >= 3 for r in runs.values()))
        )
    ]


def _run(document: Document, pointer: str, run: Any, when: Any) -> Iterator[Part]:
    if not isinstance(run, dict):
        yield refuse(pointer, "unexpected_shape", "an object was expected", run)
        return
    script = run.get("test_file") or pointer.rpartition("/")[2]
    result = run.get("json_result")
    parts = read_body(document, child(pointer, "json_result"), result, (script,), (when,)) if result else []
    yield from parts or [NoResult(pointer, f"the log of {script}, {_end(run)}")]


def _end(run: dict[str, Any]) -> str:
    if run.get("return_code") == 0:
        return "which ended well"
    last = str(run.get("stderr") or run.get("error") or "").strip().splitlines()
    return f"which ended with {run.get('return_code')!r}" + (f": {last[-1][:200]}" if last else "")
