"""`accel compare`: hardware side by side, models side by side, or what changed between two snapshots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accel_platform.cli.options import filtered, selection, split
from accel_platform.cli.output import (
    PEOPLE,
    AnyFormat,
    AsOf,
    FileFormat,
    Home,
    Json,
    Output,
    answer,
    chosen,
    note,
    settings_for,
)

if TYPE_CHECKING:
    from accel_platform.analysis.query.filters import Selection
    from accel_platform.analysis.summaries.comparison import Comparison


@filtered("model")
def compare(
    *,
    model: Annotated[
        list[str] | None, typer.Option("--model", help="One model over several hardware names.", show_default=False)
    ] = None,
    models: Annotated[
        list[str] | None, typer.Option("--models", help="Several models, on one hardware name.", show_default=False)
    ] = None,
    before: Annotated[
        str | None,
        typer.Option("--before", metavar="SNAPSHOT", help="What changed since: a snapshot's name or id, or a date."),
    ] = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="SNAPSHOT", help="Up to when.", show_default="now")
    ] = None,
    min_change_percent: Annotated[
        float, typer.Option("--min-change", min=1, help="Smallest change worth a verdict, in per cent.")
    ] = 3.0,
    as_of: AsOf = None,
    output: Output = None,
    format_: FileFormat = None,
    home: Home = None,
    as_json: Json = False,
    **filters: Any,
) -> None:
    """Compare equal shapes: --model M --hardware A B C, --models M N --hardware A, or --before S [--after T].

    The first one named is what the others are held against. Figures of unlike provenance stand beside each other and
    have no ratio.
    """
    from accel_platform.errors import InvalidInput

    kind = chosen(as_json, format_, output)
    if after is not None and before is None:
        raise InvalidInput("--after needs --before: what should it be held against?")
    if before is not None:
        if as_of is not None or models:
            raise InvalidInput("--before and --after go with --model and the other filters, not --models or --as-of.")
        _changes(home, (before, after), selection(filters, model=model), min_change_percent, (kind, output))
        return
    names, hardware = split(models), split(filters["hardware"])
    if bool(model) == bool(names) or (names and len(hardware) > 1):
        raise InvalidInput(
            "Name --model M with several --hardware, or --models M N with one --hardware, or --before S."
        )
    _side_by_side(home, as_of, selection(filters, model=models or model), bool(names), (kind, output))


def _side_by_side(
    home: Path | None, as_of: str | None, asked: Selection, by_model: bool, to: tuple[AnyFormat, Path | None]
) -> None:
    from dataclasses import asdict

    from accel_platform.analysis.query.filters import how_to_measure
    from accel_platform.analysis.summaries.comparison import side_by_side
    from accel_platform.warehouse.reader import Reader

    found = side_by_side(Reader(settings_for(home, as_of)), asked, "model_id" if by_model else "hardware")
    kind, output = to
    rows = _known([_told(row) for row in found.rows]) if kind in PEOPLE else found.rows
    nothing = f"No shape was measured on both sides. {_why_none(found) or f'To measure: `{how_to_measure(asked)}`.'}"
    answer(rows, kind, output, title=_title(found), document=asdict(found), empty=nothing)
    for name, command in found.lacking.items():
        note(f"nothing of {name}: `{command}` measures it")
    if found.unpaired:
        note(f"{len(found.unpaired)} cells of shapes that only one was measured at are left out; --json has them.")
    if found.rows:
        note(
            f"ratio: latency over that of {found.names[0]} at the same shape; its 95 % interval is over processes "
            "where both have two or more, else over samples alone."
        )


def _changes(
    home: Path | None,
    snapshots: tuple[str, str | None],
    asked: Selection,
    least: float,
    to: tuple[AnyFormat, Path | None],
) -> None:
    from dataclasses import asdict

    from accel_platform.analysis.regressions.cell_changes import changes
    from accel_platform.warehouse.publish import bring_up_to_date
    from accel_platform.warehouse.reader import Reader

    old, new = (settings_for(home, ref) for ref in snapshots)
    bring_up_to_date(new, progress=note)
    found = changes(Reader(old), Reader(new), asked, min_change_percent=least)
    kind, output = to
    shown = ("verdict", "before_ms", "after_ms", "change_percent", "noise_percent", "processes_before",
             "processes_after", "provenance", "reason")  # fmt: skip
    rows = found.rows
    if kind in PEOPLE:
        rows = _known([{"model_id": r["model_id"], "cell": _cell(r), **_only(r, shown)} for r in found.rows])
    title = f"Between {found.before[:12]} and {found.after[:12]}"
    answer(rows, kind, output, title=title, document=asdict(found), empty="No cell was measured again in between.")
    note(f"{found.only_before} cells were not measured again, {found.only_after} are new.")


def _why_none(found: Comparison) -> str | None:
    """Of two models that were measured and can never have one shape, for only one of them reads a sequence."""
    if found.by != "model_id" or found.lacking:
        return None
    reads: dict[str, set[bool]] = {}
    for cell in found.unpaired:
        reads.setdefault(cell["model_id"], set()).add(cell["sequence_length"] is not None)
    if len(reads) != 2 or set.intersection(*reads.values()):
        return None
    with_, without = sorted(reads, key=lambda name: True not in reads[name])
    return f"There is none: {with_} reads sequences, {without} does not."


def _known(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Without the columns that nothing is known in."""
    known = [name for name in rows[0] if any(row[name] is not None for row in rows)] if rows else []
    return [_only(row, known) for row in rows]


def _told(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for people."""
    interval = None if row["ratio_low"] is None else f"{row['ratio_low']:.3g} to {row['ratio_high']:.3g}"
    covers = row["interval_of"]
    single = row["latency_low_ms"] == row["latency_high_ms"]
    spread = None if single else f"{row['latency_low_ms']:.4g} to {row['latency_high_ms']:.4g}"
    return {
        "model_id": row["model_id"],
        "shape": _shape(row),
        "hardware": row["hardware"] + (f":{row['choice']}" if row["choice"] else ""),
        "device": row["device_name"] or row["device_id"],
        "latency_ms": row["latency_ms"],
        "std_ms": row["latency_std_ms"],
        "runs": row["runs"] or row["results"],
        "between_runs_ms": spread,
        "provenance": row["provenance"],
        "ratio": row["ratio"],
        "interval": interval and f"{interval} ({covers})",
        **_only(row, ("throughput_items_per_s", "memory_peak_mib")),
        "differs": "; ".join(row["differs"]) or None,
        "note": row["note"],
    }


def _cell(row: Mapping[str, Any]) -> str:
    from accel_platform.events.types import MeasuredSeries
    from accel_platform.reports.regressions import cell

    return cell(MeasuredSeries.model_construct(**{"weights_sha256": None, **row}))


def _shape(row: Mapping[str, Any]) -> str:
    from accel_platform.events.types import MeasuredSeries
    from accel_platform.reports.regressions import shape

    return shape(MeasuredSeries.model_construct(**{"weights_sha256": None, **row}))


def _title(found: Comparison) -> str:
    return f"{found.names[0]} against {', '.join(found.names[1:])}" if found.names else "Comparison"


def _only(row: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: row[name] for name in names}
