"""`accel report`: what was measured and imported, as a document. What stands in it is `reports/documents`."""

from __future__ import annotations

import enum
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from accel_platform.cli.options import filtered, selection
from accel_platform.cli.output import AsOf, Home, Json, note, settings_for


class ReportKind(enum.StrEnum):
    performance = "performance"
    hardware = "hardware"
    compatibility = "compatibility"
    comprehensive = "comprehensive"
    optimization = "optimization"
    coverage = "coverage"


class ReportFormat(enum.StrEnum):
    """`reports.documents.render.Kind` for options."""

    table = "table"
    markdown = "markdown"
    html = "html"
    json = "json"
    csv = "csv"
    parquet = "parquet"
    xlsx = "xlsx"


_ENDINGS = {".txt": "table", ".md": "markdown", ".htm": "html", ".zip": "csv"}


@filtered()
def report(
    kind: Annotated[
        ReportKind,
        typer.Argument(
            help="performance: how fast, where, at which batch size, what changed. hardware: devices, what rests on "
            "them, speed-up, efficiency. compatibility: what runs where, and why not. optimization: the gap to the "
            "roofline and what the best configuration does differently. coverage: what is untested. comprehensive: all "
            "of these.",
        ),
    ],
    *,
    as_of: AsOf = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Write it there: .txt, .md, .html, .json, .xlsx, or .zip with a CSV file per table; with --format "
            "parquet, a Parquet file.",
            show_default=False,
        ),
    ] = None,
    format_: Annotated[
        ReportFormat | None,
        typer.Option("--format", help="How to write it.", show_default="by --output's ending, else table"),
    ] = None,
    home: Home = None,
    as_json: Json = False,
    **filters: Any,
) -> None:
    """Report on what was measured and imported: every figure with its runs, spread and provenance, and what is missing.

    An HTML report is one file with its charts, works offline and prints. To people a table shows 40 rows and counts the
    rest; JSON, CSV, Parquet and XLSX hold all.
    """
    from accel_platform.errors import InvalidInput
    from accel_platform.reports.documents.kinds import report
    from accel_platform.reports.documents.render import render
    from accel_platform.table_io.files import save_with
    from accel_platform.warehouse.reader import Reader

    if as_json and format_ not in (None, ReportFormat.json):
        raise InvalidInput(f"--json and --format {format_} are two formats: choose one.")
    chosen = ReportFormat.json if as_json else format_ or _by_ending(output)
    if chosen in (ReportFormat.csv, ReportFormat.parquet, ReportFormat.xlsx) and output is None:
        raise InvalidInput(f"--format {chosen} is no text: name the file to write with --output.")
    document = report(kind.value, Reader(settings_for(home, as_of)), selection(filters), say=note)
    content = render(document, chosen.value)
    if output is None:
        sys.stdout.buffer.write(content)
        sys.stdout.flush()
        return
    save_with(output, lambda stream: stream.write(content))
    note(f"{len(content):,} bytes written to {output}")


def _by_ending(output: Path | None) -> ReportFormat:
    from accel_platform.errors import InvalidInput

    if output is None:
        return ReportFormat.table
    suffix = output.suffix.casefold()
    try:
        return ReportFormat(_ENDINGS.get(suffix, suffix.removeprefix(".")))
    except ValueError:
        raise InvalidInput(
            f"Cannot tell the format of {output}: end its name in .txt, .md, .html, .json, .xlsx or .zip, or add "
            "--format."
        ) from None
