"""Options of a dataclass are options of the command, in their place, and arrive as one object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import typer
from typer.testing import CliRunner

from accel_platform.cli.options import CommandApp


@dataclass(frozen=True)
class Box:
    """A group of two options."""

    width: Annotated[int, typer.Option("--width", min=1)] = 1
    label: Annotated[list[str] | None, typer.Option("--label")] = None


def test_a_command_receives_a_group_as_one_object() -> None:
    seen: list[Any] = []
    small = CommandApp()

    @small.command()
    def pack(
        name: Annotated[str, typer.Argument()],
        *,
        fast: Annotated[bool, typer.Option("--fast")] = False,
        box: Box,
        home: Annotated[str, typer.Option("--home")] = "here",
    ) -> None:
        """Pack it."""
        seen.append((name, fast, box, home))

    run = CliRunner().invoke
    assert run(small, ["a", "--width", "3", "--label", "x", "--label", "y", "--fast"]).exit_code == 0
    assert run(small, ["b"]).exit_code == 0
    assert seen == [("a", True, Box(3, ["x", "y"]), "here"), ("b", False, Box(), "here")]
    assert run(small, ["c", "--width", "0"]).exit_code == 2
    options = [parameter.name for parameter in typer.main.get_command(small).params]
    assert options[:5] == ["name", "fast", "width", "label", "home"]
    assert "Pack it." in run(small, ["--help"]).output
