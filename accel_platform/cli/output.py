"""What every command shares: the --home and --json options, printing for people or machines, and error lines."""

from __future__ import annotations

import enum
import json
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from accel_platform.settings import Settings


class Format(enum.StrEnum):
    table = "table"
    json = "json"


class Mode(enum.StrEnum):
    """What a model does while it is measured; `events.types.Mode` for options."""

    inference = "inference"
    generation = "generation"
    training = "training"


Home = Annotated[
    Path | None, typer.Option("--home", help="State directory (default: $ACCEL_HOME or ./.accel).", show_default=False)
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON; the same as --format json.")]
OutputFormat = Annotated[Format, typer.Option("--format", help="How to print the answer.")]


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
    from accel_platform.warehouse.as_of import tables_as_of

    return tables_as_of(Settings(), as_of, progress=note)


def wants_json(json_flag: bool, format_: Format) -> bool:
    return json_flag or format_ is Format.json


def print_json(value: Any) -> None:
    """One JSON document on stdout; times as ISO 8601, UUIDs as text, everything unknown (NaN too) as null."""
    typer.echo(json.dumps(_finite(value), default=_plain, indent=2, ensure_ascii=False, allow_nan=False))


def print_table(rows: Sequence[Mapping[str, Any]], *, empty: str = "No rows.") -> None:
    """Rows as an aligned table; `empty` is said where there are none."""
    if not rows:
        typer.echo(empty)
        return
    columns = list(rows[0])
    cells = [[_cell(row[column]) for column in columns] for row in rows]
    widths = [max(len(column), *(len(row[i]) for row in cells)) for i, column in enumerate(columns)]
    numeric = [all(isinstance(row[c], int | float) or row[c] is None for row in rows) for c in columns]
    lines = [columns, ["-" * width for width in widths], *cells]
    for line in lines:
        typer.echo(
            "  ".join(
                text.rjust(width) if right else text.ljust(width)
                for text, width, right in zip(line, widths, numeric, strict=True)
            ).rstrip()
        )


def note(text: str) -> None:
    """Progress and remarks: on stderr, so that stdout stays the answer."""
    typer.echo(text, err=True)


@contextmanager
def errors_for_people() -> Iterator[None]:
    """Turn an AccelError into `accel: what and what to do` and exit code 1 (2 for bad input)."""
    try:
        yield
    except Exception as error:
        from accel_platform.errors import AccelError, InvalidInput

        if not isinstance(error, AccelError):
            raise
        note(f"accel: {error}")
        sys.exit(2 if isinstance(error, InvalidInput) else 1)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.0f}"
    if isinstance(value, Mapping | list | tuple):
        return json.dumps(value, default=_plain, ensure_ascii=False)
    return str(value)


def _finite(value: Any) -> Any:
    """JSON has no NaN and no infinity."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value


def _plain(value: Any) -> Any:
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    return str(value)
