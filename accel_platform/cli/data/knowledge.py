"""`accel knowledge`: packs of public figures: list, show, add, remove, build."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accel_platform.cli.options import CommandApp, CommonOptions, Json, OutputFormat, wants_json
from accel_platform.cli.output import note, print_json, print_table, settings_for
from accel_platform.table_io.values import count_of

if TYPE_CHECKING:
    from accel_platform.knowledge.packs import PackState
    from accel_platform.settings import Settings

app = CommandApp(help="Packs of public figures: list, add, remove, build.", no_args_is_help=True)
PackName = Annotated[str, typer.Argument(help="The pack, as `accel knowledge list` names it.")]


def adopt_shipped(settings: Settings, *, only_into_empty_log: bool = False) -> None:
    """Bring the shipped packs into log and tables; name a pack that cannot be used, and why. Raises LogUnavailable."""
    from accel_platform.events import EventLog
    from accel_platform.knowledge.packs import adopt_packs, holds_only_packs
    from accel_platform.warehouse.layers import current
    from accel_platform.warehouse.publish import bring_up_to_date

    log = EventLog.open(settings)
    if only_into_empty_log:
        started = bool(log.snapshot().segments)
        # Packs without tables: an earlier start was interrupted, and this one finishes it.
        if started and (current(settings) is not None or not holds_only_packs(log)):
            return
        state = "holds packs without tables" if started else "is empty"
        note(f"The log of {settings.home} {state}: adding the published figures that come with the platform.")
    for refused in adopt_packs(log):
        note(f"The knowledge pack {refused.name} is not used: {refused.reason}")
    bring_up_to_date(settings, progress=note)


@app.callback()
def knowledge() -> None:
    """Packs of public figures: list, add, remove, build."""


@app.command(name="list")
def list_(common: CommonOptions) -> None:
    """List the packs with rows, devices and license, and why one is not used."""
    from accel_platform.events import EventLog
    from accel_platform.knowledge.packs import pack_states

    states = pack_states(EventLog.open(settings_for(common.home)))
    if common.wants_json:
        print_json([_document(state) for state in states])
        return
    print_table([_row(state) for state in states], empty="There are no packs.")


@app.command()
def show(name: PackName, common: CommonOptions) -> None:
    """Show a pack's card: source, license, what was left out, and how it was converted."""
    from accel_platform.events import EventLog
    from accel_platform.knowledge.cards import card_text
    from accel_platform.knowledge.packs import pack_states, state_of

    state = state_of(pack_states(EventLog.open(settings_for(common.home))), name)
    if common.wants_json:
        print_json(_document(state) | {"card": state.card.as_dict() if state.card else None})
        return
    if state.card is not None:
        typer.echo(card_text(state.card), nl=False)
    note("It is used." if state.used else f"It is not used: {state.reason}.")


@app.command()
def add(
    pack: Annotated[
        str | None, typer.Argument(metavar="PACK", help="The folder of a pack, or the name of a shipped one.")
    ] = None,
    all_: Annotated[bool, typer.Option("--all", help="All shipped packs.")] = False,
    *,
    common: CommonOptions,
) -> None:
    """Use a pack: one of somebody else, after a check of all it holds, or a shipped one; or all shipped ones."""
    from accel_platform.errors import InvalidInput
    from accel_platform.events import EventLog
    from accel_platform.knowledge.packs import add_pack, removed_packs, shipped_folder, shipped_results

    if (pack is None) is not all_:
        raise InvalidInput("Name a pack, or all shipped ones by --all: `accel knowledge list` shows them.")
    settings = settings_for(common.home)
    log = EventLog.open(settings)
    if pack is None:
        removed = removed_packs(log)
        folders = [shipped_folder(name) for name in shipped_results() if name not in removed]
        if removed:
            note(
                f"Left out, because they were removed: {', '.join(removed)}. `accel knowledge add NAME` uses one again."
            )
    else:
        folders = [Path(pack) if Path(pack).is_dir() else shipped_folder(pack)]
    added = [add_pack(log, folder) for folder in folders]
    _bring_up_to_date(settings)
    rows = [{"name": one.card.name, "rows": one.card.rows, "used": True} for one in added]
    if common.wants_json:
        print_json(rows if all_ else rows[0])
    else:
        for row in rows:
            typer.echo(f"{row['name']} is used: {row['rows']:,} figures.")


@app.command()
def remove(
    name: PackName,
    by: Annotated[str | None, typer.Option(help="Your name; stored permanently.")] = None,
    *,
    common: CommonOptions,
) -> None:
    """Take a pack out of use. Its events stay in the log, and `accel knowledge add` uses it again."""
    from accel_platform.events import EventLog
    from accel_platform.knowledge.packs import FITTED_FROM, remove_pack

    settings = settings_for(common.home)
    remove_pack(EventLog.open(settings), name, by=by)
    _bring_up_to_date(settings)
    if common.wants_json:
        print_json({"name": name, "used": False})
    else:
        typer.echo(f"{name} is not used any more: its figures are in no table and in no training.")
        if name in FITTED_FROM:
            note(f"The predictors of operators and of serving ship fitted; {name} is among what they were fitted to.")


@app.command()
def build(
    source: Annotated[Path, typer.Argument(metavar="SOURCE_DIR", help="The folder with the files that cards name.")],
    only: Annotated[str | None, typer.Option(metavar="NAME", help="Build this pack alone.")] = None,
    cards: Annotated[
        Path | None, typer.Option(help="The folder of the packs, each with a card. Default: the shipped ones.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Write the packs here. Default: beside their cards.")] = None,
    as_json: Json = False,
    format_: OutputFormat = "table",
) -> None:
    """Make packs anew from their source files. The same files and cards give the same bytes."""
    from accel_platform.errors import InvalidInput
    from accel_platform.knowledge.cards import CARD
    from accel_platform.knowledge.packs import KERNELS, PACKS
    from migrations.pipeline.pack_builder import build_kernels, build_pack

    place = cards or PACKS
    folders = [path.parent for path in sorted(place.glob(f"*/{CARD}")) if only in (None, path.parent.name)]
    if not folders:
        raise InvalidInput(f"{place} holds no card of {only or 'any pack'}: write {only or 'NAME'}/{CARD} first.")
    rows: list[dict[str, Any]] = []
    for folder in folders:
        if (folder / KERNELS).exists():
            built = build_kernels(folder, source)
        else:
            built = build_pack(folder, source, (out or place) / folder.name)
        rows.append(
            {
                "pack": built.card.name,
                "rows": built.card.rows,
                "bytes": built.size_bytes,
                "outcome": "changed" if built.changed else "as before",
                "left out": built.left_out,
            }
        )
        note(f"{folder.name}: {count_of(built.card.rows, 'row')}")
    if wants_json(as_json, format_):
        print_json(rows)
    else:
        for row in rows:
            row["left out"] = ", ".join(f"{count} {reason}" for reason, count in sorted(row["left out"].items()))
        print_table(rows)


def _bring_up_to_date(settings: Settings) -> None:
    from accel_platform.warehouse.publish import bring_up_to_date

    bring_up_to_date(settings, progress=note)


def _document(state: PackState) -> dict[str, Any]:
    card = state.card
    return {
        "name": state.name,
        "title": card.title if card else None,
        "rows": card.rows if card else None,
        "devices": list(card.devices) if card else None,
        "license": card.license if card else None,
        "repository": card.repository if card else None,
        "commit": card.commit if card else None,
        "date": str(card.date) if card else None,
        "shipped": state.shipped,
        "used": state.used,
        "reason": state.reason,
    }


def _row(state: PackState) -> dict[str, Any]:
    return {
        "pack": state.name,
        "rows": state.card.rows if state.card else None,
        "devices": len(state.card.devices) if state.card else None,
        "license": state.card.license if state.card else None,
        "source": state.card.repository if state.card else None,
        "used": "yes" if state.used else "no",
        "reason": state.reason,
    }
