"""Claims of a document about itself: labels of simulation, and the hardware of its host."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from migrations.normalize.canonical_names import hardware_named, hardware_of_key
from migrations.normalize.records import child
from migrations.sources.documents import Document

_FLAGS = {"is_simulation", "is_simulated", "simulate", "simulated", "simulation", "emulated", "is_mock", "mock",
          "mocked", "using_mocks", "transformers_mocked"}  # fmt: skip
_MOCK_TEXT = re.compile(r"(?<!not )(?<!non-)(?<!no )\b(mock(ed)?|simulat(ed|ion))\b", re.IGNORECASE)
_LABEL_WORDS = (b"mock", b"simulat", b"emulated")
"""Parts of words: every flag, and every text that is a label, contains at least one."""
_NOT_LABELS = {"error", "traceback", "stderr", "reason", "warnings", "simulated_hardware", "command"}
"""Keys of messages that may speak of mocks without being a label, and of blanket labels, which are read separately."""
_HOST_SECTIONS = (
    ("hardware_info",), ("available_hardware",), ("hardware_details",), ("hardware_detected",), ("system_info",),
    ("hardware",), ("hardware", "capabilities"), ("metadata",), ("results", "metadata"), ("json_result", "metadata"),
)  # fmt: skip
_NAMES_HARDWARE = ("platform", "hardware", "hardware_type")
_QUOTE_CHARACTERS = 80


@dataclass(frozen=True)
class Label:
    """A place that says the figures are not real. `scope` is the pointer of the object it stands in."""

    scope: str
    evidence: str
    is_flag: bool
    hardware: str | None = None
    """The hardware it speaks of, where its key (`qualcomm_init`) or its object (`"platform": "CUDA"`) names one."""


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

    def within(self, around: Claims) -> Claims:
        """Return these claims, completed by the blanket label and host of the document around."""
        return Claims(self.labels, self.blanket or around.blanket, {**around.host_has, **self.host_has})


NO_CLAIMS = Claims()


def claims_of(document: Document) -> Claims:
    """Return the claims of a parsed document."""
    root = document.value if isinstance(document.value, dict) else {}
    labels = tuple(_labels(document.value, "")) if _may_be_labeled(document) else ()
    return Claims(labels, _blanket(root), _host_has(root))


def labels_in(value: Any) -> Claims:
    """Return the labels of simulation in a JSON value, without its claims about the host."""
    return Claims(tuple(_labels(value, "")))


def _may_be_labeled(document: Document) -> bool:
    """Return whether words of a label occur in the bytes, far quicker than visiting every value."""
    if document.kind in ("rows", "tables") or b"\0" in document.content.raw:
        return True  # compressed, or of two bytes a character
    raw = document.content.raw.lower()
    return any(word in raw for word in _LABEL_WORDS)


def _labels(value: Any, pointer: str) -> Iterator[Label]:
    """Yield labels depth first, without recursion, because documents may nest deeper than Python's stack."""
    stack: list[tuple[str, Any, str | None]] = [(pointer, value, None)]
    while stack:
        where, current, around = stack.pop()
        if isinstance(current, list):
            stack += [(child(where, i), m, around) for i, m in enumerate(current) if isinstance(m, dict | list)]
            continue
        if not isinstance(current, dict):
            continue
        around = next((found for key in _NAMES_HARDWARE if (found := hardware_named(current.get(key)))), around)
        for key, member in current.items():
            name = str(key).casefold()
            # The raw output of a run names every hardware, so only labels in its parsed result are exact.
            if name in _NOT_LABELS or (name == "stdout" and "json_result" in current):
                continue
            hardware = hardware_of_key(key) or around
            if isinstance(member, dict | list):
                stack.append((child(where, key), member, hardware))
            elif name in _FLAGS and (member is True or str(member).strip().casefold() == "true"):
                yield Label(where, f"{key}: true", is_flag=True, hardware=hardware)
            elif isinstance(member, str) and not member.startswith("Error") and (match := _MOCK_TEXT.search(member)):
                start = max(0, match.start() - _QUOTE_CHARACTERS // 2)
                evidence = f"{key}: {member[start : start + _QUOTE_CHARACTERS]!r}"
                yield Label(where, evidence, is_flag=False, hardware=hardware)


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
    for path in _HOST_SECTIONS:
        facts: Any = root
        for step in path:
            facts = facts.get(step) if isinstance(facts, dict) else None
        for key, value in facts.items() if isinstance(facts, dict) else ():
            hardware = hardware_named(str(key).removesuffix("_available"))
            plain = str(key).removesuffix("_available").casefold() == hardware
            if hardware is not None and plain and isinstance(value, bool):
                found[hardware] = found.get(hardware, False) or value
    return found
