"""Archives: every member accounted for, nothing written under their names, bombs and broken ones refused."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from accel_platform.events import EventLog
from accel_platform.events.types import DocumentImported, ResultRecorded
from migrations.pipeline.importer import migrate
from migrations.sources import archives

FIXTURES = Path(__file__).parents[2] / "data" / "formats"
CARD = {
    "model": "gpt2",
    "hardware": "cpu",
    "batch_results": {"1": {"success": True, "avg_latency_ms": 44.1, "throughput_items_per_second": 22.7}},
}


def card(note: object) -> bytes:
    return json.dumps({**CARD, "note": note}).encode()


def zipped(names: dict[str, bytes], method: int = zipfile.ZIP_DEFLATED) -> bytes:
    kept = io.BytesIO()
    with zipfile.ZipFile(kept, "w", method) as archive:
        for name, raw in names.items():
            archive.writestr(name, raw)
    return kept.getvalue()


def tarred(names: dict[str, bytes], mode: str = "w") -> bytes:
    kept = io.BytesIO()
    with tarfile.open(fileobj=kept, mode=mode) as archive:  # type: ignore[call-overload]
        for name, raw in names.items():
            info = tarfile.TarInfo(name)
            info.size = len(raw)
            archive.addfile(info, io.BytesIO(raw))
    return kept.getvalue()


def entries(log: EventLog) -> dict[str, DocumentImported]:
    found = [event.payload for event in log.read(types={"DocumentImported"})]
    return {entry.source_path: entry for entry in found if isinstance(entry, DocumentImported)}


@pytest.mark.parametrize(
    ("name", "raw", "format_"),
    [
        ("a.json", zipped({"x/1.json": card(1), "x/2.json": card(2)}), "zip"),
        ("a.zip", tarred({"x/1.json": card(1), "x/2.json": card(2)}), "tar"),
        ("a", tarred({"x/1.json": card(1), "x/2.json": card(2)}, "w:gz"), "tar.gz"),
        ("a.tar", tarred({"x/1.json": card(1), "x/2.json": card(2)}, "w:bz2"), "tar.bz2"),
        ("a.csv", tarred({"x/1.json": card(1), "x/2.json": card(2)}, "w:xz"), "tar.xz"),
    ],
)
def test_each_member_is_a_document(tmp_path: Path, log: EventLog, name: str, raw: bytes, format_: str) -> None:
    path = tmp_path / name
    path.write_bytes(raw)
    report = migrate([path], log)
    assert (report.found, report.outcomes, report.embedded) == (1, {"imported": 1}, {"imported": 2})
    ledger = entries(log)
    assert set(ledger) == {str(path), f"{path}!x/1.json", f"{path}!x/2.json"}
    assert (ledger[str(path)].format, ledger[str(path)].reason) == (format_, "an archive of 2 members")
    assert ledger[f"{path}!x/1.json"].records == 1
    again = migrate([path], log)
    assert (again.outcomes, again.events) == ({"already_imported": 1}, 0)


def test_a_member_that_lies_beside_it_too_is_a_duplicate(tmp_path: Path, log: EventLog) -> None:
    (tmp_path / "a.json").write_bytes(card(1))
    (tmp_path / "b.zip").write_bytes(zipped({"a.json": card(1)}))
    report = migrate([tmp_path], log)
    assert (report.outcomes, report.embedded) == ({"imported": 2}, {"duplicate": 1})
    assert report.records == 1


def test_archives_inside_archives_are_opened_to_a_stated_depth(tmp_path: Path, log: EventLog) -> None:
    raw = card("deep")
    for level in range(archives.MAX_DEPTH + 1):
        raw = zipped({f"{level}": raw})
    (tmp_path / "a.zip").write_bytes(raw)
    migrate([tmp_path], log)
    path = f"{tmp_path / 'a.zip'}!3!2!1"
    assert "archives inside archives, 3 deep" in (entries(log)[path].reason or "")
    assert entries(log)[path].outcome == "quarantined"


def test_no_name_in_an_archive_leads_anywhere(tmp_path: Path, log: EventLog) -> None:
    place = tmp_path / "in"
    place.mkdir()
    bad = {"../../evil.json": card(1), "/tmp/evil-absolute.json": card(2), "line\nbreak.json": card(3)}
    (place / "a.zip").write_bytes(zipped(bad))
    (place / "b.tar").write_bytes(tarred({"../../evil2.json": card(4)}))
    migrate([place], log)
    assert f"{place / 'a.zip'}!../../evil.json" in entries(log)
    assert f"{place / 'a.zip'}!line\\nbreak.json" in entries(log)
    assert sorted(os.listdir(place)) == ["a.zip", "b.tar"]
    assert not list(tmp_path.parent.rglob("evil*"))
    assert not Path("/tmp/evil-absolute.json").exists()


def test_a_bomb_is_refused_and_says_why(tmp_path: Path, log: EventLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "RATIO_CHECKED_FROM_BYTES", 1 << 20)
    zeros = b" " * (4 << 20)
    (tmp_path / "a.zip").write_bytes(zipped({"first.json": card(1), "bomb": zeros, "later.json": card(2)}))
    (tmp_path / "b.tar.xz").write_bytes(lzma.compress(tarred({"bomb": zeros})))
    report = migrate([tmp_path], log)
    assert report.outcomes == {"quarantined": 2}
    ledger = entries(log)
    for name in ("a.zip", "b.tar.xz"):
        assert "unfolds to more than 200 times its size" in (ledger[str(tmp_path / name)].reason or "")
    assert ledger[f"{tmp_path / 'a.zip'}!first.json"].outcome == "imported"


def test_a_spreadsheet_is_no_archive_of_texts(tmp_path: Path, log: EventLog) -> None:
    members = {
        "docProps/app.xml": b"<x/>",
        "xl/worksheets/sheet1.xml": b"<c><v>1</v></c>",
        "[Content_Types].xml": b"<x/>",
    }
    (tmp_path / "old.xlsx").write_bytes(zipped(members))
    migrate([tmp_path], log)
    ((path, entry),) = entries(log).items()
    assert (path, entry.outcome) == (str(tmp_path / "old.xlsx"), "quarantined")
    assert "save each sheet as CSV" in (entry.reason or "")


def test_encrypted_and_broken_members_are_quarantined_and_the_others_read(tmp_path: Path, log: EventLog) -> None:
    raw = bytearray(
        zipped({"a.json": card("aaaa"), "b.json": card("bbbb"), "c.json": card("cccc")}, zipfile.ZIP_STORED)
    )
    where = raw.index(b"bbbb")
    raw[where : where + 4] = b"BBBB"  # its checksum is wrong now
    first = raw.index(b"PK\x01\x02")
    raw[first + 8] |= 1  # the first says that it is encrypted
    (tmp_path / "a.zip").write_bytes(raw)
    report = migrate([tmp_path], log)
    assert (report.outcomes, report.embedded) == ({"imported": 1}, {"quarantined": 2, "imported": 1})
    ledger = entries(log)
    assert "encrypted" in (ledger[f"{tmp_path / 'a.zip'}!a.json"].reason or "")
    assert "Bad CRC-32" in (ledger[f"{tmp_path / 'a.zip'}!b.json"].reason or "")


def test_a_broken_archive_keeps_what_was_read(tmp_path: Path, log: EventLog) -> None:
    whole = tarred({f"{i}.json": card(os.urandom(40_000).hex()) for i in range(4)}, "w:gz")
    (tmp_path / "cut.tgz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "cut.zip").write_bytes(zipped({"a.json": card(1)})[:-30])
    report = migrate([tmp_path], log)
    assert report.outcomes == {"quarantined": 2}
    assert report.embedded["imported"] >= 1
    assert "a broken tar.gz archive" in (entries(log)[str(tmp_path / "cut.tgz")].reason or "")


def test_links_and_directories(tmp_path: Path, log: EventLog) -> None:
    kept = io.BytesIO()
    with tarfile.open(fileobj=kept, mode="w") as archive:
        folder, link = tarfile.TarInfo("folder"), tarfile.TarInfo("link.json")
        folder.type, link.type, link.linkname = tarfile.DIRTYPE, tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(folder)
        archive.addfile(link)
    (tmp_path / "a.tar").write_bytes(kept.getvalue())
    report = migrate([tmp_path], log)
    assert report.embedded == {"quarantined": 1}
    assert "a link to /etc/passwd" in (entries(log)[f"{tmp_path / 'a.tar'}!link.json"].reason or "")


def test_a_report_in_an_archive_finds_its_configuration_beside_it(tmp_path: Path, log: EventLog) -> None:
    whole = json.loads((FIXTURES / "optimum_benchmark.json").read_text())
    report, config = json.dumps(whole["report"]).encode(), json.dumps(whole["config"]).encode()
    names = {"x/benchmark_report.json": report, "x/benchmark_config.json": config, "y/benchmark_config.json": b"{}"}
    (tmp_path / "a.zip").write_bytes(zipped(names))
    migrate([tmp_path / "a.zip"], log)
    found = [event.payload for event in log.read(types={"ResultRecorded"})]
    assert {(r.model_id, r.hardware) for r in found if isinstance(r, ResultRecorded)} == {("bert-base", "cuda")}


def test_a_large_member_is_read_in_pieces(tmp_path: Path, log: EventLog) -> None:
    rows = "\n".join(json.dumps({**CARD, "note": i, "pad": "x" * 100_000}) for i in range(90))
    (tmp_path / "a.zip").write_bytes(zipped({"rows.jsonl": rows.encode()}, zipfile.ZIP_STORED))
    migrate([tmp_path], log)
    entry = entries(log)[f"{tmp_path / 'a.zip'}!rows.jsonl"]
    assert entry.size_bytes == len(rows)
    assert (entry.format, entry.outcome, entry.reason) == ("collection", "imported", "90 documents inside")
    assert sum(e.records for e in entries(log).values()) == 90


def test_a_compressed_file_is_read_like_what_it_holds(tmp_path: Path, log: EventLog) -> None:
    place = tmp_path / "old"
    place.mkdir()
    folds = {"gz": gzip.compress, "bz2": bz2.compress, "xz": lzma.compress}
    for ending, fold in folds.items():
        (place / f"run.json.{ending}").write_bytes(fold(card(ending)))
    (place / "z.zip").write_bytes(zipped({"in.json.gz": gzip.compress(card("zip"))}))
    (place / "broken.json.gz").write_bytes(gzip.compress(card("broken"))[:60])
    report = migrate([place], log)
    assert (report.outcomes, report.records) == ({"imported": 5}, 4)
    found = entries(log)
    for ending in folds:
        outer = str(place / f"run.json.{ending}")
        assert (found[outer].format, found[f"{outer}!run.json"].records) == (ending, 1)
    assert "ended before the end" in str(found[f"{place / 'broken.json.gz'}!broken.json"].reason)
    assert migrate([place], log).events == 0
