"""What every command shares: the --home and --json options, and answers for people, machines and files."""

from __future__ import annotations

import enum
import io
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from accel_platform.settings import Settings
    from accel_platform.table_io.files import Source


class FormatOption(enum.StrEnum):
    table = "table"
    json = "json"


class AnyFormat(enum.StrEnum):
    """`reports.rendering.files.Kind` for options."""

    table = "table"
    markdown = "markdown"
    html = "html"
    json = "json"
    csv = "csv"
    parquet = "parquet"
    xlsx = "xlsx"


PEOPLE = (AnyFormat.table, AnyFormat.markdown, AnyFormat.html)
"""Formats for reading; the others hold all that is known."""


class Mode(enum.StrEnum):
    """What a model does while it is measured; `events.types.Mode` for options."""

    inference = "inference"
    generation = "generation"
    training = "training"


Home = Annotated[
    Path | None, typer.Option("--home", help="State directory (default: $ACCEL_HOME or ./.accel).", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON; the same as --format json.")]
OutputFormat = Annotated[FormatOption, typer.Option("--format", help="How to print the answer.")]
FileFormat = Annotated[
    AnyFormat | None,
    typer.Option("--format", help="How to give the answer.", show_default="by --output's ending, else table"),
]
Output = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="Write the answer there: .md, .html, .json, .csv, .parquet or .xlsx.", show_default=False
    ),
]

AsOf = Annotated[
    str | None,
    typer.Option(
        "--as-of",
        metavar="SNAPSHOT",
        help="Answer from the log as it was then: a snapshot's name or id, or a date.",
        show_default="now",
    ),
]


def settings_for(home: Path | None, as_of: str | None = None) -> Settings:
    """The settings with --home applied, also for the processes this command starts; with --as-of the tables are those
    of that snapshot, made if need be."""
    from accel_platform.settings import Settings

    if home is not None:
        if str(home) in ("", "."):
            raise typer.BadParameter("name a directory of its own, such as .accel", param_hint="--home")
        os.environ["ACCEL_HOME"] = str(home)
    if as_of is None:
        return Settings()
    from accel_platform.warehouse.time_travel import tables_as_of

    return tables_as_of(Settings(), as_of, progress=note)


def wants_json(json_flag: bool, format_: FormatOption) -> bool:
    return json_flag or format_ is FormatOption.json


def chosen(json_flag: bool, format_: AnyFormat | None, output: Path | None) -> AnyFormat:
    """The one format that was asked for. Raises InvalidInput for two, or one that is only for files."""
    from accel_platform.errors import InvalidInput
    from accel_platform.table_io.files import BINARY, kind_of

    if json_flag and format_ not in (None, AnyFormat.json):
        raise InvalidInput(f"--json and --format {format_} are two formats: choose one.")
    if json_flag or format_ is not None:
        kind = AnyFormat.json if json_flag or format_ is None else format_
    else:
        kind = AnyFormat.table if output is None else AnyFormat(kind_of(output))
    if kind in BINARY and output is None:
        raise InvalidInput(f"--format {kind} is no text: name the file to write with --output.")
    return kind


def answer(
    rows: Source,
    kind: AnyFormat,
    output: Path | None = None,
    *,
    title: str | None = None,
    short: Callable[[Mapping[str, Any]], Mapping[str, Any]] | None = None,
    document: Any = None,
    empty: str = "No rows.",
) -> None:
    """Rows on stdout or in a file; `short` makes of each what people read, as table, Markdown or HTML.

    `document` stands for them as JSON where there is more to say than rows do.
    """
    from accel_platform.table_io import files
    from accel_platform.table_io.values import json_text

    name: files.Kind = kind.value
    if short is not None and kind in PEOPLE and isinstance(rows, Sequence):
        rows = [short(row) for row in rows]
    as_document = kind is AnyFormat.json and document is not None
    if output is not None:
        if as_document:
            files.save_with(output, lambda stream: stream.write(f"{json_text(document)}\n".encode()))
            note(f"written to {output}")
        else:
            note(f"{files.save(rows, output, name, title=title):,} rows written to {output}")
    elif kind is AnyFormat.json:
        print_json(document if as_document else rows if isinstance(rows, Sequence) else rows.to_pylist())
    elif kind in (AnyFormat.table, AnyFormat.markdown) and isinstance(rows, Sequence) and not rows:
        typer.echo(empty)
    else:
        text = io.BytesIO()
        files.write(rows, text, name, title=title)
        typer.echo(text.getvalue().decode(), nl=False)


def print_json(value: Any) -> None:
    """One JSON document on stdout; times as ISO 8601, UUIDs as text, everything unknown (NaN too) as null."""
    from accel_platform.table_io.values import json_text

    typer.echo(json_text(value))


def print_table(rows: Sequence[Mapping[str, Any]], *, empty: str = "No rows.") -> None:
    """Rows as an aligned table; `empty` is said where there are none."""
    from accel_platform.table_io.text import table_of, terminal

    for line in terminal(table_of(rows)) if rows else (empty,):
        typer.echo(line)


def note(text: str) -> None:
    """Progress and remarks: on stderr, so that stdout stays the answer."""
    typer.echo(text, err=True)
