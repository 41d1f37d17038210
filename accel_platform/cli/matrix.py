"""`accel matrix`: which model runs on which hardware, and how well."""

from __future__ import annotations

from typing import Annotated

import typer

from accel_platform.cli.output import (
    AsOf,
    Format,
    Home,
    Json,
    Mode,
    OutputFormat,
    note,
    print_json,
    print_table,
    settings_for,
    wants_json,
)


def matrix(
    model: Annotated[str | None, typer.Option(help="Only this model or family.", show_default=False)] = None,
    mode: Annotated[Mode, typer.Option(help="What the models do.")] = Mode.inference,
    as_of: AsOf = None,
    home: Home = None,
    as_json: Json = False,
    format_: OutputFormat = Format.table,
) -> None:
    """Show the compatibility matrix, from verified evidence only: rating and p50 at the shape most devices share."""
    from accel_platform.analysis.matrix import compatibility_matrix
    from accel_platform.errors import NotFound
    from accel_platform.warehouse.query import Reader

    answer = compatibility_matrix(Reader(settings_for(home, as_of)), model=model, mode=mode.value)
    if model is not None and not answer["models"]:
        raise NotFound(
            f"No evidence for {model!r}. `accel matrix` shows what there is; `accel bench run` measures more."
        )
    if wants_json(as_json, format_):
        print_json(answer)
        return
    print_table(
        [
            {"model": name, **{hardware: _text(dict(cell)) for hardware, cell in cells.items()}}
            for name, cells in answer["models"].items()
        ],
        empty="No evidence yet: `accel bench run` or `accel migrate PATH`, then `accel db rebuild`.",
    )
    if answer["models"]:
        note("rating by speed against the best device for equal shapes: high >= 0.8, medium >= 0.4, low below")


def _text(cell: dict[str, object]) -> str:
    if cell["state"] != "compatible":
        return str(cell["state"])
    latency = cell["latency_p50_ms"]
    speed = f" {latency:.1f} ms" if isinstance(latency, float) else ""
    return f"{cell['rating'] or 'works'}{speed}"
