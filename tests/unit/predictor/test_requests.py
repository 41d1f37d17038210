"""Queries: bounds of every field, and oversized configs."""

from __future__ import annotations

from typing import Any

import pytest

from accel_platform.errors import InvalidInput
from predictor.advisor.serving_state import _normalize_name
from predictor.data.config_cost import canonical_config, estimate_config_cost
from predictor.schemas.requests import (
    BatchQuery,
    ModelFigures,
    OwnDevice,
    PredictQuery,
    RecommendQuery,
    TransformersConfig,
    validate_query,
)

FIGURES = {"parameters": 1e8, "flops_per_item": 2e10}
OWN = {"name": "Mine", "kind": "gpu", "peak_fp32_tflops": 40.0, "bandwidth_gb_s": 900}


def test_a_model_is_a_name_a_config_or_figures() -> None:
    assert RecommendQuery.model_validate({"model": "bert-base"}).model == "bert-base"
    config = RecommendQuery.model_validate({"model": {"model_type": "bert"}}).model
    assert config == TransformersConfig({"model_type": "bert"})
    figures = RecommendQuery.model_validate({"model": FIGURES}).model
    assert isinstance(figures, ModelFigures)
    assert figures.activation_bytes_per_item is None


def test_hardware_is_names_and_specs() -> None:
    asked = RecommendQuery.model_validate({"model": "x", "hardware": ["cpu", OWN]}).hardware
    assert asked == ["cpu", OwnDevice.model_validate(OWN)]
    assert PredictQuery.model_validate({"model": "x", "hardware": OWN}).hardware == OwnDevice.model_validate(OWN)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"model": 7}, "a transformers config"),
        ({"model": {}}, "parameters"),
        ({"model": {"architectures": []}}, "model_type"),
        ({"model": {"model_type": 3}}, "model_type"),
        ({"model": {"model_type": "bert", "x": float("nan")}}, "not finite"),
        ({"model": {"model_type": "bert", "x": 10**400}}, "not finite"),
        ({"model": {"model_type": "bert", "x": "y" * 3000}}, "longer"),
        ({"model": {"model_type": "bert", "x": [0] * 30_000}}, "20,000 values"),
        ({"model": {"model_type": "bert", "x": [[[[[[[[[[]]]]]]]]]]}}, "8 deep"),
        ({"model": {**FIGURES, "parameters": -1}}, "parameters"),
        ({"model": {**FIGURES, "parameters": float("inf")}}, "parameters"),
        ({"model": {**FIGURES, "parameters": "1e8"}}, "parameters"),
        ({"model": {**FIGURES, "colour": 1}}, "colour"),
        ({"model": "x", "image_size": 0}, "image_size"),
        ({"model": "x", "image_size": 1e3 + 0.5}, "image_size"),
        ({"model": "x", "audio_seconds": float("nan")}, "audio_seconds"),
        ({"model": "x", "audio_seconds": -2.0}, "audio_seconds"),
        ({"model": "x", "constraints": {"max_latency_ms": 0}}, "max_latency_ms"),
        ({"model": "x", "constraints": {"max_latency_ms": True}}, "max_latency_ms"),
        ({"model": "x", "constraints": {"max_colour": 1}}, "max_colour"),
        ({"model": "x", "hardware": [3]}, "the spec of a device"),
        ({"model": "x", "hardware": [{**OWN, "kind": "toaster"}]}, "kind"),
        ({"model": "x", "hardware": [{**OWN, "bandwidth_gb_s": 0}]}, "bandwidth_gb_s"),
        ({"model": "x", "hardware": [OWN] * 65}, "hardware: expected at most 64 items"),
        ({"model": "x", "hardware": []}, "hardware: expected 1 or more items"),
        ({"model": ""}, "model: expected 1 or more characters"),
    ],
)
def test_everything_else_is_refused_and_named(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        validate_query(RecommendQuery, fields)


def test_a_batch_has_one_to_a_thousand_cells() -> None:
    cell = {"model": "x", "hardware": "cpu"}
    assert len(validate_query(BatchQuery, {"queries": [cell] * 1000}).queries) == 1000
    strangers = [{**cell, "model": {"model_type": "bert", "hidden_size": n}} for n in range(17)]
    assert validate_query(BatchQuery, {"queries": [*strangers[:16], *strangers[:16]]})
    for wrong in ([], [cell] * 1001, strangers):
        with pytest.raises(InvalidInput, match=r"queries|16 allowed"):
            validate_query(BatchQuery, {"queries": wrong})


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "bert", "num_hidden_layers": 10**9},
        {"model_type": "swin", "depths": [2, 2, 10**7]},
        {"model_type": "mixtral", "num_local_experts": 10**6},
        {"model_type": "clip", "vision_config": {"num_hidden_layers": 5000}},
        {"model_type": "t5", "num_layers": 4096},
        {"model_type": "gpt2", "n_layer": 4096},
    ],
)
def test_an_oversized_config_is_refused_before_anything_is_built(config: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="over the limit"):
        estimate_config_cost(config)


def test_a_model_is_found_under_the_name_of_its_file() -> None:
    names = ("vit_base_patch16_224.augreg_in1k", "google/vit-base-patch16-224")
    assert {_normalize_name(name) for name in names} == {"vitbasepatch16224"}
    # A dot before a figure is part of the figure.
    assert len({_normalize_name(name) for name in ("qwen2-0.5b", "qwen2-0.6b", "phi-1.5", "phi-1")}) == 4


def test_how_a_config_was_saved_is_no_part_of_the_network() -> None:
    plain = {"model_type": "bert", "hidden_size": 384}
    saved = {
        **plain,
        "_name_or_path": "x",
        "transformers_version": "4.1",
        "id2label": {"0": "a"},
        "torch_dtype": "half",
    }
    assert canonical_config(saved) == canonical_config(dict(reversed(plain.items())))
    assert canonical_config(plain) != canonical_config({**plain, "hidden_size": 385})
