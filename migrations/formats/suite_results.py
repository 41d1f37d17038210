"""Results of the old model suite: whole functionality checks and hardware benchmarks inside, by hardware and family.

Each document inside is read by itself. The rest are failures of a whole family or hardware, of which no single cell is
known.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from migrations.normalize.records import EmbeddedDocument, NoResult, Part, child, refuse
from migrations.sources.documents import Document

_SECTIONS = ("functionality_verification", "performance_benchmarks")


def detect(document: Document) -> float:
    """Return high confidence where one of the suite's two sections is an object."""
    value = document.value
    if not isinstance(value, dict):
        return 0.0
    return 0.95 if any(isinstance(value.get(section), dict) for section in _SECTIONS) else 0.0


def parse(document: Document) -> Iterator[Part]:
    """Yield each section's entries: a document, or why there is none."""
    empty = True
    for section in _SECTIONS:
        entries = document.value.get(section)
        for key, entry in entries.items() if isinstance(entries, dict) else ():
            empty = False
            yield _entry(child(f"/{section}", key), key, entry)
    if empty:
        yield NoResult("", "a suite that ran nothing")


def _entry(where: str, key: str, entry: Any) -> Part:
    if not isinstance(entry, dict):
        return refuse(where, "unexpected_shape", "an object was expected", entry)
    error = entry.get("error")
    if error is not None and entry.keys() <= {"status", "error", "timestamp", "traceback"}:
        lines = str(error).strip().splitlines()
        last = lines[-1].strip()[:200] if lines else "no message"
        return refuse(where, "failure_of_a_whole_group", f"the benchmark of {key} failed as a whole: {last}", entry)
    return EmbeddedDocument(where, entry)
