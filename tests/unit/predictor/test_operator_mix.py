"""Operator mixes of published models, and of traced ones."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from accel_platform.hardware.catalog import DeviceSpec, find_spec
from accel_platform.workloads.operators import Operator, OperatorProfile
from predictor.data import operator_mix as mixes
from predictor.data.operator_mix import OperatorMix, operator_mix, published_mix, write_mixes
from predictor.data.samples import Sample, Setup, Workload, make_sample
from predictor.data.traced_models import ItemCost


def test_published_costs_are_those_of_their_papers() -> None:
    # Multiply-adds in billions: He et al. 2016 (4.1), Dosovitskiy et al. 2021 (17.6), Tan and Le 2019 (0.39).
    for model, gmacs in (("resnet50", 4.1), ("vit_base_patch16_224", 17.6), ("efficientnet_b0", 0.39)):
        mix = published_mix(f"timm/{model}.in1k", 224.0)
        assert mix is not None
        assert mix == published_mix(model, 224.0)
        assert sum(mix.flops) / 2e9 == pytest.approx(gmacs, rel=0.05)
    assert published_mix("resnet50", math.nan) is None
    assert published_mix("resnet50", 225.0) is None
    assert published_mix("no_such_net", 224.0) is None


def test_models_of_the_catalog_have_the_work_of_the_same_nets_by_timm() -> None:
    for model, of_timm in (
        ("efficientnet-b0", "efficientnet_b0"),
        ("convnextv2-tiny", "convnextv2_tiny"),
        ("regnety-040", "regnety_040"),
        ("swinv2-tiny-window8-256", "swinv2_tiny_window8_256"),
        ("mobilenet-v3-large", "mobilenetv3_large_100"),
    ):
        size = 256.0 if model.endswith("256") else 224.0
        ours, theirs = published_mix(model, size), published_mix(of_timm, size)
        assert ours is not None
        assert theirs is not None
        assert sum(ours.flops) == pytest.approx(sum(theirs.flops), rel=0.01), model
        assert sum(ours.numbers) == pytest.approx(sum(theirs.numbers), rel=0.15), model


def test_every_published_mix_is_sound() -> None:
    shipped = mixes._shipped()
    assert len(shipped) > 1_500
    for mix in shipped.values():
        assert len(mix.flops) == len(mix.numbers) == len(mix.each)
        assert all(0 < each <= numbers for each, numbers in zip(mix.each, mix.numbers, strict=True))
        assert 0 <= mix.fused_share <= 1
        assert sum(mix.flops) > 0
        assert mix.operators > 0


def test_like_operators_are_one_group() -> None:
    dense = Operator("linear", "mm", (2.0, 1000.0, 1000.0), 3)
    three = Operator("linear", "mm", (3.0, 1000.0, 1000.0), 3)
    rise = Operator("elementwise", "relu", (2000.0, 2000.0, 0.0))
    risen = Operator("elementwise", "relu", (3000.0, 3000.0, 0.0))
    mix = operator_mix(OperatorProfile((dense, rise), (three, risen), 1e6, fused_share=0.5))
    # 32 items: products of 1,064,000 numbers, and what moves 64,000 between them.
    assert mix.flops == pytest.approx((0.0, 3 * 2e6))
    assert mix.numbers == pytest.approx((2000, 3 * 1.064e6 / 32))
    assert mix.each == pytest.approx((2000, 1.064e6 / 32))
    assert (mix.fused_share, mix.operators) == (0.5, 4)
    assert operator_mix(OperatorProfile((rise,), (risen,), 0.0)).fused_share == 1


def test_what_fits_into_the_cache_of_a_gpu_moves_faster() -> None:
    spec = find_spec("RTX 4090")
    assert spec is not None
    cost = ItemCost(86.6e6, None, 35e9, None, 60e6, 224.0)

    def moving_ms(batch_size: int, device: DeviceSpec) -> float:
        workload = Workload("timm/vit_base_patch16_224", "vit", "inference", batch_size, None, "float16", cost)
        sample = make_sample(workload, Setup(device, "cuda", "pytorch"))
        assert isinstance(sample, Sample)
        return sample.roofline[1] / batch_size

    without = replace(spec, cache_mib=None)
    assert moving_ms(1, without) == pytest.approx(moving_ms(256, without))
    # 197 tokens of 768 numbers: a few hundred kilobytes an item, and at 256 items more than the cache holds.
    assert moving_ms(1, spec) == pytest.approx(moving_ms(1, without) / 4)
    assert moving_ms(1, spec) < moving_ms(64, spec) < moving_ms(256, spec) < moving_ms(256, without)
    # A processor's cache is left out.
    assert moving_ms(1, replace(without, kind="cpu")) == moving_ms(1, replace(spec, kind="cpu"))


def test_what_is_written_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mix = OperatorMix((0.0, 1.5e9), (4e6, 2.5e6), (1e6, 5e5), 0.25, 100.0)
    write_mixes({("net", 224): mix}, tmp_path / "mixes.parquet")
    monkeypatch.setattr(mixes, "SHIPPED", tmp_path / "mixes.parquet")
    assert mixes._shipped.__wrapped__() == {("net", 224): mix}
