"""The learner and its judging, on a world whose law is known: carrying over, correcting, holding out, abstaining."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from law_world import GPUS, case, world
from typer.testing import CliRunner

from accel_platform.cli import app
from accel_platform.errors import InvalidInput
from predictor.calibration.cv_splits import SPLITS, group_folds
from predictor.data.features import architecture_features, family_from_name
from predictor.models.analytical import AdditiveRoofline
from predictor.models.baselines import BASELINES
from predictor.models.few_shot import Correction
from predictor.models.latency_model import LatencyModel, log_latency
from predictor.models.residual_trees import ResidualTrees
from predictor.training.evaluate import evaluate_splits, evaluate_train_test, evaluation_metrics


def test_the_law_is_found_again_and_speaks_of_a_device_it_never_saw() -> None:
    known = [c for c in world() if "3090" in c.device]
    asked = [c for c in world() if "4090" in c.device]
    law = AdditiveRoofline.fit(known, log_latency(known))
    assert np.median(np.abs(law.predict_log(known) - log_latency(known))) < 0.05
    assert np.median(np.abs(law.predict_log(asked) - log_latency(asked))) < 0.15


def test_names_tell_family_and_blocks() -> None:
    assert family_from_name("tf_efficientnet_b0.in1k") == family_from_name("efficientnet_b7") == "efficientnet"
    assert family_from_name("timm/resnet50") == "resnet"
    # A stranger's digest is no part of its name.
    assert (
        architecture_features("gemma3-1aaea0b2")
        == architecture_features("gemma3")
        != architecture_features("gemma3-aa")
    )
    assert architecture_features("convnext_tiny") != architecture_features("resnet50")
    assert architecture_features("tv_resnet50") == architecture_features("resnet50")
    assert not any(architecture_features("zzz"))


@given(st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=60), st.integers(1, 12))
def test_folds_keep_groups_whole(groups: list[str], count: int) -> None:
    folds = group_folds(groups, count)
    assert len({(group, int(fold)) for group, fold in zip(groups, folds, strict=True)}) == len(set(groups))
    assert 0 <= folds.min() <= folds.max() < count


@pytest.mark.parametrize("name", list(SPLITS))
def test_a_split_asks_about_nothing_it_told(name: str) -> None:
    cases = world((*GPUS, "i9_10940x"))
    asked: list[int] = []
    for train, test in SPLITS[name](cases):
        assert not set(train) & set(test)
        asked += test.tolist()
        devices, families = ({getattr(cases[i], what) for i in train} for what in ("device", "family"))
        if name in ("unseen family", "both unseen"):
            assert not families & {cases[i].family for i in test}
        if name in ("unseen hardware", "both unseen"):
            assert not devices & {cases[i].device for i in test}
        if name == "unseen hardware + 10":
            assert sum(cases[i].device == cases[test[0]].device for i in train) == 10
        if name == "sister device":
            assert all(cases[i].family in families and cases[i].device in devices for i in test)
            told = {(cases[i].family, cases[i].device) for i in train}
            assert not told & {(cases[i].family, cases[i].device) for i in test}
    assert len(asked) == len(set(asked)) > 0


@pytest.mark.parametrize("name", list(SPLITS))
def test_no_round_asks_nothing_though_of_one_device_little_is_known(name: str) -> None:
    cases = world((*GPUS, "i9_10940x"))
    few = [c for c in cases if (c.device, c.family) == (cases[0].device, cases[0].family)][:4]
    rounds = list(SPLITS[name]([*few, *(c for c in cases if c.device != cases[0].device)]))
    assert rounds
    assert all(len(train) and len(test) for train, test in rounds)


def test_ten_measurements_correct_a_device_that_is_slower_than_its_spec_sheet() -> None:
    known = [c for c in world() if "3090" in c.device]
    there = [c for c in world(slower=2.0) if "4090" in c.device]
    error = {}
    for count in (0, 10):
        told = LatencyModel([*known, *there[:count]]).predict(there[10:]).logs
        error[count] = float(np.median(np.abs(told - log_latency(there[10:]))))
    assert error[0] > 0.5
    assert error[10] < 0.1


def test_ten_measurements_tell_how_much_of_what_sets_models_apart_is_found_here() -> None:
    there = [c for c in world() if "4090" in c.device]
    beyond = np.random.default_rng(0).normal(0, 0.6, len(there))
    left = 0.5 - 0.2 * beyond
    told = Correction.fit(there[:10], beyond[:10], left[:10]).predict(there[10:], beyond[10:])
    assert np.median(np.abs(told - left[10:])) < np.median(np.abs(0.5 - left[10:])) / 2


def test_a_device_nobody_measured_is_as_far_from_the_law_as_others_of_its_vendor() -> None:
    cases = [*world(), *world(("AMD Instinct MI250",), slower=3.0), *world(("Intel Data Center GPU Max 1550",))]
    trees = ResidualTrees.fit(cases, log_latency(cases), ("backend",), rounds=5)
    amd = world(("AMD Instinct MI300X",), per_family=1, slower=3.0)
    assert np.median(np.abs(trees.predict_log(amd) - log_latency(amd))) < 0.2
    unknown = trees.predict_log([replace(c, vendor="") for c in amd])
    assert np.median(trees.predict_log(amd) - unknown) == pytest.approx(math.log(3), abs=0.1)


def test_the_same_work_run_otherwise_is_carried_over_in_part() -> None:
    odd = case("resnet_99", "RTX 3090", gmacs=4, macts=10, slower=3.0)
    latency_model = LatencyModel([*world(), odd])
    there = case("resnet_99", "RTX 4090", gmacs=4, macts=10)
    ways = [there, replace(there, layout="nhwc"), replace(there, layout="nhwc", backend="onnxruntime")]
    new = [replace(c, model="resnet_98") for c in ways]
    # Of models like it there are too few here for a say of their own, so all between the two is carried over.
    carried = latency_model.predict(ways).logs - latency_model.predict(new).logs
    assert 0.5 < carried[0] < math.log(3)
    assert carried[0] > 1.5 * carried[1] > 2 * carried[2] > 0


def test_a_kind_of_silicon_or_a_way_of_running_never_measured_is_not_stood_behind() -> None:
    known = world()
    compiled = replace(known[0], compiler="dynamo")
    elsewhere = case("resnet_0", "i9_10940x", gmacs=4, macts=10)
    assert LatencyModel(known).predict([known[0], compiled, elsewhere]).supported.tolist() == [True, False, False]


@pytest.mark.parametrize("name", list(BASELINES))
def test_a_baseline_also_speaks_where_the_size_of_inputs_is_stated_nowhere(name: str) -> None:
    cases = [replace(c, size=math.nan) if i % 3 == 0 else c for i, c in enumerate(world())]
    assert np.isfinite(BASELINES[name](cases[::2], cases[1::2])).all()


def test_every_split_is_judged_against_every_baseline() -> None:
    found = {asked.split: evaluation_metrics(asked) for asked in evaluate_splits(world(), lambda _: None)}
    assert list(found) == list(SPLITS)
    for metrics in found.values():
        assert set(metrics["baselines"]) == {
            "roofline x scale",
            "nearest neighbour",
            "plain LightGBM",
            "ridge on log cost",
        }
        assert metrics["supported"] == 1.0
        assert -1 <= metrics["kendall_tau"] <= 1
        assert metrics["top1_regret"] >= 0
        assert 0 <= metrics["coverage"] <= 1
    # The world obeys the law: what was measured elsewhere tells nearly all, and no baseline knows the law.
    carried = found["sister device"]
    assert carried["median_ape"] < 0.1
    assert all(carried["median_ape"] < baseline["median_ape"] for baseline in carried["baselines"].values())


def test_intervals_of_a_test_set_come_from_the_training_set() -> None:
    cases = world(per_family=8)
    known = [c for c in cases if c.family != "xcit"]
    asked = evaluate_train_test(known, [c for c in cases if c.family == "xcit"], lambda _: None)
    assert np.isfinite(asked.half_width).all()
    slower = [replace(c, latency_ms=c.latency_ms * 10) for c in asked.samples]
    assert evaluate_train_test(known, slower, lambda _: None).half_width.tolist() == asked.half_width.tolist()
    assert evaluation_metrics(evaluate_train_test(known, slower, lambda _: None))["coverage"] == 0


def test_too_little_says_how_much_is_needed() -> None:
    with pytest.raises(InvalidInput, match="at least"):
        evaluate_splits(world()[:20], lambda _: None)


def timm_files(folder: Path, devices: dict[str, str], per_family: int = 6) -> Path:
    """What timm's benchmark script writes, one file per device."""
    folder.mkdir()
    for device, name in devices.items():
        rows = [
            "model,infer_img_size,infer_samples_per_sec,infer_step_time,infer_batch_size,param_count,infer_gmacs,infer_macts"
        ]
        for c in world((device,), per_family=per_family):
            gmacs, macts = c.work.flops / 2e9 / c.batch_size, c.work.activation_bytes / 2e6 / c.batch_size
            rate = c.batch_size / c.latency_ms * 1e3
            rows.append(f"{c.model},224,{rate:.3f},{c.latency_ms:.5f},{c.batch_size},20,{gmacs:.5f},{macts:.5f}")
        (folder / f"benchmark-infer-amp-nchw-pt240-cu124-{name}.csv").write_text("\n".join(rows))
    return folder


def test_evaluate_reads_result_files_and_writes_a_page(tmp_path: Path) -> None:
    known = timm_files(tmp_path / "known", {"RTX 3090": "rtx3090"})
    asked = timm_files(tmp_path / "asked", {"RTX 4090": "rtx4090"})
    page = tmp_path / "report.html"
    command = ["evaluate", "--train", str(known), "--test", str(asked), "--report", str(page), "--json"]
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    [split] = json.loads(done.stdout)["splits"]
    assert (split["dataset"], split["split"], split["cases"]) == ("inference", "train and test", 60)
    assert split["median_ape"] < 0.25
    assert "vega" in page.read_text()
    assert page.read_text().rpartition("<body>")[2].startswith("<h1>")
    assert "roofline x scale" in page.read_text()


@pytest.mark.parametrize(
    "options", [["--train", "."], ["--test", "."], ["--dataset", ".", "--train", ".", "--test", "."]]
)
def test_evaluate_says_which_options_go_together(options: list[str]) -> None:
    with pytest.raises(InvalidInput, match="--dataset alone"):
        CliRunner().invoke(app, ["evaluate", *options], catch_exceptions=False)
