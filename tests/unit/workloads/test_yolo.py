"""Detectors have the parameters and FLOPs that are published, and what they compute can be read as boxes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from accel_platform.errors import InvalidInput
from accel_platform.workloads.build import build_model, outputs_of
from accel_platform.workloads.cost import cost_of, parameters_of
from accel_platform.workloads.inputs import describe_inputs, make_inputs, with_image_size
from accel_platform.workloads.model_catalog import resolve_model

# Trainable parameters and GFLOPs at 640 x 640 pixels, as the publisher's tables and configs state them.
PUBLISHED = {
    "yolov5n": (1_872_157, 4.5),
    "yolov5s": (7_235_389, 16.5),
    "yolov5m": (21_190_557, 49.0),
    "yolov5l": (46_563_709, 109.1),
    "yolov5x": (86_749_405, 205.7),
    "yolov8n": (3_157_184, 8.7),
    "yolov8s": (11_166_544, 28.6),
    "yolov8m": (25_902_624, 78.9),
    "yolov8l": (43_691_504, 165.2),
    "yolov8x": (68_229_632, 257.8),
    "yolo11n": (2_624_064, 6.5),
    "yolo11s": (9_458_736, 21.5),
    "yolo11m": (20_114_672, 68.0),
    "yolo11l": (25_372_144, 86.9),
    "yolo11x": (56_966_160, 194.9),
}


@pytest.mark.slow
def test_parameters_and_flops_are_those_published() -> None:
    counted = {name: parameters_of(resolve_model(name)) for name in PUBLISHED}
    assert counted == {name: parameters for name, (parameters, _) in PUBLISHED.items()}
    for name in ("yolov5s", "yolov5m", "yolov8n", "yolov8m", "yolo11n", "yolo11m"):
        assert cost_of(resolve_model(name), batch_size=1).flops / 1e9 == pytest.approx(PUBLISHED[name][1], rel=0.01)


def test_each_item_of_a_batch_gets_its_own_boxes_and_scores() -> None:
    for name in ("yolov8n", "yolo11n"):
        spec = with_image_size(resolve_model(name), 64)
        found = outputs_of(build_model(spec), make_inputs(spec, batch_size=2))
        assert found["boxes"].shape == (2, 8 * 8 + 4 * 4 + 2 * 2, 4)
        assert found["scores"].shape == (2, 84, 80)
        assert np.isfinite(found["boxes"]).all()
        assert (found["boxes"][..., 2:] >= 0).all()
        assert ((found["scores"] > 0) & (found["scores"] < 1)).all()
        for array in found.values():
            assert not np.allclose(array[0], array[1])


def test_yolov5_changes_three_boxes_at_each_place() -> None:
    from accel_platform.workloads import yolo  # loads transformers

    spec = with_image_size(resolve_model("yolov5n"), 64)
    found = outputs_of(build_model(spec), make_inputs(spec, batch_size=2))
    places = 3 * (8 * 8 + 4 * 4 + 2 * 2)
    assert (found["boxes"].shape, found["scores"].shape) == ((2, places, 4), (2, places, 80))
    assert all(np.isfinite(array).all() and not np.allclose(array[0], array[1]) for array in found.values())
    model: Any = yolo.YoloV5(yolo.YoloV5Config(image_size=64, width=0.25, depth=0.33))
    # A head that says nothing leaves each anchor as it is, in the middle of its place, with half of half a score.
    boxes, scores = model._changed(torch.zeros(1, 255, 1, 2), [[10, 13], [16, 30], [33, 23]], stride=8)
    assert boxes[0].tolist() == [
        [4, 4, 10, 13], [12, 4, 10, 13], [4, 4, 16, 30], [12, 4, 16, 30], [4, 4, 33, 23], [12, 4, 33, 23],
    ]  # fmt: skip
    assert scores.shape == (1, 6, 80)
    assert (scores == 0.25).all()


def test_a_head_that_sees_no_distance_puts_boxes_on_the_places_of_its_grid() -> None:
    from accel_platform.workloads import yolo

    model: Any = yolo.YoloV8(yolo.YoloV8Config(image_size=64, width=0.25, depth=0.33))
    # Equal likelihoods of 0 to 15 steps of 8 pixels on each side: 7.5 steps on the mean.
    boxes = model._boxes(torch.zeros(1, 64, 2, 3), stride=8)
    assert boxes[0, :, :2].tolist() == [[4, 4], [12, 4], [20, 4], [4, 12], [12, 12], [20, 12]]
    assert torch.allclose(boxes[0, :, 2:], torch.full((6, 2), 2 * 7.5 * 8))
    # Certain of 2 steps to the left and 0 elsewhere: the center lies a step to the left, and the box is 2 steps wide.
    read = torch.full((1, 4, 16, 1), -1e9)
    read[0, 0, 2] = read[0, 1, 0] = read[0, 2, 0] = read[0, 3, 0] = 0
    assert model._boxes(read.view(1, 64, 1, 1), stride=8).flatten().tolist() == [-4, 4, 16, 0]


def test_a_size_whose_grids_do_not_meet_is_refused_with_those_that_do() -> None:
    for pixels, sizes in ((650, "640 or 672"), (16, "32")):
        with pytest.raises(
            InvalidInput, match=f"reads images .* multiples of 32 pixels, not of {pixels}: ask for {sizes}"
        ):
            describe_inputs(with_image_size(resolve_model("yolo11n"), pixels), batch_size=1)


@pytest.mark.slow
def test_published_tables_and_files_name_them() -> None:
    for name, model_id in (("YOLOv8n.pt", "yolov8n"), ("yolov11x", "yolo11x"), ("Ultralytics/YOLO11s", "yolo11s")):
        assert resolve_model(name).model_id == model_id
    # Qualcomm's AI Hub measured the smallest size: 2.64 million parameters at 640 x 640 pixels.
    assert resolve_model("yolov11_det").model_id == "yolo11n"
