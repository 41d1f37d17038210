"""Output of commands as tables, JSON and files, and the settings behind --home and --as-of."""

from __future__ import annotations

import io
import os
import shutil
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from accel_platform.cli.options import PEOPLE, TableOptions
from accel_platform.table_io.values import count_of

if TYPE_CHECKING:
    from accel_platform.errors import AccelError
    from accel_platform.settings import Settings
    from accel_platform.table_io.files import Source
    from accel_platform.table_io.kinds import Kind

_deferred: ContextVar[list[AccelError] | None] = ContextVar("_deferred", default=None)
"""Errors to raise at the end of the command that runs; None outside of one."""


def settings_for(home: Path | None, as_of: str | None = None) -> Settings:
    """Return the settings with --home applied, also for processes that this command starts.

    With `as_of`, the tables are those of that snapshot; they are built if missing.
    """
    from accel_platform.settings import Settings

    if home is not None:
        if str(home) in ("", "."):
            raise typer.BadParameter("name a directory of its own, such as .accel", param_hint="--home")
        os.environ["ACCEL_HOME"] = str(home)
    if as_of is None:
        return Settings()
    from accel_platform.warehouse.time_travel import tables_as_of

    return tables_as_of(Settings(), as_of, progress=note)


def write_answer(
    rows: Source,
    table: TableOptions,
    *,
    title: str | None = None,
    short: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
    document: Any = None,
    empty: str = "No rows.",
    missing: str | None = None,
    keep: Collection[str] = (),
    whole: Collection[str] = (),
) -> None:
    """Write rows as the options say, to stdout or a file. `short` reduces each row for formats that people read.

    `document` replaces the rows in JSON. `empty`, `missing`, `keep` and `whole` are those of `print_table`.
    """
    kind = table.kind
    if short is not None and kind in PEOPLE and isinstance(rows, Sequence):
        rows = [short(row) for row in rows]
    if table.output is None and kind == "table" and isinstance(rows, Sequence):
        print_table(rows, empty=empty, missing=missing, keep=keep, whole=whole)
        return
    is_empty = isinstance(rows, Sequence) and not rows
    if missing is not None and is_empty:
        print_error(missing)
    if kind != "json":
        document = None
    if table.output is not None:
        _save_answer(rows, table.output, kind, title=title, document=document)
    elif kind == "json":
        print_json(document if document is not None else rows if isinstance(rows, Sequence) else rows.to_pylist())
    elif kind == "markdown" and is_empty:
        if missing is None:
            typer.echo(empty)
    else:
        # Only now, because Arrow takes longer to import than most tables to print.
        from accel_platform.table_io import files

        text = io.BytesIO()
        files.write(rows, text, kind, title=title)
        typer.echo(text.getvalue().decode(), nl=False)


def _save_answer(rows: Source, path: Path, kind: Kind, *, title: str | None, document: Any) -> None:
    """Save rows, or a document in their place, to a file."""
    from accel_platform.table_io import files
    from accel_platform.table_io.values import json_text

    if document is not None:
        files.save_bytes(path, f"{json_text(document)}\n".encode())
        note(f"written to {path}")
    else:
        note(f"{count_of(files.save(rows, path, kind, title=title), 'row')} written to {path}")


def exit_if_nothing(found: Collection[Any]) -> None:
    """End with exit code 1 if nothing was found, so that a script does not go on with an empty answer."""
    if not found:
        raise typer.Exit(1)


def print_json(value: Any) -> None:
    """Print a JSON document: times as ISO 8601, UUIDs as text, None and NaN as null."""
    from accel_platform.table_io.values import json_text

    typer.echo(json_text(value))


def drop_empty_columns(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows without the columns that are None in all of them."""
    known = [name for name in rows[0] if any(row[name] is not None for row in rows)] if rows else []
    return [{name: row[name] for name in known} for row in rows]


def print_table(
    rows: Sequence[Mapping[str, Any]],
    *,
    empty: str = "No rows.",
    missing: str | None = None,
    wide: bool = False,
    keep: Collection[str] = (),
    whole: Collection[str] = (),
) -> None:
    """Print rows as an aligned table, or `empty` if there are none.

    `missing` replaces `empty` where no rows are an error, as for `exit_if_nothing`; it goes to stderr.

    On a terminal, and wherever COLUMNS sets a width, the table is made to fit unless `wide`. What that took is reported
    on stderr. `keep` and `whole` are columns of `table_io.width.fit_table`.
    """
    if not rows and missing is not None:
        print_error(missing)
        return
    from accel_platform.table_io.text import table_of, terminal
    from accel_platform.table_io.width import fit_table, wrap_text

    width = line_width()
    remarks: tuple[str, ...] = ()
    if rows and width is not None and not wide:
        rows, remarks = fit_table(rows, width, keep=keep, whole=whole)
    for line in terminal(table_of(rows)) if rows else wrap_text(empty, width):
        typer.echo(line)
    for remark in remarks:
        note(remark)


def say(text: str) -> None:
    """Print a sentence of the answer, wrapped as `print_table` fits tables."""
    from accel_platform.table_io.width import wrap_text

    for line in wrap_text(text, line_width()):
        typer.echo(line)


def line_width() -> int | None:
    """Return the characters of a line on stdout; None for a file or a pipe, where nothing is cut."""
    if os.environ.get("COLUMNS", "").isdigit() or sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    return None


def note(text: str) -> None:
    """Print progress or a remark to stderr, because stdout holds only the answer; wrapped as by `say`."""
    from accel_platform.table_io.width import wrap_text

    for line in wrap_text(text, line_width()):
        typer.echo(line, err=True)


def follow_log(settings: Settings) -> None:
    """Bring the tables up to date with what a command has just added to the log.

    A failure waits until the end of the command (`deferring_errors`), because the log holds what was added. A host that
    only measures has no tables. Raises AccelError outside `deferring_errors`.
    """
    if not has_tables():
        note("This host only measures, so it has no tables: `accel bench export FILE` takes its results elsewhere.")
        return
    from accel_platform.errors import AccelError
    from accel_platform.warehouse.publish import bring_up_to_date

    try:
        bring_up_to_date(settings)
    except AccelError as error:
        behind = AccelError(f"The log holds what was added; the tables do not yet: {error}")
        deferred = _deferred.get()
        if deferred is None:
            raise behind from error
        deferred.append(behind)


@contextmanager
def deferring_errors() -> Iterator[None]:
    """Raise the error of `follow_log` at the end of a command, so that no script continues with tables that lack
    results.

    The error of a command that fails otherwise is raised in its place, and this one is noted.
    """
    deferred: list[AccelError] = []
    token = _deferred.set(deferred)
    try:
        yield
    except BaseException:
        for behind in deferred:
            note(str(behind))
        raise
    finally:
        _deferred.reset(token)
    for behind in deferred:
        raise behind


def has_tables() -> bool:
    """Return whether this host can have tables; one that only measures lacks the package for them."""
    from importlib.util import find_spec

    return find_spec("duckdb") is not None


def print_error(error: object) -> None:
    """Print an error to stderr, in one line: people copy the commands in it, and logs hold one error a line."""
    typer.echo(f"accel: {error}", err=True)
