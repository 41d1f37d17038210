"""Several processes reading, and quarantine read again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from typer.testing import CliRunner

from accel_platform.errors import InvalidInput
from accel_platform.events import EventLog
from accel_platform.events.types import DocumentImported
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.reader import Reader
from migrations.pipeline import document_reader, workers
from migrations.pipeline.importer import migrate
from migrations.pipeline.retry import retry_quarantine

REPOSITORY = Path(__file__).parents[3]
FIXTURES = REPOSITORY / "tests" / "data" / "formats"
CARD = json.loads((FIXTURES / "direct_benchmark.json").read_text())


def events(log: EventLog) -> dict[Any, Any]:
    return {event.event_id: (event.causation_id, event.payload) for event in log.read()}


@pytest.mark.slow
class TestJobs:
    @pytest.mark.slow
    def test_they_find_what_one_finds_in_the_same_order(self, tmp_path: Path) -> None:
        logs = [EventLog.open(Settings(home=tmp_path / name)) for name in ("one", "two")]
        (tmp_path / "copy.json").write_text(json.dumps(CARD, indent=2))
        paths = [FIXTURES, tmp_path / "copy.json", REPOSITORY / "samples" / "legacy"]
        reports = [migrate(paths, log, jobs=jobs) for log, jobs in zip(logs, (1, 2), strict=True)]
        assert reports[0] == reports[1]
        assert events(logs[0]) == events(logs[1])
        assert migrate(paths, logs[0], jobs=2).events == 0

    @pytest.mark.slow
    def test_a_worker_that_dies_costs_its_document_alone(
        self, tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Killed, as the kernel does when memory is short."""
        monkeypatch.setattr(workers, "MAX_ROWS_AHEAD", 10)  # so that none can be done with all before the other begins
        for i in range(300):
            (tmp_path / f"{i:03}.json").write_text(json.dumps({**CARD, "note": i}))

        def kill_one(number: int, total: int, document: object) -> None:
            if number == 3:
                readers = [child for child in psutil.Process().children() if "spawn_main" in " ".join(child.cmdline())]
                assert len(readers) == 2
                readers[0].kill()

        report = migrate([tmp_path], log, jobs=2, on_progress=kill_one)
        assert sum(report.outcomes.values()) == report.found == 300
        died = [d for d in report.documents if "SIGKILL" in (d.reason or "")]
        # None where it was killed after its last word on a document.
        assert len(died) == report.outcomes.get("quarantined", 0) <= 1
        assert retry_quarantine(log).outcomes == ({"imported": 1} if died else {})
        assert len({event.event_id for event in log.read(types={"ResultRecorded"})}) == 600

    def test_workers_that_cannot_start_cost_no_document(self, tmp_path: Path) -> None:
        """A script that imports when it is imported, as each worker does."""
        script = tmp_path / "script.py"
        script.write_text(
            "from pathlib import Path\n"
            "from accel_platform.events import EventLog\n"
            "from accel_platform.settings import Settings\n"
            "from migrations.pipeline.importer import migrate\n"
            f"log = EventLog.open(Settings(home=Path({str(tmp_path / 'home')!r})))\n"
            f"migrate([Path({str(FIXTURES)!r})], log, jobs=2)\n"
        )
        environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        done = subprocess.run(
            [sys.executable, str(script)], env=environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert "The processes that read cannot start" in done.stderr
        assert not (tmp_path / "home").exists()

    @pytest.mark.slow
    def test_interrupted_it_stores_what_is_complete_and_leaves_no_process(self, tmp_path: Path) -> None:
        old = tmp_path / "old"
        old.mkdir()
        for i in range(4000):
            (old / f"{i:04}.json").write_text(json.dumps({**CARD, "note": i}))
        command = [sys.executable, "-m", "accel_platform", "migrate", str(old)]
        command += ["--jobs", "2", "--home", str(tmp_path / "home")]
        process = subprocess.Popen(
            command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        assert process.stderr is not None
        process.stderr.readline()  # the first line of progress
        children = psutil.Process(process.pid).children(recursive=True)
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "Traceback" not in said
        time.sleep(0.2)
        assert not [child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE]
        log = EventLog.open(Settings(home=tmp_path / "home"))
        entries = [e for e in log.read(types={"DocumentImported"}) if isinstance(e.payload, DocumentImported)]
        assert 0 < len(entries) < 4000
        assert len(list(log.read(types={"ResultRecorded"}))) >= sum(e.payload.records for e in entries)  # type: ignore[attr-defined]


def test_fewer_than_one_process_is_bad_input(tmp_path: Path, log: EventLog) -> None:
    with pytest.raises(InvalidInput):
        migrate([tmp_path], log, jobs=0)


class TestRetry:
    """A reader that comes later is stood for by one that is broken at first."""

    @pytest.fixture
    def broken(self, monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
        def fails(*_: object) -> list[object]:
            raise KeyError("not yet")

        monkeypatch.setattr(document_reader, "apply_rules", fails)
        return monkeypatch

    def ledger(self, settings: Settings) -> list[dict[str, Any]]:
        refresh(settings)
        return Reader(settings).rows("SELECT source_path, outcome, records FROM import_ledger ORDER BY source_path")

    @pytest.mark.parametrize("from_disk", [True, False])
    def test_what_can_be_read_now_supersedes_the_old_entry(
        self, tmp_path: Path, settings: Settings, log: EventLog, broken: pytest.MonkeyPatch, from_disk: bool
    ) -> None:
        path = tmp_path / "card.json"
        path.write_text(json.dumps(CARD))
        migrate([path], log)
        assert self.ledger(settings) == [{"source_path": str(path), "outcome": "quarantined", "records": 0}]
        broken.undo()
        assert migrate([path], log).outcomes == {"already_imported": 1}
        if not from_disk:
            path.write_text("something else")
        foretold = retry_quarantine(log, dry_run=True)
        report = retry_quarantine(log)
        assert foretold.outcomes == report.outcomes == {"imported": 1}
        assert report.records == 2
        assert self.ledger(settings) == [{"source_path": str(path), "outcome": "imported", "records": 2}]
        reader = Reader(settings)
        assert reader.rows("SELECT count(*) AS n FROM results") == [{"n": 2}]
        assert reader.rows("SELECT rule FROM quarantine") == [{"rule": "unexpected_shape"}]
        assert reader.rows("SELECT count(*) AS n FROM events WHERE type = 'DocumentImported'") == [{"n": 2}]
        assert retry_quarantine(log).found == 0

    @pytest.mark.parametrize("by_retry", [True, False])
    @pytest.mark.parametrize("known_elsewhere", [True, False])
    def test_a_file_that_opens_at_last_counts_once(
        self, tmp_path: Path, settings: Settings, log: EventLog, by_retry: bool, known_elsewhere: bool
    ) -> None:
        link, place = tmp_path / "old" / "link.json", tmp_path / "later.json"
        link.parent.mkdir()
        link.symlink_to(place)
        assert migrate([link.parent], log).outcomes == {"quarantined": 1}
        place.write_text(json.dumps(CARD))
        if known_elsewhere:
            migrate([place], log)
        outcome = "duplicate" if known_elsewhere else "imported"
        report = retry_quarantine(log) if by_retry else migrate([link.parent], log)
        assert report.outcomes == {outcome: 1}
        assert retry_quarantine(log).found == 0
        assert migrate([link.parent], log).events == 0
        assert (str(link), outcome) in {(row["source_path"], row["outcome"]) for row in self.ledger(settings)}
        assert len(self.ledger(settings)) == 1 + known_elsewhere
        assert Reader(settings).rows("SELECT count(*) AS n FROM results") == [{"n": 2}]

    def test_inside_an_archive_and_another_document(
        self, tmp_path: Path, settings: Settings, log: EventLog, broken: pytest.MonkeyPatch
    ) -> None:
        import zipfile

        suite = {"models": ["gpt2"], "hardware": "cpu", "results": {"gpt2": {"success": True, "benchmark_data": CARD}}}
        with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
            archive.writestr("card.json", json.dumps({**CARD, "note": 1}))
        (tmp_path / "batch.json").write_text(json.dumps(suite))
        report = migrate([tmp_path / "a.zip", tmp_path / "batch.json"], log)
        assert report.records == 0
        broken.undo()
        again = retry_quarantine(log)
        assert again.outcomes == {"imported": 2}
        assert again.records == 4
        assert {row["outcome"] for row in self.ledger(settings)} == {"imported"}

    def test_what_stays_in_quarantine_writes_nothing(self, tmp_path: Path, log: EventLog) -> None:
        import io
        import tarfile

        kept = io.BytesIO()
        with tarfile.open(fileobj=kept, mode="w:gz") as archive:
            for number in range(3):
                raw = json.dumps({**CARD, "note": os.urandom(9_000).hex()}).encode()
                info = tarfile.TarInfo(f"{number}.json")
                info.size = len(raw)
                archive.addfile(info, io.BytesIO(raw))
        (tmp_path / "cut.tgz").write_bytes(kept.getvalue()[:-6_000])
        (tmp_path / "unknown.json").write_text('{"experiment": "x", "timings": [1, 2]}')
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "cut.json").write_text('{"init": "Success", "cpu": ')
        names = ("unknown.json", "other", "cut.tgz")
        first = migrate([tmp_path / name for name in names], log)
        assert first.outcomes == {"quarantined": 3}
        assert first.embedded["imported"] > 0
        before = log.snapshot()
        report = retry_quarantine(log)
        assert report.outcomes == {"still_quarantined": report.found}
        assert (report.found >= 3, report.events) == (True, 0)
        assert retry_quarantine(log, under=[tmp_path / "other"]).found == 1
        assert log.snapshot() == before

    def test_the_command(self, tmp_path: Path) -> None:
        from accel_platform.cli.data.migrate import migrate as command
        from accel_platform.cli.options import CommandApp

        app = CommandApp()
        app.command()(command)
        (tmp_path / "cut.json").write_text('{"init": "Success", "cpu": ')
        home = ["--home", str(tmp_path / "home")]
        CliRunner().invoke(app, [str(tmp_path / "cut.json"), *home])
        answer = CliRunner().invoke(app, ["--retry-quarantine", "--json", *home])
        assert json.loads(answer.stdout)["outcomes"] == {"still_quarantined": 1}
        assert isinstance(CliRunner().invoke(app, home).exception, InvalidInput)
