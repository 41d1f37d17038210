"""Operator mixes of published models, and of traced ones."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from accel_platform.workloads.operators import Operator, OperatorProfile
from predictor.data import operator_mix as mixes
from predictor.data.operator_mix import INTENSITIES, OperatorMix, operator_mix, published_mix, write_mixes


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


def test_every_published_mix_is_sound() -> None:
    shipped = mixes._shipped()
    assert len(shipped) > 1_500
    for mix in shipped.values():
        assert len(mix.flops) == len(mix.numbers) == len(INTENSITIES) + 1
        assert 0 <= mix.fused_moved <= mix.moved
        assert sum(mix.flops) > 0
        assert mix.operators > 0


def test_products_go_by_their_intensity_and_the_rest_is_moved() -> None:
    dense = Operator("linear", "mm", (2.0, 1000.0, 1000.0), 3)
    three = Operator("linear", "mm", (3.0, 1000.0, 1000.0), 3)
    rise = Operator("elementwise", "relu", (2000.0, 2000.0, 0.0))
    risen = Operator("elementwise", "relu", (3000.0, 3000.0, 0.0))
    mix = operator_mix(OperatorProfile((dense, rise), (three, risen), 1e6, fused_share=0.5))
    assert (mix.moved, mix.fused_moved, mix.operators) == (2000, 1000, 4)
    assert sum(mix.flops) == pytest.approx(3 * 2e6)
    # 32 items: 64 million FLOPs of 1,064,000 numbers.
    assert mix.flops.index(max(mix.flops)) == sum(INTENSITIES < 64e6 / 1.064e6)
    assert operator_mix(OperatorProfile((rise,), (risen,), 0.0)).fused_moved == 2000


def test_what_is_written_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mix = OperatorMix((0.0,) * 10 + (1.5e9,), (0.0,) * 10 + (2.5e6,), 4e6, 1e6, 100.0)
    write_mixes({("net", 224): mix}, tmp_path / "mixes.parquet")
    monkeypatch.setattr(mixes, "SHIPPED", tmp_path / "mixes.parquet")
    assert mixes._shipped.__wrapped__() == {("net", 224): mix}
