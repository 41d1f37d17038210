"""`accel report` and `accel chart`: documents and charts of measured and imported results."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal, cast, get_args

import typer

from accel_platform.cli.options import AsOf, Home, Json, build_selection, output_file, with_filters
from accel_platform.cli.output import line_width, note, print_json, print_table, settings_for

ReportKind = Literal["performance", "hardware", "compatibility", "comprehensive", "optimization", "coverage"]


ReportFormat = Literal["table", "markdown", "html", "pdf", "json", "csv", "parquet", "xlsx"]
"""Report format option; mirrors `reports.documents.render.Kind`."""


_ENDINGS = {".txt": "table", ".md": "markdown", ".htm": "html", ".zip": "csv"}


@with_filters()
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
            callback=output_file,
            help="Write to this file: .txt, .md, .html, .pdf, .json, .xlsx, or .zip with a CSV file per table; with "
            "--format parquet, a Parquet file.",
            show_default=False,
        ),
    ] = None,
    format_: Annotated[
        ReportFormat | None,
        typer.Option("--format", help="Output format.", show_default="by --output's ending, else table"),
    ] = None,
    home: Home = None,
    as_json: Json = False,
    **filters: Any,
) -> None:
    """Report on measured and imported results: findings in sentences, then charts, then tables.

    Each figure has its runs, spread and provenance. An HTML report is one file with its charts and works offline; PDF
    needs the extra `pdf`. Tables in text, Markdown, HTML and PDF stop at 40 rows; JSON, CSV, Parquet and XLSX hold all.
    """
    from accel_platform.errors import InvalidInput
    from accel_platform.reports.documents.kinds import report
    from accel_platform.reports.documents.render import render
    from accel_platform.table_io.files import save_bytes
    from accel_platform.warehouse.reader import Reader

    if as_json and format_ not in (None, "json"):
        raise InvalidInput(f"--json and --format {format_} are two formats: choose one.")
    chosen = "json" if as_json else format_ or _format_from_suffix(output)
    if chosen in ("pdf", "csv", "parquet", "xlsx") and output is None:
        raise InvalidInput(f"--format {chosen} is no text: name the file to write with --output.")
    document = report(kind, Reader(settings_for(home, as_of)), build_selection(filters), say=note)
    content = render(document, chosen, width=line_width() if output is None else None)
    if output is None:
        sys.stdout.buffer.write(content)
        sys.stdout.flush()
        return
    save_bytes(output, content)
    note(f"{len(content):,} bytes written to {output}")


def _format_from_suffix(output: Path | None) -> ReportFormat:
    from accel_platform.errors import InvalidInput

    if output is None:
        return "table"
    suffix = output.suffix.casefold()
    kind = _ENDINGS.get(suffix, suffix.removeprefix("."))
    if kind not in get_args(ReportFormat):
        raise InvalidInput(
            f"Cannot tell the format of {output}: end its name in .txt, .md, .html, .pdf, .json, .xlsx or .zip, or add "
            "--format."
        )
    return cast("ReportFormat", kind)


Theme = Literal["light", "dark"]


@with_filters()
def chart(
    name: Annotated[str | None, typer.Argument(help="The chart's name; --list shows all.", show_default=False)] = None,
    *,
    list_: Annotated[bool, typer.Option("--list", help="List every chart and its data.")] = False,
    theme: Annotated[Theme, typer.Option(help="Light or dark background.")] = "light",
    as_of: AsOf = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            callback=output_file,
            help="The file to write: .png, .svg, .html or .json.",
            show_default=False,
        ),
    ] = None,
    home: Home = None,
    as_json: Json = False,
    **filters: Any,
) -> None:
    """Draw a chart of measured and imported results. As JSON it is a Vega-Lite specification.

    An HTML file is self-contained and works offline.
    """
    from accel_platform.errors import InvalidInput
    from accel_platform.reports.charts.registry import CHARTS, chart, find_chart
    from accel_platform.reports.charts.render import kind_of, specification, write
    from accel_platform.warehouse.reader import Reader

    if list_:
        rows = [{"chart": known, "shows": kind.shows, "made of": kind.needs} for known, kind in CHARTS.items()]
        if as_json:
            print_json(rows)
        else:
            print_table(rows)
        return
    if name is None:
        raise InvalidInput("Name a chart; `accel chart --list` shows them.")
    find_chart(name)
    if as_json == (output is not None):
        raise InvalidInput("Name the file to write with --output, or print the specification with --json.")
    if output is not None:
        kind_of(output)
    settings, chosen = settings_for(home, as_of), build_selection(filters)

    def predicted() -> list[dict[str, Any]]:
        from predictor.training.evaluation_pairs import holdout_rows

        return holdout_rows(settings, chosen)

    drawn = chart(name, Reader(settings), chosen, outside={"predicted": predicted})
    if output is None:
        print_json(specification(drawn, theme))
        return
    write(drawn, output, theme)
    note(f"drawn to {output}")
