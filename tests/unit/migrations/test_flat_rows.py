"""Flat rows and whole databases of the old framework: by the names of their columns, with their tables joined."""

from __future__ import annotations

import sqlite3
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet
import pytest

from accel_platform.events import EventLog
from accel_platform.events.types import RecordQuarantined, ResultRecorded
from migrations.normalize.flat_rows import row_part
from migrations.normalize.records import Record, RefusedCell
from migrations.pipeline.importer import ImportReport, migrate
from migrations.sources.documents import Content, parse

ROW = {"model_name": "gpt2", "hardware_type": "cuda", "batch_size": 4, "average_latency_ms": 8.5}


def result(row: dict[str, Any]) -> ResultRecorded:
    part = row_part("/old/a", "/0", row)
    assert isinstance(part, Record), part
    return part.result


def test_a_latency_per_item_becomes_that_of_the_batch() -> None:
    per_item = result({**ROW, "throughput_items_per_second": 1000 / 8.5})
    assert (per_item.latency_mean_ms, per_item.original["units"]["average_latency_ms"]) == (34, "ms per item")
    per_batch = result({**ROW, "throughput_items_per_second": 4000 / 8.5})
    assert (per_batch.latency_mean_ms, per_batch.original["units"]["average_latency_ms"]) == (8.5, "ms")


def test_a_device_beside_the_hardware_is_its_name() -> None:
    assert result({**ROW, "device": "NVIDIA A100"}).device_name == "NVIDIA A100"
    assert result({**ROW, "device": "NVIDIA A100"}).original["stated"]["device"] == "NVIDIA A100"
    assert result({**ROW, "device": "CUDA"}).device_name is None
    assert result({**ROW, "device": "NVIDIA A100", "device_name": "A100-SXM"}).device_name == "A100-SXM"


def test_a_zero_is_no_figure_and_stays_with_the_row() -> None:
    zero = result({**ROW, "average_latency_ms": 0.0, "throughput_items_per_second": 0.0, "memory_peak_mb": 0})
    assert (zero.latency_mean_ms, zero.throughput_items_per_s, zero.memory_peak_mib) == (None, None, None)
    assert zero.original["stated"]["average_latency_ms"] == 0.0


@pytest.mark.parametrize(
    ("more", "status"),
    [
        ({}, "ok"),
        ({"success": False}, "failed"),
        ({"success": 1}, "ok"),
        ({"error_message": "out of memory"}, "failed"),
    ],
)
def test_a_row_says_whether_it_worked(more: dict[str, Any], status: str) -> None:
    found = result({**ROW, **more})
    assert found.status == status
    assert (found.latency_mean_ms is None) == (status == "failed")


def test_numbers_of_a_database_name_nothing() -> None:
    part = row_part("/old/a", "/0", {"model_id": "1", "hardware_id": "2", "average_latency_ms": "55.2"})
    assert isinstance(part, RefusedCell)
    assert part.rule == "only_database_ids"
    assert "model_id 1, hardware_id 2" in part.reason


def test_parquet_is_read_by_its_content(tmp_path: Path, log: EventLog) -> None:
    rows = [ROW, {**ROW, "batch_size": None, "average_latency_ms": float("nan"), "throughput_items_per_second": 3.5}]
    table = pa.Table.from_pylist(rows, schema=pa.schema([
        ("model_name", pa.string()), ("hardware_type", pa.string()), ("batch_size", pa.int64()),
        ("average_latency_ms", pa.float64()), ("throughput_items_per_second", pa.float64()),
    ]))  # fmt: skip
    pyarrow.parquet.write_table(table, tmp_path / "export.json")
    migrate([tmp_path / "export.json"], log)
    found = results(log)
    assert [(r.latency_mean_ms, r.throughput_items_per_s, r.batch_size) for r in found] == [
        (8.5, None, 4),
        (None, 3.5, None),
    ]


SCHEMA = """
CREATE TABLE models (model_id INTEGER, model_name VARCHAR, model_family VARCHAR);
CREATE TABLE hardware_platforms (hardware_id INTEGER, hardware_type VARCHAR, device_name VARCHAR);
CREATE TABLE test_runs (run_id INTEGER, test_name VARCHAR, started_at TIMESTAMP);
CREATE TABLE performance_results (result_id INTEGER, run_id INTEGER, model_id INTEGER, hardware_id INTEGER,
    batch_size INTEGER, average_latency_ms DOUBLE, throughput_items_per_second DOUBLE);
CREATE TABLE performance_batch_results (batch_id INTEGER, result_id INTEGER, batch_index INTEGER, batch_size INTEGER,
    latency_ms DOUBLE);
CREATE TABLE hardware_compatibility (compatibility_id INTEGER, model_id INTEGER, hardware_id INTEGER,
    is_compatible BOOLEAN, error_message VARCHAR);
CREATE TABLE benchmark_runs (id VARCHAR, timestamp TIMESTAMP, model_id VARCHAR, device VARCHAR, precision VARCHAR);
CREATE TABLE benchmark_results (id VARCHAR, run_id VARCHAR, batch_size INTEGER, sequence_length INTEGER,
    latency_mean_ms DOUBLE, throughput_samples_per_sec DOUBLE);
CREATE TABLE raw_benchmark_data (id VARCHAR, run_id VARCHAR, raw_data VARCHAR);
CREATE TABLE surprises (what VARCHAR);
INSERT INTO models VALUES (1, 'bert-base-uncased', 'bert');
INSERT INTO hardware_platforms VALUES (2, 'cuda', 'Quadro P4000');
INSERT INTO test_runs VALUES (7, 'nightly', '2025-03-03 05:31:01');
INSERT INTO performance_results VALUES (1, 7, 1, 2, 4, 55.0, 72.7), (2, 7, 1, 9, 1, 6.1, 163.9);
INSERT INTO performance_batch_results VALUES (1, 1, 1, 4, 55.5), (2, 1, 0, 4, 54.5);
INSERT INTO hardware_compatibility VALUES (1, 1, 2, false, 'no kernel image');
INSERT INTO benchmark_runs VALUES ('a', '2025-03-04 10:00:00', 't5-small', 'cpu', 'fp32'),
    ('b', '2025-03-04 11:00:00', 'gpt2', 'cpu', 'fp32');
INSERT INTO benchmark_results VALUES ('x', 'a', 2, 128, 21.5, 93.0), ('y', 'b', 1, 64, 9.5, 105.3);
INSERT INTO raw_benchmark_data VALUES ('r', 'b',
    '{"model_id": "gpt2", "device": "cpu", "batch_results": {"b1_s64": {"latency_ms": [9.25, 9.75]}}}');
INSERT INTO surprises VALUES ('what is this');
"""


def results(log: EventLog) -> list[ResultRecorded]:
    return [e.payload for e in log.read(types={"ResultRecorded"}) if isinstance(e.payload, ResultRecorded)]


class TestDatabase:
    @pytest.fixture(params=["duckdb", "sqlite"])
    def imported(self, request: pytest.FixtureRequest, tmp_path: Path, log: EventLog) -> tuple[ImportReport, EventLog]:
        path = tmp_path / "benchmark.db"
        if request.param == "duckdb":
            with duckdb.connect(str(path)) as con:
                con.execute(SCHEMA)
        else:
            sqlite = sqlite3.connect(path)
            sqlite.executescript(SCHEMA)
            sqlite.close()
        return migrate([path], log), log

    def test_the_tables_are_joined(self, imported: tuple[ImportReport, EventLog]) -> None:
        (found,) = [r for r in results(imported[1]) if r.samples_ns and r.hardware == "cuda"]
        assert (found.model_id, found.device_name, found.batch_size) == ("bert-base", "Quadro P4000", 4)
        assert found.samples_ns == (54_500_000, 55_500_000)
        assert found.occurred_local == datetime.fromisoformat("2025-03-03T05:31:01")

    def test_a_failure_keeps_its_message(self, imported: tuple[ImportReport, EventLog]) -> None:
        (failed,) = [r for r in results(imported[1]) if r.status == "failed"]
        assert failed.reason == "no kernel image"

    def test_the_second_schema_is_read_and_a_raw_document_in_place_of_its_rows(
        self, imported: tuple[ImportReport, EventLog]
    ) -> None:
        by_model = {r.model_id: r for r in results(imported[1]) if r.hardware == "cpu"}
        assert by_model["t5-small"].latency_mean_ms == 21.5
        assert by_model["gpt2"].samples_ns == (9_250_000, 9_750_000)
        assert "#/raw_benchmark_data/0/raw_data" in (by_model["gpt2"].source_path or "")
        assert len(results(imported[1])) == 4

    def test_what_nobody_can_name_or_knows_is_refused(self, imported: tuple[ImportReport, EventLog]) -> None:
        kept = [e.payload for e in imported[1].read(types={"RecordQuarantined"})]
        rules = {q.rule: q for q in kept if isinstance(q, RecordQuarantined)}
        assert set(rules) == {"only_database_ids", "unknown_table"}
        assert "what is this" in rules["unknown_table"].content


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        (b"PAR1 and nothing", "a Parquet file that cannot be read"),
        (b"01234567DUCK" + b"\0" * 100, "a DuckDB database that cannot be read"),
        (b"SQLite format 3\0" + b"\xff" * 100, "a SQLite database that cannot be read"),
    ],
)
def test_a_broken_database_says_so(raw: bytes, problem: str) -> None:
    document = parse(Content.of(raw, "/old/x"))
    assert document.kind == "unreadable"
    assert problem in (document.problem or "")


def test_values_of_a_database_are_json(tmp_path: Path) -> None:
    table = pa.table({"d": [Decimal("1.5")], "b": [b"x\xff"], "s": [{"a": [1]}], "t": [date(2025, 1, 2)]})
    pyarrow.parquet.write_table(table, tmp_path / "x")
    (row,) = parse(Content.of((tmp_path / "x").read_bytes(), "x")).value
    assert row == {"d": 1.5, "b": "x\\xff", "s": {"a": [1]}, "t": "2025-01-02"}
