"""Qualcomm AI Hub's `perf.yaml` in both its layouts: figures of each network on each device with each runtime."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml

from migrations.normalize.path_hints import parts
from migrations.normalize.records import NoResult, Part, refuse
from migrations.sources.documents import Document
from migrations.tools import ai_hub

_ROOTS = ("models:", "precisions:")
_FIRST = (*_ROOTS, "supported_devices:", "supported_chipsets:", "aggregated:")
_NOT_OURS = re.compile(r"[:-]\s+[&*]\w|[\[{](?![\]}])|.{400}")
"""Anchors and flow collections, which the hub does not write and by which a text may be endless or deep when read."""


_ENDING = 3
"""Most lines before the end in which an error counts as a truncated ending."""


class _MappingWithLine(dict[str, Any]):
    """A mapping that knows on which line it begins."""

    line: int = 0


def detect(document: Document) -> float:
    """Return high confidence where metrics stand under models or precisions at the left margin."""
    if document.kind != "text" or not any(line.rstrip() in _ROOTS for line in document.value):
        return 0.0
    metrics = any(line.strip(" -").startswith("performance_metrics:") for line in document.value)
    return 0.95 if metrics and not any(_NOT_OURS.search(line) for line in document.value) else 0.0


def parse(document: Document) -> Iterator[Part]:
    """Yield one record per network, device and runtime.

    Lines before the first key belong to another program; a truncated end is refused by itself.
    """
    lines = document.value
    start = next(number for number, line in enumerate(lines) if line.rstrip() in _FIRST)
    try:
        node, end = _composed(lines, start)
    except yaml.YAMLError as error:
        yield refuse("/0", "invalid_yaml", f"invalid YAML: {error}", lines)
        return
    if end < len(lines):
        yield refuse(f"/{end}", "broken_off", "the ending is no YAML", lines[end:])
    components = (parts(document.source_path) or [""])[1:2]
    none = True
    for _, entry, row in ai_hub.perf_entries(_value(node, start)):
        none = False
        several = row.get("parts", 1) > 1 and bool(components)
        named = {**row, "model_id": components[0]} if several else row
        line = entry.line if isinstance(entry, _MappingWithLine) else 0
        yield ai_hub.record(document.source_path, f"/{line}", named, is_part=several)
    if none:
        yield NoResult("/0", "a perf file without an entry")


def _composed(lines: list[str], start: int) -> tuple[Any, int]:
    """Return the document that begins at a line, and its end, without broken last lines. Raises YAMLError."""
    end = len(lines)
    while True:
        try:
            return yaml.compose("\n".join(lines[start:end]), Loader=yaml.CSafeLoader), end
        except yaml.MarkedYAMLError as error:
            mark = error.problem_mark
            if mark is None or start + mark.line < end - _ENDING or end - 1 <= start:
                raise
            end -= 1


def _value(node: Any, start: int) -> Any:
    """Return mappings and lists as they are, every scalar as its text."""
    if isinstance(node, yaml.MappingNode):
        found = _MappingWithLine({str(_value(key, start)): _value(value, start) for key, value in node.value})
        found.line = start + node.start_mark.line
        return found
    if isinstance(node, yaml.SequenceNode):
        return [_value(member, start) for member in node.value]
    return node.value if isinstance(node, yaml.ScalarNode) else None
