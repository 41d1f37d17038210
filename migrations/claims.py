"""What a document claims about itself as a whole: labels of simulation, the hardware its host had. No verdicts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from migrations.documents import Document
from migrations.identity import hardware_named
from migrations.records import child

_FLAGS = {"is_simulation", "is_simulated", "simulated", "simulation", "emulated", "is_mock", "mock", "mocked"}
_MOCK_TEXT = re.compile(r"(?<!not )(?<!non-)(?<!no )\b(mock(ed)?|simulat(ed|ion))\b", re.IGNORECASE)
_NOT_LABELS = {"error", "traceback", "stderr", "reason", "warnings", "simulated_hardware", "command"}
"""Messages that may speak of mocks without being a label, and the blanket labels, which are read on their own."""
_HOST_SECTIONS = ("hardware_info", "available_hardware", "hardware_details", "hardware_detected", "system_info")
_QUOTED = 80


@dataclass(frozen=True)
class Label:
    """A place that says the figures are not real. `scope` is the pointer of the object it stands in."""

    scope: str
    evidence: str
    is_flag: bool


@dataclass(frozen=True)
class BlanketLabel:
    """A list of hardware declared simulated for a whole document, often long after it was written."""

    hardware: frozenset[str]
    verified: str | None = None


@dataclass(frozen=True)
class Claims:
    """Everything a document says about itself that bears on its figures."""

    labels: tuple[Label, ...] = ()
    blanket: BlanketLabel | None = None
    host_has: Mapping[str, bool] = field(default_factory=dict)
    """Hardware the document says its host had or had not. Where two places disagree, it had it."""


def claims_of(document: Document) -> Claims:
    """The claims of a parsed document."""
    root = document.value if isinstance(document.value, dict) else {}
    return Claims(tuple(_labels(document.value, "")), _blanket(root), _host_has(root))


def _labels(value: Any, pointer: str) -> Iterator[Label]:
    """Depth first, without recursion: documents may be nested deeper than Python's stack."""
    stack: list[tuple[str, Any]] = [(pointer, value)]
    while stack:
        where, current = stack.pop()
        if isinstance(current, list):
            stack += [(child(where, i), member) for i, member in enumerate(current) if isinstance(member, dict | list)]
            continue
        if not isinstance(current, dict):
            continue
        for key, member in current.items():
            name = str(key).casefold()
            if name in _NOT_LABELS:
                continue
            if isinstance(member, dict | list):
                stack.append((child(where, key), member))
            elif name in _FLAGS and (member is True or str(member).strip().casefold() == "true"):
                yield Label(where, f"{key}: true", is_flag=True)
            elif isinstance(member, str) and (found := _MOCK_TEXT.search(member)):
                start = max(0, found.start() - _QUOTED // 2)
                yield Label(where, f"{key}: {member[start : start + _QUOTED]!r}", is_flag=False)


def _blanket(root: dict[str, Any]) -> BlanketLabel | None:
    names: list[Any] = list(root["simulated_hardware"]) if isinstance(root.get("simulated_hardware"), list) else []
    verified = None
    for warning in root["warnings"] if isinstance(root.get("warnings"), list) else []:
        if isinstance(warning, dict) and warning.get("type") == "simulation":
            affected = warning.get("affected_hardware")
            names += affected if isinstance(affected, list) else []
            verified = str(warning["verification_date"]) if warning.get("verification_date") else verified
    hardware = frozenset(found for name in names if (found := hardware_named(name)) is not None)
    return BlanketLabel(hardware, verified) if hardware else None


def _host_has(root: dict[str, Any]) -> dict[str, bool]:
    found: dict[str, bool] = {}
    for section in _HOST_SECTIONS:
        facts = root.get(section)
        for key, value in facts.items() if isinstance(facts, dict) else ():
            hardware = hardware_named(str(key).removesuffix("_available"))
            plain = str(key).removesuffix("_available").casefold() == hardware
            if hardware is not None and plain and isinstance(value, bool):
                found[hardware] = found.get(hardware, False) or value
    return found
