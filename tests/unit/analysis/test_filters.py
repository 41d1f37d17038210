"""The filters that commands share, as a person types them."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
import typer
from typer.testing import CliRunner

from accel_platform.analysis.query.cells import read_cells
from accel_platform.analysis.query.filters import Selection, measure_command, require_known
from accel_platform.cli.options import ManyValues, build_selection, with_filters
from accel_platform.errors import InvalidInput, NotFound
from accel_platform.settings import Settings
from accel_platform.warehouse.reader import Reader
from predictor_world import MODELS, measured_grid, world

app = typer.Typer()


@app.command(cls=ManyValues)
@with_filters("device")
def show(word: Annotated[str, typer.Option()] = "", **filters: Any) -> None:
    typer.echo(f"{word}{build_selection(filters).model_dump(exclude_defaults=True)}")


def asked(*arguments: str) -> Any:
    return CliRunner().invoke(app, list(arguments))


def test_several_values_follow_one_option_or_stand_with_commas_or_alone() -> None:
    for arguments in (
        ["--hardware", "cpu", "cuda", "--mode", "training"],
        ["--hardware", "cpu,cuda", "--mode", "training"],
        ["--hardware", "cpu", "--mode", "training", "--hardware", "cuda"],
    ):
        assert asked(*arguments).output == "{'hardware': ('cpu', 'cuda'), 'mode': 'training'}\n"


def test_a_command_keeps_its_own_options_and_lacks_what_was_left_out() -> None:
    assert asked("--word", "x", "--batch-size", "4").output == "x{'batch_size': 4}\n"
    assert asked("--device", "a").exit_code == 2
    assert asked("stray").exit_code == 2


def test_what_is_no_time_is_told_by_its_option() -> None:
    with pytest.raises(InvalidInput, match=r"^--since: write a date [^']*, not 'soon'\.$"):
        build_selection({"since": "soon"})


@pytest.mark.parametrize("name", ["float32", "fp32", "FP32", "torch.float32"])
def test_a_precision_goes_by_any_of_its_names(reader: Reader, name: str) -> None:
    cells = read_cells(reader, build_selection({"precision": name}))
    assert cells
    assert {cell["precision"] for cell in cells} == {"float32"}


@pytest.mark.parametrize("name", ["BERT", "Bert", "bert"])
def test_a_family_is_found_however_it_is_written(reader: Reader, name: str) -> None:
    selection = build_selection({"model": [name]})
    require_known(reader, selection)
    assert read_cells(reader, selection) == read_cells(reader, build_selection({"model": ["bert"]})) != []


def test_a_runtime_is_told_apart_from_others_of_the_hardware(reader: Reader) -> None:
    cells = read_cells(reader, build_selection({"hardware": ["cpu", "onnxruntime"], "backend": "onnxruntime"}))
    assert cells
    assert {cell["backend"] for cell in cells} == {"onnxruntime"}


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Reader:
    settings: Settings = world(tmp_path_factory.mktemp("selecting"), measured_grid(MODELS[:1]))
    return Reader(settings)


@pytest.mark.parametrize(
    ("asked_for", "words"),
    [
        ({"model": ("bert-bas",)}, "Did you mean bert-base"),
        ({"model": ("hubert-bse",)}, "Did you mean hubert-base"),
        ({"backend": "onnxrutime"}, "Did you mean onnxruntime"),
        ({"hardware": ("openvno",)}, "Did you mean openvino"),
        ({"device": "Test CPU 9-core"}, "Did you mean Test CPU 8-core"),
    ],
)
def test_what_nothing_knows_is_told_with_its_like(reader: Reader, asked_for: dict[str, Any], words: str) -> None:
    with pytest.raises(NotFound, match=words):
        require_known(reader, Selection(**asked_for))


def test_what_is_known_and_not_measured_is_no_error(reader: Reader) -> None:
    wanted = Selection(model=("roberta-base", "bert"), hardware=("mps",), batch_size=8)
    require_known(reader, wanted)
    assert measure_command(wanted) == "accel bench run --models roberta-base,bert --hardware mps --batch-sizes 8"
