"""Files into the event log, one segment per document, each accounted for. What one document becomes is `reading.py`.

A document's segment is named after its content, so a second import writes nothing and one killed half-way is taken up
where it stopped. The same content under another path gets a segment of its own that says so. A document found inside
another one is a document like any other, called `path#/json/pointer`; it is written before the one around it, so that
what is known of the outer one holds for all inside it.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from accel_platform.events import Event, EventLog, Snapshot
from accel_platform.events.types import DocumentImported
from migrations.archive import suspect_across
from migrations.claims import NOTHING_CLAIMED, Claims
from migrations.documents import Content, Document, find_files, load, parse
from migrations.reading import Outcome, event_of, ledger_entry, read
from migrations.records import Embedded

Progress = Callable[[int, int, "DocumentReport"], None]
"""Called after each document with its number, the number of files, and what became of it."""


@dataclass(frozen=True)
class DocumentReport:
    """What became of one file in this run. `already` is True where the log knew it and nothing was written."""

    source_path: str
    format: str
    outcome: Outcome
    records: int
    failures: int
    suspects: int
    reason: str | None
    already: bool = False
    embedded: tuple[DocumentReport, ...] = ()
    """The documents found inside it, where this run read it."""

    def all(self) -> Iterator[DocumentReport]:
        """This document and all inside it, at any depth."""
        yield self
        for inside in self.embedded:
            yield from inside.all()


@dataclass(frozen=True)
class ImportReport:
    """One run over some paths. `outcomes` adds up to `found`, the files; known ones count as `already_imported`. The
    documents inside files are counted on their own, in `embedded`."""

    found: int
    outcomes: dict[str, int]
    embedded: dict[str, int]
    records: int
    failures: int
    suspects: int
    suspected_across: int
    """Suspicions that only show over several documents, about results of this run or of earlier ones."""
    events: int
    dry_run: bool
    documents: tuple[DocumentReport, ...] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def migrate(
    paths: Iterable[Path], log: EventLog, *, dry_run: bool = False, on_progress: Progress | None = None
) -> ImportReport:
    """Import every file under the paths. With `dry_run` everything is read and judged, and nothing written.

    Raises NotFound for a path that is not there, LogUnavailable where the log cannot be written. `records`, `failures`
    and `suspects` of the report count what this run brought in.
    """
    files = list(find_files(paths))
    run = _Import(log, dry_run)
    reports = []
    for number, path in enumerate(files, start=1):
        report = run.take(load(path))
        reports.append(report)
        if on_progress is not None:
            on_progress(number, len(files), report)
    every = [document for report in reports for document in report.all()]
    new = [document for document in every if not document.already]
    across = run.suspect_across() if any(document.records for document in new) else 0
    return ImportReport(
        found=len(files),
        outcomes=_outcomes(reports),
        embedded=_outcomes(inside for report in reports for document in report.all() for inside in document.embedded),
        records=sum(r.records for r in new),
        failures=sum(r.failures for r in new),
        suspects=sum(r.suspects for r in new),
        suspected_across=across,
        events=run.events,
        dry_run=dry_run,
        documents=tuple(reports),
    )


class _Import:
    """One run: the segments known at its start and the contents met since."""

    def __init__(self, log: EventLog, dry_run: bool) -> None:
        self._log = log
        self._dry_run = dry_run
        self._known = log.snapshot().segments
        self._first_path: dict[str, str] = {}
        self.events = 0

    def take(
        self, content: Content, document: Document | None = None, around: Claims = NOTHING_CLAIMED
    ) -> DocumentReport:
        """Account for one document, which may be parsed already, and for all inside it. `around` is what the document
        around it claims. Raises LogUnavailable."""
        key = _key(content)
        copy_key = f"{key}-{_short_hash(content.source_path)}"
        entries = {k: self._ledger_entry(k) for k in (key, copy_key) if k in self._known}
        for entry in entries.values():
            if entry.source_path == content.source_path:
                return _report(entry, already=True)
        first = entries[key].source_path if key in entries else self._first_path.get(key)
        if first is not None:
            entry = ledger_entry(content, "duplicate", "duplicate", reason=f"the same content as {first}")
            self._append([event_of(entry)], copy_key)
            return _report(entry)
        document = document or parse(content)
        reading = read(document, around)
        inside = tuple(self._take_embedded(content, part, reading.claims) for part in reading.embedded)
        if not self._append(reading.events, key):
            # Another process imported this content since we looked: what it wrote stands.
            self._known |= {key}
            return self.take(content, document, around)
        self._first_path[key] = content.source_path
        return replace(_report(reading.entry), embedded=inside)

    def _take_embedded(self, outer: Content, part: Embedded, around: Claims) -> DocumentReport:
        # The old framework wrote every file this way, so a copy in a file of its own has the same bytes and hash.
        text = json.dumps(part.value, indent=2)
        content = Content.of(text.encode(), f"{outer.source_path}#{part.pointer}")
        return self.take(content, Document(content, "json", part.value), around)

    def suspect_across(self) -> int:
        """Look for what repeats over all documents ever imported, and store it. Nothing in a dry run, which has
        stored nothing to look at."""
        if self._dry_run:
            return 0
        found = suspect_across(self._log)
        if found:
            marks = " ".join(f"{suspicion.result_id} {suspicion.rule}" for suspicion in found)
            self._append([event_of(suspicion) for suspicion in found], f"suspicions-{_short_hash(marks)}")
        return len(found)

    def _append(self, events: list[Event], key: str) -> bool:
        if self._dry_run:
            return True
        appended = self._log.append(events, key=key)
        self.events += appended.events if appended.new else 0
        return appended.new

    def _ledger_entry(self, key: str) -> DocumentImported:
        found = self._log.read(Snapshot(frozenset({key})), types={"DocumentImported"})
        payload = next(found).payload
        assert isinstance(payload, DocumentImported)
        return payload


def _outcomes(reports: Iterable[DocumentReport]) -> dict[str, int]:
    return dict(Counter("already_imported" if report.already else report.outcome for report in reports))


def _report(entry: DocumentImported, *, already: bool = False) -> DocumentReport:
    return DocumentReport(
        source_path=entry.source_path,
        format=entry.format,
        outcome=entry.outcome,
        records=entry.records,
        failures=entry.failures,
        suspects=entry.suspects,
        reason=entry.reason,
        already=already,
    )


def _key(content: Content) -> str:
    """After the content; a file that cannot be opened has none, so its name stands in until it can."""
    if not content.sha256:
        return f"import-unopened-{_short_hash(content.source_path)}"
    return f"import-{content.sha256[:32]}"


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
