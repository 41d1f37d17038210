"""Kinds of report and their sections. Add a report here."""

from __future__ import annotations

from collections.abc import Callable

from accel_platform.analysis.query.filters import Selection
from accel_platform.errors import NotFound
from accel_platform.reports.documents import sections
from accel_platform.reports.documents.model import ReportDocument, Section
from accel_platform.reports.documents.source import ReportSource, Say
from accel_platform.warehouse.reader import Reader

Writer = Callable[[ReportSource], Section]
KINDS: dict[str, tuple[str, tuple[Writer, ...]]] = {
    "performance": (
        "how fast each model is, where, at which batch size, and what changed",
        (sections.overview, sections.fastest, sections.batches, sections.changes, sections.missing),
    ),
    "hardware": (
        "what hosts have, what was measured on it, speed-up, efficiency and roofline",
        (sections.overview, sections.devices, sections.fastest, sections.speed, sections.missing),
    ),
    "compatibility": (
        "what runs where, how well, and why not",
        (sections.overview, sections.compatibility, sections.missing),
    ),
    "coverage": (
        "what was tested of what could be, and what would fill the holes",
        (sections.overview, sections.coverage, sections.missing),
    ),
    "optimization": (
        "how far each model is from the roofline, and what the best configuration does differently",
        (sections.overview, sections.optimization, sections.missing),
    ),
    "comprehensive": (
        "all of these",
        (
            sections.overview,
            sections.fastest,
            sections.batches,
            sections.models,
            sections.devices,
            sections.speed,
            sections.compatibility,
            sections.optimization,
            sections.coverage,
            sections.changes,
            sections.missing,
        ),
    ),
}


def report(kind: str, reader: Reader, selection: Selection, *, say: Say = lambda _: None) -> ReportDocument:
    """Return a report on the selection at the current snapshot; `say` receives progress.

    Raises NotFound for an unknown kind, WarehouseEmpty before the first snapshot.
    """
    if kind not in KINDS:
        raise NotFound(f"There is no report {kind!r}. Reports: {', '.join(KINDS)}.")
    source = ReportSource(reader, selection, say)
    _, writers = KINDS[kind]
    written = [writer(source) for writer in writers]
    return ReportDocument(f"{kind.capitalize()} report", source.facts(), written)
