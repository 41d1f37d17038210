"""Files into the event log, one segment per document, each accounted for. What a file holds is read by `formats/`.

A document's segment is named after its content, so a second import writes nothing and one killed half-way is taken up
where it stopped. The same content under another path gets a segment of its own that says so.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from accel_platform.events import Event, EventLog, Snapshot
from accel_platform.events.types import DocumentImported, RecordQuarantined
from migrations.claims import claims_of
from migrations.documents import Content, Document, find_files, holds_figures, load, parse
from migrations.json_text import Note
from migrations.recognise import describe, recognise
from migrations.records import Record, Refused
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


@dataclass(frozen=True)
class ImportReport:
    """One run over some paths. `outcomes` adds up to `found`; known documents count as `already_imported`."""

    found: int
    outcomes: dict[str, int]
    records: int
    failures: int
    suspects: int
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
    new = [report for report in reports if not report.already]
    return ImportReport(
        found=len(files),
        outcomes=dict(Counter("already_imported" if r.already else r.outcome for r in reports)),
        records=sum(r.records for r in new),
        failures=sum(r.failures for r in new),
        suspects=sum(r.suspects for r in new),
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

    def take(self, content: Content) -> DocumentReport:
        """Account for one file. Raises LogUnavailable."""
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
        entry, events = _read(parse(content))
        if not self._append(events, key):
            # Another process imported this content since we looked: what it wrote stands.
            self._known |= {key}
            return self.take(content)
        self._first_path[key] = content.source_path
        return _report(entry)

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


def _read(document: Document) -> tuple[DocumentImported, list[Event]]:
    """The document's ledger entry and all its events: first the entry, then what it holds, naming it as the cause."""
    content = document.content
    if document.kind == "unreadable":
        return _quarantine(content, "unreadable", document.problem or "unreadable")
    found = recognise(document)
    if found is None:
        return _unknown(document)
    if found.not_results is not None:
        return _not_results(content, found.name, found.not_results)
    try:
        cells = list(found.read(document))
        records = judge([cell for cell in cells if isinstance(cell, Record)], claims_of(document))
    except Exception as error:  # noqa: BLE001  # a reader that trips over one file must not stop the rest
        reason = f"the reader {found.name} failed: {type(error).__name__}: {error}"
        return _quarantine(content, "reader_failed", reason, format_=found.name)
    return _imported(document, found.name, records, [cell for cell in cells if isinstance(cell, Refused)])


def _unknown(document: Document) -> tuple[DocumentImported, list[Event]]:
    """What no reader knows: kept whole, unless it is prose without figures."""
    if document.kind != "text":
        reason = f"no reader knows this shape: {describe(document)}"
        return _quarantine(document.content, "unknown_shape", reason)
    if holds_figures(document):
        return _quarantine(document.content, "unreadable", "plain text that holds figures")
    return _not_results(document.content, "text", "plain text without figures")


def _imported(
    document: Document, format_: str, records: list[Record], refused: list[Refused]
) -> tuple[DocumentImported, list[Event]]:
    content = document.content
    said = [_refusals(refused)] if refused else [] if records else ["it holds no cell"]
    entry = _ledger(
        content,
        format_,
        "quarantined" if refused and not records else "imported",
        records=len(records),
        failures=sum(r.result.status != "ok" for r in records),
        suspects=sum(r.result.provenance != "imported" for r in records),
        reason="; ".join([*said, *_noted(document.notes)]) or None,
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
    ] + [
        RecordQuarantined(
            source_path=content.source_path,
            content_sha256=content.sha256,
            rule=note.rule,
            reason=note.reason,
            content=note.content,
        )
        for note in document.notes
    ]
    return entry, [ledger, *results, *(_event(record, cause=ledger) for record in kept)]


def _refusals(refused: list[Refused]) -> str:
    (most, times), *others = Counter(f"{cell.rule}: {cell.reason}" for cell in refused).most_common()
    cells = "1 cell" if len(refused) == 1 else f"{len(refused)} cells"
    return f"{cells} refused, {most}" + (f" ({times} of them)" if others else "")


def _noted(notes: Iterable[Note]) -> list[str]:
    """What stands beside the records, in words, each kind once."""
    found = Counter(note.reason if note.rule == "other_lines" else note.rule.replace("_", " ") for note in notes)
    return [f"{reason} ({times} of them)" if times > 1 else reason for reason, times in found.items()]


def _not_results(content: Content, format_: str, reason: str) -> tuple[DocumentImported, list[Event]]:
    entry = _ledger(content, format_, "not_results", reason=reason)
    return entry, [_event(entry)]


def _quarantine(
    content: Content, rule: str, reason: str, *, format_: str = "unknown"
) -> tuple[DocumentImported, list[Event]]:
    text = content.text()
    if len(text) > KEPT_WHOLE_CHARACTERS:
        text = text[:KEPT_WHOLE_CHARACTERS]
        reason += f" (only its first {KEPT_WHOLE_CHARACTERS:,} characters are kept here, the rest is in the file)"
    entry = _ledger(content, format_, "quarantined", reason=reason)
    record = RecordQuarantined(
        source_path=content.source_path, content_sha256=content.sha256 or None, rule=rule, reason=reason, content=text
    )
    ledger = _event(entry)
    return entry, [ledger, _event(record, cause=ledger)]


def _ledger(content: Content, format_: str, outcome: Outcome, **more: Any) -> DocumentImported:
    return DocumentImported(
        source_path=content.source_path,
        content_sha256=content.sha256,
        format=format_,
        outcome=outcome,
        size_bytes=len(content.raw),
        **more,
    )


def _event(payload: DocumentImported | RecordQuarantined, *, cause: Event | None = None) -> Event:
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
