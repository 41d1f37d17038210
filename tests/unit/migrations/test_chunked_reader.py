"""Documents too large to hold: read in pieces, accounted for as one, and refused where they cannot be."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from accel_platform.events import EventLog
from accel_platform.events.types import DocumentImported, RecordQuarantined, ResultRecorded
from accel_platform.settings import Settings
from migrations.pipeline.importer import migrate
from migrations.sources import chunked_reader, documents
from migrations.sources.chunked_reader import iter_chunks as pieces_of
from migrations.sources.documents import load

FIXTURES = Path(__file__).parents[2] / "data" / "formats"


@pytest.fixture(autouse=True)
def _small_is_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of some kilobytes are large here, and pieces are small."""
    monkeypatch.setattr(documents, "MAX_IN_MEMORY_BYTES", 2_000)
    monkeypatch.setattr(documents, "HEAD_BYTES", 4_000)
    monkeypatch.setattr(chunked_reader, "CHUNK_CHARACTERS", 3_000)
    monkeypatch.setattr(chunked_reader, "CHUNK_CELLS", 300)


def rows(count: int) -> list[dict[str, Any]]:
    (first, *_) = [
        json.loads(line) for line in (FIXTURES / "llama_bench.jsonl").read_text().splitlines() if "{" in line
    ]
    return [{**first, "n_prompt": 16 + i, "n_gen": 0, "avg_ns": 1_000_000 + i} for i in range(count)]


def results(log: EventLog) -> list[ResultRecorded]:
    return [e.payload for e in log.read(types={"ResultRecorded"}) if isinstance(e.payload, ResultRecorded)]


def entry(log: EventLog) -> DocumentImported:
    (found,) = [e.payload for e in log.read(types={"DocumentImported"})]
    assert isinstance(found, DocumentImported)
    return found


def kept(log: EventLog) -> list[RecordQuarantined]:
    return [e.payload for e in log.read(types={"RecordQuarantined"}) if isinstance(e.payload, RecordQuarantined)]


def same_as_at_once(path: Path, log: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """Import a file in pieces and, elsewhere, at once: the same results under the same ids."""
    assert len(list(pieces_of(load(path)))) > 2
    report = migrate([path], log)
    monkeypatch.setattr(documents, "MAX_IN_MEMORY_BYTES", 1 << 30)
    other = EventLog.open(Settings(home=tmp_path / "at-once"))
    whole = migrate([path], other)
    assert (report.outcomes, report.records, report.failures) == (whole.outcomes, whole.records, whole.failures)
    sides = [{e.event_id: e.payload for e in each.read(types={"ResultRecorded"})} for each in (log, other)]
    assert sides[0] == sides[1]
    assert entry(log).size_bytes == path.stat().st_size
    return report.records


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
def test_json_lines(log: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line_end: str) -> None:
    path = tmp_path / "runs.json"
    path.write_text("\ufeff" + "".join(json.dumps(row) + line_end for row in rows(40)), newline="")
    assert same_as_at_once(path, log, tmp_path, monkeypatch) == 40


def test_json_lines_with_other_lines_between(log: EventLog, tmp_path: Path) -> None:
    lines = [json.dumps(row) for row in rows(40)]
    lines[20:20] = ["warming up", *["stderr of another program " + "x" * 100] * 60]
    (tmp_path / "runs.jsonl").write_text("\n".join(lines))
    report = migrate([tmp_path / "runs.jsonl"], log)
    assert (report.records, len(results(log))) == (40, 40)
    assert sum(note.content.count("another program") for note in kept(log)) == 60
    assert "lines that are no JSON" in (entry(log).reason or "")


@pytest.mark.parametrize("indent", [None, 2])
def test_one_long_list(log: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indent: int | None) -> None:
    path = tmp_path / "runs.json"
    path.write_text(json.dumps(rows(40), indent=indent))
    assert same_as_at_once(path, log, tmp_path, monkeypatch) == 40


def test_a_list_that_breaks_off_keeps_its_whole_members(log: EventLog, tmp_path: Path) -> None:
    text = json.dumps(rows(40), indent=2)
    (tmp_path / "runs.json").write_text(text[:-400])
    report = migrate([tmp_path / "runs.json"], log)
    assert report.records == 39
    assert [note.rule for note in kept(log)] == ["other_lines"]


def test_documents_in_a_row_over_several_lines(log: EventLog, tmp_path: Path) -> None:
    (tmp_path / "runs.json").write_text("\n".join(json.dumps(row, indent=1) for row in rows(40)))
    assert migrate([tmp_path / "runs.json"], log).records == 40


def test_a_table(log: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (FIXTURES / "suite_csv.csv").open(newline="") as file:
        lines = list(csv.reader(file))
    path = tmp_path / "table.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([lines[0], *([*line] for line in lines[1:] * 60)])
    assert same_as_at_once(path, log, tmp_path, monkeypatch) == 60 * (len(lines) - 1)


def test_a_parquet_table(log: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    row = {"model_name": "gpt2", "hardware_type": "cuda", "batch_size": 4}
    table = pa.Table.from_pylist([{**row, "average_latency_ms": 8.5 + i} for i in range(900)])
    pq.write_table(table, tmp_path / "export.parquet")
    assert same_as_at_once(tmp_path / "export.parquet", log, tmp_path, monkeypatch) == 900


def test_what_can_only_be_read_at_once_is(log: EventLog, tmp_path: Path) -> None:
    card = json.loads((FIXTURES / "direct_benchmark.json").read_text())
    (tmp_path / "card.json").write_text(json.dumps({**card, "pad": "x" * 20_000}))
    assert migrate([tmp_path / "card.json"], log).records == 2


def test_beyond_the_limit_it_is_quarantined_with_what_to_do(
    log: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(chunked_reader, "MAX_WHOLE_BYTES", 10_000)
    (tmp_path / "card.json").write_text(json.dumps({"pad": "x" * 20_000}, indent=1))
    (tmp_path / "line.json").write_text(json.dumps({"pad": "x" * 20_000}))
    (tmp_path / "notes.txt").write_text("no figures here\n" * 2_000)
    report = migrate([tmp_path], log)
    assert report.outcomes == {"quarantined": 3}
    assert all("the limit is" in (document.reason or "") for document in report.documents[::2])
    assert all("characters are kept here" in (document.reason or "") for document in report.documents)
    assert all(record.content for record in kept(log))


def test_bytes_that_are_no_text_end_the_reading_and_not_what_was_read(log: EventLog, tmp_path: Path) -> None:
    lines = [json.dumps(row).encode() for row in rows(60)]
    lines[50] = b"\x81\x81 not text"  # no character in Windows-1252 either
    (tmp_path / "runs.jsonl").write_bytes(b"\n".join(lines))
    report = migrate([tmp_path / "runs.jsonl"], log)
    assert report.outcomes == {"imported": 1}
    assert 0 < report.records <= 50
    assert len(results(log)) == report.records
    assert "the rest cannot be read" in (entry(log).reason or "")


def test_a_second_run_reads_nothing(log: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "runs.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows(40)))
    migrate([path], log)
    monkeypatch.setattr(chunked_reader, "find_json", None)
    assert migrate([path], log).outcomes == {"already_imported": 1}


def test_a_name_in_windows_1252_far_inside_costs_nothing(
    tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.jsonl"
    some = [{**row, "cpu_info": "Xeon® hôte" if index > 50 else "Xeon"} for index, row in enumerate(rows(60))]
    path.write_bytes("\n".join(json.dumps(row, ensure_ascii=False) for row in some).encode("cp1252"))
    assert same_as_at_once(path, log, tmp_path, monkeypatch) == 60


def test_a_list_that_breaks_off_is_read_up_to_there(tmp_path: Path, log: EventLog) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows(60))[:-20])
    (document,) = migrate([path], log).documents
    assert (document.records, document.reason) == (59, "1 line that is no JSON")
