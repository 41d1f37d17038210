"""Formats of old results: one small module per format. To add one, put a module here; nothing else changes.

A module holds `detect(document) -> float`, its confidence (0 to 1) by the content, and `parse(document)`. `parse`
yields a `Record` or `RefusedCell` for every cell, `EmbeddedDocument` for every whole document inside, and `NoResult`
for a part without results. A format that never holds results says what it is in `NOT_RESULTS` and has no `parse`; one
with `LAST_RESORT` is asked only where no other is sure.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache

from migrations.normalize.records import Part
from migrations.sources.documents import Document


@dataclass(frozen=True)
class Format:
    """One discovered format; its name is its module's."""

    name: str
    detect: Callable[[Document], float]
    parse: Callable[[Document], Iterable[Part]]
    not_results: str | None = None
    last_resort: bool = False
    """True for a format that is asked only where no other is sure."""


@lru_cache(maxsize=1)
def all_formats() -> tuple[Format, ...]:
    """Return every format of this package, by name. Raises AttributeError for a module that breaks the contract."""
    return tuple(_load(info.name) for info in pkgutil.iter_modules(__path__))


def _load(name: str) -> Format:
    module = importlib.import_module(f"{__name__}.{name}")
    not_results: str | None = getattr(module, "NOT_RESULTS", None)
    parse = _nothing if not_results else module.parse
    return Format(name, module.detect, parse, not_results, getattr(module, "LAST_RESORT", False))


def _nothing(_document: Document) -> Iterator[Part]:
    return iter(())
