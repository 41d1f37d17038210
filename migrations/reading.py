"""One document read: its ledger entry and every event of it. Storing them is `importer.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from accel_platform.events import Event
from accel_platform.events.types import DocumentImported, Payload, RecordQuarantined
from migrations.claims import NOTHING_CLAIMED, Claims, claims_of
from migrations.documents import Content, Document, holds_figures
from migrations.json_text import Note
from migrations.recognise import describe, recognise
from migrations.records import Embedded, NoResult, Record, Refused
from migrations.suspicion import judge

SOURCE = "migrate"
KEPT_WHOLE_CHARACTERS = 1_000_000
"""A quarantined document up to this size is kept whole in the log; of a larger one the beginning, and the reason says
that the rest is in the file alone."""

Outcome = Literal["imported", "duplicate", "not_results", "quarantined"]


@dataclass(frozen=True)
class Reading:
    """A document read: its ledger entry; all its events, first the entry, then what it holds, naming it as the cause;
    and the documents inside it, still to be taken."""

    entry: DocumentImported
    events: list[Event]
    embedded: tuple[Embedded, ...] = ()
    claims: Claims = NOTHING_CLAIMED


def read(document: Document, around: Claims) -> Reading:
    """Recognise, read and judge a document; `around` is what the document around it claims. Never raises for what the
    document holds: what cannot be read is quarantined with the reason."""
    content = document.content
    if document.kind == "unreadable":
        return _quarantine(content, "unreadable", document.problem or "unreadable")
    found = recognise(document)
    if found is None:
        return _unknown(document)
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
    entry, events = _account(document, found.name, records, refused, embedded, without)
    return Reading(entry, events, embedded, claims)


def _unknown(document: Document) -> Reading:
    """What no reader knows: kept whole, unless it is prose without figures."""
    if document.kind != "text":
        reason = f"no reader knows this shape: {describe(document)}"
        return _quarantine(document.content, "unknown_shape", reason)
    if holds_figures(document):
        return _quarantine(document.content, "unreadable", "plain text that holds figures")
    return _not_results(document.content, "text", "plain text without figures")


def _account(
    document: Document,
    format_: str,
    records: list[Record],
    refused: list[Refused],
    embedded: tuple[Embedded, ...],
    without: list[NoResult],
) -> tuple[DocumentImported, list[Event]]:
    content = document.content
    entry = ledger_entry(
        content,
        format_,
        _outcome(bool(records), bool(refused), bool(embedded)),
        records=len(records),
        failures=sum(r.result.status != "ok" for r in records),
        suspects=sum(r.result.provenance != "imported" for r in records),
        reason=_reason(records, refused, embedded, without, document.notes),
    )
    ledger = event_of(entry)
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
    return entry, [ledger, *results, *(event_of(record, cause=ledger) for record in kept)]


def _outcome(records: bool, refused: bool, embedded: bool) -> Outcome:
    if records or embedded:
        return "imported"
    return "quarantined" if refused else "not_results"


def _reason(
    records: list[Record],
    refused: list[Refused],
    embedded: tuple[Embedded, ...],
    without: list[NoResult],
    notes: Iterable[Note],
) -> str | None:
    parts = [_refusals(refused)] if refused else []
    if without:
        parts.append(_several([part.reason for part in without], "part without a result", "parts without a result"))
    if embedded:
        parts.append(f"{len(embedded)} documents inside" if len(embedded) > 1 else "1 document inside")
    if not parts and not records:
        parts.append("it holds no cell")
    return "; ".join([*parts, *_noted(notes)]) or None


def _noted(notes: Iterable[Note]) -> list[str]:
    """What stands beside the records, in words, each kind once."""
    found = Counter(note.reason if note.rule == "other_lines" else note.rule.replace("_", " ") for note in notes)
    return [f"{reason} ({times} of them)" if times > 1 else reason for reason, times in found.items()]


def _refusals(refused: list[Refused]) -> str:
    return _several([f"{cell.rule}: {cell.reason}" for cell in refused], "cell refused", "cells refused")


def _several(reasons: list[str], one: str, many: str) -> str:
    """How many there are and the most frequent reason, as `3 cells refused, RULE: REASON (2 of them)`."""
    (most, times), *others = Counter(reasons).most_common()
    number = f"1 {one}" if len(reasons) == 1 else f"{len(reasons)} {many}"
    return f"{number}, {most}" + (f" ({times} of them)" if others else "")


def _not_results(content: Content, format_: str, reason: str) -> Reading:
    entry = ledger_entry(content, format_, "not_results", reason=reason)
    return Reading(entry, [event_of(entry)])


def _quarantine(content: Content, rule: str, reason: str, *, format_: str = "unknown") -> Reading:
    text = content.text()
    if len(text) > KEPT_WHOLE_CHARACTERS:
        text = text[:KEPT_WHOLE_CHARACTERS]
        reason += f" (only its first {KEPT_WHOLE_CHARACTERS:,} characters are kept here, the rest is in the file)"
    entry = ledger_entry(content, format_, "quarantined", reason=reason)
    record = RecordQuarantined(
        source_path=content.source_path, content_sha256=content.sha256 or None, rule=rule, reason=reason, content=text
    )
    ledger = event_of(entry)
    return Reading(entry, [ledger, event_of(record, cause=ledger)])


def ledger_entry(content: Content, format_: str, outcome: Outcome, **more: Any) -> DocumentImported:
    """The account of one document; `more` are further fields of DocumentImported."""
    return DocumentImported(
        source_path=content.source_path,
        content_sha256=content.sha256,
        format=format_,
        outcome=outcome,
        size_bytes=len(content.raw),
        **more,
    )


def event_of(payload: Payload, *, cause: Event | None = None) -> Event:
    """An event of the import, naming the ledger entry it came from."""
    return Event.of(payload, source=SOURCE, causation_id=cause.event_id if cause else None)
