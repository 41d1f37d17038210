"""Cells as tables and pictures, and the commands that make them."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from accel_platform.cli import app
from accel_platform.errors import InvalidInput, NotFound
from accel_platform.reports.charts.render import write
from predictor.advisor import charts
from predictor.advisor.batch_tables import COLUMNS, batch_queries
from predictor_world import CPU, MODELS, measured_grid, result, world

PNG = b"\x89PNG"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(world(tmp_path_factory.mktemp("world"), measured_grid(MODELS[:4])).home)


def _run(home: str, *words: str) -> Any:
    return CliRunner().invoke(app, [*words, "--home", home])


def test_more_cells_than_are_answered_at_once_are_refused() -> None:
    assert len(batch_queries(["a"] * 10, ["cpu"] * 10, [1] * 10)) == 1000
    with pytest.raises(InvalidInput, match="1,100"):
        batch_queries(["a"] * 11, ["cpu"] * 10, [1] * 10)


def test_a_length_goes_to_the_models_that_read_text() -> None:
    lengths = [q.sequence_length for q in batch_queries(["bert-base", "vit-base"], ["cpu"], [1], sequence_length=64)]
    assert lengths == [64, None]


def test_the_matrix_has_a_cell_for_every_model_and_hardware(home: str) -> None:
    answer = _run(home, "predict", "--generate-matrix", "--batch-size", "4", "--format", "json")
    assert answer.exit_code == 0, answer.output
    rows = json.loads(answer.stdout)
    assert {(row["model"], row["asked"]) for row in rows} == {
        (m.model_id, h) for m in MODELS[:4] for h in ("cpu", "openvino", "onnxruntime")
    }
    assert set(rows[0]) == set(COLUMNS)
    assert all(row["provenance"] == "measured" and row["latency_ms"] > 0 for row in rows)
    assert all(row["hardware"] == row["asked"] for row in rows)
    text = _run(home, "predict", "--generate-matrix", "--batch-size", "4", "--format", "csv").stdout
    read = list(csv.DictReader(io.StringIO(text)))
    assert [float(row["latency_ms"]) for row in read] == [row["latency_ms"] for row in rows]
    # Unknown is an empty field, never a zero.
    assert {row["usd_per_million_items"] for row in read} == {""}


def test_precisions_stand_side_by_side_with_what_is_doubtful(home: str) -> None:
    words = ("predict", "bert-large", "--hardware", "H100 PCIe", "NVIDIA T4", "--sequence-length", "512")
    answer = _run(home, *words, "--precisions", "float32,float16", "--json")
    assert answer.exit_code == 0, answer.output
    rows = json.loads(answer.stdout)
    assert [(row["device"], row["precision"]) for row in rows] == [
        (device, precision) for device in ("NVIDIA H100 PCIe 80GB", "NVIDIA T4") for precision in ("float32", "float16")
    ]
    assert rows[0]["latency_ms"] > rows[1]["latency_ms"]
    assert all(row["level"] and row["why"] for row in rows)
    (warning,) = [text for text in rows[0]["warnings"] if "no whole model was measured there" in text]
    assert warning.endswith("stand for it.")
    shown = _run(home, *words, "--precisions", "float32,float16")
    assert shown.stderr.count("(NVIDIA H100 PCIe 80GB): no whole model was measured there in float32") == 1


def test_devices_of_one_name_are_told_apart_by_their_ids(tmp_path: Path) -> None:
    made = [result(MODELS[0], "cpu", size, device_id=f"cpu-{size}", provenance="imported") for size in (1, 4)]
    home = str(world(tmp_path, made).home)
    words = ("predict", "bert-base", "--hardware", "cpu-1", "cpu-4", "--sequence-length", "128")
    rows = json.loads(_run(home, *words, "--batch-sizes", "1,4", "--json").stdout)
    found = [(row["device"], row["device_id"]) for row in rows if row["problem"] is None]
    assert found == [(CPU, "cpu-1"), (CPU, "cpu-4")]
    shown = _run(home, *words, "--batch-sizes", "1,4").stdout
    assert all(f"{CPU} (cpu-{size})" in shown for size in (1, 4))


def test_options_that_contradict_each_other_are_refused(home: str, tmp_path: Path) -> None:
    for words, says in (
        (("--batch-sizes", "1,2", "--batch-size", "4"), "--batch-size with one"),
        (("--batch-sizes", ","), "whole numbers"),
        (("--generate-matrix", "--models", "vit-base"), "leave out the others"),
        (("--output-tokens", "5"), "^--output-tokens belong to mode generation"),
        (("--image-size", "99999", "--batch-sizes", "1,2"), "^--image-size: expected 16384 or less, got 99999"),
        (("--output-tokens", "5", "--batch-sizes", "1,2"), "^--output-tokens belong to mode generation"),
        (("--precisions", "float32", "--precision", "float16"), "--precision with one"),
        (("--precisions", ","), "--precision with one"),
        (("--precisions", "float32,float16", "--chart", str(tmp_path / "x.png")), "one precision"),
        (("--precisions", "float32,float16", "--generate-matrix"), "one precision"),
    ):
        with pytest.raises(InvalidInput, match=says):
            app(["predict", "bert-base", "--hardware", "cpu", *words, "--home", home], standalone_mode=False)


@pytest.mark.parametrize("matrix", [(), ("--generate-matrix",)])
def test_a_name_of_nothing_is_refused_as_by_one_prediction(home: str, matrix: tuple[str, ...]) -> None:
    cells = ("bert-base", "--hardware", "cpu", "openvino", "--batch-size", "4")
    for words, kind, says in (
        ((*cells, "--precision", "flaot32"), InvalidInput, "'flaot32'. Did you mean float32"),
        (("bert-base", "--hardware", "cpu", "openvin"), InvalidInput, "'openvin'. Did you mean openvino"),
        (("bert-bas", "--hardware", "cpu", "openvino"), NotFound, "'bert-bas'. Did you mean bert-base"),
    ):
        with pytest.raises(kind, match=re.escape(says)):
            app(["predict", *words, *matrix, "--home", home], standalone_mode=False)


def test_each_of_several_precisions_has_to_exist(home: str) -> None:
    words = ["predict", "bert-base", "--hardware", "cpu", "--precisions", "float32,flaot16", "--home", home]
    with pytest.raises(InvalidInput, match=r"'flaot16'\. Did you mean float16"):
        app(words, standalone_mode=False)


@pytest.mark.parametrize("words", [("--models", ","), ("--models", "bert-base", "--set", "small")])
def test_a_matrix_has_its_models_from_one_option(home: str, words: tuple[str, ...]) -> None:
    with pytest.raises(InvalidInput, match="--models with names"):
        app(["predict", "--generate-matrix", "--hardware", "cpu", *words, "--home", home], standalone_mode=False)


@pytest.mark.parametrize("words", [("bert-base",), ("--generate-matrix", "--models", "bert-base")])
def test_no_figure_at_all_ends_with_1(home: str, words: tuple[str, ...]) -> None:
    answer = _run(home, "predict", *words, "--hardware", "rocm", "qnn")
    assert answer.exit_code == 1
    assert "Nothing supports any of these." in answer.stderr
    assert "left out: bert-base on rocm" in answer.stderr


def test_the_heat_map_is_one_page_that_needs_no_network(home: str, tmp_path: Path) -> None:
    page = tmp_path / "matrix.html"
    words = ("predict", "--generate-matrix", "--models", "bert-base,vit-base,gpt2", "--hardware", "cpu")
    done = _run(home, *words, "--hardware", "rocm", "--format", "html", "--output", str(page))
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert "vegaEmbed" in text
    assert "<script src=" not in text
    for name in ("bert-base", "vit-base", "gpt2", "accel bench run"):
        assert name in text


@pytest.mark.parametrize("name", ["curve.png", "curve.svg"])
def test_curves_and_comparisons_are_drawn(home: str, tmp_path: Path, name: str) -> None:
    words = ("predict", "bert-base", "--hardware", "cpu", "--hardware", "openvino", "--chart", str(tmp_path / name))
    curve = _run(home, *words, "--batch-sizes", "1,2,4")
    assert curve.exit_code == 0, curve.output
    content = (tmp_path / name).read_bytes()
    if name.endswith("png"):
        assert content.startswith(PNG)
    else:
        assert "openvino" in content.decode()
    assert _run(home, *words, "--batch-size", "4").exit_code == 0
    assert (tmp_path / name).read_bytes() != content


def test_a_chart_of_another_kind_or_of_nothing_is_refused(home: str, tmp_path: Path) -> None:
    for words, says in (
        (("--hardware", "nothing-of-this", "--chart", str(tmp_path / "x.bmp")), ".json, .svg, .png, .html"),
        (("--hardware", "rocm", "--chart", str(tmp_path / "x.png")), "nothing to draw"),
        (("--hardware", "cpu", "--format", "html"), "--generate-matrix"),
        ((), "--hardware"),
        (("--hardware", "cpu", "--config", __file__), "Give one model"),
    ):
        with pytest.raises(InvalidInput, match=says):
            app(["predict", "bert-base", *words, "--home", home], standalone_mode=False)
    with pytest.raises(InvalidInput, match="nowhere does not exist"):
        write(charts.batch_size_chart([], title="x"), tmp_path / "nowhere" / "x.html")


def test_figures_and_specs_are_given_on_the_command_line(home: str, tmp_path: Path) -> None:
    spec = tmp_path / "mine.json"
    spec.write_text(json.dumps({"name": "Mine", "kind": "gpu", "peak_fp32_tflops": 40, "bandwidth_gb_s": 900}))
    figures = ("--parameters", "1e8", "--flops", "2e10", "--activation-bytes", "2e8", "--modality", "text")
    answer = _run(home, "recommend", *figures, "--hardware-spec", str(spec), "--max-watts", "300", "--json")
    assert answer.exit_code == 1, "nothing was learned from, so nothing is recommended"
    told = json.loads(answer.stdout)
    assert told["model"].startswith("figures-")
    assert [e["device"] for e in told["excluded"]] == ["Mine"]
    spec.write_text(json.dumps({"name": "Mine", "kind": "gpu"}))
    with pytest.raises(InvalidInput, match=r"--hardware\.0\.peak-fp32-tflops"):
        app(["recommend", *figures, "--hardware-spec", str(spec), "--home", home], standalone_mode=False)
