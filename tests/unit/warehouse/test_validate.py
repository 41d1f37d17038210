"""`accel db validate`: what is wrong is found, what has one safe repair is mended, and nothing else is touched."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import duckdb
import pytest
from typer.testing import CliRunner

from accel_platform.cli.data import db
from accel_platform.events import EventLog
from accel_platform.events.types import (
    DocumentImported,
    ModelDescribed,
    PredictorTrained,
    ResultRecorded,
    ResultSuspected,
)
from accel_platform.settings import Settings
from accel_platform.warehouse import publish
from accel_platform.warehouse.layers import require_current
from accel_platform.warehouse.reader import Reader
from accel_platform.warehouse.rules import RULES
from accel_platform.warehouse.validate import validate
from factories import event, result, verification


def describe(model_id: str) -> Callable[[], ModelDescribed] | None:
    """A catalogue of one model."""
    if model_id != "bert-base":
        return None
    return lambda: ModelDescribed(
        model_id=model_id, architecture="bert", family="bert", modality="text", parameters=110
    )


@pytest.fixture
def home(settings: Settings, log: EventLog) -> Settings:
    """One described model, measured twice; tables in service, nothing wrong."""
    made = describe("bert-base")
    assert made is not None
    log.append([event(result()), event(verification()), event(made())], key="first")
    log.append([event(result(batch_size=4)), event(verification(batch_size=4))], key="second")
    publish.refresh(settings)
    return settings


def test_a_sound_home_has_nothing_to_repair(home: Settings) -> None:
    before = sorted(home.home.rglob("*"))
    found = validate(home, describe, fix=True)
    assert (found.findings, found.repaired) == ((), ())
    assert [verdict.rule for verdict in found.rules] == [rule.name for rule in RULES]
    assert all((v.set_aside, v.in_service, v.origins) == (0, 0, {}) for v in found.rules)
    assert sorted(home.home.rglob("*")) == before


def test_an_empty_home_has_nothing_to_check(settings: Settings) -> None:
    found = validate(settings, describe)
    assert (found.snapshot_id, found.rules, found.findings) == (None, (), ())


def test_tables_are_not_behind_by_events_that_no_table_is_made_of(home: Settings, log: EventLog) -> None:
    trained = PredictorTrained(
        predictor_id="lgbm-1", snapshot_id=log.snapshot().id, artifact_sha256="0" * 64, rows=2, promoted=False
    )
    log.append([event(trained)])
    assert validate(home, describe).findings == ()
    log.append([event(result(batch_size=8)), event(verification(batch_size=8))])
    assert [finding.name for finding in validate(home, describe).findings] == ["tables_behind"]


def test_a_segment_of_a_newer_version_is_named_and_left_alone(
    home: Settings, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as later:
        later.setattr(ResultRecorded, "VERSION", ResultRecorded.VERSION + 1)
        log.append([event(result(batch_size=8))], key="of-tomorrow")
    before = sorted(path for path in home.home.rglob("*") if path.is_file())
    for fix in (False, True):
        [finding] = validate(home, describe, fix=fix).findings
        assert (finding.name, finding.count, finding.repair) == ("segments_unreadable", 1, None)
        assert "of-tomorrow" in finding.what
        assert "upgrade accel-platform" in finding.what
    assert sorted(path for path in home.home.rglob("*") if path.is_file()) == before


def test_rows_set_aside_say_where_they_came_from(home: Settings, log: EventLog) -> None:
    bad = {"provenance": "imported", "samples_ns": (), "latency_mean_ms": 0.0}
    origins = ("/old/a.json", "/old/a.json", "/old/b.json#/x")
    log.append([event(result(**bad, source_path=path)) for path in origins])
    log.append([event(result(device_id=None))])
    publish.refresh(home)
    found = validate(home, describe)
    assert found.findings == ()
    verdicts = {verdict.rule: verdict for verdict in found.rules}
    latency = verdicts["latency_plausible"]
    assert (latency.rows, latency.set_aside, latency.in_service) == (5, 3, 0)
    assert latency.origins == {"/old/a.json": 2, "/old/b.json#/x": 1}
    assert list(latency.origins) == ["/old/a.json", "/old/b.json#/x"]
    assert verdicts["measured_names_device"].origins == {"run-test": 1}


def _broken(home: Settings, log: EventLog, how: str) -> None:
    """Do one kind of damage."""
    serving = require_current(home)
    layer = serving.directory / serving.layers[-1].file
    if how == "behind":
        log.append([event(result(batch_size=8)), event(verification(batch_size=8))])
    elif how == "no pointer":
        (home.warehouse_dir / "CURRENT").unlink()
    elif how == "pointer to nothing":
        (home.warehouse_dir / "CURRENT").write_text("projection-nowhere.json")
    elif how == "layer gone":
        layer.unlink()
    elif how == "block overwritten":
        with layer.open("r+b") as file:
            size = layer.stat().st_size
            for start in range(12_288, size, 4096):
                file.seek(start)
                file.write(b"\xff" * 64)
    elif how == "of another version":
        path = serving.directory / serving.name
        path.write_text(path.read_text().replace(serving.schema_id, "0" * 16))
    else:
        sql = {
            "row doubled": "INSERT INTO result_rows SELECT * FROM result_rows LIMIT 1",
            "event changed": "UPDATE events SET payload = replace(payload, '700.5', '7.5')",
            "rule broken": "UPDATE result_rows SET latency_min_ms = -1",
        }[how]
        with duckdb.connect(layer) as con:
            con.execute(sql)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "finding"),
    [
        ("behind", "tables_behind"),
        ("no pointer", "tables_missing"),
        ("pointer to nothing", "tables_damaged"),
        ("layer gone", "tables_damaged"),
        ("block overwritten", "tables_damaged"),
        ("of another version", "tables_of_another_version"),
        ("row doubled", "tables_differ"),
        ("event changed", "tables_differ"),
        ("rule broken", "rules_broken"),
    ],
)
def test_tables_that_are_not_the_logs_are_made_again(home: Settings, log: EventLog, how: str, finding: str) -> None:
    columns = "* EXCLUDE (result_id, event_id)"
    before = Reader(home).rows(f"SELECT {columns} FROM results ORDER BY batch_size")
    _broken(home, log, how)
    segments = log.snapshot()
    mended = validate(home, describe, fix=True)
    assert mended.findings == ()
    [done] = mended.repaired
    assert finding in done
    assert ("brought up to the log" if how == "behind" else "made again from the log") in done
    rows = Reader(home).rows(f"SELECT {columns} FROM results ORDER BY batch_size")
    assert rows[:2] == before
    assert len(rows) == (3 if how == "behind" else 2)
    assert log.snapshot() == segments


@pytest.mark.slow
def test_tables_of_another_log_are_told_apart_and_made_again(home: Settings) -> None:
    elsewhere = home.model_copy(update={"log_uri": str(home.home / "other-log")})
    EventLog.open(elsewhere).append([event(result(model_id="gpt2"))])
    assert [finding.name for finding in validate(elsewhere, describe).findings][:1] == ["tables_of_another_log"]
    publish.refresh(elsewhere)
    assert Reader(elsewhere).rows("SELECT model_id FROM results") == [{"model_id": "gpt2"}]
    mended = validate(home, describe, fix=True)
    assert mended.findings == ()
    assert "tables_of_another_log: tables made again from the log" in mended.repaired[0]


@pytest.mark.slow
def test_what_a_killed_writer_left_is_removed_and_what_a_living_one_writes_is_not(home: Settings) -> None:
    places = [home.warehouse_dir, *(home.home / "log" / part for part in ("segments", "snapshots"))]
    for place in places:
        (place / ".abandoned.tmp").write_bytes(b"half")
        os.utime(place / ".abandoned.tmp", (time.time() - 7200,) * 2)
        (place / ".being-written.tmp").write_bytes(b"half")
    found = validate(home, describe)
    assert [(f.name, f.count) for f in found.findings] == [("left_overs", len(places))]
    mended = validate(home, describe, fix=True)
    assert mended.findings == ()
    assert len(mended.repaired) == len(places)
    for place in places:
        assert [path.name for path in place.glob(".*.tmp")] == [".being-written.tmp"]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["cut", "emptied", "gone"])
def test_a_damaged_log_is_named_and_the_tables_that_hold_more_stay(home: Settings, how: str) -> None:
    segment = home.home / "log" / "segments" / "first.parquet"
    if how == "gone":
        segment.unlink()
    else:
        os.truncate(segment, 0 if how == "emptied" else segment.stat().st_size // 2)
    serving = require_current(home)
    found = validate(home, describe, fix=True)
    [finding] = found.findings
    assert (finding.name, finding.repair) == ("segments_gone", None)
    assert "first" in finding.what
    assert require_current(home) == serving
    assert [done.partition(" (")[0] for done in found.repaired] == (
        [] if how == "gone" else ["segments_damaged: set segments/first.parquet"]
    )


def test_references_that_lead_nowhere_are_named_and_left(home: Settings, log: EventLog) -> None:
    entry = DocumentImported(
        source_path="/old/a.json", content_sha256="0", format="x", outcome="imported", size_bytes=1, records=2
    )
    ledger = event(entry)
    imported = event(result(provenance="imported", source_path="/old/a.json"), causation_id=ledger.event_id)
    doubt = ResultSuspected(result_id=uuid4(), rule="r", verdict="suspect", evidence="e", confidence=0.5)
    log.append([ledger, imported, event(doubt)])
    publish.refresh(home)
    found = validate(home, describe, fix=True)
    what = {finding.name: finding for finding in found.findings}
    assert what.keys() == {"ledger_miscounts", "doubts_of_no_result"}
    assert "/old/a.json: 2 in the ledger, 1 in the log" in what["ledger_miscounts"].what
    assert {finding.repair for finding in found.findings} == {None}
    assert found.repaired == ()


def test_a_known_model_is_described_and_a_strange_one_is_left(settings: Settings, log: EventLog) -> None:
    log.append([event(result()), event(result(model_id="somebodys-own"))])
    publish.refresh(settings)
    mended = validate(settings, describe, fix=True)
    assert mended.findings == ()
    [done] = mended.repaired
    assert done.startswith("models_undescribed: described bert-base; ")
    models = Reader(settings).rows("SELECT model_id, architecture, parameters FROM models ORDER BY model_id")
    assert [tuple(row.values()) for row in models] == [("bert-base", "bert", 110), ("somebodys-own", None, None)]


def test_a_known_model_that_only_imports_name_is_a_note(settings: Settings, log: EventLog) -> None:
    log.append([event(result(provenance="imported"), source="migrate")])
    publish.refresh(settings)
    found = validate(settings, describe)
    assert found.findings == ()
    assert [(note.name, note.count, note.repair) for note in found.notes] == [("models_undescribed", 1, "describe")]
    mended = validate(settings, describe, fix=True)
    assert (mended.findings, mended.notes) == ((), ())
    assert [done.partition(";")[0] for done in mended.repaired] == ["models_undescribed: described bert-base"]


def test_a_model_that_only_a_pack_names_needs_no_description(settings: Settings, log: EventLog) -> None:
    log.append([event(result(provenance="imported"), source="pack:timm@1")])
    publish.refresh(settings)
    assert validate(settings, describe).findings == ()


class TestCommand:
    def _run(self, settings: Settings, *arguments: str) -> Any:
        return CliRunner().invoke(db.app, ["validate", *arguments, "--home", str(settings.home)])

    def test_a_note_is_printed_and_is_no_failure(self, settings: Settings, log: EventLog) -> None:
        log.append([event(result(provenance="imported"), source="migrate")])
        publish.refresh(settings)
        done = self._run(settings)
        assert done.exit_code == 0, done.output
        assert re.search(r"^note +count +repair +what\n-.*\nmodels_undescribed +1 +desc", done.stdout, re.MULTILINE)
        assert json.loads(self._run(settings, "--json").stdout)["notes"][0]["name"] == "models_undescribed"

    @pytest.mark.slow
    def test_exit_codes_and_words(self, settings: Settings, log: EventLog) -> None:
        log.append([event(result(model_id="bert-tiny")), event(result(device_id=None))])
        publish.refresh(settings)
        wrong = self._run(settings)
        assert wrong.exit_code == 1
        assert "--fix` repairs 1" in str(wrong.exception)
        assert "models_undescribed" in wrong.stdout
        assert "run-test (1)" in wrong.stdout
        fixed = self._run(settings, "--fix", "--json")
        assert fixed.exit_code == 0, fixed.output
        answer = json.loads(fixed.stdout)
        assert answer["findings"] == []
        assert answer["repaired"][0].startswith("models_undescribed: described bert-tiny; ")
        [model] = Reader(settings).rows("SELECT * FROM models WHERE model_id = 'bert-tiny'")
        assert model["parameters"] > 1_000_000
        assert model["flops_per_item"] > 0
        shutil.rmtree(settings.warehouse_dir)
        assert self._run(settings).exit_code == 1
        assert self._run(settings, "--fix").exit_code == 0
