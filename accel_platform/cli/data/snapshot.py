"""`accel db snapshot`: named snapshots of the log, and the differences between two."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from accel_platform.analysis.regressions.thresholds import MIN_MEDIAN_CHANGE_PERCENT
from accel_platform.cli.options import CommandApp, CommonOptions, TableOptions, min_change
from accel_platform.cli.output import note, print_json, print_table, settings_for, write_answer
from accel_platform.table_io.values import count_of

if TYPE_CHECKING:
    from accel_platform.analysis.regressions.snapshot_comparison import TableChanges

app = CommandApp(help="Named snapshots of the log, for `--as-of`.", no_args_is_help=True)


@app.command()
def create(
    name: Annotated[str | None, typer.Option(help="A permanent name.", show_default="none")] = None,
    *,
    common: CommonOptions,
) -> None:
    """Create a snapshot of the log as it is now."""
    from accel_platform.events import EventLog
    from accel_platform.events.snapshots import take_snapshot

    payload = take_snapshot(EventLog.open(settings_for(common.home)), name)
    if common.wants_json:
        print_json(payload)
    else:
        print_table([payload.model_dump()])


@app.command(name="list")
def list_snapshots(table: TableOptions) -> None:
    """List the snapshots, oldest first."""
    from accel_platform.events import EventLog
    from accel_platform.events.snapshots import read_snapshot_events

    rows = [
        {**event.payload.model_dump(), "taken_at": event.recorded_at}
        for event in read_snapshot_events(EventLog.open(settings_for(table.home)))
    ]
    nothing = "None was taken: `accel db snapshot create --name NAME` takes one."
    write_answer(rows, table, title="Snapshots", empty=nothing)


@app.command()
def diff(
    *,
    before: Annotated[str, typer.Argument(metavar="A", help="A snapshot's name or id, or a date.")],
    after: Annotated[str | None, typer.Argument(metavar="B", help="The same.", show_default="the current log")] = None,
    min_change_percent: Annotated[float, min_change("change of a median")] = MIN_MEDIAN_CHANGE_PERCENT,
    common: CommonOptions,
) -> None:
    """Show the differences between two snapshots: results, medians and matrix cells."""
    from dataclasses import asdict

    from accel_platform.analysis.regressions.snapshot_comparison import compare_tables
    from accel_platform.warehouse.publish import bring_up_to_date
    from accel_platform.warehouse.reader import Reader

    old, new = settings_for(common.home, before), settings_for(common.home, after)
    bring_up_to_date(new, progress=note)
    found = compare_tables(Reader(old), Reader(new), min_change_percent=min_change_percent)
    if common.wants_json:
        print_json(asdict(found))
    else:
        _print(found)


def _print(found: TableChanges) -> None:
    from accel_platform.hardware.device_names import with_distinct_names
    from accel_platform.reports.regressions import cell

    print_table(found.results, empty="No result came or went.")
    typer.echo()
    print_table(
        [
            {
                "model_id": row["model_id"],
                "cell": cell(row),
                "device_id": row["device_id"],
                **{name: row[name] for name in ("before_ms", "after_ms", "change_percent", "results_after")},
            }
            for row in found.medians
        ],
        empty="No median moved.",
    )
    typer.echo()
    print_table([_cell(row) for row in with_distinct_names(found.matrix)], empty="No cell of the matrix changed.")
    note(
        f"{count_of(found.added, 'result')} came and {found.removed:,} went "
        f"between {found.before[:12]} and {found.after[:12]}."
    )


def _cell(row: dict[str, Any]) -> dict[str, Any]:
    states = {
        side: " ".join(part for part in (row[f"state_{side}"], row[f"rating_{side}"]) if part) or None
        for side in ("before", "after")
    }
    return {name: row[name] for name in ("model_id", "hardware", "device_name", "mode")} | states
