"""Places of recommended hardware: this host, other hosts of the log, and elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from accel_platform.cli import app
from accel_platform.errors import NotFound
from accel_platform.events import EventLog
from accel_platform.knowledge import CAMPAIGNS
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.reader import Reader
from predictor.advisor.advisor import Advisor
from predictor.advisor.answers import excluded_by_reason
from predictor.advisor.device_labels import device_labels
from predictor.advisor.objectives import gain_elsewhere
from predictor.data import evidence
from predictor.schemas.requests import PredictQuery, RecommendQuery
from predictor.schemas.responses import Answer, Excluded
from predictor_world import CPU, CPU_ID, MODELS, devices, measured_grid, result, verified, world


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """The grid measured by host-1, imported figures of a GPU, and the reference campaign."""
    gpu = result(MODELS[0], "cuda", 1, device="Test GPU", provenance="imported")
    settings = world(tmp_path_factory.mktemp("where"), [*devices(), *measured_grid(MODELS[:2]), gpu])
    log = EventLog.open(settings)
    for path in CAMPAIGNS:
        log.adopt(path)
    refresh(settings)
    return settings


def _ask(settings: Settings, monkeypatch: pytest.MonkeyPatch, host: str, **more: object) -> Answer:
    monkeypatch.setattr(evidence, "host_id", lambda: host)
    query = {"model": "bert-base", "sequence_length": 128, **more}
    return Advisor(settings).recommend(RecommendQuery.model_validate(query))


def test_reference_hosts_are_those_of_the_shipped_campaign() -> None:
    hosts = {host for path in CAMPAIGNS for host in pq.read_table(path, columns=["host_id"])["host_id"].to_pylist()}
    assert hosts - {None} == evidence.REFERENCE_HOSTS


@pytest.mark.parametrize(("host", "expected"), [("host-1", "here"), ("host-other", "mine")])
def test_a_recommendation_says_where(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, host: str, expected: str
) -> None:
    ranked = _ask(settings, monkeypatch, host).recommendations
    places = {(r.device, r.where) for r in ranked}
    assert ("Test GPU", "elsewhere") in places
    assert (CPU, expected) in places
    assert ("AMD EPYC", "elsewhere") in places
    for r in ranked:
        assert ("measured here" in r.basis) <= (r.where == "here")


@pytest.mark.parametrize("processor", ["Intel(R) Xeon(R) Processor", "AMD EPYC"])
def test_a_clone_of_a_reference_host_is_that_host_with_the_same_processor_only(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, processor: str
) -> None:
    sql = "SELECT DISTINCT host_id, device_id FROM devices WHERE hardware = 'cpu' AND name = ?"
    [reference] = Reader(settings).rows(sql, (processor,))
    host = reference["host_id"]
    monkeypatch.setattr(evidence, "processor_id", lambda: "cpu-of-the-clone")
    ranked = _ask(settings, monkeypatch, host).recommendations
    assert {r.where for r in ranked} == {"mine", "elsewhere"}
    assert not any("measured here" in r.basis for r in ranked)
    monkeypatch.setattr(evidence, "processor_id", lambda: reference["device_id"])
    assert "here" in {r.where for r in _ask(settings, monkeypatch, host).recommendations}


def test_what_a_clone_of_a_reference_host_measured_itself_is_here(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evidence, "REFERENCE_HOSTS", evidence.REFERENCE_HOSTS | {"host-1"})
    monkeypatch.setattr(evidence, "processor_id", lambda: CPU_ID)
    ranked = _ask(settings, monkeypatch, "host-1").recommendations
    assert {r.device_id for r in ranked if r.where == "here"} == {CPU_ID}


@pytest.mark.parametrize(("where", "allowed"), [("here", {"here"}), ("mine", {"here", "mine"})])
def test_where_limits_the_ranking(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, where: str, allowed: set[str]
) -> None:
    ranked = _ask(settings, monkeypatch, "host-1", where=where).recommendations
    assert ranked
    assert {r.where for r in ranked} <= allowed
    elsewhere = _ask(settings, monkeypatch, "host-other", where="here")
    assert elsewhere.recommendations == []
    assert elsewhere.excluded == []
    assert any(warning.startswith("No such hardware is of this host: ") for warning in elsewhere.warnings)


def test_the_gain_elsewhere_is_named(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    ranked = _ask(settings, monkeypatch, "host-1").recommendations
    sentence = gain_elsewhere("latency", ranked)
    best = next(r for r in ranked if r.where == "elsewhere")
    assert sentence is not None
    assert best.hardware in sentence
    assert gain_elsewhere("latency", [r for r in ranked if r.where == "here"]) is None


@pytest.mark.parametrize(
    ("host", "reason"),
    [
        ("host-40bb15d51d61", "unavailable here: the installed torch 2.11.0+cu130"),
        ("host-f00cb1b79e00", "unavailable here: the installed torch 2.13.0+cpu"),
        ("host-1", "unavailable on host-"),
    ],
)
def test_what_is_unavailable_names_the_host_and_this_one_first(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, host: str, reason: str
) -> None:
    [mps] = [e for e in _ask(settings, monkeypatch, host).excluded if e.hardware == "mps"]
    assert mps.reason.startswith(reason)


def test_what_another_host_lacks_is_no_news_where_some_host_has_it(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No runtime computes in float64, so that openvino is not answered for; the H100's host cannot import it.
    for host, lacks in (("host-f00cb1b79e00", False), ("host-40bb15d51d61", True)):
        excluded = _ask(settings, monkeypatch, host, hardware=["openvino"], precision="float64").excluded
        assert any("cannot be imported" in e.reason for e in excluded) is lacks
        query = PredictQuery(model="bert-base", hardware="openvino", precision="float64")
        with pytest.raises(NotFound) as nothing:
            Advisor(settings).predict(query)
        assert ("unavailable here: openvino cannot be imported" in str(nothing.value)) is lacks


def test_why_there_is_no_figure_stays_short(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "host_id", lambda: "host-f00cb1b79e00")
    with pytest.raises(NotFound) as nothing:
        Advisor(settings).predict(PredictQuery(model="bert-base", hardware="cuda", precision="int8"))
    assert "on cuda: unavailable here: the installed torch 2.13.0+cpu" in str(nothing.value)
    assert str(nothing.value).count("To settle it: ") == 1
    assert len(str(nothing.value)) < 450


def test_a_command_is_for_this_host_only_where_it_has_the_hardware(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    for host, begins in (("host-1", "accel bench run"), ("host-other", "on a host that has it: accel bench run")):
        excluded = _ask(settings, monkeypatch, host, batch_size=4096, hardware=[CPU]).excluded
        assert excluded
        assert all(e.suggestion.startswith(begins) for e in excluded)


def test_devices_of_one_name_are_told_apart_in_every_sentence_of_an_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unstated = {"precision": None, "provenance": "imported", "backend": "vllm"}
    settings = world(tmp_path, [
        result(MODELS[0], "cpu", 1, device_id="own"),
        verified(MODELS[0], "cpu", 1).model_copy(update={"device_id": "own"}),
        *(result(MODELS[0], "cpu", 1, device_id=one, scale=scale, **unstated) for one, scale in (("a", 2), ("b", 3))),
        result(MODELS[0], "cpu", 1, device_id="a", provenance="imported", backend="ncnn", scale=4),
    ])  # fmt: skip
    answer = _ask(settings, monkeypatch, "host-1")
    assert f"cpu ({CPU}, a), cpu ({CPU}, b): the figures state no precision; they are taken for float32." in (
        answer.warnings
    )
    assert str(gain_elsewhere("latency", answer.recommendations)).startswith(f"The best elsewhere, cpu ({CPU}, a), ")
    assert device_labels(answer.recommendations) == [
        f"{CPU} (own)", f"{CPU} (a, vllm)", f"{CPU} (b)", f"{CPU} (a, ncnn)"
    ]  # fmt: skip
    words = ["recommend", "bert-base", "--sequence-length", "128", "--verbose", "--home", str(tmp_path)]
    done = CliRunner().invoke(app, words)
    assert f"left out: cpu ({CPU}, {CPU_ID}): " in done.output
    assert all(label in done.stdout for label in (f"{CPU} (own)", f"{CPU} (b)"))


def test_excluded_hardware_is_grouped_by_reason() -> None:
    def left_out(device: str, reason: str) -> Excluded:
        return Excluded(hardware="cuda", device=device, cause="unsupported", reason=reason, suggestion="")

    groups = excluded_by_reason([left_out("a", "one"), left_out("b", "two"), left_out("c", "two")])
    assert {reason: [e.device for e in group] for reason, group in groups.items()} == {"two": ["b", "c"], "one": ["a"]}


def test_runtimes_of_one_device_that_are_left_out_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stated = {"device": "Test GPU", "provenance": "imported"}
    settings = world(tmp_path, [result(MODELS[0], "cuda", 1, backend=one, **stated) for one in ("ncnn", "vllm")])
    tight = {"hardware": ["Test GPU", "Hailo-8"], "constraints": {"max_latency_ms": 0.001}}
    excluded = _ask(settings, monkeypatch, "host-1", **tight).excluded
    assert [(e.device, e.backend) for e in excluded] == [("Hailo-8", None), ("Test GPU", "ncnn"), ("Test GPU", "vllm")]


def test_further_runtimes_of_recommended_devices_are_counted(tmp_path: Path) -> None:
    more = result(MODELS[1], "cuda", 1, device="Test GPU", provenance="imported", backend="ncnn")
    gpu = result(MODELS[0], "cuda", 1, device="Test GPU", provenance="imported", backend="vllm")
    home = world(tmp_path, [gpu, more]).home
    words = ["recommend", "bert-base", "--sequence-length", "128", "--home", str(home)]
    done = CliRunner().invoke(app, words)
    assert "left out: 1 runtime more of devices above" in done.output
    assert "ncnn" not in done.output
    assert re.search(r"left out: cuda \(Test GPU\): .*ncnn", CliRunner().invoke(app, [*words, "--verbose"]).output)


def test_imports_of_a_measured_device_count_as_its_runtimes(tmp_path: Path) -> None:
    gpu = [result(MODELS[0], "cuda", 1, device="Test GPU"), verified(MODELS[0], "cuda", 1)]
    stated = {"device": "Test GPU", "device_id": "imported:Test GPU", "provenance": "imported", "backend": "ncnn"}
    home = world(tmp_path, [*gpu, result(MODELS[1], "cuda", 1, **stated)]).home
    words = ["recommend", "bert-base", "--sequence-length", "128", "--home", str(home)]
    assert "left out: 1 runtime more of devices above" in CliRunner().invoke(app, words).output
    assert "left out: cuda (Test GPU, imported:Test GPU): " in CliRunner().invoke(app, [*words, "--verbose"]).output


def test_hardware_named_in_a_query_is_never_left_out_without_a_reason(tmp_path: Path) -> None:
    home = world(tmp_path, [result(MODELS[0], "cpu", 1), verified(MODELS[0], "cpu", 1)]).home
    boards = ["Hailo-8", "Google TPU v5e", "Qualcomm Cloud AI 100 Standard", "AWS Trainium2"]
    words = ["recommend", "bert-base", "--sequence-length", "128", "--home", str(home), "--hardware", "cpu", *boards]
    done = CliRunner().invoke(app, words)
    assert "left out: 4 in all" in done.output
    assert done.output.count("no runtime of this platform drives") == 3
    assert "and 1 more reason" in done.output


def test_answers_name_their_precision_and_what_is_usual_elsewhere(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = _ask(settings, monkeypatch, "host-1", hardware=["NVIDIA H100 SXM5 80GB", "cpu"])
    assert {r.precision for r in answer.recommendations} <= {"float32", None}
    [warning] = [text for text in answer.warnings if text.startswith("No precision was given")]
    assert "H100" in warning
    assert "cpu" not in warning
    asked = _ask(settings, monkeypatch, "host-1", hardware=["NVIDIA H100 SXM5 80GB"], precision="float16")
    assert {r.precision for r in asked.recommendations} <= {"float16"}
    assert not any(text.startswith("No precision was given") for text in asked.warnings)
