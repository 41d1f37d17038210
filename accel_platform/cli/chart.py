"""`accel chart`: one chart as a file. Which charts there are, and of what, is decided in `reports/drawing`."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any

import typer

from accel_platform.cli.options import filtered, selection
from accel_platform.cli.output import AsOf, Home, Json, note, print_json, print_table, settings_for


class Theme(enum.StrEnum):
    light = "light"
    dark = "dark"


@filtered()
def chart(
    name: Annotated[str | None, typer.Argument(help="Which chart; --list shows all.", show_default=False)] = None,
    *,
    list_: Annotated[bool, typer.Option("--list", help="Show every chart and what it is made of.")] = False,
    theme: Annotated[Theme, typer.Option(help="For a light page or a dark one.")] = Theme.light,
    as_of: AsOf = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write: .png, .svg, .html or .json.", show_default=False),
    ] = None,
    home: Home = None,
    as_json: Json = False,
    **filters: Any,
) -> None:
    """Draw a chart of what was measured and imported. As JSON it is a Vega-Lite specification.

    An HTML file holds all it needs and works offline.
    """
    from accel_platform.errors import InvalidInput
    from accel_platform.reports.charts.registry import CHARTS, chart, drawing
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
    drawing(name)
    if as_json == (output is not None):
        raise InvalidInput("Name the file to write with --output, or print the specification with --json.")
    if output is not None:
        kind_of(output)
    settings, chosen = settings_for(home, as_of), selection(filters)

    def predicted() -> list[dict[str, Any]]:
        from predictor.training.evaluation_pairs import holdout_rows

        return holdout_rows(settings, chosen)

    drawn = chart(name, Reader(settings), chosen, outside={"predicted": predicted})
    if output is None:
        print_json(specification(drawn, theme.value))
        return
    write(drawn, output, theme.value)
    note(f"drawn to {output}")
