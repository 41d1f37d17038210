"""A source file goes only where the log gives back all it says; on any doubt it stays, and says why."""

from __future__ import annotations

import json
import os
import random
import shutil
import time
import zipfile
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from accel_platform.cli.data import history
from accel_platform.errors import InvalidInput, NotFound
from accel_platform.events import Event, EventLog
from accel_platform.events.types import DocumentImported, RecordQuarantined, ResultRecorded, SourceDeleted
from accel_platform.settings import Settings
from migrations.cleanup.cleanup import CleanReport, clean
from migrations.pipeline import document_reader
from migrations.pipeline.importer import migrate
from migrations.pipeline.retry import retry_quarantine
from migrations.sources import chunked_reader, documents

FIXTURES = Path(__file__).parents[2] / "data" / "formats"
MONTH = timedelta(days=30)


def aged(path: Path, days: float = 40) -> Path:
    """The file, or all under the directory, last modified so many days ago."""
    when = time.time() - days * 86_400
    for file in [path, *path.rglob("*")] if path.is_dir() else [path]:
        os.utime(file, (when, when))
    return path


def put(path: Path, content: str | bytes | dict[str, Any], days: float = 40) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(content) if isinstance(content, dict) else content
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return aged(path, days)


def card(latency_ms: float = 5.5) -> dict[str, Any]:
    return {"model": "gpt2", "hardware": "cpu", "success": True, "batch_results": {"1": {"avg_latency_ms": latency_ms}}}


def outcome(report: CleanReport, path: Path) -> tuple[str, str]:
    [found] = [document for document in report.documents if document.source_path == str(path)]
    return found.action, found.reason


def deletions(log: EventLog) -> list[Event]:
    return list(log.read(types={"SourceDeleted"}))


@pytest.fixture
def archive(tmp_path: Path, log: EventLog) -> Path:
    """All fixtures, imported and old."""
    shutil.copytree(FIXTURES, tmp_path / "old")
    migrate([tmp_path / "old"], log)
    return aged(tmp_path / "old")


def test_what_is_proven_goes_and_is_accounted_for_and_a_second_run_finds_the_rest(archive: Path, log: EventLog) -> None:
    sizes = {str(path): path.stat().st_size for path in archive.iterdir()}
    entries = {e.event_id: e.payload for e in log.read(types={"DocumentImported"})}
    foreseen = clean([archive], log, older_than=MONTH, dry_run=True)
    assert len(list(archive.iterdir())) == len(sizes) == sum(foreseen.actions.values())
    assert not deletions(log)

    report = clean([archive], log, older_than=MONTH)
    gone = {d.source_path for d in report.documents if d.action == "deleted"}
    assert gone == {d.source_path for d in foreseen.documents if d.action == "deletable"}
    assert {str(path) for path in archive.iterdir()} == sizes.keys() - gone
    assert report.size_bytes == sum(sizes[path] for path in gone)
    by_path = {e.source_path: e for e in entries.values() if isinstance(e, DocumentImported)}
    # Every file with results goes, every other one stays.
    assert gone == {path for path in sizes if by_path[path].outcome == "imported"}
    accounted = [event.payload for event in deletions(log)]
    assert {p.source_path: p.size_bytes for p in accounted if isinstance(p, SourceDeleted)} == {
        path: sizes[path] for path in gone
    }
    for payload in accounted:
        assert isinstance(payload, SourceDeleted)
        entry = entries[payload.ledger_id]
        assert isinstance(entry, DocumentImported)
        assert (entry.source_path, entry.content_sha256) == (payload.source_path, payload.content_sha256)

    before = log.snapshot()
    again = clean([archive], log, older_than=MONTH)
    assert again.actions == {"kept": len(sizes) - len(gone)}
    assert log.snapshot() == before
    assert migrate([archive], log).events == 0


def _rewritten(log: EventLog, home: Path, change: Callable[[Event], Event | None]) -> EventLog:
    """Another log with the events of this one, each changed or left out."""
    other = EventLog.open(Settings(home=home))
    other.append([changed for event in log.read() if (changed := change(event)) is not None], key="import-again")
    return other


def _outer(path: str) -> str:
    return path.partition("#")[0]


@pytest.mark.parametrize("seed", range(4))
def test_one_event_lost_or_changed_spares_the_files_that_need_it(
    archive: Path, log: EventLog, tmp_path: Path, seed: int
) -> None:
    chosen = random.Random(seed)
    paths = {e.event_id: e.payload for e in log.read(types={"DocumentImported"})}
    caused = [e for e in log.read(types={"ResultRecorded", "RecordQuarantined"}) if e.causation_id in paths]
    hit = chosen.choice(sorted(caused, key=lambda e: (e.type, str(getattr(e.payload, "source_path", "")), str(e))))

    def change(event: Event) -> Event | None:
        if event.event_id != hit.event_id:
            return event
        if seed % 2:
            return None
        field = "backend" if isinstance(hit.payload, ResultRecorded) else "content"
        return event.model_copy(update={"payload": event.payload.model_copy(update={field: "another"})})

    whole = clean([archive], log, older_than=MONTH, dry_run=True)
    report = clean([archive], _rewritten(log, tmp_path / "other", change), older_than=MONTH)
    owner = paths[hit.causation_id]  # type: ignore[index]
    assert isinstance(owner, DocumentImported)
    # A copy inside or beside another file needs the same events.
    needing = {
        _outer(entry.source_path)
        for entry in paths.values()
        if isinstance(entry, DocumentImported) and entry.content_sha256 == owner.content_sha256
    }
    deletable = {d.source_path for d in whole.documents if d.action == "deletable"}
    assert {d.source_path for d in report.documents if d.action == "deleted"} == deletable - needing
    for path in needing:
        assert Path(path).exists()
        assert "the log holds" in outcome(report, Path(path))[1]


def test_what_is_not_exactly_what_was_imported_stays(tmp_path: Path, log: EventLog) -> None:
    old = tmp_path / "old"
    same, edited = put(old / "same.json", card()), put(old / "edited.json", card(6.5))
    moved = put(old / "moved.json", card(7.5))
    migrate([old], log)
    put(edited, card(6.6))
    moved = moved.rename(old / "elsewhere.json")
    new = put(old / "new.json", card(8.5))
    report = clean([old], log, older_than=MONTH)
    assert outcome(report, same)[0] == "deleted"
    for path in (edited, moved, new):
        assert outcome(report, path)[0] == "kept"
        assert path.exists()
        assert "not in the ledger" in outcome(report, path)[1]
    assert "only under" in outcome(report, moved)[1]


def test_the_young_stay(tmp_path: Path, log: EventLog) -> None:
    young, old = put(tmp_path / "young.json", card(), days=29), put(tmp_path / "old.json", card(6.5), days=31)
    migrate([young, old], log)
    report = clean([young, old], log, older_than=MONTH)
    assert [outcome(report, path)[0] for path in (young, old)] == ["kept", "deleted"]


def test_copies_go_where_each_says_the_same_under_its_own_name(tmp_path: Path, log: EventLog) -> None:
    name = "timm_benchmark.infer-amp-nhwc-pt240-cu124-rtx4090-dynamo.csv"
    content = (FIXTURES / name).read_bytes()
    first, copy = put(tmp_path / "a" / name, content), put(tmp_path / "b" / name, content)
    # This tool writes device and precision into the name alone, so another name says something else.
    renamed = put(tmp_path / "c" / name.replace("rtx4090", "rtx3090"), content)
    assert migrate([first, copy, renamed], log).outcomes == {"imported": 1, "duplicate": 2}
    report = clean([first, copy, renamed], log, older_than=MONTH)
    assert [outcome(report, path)[0] for path in (first, copy, renamed)] == ["deleted", "deleted", "kept"]


def test_a_document_inside_keeps_the_file_around_it(tmp_path: Path, log: EventLog) -> None:
    outer = put(tmp_path / "batch.json", (FIXTURES / "batch_benchmarks.json").read_bytes())
    migrate([outer], log)
    inside = [e for e in log.read(types={"DocumentImported"}) if "#" in getattr(e.payload, "source_path", "")]
    assert inside
    without = _rewritten(log, tmp_path / "other", lambda e: None if e.event_id == inside[0].event_id else e)
    action, reason = outcome(clean([outer], without, older_than=MONTH), outer)
    assert action == "kept"
    assert "not in the ledger" in reason
    assert outcome(clean([outer], log, older_than=MONTH), outer)[0] == "deleted"


def test_a_copy_needs_what_the_log_holds_of_the_parts_of_its_twin(tmp_path: Path, log: EventLog) -> None:
    content = (FIXTURES / "batch_benchmarks.json").read_bytes()
    files = [put(tmp_path / name, content) for name in ("a.json", "b.json")]
    assert migrate(files, log).outcomes == {"imported": 1, "duplicate": 1}
    inside = {
        e.event_id: None for e in log.read(types={"DocumentImported"}) if "#" in getattr(e.payload, "source_path", "")
    }
    lost = next(e.event_id for e in log.read(types={"ResultRecorded"}) if e.causation_id in inside)
    without = _rewritten(log, tmp_path / "other", lambda e: None if e.event_id == lost else e)
    assert clean(files, without, older_than=MONTH).actions == {"kept": 2}
    assert clean(files, log, older_than=MONTH).actions == {"deleted": 2}


def test_an_archive_goes_when_every_member_could(tmp_path: Path, log: EventLog) -> None:
    def zipped(name: str, **members: str) -> Path:
        path = put(tmp_path / name, b"")
        with zipfile.ZipFile(path, "w") as archive:
            for number, (member, content) in enumerate(members.items()):
                archive.writestr(f"{number}/{member}.json", content)
        return aged(path)

    whole = zipped("whole.zip", a=json.dumps(card()), b=json.dumps(card(6.5)))
    mixed = zipped("mixed.zip", a=json.dumps(card(7.5)), notes="nothing to see here")
    empty = zipped("empty.zip")
    migrate([tmp_path], log)
    report = clean([whole, mixed, empty], log, older_than=MONTH)
    assert [outcome(report, path)[0] for path in (whole, mixed, empty)] == ["deleted", "kept", "kept"]
    assert outcome(report, mixed)[1].startswith("!1/notes.json: it holds no results")


def test_a_file_too_large_to_hold_is_proven_piece_by_piece(
    tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "MAX_IN_MEMORY_BYTES", 1000)
    monkeypatch.setattr(documents, "HEAD_BYTES", 500)
    monkeypatch.setattr(chunked_reader, "CHUNK_CHARACTERS", 800)
    monkeypatch.setattr(document_reader, "MAX_QUARANTINE_CHARACTERS", 1000)
    lines = (FIXTURES / "serving_benchmark.H100.Llama-2-7b.jsonl").read_text().splitlines()
    path = put(tmp_path / "serving.H100.Llama-2-7b.jsonl", "\n".join(lines * 4) + "\n")
    unknown = put(tmp_path / "unknown.json", {"experiment": "x" * 2000})
    assert migrate([path, unknown], log).outcomes == {"imported": 1, "quarantined": 1}
    lost = next(log.read(types={"ResultRecorded"})).event_id
    without = _rewritten(log, tmp_path / "other", lambda e: None if e.event_id == lost else e)
    assert clean([path], without, older_than=MONTH).actions == {"kept": 1}
    report = clean([path, unknown], log, older_than=MONTH)
    assert [outcome(report, each)[0] for each in (path, unknown)] == ["deleted", "kept"]


def test_what_is_quarantined_goes_only_where_the_log_gives_its_bytes_back(
    tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document_reader, "MAX_QUARANTINE_CHARACTERS", 400)
    whole = put(tmp_path / "whole.json", {"experiment": "x", "timings": [1, 2]})
    binary = put(tmp_path / "image.png", b"\x89PNG\r\n\x1a\n")
    marked = put(tmp_path / "marked.json", b'\xef\xbb\xbf{"experiment": "y", "timings": [1]}')
    large = put(tmp_path / "large.json", {"experiment": "z" * 500})
    cells = put(tmp_path / "cells.json", {"model": "gpt2", "hardware": "abacus", "batch_results": {"1": {}}})
    config = put(tmp_path / "config.json", (FIXTURES / "suite_config.json").read_bytes())
    files = [whole, binary, marked, large, cells, config]
    assert migrate(files, log).outcomes == {"quarantined": 5, "not_results": 1}
    report = clean(files, log, older_than=MONTH)
    assert [outcome(report, path)[0] for path in files] == ["deleted", "deleted", *["kept"] * 4]
    kept = [e.payload for e in log.read(types={"RecordQuarantined"})]
    assert any(isinstance(p, RecordQuarantined) and p.content == '{"experiment": "x", "timings": [1, 2]}' for p in kept)


def test_a_reader_that_knows_more_today_keeps_the_file(
    tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(tmp_path / "card.json", card())
    with monkeypatch.context() as then:
        then.setattr(document_reader, "detect_format", lambda document: None)
        assert migrate([path], log).outcomes == {"quarantined": 1}
    action, reason = outcome(clean([path], log, older_than=MONTH), path)
    assert action == "kept"
    assert "read today it is imported" in reason
    retry_quarantine(log)
    assert outcome(clean([path], log, older_than=MONTH), path)[0] == "deleted"


def test_links_and_the_installation_itself_are_left_alone(tmp_path: Path, settings: Settings, log: EventLog) -> None:
    real = put(tmp_path / "real" / "card.json", card())
    link = tmp_path / "link.json"
    link.symlink_to(real)
    own = put(settings.home / "card.json", card(6.5))
    migrate([real, link, own], log)
    os.utime(link, (0, 0), follow_symlinks=False)
    report = clean([link, own], log, older_than=MONTH, exclude=[settings.home])
    assert outcome(report, link) == ("kept", "a symbolic link")
    assert outcome(report, own) == ("kept", "it belongs to this installation")
    assert real.exists()
    assert own.exists()


def test_a_file_that_is_written_to_meanwhile_stays(
    tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, other = put(tmp_path / "a.json", card()), put(tmp_path / "b.json", card(6.5))
    migrate([path, other], log)
    append = log.append

    def late(events: list[Event], *, key: str | None = None) -> object:
        put(path, card(7.5))
        return append(events, key=key)

    monkeypatch.setattr(log, "append", late)
    report = clean([path, other], log, older_than=MONTH)
    assert outcome(report, path) == ("kept", "it changed while it was verified")
    assert json.loads(path.read_text()) == card(7.5)
    assert outcome(report, other)[0] == "deleted"


def test_stopped_half_way_every_file_is_whole_or_gone_and_the_next_run_doubles_nothing(
    tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = [put(tmp_path / "old" / f"{n}.json", card(n + 0.5)) for n in range(6)]
    migrate(files, log)
    unlink = Path.unlink

    def stopped(path: Path, missing_ok: bool = False) -> None:
        if path == files[3]:
            raise KeyboardInterrupt
        unlink(path, missing_ok)

    with monkeypatch.context() as now:
        now.setattr(Path, "unlink", stopped)
        with pytest.raises(KeyboardInterrupt):
            clean(files, log, older_than=MONTH)
    assert [path.exists() for path in files] == [False] * 3 + [True] * 3
    assert clean([tmp_path / "old"], log, older_than=MONTH).actions == {"deleted": 3}
    ids = Counter(event.event_id for event in deletions(log))
    assert len(ids) == 6


class TestCommand:
    def _run(self, settings: Settings, *arguments: str) -> Any:
        return CliRunner().invoke(history.app, ["clean", *arguments, "--home", str(settings.home)])

    def test_it_says_what_it_did(self, tmp_path: Path, settings: Settings, log: EventLog) -> None:
        old, young = put(tmp_path / "old.json", card()), put(tmp_path / "young.json", card(6.5), days=0)
        migrate([old, young], log)
        dry = self._run(settings, "--older-than", "30d", "--dry-run", "--json", str(tmp_path))
        assert dry.exit_code == 0, dry.output
        answer = json.loads(dry.stdout)
        assert answer["actions"]["deletable"] == 1
        assert answer["dry_run"] is True
        assert old.exists()
        real = self._run(settings, "--older-than", "4w", str(tmp_path))
        assert real.exit_code == 0, real.output
        assert not old.exists()
        assert young.exists()
        assert "1 deleted" in real.stdout
        assert "it was modified on" in real.stdout

    def test_an_age_and_a_place_are_needed(self, tmp_path: Path, settings: Settings) -> None:
        assert self._run(settings, str(tmp_path)).exit_code == 2
        assert isinstance(self._run(settings, "--older-than", "soon", str(tmp_path)).exception, InvalidInput)
        missing = self._run(settings, "--older-than", "1d", str(tmp_path / "nowhere"))
        assert isinstance(missing.exception, NotFound)
