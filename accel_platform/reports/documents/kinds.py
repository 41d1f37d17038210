"""Kinds of report and their sections. Add a report here."""

from __future__ import annotations

from collections.abc import Callable

from accel_platform.analysis.query.filters import Selection, require_known
from accel_platform.errors import NotFound
from accel_platform.reports.documents import findings, sections
from accel_platform.reports.documents.model import Finding, Findings, Picture, ReportDocument, Section
from accel_platform.reports.documents.source import ReportSource, Say
from accel_platform.warehouse.reader import Reader

Writer = Callable[[ReportSource], Section]
Finder = Callable[[ReportSource], list[Finding]]
KINDS: dict[str, tuple[str, tuple[Finder, ...], tuple[Writer, ...]]] = {
    "performance": (
        "how fast each model is, where, at which batch size, and what changed",
        (findings.scope, findings.fastest, findings.shifts, findings.caveats),
        (sections.overview, sections.fastest, sections.batches, sections.changes, sections.missing),
    ),
    "hardware": (
        "what hosts have, what was measured on it, speed-up, efficiency and roofline",
        (findings.scope, findings.fastest, findings.caveats),
        (sections.overview, sections.devices, sections.fastest, sections.speed, sections.missing),
    ),
    "compatibility": (
        "what runs where, how well, and why not",
        (findings.scope, findings.verdicts, findings.caveats),
        (sections.overview, sections.compatibility, sections.missing),
    ),
    "coverage": (
        "what was tested of what could be, and what would fill the holes",
        (findings.scope, findings.untested, findings.caveats),
        (sections.overview, sections.coverage, sections.missing),
    ),
    "optimization": (
        "how far each model is from the roofline, and what the best configuration does differently",
        (findings.scope, findings.gains, findings.caveats),
        (sections.overview, sections.optimization, sections.missing),
    ),
    "comprehensive": (
        "all of these",
        (
            findings.scope,
            findings.fastest,
            findings.shifts,
            findings.verdicts,
            findings.gains,
            findings.untested,
            findings.caveats,
        ),
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
"""By kind: what it shows, its findings, and its sections."""


def report(kind: str, reader: Reader, selection: Selection, *, say: Say = lambda _: None) -> ReportDocument:
    """Return a report on the selection at the current snapshot: findings, then charts, then text and tables.

    `say` receives progress. Raises NotFound for an unknown kind, WarehouseEmpty before the first snapshot, and what
    `require_known` raises.
    """
    if kind not in KINDS:
        raise NotFound(f"There is no report {kind!r}. Reports: {', '.join(KINDS)}.")
    require_known(reader, selection)
    source = ReportSource(reader, selection, say)
    _, finders, writers = KINDS[kind]
    found = [finding for finder in finders for finding in finder(source)]
    written = [writer(source) for writer in writers]
    pictures = [part for section in written for part in section.parts if isinstance(part, Picture)]
    drawn, lacking = ([p for p in pictures if (p.chart is None) is none] for none in (False, True))
    rest = [Section(s.heading, [part for part in s.parts if not isinstance(part, Picture)]) for s in written]
    return ReportDocument(
        f"{kind.capitalize()} report",
        source.facts(),
        [
            Section("Findings", [Findings(found)]),
            *([Section("Charts", [*drawn, *lacking])] if pictures else []),
            *(section for section in rest if section.parts),
        ],
    )
