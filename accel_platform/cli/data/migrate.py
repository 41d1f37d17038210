"""`accel migrate`: import of old result files into the event log."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from accel_platform.cli.options import CommonOptions
from accel_platform.cli.output import (
    exit_if_nothing,
    follow_log,
    has_tables,
    line_width,
    note,
    print_json,
    print_table,
    say,
    settings_for,
)
from accel_platform.table_io.values import count_of, display_text

if TYPE_CHECKING:
    from accel_platform.settings import Settings
    from migrations.pipeline.importer import DocumentReport, ImportReport

_PROGRESS_EVERY_S = 1.0
_REASON_WIDTH = 40
_FEW_DOCUMENTS = 5
"""Number of documents up to which every reason is printed whole below the table; of more, those of quarantine and
results."""
_MAX_REASONS = 20


def migrate(
    paths: Annotated[
        list[Path] | None, typer.Argument(metavar="PATH", help="Files, directories or archives of old results.")
    ] = None,
    *,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read and check everything; write nothing.")] = False,
    map_: Annotated[
        list[str] | None,
        typer.Option("--map", metavar="YOURS=OURS", help="What a column or key means: gpu=device; repeatable."),
    ] = None,
    device: Annotated[str | None, typer.Option(help="Device of files that name none, such as 'NVIDIA L40S'.")] = None,
    engine: Annotated[str | None, typer.Option(help="Engine of load reports that name none, such as vllm.")] = None,
    template: Annotated[Literal["csv"] | None, typer.Option(help="Print a table to fill in, and stop.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=1, help="Parallel reader processes.")] = 1,
    retry_quarantine: Annotated[
        bool,
        typer.Option("--retry-quarantine", help="Read quarantined files again: all, or those under PATH."),
    ] = False,
    common: CommonOptions,
) -> None:
    """Import old benchmark files, and report the outcome of each: imported, duplicate, no results or quarantined."""
    from accel_platform.errors import InvalidInput
    from accel_platform.events import EventLog
    from migrations.normalize import plain_columns
    from migrations.normalize.path_hints import GivenNames

    if template is not None:
        typer.echo(plain_columns.template(), nl=False)
        return
    columns = plain_columns.parse_map(map_ or [])
    given = GivenNames(device, engine)
    if given and retry_quarantine:
        raise InvalidInput("--device and --engine name what PATH lacks: leave --retry-quarantine out.")
    settings = settings_for(common.home)
    log = EventLog.open(settings)
    progress = _Progress()
    if retry_quarantine:
        from migrations.pipeline.retry import retry_quarantine as retry

        report = retry(log, under=paths or (), dry_run=dry_run, on_progress=progress)
    elif paths:
        from migrations.pipeline.importer import migrate as run

        report = run(
            _require_existing(paths),
            log,
            exclude=settings.own_paths,
            columns=columns,
            given=given,
            dry_run=dry_run,
            jobs=jobs,
            on_progress=progress,
        )
    else:
        raise InvalidInput("Name files or directories to import, or --retry-quarantine.")
    if not dry_run:
        follow_log(settings)
    if common.wants_json:
        print_json(report.as_dict())
        exit_if_nothing(report.documents)
        return
    documents = [document for outer in report.documents for document in outer.all()]
    print_table([_row(document) for document in documents], missing="No files found.")
    _print_reasons(documents)
    say(_summary(report))
    if report.records and not dry_run and has_tables():
        _print_broken_rules(settings, documents)
    exit_if_nothing(report.documents)
    if report.records and not dry_run:
        note("Next: `accel matrix` shows them, `accel history audit` what is suspected, `accel recommend MODEL` asks.")


def _print_reasons(documents: Sequence[DocumentReport]) -> None:
    """Print each reason that the table cuts, or leaves out on a narrow terminal, once."""
    is_few = len(documents) <= _FEW_DOCUMENTS
    is_narrow = line_width() is not None and not is_few
    cut: dict[str, list[str]] = {}
    for document in sorted(documents, key=lambda document: document.outcome != "quarantined"):
        reason = document.reason
        if (
            reason is not None
            and (is_few or document.outcome == "quarantined" or document.records)
            and (is_narrow or _truncate(reason) != reason)
        ):
            cut.setdefault(reason, []).append(_short_path(document.source_path))
    every = list(cut.items())
    for reason, (first, *others) in every[:_MAX_REASONS]:
        also = f" and {count_of(len(others), 'other')}" if others else ""
        say(f"{first}{also}: {reason}")
    if more := sum(len(paths) for _, paths in every[_MAX_REASONS:]):
        say(f"{more} more have a reason or a remark: --json has all.")


def _print_broken_rules(settings: Settings, documents: Sequence[DocumentReport]) -> None:
    """Say which records the tables left out, because they break a data rule; nothing where there are no tables."""
    from accel_platform.errors import AccelError
    from accel_platform.warehouse.reader import Reader

    # Records that readers refuse have the hash of their document; those that break a data rule have none.
    sql = (
        "SELECT rule, count(*) AS records, any_value(source_path) AS path FROM quarantine "
        "WHERE content_sha256 IS NULL AND list_contains($paths, source_path) GROUP BY rule ORDER BY records DESC, rule"
    )
    try:
        broken = Reader(settings).rows(sql, {"paths": [document.source_path for document in documents]})
    except AccelError:
        return  # the tables could not follow, which is said at the end
    for row in broken:
        say(
            f"{count_of(row['records'], 'record')} broke the data rule {row['rule']} and went into quarantine, such as "
            f'in {_short_path(row["path"])}: `accel db query "SELECT content FROM quarantine WHERE rule = '
            f"'{row['rule']}'\"` shows them."
        )


def _require_existing(paths: list[Path]) -> list[Path]:
    from accel_platform.errors import InvalidInput

    missing = [str(path) for path in paths if not path.exists()]
    if missing:
        raise InvalidInput(f"There is no file or directory {', '.join(missing)}: check the path.")
    return paths


class _Progress:
    """Progress printer: at most one line per second, and the last document."""

    def __init__(self) -> None:
        self._printed_at = time.monotonic()

    def __call__(self, number: int, total: int, document: DocumentReport) -> None:
        if number == total or time.monotonic() - self._printed_at >= _PROGRESS_EVERY_S:
            self._printed_at = time.monotonic()
            note(f"file {number} of {total}: {display_text(Path(document.source_path).name)}")


def _row(document: DocumentReport) -> dict[str, Any]:
    return {
        "file": _short_path(document.source_path),
        "format": document.format,
        "outcome": f"{document.outcome} before" if document.already else document.outcome,
        "records": document.records,
        "failures": document.failures,
        "suspects": document.suspects,
        "reason": None if document.reason is None else _truncate(document.reason),
    }


def _summary(report: ImportReport) -> str:
    from migrations.pipeline.importer import OVERDUE_CHECK

    outcomes = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in sorted(report.outcomes.items()))
    more = count_of(report.suspected_across, "more suspicion")
    done = "Would bring in" if report.dry_run else "Brought in"
    return (
        f"{count_of(report.found, 'file')}: {outcomes or 'none'}. {done} {count_of(report.records, 'record')}, "
        f"{report.failures} of them failures and {report.suspects} suspected or simulated."
        + (f" Over several files: {more}." if report.suspected_across else "")
        + (f" {OVERDUE_CHECK}" if report.overdue_check else "")
    )


def _short_path(path: str) -> str:
    """Return the last two parts of a path, enough to distinguish files of one directory, without control characters."""
    return display_text("/".join(Path(path).parts[-2:]))


def _truncate(reason: str) -> str:
    line = " ".join(reason.split())
    return line if len(line) <= _REASON_WIDTH else line[: _REASON_WIDTH - 1] + "…"
