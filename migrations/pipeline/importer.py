"""Import of files into the event log, with a report of each.

A content is read once: under the same path it is known, under another it is a duplicate. Event ids follow from content
and events are appended in batches, so a killed import resumes after its last batch and doubles nothing. A comparison
across documents that it missed is made by a later import.
"""

from __future__ import annotations

import gc
import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import UUID

from accel_platform.errors import InvalidInput
from accel_platform.events import Event, EventLog
from accel_platform.events.codec import to_rows
from accel_platform.events.types import DocumentImported
from migrations.normalize.path_hints import NOTHING_GIVEN, GivenNames, names_given
from migrations.pipeline.batches import EventBatcher
from migrations.pipeline.cross_document_rules import CrossCheck, find_cross_document_suspicions
from migrations.pipeline.document_reader import NO_ENGINE, NO_HARDWARE, DocumentBuilder, Outcome
from migrations.pipeline.ledger import Entry, Ledger
from migrations.pipeline.unpack import DocumentEnd, DocumentStart, Renewal, Step, iter_steps
from migrations.sources.documents import Content, Origin, find_files, load, outer_paths
from migrations.sources.renamed_columns import with_columns_renamed

OVERDUE_CHECK = "Earlier imports were not on record as compared across files; that is done now."
"""Message of a run with `ImportReport.overdue_check`."""

Progress = Callable[[int, int, "DocumentReport"], None]
"""Called after each document with its number, the number of files, and its report."""


@dataclass(frozen=True)
class DocumentReport:
    """Outcome of one file in this run. `already` is True where the log knew it and nothing was written."""

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
        """Yield this document and all inside it, at any depth."""
        yield self
        for inside in self.embedded:
            yield from inside.all()


@dataclass(frozen=True)
class ImportReport:
    """One run over some paths. `outcomes` adds up to `found`, the files; known ones count as `already_imported`, in a
    retry those that stay as they are as `still_quarantined`. The documents inside files are counted on their own, in
    `embedded`."""

    found: int
    outcomes: dict[str, int]
    embedded: dict[str, int]
    records: int
    failures: int
    suspects: int
    suspected_across: int
    """Suspicions that only show over several documents, about results of this run or of earlier ones."""
    overdue_check: bool
    """True where this run compared results of an earlier import across documents for the first time."""
    events: int
    dry_run: bool
    documents: tuple[DocumentReport, ...] = field(repr=False)

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def migrate(
    paths: Iterable[Path],
    log: EventLog,
    *,
    exclude: Sequence[Path] = (),
    columns: Mapping[str, str] | None = None,
    given: GivenNames = NOTHING_GIVEN,
    dry_run: bool = False,
    jobs: int = 1,
    on_progress: Progress | None = None,
) -> ImportReport:
    """Import every file under the paths but none under `exclude`, by `jobs` processes. With `dry_run` everything is
    read and checked, and nothing written. Order and report do not depend on `jobs`. `columns` renames those of CSV
    and JSON files, which are then read by this process, and again where they are in quarantine. `given` are names for
    files that lack them, which this process reads then, and again where they were imported without.

    Raises NotFound for a path that is not there, InvalidInput for fewer than one job, LogUnavailable where the log
    cannot be written. `records`, `failures` and `suspects` of the report count what this run brought in.
    """
    if jobs < 1:
        raise InvalidInput(f"At least one process must read, not {jobs}.")
    files = list(find_files(paths, exclude))
    run = Import(log, dry_run)
    if given or columns:
        with names_given(given):
            renewal = run.renewal_with(given) if given else None
            read = (
                run.renamed_steps(load(path), columns, renewal)
                if columns
                else iter_steps(load(path), run.ledger.knows, renewal=renewal)
                for path in files
            )
            return run.report(len(files), read, on_progress)
    if jobs == 1:
        return run.report(len(files), (iter_steps(load(path), run.ledger.knows) for path in files), on_progress)
    from migrations.pipeline.workers import Workers

    with Workers(files, run.ledger.keys(), jobs) as workers:
        return run.report(len(files), map(workers.steps, range(len(files))), on_progress)


class Import:
    """One import run: the ledger at its start and the documents read since."""

    def __init__(self, log: EventLog, dry_run: bool) -> None:
        self.ledger = Ledger(log)
        self._log = log
        self._dry_run = dry_run
        self._batches = EventBatcher(log, dry_run=dry_run)
        self._before = CrossCheck(log.snapshot())

    def renewal_with(self, given: GivenNames) -> Renewal:
        """Return a `Renewal` that reads documents anew whose results lack the given names, also inside others.

        With the names given it is another content. A document stays as it is where a name that was given earlier would
        be lost. The reason in its entry names both options.
        """
        options = {NO_HARDWARE: ("--device", given.device), NO_ENGINE: ("--engine", given.engine)}

        def lacks(entry: Entry) -> bool:
            reason = entry.document.reason or ""
            return any(remark in reason for remark, (_, name) in options.items() if name)

        def loses(entry: Entry) -> bool:
            first, newest = entry.document.reason or "", self.ledger.newest(entry).document.reason or ""
            return any(
                (remark in first and remark not in newest) or (option in first and remark not in first)
                for remark, (option, name) in options.items()
                if not name
            )

        outer = {
            path for entry in filter(lacks, self.ledger.entries()) for path in outer_paths(entry.document.source_path)
        }
        names = " engine ".join(name for name in (given.device or "", given.engine) if name is not None)

        def renew(content: Content) -> tuple[Content, UUID | None]:
            earlier = self.ledger.first(content.origin)
            if earlier is None:
                return content, None
            holds_such = earlier.document.source_path in outer and not earlier.document.records
            if not holds_such and (not lacks(earlier) or loses(earlier)):
                return content, None
            named = hashlib.sha256(f"{content.sha256} {names}".encode()).hexdigest()
            return replace(content, sha256=named), self.ledger.newest(earlier).event.event_id

        return renew

    def renamed_steps(
        self, content: Content, columns: Mapping[str, str], renewal: Renewal | None = None
    ) -> Iterator[Step]:
        """Return the steps of a file with other column names, which supersede its quarantine under its own."""
        own = self.ledger.own(content.origin)
        quarantined = own.event.event_id if own is not None and own.document.outcome == "quarantined" else None
        renamed, earlier = with_columns_renamed(content, columns), None
        if renewal is not None:
            renamed, earlier = renewal(renamed)
        return iter_steps(renamed, self.ledger.knows, supersedes=earlier or quarantined)

    def report(
        self, found: int, documents: Iterable[Iterator[Step]], on_progress: Progress | None, *, again: bool = False
    ) -> ImportReport:
        """Account for each of the documents; with `again` known ones are read anew.

        On interruption it stores the documents that are complete. Raises LogUnavailable.
        """
        reports = []
        try:
            with _infrequent_gc():
                for number, steps in enumerate(documents, start=1):
                    reports.append(self._document(_first_origin(steps), steps, again=again))
                    if on_progress is not None:
                        on_progress(number, found, reports[-1])
        finally:
            self._batches.flush()
        every = [document for report in reports for document in report.all()]
        new = [document for document in every if not document.already]
        across, check_events = self._check_across(new_results=any(document.records for document in new))
        return ImportReport(
            found=found,
            outcomes=_outcomes(reports, "still_quarantined" if again else "already_imported"),
            embedded=_outcomes(inside for document in every for inside in document.embedded),
            records=sum(r.records for r in new),
            failures=sum(r.failures for r in new),
            suspects=sum(r.suspects for r in new),
            suspected_across=across,
            overdue_check=self._before.due and not self._dry_run,
            events=self._batches.events + check_events,
            dry_run=self._dry_run,
            documents=tuple(reports),
        )

    def _document(self, origin: Origin, steps: Iterator[Step], *, again: bool = False) -> DocumentReport:
        """Report one document that has started, up to its end."""
        known = None if again and self.ledger.own(origin) is not None else self._known(origin)
        inside = []
        for step in steps:
            if isinstance(step, DocumentStart):
                if known is None:
                    inside.append(self._document(step.origin, steps))
                else:
                    _skip_document(steps)
            elif isinstance(step, DocumentEnd):
                if step.entry is None and known is None:  # read again, it stays as it is
                    return replace(_report(self.ledger.require(origin), already=True), embedded=tuple(inside))
                return known or self._enter(step.entry, inside)
            elif known is None:
                self._batches.add(step.rows)
        raise AssertionError(f"{origin.source_path} has no end")

    def _known(self, origin: Origin) -> DocumentReport | None:
        """Return the report of a content met before, here or in an earlier run."""
        if (own := self.ledger.own(origin)) is not None:
            return _report(own.document, already=True)
        if (first := self.ledger.first(origin)) is None:
            return None
        builder = DocumentBuilder(origin, format="duplicate")
        return self._enter(builder.close("duplicate", f"the same content as {first.document.source_path}").event)

    def _enter(self, event: Event | None, inside: Iterable[DocumentReport] = ()) -> DocumentReport:
        assert event is not None
        assert isinstance(event.payload, DocumentImported)
        entry = event.payload
        unopened = self.ledger.unopened(entry.source_path) if entry.content_sha256 else None
        if unopened is not None and entry.supersedes is None:
            entry = entry.model_copy(update={"supersedes": unopened.event.event_id})
            event = event.model_copy(update={"payload": entry})
        self.ledger.add(event)
        self._batches.add(to_rows([event]))
        return replace(_report(entry), embedded=tuple(inside))

    def _check_across(self, *, new_results: bool) -> tuple[int, int]:
        """Compare all documents ever imported where that is due; return the suspicions and the events stored.

        If nothing but this run added to a checked log, and it added no results, the check is recorded without comparing
        anything. A dry run checks nothing, because it has stored nothing to compare.
        """
        check = CrossCheck(self._log.snapshot())
        if self._dry_run or not check.due:
            return 0, 0
        added = check.covers.segments - self._before.covers.segments
        unchanged = not (self._before.due or new_results) and added <= self._batches.segments
        found = [] if unchanged else find_cross_document_suspicions(self._log, check.snapshot)
        return len(found), check.store(self._log, found)


@contextmanager
def _infrequent_gc() -> Iterator[None]:
    """Make garbage collection rare: rows come by the ten thousand without cycles, and it took a third of an import."""
    before = gc.get_threshold()
    gc.set_threshold(200_000, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _first_origin(steps: Iterator[Step]) -> Origin:
    start = next(steps)
    assert isinstance(start, DocumentStart)
    return start.origin


def _skip_document(steps: Iterator[Step]) -> None:
    """Leave out a document that has begun, and all inside it."""
    depth = 1
    while depth:
        step = next(steps)
        depth += isinstance(step, DocumentStart) - isinstance(step, DocumentEnd)


def _outcomes(reports: Iterable[DocumentReport], known: str = "already_imported") -> dict[str, int]:
    return dict(Counter(known if report.already else report.outcome for report in reports))


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
