"""Classifiers of our own have the parameters and FLOPs that are published, and put out scores of any batch."""

from __future__ import annotations

import numpy as np
import pytest

from accel_platform.workloads.build import build_model, outputs_of
from accel_platform.workloads.cost import cost_of, parameters_of
from accel_platform.workloads.inputs import make_inputs, with_image_size
from accel_platform.workloads.model_catalog import ModelSpec, resolve_model

# Parameters and multiply-adds in 10^9 at 224 x 224 pixels, as torchvision's documentation states them.
PUBLISHED = {
    "vgg11": (132_863_336, 7.61),
    "vgg13_bn": (133_053_736, 11.31),
    "vgg16": (138_357_544, 15.47),
    "vgg19": (143_667_240, 19.63),
    "densenet121": (7_978_856, 2.83),
    "densenet161": (28_681_000, 7.73),
    "densenet169": (14_149_480, 3.36),
    "densenet201": (20_013_928, 4.29),
    "mobilenet_v3_large": (5_483_032, 0.22),
    "mobilenet_v3_small": (2_542_856, 0.06),
}


def test_parameters_and_flops_are_those_published() -> None:
    for name, (parameters, giga_multiply_adds) in PUBLISHED.items():
        spec = resolve_model(name)
        assert parameters_of(spec) == parameters, name
        if name in ("vgg16", "densenet161", "mobilenet_v3_large"):
            flops = cost_of(spec, batch_size=1).flops
            assert flops / 2e9 == pytest.approx(giga_multiply_adds, rel=0.02), name


def test_each_item_of_a_batch_gets_scores_of_its_own() -> None:
    small = {"image_size": 64, "classes": 10}
    for architecture, config in (
        ("vgg", {"depths": [1, 1, 1, 1, 1]}),
        ("densenet", {"depths": [2, 2, 2, 2], "growth": 8}),
        ("mobilenet-v3", {}),
    ):
        spec = ModelSpec("mine", architecture, architecture, "vision", config={**small, **config})
        found = outputs_of(build_model(spec), make_inputs(spec, batch_size=2))["logits"]
        assert found.shape == (2, 10)
        assert np.isfinite(found).all()
        # Random weights keep the size of what they read, however deep the layers are.
        assert 1e-3 < found.std() < 1e3
        assert not np.allclose(found[0], found[1])
    assert with_image_size(resolve_model("vgg16"), 96).config["image_size"] == 96
