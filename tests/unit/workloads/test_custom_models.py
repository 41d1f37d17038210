"""Models of one's own: from a JSON file, and with real weights from a folder or a hub id."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accel_platform.bench.plan.plan import Cell, cell_key
from accel_platform.bench.prepare.artifacts import Artifacts
from accel_platform.errors import AccelError, InvalidInput, NotFound
from accel_platform.settings import Settings
from accel_platform.workloads.build import build_model, build_with_gaps
from accel_platform.workloads.cost import cost_of
from accel_platform.workloads.custom_models import custom_models, read_models
from accel_platform.workloads.model_catalog import ModelSpec, resolve_model
from accel_platform.workloads.weights import find_weights, with_weights
from hub import COMMIT, hub

TINY = resolve_model("bert-tiny")
SMALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bert-tiny as save_pretrained writes it, with weights that are not those its config would draw."""
    import torch

    folder = tmp_path_factory.mktemp("checkpoint")
    model: Any = build_model(TINY)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01)
    model.save_pretrained(folder)
    return folder


def one(key: str = "mine", **entry: Any) -> ModelSpec:
    (spec,) = custom_models({key: entry}, where="custom.json").values()
    return spec


def test_an_entry_of_the_old_guides_is_the_catalogues_model() -> None:
    spec = one("bert", name="prajjwal1/bert-tiny", family="embedding", size="small", modality="text")
    assert spec == ModelSpec(**{**vars(TINY), "size": "small"})


@pytest.mark.slow
def test_an_entry_with_a_config_is_a_model_of_its_own() -> None:
    spec = one(architecture="bert", config=SMALL, family="ours", size="nano", name="our/bert")
    assert (spec.model_id, spec.family, spec.modality, spec.size) == ("mine", "ours", "text", "nano")
    assert spec.sequence_length == 128
    assert cost_of(spec, batch_size=1).layers == 1
    assert one(architecture="bert", config=SMALL).family == "bert", "what the catalogue says of its architecture"


def test_a_file_is_read_in_order_with_paths_from_where_it_lies(tmp_path: Path, checkpoint: Path) -> None:
    (tmp_path / "weights").symlink_to(checkpoint)
    entries = {"b": {"name": "bert-tiny", "weights": "weights"}, "// a": "a comment", "a": {"name": "vit-tiny"}}
    (tmp_path / "custom.json").write_text(json.dumps(entries))
    models = read_models(tmp_path / "custom.json")
    assert list(models) == ["b", "a"]
    assert models["b"].weights is not None
    assert models["b"].weights.source == str(checkpoint.resolve())


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"name": "somebody/of-our-own-13b"}, "is not in the catalogue: add an architecture"),
        ({}, "nothing says what it is"),
        ({"architecture": "bertt"}, "no architecture is called 'bertt': did you mean bert"),
        ({"architecture": "jamba"}, "add the modality of jamba"),
        ({"architecture": "bert", "config": {"hiden_size": 3}}, "has no 'hiden_size', did you mean hidden_size"),
        ({"architecture": "bert", "config": {"hidden_size": "big"}}, "its config is refused: .*expected int"),
        ({"config": {"hidden_size": 3}}, "a config belongs to an architecture"),
        ({"name": "bert-tiny", "size": 4}, "size: expected text, got 4"),
        ({"name": "bert-tiny", "modality": "smell"}, 'modality: expected "text", "vision"'),
        ({"nam": "bert-tiny"}, "unknown key nam, did you mean name"),
        ({"name": "bert-tiny", "weights": "./nothing"}, "There is no folder"),
        ("bert-tiny", "expected an object such as"),
    ],
)
def test_every_mistake_gets_a_line_with_the_key(entry: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=f"^custom.json: mine: .*{words}|^custom.json: mine: {words}") as caught:
        custom_models({"mine": entry}, where="custom.json")
    assert "\n" not in str(caught.value)


def test_a_model_of_ones_own_may_not_take_a_name_of_the_catalogue() -> None:
    with pytest.raises(InvalidInput, match="the catalogue calls bert-base so"):
        one("BERT", architecture="bert", config=SMALL)


def test_a_model_that_the_catalogue_came_to_know_is_the_catalogues() -> None:
    known = resolve_model("roberta-large")
    spelt_out = {**known.config, "hidden_dropout_prob": 0.1}
    assert one("roberta-large", architecture="roberta", config=spelt_out) == known


def test_weights_come_from_a_folder_as_they_are(checkpoint: Path) -> None:
    spec = with_weights(TINY, str(checkpoint))
    assert spec.weights is not None
    assert len(spec.weights.sha256) == 64
    model, drawn = build_with_gaps(spec)
    assert drawn == ()
    random = build_model(TINY).state_dict()
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            np.testing.assert_allclose(value.numpy(), random[name].numpy() + 0.01, atol=1e-7)


def test_real_and_random_weights_share_no_artifact_and_no_cell(checkpoint: Path, tmp_path: Path) -> None:
    spec, settings = with_weights(TINY, str(checkpoint)), Settings(home=tmp_path)
    assert Artifacts.of(spec, settings).folder != Artifacts.of(TINY, settings).folder
    real, random = (cell_key(Cell(model, "cpu", 1, 16), "f") for model in (spec, TINY))
    assert real != random
    changed = tmp_path / "changed"
    changed.mkdir()
    for file in checkpoint.iterdir():
        (changed / file.name).write_bytes(file.read_bytes())
    assert find_weights(str(changed)).sha256 == find_weights(str(checkpoint)).sha256, (
        "the content counts, not the place"
    )
    blob = bytearray((changed / "model.safetensors").read_bytes())
    blob[-1] ^= 1
    (changed / "model.safetensors").write_bytes(blob)
    assert find_weights(str(changed)).sha256 != find_weights(str(checkpoint)).sha256


def test_weights_of_another_size_or_architecture_are_refused(checkpoint: Path) -> None:
    with pytest.raises(InvalidInput, match=r"not of bert-mini's size: .* is .* there and"):
        with_weights(resolve_model("bert-mini"), str(checkpoint))
    with pytest.raises(InvalidInput, match=r"vit-tiny is a vit, but the weights .* are a bert"):
        with_weights(resolve_model("vit-tiny"), str(checkpoint))


def test_weights_alone_say_what_they_are(checkpoint: Path) -> None:
    spec = one("our-bert", weights=str(checkpoint))
    assert (spec.model_id, spec.architecture, spec.family) == ("our-bert", "bert", "bert")
    assert cost_of(spec, batch_size=1).parameters == cost_of(TINY, batch_size=1).parameters
    with pytest.raises(InvalidInput, match="leave out architecture and config"):
        one("our-bert", weights=str(checkpoint), architecture="vit")


def test_what_a_checkpoint_lacks_is_drawn_and_named_and_half_a_checkpoint_is_none(tmp_path: Path) -> None:
    from safetensors.numpy import load_file, save_file

    build_model(TINY).save_pretrained(tmp_path)  # type: ignore[operator]
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    save_file({n: t for n, t in tensors.items() if "pooler" not in n}, path, {"format": "pt"})
    spec = with_weights(TINY, str(tmp_path))
    first, drawn = build_with_gaps(spec)
    assert drawn == ("pooler.dense.bias", "pooler.dense.weight")
    again = build_model(spec).state_dict()
    np.testing.assert_array_equal(first.state_dict()["pooler.dense.weight"].numpy(), again["pooler.dense.weight"])
    save_file({n: t for n, t in tensors.items() if "pooler" in n}, path, {"format": "pt"})
    with pytest.raises(NotFound, match="less than half of bert-tiny's parameters"):
        build_with_gaps(with_weights(TINY, str(tmp_path)))
    path.write_bytes(b"no tensors")
    with pytest.raises(NotFound, match="cannot be loaded"):
        build_with_gaps(with_weights(TINY, str(tmp_path)))


def test_a_folder_without_weights_says_what_is_lacking(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"have no model\.safetensors"):
        find_weights(str(tmp_path))
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(NotFound, match=r"have no config\.json"):
        find_weights(str(tmp_path))
    with pytest.raises(NotFound, match="are a file"):
        find_weights(str(tmp_path / "model.safetensors"))


HUB = """
import sys
from accel_platform.workloads.weights import find_weights
from accel_platform.errors import AccelError
try:
    found = find_weights(sys.argv[1])
    print(found.source, found.sha256)
except AccelError as error:
    print(error)
"""


def ask_hub(hub_id: str, **environment: str) -> str:
    environment = {**os.environ, "HF_HUB_DISABLE_TELEMETRY": "1", **environment}
    command = [sys.executable, "-c", HUB, hub_id]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=60)
    return answer.stdout.strip()


def test_a_hub_id_is_found_in_the_cache_and_without_a_network_is_said_to_be_missing(
    checkpoint: Path, tmp_path: Path
) -> None:
    repository = tmp_path / "hub" / "models--our--bert"
    (repository / "snapshots").mkdir(parents=True)
    (repository / "snapshots" / COMMIT).symlink_to(checkpoint)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(COMMIT)
    offline = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "1"}
    expected = find_weights(str(checkpoint)).sha256
    assert ask_hub("our/bert", **offline) == f"our/bert@{COMMIT} {expected}"
    missing = ask_hub("our/other", **offline)
    assert "are no folder here, and as a hub id neither cached nor to be fetched" in missing
    unreachable = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}
    assert "Fetch them once where the hub can be reached, or name a folder." in ask_hub("our/other", **unreachable)


def test_a_hub_id_is_downloaded_once_and_found_in_the_cache_afterwards(checkpoint: Path, tmp_path: Path) -> None:
    expected = f"our/bert@{COMMIT} {find_weights(str(checkpoint)).sha256}"
    with hub("our/bert", checkpoint) as endpoint:
        online = {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0", "HF_ENDPOINT": endpoint}
        assert ask_hub("our/bert", **online) == expected
        missing = ask_hub("our/none", **online)
        assert missing == "The weights 'our/none' are no folder here, and the hub has no such model for you."
    assert ask_hub("our/bert", HF_HOME=str(tmp_path), HF_HUB_OFFLINE="1") == expected


def test_errors_are_for_people() -> None:
    with pytest.raises(AccelError, match=r"There is no folder \.\./nowhere"):
        find_weights("../nowhere")
