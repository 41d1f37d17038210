"""Verdicts over the whole archive, `accel history audit`, and a person's word against a rule."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from accel_platform.cli import history
from accel_platform.errors import InvalidInput, NotFound
from accel_platform.events import Event, EventLog
from accel_platform.events.types import ResultRecorded, ResultSuspected, SuspicionOverruled
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.query import Reader
from migrations.archive import suspect_across
from migrations.importer import migrate


def web(model: str, platform: str = "webgpu", /, **metrics: float) -> dict[str, Any]:
    return {"model_name": model, "platform": platform, "status": "success", "metrics": metrics}


def write(directory: Path, *documents: dict[str, Any]) -> Path:
    directory.mkdir(exist_ok=True)
    for document in documents:
        name = f"{len(list(directory.iterdir()))}.json"
        (directory / name).write_text(json.dumps(document))
    return directory


CONSTANT = {"inference_time_ms": 80.5, "throughput_items_per_second": 99.5}


def marks(log: EventLog) -> list[ResultSuspected]:
    return [e.payload for e in log.read(types={"ResultSuspected"}) if isinstance(e.payload, ResultSuspected)]


class TestArchive:
    def test_one_figure_for_unlike_models_in_several_files(self, tmp_path: Path, log: EventLog) -> None:
        models = ("gpt2", "t5-small", "bert-base-uncased")
        report = migrate([write(tmp_path / "old", *(web(model, **CONSTANT) for model in models))], log)
        found = marks(log)
        assert {m.rule for m in found} == {"constant_over_archive"}
        assert len(found) == report.suspected_across == 3
        assert "bert-base, gpt2, t5-small in 3 documents" in found[0].evidence

    def test_what_came_earlier_is_judged_by_what_comes_later(self, tmp_path: Path, log: EventLog) -> None:
        old = write(tmp_path / "old", web("gpt2", **CONSTANT), web("t5-small", **CONSTANT))
        assert migrate([old], log).suspected_across == 0
        write(old, web("bert-base-uncased", **CONSTANT))
        assert migrate([old], log).suspected_across == 3
        write(old, web("openai/whisper-tiny", **CONSTANT))
        assert migrate([old], log).suspected_across == 1
        assert (migrate([old], log).events, suspect_across(log)) == (0, [])

    def test_copies_over_hardware_in_several_files(self, tmp_path: Path, log: EventLog) -> None:
        migrate([write(tmp_path / "old", web("gpt2", **CONSTANT), web("gpt2", "webnn", **CONSTANT))], log)
        assert {m.rule for m in marks(log)} == {"identical_over_archive"}

    def test_honest_files_stay_as_they_are(self, tmp_path: Path, log: EventLog) -> None:
        random_ = random.Random(3)
        honest = [web(m, inference_time_ms=random_.uniform(5, 90)) for m in ("gpt2", "t5-small", "bert", "vit")]
        migrate([write(tmp_path / "old", *honest)], log)
        assert marks(log) == []

    def test_a_few_of_many_may_share_a_figure(self, tmp_path: Path, log: EventLog) -> None:
        many = [web(f"model-{n}", inference_time_ms=5.0 + n) for n in range(40)]
        same = [web(f"twin-{n}", inference_time_ms=77.7) for n in range(3)]
        migrate([write(tmp_path / "old", *many, *same)], log)
        assert marks(log) == []


class TestOverruling:
    @pytest.fixture
    def doubted(self, tmp_path: Path, settings: Settings, log: EventLog) -> str:
        document = web("gpt2", inference_time_ms=80.25, throughput_items_per_second=12.4)
        migrate([write(tmp_path / "old", {**document, "is_simulation": True})], log)
        refresh(settings)
        (row,) = Reader(settings).rows("SELECT result_id::VARCHAR AS id, provenance FROM results")
        assert row["provenance"] == "simulated"
        return str(row["id"])

    def test_the_result_counts_again_and_the_suspicion_stays(self, settings: Settings, doubted: str) -> None:
        answer = overrule(settings, doubted, "simulation_label")
        assert answer.exit_code == 0, answer.output
        refresh(settings)
        reader = Reader(settings)
        assert reader.rows("SELECT provenance FROM results") == [{"provenance": "imported"}]
        assert reader.rows("SELECT count(*) AS n FROM usable_results") == [{"n": 1}]
        assert reader.rows("SELECT rule FROM suspicions") == [{"rule": "simulation_label"}]
        assert reader.rows("SELECT overruled_by, reason FROM overrulings") == [
            {"overruled_by": "Ada", "reason": "run on a real GPU"}
        ]

    def test_another_rule_still_stands(self, settings: Settings, log: EventLog, doubted: str) -> None:
        more = {"rule": "constant_over_archive", "verdict": "suspect", "evidence": "x", "confidence": 0.6}
        log.append([Event.of(ResultSuspected(result_id=doubted, **more), source="migrate")], key="more")
        overrule(settings, doubted, "simulation_label")
        refresh(settings)
        assert Reader(settings).rows("SELECT provenance FROM results") == [{"provenance": "suspect"}]

    def test_only_what_is_doubted_can_be_overruled(self, settings: Settings, doubted: str) -> None:
        assert isinstance(overrule(settings, doubted, "no_such_rule").exception, NotFound)
        assert isinstance(overrule(settings, "not-an-id", "x").exception, InvalidInput)
        assert isinstance(overrule(settings, doubted, "simulation_label", reason=" ").exception, InvalidInput)

    def test_a_measurement_of_ours_is_never_rejudged(self, settings: Settings, log: EventLog) -> None:
        payload = ResultRecorded(
            model_id="gpt2", model_family="gpt2", hardware="cpu", backend="pytorch", status="ok", provenance="measured",
            device_id="d", fingerprint="f", latency_mean_ms=5.0,
        )  # fmt: skip
        event = Event.of(payload, source="bench")
        said = {"rule": "x", "verdict": "simulated", "evidence": "y", "confidence": 0.9}
        log.append([event, Event.of(ResultSuspected(result_id=event.event_id, **said), source="migrate")], key="a")
        refresh(settings)
        assert Reader(settings).rows("SELECT provenance FROM results") == [{"provenance": "measured"}]


def overrule(settings: Settings, result_id: str, rule: str, reason: str = "run on a real GPU") -> Any:
    arguments = ["overrule", result_id, rule, "--by", "Ada", "--reason", reason, "--home", str(settings.home)]
    return CliRunner().invoke(history.app, arguments)


def test_the_audit_counts_and_gives_reasons(tmp_path: Path, settings: Settings, log: EventLog) -> None:
    models = ("gpt2", "t5-small", "bert-base-uncased")
    migrate([write(tmp_path / "old", *(web(model, **CONSTANT) for model in models))], log)
    (first, *_) = [e.event_id for e in log.read(types={"ResultRecorded"})]
    ruling = SuspicionOverruled(result_id=first, rule="constant_over_archive", by="Ada", reason="seen it")
    log.append([Event.of(ruling, source="history")], key="ruling")
    refresh(settings)
    answer = CliRunner().invoke(history.app, ["audit", "--json", "--home", str(settings.home)])
    assert answer.exit_code == 0, answer.output
    audit = json.loads(answer.stdout)
    assert audit["provenance"] == {"imported": 1, "simulated": 2}
    (verdict,) = audit["verdicts"]
    assert (verdict["rule"], verdict["verdict"]) == ("constant_over_archive", "simulated")
    assert (verdict["results"], verdict["documents"], verdict["overruled"]) == (3, 3, 1)
    assert verdict["reasons"][0]["results"] == 3
    assert "latency 80.5 ms" in verdict["reasons"][0]["reason"]
    table = CliRunner().invoke(history.app, ["audit", "--home", str(settings.home)])
    assert "constant_over_archive" in table.stdout
    assert "1 imported, 2 simulated" in table.stderr
