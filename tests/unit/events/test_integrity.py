"""Damage to the log is seen, named and set aside; what went missing is said; what a copy has whole comes back."""

from __future__ import annotations

import random
import shutil
from collections.abc import Collection
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from accel_platform.cli import app
from accel_platform.cli.data import db
from accel_platform.errors import InvalidInput
from accel_platform.events import EventLog, Snapshot, codec, integrity, seal
from accel_platform.events.compaction import compact
from accel_platform.events.log import segment_key
from accel_platform.settings import Settings
from accel_platform.warehouse import publish
from accel_platform.warehouse.reader import Reader
from accel_platform.warehouse.validate import validate
from factories import event, result, verification

DATA = Path(__file__).parents[2] / "data"


def _fill(settings: Settings, *names: str) -> EventLog:
    log = EventLog.open(settings)
    for number, name in enumerate(names, 1):
        log.append([event(result(batch_size=number)), event(verification(batch_size=number))], key=name)
    return log


def _path(settings: Settings, key: str) -> Path:
    return settings.home / "log" / key


def _flip(path: Path, at: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 1 << bit
    path.write_bytes(content)


def _findings(settings: Settings, **options: object) -> dict[str, str]:
    found = validate(settings, lambda _: None, **options)  # type: ignore[arg-type]
    return {finding.name: finding.what for finding in found.findings}


class _Folder:
    """A copy of a log in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.keys = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}

    def read(self, keys: Collection[str]) -> dict[str, bytes]:
        return {key: (self._folder / key).read_bytes() for key in keys}


class TestSeal:
    def test_any_flipped_bit_and_any_cut_is_seen(self) -> None:
        for count in (1, 100):  # small segments are stored plain, larger ones compressed
            data = codec.to_parquet(
                codec.to_arrow([event(result(batch_size=n + 1)) for n in range(count)]), "segments/a"
            )
            assert seal.mismatch_reason(data, "segments/a") is None
            rows = pq.read_table(pa.BufferReader(data))
            rng = random.Random(1)
            for at in rng.sample(range(len(data)), 300):
                flipped = bytearray(data)
                flipped[at] ^= 1 << rng.randrange(8)
                if seal.is_sealed(flipped):
                    assert seal.mismatch_reason(bytes(flipped), "segments/a") is not None, at
                else:  # the flip hit the seal's own name or the file's end: the figures are as they were, or unreadable
                    try:
                        assert pq.read_table(pa.BufferReader(bytes(flipped))) == rows
                    except (pa.ArrowInvalid, OSError):
                        continue
            for end in rng.sample(range(len(data)), 100):
                assert not seal.is_sealed(data[:end]) or seal.mismatch_reason(data[:end]) is not None

    def test_content_of_another_key_is_told(self) -> None:
        data = codec.to_parquet(codec.to_arrow([event(result())]), "segments/a.parquet")
        assert seal.mismatch_reason(data, "segments/b.parquet") == "its content belongs to segments/a.parquet"


class TestDamage:
    def test_a_flip_is_named_and_set_aside_and_the_tables_are_made_without_it(self, settings: Settings) -> None:
        _fill(settings, "good", "bad")
        path = _path(settings, "segments/bad.parquet")
        _flip(path, path.stat().st_size // 3)
        said: list[str] = []
        publish.refresh(settings, progress=said.append)
        assert said[0] == (
            "set aside segments/bad.parquet (its content is not what was written), which is damaged: the tables are "
            "made without it"
        )
        assert Reader(settings).rows("SELECT batch_size FROM results") == [{"batch_size": 1}]
        [row] = Reader(settings).rows("SELECT source_path, rule, reason FROM quarantine")
        assert row["source_path"] == "segments/bad.parquet"
        assert not path.exists()
        assert len(list(_path(settings, "quarantine").iterdir())) == 1
        assert "bad" in _findings(settings)["segments_gone"]

    def test_damage_to_what_is_in_service_stops_the_rebuild_and_the_tables_stay(self, settings: Settings) -> None:
        _fill(settings, "good", "bad")
        before = publish.refresh(settings)
        path = _path(settings, "segments/bad.parquet")
        _flip(path, path.stat().st_size // 3)
        with pytest.raises(integrity.SegmentsGone, match="lost 1 segment that the tables were made of: bad"):
            publish.refresh(settings, full=True)
        assert Reader(settings).snapshot_id == before.snapshot_id
        assert Reader(settings).rows("SELECT count(*) AS n FROM results") == [{"n": 2}]

    def test_swapped_segments_are_both_named(self, settings: Settings) -> None:
        _fill(settings, "a", "b", "c")
        one, other = (_path(settings, segment_key(name)) for name in "ab")
        contents = one.read_bytes(), other.read_bytes()
        one.write_bytes(contents[1])
        other.write_bytes(contents[0])
        assert (
            "segments/a.parquet (its content belongs to segments/b.parquet)" in _findings(settings)["segments_damaged"]
        )
        mended = validate(settings, lambda _: None, fix=True)
        assert [repair.partition(":")[0] for repair in mended.repaired] == ["segments_damaged"] * 2

    def test_a_foreign_parquet_file_is_named(self, settings: Settings) -> None:
        log = _fill(settings, "a")
        pq.write_table(pa.table({"x": [1]}), _path(settings, "segments/stranger.parquet"))
        publish.refresh(settings)
        [row] = Reader(settings).rows("SELECT source_path, reason FROM quarantine")
        assert row["source_path"] == "segments/stranger.parquet"
        assert row["reason"].startswith("it is no file of events: it has no column event_id")
        assert "stranger" not in log.snapshot().segments

    def test_unsealed_segments_are_remembered_when_first_met(self, settings: Settings) -> None:
        shutil.copytree(DATA / "home-v1" / "log", _path(settings, ""), dirs_exist_ok=True)
        log = EventLog.open(settings)
        paths = sorted(_path(settings, "segments").glob("*.parquet"))
        assert paths
        assert not any(seal.is_sealed(path.read_bytes()) for path in paths)
        publish.refresh(settings)
        sources = log.sources(log.snapshot().segments)
        assert integrity.find_damage(log, sources) == []
        content = paths[0].read_bytes()
        table = pq.read_table(paths[0], partitioning=None)
        pq.write_table(table.slice(0, table.num_rows - 1) if table.num_rows > 1 else table, paths[0])
        assert paths[0].read_bytes() != content
        [damage] = integrity.find_damage(log, sources)
        assert damage.reason == "its content is not what was recorded of it"

    def test_a_damaged_pack_gives_way_to_its_originals(self, settings: Settings) -> None:
        log = _fill(settings, "a", "b", "c")
        compact(log)
        [pack] = _path(settings, "packs").glob("*.parquet")
        _flip(pack, pack.stat().st_size // 2)
        publish.refresh(settings)
        assert Reader(settings).rows("SELECT count(*) AS n FROM results") == [{"n": 3}]
        assert log.packs() == {}
        assert {"a", "b", "c"} <= log.snapshot().segments

    def test_a_damaged_segment_that_a_pack_holds_costs_nothing(self, settings: Settings) -> None:
        log = _fill(settings, "a", "b", "c")
        compact(log)
        path = _path(settings, "segments/b.parquet")
        _flip(path, 200)
        mended = validate(settings, lambda _: None, fix=True)
        assert "segments_damaged: set segments/b.parquet" in mended.repaired[0]
        assert not integrity.lost_segments(log)
        assert sum(1 for e in log.read() if e.type == "ResultRecorded") == 3

    def test_nothing_goes_that_only_a_damaged_pack_holds(self, settings: Settings) -> None:
        log = _fill(settings, "a", "b", "c")
        compact(log)
        [pack] = _path(settings, "packs").glob("*.parquet")
        _flip(pack, pack.stat().st_size // 2)
        done = compact(log, grace_s=0)
        assert done.damaged == (f"packs/{pack.name}",)
        assert sum(1 for e in log.read() if e.type == "ResultRecorded") == 3

    @pytest.mark.slow
    def test_a_cut_pack_without_originals_is_said_and_comes_back_from_a_copy(
        self, settings: Settings, tmp_path: Path
    ) -> None:
        log = _fill(settings, "a", "b", "c")
        compact(log, grace_s=0)
        publish.refresh(settings)
        shutil.copytree(_path(settings, ""), tmp_path / "copy")
        [pack] = _path(settings, "packs").glob("*.parquet")
        pack.write_bytes(pack.read_bytes()[:-20])
        with pytest.raises(integrity.SegmentsGone):
            publish.refresh(settings, full=True)
        # The rebuild looks in the pack for the segments that the catalog names, so it has set the pack aside.
        assert set(_findings(settings)) == {"segments_gone"}
        mended = validate(settings, lambda _: None, fix=True, copy=_Folder(tmp_path / "copy"))
        assert mended.findings == ()
        assert log.snapshot().segments <= EventLog.open(settings).snapshot().segments

    def test_a_pack_that_is_gone_while_its_originals_are_there_is_no_harm(self, settings: Settings) -> None:
        log = _fill(settings, "a", "b")
        compact(log)
        next(_path(settings, "packs").glob("*.parquet")).unlink()
        publish.refresh(settings)
        assert _findings(settings) == {}

    def test_what_is_exported_is_checked(self, settings: Settings, tmp_path: Path) -> None:
        from accel_platform.bench.run.campaign import export_campaign

        log = EventLog.open(settings)
        log.append([event(result())], key="bench-run-test-1")
        path = _path(settings, "segments/bench-run-test-1.parquet")
        _flip(path, 300)
        with pytest.raises(integrity.SegmentsDamaged, match="bench-run-test-1"):
            export_campaign(log, tmp_path / "campaign.parquet")


class TestGone:
    @pytest.mark.parametrize("tables", ["in service", "deleted"])
    def test_a_deleted_segment_is_an_error_with_the_way_out(self, settings: Settings, tables: str) -> None:
        _fill(settings, "a", "b", "c")
        publish.refresh(settings)
        if tables == "deleted":
            shutil.rmtree(settings.warehouse_dir)
        _path(settings, "segments/b.parquet").unlink()
        for full in (True, False):
            with pytest.raises(integrity.SegmentsGone, match=r"--forget b`"):
                publish.refresh(settings, full=full)

    def test_an_increment_notices_too(self, settings: Settings) -> None:
        log = _fill(settings, "a", "b")
        publish.refresh(settings)
        log.append([event(result(batch_size=9))], key="new")
        _path(settings, "segments/a.parquet").unlink()
        with pytest.raises(integrity.SegmentsGone):
            publish.refresh(settings)

    def test_tables_of_a_snapshot_taken_after_the_loss_are_refused_too(self, settings: Settings) -> None:
        """As the asset graph makes them: it hands the snapshot from asset to asset."""
        log = _fill(settings, "a", "b")
        publish.refresh(settings)
        log.append([event(result(batch_size=9))], key="new")
        _path(settings, "segments/a.parquet").unlink()
        with pytest.raises(integrity.SegmentsGone):
            publish.stage(settings, snapshot=log.snapshot())

    def test_all_that_is_lost_can_be_forgotten_at_once(self, settings: Settings) -> None:
        log = _fill(settings, "a", "b", "c")
        publish.refresh(settings)
        for name in "ab":
            _path(settings, segment_key(name)).unlink()
        for names, code in (("", 2), ("all", 0), ("all", 2)):
            run = CliRunner().invoke(app, ["db", "rebuild", "--forget", names, "--home", str(settings.home)])
            assert (run.exit_code if code == 0 else type(run.exception)) == (0 if code == 0 else InvalidInput), (
                run.output
            )
        assert integrity.forgotten_segments(log) == {"a", "b"}

    @pytest.mark.slow
    def test_what_is_forgotten_is_gone_for_good_and_on_record(self, settings: Settings) -> None:
        log = _fill(settings, "a", "b", "c")
        publish.refresh(settings)
        _path(settings, "segments/b.parquet").unlink()
        run = CliRunner().invoke(db.app, ["rebuild", "--forget", "b", "--home", str(settings.home)])
        assert run.exit_code == 0, run.output
        assert Reader(settings).rows("SELECT count(*) AS n FROM results") == [{"n": 2}]
        assert [e.payload.segments for e in log.read(types={"SegmentsForgotten"})] == [("b",)]  # type: ignore[attr-defined]
        assert _findings(settings) == {}
        publish.refresh(settings, full=True)

    def test_only_what_is_gone_can_be_forgotten(self, settings: Settings) -> None:
        log = _fill(settings, "a", "b")
        publish.refresh(settings)
        with pytest.raises(InvalidInput, match="a is in the log"):
            integrity.forget_segments(log, {"a"})
        with pytest.raises(InvalidInput, match="ever held zebra"):
            integrity.forget_segments(log, {"zebra"})

    @pytest.mark.slow
    def test_a_copy_brings_segments_back(self, settings: Settings, tmp_path: Path) -> None:
        log = _fill(settings, "a", "b", "c")
        publish.refresh(settings)
        shutil.copytree(_path(settings, ""), tmp_path / "copy")
        before = log.snapshot()
        _path(settings, "segments/a.parquet").unlink()
        _flip(_path(settings, "segments/b.parquet"), 100)
        mended = validate(settings, lambda _: None, fix=True, copy=_Folder(tmp_path / "copy"))
        assert mended.findings == ()
        assert "brought a, b back" in " ".join(mended.repaired)
        assert before.segments <= log.snapshot().segments
        assert sum(1 for e in log.read() if e.type == "ResultRecorded") == 3

    @pytest.mark.slow
    def test_a_pack_of_the_copy_brings_segments_back(self, settings: Settings, tmp_path: Path) -> None:
        log = _fill(settings, "a", "b", "c")
        publish.refresh(settings)
        shutil.copytree(_path(settings, ""), tmp_path / "copy")
        compact(EventLog.open(Settings(home=tmp_path, log_uri=str(tmp_path / "copy"))), grace_s=0)
        for path in _path(settings, "segments").iterdir():
            path.unlink()
        mended = validate(settings, lambda _: None, fix=True, copy=_Folder(tmp_path / "copy"))
        assert mended.findings == ()
        assert sum(1 for e in log.read() if e.type == "ResultRecorded") == 3

    def test_a_damaged_copy_gives_nothing(self, settings: Settings, tmp_path: Path) -> None:
        log = _fill(settings, "a", "b")
        publish.refresh(settings)
        shutil.copytree(_path(settings, ""), tmp_path / "copy")
        _flip(tmp_path / "copy" / "segments/a.parquet", 100)
        _path(settings, "segments/a.parquet").unlink()
        mended = validate(settings, lambda _: None, fix=True, copy=_Folder(tmp_path / "copy"))
        assert [finding.name for finding in mended.findings] == ["segments_gone"]
        assert integrity.lost_segments(log) == {"a"}


def test_a_past_moment_whose_segments_are_gone_is_said(settings: Settings) -> None:
    log = _fill(settings, "a", "b")
    publish.refresh(settings)
    _path(settings, "segments/a.parquet").unlink()
    with pytest.raises(integrity.SegmentsGone):
        publish.stage(settings, snapshot=Snapshot(frozenset({"a", "b"})), full=True)
    assert sorted(log.snapshot().segments) == ["b"]
