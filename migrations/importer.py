"""Files into the event log, one segment per document, each accounted for. What a file holds is read by `formats/`.

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
from typing import Any, Literal

from accel_platform.events import Event, EventLog, Snapshot
from accel_platform.events.types import DocumentImported, Payload, RecordQuarantined
from migrations.archive import suspect_across
from migrations.claims import NOTHING_CLAIMED, Claims, claims_of
from migrations.documents import Content, Document, find_files, load, parse
from migrations.recognise import describe, recognise
from migrations.records import Embedded, NoResult, Record, Refused
from migrations.suspicion import judge

SOURCE = "migrate"
KEPT_WHOLE_CHARACTERS = 1_000_000
"""A quarantined document up to this size is kept whole in the log; of a larger one the beginning, and the reason says
that the rest is in the file alone."""

Outcome = Literal["imported", "duplicate", "not_results", "quarantined"]
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
            entry = _ledger(content, "duplicate", "duplicate", reason=f"the same content as {first}")
            self._append([_event(entry)], copy_key)
            return _report(entry)
        document = document or parse(content)
        reading = _read(document, around)
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
            self._append([_event(suspicion) for suspicion in found], f"suspicions-{_short_hash(marks)}")
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


@dataclass(frozen=True)
class _Reading:
    """A document read: its ledger entry; all its events, first the entry, then what it holds, naming it as the cause;
    and the documents inside it, still to be taken."""

    entry: DocumentImported
    events: list[Event]
    embedded: tuple[Embedded, ...] = ()
    claims: Claims = NOTHING_CLAIMED


def _read(document: Document, around: Claims) -> _Reading:
    content = document.content
    if document.kind == "unreadable":
        return _quarantine(content, "unreadable", document.problem or "unreadable")
    if document.kind == "text":
        return _not_results(content, "text", "plain text without figures")
    found = recognise(document)
    if found is None:
        return _quarantine(content, "unknown_shape", f"no reader knows this shape: {describe(document)}")
    if found.not_results is not None:
        return _not_results(content, found.name, found.not_results)
    try:
        parts = list(found.read(document))
        claims = claims_of(document).within(around)
        records = judge([part for part in parts if isinstance(part, Record)], claims)
    except Exception as error:  # noqa: BLE001  # a reader that trips over one file must not stop the rest
        reason = f"the reader {found.name} failed: {type(error).__name__}: {error}"
        return _quarantine(content, "reader_failed", reason, format_=found.name)
    refused = [part for part in parts if isinstance(part, Refused)]
    embedded = tuple(part for part in parts if isinstance(part, Embedded))
    without = [part for part in parts if isinstance(part, NoResult)]
    entry, events = _account(content, found.name, records, refused, embedded, without)
    return _Reading(entry, events, embedded, claims)


def _account(
    content: Content,
    format_: str,
    records: list[Record],
    refused: list[Refused],
    embedded: tuple[Embedded, ...],
    without: list[NoResult],
) -> tuple[DocumentImported, list[Event]]:
    entry = _ledger(
        content,
        format_,
        _outcome(bool(records), bool(refused), bool(embedded), bool(without)),
        records=len(records),
        failures=sum(r.result.status != "ok" for r in records),
        suspects=sum(r.result.provenance != "imported" for r in records),
        reason=_reason(records, refused, embedded, without),
    )
    ledger = _event(entry)
    results = [
        Event.of(r.result, source=SOURCE, occurred_at=r.occurred_at, host_id=r.host_id, causation_id=ledger.event_id)
        for r in records
    ]
    kept = [
        RecordQuarantined(
            source_path=content.source_path,
            content_sha256=content.sha256,
            pointer=cell.pointer,
            rule=cell.rule,
            reason=cell.reason,
            content=cell.content,
        )
        for cell in refused
    ]
    return entry, [ledger, *results, *(_event(record, cause=ledger) for record in kept)]


def _outcome(records: bool, refused: bool, embedded: bool, without: bool) -> Outcome:
    if records or embedded:
        return "imported"
    return "quarantined" if refused else "not_results" if without else "imported"


def _reason(
    records: list[Record], refused: list[Refused], embedded: tuple[Embedded, ...], without: list[NoResult]
) -> str | None:
    parts = [_refusals(refused)] if refused else []
    if without:
        parts.append(_several([part.reason for part in without], "part without a result", "parts without a result"))
    if embedded:
        parts.append(f"{len(embedded)} documents inside" if len(embedded) > 1 else "1 document inside")
    return "; ".join(parts) or (None if records else "it holds no cell")


def _outcomes(reports: Iterable[DocumentReport]) -> dict[str, int]:
    return dict(Counter("already_imported" if report.already else report.outcome for report in reports))


def _refusals(refused: list[Refused]) -> str:
    return _several([f"{cell.rule}: {cell.reason}" for cell in refused], "cell refused", "cells refused")


def _several(reasons: list[str], one: str, many: str) -> str:
    """How many there are and the most frequent reason, as `3 cells refused, RULE: REASON (2 of them)`."""
    (most, times), *others = Counter(reasons).most_common()
    number = f"1 {one}" if len(reasons) == 1 else f"{len(reasons)} {many}"
    return f"{number}, {most}" + (f" ({times} of them)" if others else "")


def _not_results(content: Content, format_: str, reason: str) -> _Reading:
    entry = _ledger(content, format_, "not_results", reason=reason)
    return _Reading(entry, [_event(entry)])


def _quarantine(content: Content, rule: str, reason: str, *, format_: str = "unknown") -> _Reading:
    text = content.text()
    if len(text) > KEPT_WHOLE_CHARACTERS:
        text = text[:KEPT_WHOLE_CHARACTERS]
        reason += f" (only its first {KEPT_WHOLE_CHARACTERS:,} characters are kept here, the rest is in the file)"
    entry = _ledger(content, format_, "quarantined", reason=reason)
    record = RecordQuarantined(
        source_path=content.source_path, content_sha256=content.sha256 or None, rule=rule, reason=reason, content=text
    )
    ledger = _event(entry)
    return _Reading(entry, [ledger, _event(record, cause=ledger)])


def _ledger(content: Content, format_: str, outcome: Outcome, **more: Any) -> DocumentImported:
    return DocumentImported(
        source_path=content.source_path,
        content_sha256=content.sha256,
        format=format_,
        outcome=outcome,
        size_bytes=len(content.raw),
        **more,
    )


def _event(payload: Payload, *, cause: Event | None = None) -> Event:
    return Event.of(payload, source=SOURCE, causation_id=cause.event_id if cause else None)


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
