"""`accel matrix`: compatibility of models and hardware, and its history."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accel_platform.cli.options import AsOf, Mode, TableOptions, build_selection, with_filters
from accel_platform.cli.output import (
    drop_empty_columns,
    exit_if_nothing,
    line_width,
    note,
    print_error,
    settings_for,
    write_answer,
)
from accel_platform.table_io.values import rounded

if TYPE_CHECKING:
    from accel_platform.analysis.query.cells import CellShape
    from accel_platform.analysis.query.filters import Selection
    from accel_platform.analysis.summaries.matrix import Matrix, RatedCell
    from accel_platform.table_io.kinds import Kind
    from accel_platform.warehouse.reader import Reader


@with_filters("mode")
def matrix(
    *,
    mode: Annotated[Mode, typer.Option(help="inference, generation or training.")] = "inference",
    family: Annotated[bool, typer.Option("--family", help="Show a row per model family.")] = False,
    by_device: Annotated[bool, typer.Option("--by-device", help="Show a column per device.")] = False,
    history: Annotated[bool, typer.Option("--history", help="Show how cells changed, day by day.")] = False,
    documented: Annotated[
        bool,
        typer.Option("--documented", help="JSON in the documented format of older tools; `accel migrate` reads it."),
    ] = False,
    as_of: AsOf = None,
    table: TableOptions,
    **filters: Any,
) -> None:
    """Show the compatibility matrix: high, medium, low or works from verified evidence, else n/a, failed or untested.

    A row names the shape that most hardware shares, and the figures are its p50; a figure of another shape names that
    shape. Where the grid is wider than the terminal, there is a row per tested cell. Filters leave evidence out. Files
    hold a row per cell with its reason and evidence. HTML is a grid whose cells open to their evidence.
    """
    from accel_platform.analysis.query.filters import measure_command, require_known
    from accel_platform.analysis.summaries.matrix import compatibility_matrix, group_by_family
    from accel_platform.reports import matrix as printed
    from accel_platform.warehouse.reader import Reader

    _require_one_answer(table, family=family, history=history, documented=documented, by_device=by_device)
    table = replace(table, as_json=table.as_json or documented)
    chosen = build_selection(filters)
    reader = Reader(settings_for(table.home, as_of))
    require_known(reader, chosen)
    if history:
        _history(reader, chosen, mode, table)
        return
    found = compatibility_matrix(reader, chosen, mode=mode, by_device=by_device)
    command = measure_command(chosen.model_copy(update={"mode": mode if mode != "inference" else None}))
    nothing = f"No evidence yet: `{command}` or `accel migrate PATH`, then `accel db rebuild`."
    if documented:
        write_answer([], table, document=printed.documented(reader, found))
    else:
        families = group_by_family(reader, found) if family else None
        _write_grid(found, families, table, title=f"Compatibility, {mode}", missing=nothing)
    if not found["models"] and (documented or table.kind == "html"):
        print_error(nothing)
    if found["models"] and not documented:
        _note_rule(found)
    exit_if_nothing(found["models"])


def _require_one_answer(table: TableOptions, *, family: bool, history: bool, documented: bool, by_device: bool) -> None:
    """Raise InvalidInput for options that ask for several answers at once."""
    from accel_platform.errors import InvalidInput

    if sum((family, history, documented)) > 1:
        raise InvalidInput("--family, --history and --documented are three answers: choose one.")
    if by_device and (history or documented):
        raise InvalidInput("--by-device goes with the grid: --history names devices, and --documented knows none.")
    if documented and table.format_ not in (None, "json"):
        raise InvalidInput(f"--documented is JSON: leave out --format {table.format_}.")


def _write_grid(found: Matrix, families: Any, table: TableOptions, *, title: str, missing: str) -> None:
    """Write the matrix, or that of `families`, in the format asked for; `missing` is said where it is empty."""
    from accel_platform.analysis.summaries.matrix import RATING_RULE
    from accel_platform.reports import matrix as printed

    if table.kind == "html":
        page = printed.html_page(found, families, title=title, rule=RATING_RULE)
        _write_text("\n".join(page), table.output)
        return
    document = {**found, "rule": RATING_RULE} | ({"families": families} if families is not None else {})
    rows = _rows(found, families, table.kind)
    if table.kind == "table" and table.output is None and not _fits_terminal(rows):
        rows = _tested_rows(found, families)
        note("One row per tested cell, as the grid is wider than the terminal; the others are untested.")
    write_answer(
        rows,
        table,
        title=title,
        document=document,
        missing=missing,
        keep=("verdict", "latency_ms", "batch", "input", "precision", "processes"),
        whole=("model", "family", "hardware", "shape"),
    )


def _note_rule(found: Matrix) -> None:
    """Print which device a cell shows, and the rule of the ratings."""
    from accel_platform.analysis.summaries.matrix import RATING_RULE

    if mixed := {name: count for name, count in found["devices"].items() if count > 1}:
        counts = ", ".join(f"{name} {count}" for name, count in mixed.items())
        note(
            f"Of several devices (here: {counts}) each cell shows the fastest at the row's shape, or else the best"
            " rated: --device NAME compares the runtimes of one device, --by-device has a column for each."
        )
    note(f"n: results that worked or failed, disturbed ones too, which the figure leaves out; rating: {RATING_RULE}")


def _rows(found: Matrix, families: Any, kind: Kind) -> list[dict[str, Any]]:
    from accel_platform.reports import matrix as printed

    if kind in ("csv", "parquet", "xlsx"):
        return printed.long_rows(found) if families is None else printed.family_rows(families)
    rows = []
    if families is not None:
        for name, cells in families.items():
            verdicts = {hardware: printed.verdict_with_counts(cells.get(hardware)) for hardware in found["hardware"]}
            rows.append({"family": name, **verdicts})
        return rows
    for name, cells in found["models"].items():
        shape = found["shapes"][name]
        texts = {hardware: _cell_text(cell, shape) for hardware, cell in cells.items()}
        rows.append({"model": name, "shape": printed.shape_text(shape) if shape else None, **texts})
    return rows


def _fits_terminal(rows: list[dict[str, Any]]) -> bool:
    from accel_platform.table_io.width import fits

    width = line_width()
    return width is None or not rows or fits(rows, width)


def _tested_rows(found: Matrix, families: Any) -> list[dict[str, Any]]:
    """Return a row per tested cell, or per tested pair of family and hardware name, for narrow terminals."""
    from accel_platform.reports import matrix as printed

    if families is not None:
        return [
            {"family": name, "hardware": hardware, "verdict": printed.verdict_with_counts(cell)}
            for name, cells in families.items()
            for hardware, cell in cells.items()
            if cell["verdict"] != "untested"
        ]
    rows = [
        {
            "model": name,
            "hardware": hardware,
            "verdict": cell["verdict"] + (", disturbed" if cell["disturbed"] else "") + _until(cell),
            "latency_ms": cell["latency_p50_ms"],
            **_shape_columns(cell),
            "n": _results(cell),
            "device": cell["device"],
        }
        for name, cells in found["models"].items()
        for hardware, cell in cells.items()
        if cell["verdict"] != "untested"
    ]
    return drop_empty_columns(rows)


def _shape_columns(cell: RatedCell) -> dict[str, Any]:
    """Return the shape of a cell's figure in columns, because a table leaves out or cuts none of short ones."""
    if cell["latency_p50_ms"] is None:
        return dict.fromkeys(("batch", "input", "out", "precision", "processes"))
    length, size = cell["sequence_length"], cell["image_size"]
    return {
        "batch": cell["batch_size"],
        "input": f"length {length}" if length else f"{size:g} px" if size else None,
        "out": cell["output_tokens"],
        "precision": cell["precision"],
        "processes": cell["processes"] if (cell["processes"] or 1) > 1 else None,
    }


def _history(reader: Reader, filters: Selection, mode: str, table: TableOptions) -> None:
    from dataclasses import asdict

    from accel_platform.analysis.summaries.matrix_history import matrix_history
    from accel_platform.errors import InvalidInput

    if set(filters.model_dump(exclude_defaults=True)) - {"model", "hardware"}:
        raise InvalidInput("--history goes with --model, --hardware and --mode: it replays all evidence.")
    changes = [asdict(change) for change in matrix_history(reader, filters, mode=mode)]
    write_answer(changes, table, title="How the matrix changed", short=_display_change, empty="No cell ever changed.")
    note("Each day's matrix is built from the log at the end of the day (UTC).")


def _display_change(change: Mapping[str, Any]) -> dict[str, Any]:
    """Return a change as it is displayed."""
    return {
        "day": f"{change['day']:%Y-%m-%d}",
        **{name: change[name] for name in ("model_id", "hardware", "device", "before", "after")},
        "speed": change["relative_speed_after"],
        "ok": change["results_ok"],
        "failed": change["results_failed"],
        "reason": change["reason"],
    }


def _cell_text(cell: RatedCell, row: CellShape | None) -> str:
    """Return a cell's verdict and figure, with its shape if that is not the one of its row."""
    from accel_platform.reports.matrix import deviating_shape

    latency = cell["latency_p50_ms"]
    figure = "" if latency is None else f"{latency:.1f}" if latency >= 1 else rounded(latency, 2)
    speed = f" {figure} ms" if cell["state"] == "compatible" and figure else ""
    speed += ", disturbed" if speed and cell["disturbed"] else ""
    results, shape = _results(cell), deviating_shape(cell, row)
    speed += f" ({shape})" if speed and shape else ""
    return cell["verdict"] + speed + (f" n={results}" if results else "") + _until(cell)


def _results(cell: RatedCell) -> int:
    return cell["results_ok"] if cell["state"] == "compatible" else cell["results_failed"]


def _until(cell: RatedCell) -> str:
    worked = cell["last_worked_at"] if cell["state"] == "failed" else None
    return f" (worked until {worked:%Y-%m-%d})" if worked is not None else ""


def _write_text(text: str, output: Path | None) -> None:
    from accel_platform.table_io.files import save_bytes

    if output is None:
        typer.echo(text)
    else:
        save_bytes(output, text.encode())
        note(f"written to {output}")
