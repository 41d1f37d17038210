"""Traced costs are shipped for the catalog, else cached for other processes, and never taken from a damaged cache."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from accel_platform.errors import Busy
from accel_platform.hardware.catalog import find_spec
from accel_platform.workloads.model_catalog import known_models, resolve_model
from predictor.data import traced_models
from predictor.data.samples import Setup, Workload, make_sample
from predictor.data.traced_models import (
    OWN_SIZES,
    InputSizes,
    ItemCost,
    catalog_traces,
    shipped_traces,
    traced_cost,
    traced_decoder,
    traced_operators,
)

BERT, GPT = resolve_model("bert-tiny"), resolve_model("gpt2")
ANOTHER_PROCESS = """
import json, sys
from dataclasses import asdict
from accel_platform.workloads.model_catalog import resolve_model
from predictor.data.traced_models import InputSizes, traced_cost, traced_decoder
cost = traced_cost(resolve_model("bert-tiny"), 77, InputSizes())
print(json.dumps([asdict(cost), asdict(traced_decoder(resolve_model("gpt2"))), "torch" in sys.modules]))
"""


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache of its own, nothing shipped, and nothing remembered."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(traced_models, "shipped_traces", dict)
    _forget()
    yield tmp_path / "cache"
    _forget()


def _forget() -> None:
    for remembered in (traced_cost, traced_decoder, traced_operators, traced_models._cache_folder):
        remembered.cache_clear()


def _files(cache: Path) -> list[Path]:
    return sorted(cache.rglob("*.json"))


def test_another_process_finds_it_without_torch(cache: Path) -> None:
    cost, decoder = traced_cost(BERT, 77, InputSizes()), traced_decoder(GPT)
    assert decoder is not None
    assert traced_decoder(BERT) is None, "that is kept as well"
    assert len(_files(cache)) == 3
    done = subprocess.run([sys.executable, "-c", ANOTHER_PROCESS], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [asdict(cost), asdict(decoder), False]


def test_every_length_size_and_model_is_kept_apart(cache: Path) -> None:
    vit = resolve_model("vit-tiny")
    costs = [
        traced_cost(BERT, 64, InputSizes()),
        traced_cost(BERT, 65, InputSizes()),
        traced_cost(vit, None, InputSizes(160)),
    ]
    _forget()
    assert [
        traced_cost(BERT, 64, InputSizes()),
        traced_cost(BERT, 65, InputSizes()),
        traced_cost(vit, None, InputSizes(160)),
    ] == costs
    assert len({cost.flops for cost in costs}) == len(_files(cache)) == 3


def test_half_a_file_is_traced_again_and_replaced(cache: Path) -> None:
    cost = traced_cost(BERT, 64, InputSizes())
    (file,) = _files(cache)
    whole = file.read_bytes()
    file.write_bytes(whole[:20])
    _forget()
    assert traced_cost(BERT, 64, InputSizes()) == cost
    assert file.read_bytes() == whole


def test_what_other_code_found_is_not_believed(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    traced_cost(BERT, 64, InputSizes())
    (file,) = _files(cache)
    file.write_text(json.dumps(asdict(ItemCost(1.0, 1.0, 1.0, 1.0))))
    _forget()
    assert traced_cost(BERT, 64, InputSizes()).flops == 1.0, "it is what lies there that is read"
    monkeypatch.setattr(traced_models, "version", lambda package: "another")
    _forget()
    assert traced_cost(BERT, 64, InputSizes()).flops > 1e6


@pytest.mark.parametrize("place", ["/dev/null/no folder", "/proc/none"])
def test_without_a_place_it_is_traced_each_time(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", place)
    _forget()
    assert traced_cost(BERT, 64, InputSizes()).flops > 1e6
    _forget()


def test_no_more_is_kept_than_a_disk_has_room_for(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traced_models, "_MAX_FILES", 1)
    assert traced_cost(BERT, 64, InputSizes()) != traced_cost(BERT, 65, InputSizes())
    assert len(_files(cache)) == 1


@pytest.mark.parametrize(
    "problem",
    [MemoryError(), OSError(24, "Too many open files"), RuntimeError("DefaultCPUAllocator: can't allocate memory")],
)
def test_a_passing_problem_is_no_answer_for_ever(
    cache: Path, monkeypatch: pytest.MonkeyPatch, problem: Exception
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise problem

    with monkeypatch.context() as broken:
        broken.setattr("accel_platform.workloads.kv_cache.decoder_of", fail)
        broken.setattr(traced_models, "trace_operators", fail)
        for trace in (lambda: traced_decoder(GPT), lambda: traced_operators(BERT, 32, InputSizes())):
            with pytest.raises(Busy, match="try again"):
                trace()
    assert _files(cache) == []
    assert traced_decoder(GPT) is not None
    assert not isinstance(traced_operators(BERT, 32, InputSizes()), str)


def test_the_catalog_is_known_without_tracing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(trace: object) -> None:
        raise AssertionError("traced: run `python -m predictor.data.traced_models`")

    monkeypatch.setattr(traced_models, "load_or_compute", fail)
    _forget()
    untraceable: list[str] = []
    for spec in known_models():
        assert traced_cost(spec, spec.sequence_length, OWN_SIZES).flops > 0
        traced_decoder(spec)
        profiles = [traced_operators(spec, spec.sequence_length, OWN_SIZES, training=step) for step in (False, True)]
        untraceable += [spec.model_id for profile in profiles if isinstance(profile, str)]
    assert untraceable == []
    _forget()


def test_a_model_that_results_call_otherwise_has_the_traces_of_the_catalog(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError("traced")

    monkeypatch.setattr(traced_models, "load_or_compute", fail)
    _forget()
    known = resolve_model("resnet-101")
    assert known.model_id == "resnet101"
    named = replace(known, model_id="resnet-101")
    assert traced_cost(named, None, OWN_SIZES) == traced_cost(known, None, OWN_SIZES)
    with pytest.raises(AssertionError, match="traced"):
        traced_cost(replace(named, config={"depths": [3, 4, 24, 3]}), None, OWN_SIZES)
    _forget()


def test_what_is_known_is_not_traced_again(monkeypatch: pytest.MonkeyPatch) -> None:
    known = catalog_traces(BERT)
    assert known.items() <= shipped_traces().items()
    monkeypatch.setattr(traced_models, "_trace_decoder", lambda spec: {"another": spec.model_id})
    assert catalog_traces(BERT, known) == known
    less = dict(list(known.items())[:1])
    assert catalog_traces(BERT, less) == {**known, list(known)[1]: '{"another": "bert-tiny"}'}


@pytest.mark.slow
def test_what_is_shipped_is_what_is_traced() -> None:
    # Each is another way of computing; all of the catalog take minutes.
    for name in (
        "modernbert-base", "qwen3-0.6b", "t5-small", "resnet-50", "swin-tiny", "whisper-base", "clip-vit-base-patch32",
        "sd-turbo", "flux.1-schnell", "vgg11", "mobilenet-v3-small", "timesfm-2.5-200m", "llava-next-tiny",
    ):  # fmt: skip
        for digest, trace in catalog_traces(resolve_model(name)).items():
            shipped, traced = json.loads(shipped_traces()[digest]), json.loads(trace)
            # Some models keep a little of what their first pass computes for all others.
            if traced and "activation_bytes" in traced:
                traced["activation_bytes"] = pytest.approx(traced["activation_bytes"], rel=1e-3)
            assert shipped == traced, f"{name}: run `python -m predictor.data.traced_models`"


def test_an_image_drawn_in_steps_reads_the_weights_in_each_and_holds_one_of_them() -> None:
    spec = resolve_model("sd-turbo")
    once, thrice = (traced_cost(spec, None, InputSizes(64, steps=steps)) for steps in (1, 3))
    assert (once.steps, thrice.steps) == (1, 3)
    assert thrice.parameters == once.parameters
    assert once.flops < thrice.flops < 3 * once.flops
    device = find_spec("NVIDIA L4")
    assert device is not None
    samples = []
    for cost in (once, thrice):
        sample = make_sample(
            Workload("m", "f", "inference", 1, size=None, precision="float32", cost=cost),
            Setup(device, "cuda", "pytorch"),
        )
        assert not isinstance(sample, str)
        samples.append(sample.work)
    one, three = samples
    assert three.weight_bytes == 3 * one.weight_bytes
    assert three.held_bytes < one.held_bytes < three.activation_bytes
