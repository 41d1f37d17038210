"""Models of code and files of the user's own: what is read from them, what they cost, and what is refused."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from own_models import IMAGE, write_forms

from accel_platform.bench.plan.config import read_config
from accel_platform.bench.plan.config_resolution import ModelNames, resolve_models
from accel_platform.bench.plan.plan import plan_cells
from accel_platform.bench.plan.support import unsupported_reason
from accel_platform.bench.prepare import worker
from accel_platform.bench.prepare.description import describe_model
from accel_platform.errors import AccelError, InvalidInput, NotFound
from accel_platform.events import Event, EventLog
from accel_platform.settings import Settings
from accel_platform.workloads.build import build_model, outputs_of
from accel_platform.workloads.cost import cost_of
from accel_platform.workloads.custom_models import custom_models
from accel_platform.workloads.inputs import describe_inputs, make_inputs
from accel_platform.workloads.model_catalog import ModelSpec, resolve_model
from accel_platform.workloads.operators import profile_from_json, trace_operators
from accel_platform.workloads.sources import load_source, save_source, source_file, spec_of_source
from predictor.data.traced_models import OWN_SIZES, InputSizes, traced_operators

TEXT = {"ids": "length:tokens:100", "mask": "length:mask"}


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_forms(tmp_path_factory.mktemp("own"))


FORMS = ("net.py:Net", "script.pt", "program.pt2", "graph.onnx", "ir.xml")


def test_every_form_computes_and_costs_the_same(folder: Path) -> None:
    costs, outputs, kinds = set(), [], set()
    for form in FORMS:
        given = None if form.endswith(("onnx", "xml")) else IMAGE
        spec = spec_of_source(form, folder=folder, inputs=given)
        assert (spec.modality, spec.config["inputs"], spec.sequence_length) == ("vision", IMAGE, None), form
        cost = cost_of(spec, batch_size=1)
        costs.add((cost.parameters, cost.flops, cost.layer_output_bytes))
        kinds.add(tuple(operator.kind for operator in trace_operators(spec).of_two))
        (found,) = outputs_of(build_model(spec), make_inputs(spec, batch_size=2)).values()
        outputs.append(found)
    assert len(costs) == len(kinds) == 1
    assert all(np.allclose(found, outputs[0], atol=1e-5) for found in outputs)


@pytest.mark.slow
def test_a_graph_file_costs_what_torch_counts(tmp_path: Path) -> None:
    spec = resolve_model("bert-tiny")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        worker._write_onnx(build_model(spec), spec, 16, tmp_path)
    graph = spec_of_source("model.onnx", folder=tmp_path)
    assert list(graph.config["inputs"]) == ["input_ids", "attention_mask"]
    assert cost_of(graph, batch_size=2).flops == cost_of(spec, batch_size=2, sequence_length=16).flops


def test_code_reads_text_has_arguments_and_names_its_outputs(folder: Path) -> None:
    reader = spec_of_source("net.py:Reader", folder=folder, inputs=TEXT, sequence_length=12)
    assert (reader.model_id, reader.modality, reader.sequence_length) == ("Reader", "text", 12)
    assert [item.shape for item in describe_inputs(reader, batch_size=3, sequence_length=7)] == [(3, 7), (3, 7)]
    found = outputs_of(build_model(reader), make_inputs(reader, batch_size=2))
    assert list(found) == ["scores", "parts_0", "parts_1_0"]
    sizes = [
        cost_of(spec_of_source("net.py:" + name, folder=folder, inputs=IMAGE, arguments=arguments), batch_size=1)
        for name, arguments in (("Net", {"width": 48}), ("wide", {}))
    ]
    assert sizes[0] == sizes[1]


def test_what_was_saved_has_the_weights_that_were_drawn(folder: Path, tmp_path: Path) -> None:
    spec = spec_of_source("net.py:Net", folder=folder, inputs=IMAGE)
    model = build_model(spec)
    save_source(model, spec, tmp_path)
    read, inputs = load_source(tmp_path), make_inputs(spec, batch_size=1)
    assert np.array_equal(outputs_of(read, inputs)["output"], outputs_of(model, inputs)["output"])
    assert load_source(folder) is None


@pytest.mark.parametrize(
    ("source", "inputs", "words"),
    [
        ("net.py:Net", None, "state the shape of one item"),
        ("net.py:Net", {"x": "3,32,32"}, "is no shape for the input x"),
        ("net.py:Net", {"x": "length:tokens"}, "is no shape for the input x"),
        ("net.py:Net", {"x": "0x3"}, "leaves no room for the input x"),
        ("net.py:Net", {"x": "16"}, "do not tell the modality"),
        ("none.py:Net", IMAGE, "There is no file"),
        ("beside.pt", IMAGE, "There is no file"),
        ("timm:resnet50", None, "pip install timm"),
    ],
)
def test_a_source_that_cannot_be_described_is_refused(
    folder: Path, source: str, inputs: dict[str, str] | None, words: str
) -> None:
    with pytest.raises(AccelError, match=words):
        spec_of_source(source, folder=folder, inputs=inputs)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("net.py:Nett", "has no 'Nett'; it has Net, Reader, wide"),
        ("net.py:ends", "no weights here"),
        ("net.py:other", "returns int, not a torch.nn.Module"),
        ("bad.pt", "cannot be loaded"),
    ],
)
def test_code_that_fails_says_why(folder: Path, source: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "bad.pt").write_bytes(b"nothing")
    with pytest.raises(NotFound, match=words):
        build_model(spec_of_source(source, folder=folder, inputs=IMAGE))
    assert capsys.readouterr().out == "", "what the module prints goes to stderr"


def test_a_file_that_changes_while_it_is_measured_is_not_taken_for_what_was_planned(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("one = 1")
    spec = spec_of_source("net.py:Net", folder=tmp_path, inputs=IMAGE)
    (tmp_path / "net.py").write_text("two = 2")
    with pytest.raises(NotFound, match="has changed since Net was described"):
        source_file(spec)


def test_an_entry_of_a_models_file_holds_a_source_alone(folder: Path) -> None:
    entry = {"source": "net.py:Net", "inputs": IMAGE, "family": "ours", "size": "nano"}
    (spec,) = custom_models({"mine": entry}, where="m.json", folder=folder).values()
    assert (spec.model_id, spec.family, spec.size, spec.aliases) == ("mine", "ours", "nano", ("net.py:Net",))
    for more, words in (
        ({"config": {"a": 1}}, "leave out config"),
        ({"source": None}, "inputs belong to a source"),
        ({"sequence_length": 5}, "leave out sequence_length"),
        ({"source": "graph.onnx", "arguments": {"a": 1}}, "takes no arguments"),
    ):
        with pytest.raises(InvalidInput, match=words):
            custom_models({"mine": {**entry, **more}}, where="m.json", folder=folder)
    with pytest.raises(InvalidInput, match="the catalogue calls bert-tiny so"):
        custom_models({"bert-tiny": entry}, where="m.json", folder=folder)


def test_a_file_named_as_a_model_of_the_catalog_is_another_model(folder: Path) -> None:
    (folder / "bert-tiny.onnx").write_bytes((folder / "graph.onnx").read_bytes())
    assert spec_of_source("bert-tiny.onnx", folder=folder).model_id == "bert-tiny.onnx"


def test_a_suite_finds_its_models_beside_it(folder: Path) -> None:
    (folder / "suite.json").write_text('{"models": ["graph.onnx", "bert-tiny"], "hardware_types": ["cpu"]}')
    models, _ = resolve_models(read_config(folder / "suite.json"))
    assert [model.model_id for model in models] == ["graph", "bert-tiny"]


@pytest.mark.slow
def test_a_folder_with_weights_is_a_model_in_the_families_of_a_suite(tmp_path: Path) -> None:
    build_model(resolve_model("bert-tiny")).save_pretrained(tmp_path / "mine" / "finetuned")  # type: ignore[operator]
    (tmp_path / "suite.json").write_text('{"model_families": {"text": ["mine/finetuned"]}, "hardware_types": ["cpu"]}')
    (model,), headings = resolve_models(read_config(tmp_path / "suite.json"))
    assert (model.model_id, model.architecture, headings) == ("finetuned", "bert", {"finetuned": "text"})
    assert model.weights is not None
    build_model(resolve_model("bert-tiny")).save_pretrained(tmp_path / "mine" / "bert-tiny")  # type: ignore[operator]
    known = ModelNames({}, None).resolve(f"{tmp_path}/mine/bert-tiny")
    assert known.model_id == "bert-tiny"
    assert known.weights is not None, "the path is no hub id of the catalog's model"


def test_a_described_model_keeps_its_name_and_its_operators(folder: Path, tmp_path: Path) -> None:
    spec = spec_of_source("net.py:Net", folder=folder, inputs=IMAGE, model_id="mine")
    log = EventLog.open(Settings(home=tmp_path))
    description = describe_model(spec)
    log.append([Event.of(description, source="test")])
    named = ModelNames({}, log)
    assert named.resolve("mine") == named.resolve(f"{folder}/net.py:Net") == spec
    with pytest.raises(NotFound, match="There is no file"):
        named.resolve("net.py:Net")  # which would be a file of this folder
    known = ModelSpec.of_description(description.model_dump())
    assert known is not None
    profile = traced_operators(known, None, OWN_SIZES)
    assert profile == trace_operators(spec) == profile_from_json(known.operators or "")
    assert "only the forward pass" in str(traced_operators(known, None, OWN_SIZES, training=True))
    assert "known at None tokens only" in str(traced_operators(known, None, InputSizes(image_size=64)))


def test_a_cell_that_nothing_can_run_says_what_could(folder: Path) -> None:
    graph = spec_of_source("graph.onnx", folder=folder)
    code = spec_of_source("net.py:Net", folder=folder, inputs=IMAGE)
    found = {
        (cell.model.model_id, cell.hardware, cell.mode): reason.reason if (reason := unsupported_reason(cell)) else None
        for cell in plan_cells([graph, code], ["cpu", "onnxruntime"], [1], modes=["inference", "training"])
    }
    assert "is an ONNX file, which runs on openvino, onnxruntime" in str(found["graph", "cpu", "inference"])
    assert found["graph", "onnxruntime", "inference"] is None
    assert found["Net", "cpu", "inference"] is None
    assert "only the forward pass is known" in str(found["Net", "cpu", "training"])
