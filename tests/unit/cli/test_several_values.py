"""Options of several values: every way of writing them means the same, and none swallows another option."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from accel_platform.cli import app
from accel_platform.cli.options import SEVERAL, ManyValues
from accel_platform.errors import InvalidInput
from accel_platform.settings import Settings
from predictor_world import MODELS, measured_grid, world


@pytest.mark.parametrize(
    "words",
    [
        "--models a,b --flag",
        "--models a b --flag",
        "--models a --flag --models b",
        "--models=a,b --flag",
        "--models=a --models=b --flag",
        "--flag --models a --models b",
    ],
)
def test_each_way_means_the_same(words: str) -> None:
    seen: list[Any] = []
    small = typer.Typer()

    @small.command(cls=ManyValues)
    def command(*, models: Annotated[str | None, typer.Option(metavar=SEVERAL)] = None, flag: bool = False) -> None:
        seen.append((models, flag))

    assert CliRunner().invoke(small, words.split()).exit_code == 0
    assert seen == [("a,b", True)]
    assert CliRunner().invoke(small, ["--flag", "--models"]).exit_code == 2, "a value is missing"


def test_every_such_option_is_of_a_command_that_understands_it() -> None:
    def commands(command: Any) -> Any:
        for one in getattr(command, "commands", {}).values():
            yield from commands(one)
        if not hasattr(command, "commands"):
            yield command

    found = [
        (command.name, isinstance(command, ManyValues))
        for command in commands(typer.main.get_command(app))
        for parameter in command.params
        if parameter.metavar == SEVERAL
    ]
    assert len(found) > 10
    assert all(understood for _, understood in found)


def test_an_export_is_named_for_what_it_holds(tmp_path: Path) -> None:
    settings: Settings = world(tmp_path, measured_grid(MODELS[:1]))
    done = CliRunner().invoke(app, ["bench", "export", str(tmp_path / "x.json"), "--home", str(settings.home)])
    assert isinstance(done.exception, InvalidInput)
    assert "x.parquet" in str(done.exception)
    assert not (tmp_path / "x.json").exists()
