"""asv's own lists: which benchmarks there are, and what a machine is. No value of any run."""

from __future__ import annotations

from migrations.normalize.row_access import object_of
from migrations.sources.documents import Document

NOT_RESULTS = "asv's list of benchmarks or description of a machine"

_BENCHMARK = {"code", "name", "type", "unit", "param_names", "params", "timeout"}
_MACHINE = {"arch", "cpu", "machine", "os", "ram"}


def detect(document: Document) -> float:
    """Return high confidence where every entry defines a benchmark, or one machine is described and nothing is
    measured.
    """
    value = object_of(document.value)
    entries = [entry for key, entry in value.items() if key != "version"]
    if entries and all(isinstance(entry, dict) and len(entry.keys() & _BENCHMARK) >= 4 for entry in entries):
        return 0.9
    if entries and all(isinstance(entry, dict) and entry.keys() >= _MACHINE for entry in entries):
        return 0.85
    return 0.85 if value.keys() >= _MACHINE and "results" not in value else 0.0
