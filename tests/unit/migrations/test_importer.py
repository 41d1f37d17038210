"""Files into the log: every one accounted for, once, whatever it holds and however often it is asked."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from collections import Counter
from pathlib import Path
from typing import TypeVar

import pytest
import typer
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner
from uuid_utils.compat import uuid7

from accel_platform.cli.data.migrate import migrate as command
from accel_platform.cli.options import CommandApp
from accel_platform.errors import InvalidInput
from accel_platform.events import EventLog, codec
from accel_platform.events.types import DocumentImported, RecordQuarantined, ResultRecorded
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.reader import Reader
from migrations.formats import all_formats
from migrations.pipeline import document_reader
from migrations.pipeline.document_reader import read_document
from migrations.pipeline.importer import ImportReport, migrate
from migrations.sources.documents import load, parse
from migrations.suspicion.claims import NO_CLAIMS
from migrations.suspicion.statistics import has_other_figure

REPOSITORY = Path(__file__).parents[3]
SAMPLES = REPOSITORY / "samples" / "legacy"
FIXTURES = REPOSITORY / "tests" / "data" / "formats"
ARCHIVE = REPOSITORY.parent / "shared" / "data" / "legacy"


STATED = re.compile(
    r'"[a-z_]*(latency|throughput|inference_time|avg_time|average_time|elapsed_time|generation_time|memory_peak)[a-z_]*"'
    r": ?\[?\s*[0-9.]*[1-9]"
)
"""A figure of speed, other than zero, as the old framework's files write it."""

P = TypeVar("P")


def payloads(log: EventLog, kind: type[P]) -> list[P]:
    return [event.payload for event in log.read(types={kind.__name__}) if isinstance(event.payload, kind)]


def check_accounts(report: ImportReport, log: EventLog, files: int) -> None:
    """The books: one report row per file, one ledger event per file, outcomes and counts that add up."""
    assert report.found == files == len(report.documents) == sum(report.outcomes.values())
    entries = payloads(log, DocumentImported)
    every = [inside for document in report.documents for inside in document.all()]
    assert Counter(e.source_path for e in entries) == Counter(d.source_path for d in every)
    assert sum(report.embedded.values()) == len(every) - files
    events = list(log.read())
    caused = Counter((e.causation_id, e.type) for e in events if e.causation_id)
    by_id = {e.event_id: e.payload for e in events if isinstance(e.payload, DocumentImported)}
    for event_id, entry in by_id.items():
        assert entry.records == caused[event_id, "ResultRecorded"]
        assert (entry.outcome == "quarantined") <= (caused[event_id, "RecordQuarantined"] > 0)
        assert entry.reason or entry.outcome == "imported"
    assert sum(n for (_, kind), n in caused.items() if kind == "ResultRecorded") == report.records
    results = payloads(log, ResultRecorded)
    assert sum(r.status != "ok" for r in results) == report.failures
    assert sum(r.provenance != "imported" for r in results) == report.suspects


def test_fixtures_go_in_whole_and_the_books_add_up(log: EventLog) -> None:
    files = len(list(FIXTURES.iterdir()))
    report = migrate([FIXTURES], log)
    check_accounts(report, log, files)
    without = sum(format_.not_results is not None for format_ in all_formats())
    assert report.outcomes == {"imported": files - without, "not_results": without}
    assert set(report.embedded) == {"imported"}
    assert report.events == len(list(log.read()))


def test_what_stands_beside_the_json_is_kept_with_it(log: EventLog, tmp_path: Path) -> None:
    rows = (FIXTURES / "llama_bench.jsonl").read_text()
    (tmp_path / "runs.json").write_text(f'{rows}{{"half": [1, ')
    report = migrate([tmp_path], log)
    assert report.outcomes == {"imported": 1}
    (entry,) = payloads(log, DocumentImported)
    assert "lines that are no JSON" in (entry.reason or "")
    (record,) = payloads(log, RecordQuarantined)
    assert record.rule == "other_lines"
    assert record.content.splitlines()[0] == "ggml_cuda_init: found 1 ROCm devices:"
    assert record.content.endswith('{"half": [1,')


def test_text_with_figures_that_no_reader_knows_is_kept_whole(log: EventLog, tmp_path: Path) -> None:
    (tmp_path / "run.log").write_text("my own benchmark\nlatency: 12.5 ms\n")
    (tmp_path / "notes.txt").write_text("nothing to see here\n")
    report = migrate([tmp_path], log)
    assert report.outcomes == {"quarantined": 1, "not_results": 1}
    (record,) = payloads(log, RecordQuarantined)
    assert record.content == "my own benchmark\nlatency: 12.5 ms\n"


def test_a_second_run_writes_nothing(log: EventLog) -> None:
    first = migrate([FIXTURES], log)
    before = log.snapshot()
    second = migrate([FIXTURES / "../formats"], log)
    assert log.snapshot() == before
    assert second.outcomes == {"already_imported": first.found}
    assert (second.records, second.events) == (0, 0)
    assert [(d.source_path, d.outcome, d.records) for d in second.documents] == [
        (d.source_path, d.outcome, d.records) for d in first.documents
    ]


def test_equal_content_elsewhere_is_a_duplicate_and_linked(tmp_path: Path, log: EventLog) -> None:
    old = tmp_path / "old"
    old.mkdir()
    for name in ("a.json", "b.json", "c.json"):
        (old / name).write_bytes((FIXTURES / "direct_benchmark.json").read_bytes())
    report = migrate([old / "a.json", old / "b.json"], log)
    check_accounts(report, log, 2)
    assert [d.outcome for d in report.documents] == ["imported", "duplicate"]
    assert str(old / "a.json") in (report.documents[1].reason or "")
    later = migrate([old], log)
    assert later.outcomes == {"already_imported": 2, "duplicate": 1}
    assert [d.already for d in later.documents] == [True, True, False]
    assert migrate([old], log).events == 0


def test_a_dry_run_writes_nothing_and_foretells_the_real_one(tmp_path: Path, log: EventLog) -> None:
    (tmp_path / "copy.csv").write_bytes((FIXTURES / "suite_csv.csv").read_bytes())
    paths = [FIXTURES, tmp_path / "copy.csv"]
    dry = migrate(paths, log, dry_run=True)
    assert not log.snapshot().segments
    real = migrate(paths, log)
    assert (dry.outcomes, dry.records, dry.failures, dry.suspects) == (
        real.outcomes,
        real.records,
        real.failures,
        real.suspects,
    )
    assert real.outcomes["duplicate"] == 1


def test_what_is_quarantined_is_kept_whole_and_says_what_it_is(tmp_path: Path, log: EventLog) -> None:
    (tmp_path / "unknown.json").write_text('{"experiment": "x", "timings": [1, 2]}')
    (tmp_path / "cut.json").write_text('{"init": "Success", "cpu": ')
    (tmp_path / "image.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    report = migrate([tmp_path / name for name in ("unknown.json", "cut.json", "image.png")], log)
    check_accounts(report, log, 3)
    unknown, cut, image = payloads(log, RecordQuarantined)[:3]
    kept = {Path(q.source_path).name: q for q in (unknown, cut, image)}
    assert kept["unknown.json"].content == '{"experiment": "x", "timings": [1, 2]}'
    assert "experiment: text, timings: [2 x number]" in kept["unknown.json"].reason
    assert "invalid JSON" in kept["cut.json"].reason
    assert kept["image.png"].content.startswith("base64:")


@pytest.mark.parametrize(
    "content",
    [
        b'{"model": "gpt2", "hardware": "cpu", "batch_results": {"1": {"avg_latency_ms": 5.5, "device": "\\ud800 x"}}}',
        b'{"unknown \\udfff": 1}',
        b'{"a": 1}\n{"a": "\\ud800"}',
        b'{"model": "gpt2", "hardware": "cpu", "batch_results": {"1": {"avg_latency_ms": NaN, "device": "\\u0000"}}}',
    ],
)
def test_text_that_no_table_can_hold_is_stored_escaped(tmp_path: Path, log: EventLog, content: bytes) -> None:
    name = tmp_path / os.fsdecode(b"odd-\xff.json")
    name.write_bytes(content)
    report = migrate([name], log)
    check_accounts(report, log, 1)
    assert report.documents[0].source_path.endswith("odd-\\xff.json")
    assert migrate([name], log).outcomes == {"already_imported": 1}


def test_a_large_unknown_document_keeps_its_beginning_and_says_so(
    tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_reader, "MAX_QUARANTINE_CHARACTERS", 20)
    (tmp_path / "big.json").write_text(json.dumps({"x": "y" * 100}))
    migrate([tmp_path / "big.json"], log)
    (kept,) = payloads(log, RecordQuarantined)
    assert len(kept.content) == 20
    assert "the rest is in the file" in kept.reason


def test_refused_cells_are_kept_beside_the_imported_ones(tmp_path: Path, log: EventLog) -> None:
    migrate([FIXTURES / "direct_benchmark.json"], log)
    (kept,) = payloads(log, RecordQuarantined)
    assert (kept.pointer, kept.rule, kept.content) == ("/batch_results/4", "unexpected_shape", '"not run"')
    (entry,) = payloads(log, DocumentImported)
    assert (entry.outcome, entry.records, entry.failures) == ("imported", 2, 1)
    assert "1 cell refused" in (entry.reason or "")


def test_a_document_of_refused_cells_alone_is_quarantined(tmp_path: Path, log: EventLog) -> None:
    (tmp_path / "a.json").write_text('{"model": "gpt2", "hardware": "abacus", "batch_results": {"1": {}}}')
    report = migrate([tmp_path / "a.json"], log)
    check_accounts(report, log, 1)
    assert report.outcomes == {"quarantined": 1}


def test_times_stand_in_the_envelope_only_with_a_zone(log: EventLog) -> None:
    migrate([FIXTURES / "direct_benchmark.json"], log)
    seen = set()
    for event in log.read(types={"ResultRecorded"}):
        assert isinstance(event.payload, ResultRecorded)
        seen.add((event.payload.batch_size, event.occurred_at is None, event.payload.occurred_local is None))
    assert seen == {(1, True, False), (2, False, True)}


def test_no_imported_row_is_taken_for_this_host(log: EventLog) -> None:
    migrate([FIXTURES], log)
    for event in log.read(types={"ResultRecorded"}):
        assert isinstance(event.payload, ResultRecorded)
        assert event.host_id is None or event.host_id.startswith("imported-")
        assert event.payload.device_id is None or event.payload.device_id.startswith("imported-")


def test_a_reader_that_fails_costs_its_document_only(
    tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> list[object]:
        raise KeyError("rule")

    monkeypatch.setattr(document_reader, "apply_rules", broken)
    report = migrate([FIXTURES / "suite_csv.csv", FIXTURES / "suite_config.json"], log)
    check_accounts(report, log, 2)
    assert report.outcomes == {"quarantined": 1, "not_results": 1}
    assert "the reader suite_csv failed: KeyError" in (report.documents[0].reason or "")


def test_another_process_with_the_same_files_stores_the_same_segment(
    log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = EventLog.open(Settings(home=Path(log.location).parent))
    real = log.append_rows

    def late(rows: list[codec.Row], *, key: str) -> object:
        migrate([FIXTURES / "suite_csv.csv"], other)
        return real(rows, key=key)

    monkeypatch.setattr(log, "append_rows", late)
    assert migrate([FIXTURES / "suite_csv.csv"], log).events == 0
    assert len(payloads(log, DocumentImported)) == 1


def counted(home: Path) -> dict[str, int]:
    """Rows of the warehouse's tables of an import."""
    settings = Settings(home=home)
    refresh(settings)
    tables = ("results", "import_ledger", "quarantine", "suspicions")
    return {table: Reader(settings).rows(f"SELECT count(*) AS n FROM {table}")[0]["n"] for table in tables}


@pytest.mark.slow
def test_killed_half_way_or_twice_at_once_nothing_is_lost_and_nothing_doubled(tmp_path: Path) -> None:
    old = tmp_path / "old"
    old.mkdir()
    card = json.loads((FIXTURES / "direct_benchmark.json").read_text())
    for i in range(60):
        (old / f"{i:03}.json").write_text(json.dumps({**card, "note": i}))
    (old / "rows.csv").write_bytes((FIXTURES / "suite_csv.csv").read_bytes())
    alone = EventLog.open(Settings(home=tmp_path / "alone"))
    migrate([old], alone)
    code = f"""
        import sys
        from pathlib import Path
        from accel_platform.events import EventLog
        from accel_platform.settings import Settings
        from migrations.pipeline import batches
        from migrations.pipeline.importer import migrate
        batches.MAX_AGE_S, batches.MAX_EVENTS = 0.05, int(sys.argv[1])
        log = EventLog.open(Settings(home=Path({str(tmp_path / "home")!r})))
        migrate([Path({str(old)!r})], log, on_progress=lambda n, total, document: print(n, flush=True))
    """

    def start(most_events: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", textwrap.dedent(code), str(most_events)]
        return subprocess.Popen(command, cwd=REPOSITORY, stdout=subprocess.PIPE, text=True)

    for kill_after, most_events in ((9, 3), (25, 7)):
        process = start(most_events)
        assert process.stdout is not None
        for _ in range(kill_after):
            assert process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)
        process.stdout.close()
        process.wait()
        # What was projected in between must not count again either.
        assert 0 < counted(tmp_path / "home")["import_ledger"] < 61
    both = [start(5), start(11)]
    for process in both:
        process.communicate()
    assert [process.returncode for process in both] == [0, 0]
    assert counted(tmp_path / "home") == counted(tmp_path / "alone")
    again = migrate([old], EventLog.open(Settings(home=tmp_path / "home")))
    assert (again.outcomes, again.events) == ({"already_imported": 61}, 0)


def test_a_log_of_one_segment_per_document_is_known(log: EventLog, tmp_path: Path) -> None:
    """As earlier versions of this platform wrote it: random ids, segments named after the content."""
    (tmp_path / "a.csv").write_bytes((FIXTURES / "suite_csv.csv").read_bytes())
    (tmp_path / "b.csv").write_bytes((FIXTURES / "suite_csv.csv").read_bytes())
    found = read_document(parse(load(tmp_path / "a.csv")), NO_CLAIMS)
    events = [found.event, *codec.from_arrow(codec.rows_to_arrow(found.rows).to_batches())]
    ids = {event.event_id: uuid7() for event in events}
    renamed = [
        event.model_copy(update={"event_id": ids[event.event_id], "causation_id": ids.get(event.causation_id)})
        for event in events
    ]
    log.append(renamed, key=f"import-{found.entry.content_sha256[:32]}")
    report = migrate([tmp_path / "a.csv", tmp_path / "b.csv"], log)
    assert report.outcomes == {"already_imported": 1, "duplicate": 1}
    assert report.events == 2, "the duplicate, and the record of the check across documents"
    assert report.overdue_check


@given(
    edits=st.lists(st.tuples(st.floats(0, 1), st.binary(max_size=6), st.integers(0, 40)), min_size=1, max_size=4),
    name=st.sampled_from(sorted(path.name for path in FIXTURES.iterdir())),
)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_mangled_file_is_accounted_for(tmp_path: Path, edits: list[tuple[float, bytes, int]], name: str) -> None:
    raw = (FIXTURES / name).read_bytes()
    for place, inserted, removed in edits:
        at = int(place * len(raw))
        raw = raw[:at] + inserted + raw[at + removed :]
    run = tmp_path / str(time.monotonic_ns())
    run.mkdir()
    (run / name).write_bytes(raw)
    (run / "again").write_bytes(raw)
    log = EventLog.open(Settings(home=run / "home"))
    report = migrate([run / name, run / "again"], log)
    check_accounts(report, log, 2)
    assert report.outcomes.get("duplicate") == 1
    for result in payloads(log, ResultRecorded):
        stated = result.samples_ns or result.latency_mean_ms or result.latency_p50_ms
        has_figure = stated or result.throughput_items_per_s or has_other_figure(result)
        assert result.status != "ok" or result.provenance != "imported" or has_figure


class TestSamples:
    """The files this repository ships."""

    @pytest.fixture(scope="class")
    @staticmethod
    def imported(tmp_path_factory: pytest.TempPathFactory) -> tuple[ImportReport, EventLog]:
        log = EventLog.open(Settings(home=tmp_path_factory.mktemp("home")))
        return migrate([SAMPLES], log), log

    def test_all_are_accounted_for(self, imported: tuple[ImportReport, EventLog]) -> None:
        report, log = imported
        check_accounts(report, log, len([path for path in SAMPLES.rglob("*") if path.is_file()]))
        assert set(report.outcomes) == {"imported", "duplicate", "not_results", "quarantined"}

    def test_the_measured_ones_are_believed_and_the_liars_are_not(
        self, imported: tuple[ImportReport, EventLog]
    ) -> None:
        _, log = imported
        believed: set[tuple[str, str]] = set()
        doubted: set[tuple[str, str]] = set()
        for result in payloads(log, ResultRecorded):
            if result.status == "ok":
                folder = Path(result.source_path or "").parent.name
                (believed if result.provenance == "imported" else doubted).add((folder, result.hardware))
        assert {folder for folder, _ in doubted} == {"cards", "invented", "relabelled"}
        assert ("relabelled", "cpu") in believed
        assert {("relabelled", "cuda"), ("relabelled", "openvino")} <= doubted
        assert {folder for folder, _ in believed} == {
            "hardware-benchmark", "direct-benchmark", "documented", "csv", "relabelled"
        }  # fmt: skip

    def test_they_feed_a_predictor(self, imported: tuple[ImportReport, EventLog]) -> None:
        rows = [r for r in payloads(imported[1], ResultRecorded) if r.provenance == "imported" and r.status == "ok"]
        assert len(rows) >= 120
        assert len({r.model_family for r in rows}) >= 9
        assert {r.hardware for r in rows} == {"cpu", "openvino", "onnxruntime"}
        assert sum(path.stat().st_size for path in SAMPLES.rglob("*") if path.is_file()) < 300_000


@pytest.mark.skipif(not ARCHIVE.is_dir(), reason=f"the archive of real files is not at {ARCHIVE}")
class TestArchive:
    """Real files of other people; not part of the repository."""

    @pytest.fixture(scope="class")
    @staticmethod
    def imported(tmp_path_factory: pytest.TempPathFactory) -> tuple[ImportReport, EventLog]:
        log = EventLog.open(Settings(home=tmp_path_factory.mktemp("home")))
        return migrate([ARCHIVE], log), log

    def test_all_are_accounted_for(self, imported: tuple[ImportReport, EventLog]) -> None:
        report, log = imported
        check_accounts(report, log, len([path for path in ARCHIVE.rglob("*") if path.is_file()]))
        assert not [d for d in report.documents if "the reader" in (d.reason or "")]

    def test_the_formats_with_a_reader_are_all_read(self, imported: tuple[ImportReport, EventLog]) -> None:
        outcomes: Counter[tuple[str, str, str]] = Counter()
        for document in imported[0].documents:
            kind = Path(document.source_path).relative_to(ARCHIVE).parts[0].split("-")[1]
            outcomes[kind, document.format, document.outcome] += 1
        assert {key for key in outcomes if key[0][0] in "ABCDEFGX" and key[0][1].isdigit()} == {
            ("A1", "hardware_benchmark", "imported"),
            ("A2", "hardware_summary", "imported"),
            ("A2", "hardware_summary", "quarantined"),
            ("A3", "compatibility_matrix", "imported"),
            ("A3", "compatibility_matrix", "not_results"),
            ("A4", "suite_results", "imported"),
            ("A4", "suite_results", "quarantined"),
            ("A5", "duplicate", "duplicate"),
            ("A5", "functionality_check", "imported"),
            ("A6", "suite_config", "not_results"),
            ("B1", "skill_performance", "imported"),
            ("B3", "skill_run", "imported"),
            ("B3", "skill_run", "not_results"),
            ("B4", "skill_run", "imported"),
            ("B4", "skill_run", "not_results"),
            ("C1", "batch_size_card", "imported"),
            ("C2", "direct_benchmark", "imported"),
            ("C3", "batch_benchmarks", "imported"),
            ("C4", "benchmark_progress", "not_results"),
            ("D1", "web_platform_result", "imported"),
            ("D5", "browser_capabilities", "not_results"),
            ("E1", "pipeline_benchmark", "imported"),
            ("E2", "skill_results", "imported"),
            ("E2", "skill_results", "quarantined"),
            ("E3", "skill_collection", "imported"),
            ("E3", "skill_results", "imported"),
            ("F1", "flat_records", "imported"),
            ("F2", "flat_records", "quarantined"),
            ("F4", "suite_csv", "imported"),
            ("G1", "api_tests", "not_results"),
            ("G5", "coverage_report", "not_results"),
            ("X1", "unknown", "quarantined"),
        }

    def test_no_figure_of_a_source_is_lost(self, imported: tuple[ImportReport, EventLog]) -> None:
        figures: dict[str, int] = {}
        for result in payloads(imported[1], ResultRecorded):
            path = (result.source_path or "").partition("#")[0]
            latency = result.samples_ns or result.latency_mean_ms or result.latency_p50_ms
            known = bool(latency or result.throughput_items_per_s or result.memory_peak_mib)
            figures[path] = figures.get(path, 0) + known
        assert sum(figures.values()) > 300
        without = [path for path, known in figures.items() if not known]
        assert without
        assert not [path for path in without if STATED.search(Path(path).read_text())]

    def test_no_believed_row_is_empty(self, imported: tuple[ImportReport, EventLog]) -> None:
        believed = [r for r in payloads(imported[1], ResultRecorded) if r.provenance == "imported" and r.status == "ok"]
        assert believed
        assert all(
            r.samples_ns or r.latency_mean_ms or r.latency_p50_ms or r.throughput_items_per_s or has_other_figure(r)
            for r in believed
        )

    def test_the_known_lies_are_found(self, imported: tuple[ImportReport, EventLog]) -> None:
        results = [r for r in payloads(imported[1], ResultRecorded) if r.status == "ok"]
        cards = [r for r in results if "C1-batchsize-card" in (r.source_path or "")]
        assert cards
        assert all(r.provenance != "imported" for r in cards)
        runner = [r for r in results if "A1-hwbench" in (r.source_path or "")]
        assert {r.provenance for r in runner if r.hardware == "cpu"} == {"imported"}
        assert {r.provenance for r in runner if r.hardware in ("cuda", "openvino")} == {"suspect"}
        inside = [r for r in results if "A4-model" in (r.source_path or "") and r.samples_ns]
        assert {(r.hardware, r.provenance) for r in inside} == {
            ("cpu", "imported"), ("cuda", "suspect"), ("openvino", "suspect")
        }  # fmt: skip
        web = [r for r in results if "D1-web" in (r.source_path or "")]
        assert {r.provenance for r in web} == {"simulated"}
        derived = [r for r in results if re.search("A2-|A3-", r.source_path or "")]
        assert {r.provenance for r in derived} == {"suspect"}


class TestCommand:
    @pytest.fixture
    def app(self) -> typer.Typer:
        app = CommandApp()
        app.command()(command)
        return app

    def test_json_is_the_report(self, app: typer.Typer, tmp_path: Path) -> None:
        answer = CliRunner().invoke(app, [str(FIXTURES), "--home", str(tmp_path), "--json"])
        assert answer.exit_code == 0, answer.output
        report = json.loads(answer.stdout)
        assert report["found"] == sum(report["outcomes"].values()) == len(report["documents"])
        assert f"file {report['found']} of {report['found']}: " in answer.stderr

    def test_the_table_says_what_became_of_each_file(self, app: typer.Typer, tmp_path: Path) -> None:
        first = CliRunner().invoke(app, [str(FIXTURES), "--home", str(tmp_path)])
        assert "suite_config.json" in first.stdout
        files = len(list(FIXTURES.iterdir()))
        assert f"{files} files: " in first.stdout
        again = CliRunner().invoke(app, [str(FIXTURES), "--home", str(tmp_path)])
        assert f"{files} already imported" in again.stdout

    def test_a_narrow_terminal_shows_why_files_lie_in_quarantine(
        self, app: typer.Typer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COLUMNS", "100")
        (tmp_path / "a.csv").write_bytes((FIXTURES / "suite_csv.csv").read_bytes())
        for number in range(23):
            (tmp_path / f"a_result_file_with_a_long_name_{number}.json").write_text(f'{{"odd{number}": 1}}')
        answer = CliRunner().invoke(app, [str(tmp_path), "--home", str(tmp_path / ".accel")])
        told = re.findall(r"long_name_\d+\.json: no\s+reader\s+knows\s+this\s+shape:\s+JSON\s+{odd\d+:", answer.stdout)
        assert len(told) == 20
        assert "3 more have a reason or a remark: --json has all." in answer.stdout

    def test_a_reason_of_many_files_is_told_once(self, app: typer.Typer, tmp_path: Path) -> None:
        for number in range(7):
            (tmp_path / f"{number}.json").write_text(f'{{"odd": {number}, "strange": "something"}}')
        answer = CliRunner().invoke(app, [str(tmp_path), "--home", str(tmp_path / ".accel")])
        told = [line for line in answer.stdout.splitlines() if ": no reader knows this shape: JSON {odd" in line]
        assert [line.partition(":")[0] for line in told] == [f"{tmp_path.name}/0.json and 6 others"]

    def test_a_load_without_hardware_is_told_how_to_name_it(self, app: typer.Typer, tmp_path: Path) -> None:
        load = {"backend": "vllm", "model_id": "a/b", "max_concurrency": 4, "completed": 9, "duration": 1.0,
                "request_throughput": 9.0, "median_ttft_ms": 20.0, "median_tpot_ms": 9.0}  # fmt: skip
        for folder, change in (("loads", {}), ("loads/L40S", {"date": "20261128-101112"})):
            (tmp_path / folder).mkdir()
            (tmp_path / folder / "load.json").write_text(json.dumps(load | change))
        answer = CliRunner().invoke(app, [str(tmp_path / "loads"), "--home", str(tmp_path / "home"), "--json"])
        told = {d["source_path"].removeprefix(f"{tmp_path}/"): d for d in json.loads(answer.stdout)["documents"]}
        assert [document["records"] for document in told.values()] == [1, 1]
        assert told["loads/L40S/load.json"]["reason"] is None
        assert told["loads/load.json"]["reason"].startswith("1 result names no hardware, and no answer uses what has")

    def test_a_dry_run_leaves_no_trace(self, app: typer.Typer, tmp_path: Path) -> None:
        answer = CliRunner().invoke(app, [str(FIXTURES), "--home", str(tmp_path / "home"), "--dry-run"])
        assert "Would bring in" in answer.stdout
        assert not (tmp_path / "home").exists()

    def test_a_missing_path_is_bad_input(self, app: typer.Typer, tmp_path: Path) -> None:
        answer = CliRunner().invoke(app, [str(tmp_path / "nowhere"), "--home", str(tmp_path)])
        assert isinstance(answer.exception, InvalidInput)
        assert "nowhere" in str(answer.exception)

    def test_the_installation_itself_is_no_history(self, app: typer.Typer, tmp_path: Path) -> None:
        (tmp_path / "a.csv").write_bytes((FIXTURES / "suite_csv.csv").read_bytes())
        for expected in ("1 imported", "1 already imported"):
            answer = CliRunner().invoke(app, [str(tmp_path), "--home", str(tmp_path / ".accel")])
            assert f"1 file: {expected}." in answer.stdout
