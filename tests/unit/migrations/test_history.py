"""Verdicts over the whole archive, `accel history audit`, and a person's word against a rule."""

from __future__ import annotations

import io
import json
import random
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from accel_platform.cli import app
from accel_platform.cli.data import history
from accel_platform.errors import InvalidInput, LogUnavailable, NotFound
from accel_platform.events import Event, EventLog, codec
from accel_platform.events.compaction import compact
from accel_platform.events.log import AppendResult, Snapshot
from accel_platform.events.types import (
    DocumentImported,
    ImportsChecked,
    ResultRecorded,
    ResultSuspected,
    SuspicionOverruled,
)
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.reader import Reader
from faults import without_rights
from migrations.normalize.path_hints import GivenNames
from migrations.pipeline import batches, cross_document_rules, importer
from migrations.pipeline.cross_document_rules import find_cross_document_suspicions
from migrations.pipeline.importer import OVERDUE_CHECK, migrate
from predictor.serving.measured_loads import measured_loads_in


def web(model: str, platform: str = "webgpu", /, **metrics: float) -> dict[str, Any]:
    return {"model_name": model, "platform": platform, "status": "success", "metrics": metrics}


def write(directory: Path, *documents: dict[str, Any]) -> Path:
    directory.mkdir(exist_ok=True)
    for document in documents:
        name = f"{len(list(directory.iterdir()))}.json"
        (directory / name).write_text(json.dumps(document))
    return directory


class CutLog(EventLog):
    """The log of a process that dies: from the `last`-th append on nothing is stored. It counts all appends."""

    last = 10**6
    appends = 0

    def append_rows(self, rows: Sequence[codec.Row], *, key: str | None = None) -> AppendResult:
        self.appends += 1
        if self.appends > self.last:
            raise LogUnavailable("The process was killed.")
        return super().append_rows(rows, key=key)


def cut_log(home: Path, last: int = 10**6) -> CutLog:
    log = CutLog.open(Settings(home=home))
    assert isinstance(log, CutLog)
    log.last = last
    return log


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
        assert (migrate([old], log).events, find_cross_document_suspicions(log)) == (0, [])

    def test_copies_over_hardware_in_several_files(self, tmp_path: Path, log: EventLog) -> None:
        migrate([write(tmp_path / "old", web("gpt2", **CONSTANT), web("gpt2", "webnn", **CONSTANT))], log)
        assert {m.rule for m in marks(log)} == {"identical_over_archive"}

    def test_one_run_in_several_files_counts_once(self, tmp_path: Path, log: EventLog) -> None:
        """Written again in another form, labelled later, and inside the record of the whole batch."""
        cell = {"latencies_ms": [9.1, 9.2, 9.3], "throughput_items_per_second": 108.7}
        run = {"model": "gpt2", "hardware": "cpu", "timestamp": "2025-03-03T10:11:12", "batch_results": {"1": cell}}
        stated = {**run, "batch_results": {"1": {"avg_latency_ms": 9.2}}}
        batch = {"models": ["gpt2"], "results": {"gpt2": {"benchmark_data": {**run, "hardware": "CPU"}}}}
        old = tmp_path / "old"
        old.mkdir()
        texts = [json.dumps({**run, "simulated_hardware": ["cpu"]}), json.dumps(run), json.dumps(run, indent=4) + "\n"]
        texts += [json.dumps(batch), json.dumps(stated), json.dumps(stated, indent=1).replace("\n", "\r\n")]
        for number, text in enumerate(texts):
            (old / f"{number}.json").write_bytes(text.encode())
        report = migrate([old], log)
        assert (report.records, report.suspected_across) == (6, 4)
        assert {m.rule for m in marks(log)} == {"copied_result"}
        copies = {m.result_id: m.evidence for m in marks(log)}
        for event in log.read(types={"ResultRecorded"}):
            assert isinstance(event.payload, ResultRecorded)
            number = Path(event.payload.source_path.partition("#")[0]).stem
            counts = {"1": None, "4": None, "5": "4.json"}.get(number, "1.json")
            assert (counts is None) == (event.event_id not in copies), number
            assert (counts or "") in copies.get(event.event_id, "")
        coarse = {**run, "batch_results": {"1": {"latencies_ms": [9, 9, 10, 9, 9, 11, 9]}}}
        for time in ("2025-03-03T10:11:13", "2025-03-03T10:11:14", None):
            for name, document in (("again", stated), ("coarse", coarse)):
                (old / f"{name}-{time}.json").write_text(json.dumps({**document, "timestamp": time}))
        (old / "coarse.json").write_text(json.dumps({**coarse, "timestamp": None}, indent=2))
        assert migrate([old], log).suspected_across == 0, "another run may take as long"
        untimed = {**run, "timestamp": None, "batch_results": {"1": {"latencies_ms": [9.1, 9.2, 9.3, 9.4, 9.6]}}}
        for indent in (1, 2):
            (old / f"untimed-{indent}.json").write_text(json.dumps(untimed, indent=indent))
        assert migrate([old], log).suspected_across == 1

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


class TestInterruptedImports:
    """A check across documents that an import did not reach is made by the next one, whatever that one reads."""

    @pytest.fixture
    def old(self, tmp_path: Path) -> Path:
        models = ("gpt2", "t5-small", "bert-base-uncased")
        copies = (
            web("gpt2", p, inference_time_ms=33.25, throughput_items_per_second=30.5) for p in ("webgpu", "webnn")
        )
        return write(tmp_path / "old", *(web(model, **CONSTANT) for model in models), *copies)

    @pytest.fixture
    def other(self, tmp_path: Path) -> Path:
        return write(tmp_path / "other", web("vit-base", inference_time_ms=12.5))

    def test_cut_at_any_append_the_next_import_finds_the_same(
        self, tmp_path: Path, old: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(batches, "MAX_EVENTS", 2)
        whole = cut_log(tmp_path / "whole")
        report = migrate([old], whole)
        wanted = sorted(marks(whole), key=str)
        assert (report.suspected_across, len(wanted), report.overdue_check) == (5, 5, False)
        assert whole.appends >= 4, "several batches of documents, and the check"
        for last in range(whole.appends):
            home = tmp_path / f"cut-{last}"
            with pytest.raises(LogUnavailable):
                migrate([old], cut_log(home, last))
            assert marks(cut_log(home)) == []
            log = cut_log(home)
            assert migrate([old], log).overdue_check == (last > 0), "nothing is overdue where nothing was stored"
            assert sorted(marks(log), key=str) == wanted, f"cut after {last} appends"
            again = migrate([old], log)
            assert (again.events, again.overdue_check) == (0, False)

    def test_an_import_of_something_else_makes_the_check_and_says_so(
        self, tmp_path: Path, old: Path, other: Path
    ) -> None:
        home = tmp_path / "home"
        migrate([other], cut_log(home))
        with pytest.raises(LogUnavailable):
            migrate([old], cut_log(home, last=1))
        assert marks(cut_log(home)) == []
        dry = migrate([other], cut_log(home), dry_run=True)
        assert (dry.overdue_check, dry.suspected_across, dry.events) == (False, 0, 0)
        answer = CliRunner().invoke(app, ["migrate", str(other), "--home", str(home)])
        assert answer.exit_code == 0, answer.output
        assert "1 already imported. Brought in 0 records" in answer.output
        assert f"Over several files: 5 more suspicions. {OVERDUE_CHECK}" in answer.output
        assert len(marks(cut_log(home))) == 5
        answer = CliRunner().invoke(app, ["migrate", str(other), "--home", str(home)])
        assert OVERDUE_CHECK not in answer.output

    def test_a_log_without_records_of_checks_is_checked_once(self, tmp_path: Path, old: Path, other: Path) -> None:
        """As earlier versions wrote it: suspicions in a segment of the import, and no record."""
        log = cut_log(tmp_path / "home", last=1)
        with pytest.raises(LogUnavailable):
            migrate([old], log)
        log.last = 10**6
        log.append(find_cross_document_suspicions(log), key="import-0123456789abcdef0123456789abcdef")
        first, second = migrate([other], log), migrate([other], log)
        assert (first.suspected_across, first.overdue_check) == (0, True)
        assert (second.events, second.overdue_check) == (0, False)
        assert len(marks(log)) == 5

    def test_two_processes_that_check_at_once_double_nothing(
        self, tmp_path: Path, old: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        home = tmp_path / "home"
        with pytest.raises(LogUnavailable):
            migrate([old], cut_log(home, last=1))
        look = cross_document_rules.find_cross_document_suspicions

        def overtaken(log: EventLog, snapshot: Snapshot) -> list[Event]:
            found = look(log, snapshot)
            monkeypatch.setattr(importer, "find_cross_document_suspicions", look)
            assert migrate([old], cut_log(home)).suspected_across == 5
            return found

        monkeypatch.setattr(importer, "find_cross_document_suspicions", overtaken)
        assert migrate([old], cut_log(home)).events == 0
        assert len(marks(cut_log(home))) == 5

    @pytest.mark.parametrize("fault", ["damaged", "forbidden"])
    def test_a_segment_that_cannot_be_read_leaves_the_check_due(
        self, tmp_path: Path, old: Path, other: Path, fault: str
    ) -> None:
        log = cut_log(tmp_path / "home", last=1)
        with pytest.raises(LogUnavailable):
            migrate([old], log)
        log.last = 10**6
        [segment] = (tmp_path / "home" / "log" / "segments").glob("*.parquet")
        whole = segment.read_bytes()
        if fault == "damaged":
            segment.write_bytes(whole[: len(whole) // 3] + bytes(200) + whole[len(whole) // 3 + 200 :])
        else:
            segment.chmod(0)
        sound = write(tmp_path / "sound", web("t5-small", inference_time_ms=7.3))
        expected = (
            r"[^.]\. Restore it from a copy, .*--fix --from BACKUP"
            if fault == "damaged"
            else "Give this user the rights"
        )
        with without_rights(tmp_path / "home", 0o700):
            with pytest.raises(LogUnavailable, match=expected):
                migrate([sound], log)
            with pytest.raises(LogUnavailable, match=f"{expected}.*What was imported stays"):
                find_cross_document_suspicions(log)
        segment.chmod(0o644)
        segment.write_bytes(whole)
        assert migrate([other], log).overdue_check
        assert len(list(log.read(types={"ResultRecorded"}))) > 1

    def test_new_rules_check_every_log_once_more(
        self, tmp_path: Path, old: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log, now = cut_log(tmp_path / "home"), cross_document_rules.RULES_VERSION
        migrate([old], log)
        monkeypatch.setattr(cross_document_rules, "RULES_VERSION", 99)
        assert migrate([old], log).overdue_check
        assert not migrate([old], log).overdue_check
        assert {e.payload.rules_version for e in log.read(types={"ImportsChecked"})} == {now, 99}

    def test_documents_without_results_cost_no_look_at_history(
        self, tmp_path: Path, old: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = cut_log(tmp_path / "home")
        migrate([old], log)

        def look(*_: object) -> list[Event]:
            raise AssertionError("The whole log was looked at.")

        monkeypatch.setattr(importer, "find_cross_document_suspicions", look)
        (old / "notes.txt").write_text("Measured on a Tuesday.")
        assert migrate([old], log).found == 6
        assert migrate([old], log).events == 0
        checks = [e.payload for e in log.read(types={"ImportsChecked"}) if isinstance(e.payload, ImportsChecked)]
        assert sorted((check.segments, check.suspicions) for check in checks) == [(1, 5), (2, 0)]

    def test_the_record_of_a_check_survives_compaction(self, tmp_path: Path, old: Path, other: Path) -> None:
        log = cut_log(tmp_path / "home")
        migrate([old], log)
        migrate([other], log)
        assert compact(log, grace_s=0).packed
        again = migrate([old, other], cut_log(tmp_path / "home"))
        assert (again.events, again.overdue_check) == (0, False)


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
        for table in ("suspicion_overrides", "overrulings"):  # its former name
            assert reader.rows(f"SELECT overruled_by, reason FROM {table}") == [
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


def test_the_audit_counts_and_gives_reasons(
    tmp_path: Path, settings: Settings, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    monkeypatch.setenv("COLUMNS", "100")
    narrow = CliRunner().invoke(history.app, ["audit", "--home", str(settings.home)]).stdout
    assert max(map(len, narrow.splitlines())) <= 100
    assert f"constant_over_archive: {verdict['reasons'][0]['reason']}, such as in " in " ".join(narrow.split())


class TestGivenDevice:
    """A report that names no device, as GuideLLM writes it, and a person who knows it."""

    REPORT = Path(__file__).parents[2] / "data" / "formats" / "guidellm.json"

    def test_a_report_is_read_again_with_its_device_and_nothing_is_held_against_it(
        self, tmp_path: Path, log: EventLog
    ) -> None:
        old = tmp_path / "old"
        old.mkdir()
        (old / "report.json").write_bytes(self.REPORT.read_bytes())
        write(old, web("gpt2", inference_time_ms=7.3))
        first = migrate([old], log)
        assert "--device 'NVIDIA L40S'" in str([document.reason for document in first.documents])
        again = migrate([old], log, given=GivenNames("NVIDIA L40S"))
        assert (again.records, again.outcomes["already_imported"], again.suspected_across) == (3, 1, 0)
        named = [e.payload for e in log.read(types={"ResultRecorded"}) if isinstance(e.payload, ResultRecorded)]
        assert sorted(r.device_name or "" for r in named if r.source_path.startswith(str(old / "report"))) == [
            "", "", "", *["NVIDIA L40S"] * 3,
        ]  # fmt: skip
        assert marks(log) == []
        assert migrate([old], log, given=GivenNames("NVIDIA L40S")).events == 0

    @pytest.mark.parametrize(
        "name",
        ["guidellm.json", "llmperf.json", "ort_perf_test.txt", "perf_analyzer_console.txt", "trtexec.log",
         "skill_run.json"],
    )  # fmt: skip
    def test_every_result_that_may_be_of_the_device_has_its_whole_name(
        self, tmp_path: Path, log: EventLog, name: str
    ) -> None:
        (tmp_path / name).write_bytes((self.REPORT.parent / name).read_bytes())
        migrate([tmp_path / name], log, given=GivenNames("NVIDIA A100 SXM4 40GB"))
        results = [e.payload for e in log.read(types={"ResultRecorded"}) if isinstance(e.payload, ResultRecorded)]
        on_gpus = {r.device_name for r in results if r.hardware == "cuda"}
        assert "NVIDIA A100 SXM4 40GB" in on_gpus
        assert on_gpus.isdisjoint((None, "A100"))
        assert {r.device_name for r in results if r.hardware == "cpu"} <= {None}

    def test_a_load_of_a_given_engine_is_a_measured_load(
        self, tmp_path: Path, log: EventLog, settings: Settings
    ) -> None:
        (tmp_path / "report.json").write_bytes(self.REPORT.read_bytes())
        first = migrate([tmp_path / "report.json"], log, given=GivenNames("NVIDIA L40S"))
        [reason] = [document.reason for document in first.documents]
        assert reason == (
            "1 load names no engine, and `accel serving` uses no load without one: "
            "give it by `accel migrate FILE --device 'NVIDIA L40S' --engine vllm`"
        )
        refresh(settings)
        assert measured_loads_in(Reader(settings)) == []
        both = GivenNames("NVIDIA L40S", "vLLM")
        again = migrate([tmp_path / "report.json"], log, given=both)
        assert [(document.records, document.reason) for document in again.documents] == [(3, None)]
        refresh(settings)
        [load] = measured_loads_in(Reader(settings))
        assert (load.deployment.engine, load.deployment.device.name) == ("vllm", "NVIDIA L40S")
        assert marks(log) == []
        assert migrate([tmp_path / "report.json"], log, given=both).events == 0
        for part in (GivenNames("NVIDIA L4"), GivenNames(engine="sglang")):
            kept = migrate([tmp_path / "report.json"], log, given=part)
            assert (kept.events, kept.documents[0].reason) == (0, reason), "the other name would be lost"
        with pytest.raises(InvalidInput, match="--engine is empty"):
            migrate([tmp_path], log, given=GivenNames(engine=" "))

    def test_members_of_archives_are_read_again_with_their_device(self, tmp_path: Path, log: EventLog) -> None:
        inner = io.BytesIO()
        with tarfile.open(fileobj=inner, mode="w:gz") as tar:
            about = tarfile.TarInfo("report.json")
            about.size = self.REPORT.stat().st_size
            tar.addfile(about, io.BytesIO(self.REPORT.read_bytes()))
        path = tmp_path / "old.zip"
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("runs.tar.gz", inner.getvalue())
            archive.writestr("named.json", json.dumps(web("gpt2", inference_time_ms=7.3)))
        assert migrate([path], log).records == 4
        again = migrate([path], log, given=GivenNames("NVIDIA L40S"))
        assert again.records == 3, "the other member names its device"
        named = [
            e.payload.device_name for e in log.read(types={"ResultRecorded"}) if isinstance(e.payload, ResultRecorded)
        ]
        assert named.count("NVIDIA L40S") == 3
        assert marks(log) == []
        assert migrate([path], log, given=GivenNames("NVIDIA L40S")).events == 0
        assert migrate([path], log).events == 0
        # Another device supersedes the newest reading.
        assert migrate([path], log, given=GivenNames("NVIDIA L4")).records == 3
        entries = [e.payload for e in log.read(types={"DocumentImported"}) if isinstance(e.payload, DocumentImported)]
        reports = [entry for entry in entries if entry.source_path.endswith("report.json")]
        assert len({entry.supersedes for entry in reports}) == len(reports) == 3

    def test_what_names_its_device_keeps_it(self, tmp_path: Path, log: EventLog) -> None:
        migrate([write(tmp_path / "old", web("gpt2", inference_time_ms=7.3))], log, given=GivenNames("NVIDIA L40S"))
        [recorded] = log.read(types={"ResultRecorded"})
        assert isinstance(recorded.payload, ResultRecorded)
        assert recorded.payload.hardware == "webgpu"

    def test_a_name_of_no_device_is_refused(self, tmp_path: Path, log: EventLog) -> None:
        with pytest.raises(InvalidInput, match="'mystery' names no device"):
            migrate([tmp_path], log, given=GivenNames("mystery"))
