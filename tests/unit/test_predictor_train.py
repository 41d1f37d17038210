"""Training through the real path: events, projection, dataset, model, artefact, event."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest

from accel_platform.errors import WarehouseEmpty
from accel_platform.events import EventLog
from accel_platform.events.types import PredictorTrained
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.query import Reader
from predictor import artifact
from predictor.artifact import ArtifactRefused, Manifest, load
from predictor.dataset import build_dataset
from predictor.evidence import Target, load_evidence
from predictor.features import device_spec, features_of
from predictor.subject import ItemCost
from predictor.train import NotEnoughEvidence, TrainingReport, train
from predictor_world import CPU_ID, MODELS, Model, append, described, latency_of, measured_grid, result, world


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Settings, TrainingReport]:
    settings = world(tmp_path_factory.mktemp("trained"))
    return settings, train(settings, EventLog.open(settings))


def test_report_event_and_artefact_agree(trained: tuple[Settings, TrainingReport]) -> None:
    settings, report = trained
    assert (report.rows, report.families, report.new, report.promoted) == (60, 10, True, True)
    assert report.snapshot_id == Reader(settings).snapshot_id
    [event] = EventLog.open(settings).read(types={"PredictorTrained"})
    payload = event.payload
    assert isinstance(payload, PredictorTrained)
    assert (payload.predictor_id, payload.rows) == (report.predictor_id, 60)
    manifest = load(settings, report.predictor_id).manifest
    assert payload.artifact_sha256 == artifact.sha256_of(manifest)
    assert payload.metrics == manifest.metrics == report.metrics
    assert artifact.current_id(settings) == report.predictor_id
    names = sorted(path.suffix for path in (settings.models_dir / report.predictor_id).iterdir())
    assert set(names) == {".json", ".txt"}


def test_learns_the_rule_behind_the_figures(trained: tuple[Settings, TrainingReport]) -> None:
    settings, report = trained
    metrics = report.metrics["latency"]
    assert metrics["median_ape"] < 0.10
    assert metrics["coverage"] >= 0.8
    assert metrics["interval_high_over_low"] < 3
    predictor = load(settings, report.predictor_id)
    unseen = Model("unseen", "unseen", "text", 40_000_000, 15.0, 128)
    for hardware, backend in (("cpu", "pytorch"), ("openvino", "openvino")):
        target = Target(hardware, backend, CPU_ID)
        features = features_of(
            ItemCost(unseen.parameters, 12, unseen.gflops * 1e9, unseen.gflops * 1e7),
            modality="text",
            target=target,
            precision="float32",
            batch_size=2,
            sequence_length=128,
            spec=device_spec(target, {}),
        )
        interval = predictor.latency.interval(features)
        truth = latency_of(unseen, hardware, 2)
        assert interval.low is not None
        assert interval.high is not None
        assert interval.low <= interval.p50 <= interval.high
        assert interval.low <= truth <= interval.high
        assert abs(math.log(interval.p50 / truth)) < 0.2


def test_training_twice_on_equal_data_keeps_the_predictor_and_tells_once(
    trained: tuple[Settings, TrainingReport],
) -> None:
    settings, report = trained
    refresh(settings)  # takes in the PredictorTrained event: another snapshot of the same measurements
    again = train(settings, EventLog.open(settings))
    assert (again.predictor_id, again.new) == (report.predictor_id, False)
    assert len(list(EventLog.open(settings).read(types={"PredictorTrained"}))) == 1


def test_training_is_deterministic(trained: tuple[Settings, TrainingReport], tmp_path: Path) -> None:
    settings, report = trained
    other = Settings(home=tmp_path)
    shutil.copytree(settings.home / "log", other.home / "log")
    refresh(other)
    theirs = load(other, train(other, EventLog.open(other)).predictor_id).manifest
    ours = load(settings, report.predictor_id).manifest
    assert theirs.latency == ours.latency
    assert theirs.memory == ours.memory
    assert theirs.dataset_sha256 == ours.dataset_sha256


def test_new_measurements_make_a_new_predictor(tmp_path: Path) -> None:
    settings = world(tmp_path)
    log = EventLog.open(settings)
    first = train(settings, log)
    append(settings, [result(MODELS[0], "cpu", 8, provenance="imported")])
    second = train(settings, log)
    assert second.new
    assert second.predictor_id != first.predictor_id
    assert second.rows == 61
    assert artifact.current_id(settings) == second.predictor_id
    # The one before stays, for whoever still reads it.
    assert load(settings, first.predictor_id).predictor_id == first.predictor_id


def test_too_little_says_what_there_is_and_what_to_measure(tmp_path: Path) -> None:
    settings = world(tmp_path, measured_grid(MODELS[:2]))
    with pytest.raises(NotEnoughEvidence, match=r"3 model families; .* 12 of 2 \(bert, vit\).*accel bench run"):
        train(settings, EventLog.open(settings))
    assert artifact.current_id(settings) is None
    assert not list(EventLog.open(settings).read(types={"PredictorTrained"}))


def test_no_warehouse_says_so(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    with pytest.raises(WarehouseEmpty):
        train(settings, EventLog.open(settings))


def test_only_usable_figures_are_learned_from(tmp_path: Path) -> None:
    nameless = Model("legacy-thing", "unknown", "text", 1, 1.0)
    bert = MODELS[0]
    settings = world(
        tmp_path,
        [
            described(bert),
            result(bert, "cpu", 1, provenance="imported"),
            result(bert, "cpu", 2, provenance="simulated"),
            result(bert, "cpu", 3, provenance="suspect"),
            result(bert, "cpu", 4, provenance="emulated"),
            result(bert, "cpu", 5, provenance="imported", sequence_length=None),
            result(bert, "cpu", 6, provenance="imported", mode="training"),
            result(bert, "cpu", 7, provenance="imported", sequence_length=100_000),
            result(nameless, "cpu", 1, provenance="imported"),
            result(bert, "cpu", 9, provenance="imported", device_id=None, device_name=None),
            result(bert, "cpu", 8, provenance="imported", latency_mean_ms=None, memory_peak_mib=9.0),
        ],
    )
    dataset = build_dataset(load_evidence(Reader(settings)))
    assert [cell.cell.batch_size for cell in dataset.cells] == [1]
    assert dataset.skipped == {
        "cost of the model, or the length it was measured at, unknown": 2,
        "device not named": 1,
        "mode training": 1,
        "sequence length beyond what the model reads": 1,
    }


def test_memory_is_not_predicted_unless_it_was_measured(tmp_path: Path) -> None:
    grid = [p.model_copy(update={"memory_peak_mib": None}) if hasattr(p, "samples_ns") else p for p in measured_grid()]
    settings = world(tmp_path, grid)
    report = train(settings, EventLog.open(settings))
    assert load(settings, report.predictor_id).memory is None
    assert "memory" not in report.metrics


FILES = ["manifest.json", "latency_p05.txt", "latency_p50.txt", "latency_p95.txt", "memory_p50.txt"]


@pytest.mark.parametrize("name", FILES)
def test_an_altered_file_is_refused(trained: tuple[Settings, TrainingReport], tmp_path: Path, name: str) -> None:
    settings, report = trained
    copy = Settings(home=tmp_path)
    shutil.copytree(settings.models_dir, copy.models_dir)
    assert load(copy, report.predictor_id).predictor_id == report.predictor_id
    path = copy.models_dir / report.predictor_id / name
    content = path.read_bytes()
    path.write_bytes(content.replace(b"1", b"2", 1))
    with pytest.raises(ArtifactRefused, match="accel train"):
        load(copy, report.predictor_id)
    path.unlink()
    with pytest.raises(ArtifactRefused, match="cannot be read"):
        load(copy, report.predictor_id)


def test_training_heals_a_damaged_artefact(tmp_path: Path) -> None:
    settings = world(tmp_path)
    log = EventLog.open(settings)
    report = train(settings, log)
    (settings.models_dir / report.predictor_id / "latency_p50.txt").write_text("rubbish")
    again = train(settings, log)
    assert again.predictor_id == report.predictor_id
    assert load(settings, again.predictor_id).predictor_id == report.predictor_id
    assert sorted(p.name for p in settings.models_dir.iterdir()) == sorted(["CURRENT", report.predictor_id])


def test_an_artefact_of_other_features_is_refused(trained: tuple[Settings, TrainingReport], tmp_path: Path) -> None:
    settings, report = trained
    copy = Settings(home=tmp_path)
    source = settings.models_dir / report.predictor_id
    files = {path.name: path.read_text() for path in source.glob("*.txt")}
    manifest = Manifest.model_validate_json((source / "manifest.json").read_bytes())
    other = artifact.publish(copy, manifest.model_copy(update={"feature_schema": 0}), files)
    with pytest.raises(ArtifactRefused, match="other features"):
        load(copy, other)


def test_an_artefact_of_another_format_is_refused(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    content = json.dumps({"format": 99}).encode()
    name = artifact._id_of(content)
    (settings.models_dir / name).mkdir(parents=True)
    (settings.models_dir / name / "manifest.json").write_bytes(content)
    with pytest.raises(ArtifactRefused, match="another version"):
        load(settings, name)


@pytest.mark.parametrize("name", ["../elsewhere", "lgbm-nothing", ""])
def test_a_pointer_to_nowhere_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArtifactRefused):
        load(Settings(home=tmp_path), name)
