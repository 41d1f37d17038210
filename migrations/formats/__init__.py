"""Formats of old results: one small module per format. To add one, put a module here; nothing else changes.

A module holds `detect(document) -> float`, its confidence (0 to 1) by the content, and `parse(document)`. `parse`
yields a `Record` or `RefusedCell` for every cell, `EmbeddedDocument` for every whole document inside, and `NoResult`
for a part without results. A format with `LAST_RESORT` is asked only where no other is sure. Formats that never hold
results are in `without_results`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter

from migrations.normalize.records import Part
from migrations.sources.documents import Document

_WITHOUT_RESULTS = "without_results"


@dataclass(frozen=True)
class Format:
    """One discovered format; its name is its module's, or its function's in `without_results`."""

    name: str
    detect: Callable[[Document], float]
    parse: Callable[[Document], Iterable[Part]]
    not_results: str | None = None
    """Description of documents that never hold results; None for a format that does."""
    last_resort: bool = False
    """True for a format that is asked only where no other is sure."""


@lru_cache(maxsize=1)
def all_formats() -> tuple[Format, ...]:
    """Return every format of this package, by name. Raises AttributeError for a module that breaks the contract."""
    from migrations.formats.without_results import FORMATS

    names = (info.name for info in pkgutil.iter_modules(__path__) if info.name != _WITHOUT_RESULTS)
    return tuple(sorted([*map(_load, names), *FORMATS], key=attrgetter("name")))


def _load(name: str) -> Format:
    module = importlib.import_module(f"{__name__}.{name}")
    return Format(name, module.detect, module.parse, last_resort=getattr(module, "LAST_RESORT", False))
