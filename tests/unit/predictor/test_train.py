"""Training end to end: events, warehouse, samples, model, artifact, promotion, events."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from synthetic_samples import GPUS, synthetic_samples
from typer.testing import CliRunner

from accel_platform.cli import app
from accel_platform.errors import AccelError, NotFound, WarehouseEmpty
from accel_platform.events import EventLog
from accel_platform.events.types import PredictorPromoted, PredictorTrained
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.reader import Reader
from faults import without_rights
from predictor.calibration.cross_validation import HoldoutPredictions, Regime
from predictor.data.dataset import load_training_set
from predictor.data.evidence import Target, observed_devices
from predictor.data.samples import Sample, Setup, Workload, device_spec_for, make_sample
from predictor.data.traced_models import ItemCost
from predictor.models.residual_trees import ResidualTrees
from predictor.training import artifact, comparison
from predictor.training.artifact import ArtifactRejected, load, load_manifest
from predictor.training.comparison import TrainedPredictor, compare
from predictor.training.manifest import Manifest, hash_code
from predictor.training.promotion import NoPreviousModel, promotions, roll_back
from predictor.training.train import (
    FittedGroup,
    NotEnoughEvidence,
    TrainingReport,
    attach_holdouts,
    fit_predictor,
    fitted_groups,
    train,
)
from predictor_world import BACKENDS, CPU, CPU_ID, MODELS, Model, append, latency_of, measured_grid, result, world


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, TrainingReport]:
    settings = world(tmp_path_factory.mktemp("trained"))
    return settings, train(settings, EventLog.open(settings))


def query_sample(settings: Settings, model: Model, hardware: str, batch_size: int) -> Sample:
    """Return a query for a model on the test host."""
    target = Target(hardware, BACKENDS[hardware], CPU_ID, CPU)
    workload = Workload(
        model=model.model_id,
        family=model.family,
        mode="inference",
        batch_size=batch_size,
        size=model.sequence_length,
        precision="float32",
        cost=ItemCost(model.parameters, 12, model.gflops * 1e9, model.gflops * 1e7, model.gflops * 4e6),
    )
    device = device_spec_for(target, {d.target: d for d in observed_devices(Reader(settings))})
    sample = make_sample(workload, Setup(device, hardware, BACKENDS[hardware]))
    assert isinstance(sample, Sample)
    return sample


def test_report_events_and_artifact_agree(trained: tuple[Settings, TrainingReport]) -> None:
    settings, report = trained
    assert (report.rows, report.families, report.new, report.promoted) == (60, 10, True, True)
    assert report.snapshot_id == Reader(settings).snapshot_id
    log = EventLog.open(settings)
    [event] = log.read(types={"PredictorTrained"})
    payload = event.payload
    assert isinstance(payload, PredictorTrained)
    assert (payload.predictor_id, payload.rows) == (report.predictor_id, 60)
    manifest = load_manifest(settings, report.predictor_id)
    assert payload.artifact_sha256 == artifact.manifest_sha256(manifest)
    assert payload.metrics == manifest.metrics == report.metrics
    assert artifact.current_id(settings) == report.predictor_id
    [promoted] = promotions(log)
    assert (promoted.predictor_id, promoted.replaced, promoted.cause) == (report.predictor_id, None, "trained")
    suffixes = {path.suffix for path in (settings.models_dir / report.predictor_id).iterdir()}
    assert suffixes == {".json", ".txt", ".parquet"}


def test_learns_the_rule_behind_the_figures(trained: tuple[Settings, TrainingReport]) -> None:
    settings, report = trained
    metrics = report.metrics["latency"]["inference"]
    assert metrics["family"]["median_ape"] < 0.05
    assert metrics["family"]["coverage"] >= 0.8
    assert report.metrics["memory"]["median_ape"] < 0.05
    predictor = load(settings, report.predictor_id)
    unseen = Model("unseen", "unseen", "text", 40_000_000, 15.0, 128)
    for hardware in ("cpu", "openvino"):
        [prediction] = predictor.predict([query_sample(settings, unseen, hardware, 2)])
        assert prediction.supported
        assert prediction.regime == Regime.UNSEEN_FAMILY
        interval = prediction.latency_ms
        assert interval is not None
        assert interval.low is not None
        assert interval.high is not None
        truth = latency_of(unseen, hardware, 2)
        assert interval.low <= truth <= interval.high
        assert interval.high / interval.low < 2
        assert abs(math.log(interval.p50 / truth)) < 0.1
        memory = prediction.memory_peak_mib
        assert memory is not None
        assert abs(math.log(memory.p50 / (300 + 160 + 10))) < 0.1


@pytest.mark.slow
def test_what_was_stored_judges_as_what_was_fitted(trained: tuple[Settings, TrainingReport]) -> None:
    settings, report = trained
    training_set = load_training_set(Reader(settings))
    fitted, held, _ = fit_predictor({"inference": training_set.measured}, training_set.failed, lambda _: None)
    kept = artifact.load_holdout(settings, report.predictor_id)["inference"]
    assert {k: (h.samples, h.errors) for k, h in kept.items()} == {
        k: (h.samples, h.errors) for k, h in held["inference"].items()
    }
    unseen = Model("unseen", "unseen", "text", 40_000_000, 15.0, 128)
    questions = [query_sample(settings, model, "openvino", batch) for model in (MODELS[0], unseen) for batch in (1, 3)]
    assert load(settings, report.predictor_id).predict(questions, explain=True) == fitted.predict(
        questions, explain=True
    )


def test_samples_that_were_learned_from_are_not_learned_from_again(
    trained: tuple[Settings, TrainingReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, report = trained
    training_set = load_training_set(Reader(settings))
    serving, manifest = load(settings, report.predictor_id), artifact.load_manifest(settings, report.predictor_id)
    before = attach_holdouts(settings, serving)
    known = fitted_groups(before, manifest)
    monkeypatch.setattr("predictor.training.train.cross_validate", lambda *_: pytest.fail("fitted again"))
    again = fit_predictor({"inference": training_set.measured}, training_set.failed, lambda _: None, known)
    about = {"snapshot_id": manifest.snapshot_id, "dataset_sha256": manifest.dataset_sha256}
    _, files = artifact.serialize(again[0], again[1], **about, metrics=again[2])
    stored = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    assert stored == manifest.files, "to the byte"
    assert again[2]["latency"] == manifest.metrics["latency"]
    assert compare(TrainedPredictor(*again[:2]), before).report == {}
    assert compare(TrainedPredictor(*again[:2]), None).reason == "there is no other to compare it with"
    with monkeypatch.context() as other_code:
        other_code.setattr("predictor.training.train.fitting_code_sha256", lambda: "0")
        assert attach_holdouts(settings, serving).holdouts == {}
    with pytest.raises(pytest.fail.Exception):
        fit_predictor({"inference": training_set.measured[1:]}, training_set.failed, lambda _: None, known)


@pytest.mark.slow
def test_a_figure_more_of_a_hardly_measured_device_gives_what_training_anew_gives_by_fewer_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    published = synthetic_samples((*GPUS, "RTX 3080"))
    few = synthetic_samples(("NVIDIA A100-SXM4-80GB",), per_family=1)[:4]
    fits: list[int] = []
    fit = ResidualTrees.fit
    monkeypatch.setattr(ResidualTrees, "fit", lambda *given: fits.append(1) or fit(*given))

    def trained_on(samples: list[Sample], fitted: Mapping[str, FittedGroup] | None = None) -> tuple[Any, Any, Any, int]:
        fits.clear()
        predictor, holdouts, metrics = fit_predictor({"inference": samples}, [], lambda _: None, fitted)
        _, files = artifact.serialize(predictor, holdouts, snapshot_id="", dataset_sha256="", metrics=metrics)
        groups = {
            name: FittedGroup(model, holdouts[name], metrics["latency"][name])
            for name, model in predictor.modes.items()
        }
        return files, metrics, groups, len(fits)

    *_, before, _ = trained_on([*published, *few[:-1]])
    *anew, _, fits_anew = trained_on([*published, *few])
    *again, _, fits_again = trained_on([*published, *few], before)
    assert again == anew
    assert fits_again < fits_anew
    # A figure more of a known device changes all.
    *_, fits_of_known = trained_on([*published[1:], *few], before)
    assert fits_of_known == fits_anew


def test_training_twice_on_equal_data_keeps_the_predictor_and_tells_once(
    trained: tuple[Settings, TrainingReport],
) -> None:
    settings, report = trained
    refresh(settings)  # takes in the PredictorTrained event: another snapshot of the same measurements
    again = train(settings, EventLog.open(settings))
    assert (again.predictor_id, again.new) == (report.predictor_id, False)
    assert len(list(EventLog.open(settings).read(types={"PredictorTrained"}))) == 1


def test_other_code_trains_again_on_equal_data(
    trained: tuple[Settings, TrainingReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings, report = trained
    upgraded = Settings(home=tmp_path / "home")
    shutil.copytree(settings.home, upgraded.home)
    for module in ("train", "artifact"):
        monkeypatch.setattr(f"predictor.training.{module}.fitting_code_sha256", lambda: "1" * 64)
    again = train(upgraded, EventLog.open(upgraded))
    assert (again.new, again.promoted) == (True, True)
    assert again.predictor_id != report.predictor_id
    assert train(upgraded, EventLog.open(upgraded)).new is False


@pytest.mark.parametrize(
    ("name", "content", "is_other"),
    [
        ("fit.py", '"""Words."""\nRATE = 1.0  # a cause\n"""The rate."""\n', False),
        ("fit.py", '"""Fit."""\nRATE = 2.0\n', True),
        ("mixes.parquet", "other", True),
    ],
)
def test_what_a_fit_reads_makes_other_code_and_words_do_not(
    tmp_path: Path, name: str, content: str, is_other: bool
) -> None:
    (tmp_path / "fit.py").write_text('"""Fit."""\nRATE = 1.0\n')
    (tmp_path / "mixes.parquet").write_text("one")
    before = hash_code([tmp_path])
    (tmp_path / name).write_text(content)
    assert (hash_code([tmp_path]) != before) is is_other


@pytest.mark.slow
def test_training_is_deterministic(trained: tuple[Settings, TrainingReport], tmp_path: Path) -> None:
    settings, report = trained
    other = Settings(home=tmp_path)
    shutil.copytree(settings.home / "log", other.home / "log")
    refresh(other)
    theirs = load_manifest(other, train(other, EventLog.open(other)).predictor_id)
    ours = load_manifest(settings, report.predictor_id)
    assert theirs.files == ours.files
    assert theirs.model_copy(update={"snapshot_id": ours.snapshot_id}) == ours


@pytest.mark.parametrize("place", ["log", "models"])
def test_no_fit_begins_whose_outcome_could_not_be_kept(
    trained: tuple[Settings, TrainingReport], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    shutil.copytree(trained[0].home, tmp_path / "home")
    settings = Settings(home=tmp_path / "home")
    monkeypatch.setattr("predictor.training.train._keep_serving", lambda *_: None)
    monkeypatch.setattr("predictor.training.train.fit_predictor", lambda *_: pytest.fail("it was fitted"))
    with (
        without_rights(settings.home / place),
        pytest.raises(AccelError, match=rf"{place} cannot be used: this user may not do that. Give this user"),
    ):
        train(settings, EventLog.open(settings))


@pytest.mark.slow
def test_new_measurements_make_a_new_predictor(tmp_path: Path) -> None:
    settings = world(tmp_path)
    log = EventLog.open(settings)
    first = train(settings, log)
    append(settings, [result(MODELS[0], "cpu", 8, provenance="imported")])
    second = train(settings, log)
    assert second.new
    assert second.promoted
    assert second.predictor_id != first.predictor_id
    assert second.rows == 61
    assert artifact.current_id(settings) == second.predictor_id
    # The one before stays, for whoever still reads it.
    assert load(settings, first.predictor_id).predictor_id == first.predictor_id


def test_too_little_says_what_there_is_and_what_to_measure(tmp_path: Path) -> None:
    settings = world(tmp_path, measured_grid(MODELS[:2]))
    with pytest.raises(
        NotEnoughEvidence, match=r"3 model families .* 12 of 2 in inference \(bert, vit\).*accel bench run"
    ):
        train(settings, EventLog.open(settings))
    assert artifact.current_id(settings) is None
    assert not list(EventLog.open(settings).read(types={"PredictorTrained"}))


def test_no_warehouse_says_so(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    with pytest.raises(WarehouseEmpty):
        train(settings, EventLog.open(settings))


@pytest.mark.slow
def test_memory_is_not_predicted_unless_it_was_measured(tmp_path: Path) -> None:
    grid = [p.model_copy(update={"memory_peak_mib": None}) if hasattr(p, "samples_ns") else p for p in measured_grid()]
    settings = world(tmp_path, grid)
    report = train(settings, EventLog.open(settings))
    assert load(settings, report.predictor_id).memory is None
    assert "memory" not in report.metrics


FILES = [
    "manifest.json",
    "inference_specialist_plain.txt",
    "inference_specialist_over_ridge.txt",
    "inference_cases.parquet",
]


@pytest.mark.parametrize("name", FILES)
def test_an_altered_file_is_refused(trained: tuple[Settings, TrainingReport], tmp_path: Path, name: str) -> None:
    settings, report = trained
    copy = Settings(home=tmp_path)
    shutil.copytree(settings.models_dir, copy.models_dir)
    assert load(copy, report.predictor_id).predictor_id == report.predictor_id
    path = copy.models_dir / report.predictor_id / name
    content = path.read_bytes()
    path.write_bytes(content[:200] + bytes([content[200] ^ 1]) + content[201:])
    with pytest.raises(ArtifactRejected, match="accel train"):
        load(copy, report.predictor_id)
    path.unlink()
    with pytest.raises(ArtifactRejected, match="cannot be read"):
        load(copy, report.predictor_id)


@pytest.mark.slow
def test_training_heals_a_damaged_artifact(tmp_path: Path) -> None:
    settings = world(tmp_path)
    log = EventLog.open(settings)
    report = train(settings, log)
    (settings.models_dir / report.predictor_id / "inference_specialist_plain.txt").write_text("rubbish")
    again = train(settings, log)
    assert again.predictor_id == report.predictor_id
    assert load(settings, again.predictor_id).predictor_id == report.predictor_id
    assert sorted(p.name for p in settings.models_dir.iterdir()) == sorted(["CURRENT", report.predictor_id])


@pytest.mark.parametrize("other_features", [{"feature_schema": 0}, {"case_columns": ("model", "family")}])
def test_an_artifact_of_other_features_is_refused(
    trained: tuple[Settings, TrainingReport], tmp_path: Path, other_features: dict[str, object]
) -> None:
    settings, report = trained
    copy = Settings(home=tmp_path)
    source = settings.models_dir / report.predictor_id
    files = {path.name: path.read_bytes() for path in source.iterdir() if path.name != "manifest.json"}
    manifest = Manifest.model_validate_json((source / "manifest.json").read_bytes())
    other = artifact.store(copy, manifest.model_copy(update=other_features), files)
    with pytest.raises(ArtifactRejected, match="other features"):
        load(copy, other)


def test_an_artifact_of_another_format_is_refused(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    content = json.dumps({"format": 99}).encode()
    name = artifact._predictor_id(content)
    (settings.models_dir / name).mkdir(parents=True)
    (settings.models_dir / name / "manifest.json").write_bytes(content)
    with pytest.raises(ArtifactRejected, match=r"another version .*accel train"):
        load(settings, name)


@pytest.mark.parametrize("name", ["../elsewhere", "lgbm-nothing", ""])
def test_a_pointer_to_nowhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArtifactRejected):
        load(Settings(home=tmp_path), name)


def _poisoned(settings: Settings) -> None:
    """Append scattered figures of every model, which no model can fit."""
    scales = (0.02, 40.0, 0.1, 9.0, 300.0)
    rows = [
        result(model, hardware, batch, provenance="imported", scale=scales[i % 5])
        for i, model in enumerate(MODELS)
        for hardware in ("cpu", "openvino", "onnxruntime")
        for batch in (2, 3, 5, 6)
    ]
    append(settings, rows)


def test_many_small_steps_back_are_one_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each predictor errs 9 % more than the one before, which alone is let pass; not so against the best of them."""
    errors = [0.30 * 1.09**step for step in range(4)]
    modes = [{"inference": SimpleNamespace(latency_model=SimpleNamespace(samples=step))} for step in range(4)]
    predictors: list[Any] = [
        TrainedPredictor(SimpleNamespace(predictor_id=f"p{step}", modes=modes[step]), {})  # type: ignore[arg-type]
        for step in range(4)
    ]
    families = [f"family {i}" for i in range(20)]
    monkeypatch.setattr(
        comparison,
        "_paired_errors",
        lambda ours, theirs: comparison.PairedErrors(np.array([[errors[ours], errors[theirs]]] * 20), families),
    )
    one = comparison.compare(predictors[1], predictors[0])
    assert (one.promoted, one.best) == (True, False)
    assert comparison.compare(predictors[2], predictors[1]).promoted
    three = comparison.compare(predictors[2], predictors[1], predictors[0])
    assert not three.promoted
    assert "than p0" in three.reason
    back = comparison.compare(predictors[0], predictors[3], predictors[1])
    assert (back.promoted, back.best) == (True, True)


def test_cross_validations_are_compared_on_what_both_held_out(
    trained: tuple[Settings, TrainingReport], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cross-validation that errs by 5 % everywhere loses to the stored one, by their shared configurations alone."""
    settings, report = trained
    before = attach_holdouts(settings, load(settings, report.predictor_id))
    samples = before.predictor.modes["inference"].latency_model.samples
    more = [*samples, replace(samples[0], batch_size=999)]
    worse = HoldoutPredictions(more, [math.log(1.05)] * len(more))
    mode_model = replace(before.predictor.modes["inference"], latency_model=SimpleNamespace(samples=more))
    predictor = replace(before.predictor, modes={"inference": mode_model})
    candidate = TrainedPredictor(predictor, {"inference": {Regime.UNSEEN_FAMILY: worse}})
    theirs = np.abs(np.expm1(before.holdouts["inference"][Regime.UNSEEN_FAMILY].errors))
    with monkeypatch.context() as fitted:
        fitted.setattr(comparison, "_paired_errors", lambda *_: pytest.fail("fitted for the comparison"))
        found = compare(candidate, before).report["inference"]
    assert (found["cases"], found["median_ape"]) == (len(theirs), pytest.approx(0.05))
    assert found["median_ape_in_service"] == pytest.approx(np.median(theirs))
    few = HoldoutPredictions(more[-5:], worse.errors[-5:])
    other = TrainedPredictor(predictor, {"inference": {Regime.UNSEEN_FAMILY: few}})
    assert compare(other, before).report["inference"]["median_ape"] != pytest.approx(0.05), "fitted, as few are shared"


@pytest.mark.slow
def test_a_worse_predictor_does_not_serve_and_going_back_is_one_command(tmp_path: Path) -> None:
    settings = world(tmp_path)
    log = EventLog.open(settings)
    first = train(settings, log)
    append(settings, [result(MODELS[0], "cpu", 8, provenance="imported")])
    second = train(settings, log)
    assert [change.replaced for change in promotions(log)] == [None, first.predictor_id]
    assert second.metrics["compared"]["inference"]["cases"] >= 12

    _poisoned(settings)
    third = train(settings, log)
    assert not third.promoted
    assert "errs more on unseen families" in third.reason
    assert artifact.current_id(settings) == second.predictor_id
    said: list[str] = []
    fourth = train(settings, log, progress=said.append)
    assert (fourth.predictor_id, fourth.reason, fourth.new) == (third.predictor_id, third.reason, False)
    assert "refused: not trained again" in "".join(said)
    # It is stored and logged, and can be promoted by name.
    events_by_id = {e.payload.predictor_id: e.payload for e in log.read(types={"PredictorTrained"})}
    assert [events_by_id[r.predictor_id].promoted for r in (first, second, third)] == [True, True, False]

    done = CliRunner().invoke(app, ["predictor", "rollback", "--home", str(tmp_path), "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"predictor_id": first.predictor_id, "replaced": second.predictor_id}
    assert artifact.current_id(settings) == first.predictor_id
    with pytest.raises(NoPreviousModel):
        roll_back(settings, log)
    with pytest.raises(NotFound, match="No stored predictor is called 'lgbm-0000'"):
        roll_back(settings, log, "lgbm-0000")
    assert roll_back(settings, log, third.predictor_id).predictor_id == third.predictor_id

    listed = json.loads(CliRunner().invoke(app, ["predictor", "list", "--home", str(tmp_path), "--json"]).stdout)
    states = {row["predictor"]: row["state"] for row in listed["predictors"]}
    assert states == {first.predictor_id: "kept", second.predictor_id: "kept", third.predictor_id: "serves"}
    damaged = next((settings.models_dir / second.predictor_id).glob("*.parquet"))
    damaged.write_bytes(damaged.read_bytes() + b" ")
    listed = json.loads(CliRunner().invoke(app, ["predictor", "list", "--home", str(tmp_path), "--json"]).stdout)
    states = {row["predictor"]: row["state"] for row in listed["predictors"]}
    assert "was altered after training" in states[second.predictor_id]
    shown = CliRunner().invoke(app, ["predictor", "show", first.predictor_id[:12], "--home", str(tmp_path)])
    assert "latency, inference" in shown.stdout


@pytest.mark.slow
def test_what_somebody_went_back_from_does_not_return_by_itself(tmp_path: Path) -> None:
    settings = world(tmp_path)
    log = EventLog.open(settings)
    first = train(settings, log)
    append(settings, [result(MODELS[0], "cpu", 8, provenance="imported")])
    second = train(settings, log)
    roll_back(settings, log)
    # Nor where something else was written down since, that nothing is learned from.
    append(settings, [result(Model("nobody-knows-it", "none", "text", 1, 1.0), "cpu", 8, provenance="imported")])
    again = train(settings, log)
    assert (again.predictor_id, again.promoted) == (second.predictor_id, False)
    assert "accel predictor rollback" in again.reason
    assert artifact.current_id(settings) == first.predictor_id


@pytest.mark.slow
def test_a_kept_artifact_that_cannot_be_read_is_not_gone_back_to(tmp_path: Path) -> None:
    settings = world(tmp_path)
    log = EventLog.open(settings)
    old = json.dumps({"format": 1, "latency": {}}).encode()
    name = artifact._predictor_id(old)
    (settings.models_dir / name).mkdir(parents=True)
    (settings.models_dir / name / "manifest.json").write_bytes(old)
    artifact.activate(settings, name)
    report = train(settings, log)
    assert report.promoted
    [change] = promotions(log)
    assert isinstance(change, PredictorPromoted)
    assert change.replaced == name
    with pytest.raises(ArtifactRejected, match=r"format 1.*accel train"):
        roll_back(settings, log)
    assert artifact.current_id(settings) == report.predictor_id
