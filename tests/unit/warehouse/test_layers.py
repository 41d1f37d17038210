"""The tables are a function of the set of events, and only audited tables are published."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pytest
from generated_logs import arrivals
from hypothesis import Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from accel_platform.analysis.query.cells import read_cells
from accel_platform.analysis.query.filters import Selection
from accel_platform.analysis.summaries.baselines import speedups
from accel_platform.analysis.summaries.matrix import compatibility_matrix
from accel_platform.analysis.summaries.missing_data import MissingData
from accel_platform.bench.measure.contention import Contention, disturbance_by_others
from accel_platform.cli.results.matrix import _cell_text
from accel_platform.errors import AccelError, InvalidInput, LogUnavailable, WarehouseEmpty
from accel_platform.events import Event, EventLog
from accel_platform.events.types import (
    ArchitectureChecked,
    BenchmarkRequested,
    DeviceObserved,
    DocumentImported,
    HostObserved,
    KnowledgeAdded,
    RecordQuarantined,
    RegressionFound,
    ResultSuspected,
    SegmentQuarantined,
    Suspicion,
    SuspicionOverruled,
)
from accel_platform.hardware.catalog import find_spec
from accel_platform.settings import Settings
from accel_platform.warehouse import build_layer, layers, publish, rules
from accel_platform.warehouse.layers import (
    TABLES,
    Layer,
    Projection,
    WarehouseDamaged,
    WarehouseOutdated,
    current,
    require_current,
)
from accel_platform.warehouse.reader import Reader
from accel_platform.warehouse.validate import validate
from factories import event, result, verification

H100 = "NVIDIA H100 SXM5 80GB"
NVL = "NVIDIA H100 NVL"


def _stage_and_publish(settings: Settings, *, full: bool = False) -> Projection:
    staged = publish.stage(settings, full=full)
    publish.publish(settings, staged)
    return staged.projection


def _tables(projection: Projection) -> dict[str, list[str]]:
    with projection.open() as con:
        return {table: sorted(map(repr, con.execute(f"SELECT * FROM {table}").fetchall())) for table in TABLES}


def _differences(one: dict[str, list[str]], other: dict[str, list[str]]) -> dict[str, Any]:
    return {table: (one[table], other[table]) for table in TABLES if one[table] != other[table]}


_SERIES: Any = {"model_id": "bert-base", "hardware": "cpu", "device_id": "d", "fingerprint": "f", "mode": "inference",
                "precision": "float32", "batch_size": 1}  # fmt: skip
_DOUBT: Any = {"rule": "r", "verdict": "suspect", "evidence": "e", "confidence": 0.5}
_OF_EACH_TYPE: list[Any] = [
    result(),
    result(batch_size=2_000_000),  # breaks a rule
    result(provenance="suspect", samples_ns=(), latency_mean_ms=1.0, suspicions=(Suspicion(**_DOUBT),)),
    verification(),
    DocumentImported(source_path="f", content_sha256="0", format="x", outcome="imported", size_bytes=1),
    RecordQuarantined(source_path="f", rule="r", reason="?", content="c"),
    SegmentQuarantined(key="k", moved_to="m", reason="r", segments=()),
    ResultSuspected(**_DOUBT, result_id=UUID(int=0)),
    SuspicionOverruled(result_id=UUID(int=0), rule="r", by="b", reason="?"),
    KnowledgeAdded(pack="p", version="1", card={}),
    HostObserved(hostname="h", os="x", cpu_model="c", cpu_cores_logical=1, memory_mib=1.0),
    DeviceObserved(hardware="cpu", backend="pytorch", available=True, device_id="d", name="n"),
    BenchmarkRequested(requested_by="cli", hardware="cpu", config={}),
    ArchitectureChecked(model_type="bert", family="f", category="c", hardware="cpu", status="ok"),
    RegressionFound(**_SERIES, regression_id="a", found_by="check", state="regressed", before_ms=1.0, after_ms=2.0,
                    processes_before=1, processes_after=1, first_result=UUID(int=0), evidence=()),
]  # fmt: skip


def _made(settings: Settings) -> dict[str, tuple[list[Any], int]]:
    """Build a layer of all events; columns and number of rows of the tables that need events of some type."""
    with publish.refresh(settings, full=True).projection.open() as con:
        return {
            table: (
                con.execute(f"DESCRIBE layer_0.{table}").fetchall(),
                len(con.execute(f"FROM layer_0.{table}").fetchall()),
            )
            for table in build_layer.SOURCES
        }


def test_tables_without_events_of_their_types_are_empty_and_have_their_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_layer, "_layouts", {})
    every = Settings(home=tmp_path / "every")
    EventLog.open(every).append(list(map(event, _OF_EACH_TYPE)))
    whole = _made(every)
    assert [table for table, (_, rows) in whole.items() if not rows] == ["late_verdicts"], "it is of lower results"
    of_results = {"result_rows", "results_by_model", "results_by_run", "quarantine", "suspicions", "hosts", "devices",
                  "import_ledger"}  # fmt: skip
    for number, without in enumerate((of_results, build_layer.SOURCES.keys() - of_results)):
        types = set[str]().union(*(build_layer.SOURCES[table] for table in without))
        some = Settings(home=tmp_path / str(number))
        EventLog.open(some).append([event(p) for p in _OF_EACH_TYPE if type(p).__name__ not in types])
        monkeypatch.setattr(build_layer, "_layouts", {})
        selected = _made(some)
        assert {table for table, (_, rows) in selected.items() if not rows} == without | {"late_verdicts"}
        assert _made(some) == selected, "declared as they are selected"


def test_one_thread_builds_the_tables_of_a_small_log(
    log: EventLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append([event(result()), event(verification())])
    threads = list[int]()

    def note_threads(con: duckdb.DuckDBPyConnection, *_: object) -> None:
        threads.extend(con.execute("SELECT current_setting('threads')").fetchone() or ())

    for most in (2, 1):
        monkeypatch.setattr(build_layer, "_ONE_THREAD_EVENTS", most)
        path = tmp_path / f"{most}.duckdb"
        assert build_layer.fill_layer(path, log, log.snapshot().segments, None, None, note_threads) == 2
    with duckdb.connect() as con:
        assert threads == [1, *(con.execute("SELECT current_setting('threads')").fetchone() or ())]


def test_what_few_layers_have_is_found_wherever_it_is(settings: Settings, log: EventLog) -> None:
    log.append([event(result(batch_size=size)) for size in range(1, 21)])
    rare = {"late_verdicts": verification(), "suspicions": _OF_EACH_TYPE[2], "quarantine": _OF_EACH_TYPE[1]}
    publish.refresh(settings)
    for number, payload in enumerate(rare.values(), 1):
        with publish.refresh(settings).projection.open() as con:
            found = [table for table in rare if con.execute(f"FROM {table}").fetchall()]
        assert found == list(rare)[: number - 1]
        log.append([event(payload)])
    with publish.refresh(settings).projection.open() as con:
        assert [len(con.execute(f"FROM {table}").fetchall()) for table in rare] == [1, 1, 1]


@pytest.mark.slow
@given(arrivals())
@hypothesis_settings(max_examples=15, phases=[Phase.explicit, Phase.reuse, Phase.generate])  # a step costs 0.3 s
def test_any_arrival_incremental_or_full_gives_equal_rows(arrival: tuple[list[Event], list[list[Event]]]) -> None:
    events, batches = arrival
    with tempfile.TemporaryDirectory() as directory:
        at_once = Settings(home=Path(directory) / "at-once")
        EventLog.open(at_once).append(events)
        expected = _tables(_stage_and_publish(at_once))
        in_parts = Settings(home=Path(directory) / "in-parts")
        for number, batch in enumerate(batches):
            EventLog.open(in_parts).append(batch, key=f"batch-{number}")
            grown = _stage_and_publish(in_parts)
        assert _differences(_tables(grown), expected) == {}
        assert _differences(_tables(_stage_and_publish(in_parts, full=True)), expected) == {}
    assert len(expected["events"]) == len(events)


def test_a_rebuild_gives_back_deleted_tables(settings: Settings, log: EventLog) -> None:
    log.append([event(result()), event(verification())])
    before = _tables(_stage_and_publish(settings))
    for path in settings.warehouse_dir.iterdir():
        path.unlink()
    assert current(settings) is None
    publish.refresh(settings)
    assert _tables(require_current(settings)) == before


def test_a_refresh_gives_the_tables_that_its_steps_give(settings: Settings, log: EventLog) -> None:
    log.append([event(result(batch_size=size)) for size in range(1, 41)])
    publish.refresh(settings)
    log.append([event(result()), event(verification()), event(verification(batch_size=2, passed=False))])
    grown = publish.refresh(settings)
    assert (grown.mode, len(grown.projection.layers)) == ("incremental", 2)
    assert next(check.rows for check in grown.checks if check.rule == "model_named") == 1
    assert _differences(_tables(grown.projection), _tables(_stage_and_publish(settings, full=True))) == {}


def test_times_are_in_utc_whatever_the_time_zone_of_the_host(settings: Settings, log: EventLog) -> None:
    log.append([event(result(), occurred_at=datetime(2026, 11, 20, 23, 30, tzinfo=UTC))])
    publish.refresh(settings)
    sql = "SELECT strftime(occurred_at, '%Y-%m-%d %H:%M') AS text, occurred_at::DATE AS day, occurred_at FROM results"
    read = (
        "import sys; from pathlib import Path; from accel_platform.settings import Settings;"
        "from accel_platform.warehouse.reader import Reader;"
        "reader = Reader(Settings(home=Path(sys.argv[1])));"
        "[row] = reader.rows(sys.argv[2]); print(row['text'], row['day'], row['occurred_at'].isoformat());"
        "print(reader.arrow(sys.argv[2]).schema.field('occurred_at').type)"
    )
    command = [sys.executable, "-c", read, str(settings.home), sql]
    env = {**os.environ, "TZ": "Asia/Kolkata"}
    found = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout.splitlines()
    assert found == ["2026-11-20 23:30 2026-11-20 2026-11-20T23:30:00+00:00", "timestamp[us, tz=UTC]"]


def test_old_events_are_lifted_on_their_way(settings: Settings) -> None:
    segments = settings.home / "log" / "segments"
    segments.mkdir(parents=True)
    stored = Path(__file__).parents[2] / "data" / "home-v1" / "log" / "segments" / "run-v1.parquet"
    (segments / stored.name).write_bytes(stored.read_bytes())
    _stage_and_publish(settings)
    [row] = Reader(settings).rows("SELECT samples, latency_max_ms, memory_peak_mib FROM results")
    assert row == {"samples": 3, "latency_max_ms": 26.5, "memory_peak_mib": pytest.approx(488.28125)}


class TestFigures:
    """Figures in a `results` row."""

    @pytest.fixture
    def row(self, settings: Settings, log: EventLog) -> Any:
        def of(**changes: Any) -> dict[str, Any]:
            log.append([event(result(**changes))])
            _stage_and_publish(settings)
            [only] = Reader(settings).rows("SELECT * FROM results")
            return only

        return of

    def test_statistics_come_from_the_samples(self, row: Any) -> None:
        got = row(samples_ns=tuple(range(1_000_000, 12_000_000, 1_000_000)), batch_size=4)
        assert (got["samples"], got["latency_mean_ms"], got["latency_p50_ms"]) == (11, 6.0, 6.0)
        assert (got["latency_min_ms"], got["latency_max_ms"]) == (1.0, 11.0)
        assert got["latency_std_ms"] == pytest.approx(3.3166247903554)
        assert got["throughput_items_per_s"] == pytest.approx(4 / 0.006)

    def test_a_percentile_needs_samples_enough(self, settings: Settings, log: EventLog) -> None:
        enough = {10: 0, 11: 1, 63: 1, 64: 2, 130: 3, 661: 3, 662: 4}
        log.append([event(result(samples_ns=tuple(range(1, count + 1)))) for count in enough])
        _stage_and_publish(settings)
        for got in Reader(settings).rows("SELECT * FROM results"):
            known = [got[f"latency_{p}_ms"] is not None for p in ("p50", "p90", "p95", "p99")]
            assert known == [True] * enough[got["samples"]] + [False] * (4 - enough[got["samples"]])

    def test_quantiles_agree_with_numpy(self, row: Any) -> None:
        import numpy as np

        samples = np.random.default_rng(7).integers(1, 10**9, 700)
        got = row(samples_ns=tuple(samples.tolist()))
        for name, q in {"p50": 0.5, "p90": 0.9, "p95": 0.95, "p99": 0.99}.items():
            assert got[f"latency_{name}_ms"] == pytest.approx(np.quantile(samples, q) / 1e6)

    def test_claims_stand_where_there_are_no_samples(self, row: Any) -> None:
        got = row(samples_ns=(), provenance="imported", latency_mean_ms=5.0, latency_p99_ms=9.0, iterations=3)
        assert (got["latency_mean_ms"], got["latency_p99_ms"], got["samples"]) == (5.0, 9.0, 3)
        assert got["throughput_items_per_s"] is None
        assert got["latency_p50_ms"] is None

    def test_tokens_per_second_follow_from_the_samples(self, row: Any) -> None:
        got = row(mode="generation", batch_size=2, output_tokens=32, samples_ns=(100_000_000,) * 12)
        assert got["throughput_items_per_s"] == pytest.approx(20)
        assert got["throughput_tokens_per_s"] == pytest.approx(640)

    def test_tokens_per_second_may_be_stated_where_nothing_gives_them(self, row: Any) -> None:
        stated = {"mode": "generation", "samples_ns": (), "batch_size": None, "throughput_tokens_per_s": 12.5}
        assert row(**stated)["throughput_tokens_per_s"] == 12.5

    def test_each_of_several_processes_has_a_batch_of_its_own(self, row: Any) -> None:
        got = row(mode="training", batch_size=2, processes=3, samples_ns=(100_000_000,) * 12)
        assert got["throughput_items_per_s"] == pytest.approx(60)
        assert got["throughput_tokens_per_s"] is None

    def test_raw_samples_are_kept_in_order(self, settings: Settings, row: Any) -> None:
        row(samples_ns=(3_000_000, 1_000_000, 2_000_000))
        assert [r["latency_ms"] for r in Reader(settings).rows("SELECT * FROM samples ORDER BY sample")] == [3, 1, 2]


class TestRules:
    """A row that breaks a rule is set aside with the rule's name; a table that does is not published."""

    def test_a_broken_row_goes_to_quarantine(self, settings: Settings, log: EventLog) -> None:
        good, bad = event(result()), event(result(device_id=None, fingerprint=None))
        log.append([good, bad])
        _stage_and_publish(settings)
        reader = Reader(settings)
        assert [r["event_id"] for r in reader.rows("SELECT event_id FROM results")] == [good.event_id]
        aside = reader.rows("SELECT event_id, rule, content FROM quarantine ORDER BY rule")
        assert [r["rule"] for r in aside] == ["measured_has_fingerprint", "measured_names_device"]
        assert {r["event_id"] for r in aside} == {bad.event_id}
        assert '"model_id":"bert-base"' in aside[0]["content"]

    _BREAKING = {  # noqa: RUF012 - never changed
        "failure_has_reason": {"status": "failed", "samples_ns": ()},
        "latency_plausible": {"samples_ns": (0, 0)},
        "latency_min_positive": {"samples_ns": (0, 5)},
        "memory_plausible": {"memory_peak_mib": 1e9},
        "measured_names_device": {"device_id": None},
        "measured_has_fingerprint": {"fingerprint": None},
        "throughput_plausible": {"samples_ns": (), "throughput_items_per_s": 0.0, "provenance": "imported"},
        "p50_not_above_p90": {"samples_ns": (), "latency_p50_ms": 2.0, "latency_p90_ms": 1.0, "provenance": "imported"},
        "p90_not_above_p95": {"samples_ns": (), "latency_p90_ms": 2.0, "latency_p95_ms": 1.0, "provenance": "imported"},
        "p95_not_above_p99": {"samples_ns": (), "latency_p95_ms": 2.0, "latency_p99_ms": 1.0, "provenance": "imported"},
        "scaling_efficiency_positive": {"scaling_efficiency": 0.0},
        "prefill_not_above_first_token": {"prefill_ms": 2.0, "time_to_first_token_ms": 1.0},
        "first_token_not_above_max": {"time_to_first_token_ms": 500.0},
        "forward_not_above_max": {"forward_ms": 500.0},
        "min_not_above_max": {"samples_ns": (), "latency_min_ms": 2.0, "latency_max_ms": 1.0, "provenance": "imported"},
    }

    @pytest.mark.parametrize("rule", _BREAKING)
    @pytest.mark.slow
    def test_both_renderings_of_a_rule_agree(self, settings: Settings, log: EventLog, rule: str) -> None:
        log.append([event(result()), event(result(**self._BREAKING[rule]))])
        staged = publish.stage(settings)
        with staged.projection.open() as con:
            set_aside = con.execute("SELECT DISTINCT rule FROM quarantine").fetchall()
            columns = ", ".join(f"{sql} AS {column}" for column, sql in rules.audited_columns().items())
            every_row = con.execute(f"SELECT {columns} FROM result_rows").df()
            by_sql = rules.audit(con, "SELECT * FROM result_rows")
        assert (rule,) in set_aside
        for verdicts in (rules.audit_by_expectations(every_row), by_sql):
            found = {check.rule: check for check in verdicts}
            assert (found[rule].passed, found[rule].broken, len(found[rule].examples)) == (False, 1, 1)
            assert {name for (name,) in set_aside} == {name for name, check in found.items() if not check.passed}

    _CLAIMED = (
        ("hardware_known", {"hardware": "abacus"}),
        ("latency_p50_plausible", {"latency_p50_ms": 0.0}),
        ("latency_p99_plausible", {"latency_p99_ms": 1e9}),
        ("latency_max_plausible", {"latency_max_ms": 1e9}),
        ("throughput_plausible", {"throughput_items_per_s": 1e13}),
        ("device_memory_plausible", {"memory_device_peak_mib": 1e9}),
        ("batch_size_plausible", {"batch_size": 2**40}),
        ("sequence_length_plausible", {"sequence_length": 2**40}),
        ("p50_not_above_p99", {"latency_p50_ms": 2.0, "latency_p99_ms": 1.0}),
        ("min_not_above_p50", {"latency_min_ms": 2.0, "latency_p50_ms": 1.0}),
        ("p50_not_above_max", {"latency_p50_ms": 2.0, "latency_max_ms": 1.0}),
        ("min_not_above_mean", {"latency_min_ms": 2.0, "latency_mean_ms": 1.0}),
        ("mean_not_above_max", {"latency_mean_ms": 2.0, "latency_max_ms": 1.0}),
        ("not_in_the_future", {"occurred_local": datetime.fromisoformat("2199-01-01T00:00:00")}),
        ("first_token_plausible", {"time_to_first_token_ms": 1e9}),
        ("output_token_plausible", {"time_per_output_token_ms": 1e9}),
    )

    def test_what_imported_rows_may_not_claim(self, settings: Settings, log: EventLog) -> None:
        claim = {"provenance": "imported", "samples_ns": (), "device_id": None, "fingerprint": None}
        honest = {
            "occurred_local": datetime.now(),  # noqa: DTZ005 - a file's time without a zone
            "latency_mean_ms": 5.000000000000001,  # the mean of equal figures, as summing gives it
            "latency_min_ms": 5.0,
            "latency_max_ms": 5.0,
            "latency_p99_ms": 5.2,  # extrapolated from few samples
        }
        claims = [event(result(**claim, **said), occurred_at=None) for said in (honest, *(c for _, c in self._CLAIMED))]
        log.append(claims)
        staged = publish.stage(settings)
        with staged.projection.open() as con:
            set_aside = con.execute("SELECT rule, count(*) FROM quarantine GROUP BY rule").fetchall()
            columns = ", ".join(f"{sql} AS {column}" for column, sql in rules.audited_columns().items())
            every_row = con.execute(f"SELECT {columns} FROM result_rows").df()
            by_sql = rules.audit(con, "SELECT * FROM result_rows")
            assert con.execute("SELECT count(*) FROM results").fetchall() == [(1,)]
        assert {rule for rule, _ in self._CLAIMED} <= {rule for rule, _ in set_aside}
        by_expectations = rules.audit_by_expectations(every_row)
        for verdicts in (by_sql, by_expectations):
            assert dict(set_aside) == {check.rule: check.broken for check in verdicts if check.broken}
        assert [check.rows for check in by_sql] == [check.rows for check in by_expectations]

    def test_tables_that_break_a_rule_are_not_published(
        self, settings: Settings, log: EventLog, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log.append([event(result())])
        publish.refresh(settings)
        serving = require_current(settings)
        log.append([event(result())])
        stricter = rules.Between("latency_below_a_microsecond", "latency_mean_ms", 0, 0.001)
        monkeypatch.setattr(rules, "RULES", (*rules.RULES, stricter))
        with pytest.raises(publish.ChecksFailed, match="latency_below_a_microsecond"):
            publish.refresh(settings)
        assert require_current(settings) == serving
        assert [path.name for path in settings.warehouse_dir.glob("*layer-*")] == [serving.layers[-1].file]


class TestMatrix:
    """Only verified measurements and unsuspected imports count."""

    def _matrix(self, settings: Settings, log: EventLog, *payloads: Any) -> dict[str, dict[str, Any]]:
        log.append([event(payload) for payload in payloads])
        _stage_and_publish(settings)
        return {row["hardware"]: row for row in Reader(settings).rows("SELECT * FROM compat_matrix")}

    def test_verified_is_compatible_and_rated_against_the_best(self, settings: Settings, log: EventLog) -> None:
        slow = tuple(50_000_000 for _ in range(12))
        fast = tuple(20_000_000 for _ in range(12))
        cells = self._matrix(
            settings, log,
            result(samples_ns=slow), verification(),
            result(samples_ns=fast, hardware="openvino", backend="openvino"),
            verification(hardware="openvino", backend="openvino"),
        )  # fmt: skip
        assert (cells["openvino"]["state"], cells["openvino"]["rating"]) == ("compatible", "high")
        assert (cells["cpu"]["state"], cells["cpu"]["rating"]) == ("compatible", "medium")
        assert cells["cpu"]["relative_speed"] == pytest.approx(0.4)

    def test_one_device_alone_has_no_rating(self, settings: Settings, log: EventLog) -> None:
        cells = self._matrix(settings, log, result(), verification())
        assert (cells["cpu"]["state"], cells["cpu"]["rating"]) == ("compatible", None)

    def test_a_later_run_outlives_an_earlier_verdict(self, settings: Settings, log: EventLog) -> None:
        log.append([event(result(), run_id="old driver"), event(verification(passed=False), run_id="old driver")])
        log.append([event(result(), run_id="new driver"), event(verification(), run_id="new driver")])
        _stage_and_publish(settings)
        [cell] = Reader(settings).rows("SELECT * FROM compat_matrix")
        assert (cell["state"], cell["results_ok"], cell["results_failed"]) == ("compatible", 1, 1)
        assert len(Reader(settings).rows("SELECT * FROM usable_results")) == 1

    def test_the_newest_attempt_decides_and_tells_when_it_worked(self, settings: Settings, log: EventLog) -> None:
        def run(name: str, day: int, *payloads: Any) -> None:
            at = datetime(2026, 11, day, tzinfo=UTC)
            log.append([event(payload, run_id=name, occurred_at=at) for payload in payloads])

        run("good", 3, result(), verification(), result(batch_size=4), verification(batch_size=4))
        run("bad", 9, result(status="failed", reason="no such operator", samples_ns=()))
        _stage_and_publish(settings)
        reader = Reader(settings)
        [cell] = reader.rows("SELECT * FROM compat_matrix")
        assert (cell["state"], cell["batch_size"]) == ("compatible", 4), "another shape still works"
        assert cell["reason"] == "worked until 2026-11-03, failed on 2026-11-09: no such operator"
        run("worse", 10, result(batch_size=4, status="failed", reason="no such operator", samples_ns=()))
        run("unverified", 11, result())
        _stage_and_publish(settings)
        [cell] = reader.rows("SELECT * FROM compat_matrix")
        assert (cell["state"], cell["results_ok"], cell["results_failed"]) == ("failed", 2, 2)
        assert (cell["last_worked_at"].day, cell["last_failed_at"].day) == (3, 10)
        shown = compatibility_matrix(reader)["models"]["bert-base"]["cpu"]
        assert _cell_text(shown, None) == "failed n=2 (worked until 2026-11-03)"

    def test_a_disturbed_measurement_is_no_headline(self, settings: Settings, log: EventLog) -> None:
        busy = {"contention": {"others_share": 0.6, "waiting_share": 0.55}}
        slow, fast = (240_000_000,) * 12, (1_500_000,) * 12
        there = {"hardware": "openvino", "backend": "openvino"}
        cells = self._matrix(
            settings, log, result(samples_ns=slow, environment=busy), verification(),
            result(samples_ns=fast, **there), verification(**there),
        )  # fmt: skip
        assert (cells["cpu"]["state"], cells["cpu"]["disturbed"], cells["cpu"]["rating"]) == ("compatible", True, None)
        assert cells["openvino"]["rating"] is None, "there is nothing to compare it with"
        reader = Reader(settings)
        assert speedups(read_cells(reader, Selection())) == []
        found = compatibility_matrix(reader)
        shown = _cell_text(found["models"]["bert-base"]["cpu"], found["shapes"]["bert-base"])
        assert shown == "works 240.0 ms, disturbed n=1"
        # Repeated in calm, the disturbed figure no longer takes part.
        calm = tuple(2 * time for time in fast)
        log.append([event(p, run_id="calm") for p in (result(samples_ns=calm), verification())])
        _stage_and_publish(settings)
        [cpu] = reader.rows("SELECT * FROM compat_matrix WHERE hardware = 'cpu'")
        assert (cpu["latency_p50_ms"], cpu["disturbed"], cpu["relative_speed"]) == (3.0, False, 0.5)
        assert [row["speedup"] for row in speedups(read_cells(reader, Selection()))] == [2.0]
        assert len(reader.rows("SELECT * FROM usable_results WHERE hardware = 'cpu'")) == 1

    def test_disturbed_is_what_the_measurement_says(self, settings: Settings, log: EventLog) -> None:
        seen = [Contention(o, w) for o in (0.0, 0.02, 0.03, 0.15, 0.16) for w in (None, 0.0, 0.05, 0.06, 1.0)]
        log.append([event(result(batch_size=n, environment={"contention": vars(s)})) for n, s in enumerate(seen, 1)])
        _stage_and_publish(settings)
        rows = Reader(settings).rows("SELECT disturbed FROM results ORDER BY batch_size")
        told = dict(zip(seen, (row["disturbed"] for row in rows), strict=True))
        assert told == {one: disturbance_by_others(one) is not None for one in seen}
        assert set(told.values()) == {True, False}

    def test_results_and_their_verifications_may_come_in_different_layers(
        self, settings: Settings, log: EventLog
    ) -> None:
        def verified() -> dict[int, bool | None]:
            rows = Reader(settings).rows("SELECT batch_size, verified FROM results WHERE batch_size <= 4")
            return {row["batch_size"]: row["verified"] for row in rows}

        filler = [event(result(batch_size=n)) for n in range(100, 180)]  # so that layers stay apart
        log.append(
            [event(result()), event(result(batch_size=2), run_id=None), event(verification(batch_size=4)), *filler]
        )
        publish.refresh(settings)
        assert verified() == {1: None, 2: None}
        log.append([event(verification()), event(verification(batch_size=2), run_id=None), event(result(batch_size=4))])
        log.append([event(verification(batch_size=2), run_id="another"), event(result(batch_size=3))])
        publish.refresh(settings)
        assert verified() == {1: True, 2: True, 3: None, 4: True}
        for run_id, batch_size in ((None, 2), ("run-test", 4)):
            log.append([event(verification(batch_size=batch_size, passed=False), run_id=run_id)])
            publish.refresh(settings)
        assert len(require_current(settings).layers) > 1
        assert verified() == {1: True, 2: False, 3: None, 4: False}
        publish.refresh(settings, full=True)
        assert len(require_current(settings).layers) == 1
        assert verified() == {1: True, 2: False, 3: None, 4: False}

    def test_one_verified_cell_does_not_vouch_for_another(self, settings: Settings, log: EventLog) -> None:
        log.append([event(result()), event(verification()), event(result(batch_size=64))])
        _stage_and_publish(settings)
        assert [r["batch_size"] for r in Reader(settings).rows("SELECT * FROM usable_results")] == [1]

    def test_one_mode_does_not_vouch_for_another(self, settings: Settings, log: EventLog) -> None:
        log.append([event(p) for p in (result(), verification(), result(mode="generation"), result(mode="training"))])
        log.append([event(verification(mode="training", passed=False))])
        _stage_and_publish(settings)
        reader = Reader(settings)
        states = reader.rows("SELECT mode, state, reason FROM compat_matrix ORDER BY mode")
        assert [(row["mode"], row["state"], row["reason"]) for row in states] == [
            ("inference", "compatible", None),
            ("training", "failed", "outputs differ from the reference"),
        ]
        assert [row["mode"] for row in reader.rows("SELECT mode FROM usable_results")] == ["inference"]
        assert compatibility_matrix(reader)["models"]["bert-base"]["cpu"]["state"] == "compatible"
        assert compatibility_matrix(reader, mode="generation")["models"] == {}
        assert compatibility_matrix(reader, mode="training")["models"]["bert-base"]["cpu"]["state"] == "failed"

    def test_devices_are_compared_with_equally_many_processes_only(self, settings: Settings, log: EventLog) -> None:
        def trained(count: int, **changes: Any) -> list[Any]:
            of = {"mode": "training", "processes": count}
            return [
                result(**of, **changes),
                verification(**of, **{k: changes[k] for k in changes if k != "samples_ns"}),
            ]

        cells = self._matrix(
            settings, log, *trained(1), *trained(2, hardware="cuda", device_id="gpu", samples_ns=(1_000_000,) * 12)
        )
        assert {name: (cell["state"], cell["rating"]) for name, cell in cells.items()} == {
            "cpu": ("compatible", None), "cuda": ("compatible", None),
        }  # fmt: skip

    def test_what_fails_today_is_not_hidden_by_what_worked_once(self, settings: Settings, log: EventLog) -> None:
        broken = {"status": "failed", "reason": "driver mismatch", "samples_ns": ()}
        log.append([event(result()), event(verification())])
        log.append([event(result(**broken))])
        _stage_and_publish(settings)
        [cell] = Reader(settings).rows("SELECT * FROM compat_matrix")
        assert (cell["state"], cell["results_ok"], cell["results_failed"]) == ("failed", 1, 1)
        assert re.fullmatch(r"worked until 20.*, failed on 20.*: driver mismatch", cell["reason"])
        # Another shape that works speaks for the model, unless it ran on the machine as it was before a change.
        log.append([event(result(batch_size=4)), event(verification(batch_size=4))])
        publish.refresh(settings)
        assert Reader(settings).rows("SELECT state FROM compat_matrix") == [{"state": "compatible"}]
        log.append([event(result(fingerprint="new driver", **broken))])
        publish.refresh(settings)
        assert [row["state"] for row in Reader(settings).rows("SELECT state FROM compat_matrix")] == ["failed"]

    def test_wrong_outputs_failed_and_unverified_ones_did_not(self, settings: Settings, log: EventLog) -> None:
        cells = self._matrix(
            settings, log,
            result(),
            result(hardware="openvino"), verification(hardware="openvino", passed=False),
            result(hardware="onnxruntime", status="failed", reason="unsupported operator", samples_ns=()),
        )  # fmt: skip
        assert {name: (cell["state"], cell["reason"]) for name, cell in cells.items()} == {
            "openvino": ("failed", "outputs differ from the reference"),
            "onnxruntime": ("failed", "unsupported operator"),
        }
        reader = Reader(settings)
        failed = reader.rows("SELECT hardware FROM judged_results WHERE failed ORDER BY hardware")
        assert [row["hardware"] for row in failed] == ["onnxruntime", "openvino"]
        gaps = MissingData(reader, Selection())
        assert (gaps.failures, gaps.unverified) == (2, 1)
        assert [(row["results"], row["ok"], row["failed"]) for row in gaps.by_provenance] == [(3, 1, 2)]
        log.append([event(p) for p in (result(model_id="x"), verification(model_id="x"))])
        log.append([event(result(model_id="x", hardware="openvino"))])
        publish.refresh(settings)
        cell = compatibility_matrix(reader)["models"]["x"]["openvino"]
        assert (cell["verdict"], cell["reason"]) == ("untested", "results that do not count here: 1 not verified")

    def test_doubtful_rows_do_not_count(self, settings: Settings, log: EventLog) -> None:
        doubtful = [result(provenance=provenance) for provenance in ("simulated", "suspect", "emulated")]
        assert self._matrix(settings, log, *doubtful, verification()) == {}


def test_tables_of_an_older_version_are_told_from_damaged_ones(
    settings: Settings, log: EventLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append([event(result())])
    _stage_and_publish(settings)
    # An upgrade: a view asks for a column that the tables on disk lack, and their schema has another id.
    monkeypatch.setattr(layers, "USABLE", "SELECT r.* EXCLUDE (counts), r.column_of_tomorrow FROM judged_results AS r")
    monkeypatch.setattr(build_layer, "schema_id", lambda: "tomorrow")
    with pytest.raises(WarehouseOutdated, match="another version of the platform: `accel db rebuild`") as told:
        Reader(settings).rows("SELECT 1 AS one")
    assert "Binder" not in str(told.value)
    [finding] = validate(settings, describe=lambda _: None).findings
    assert (finding.name, finding.repair) == ("tables_of_another_version", "rebuild")


class TestDamage:
    """The log is the truth: whatever happens to the tables, one command makes them again, and says so before."""

    @pytest.mark.parametrize("content", ["", "garbage", "projection-missing.json"])
    def test_a_damaged_pointer_is_said_and_repaired(self, settings: Settings, log: EventLog, content: str) -> None:
        log.append([event(result())])
        _stage_and_publish(settings)
        (settings.warehouse_dir / "CURRENT").write_text(content)
        with pytest.raises(WarehouseDamaged, match="accel db rebuild"):
            Reader(settings).rows("SELECT 1 AS one")
        publish.refresh(settings, full=True)
        assert Reader(settings).rows("SELECT count(*) AS n FROM results") == [{"n": 1}]

    def test_a_damaged_layer_is_said_and_repaired(self, settings: Settings, log: EventLog) -> None:
        log.append([event(result())])
        [layer] = _stage_and_publish(settings).layers
        (settings.warehouse_dir / layer.file).write_bytes(b"torn")
        with pytest.raises(WarehouseDamaged, match="accel db rebuild"):
            Reader(settings).rows("SELECT 1 AS one")
        publish.refresh(settings, full=True)
        assert Reader(settings).rows("SELECT count(*) AS n FROM results") == [{"n": 1}]

    def test_a_damaged_segment_is_named(self, settings: Settings, log: EventLog) -> None:
        log.append([event(result())], key="torn")
        path = settings.home / "log" / "segments" / "torn.parquet"
        path.write_bytes(path.read_bytes()[:100])
        with pytest.raises(LogUnavailable, match=r"torn\.parquet"):
            log.count_events({"torn"})
        said: list[str] = []
        publish.refresh(settings, progress=said.append)
        assert said[0].startswith("set aside segments/torn.parquet (it cannot be read")
        [row] = Reader(settings).rows("SELECT source_path, rule FROM quarantine")
        assert row == {"source_path": "segments/torn.parquet", "rule": "segment_intact"}

    def test_a_home_that_cannot_be_written_is_said(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(AccelError, match="a file is in the place of a directory"):
            publish.stage(Settings(home=tmp_path / "file"))


class TestReading:
    def test_two_columns_of_one_name_are_refused_rather_than_one_lost(self, settings: Settings, log: EventLog) -> None:
        log.append([event(result())])
        _stage_and_publish(settings)
        with pytest.raises(InvalidInput, match="AS"):
            Reader(settings).rows("SELECT 1 AS a, 2 AS a")

    def test_before_the_first_publish_it_says_what_to_do(self, settings: Settings) -> None:
        with pytest.raises(WarehouseEmpty, match="accel db rebuild"):
            Reader(settings).rows("SELECT 1")

    def test_sql_only_reads_the_tables(self, settings: Settings, log: EventLog) -> None:
        log.append([event(result())])
        _stage_and_publish(settings)
        for sql in ("DELETE FROM results", "SELECT 1; SELECT 2", "", "SET threads = 1", "ATTACH '/tmp/x.duckdb'",
                    "CREATE TABLE t (a INT)", "COPY results TO '/tmp/x.csv'", "SELECT * FROM read_csv('/etc/hostname')",
                    "SELECT nonsense FROM results", "INSTALL httpfs", "SELECT * FROM read_parquet('*')",
                    "PRAGMA database_list"):  # fmt: skip
            with pytest.raises(InvalidInput):
                Reader(settings).rows(sql)

    def test_an_empty_log_gives_empty_tables(self, settings: Settings) -> None:
        refreshed = publish.refresh(settings)
        assert set(refreshed.rows.values()) == {0}

    def test_a_late_publish_does_not_turn_back_time(self, settings: Settings, log: EventLog) -> None:
        log.append([event(result())])
        late = publish.stage(settings)
        log.append([event(result())])
        newer = _stage_and_publish(settings)
        publish.publish(settings, late)
        assert require_current(settings) == newer

    def test_a_second_refresh_has_nothing_to_do(self, settings: Settings, log: EventLog) -> None:
        log.append([event(result())])
        assert publish.refresh(settings).mode == "full"
        assert publish.refresh(settings).mode == "current"


@given(st.lists(st.integers(1, 10**6), max_size=12), st.integers(1, 10**5))
def test_kept_layers_shrink_at_least_fourfold(sizes: list[int], arriving: int) -> None:
    layers = [Layer(f"l{i}", str(i), size) for i, size in enumerate(sizes)]
    kept = build_layer.count_kept_layers(layers, arriving)
    assert kept == 0 or sizes[kept - 1] >= 4 * (arriving + sum(sizes[kept:]))


def test_what_is_being_audited_stays_while_others_publish(settings: Settings, log: EventLog) -> None:
    log.append([event(result())])
    staged = publish.stage(settings, full=True)
    for batch_size in range(2, 7):
        log.append([event(result(batch_size=batch_size))])
        publish.publish(settings, publish.stage(settings))
    assert all(verdict.passed for verdict in publish.check(staged))
    publish.publish(settings, staged)
    assert Reader(settings).rows("SELECT count(*) AS n FROM results") == [{"n": 6}]
    assert len(list(settings.warehouse_dir.glob("projection-*.json"))) == 4


def test_one_device_of_several_sources_has_one_name_and_a_count(settings: Settings, log: EventLog) -> None:
    claim: Any = {"provenance": "imported", "samples_ns": (), "latency_mean_ms": 2.0, "fingerprint": None}
    claim["hardware"] = "cuda"
    names = ["h100_sxm", "Nvidia H100 GPU", "4 x H100", "somebody's board", "2 x somebody's board"]
    names += [
        "1 x Tesla T4",
        "a3-highgpu-1g",
        "A3-highgpu-2g",
        "1 x a3-highgpu-2g",
        "NC80adis_H100_v5",
        "Standard_NC80adis_H100_v5",
    ]
    ids = [f"imported-{number}" for number, _ in enumerate(names)]
    log.append(
        [
            event(result(device_name=name, device_id=id_, **claim), host_id=None)
            for name, id_ in zip(names, ids, strict=True)
        ]
    )
    _stage_and_publish(settings)
    rows = Reader(settings).rows("SELECT source_device_name, device_name, device_count, device_id FROM results")
    assert {tuple(row.values()) for row in rows} == {
        ("h100_sxm", H100, 1, f"imported:{H100}"),
        ("Nvidia H100 GPU", H100, 1, f"imported:{H100}"),
        ("4 x H100", f"4 x {H100}", 4, f"imported:4 x {H100}"),
        ("somebody's board", "somebody's board", 1, "imported-3"),
        ("2 x somebody's board", "2 x somebody's board", 2, "imported-4"),
        ("a3-highgpu-1g", H100, 1, f"imported:{H100}"),
        ("A3-highgpu-2g", f"2 x {H100}", 2, f"imported:2 x {H100}"),
        ("1 x a3-highgpu-2g", H100, 1, f"imported:{H100}"),
        ("1 x Tesla T4", "NVIDIA T4", 1, "imported:NVIDIA T4"),
        *((name, f"2 x {NVL}", 2, f"imported:2 x {NVL}") for name in names[-2:]),
    }
    matrix = compatibility_matrix(Reader(settings), Selection(device="h100_sxm"))
    assert [cells["cuda"]["device"] for cells in matrix["models"].values()] == [H100]
    found = Reader(settings).rows("SELECT device_name, device_count, results_ok FROM compat_matrix")
    assert {(H100, 1, 4), ("NVIDIA T4", 1, 1), (f"4 x {H100}", 4, 1)} <= {tuple(row.values()) for row in found}


def test_imports_know_a_device_with_its_memory_as_questions_do(settings: Settings, log: EventLog) -> None:
    names = ("H100 PCIe 80G", "H100 PCIe 80GB", "nvidia h100 pcie 80 GiB")
    for host, name in enumerate(names):
        imported = result(device_name=name, device_id=f"imported-{host}", provenance="imported")
        log.append([event(imported, host_id=f"imported-{host}")])
    _stage_and_publish(settings)
    found = [row["device_name"] for row in Reader(settings).rows("SELECT device_name FROM results")]
    assert found == ["NVIDIA H100 PCIe 80GB"] * 3
    assert {spec.name for name in names if (spec := find_spec(name))} == {*found}


def test_a_detected_device_has_the_name_that_its_results_have(settings: Settings, log: EventLog) -> None:
    driver, board = "NVIDIA H100 80GB HBM3", "somebody's board"
    for host, name in (("lab-8", driver), ("lab-9", board)):
        seen = DeviceObserved(hardware="cuda", backend="pytorch", available=True, name=name, device_id=f"cuda-{name}")
        log.append([event(seen, host_id=host)])
    missing = DeviceObserved(hardware="rocm", backend="pytorch", available=False, reason="no driver")
    log.append([event(missing, host_id="lab-9")])
    log.append([event(result(device_name=driver, device_id=f"cuda-{driver}"), host_id="lab-8")])
    _stage_and_publish(settings)
    reader = Reader(settings)
    rows = reader.rows("SELECT source_name, name FROM devices")
    assert {tuple(row.values()) for row in rows} == {(driver, H100), (board, board), (None, None)}
    joined = "SELECT r.device_name FROM results AS r JOIN devices AS d ON d.name = r.device_name"
    assert reader.rows(joined) == [{"device_name": H100}]


def test_one_device_of_two_hosts_that_files_describe_is_one_and_a_host_of_the_log_keeps_its_own(
    settings: Settings, log: EventLog
) -> None:
    claim: Any = {"provenance": "imported", "samples_ns": (), "latency_mean_ms": 2.0, "fingerprint": None}
    for host in ("imported-1", "imported-2", "lab-7"):
        log.append([event(result(device_name="h100_sxm", device_id=f"on {host}", **claim), host_id=host)])
    log.append([event(result(device_name="NVIDIA H100 80GB HBM3", device_id="cuda-h100"), host_id="lab-8")])
    _stage_and_publish(settings)
    rows = Reader(settings).rows("SELECT device_id, device_name, count(*) AS n FROM results GROUP BY ALL")
    expected = {(f"imported:{H100}", H100, 2), ("on lab-7", H100, 1), ("cuda-h100", H100, 1)}
    assert {tuple(row.values()) for row in rows} == expected
