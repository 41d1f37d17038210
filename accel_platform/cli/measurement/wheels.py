"""`accel bench wheels`: the measuring part for a host without a network."""

from __future__ import annotations

import platform
import sys
from pathlib import Path
from typing import Annotated

import typer

from accel_platform.cli.options import SEVERAL, Json, OutputFormat, wants_json
from accel_platform.cli.output import note, print_json, print_table
from accel_platform.table_io.values import count_of


def wheels(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="A new folder for the wheels.")],
    *,
    installed: Annotated[
        Path | None,
        typer.Option(
            help="What the host has: the output there of `pip list --format=freeze`.", show_default="only torch"
        ),
    ] = None,
    hardware: Annotated[
        str, typer.Option(metavar=SEVERAL, help="Hardware names to measure there: their runtimes travel.")
    ] = "cpu",
    python: Annotated[
        str, typer.Option(metavar="X.Y", help="The host's Python.", show_default="this one's")
    ] = f"{sys.version_info[0]}.{sys.version_info[1]}",
    platform_: Annotated[
        str,
        typer.Option("--platform", help="The host's platform, such as linux_x86_64.", show_default="this one's"),
    ] = f"{platform.system().lower()}_{platform.machine()}",
    wheel: Annotated[
        Path | None, typer.Option(help="The platform's own wheel.", show_default="built from the clone")
    ] = None,
    as_json: Json = False,
    format_: OutputFormat = "table",
) -> None:
    """Collect the wheels with which a host without a network can measure and export. It must have torch."""
    from accel_platform.carried_wheels import TargetHost, collect_wheels, read_installed
    from accel_platform.cli.options import split_words
    from accel_platform.errors import InvalidInput

    if platform_.partition("_")[0] not in ("linux", "macosx", "win"):
        raise InvalidInput(f"--platform {platform_!r} is no tag of wheels: write linux_x86_64, win_amd64, …")
    target = TargetHost(python, platform_, read_installed(installed) if installed is not None else {})
    found = collect_wheels(folder, split_words(hardware), target, wheel=wheel)
    rows = [{"wheel": path.name, "bytes": path.stat().st_size} for path in found]
    if wants_json(as_json, format_):
        print_json(rows)
        return
    print_table(rows)
    total = sum(path.stat().st_size for path in found)
    note(f"{count_of(len(found), 'wheel')}, {total / 1e6:.1f} MB. On the host:")
    note(f"python -m pip install --no-index --no-deps {folder}/*.whl")
