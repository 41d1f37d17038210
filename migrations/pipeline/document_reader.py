"""Reading of one document into its ledger entry and events."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal
from uuid import UUID

from accel_platform.events import Event
from accel_platform.events.codec import Row, to_row
from accel_platform.events.types import DocumentImported, Payload, RecordQuarantined, ResultRecorded
from accel_platform.precisions import names_precision
from accel_platform.table_io.values import count_of
from migrations.detect import describe, detect_format
from migrations.formats import Format
from migrations.normalize.canonical_names import MICROBENCHMARK, UNKNOWN_ENGINE, UNKNOWN_HARDWARE
from migrations.normalize.path_hints import given_names
from migrations.normalize.plain_rows import find_rows
from migrations.normalize.records import EmbeddedDocument, NoResult, Part, Record, RefusedCell, Remark
from migrations.normalize.unread_figures import refuse_unread_figures
from migrations.pipeline.ledger import key_of, numbered_bytes, numbered_id
from migrations.sources.csv_text import has_rows_alone
from migrations.sources.documents import Content, Document, Origin, holds_figures
from migrations.sources.json_text import Note
from migrations.suspicion.claims import NO_CLAIMS, Claims, claims_of
from migrations.suspicion.rules import apply_rules

SOURCE = "migrate"
MAX_QUARANTINE_CHARACTERS = 1_000_000
"""Largest size at which a quarantined document is kept whole in the log.

Of a larger one the beginning is kept, and the reason says that the rest is in the file alone.
"""

_NOTES_WITH_REASON = ("other_lines", "unreadable_rest")
"""Notes whose reason says more than their rule."""
NO_HARDWARE = "no hardware, and no answer uses what has none"
"""Part of the ledger's reason for a document whose results name none: it is read again when its device is given."""
NO_ENGINE = "no engine, and `accel serving` uses no load without one"
"""Part of the ledger's reason for a document whose loads name none: it is read again when its engine is given."""

Outcome = Literal["imported", "duplicate", "not_results", "quarantined"]


@dataclass(frozen=True)
class Reading:
    """A document that was read."""

    entry: DocumentImported
    """Its entry in the ledger."""
    event: Event
    """The event of that entry."""
    rows: list[Row]
    """Events of its contents, which name the document as their cause."""
    embedded: tuple[EmbeddedDocument, ...] = ()
    """Documents inside it, still to be imported."""
    claims: Claims = NO_CLAIMS


def read_document(document: Document, outer_claims: Claims, supersedes: UUID | None = None) -> Reading:
    """Detect, parse and check a document. Never raises for its content: unreadable ones are quarantined.

    `outer_claims` are the claims of the document around it, `supersedes` the ledger entry that this reading replaces.
    """
    builder = DocumentBuilder(document.content.origin, supersedes)
    if document.kind == "unreadable":
        return quarantine(document.content, "unreadable", document.problem or "unreadable", builder)
    try:
        found = detect_format(document)
        if found is None:
            return _unknown(document, builder)
        builder.format = found.name
        if found.not_results is not None:
            return builder.close("not_results", found.not_results)
        claims = claims_of(document).within(outer_claims)
        parts = builder.add(document, found, claims)
    except Exception as error:  # noqa: BLE001  # a reader that trips over one file must not stop the rest
        reason = f"the reader {builder.format} failed: {type(error).__name__}: {error}"
        return quarantine(
            document.content, "reader_failed", reason, DocumentBuilder(builder.origin, supersedes, builder.format)
        )
    embedded = tuple(part for part in parts if isinstance(part, EmbeddedDocument))
    return builder.close(embedded=embedded, claims=claims)


def embedded_document(outer: Content, part: EmbeddedDocument) -> Document:
    """Return an embedded document as the old framework would have written it to a file, so copies hash alike."""
    text = json.dumps(part.value, indent=2)
    return Document(Content.of(text.encode(), f"{outer.source_path}#{part.pointer}"), "json", part.value)


@dataclass
class DocumentBuilder:
    """Builder of the ledger entry and the rows of one document from its chunks."""

    origin: Origin
    supersedes: UUID | None = None
    format: str = "unknown"
    numbered: int = 0
    """The number of the last event beside the entry."""
    rows: list[Row] = field(default_factory=list)
    records: int = 0
    failures: int = 0
    suspects: int = 0
    _embedded: int = 0
    _refused: Counter[str] = field(default_factory=Counter)
    _without: Counter[str] = field(default_factory=Counter)
    _unknown_precisions: Counter[str] = field(default_factory=Counter)
    _notes: Counter[str] = field(default_factory=Counter)
    _placeless: Counter[str] = field(default_factory=Counter)
    """Results of models that name no hardware, by backend."""
    _engineless: int = 0
    """Loads on served models that name no engine."""
    _recorded_at: datetime = field(default_factory=lambda: datetime.now(UTC))

    def __post_init__(self) -> None:
        own = [key_of(self.origin), *([str(self.supersedes)] if self.supersedes else [])]
        self._content = " ".join(own)
        self.entry_id = numbered_id(" ".join(["ledger", self.origin.source_path, *own]))
        self._cause = self.entry_id.bytes

    def add(self, document: Document, format_: Format, claims: Claims, *, first: int = 0) -> list[Part]:
        """Parse and check one chunk, whose first row is the document's row `first`; return its parts."""
        parts = list(refuse_unread_figures(document, format_.parse(document)))
        records = apply_rules([part for part in parts if isinstance(part, Record)], claims)
        for record in records:
            result = record.result
            self._store(result, record.occurred_at, record.host_id)
            self.failures += result.status != "ok"
            self.suspects += result.provenance != "imported"
            if result.hardware == UNKNOWN_HARDWARE and result.model_family != MICROBENCHMARK:
                self._placeless[result.backend] += 1
            self._engineless += result.backend == UNKNOWN_ENGINE and _is_load(result)
            if result.precision is not None and not names_precision(result.precision):
                self._unknown_precisions[repr(result.precision)] += 1
        self.records += len(records)
        for part in parts if len(records) < len(parts) else ():
            if isinstance(part, RefusedCell):
                self._refused[f"{part.rule}: {part.reason}"] += 1
                self._keep(part.rule, part.reason, part.content, shift_pointer(part.pointer, first))
            elif isinstance(part, NoResult):
                self._without[part.reason] += 1
            elif isinstance(part, EmbeddedDocument):
                self._embedded += 1
            elif isinstance(part, Remark):
                self._notes[part.reason] = 1  # each chunk has the same columns
        for note in document.notes:
            self.note(note)
        return parts

    def note(self, note: Note) -> None:
        """Keep something that stands beside the records."""
        self._notes[note.reason if note.rule in _NOTES_WITH_REASON else note.rule.replace("_", " ")] += 1
        self._keep(note.rule, note.reason, note.content)

    def quarantine(self, rule: str, reason: str, content: str) -> None:
        """Keep the whole document, or its beginning."""
        self._keep(rule, reason, content)

    def take_rows(self) -> list[Row]:
        """Return the pending rows and remove them from the builder."""
        rows, self.rows = self.rows, []
        return rows

    def close(
        self,
        outcome: Outcome | None = None,
        reason: str | None = None,
        *,
        embedded: tuple[EmbeddedDocument, ...] = (),
        claims: Claims = NO_CLAIMS,
    ) -> Reading:
        """Return the ledger entry, by default made from the parts that were added, and the remaining rows."""
        entry = ledger_entry(
            self.origin,
            self.format,
            outcome or self._outcome(),
            records=self.records,
            failures=self.failures,
            suspects=self.suspects,
            reason=reason if outcome else self._reason(),
            supersedes=self.supersedes,
        )
        event = Event(
            event_id=self.entry_id,
            type=type(entry).__name__,
            schema_version=entry.VERSION,
            occurred_at=self._recorded_at,
            recorded_at=self._recorded_at,
            source=SOURCE,
            payload=entry,
        )
        return Reading(entry, event, self.take_rows(), embedded, claims)

    def _store(self, payload: Payload, occurred_at: datetime | None, host_id: str | None = None) -> None:
        self.numbered += 1
        # A row at once: checking an envelope of known fields took as long as storing it.
        self.rows.append(
            to_row(
                numbered_bytes(self._content, self.numbered),
                payload,
                occurred_at=occurred_at,
                recorded_at=self._recorded_at,
                source=SOURCE,
                host_id=host_id,
                causation_id=self._cause,
            )
        )

    def _keep(self, rule: str, reason: str, content: str, pointer: str | None = None) -> None:
        quarantined = RecordQuarantined(
            source_path=self.origin.source_path,
            content_sha256=self.origin.sha256 or None,
            pointer=pointer,
            rule=rule,
            reason=reason,
            content=content,
        )
        self._store(quarantined, self._recorded_at)

    def _outcome(self) -> Outcome:
        if self.records or self._embedded:
            return "imported"
        return "quarantined" if self._refused else "not_results"

    def _reason(self) -> str | None:
        parts = [_summarize_reasons(self._refused, "cell refused", "cells refused")] if self._refused else []
        if self._without:
            parts.append(_summarize_reasons(self._without, "part without a result", "parts without a result"))
        if self._embedded:
            parts.append(f"{count_of(self._embedded, 'document')} inside")
        if self._unknown_precisions:
            one, many = "result of a precision that nobody knows", "results of precisions that nobody knows"
            parts.append(_summarize_reasons(self._unknown_precisions, one, many))
        if self._placeless or self._engineless:
            parts.append(self._lacking_names())
        if not parts and not self.records:
            parts.append("it holds no cell")
        noted = [f"{reason} ({times} of them)" if times > 1 else reason for reason, times in self._notes.items()]
        return "; ".join([*parts, *noted]) or None

    def _lacking_names(self) -> str:
        """Return which names its results lack, and the command that gives them, with those that were given."""
        lacking = []
        if self._placeless:
            number = self._placeless.total()
            some = "1 result names" if number == 1 else f"{number} results name"
            lacking.append(f"{some} {NO_HARDWARE}")
        if self._engineless:
            some = "1 load names" if self._engineless == 1 else f"{self._engineless} loads name"
            lacking.append(f"{some} {NO_ENGINE}")
        given = given_names()
        example = "Core Ultra 7 155H" if self._placeless.keys() == {"openvino"} else "NVIDIA L40S"
        device = example if self._placeless else given.device
        engine = "vllm" if self._engineless else given.engine
        options = {"--device": f"'{device}'" if device else None, "--engine": engine}
        command = " ".join(f"{option} {name}" for option, name in options.items() if name)
        return f"{'; '.join(lacking)}: give {'both' if len(lacking) > 1 else 'it'} by `accel migrate FILE {command}`"


def _is_load(result: ResultRecorded) -> bool:
    """Return whether it is a load of so many requests at once, which `accel serving` answers from."""
    return bool(result.sequence_length and result.output_tokens and (result.original or {}).get("concurrency"))


def quarantine(content: Content, rule: str, reason: str, builder: DocumentBuilder | None = None) -> Reading:
    """Quarantine a document whole, or its beginning, as the reason then says."""
    text = content.text()
    if len(text) > MAX_QUARANTINE_CHARACTERS or content.large_bytes:
        text = text[:MAX_QUARANTINE_CHARACTERS]
        reason += f" (only its first {len(text):,} characters are kept here, the rest is in the file)"
    builder = builder or DocumentBuilder(content.origin)
    builder.quarantine(rule, reason, text)
    return builder.close("quarantined", reason)


def ledger_entry(origin: Origin, format_: str, outcome: Outcome, **more: Any) -> DocumentImported:
    """Return the ledger entry of one document; `more` are further fields of DocumentImported."""
    return DocumentImported(
        source_path=origin.source_path,
        content_sha256=origin.sha256,
        format=format_,
        outcome=outcome,
        size_bytes=origin.size_bytes,
        **more,
    )


def _unknown(document: Document, builder: DocumentBuilder) -> Reading:
    """Quarantine an unknown document whole, unless it is prose without figures."""
    if document.kind != "text":
        reason = f"no reader knows this shape: {describe(document)}"
        if (lacking := _lacking_columns(document)) is not None:
            how = (
                "; `accel migrate --map YOURS=OURS` says what yours mean"
                if document.kind not in ("rows", "tables")
                else ""
            )
            reason += f": {lacking}{how}"
        return quarantine(document.content, "unknown_shape", reason, builder)
    if has_rows_alone(document.value):
        reason = "a table without names of columns: write a first line that says what each of them holds"
        return quarantine(document.content, "unreadable", reason, builder)
    if holds_figures(document):
        reason = "plain text that holds figures, in no form that is read: put them into a table"
        return quarantine(
            document.content, "unreadable", f"{reason} (`accel migrate --template csv` prints an empty one)", builder
        )
    builder.format = "text"
    return builder.close("not_results", "plain text without figures")


def _lacking_columns(document: Document) -> str | None:
    """Return the columns that a table lacks to be a table of results; None for another document."""
    rows = find_rows(document)
    return rows.columns.lacking() if rows is not None else None


def _summarize_reasons(reasons: Counter[str], one: str, many: str) -> str:
    """Return count and most frequent reason, as `3 cells refused, RULE: REASON (2 of them)`."""
    (most, times), *others = reasons.most_common()
    number = f"1 {one}" if reasons.total() == 1 else f"{reasons.total()} {many}"
    return f"{number}, {most}" + (f" ({times} of them)" if others else "")


def shift_pointer(pointer: str, first: int) -> str:
    """Return a pointer into a chunk as a pointer into the whole document."""
    number, _, rest = pointer.removeprefix("/").partition("/")
    return f"/{int(number) + first}{'/' + rest if rest else ''}" if first and number.isdigit() else pointer
