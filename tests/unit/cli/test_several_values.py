"""Options of several values: every way of writing them means the same, and none swallows another option."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from pages_world import pages_world
from typer.testing import CliRunner

from accel_platform.cli import app
from accel_platform.cli.options import SEVERAL, ManyValues
from accel_platform.errors import InvalidInput, NotFound
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


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> str:
    settings = pages_world(tmp_path_factory.mktemp("values"), measured_grid(MODELS[:2], ("cpu", "openvino")))
    return str(settings.home)


def _run(*words: str) -> Any:
    return CliRunner().invoke(app, words)


def test_predictions_take_several_values_each_way(home: str) -> None:
    for words in (["--hardware", "cpu,openvino"], ["--hardware", "cpu", "openvino"]):
        done = _run("predict", "bert-base", "--batch-sizes", "1", "4", *words, "--home", home, "--json")
        assert done.exit_code == 0, done.exception
        assert [(row["hardware"], row["batch_size"]) for row in json.loads(done.stdout)] == [
            ("cpu", 1), ("cpu", 4), ("openvino", 1), ("openvino", 4),
        ]  # fmt: skip


def test_a_device_with_a_comma_in_its_name_is_one_device(home: str) -> None:
    done = _run("predict", "bert-base", "--hardware", "MacBook Air (13-inch, M3, 2024)", "--home", home, "--json")
    assert "No hardware is called" not in str(done.exception or "")


def test_an_export_and_the_list_of_regressions_take_filters(home: str, tmp_path: Path) -> None:
    whole, part = tmp_path / "all.csv", tmp_path / "some.csv"
    assert _run("db", "export", "results", "-o", str(whole), "--home", home).exit_code == 0
    done = _run("db", "export", "results", "-o", str(part), "--model", "vit", "--hardware", "cpu", "--home", home)
    assert done.exit_code == 0, done.exception
    lines = part.read_text().splitlines()
    assert 1 < len(lines) < len(whole.read_text().splitlines())
    assert all('"vit-base"' in line and '"cpu"' in line for line in lines[1:])
    refused = _run("db", "export", "events", "-o", str(part), "--model", "vit", "--home", home)
    assert "filters are for tables of results" in str(refused.exception)

    def listed(*words: str) -> list[dict[str, Any]]:
        done = _run("regress", "list", *words, "--json", "--home", home)
        assert done.exit_code == 0, done.exception
        return list(json.loads(done.stdout))

    assert {row["model_id"] for row in listed()} == {"bert-base"}
    assert listed("--model", "bert-base", "--hardware", "cpu") == listed()
    assert listed("--model", "vit-base") == []
    assert isinstance(_run("regress", "list", "--model", "vitt", "--home", home).exception, NotFound)


def test_an_answer_of_nothing_ends_with_1_and_an_empty_list_with_0(home: str, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    nothing = (
        ("compare", "--model", "bert-base", "--hardware", "cpu", "wasm"),
        ("trend", "--model", "gpt2"),
        ("matrix", "--model", "gpt2"),
        ("recommend", "gpt2", "--hardware", "webgpu"),
        ("migrate", str(tmp_path / "empty")),
    )
    for words in nothing:
        for form in ((), ("--json",)):
            done = _run(*words, *form, "--home", home)
            assert (done.exit_code, type(done.exception)) == (1, SystemExit), (words, done.exception)
            assert not form or json.loads(done.stdout) is not None
    for words in (("compare", "--model", "bert-base", "--hardware", "cpu", "openvino"), ("bench", "requests"),
                  ("regress", "list", "--state", "gone"), ("db", "query", "SELECT 1 WHERE false")):  # fmt: skip
        assert _run(*words, "--home", home).exit_code == 0, words


def test_repeating_is_of_whole_runs(home: str) -> None:
    done = _run("bench", "run", "--models", "bert-tiny", "--repeat", "2", "--missing", "--home", home)
    assert isinstance(done.exception, InvalidInput)
    assert "--missing" in str(done.exception)
