"""Spark computes the same tables as DuckDB, from the same definitions, and nothing of a failed build is seen."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import duckdb
import pytest
from generated_logs import arrivals
from hypothesis import Phase, given
from hypothesis import settings as hypothesis_settings
from processes import THOROUGH
from spark_servers import jvm_server, sail_server, why_no_jvm
from typer.testing import CliRunner

from accel_platform.cli import app
from accel_platform.errors import InvalidInput
from accel_platform.events import Event, EventLog
from accel_platform.events.types import ResultSuspected, RunStarted, Suspicion
from accel_platform.settings import Settings
from accel_platform.warehouse import publish, spark_engine
from accel_platform.warehouse.layers import TABLES, Projection, require_current
from accel_platform.warehouse.reader import Reader
from accel_platform.warehouse.spark_engine import EngineFailed, SparkEngine
from factories import event, result, verification

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture(scope="session")
def sail(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with sail_server(tmp_path_factory.mktemp("sail") / "log") as server:
        yield server.url


@pytest.fixture(scope="session")
def jvm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Spark itself."""
    if reason := why_no_jvm():
        pytest.skip(reason)
    with jvm_server(tmp_path_factory.mktemp("spark") / "log") as server:
        yield server.url


def _spark(settings: Settings, url: str) -> Settings:
    return settings.model_copy(update={"engine": "spark", "spark": url})


def _tables(projection: Projection) -> dict[str, Any]:
    """The columns with their types, and the rows, of all tables."""
    with projection.open() as con:
        return {
            table: (
                con.execute(f"DESCRIBE {table}").fetchall(),
                sorted(map(repr, con.execute(f"SELECT * FROM {table}").fetchall())),
            )
            for table in (*TABLES, "judged_results", "usable_results", "result_rows")
        }


def _publish(settings: Settings, *, full: bool = False) -> Projection:
    staged = publish.stage(settings, full=full)
    publish.check(staged)
    publish.publish(settings, staged)
    return staged.projection


def _differences(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return {
        table: [sorted(set(map(str, one[table][part])) ^ set(map(str, other[table][part]))) for part in (0, 1)]
        for table in one
        if one[table] != other[table]
    }


def _some_events() -> list[Event]:
    suspicion = Suspicion(rule="r", verdict="suspect", evidence="e", confidence=0.123456789)
    first = event(result(provenance="suspect", samples_ns=(), latency_mean_ms=1.1, suspicions=(suspicion,)))
    later = ResultSuspected(result_id=first.event_id, rule="s", verdict="simulated", evidence="e", confidence=1 / 3)
    return [
        first,
        event(later),
        event(RunStarted(kind="bench", labels={"commit": "c"}, plan={"share": 1e-6})),
        event(result(samples_ns=tuple(10**7 + 7919 * n % 10_007 for n in range(700)))),
        event(result(samples_ns=(20_000_001,) * 200)),
        event(result(device_id=None)),
        *(event(result(provenance="imported", samples_ns=(), latency_p50_ms=ms)) for ms in (7.58, 42.52)),
        event(verification()),
    ]


class EnginesAgree:
    """Properties of every engine."""

    @pytest.fixture
    def url(self) -> str:
        raise NotImplementedError

    def test_the_tables_are_those_of_duckdb(self, settings: Settings, url: str) -> None:
        log = EventLog.open(settings)
        log.append(_some_events())
        expected = _tables(_publish(settings))
        rebuild = ["db", "rebuild", "--engine", "spark", "--spark", url, "--home", str(settings.home)]
        assert CliRunner().invoke(app, rebuild).exit_code == 0
        served = require_current(settings)
        assert (settings.warehouse_dir / "parquet" / served.layers[0].file.removesuffix(".duckdb")).is_dir()
        assert _differences(_tables(served), expected) == {}
        assert len(expected["results"][1]) == 5

    def test_an_increment_sends_the_new_events_only(self, settings: Settings, url: str) -> None:
        log = EventLog.open(settings)
        log.append([event(result()) for _ in range(9)])
        _publish(settings)  # by DuckDB, so that a layer of one engine stands on one of the other
        log.append(_some_events()[:1])
        staged = publish.stage(_spark(settings, url))
        assert (staged.mode, len(staged.projection.layers)) == ("incremental", 2)
        publish.publish(_spark(settings, url), staged)
        [newest] = sorted((settings.warehouse_dir / "parquet").glob("layer-*"))[-1:]
        assert duckdb.sql(f"SELECT count(*) FROM '{newest}/events/*.parquet'").fetchall() == [(1,)]
        assert list(newest.glob("compat_matrix/*.parquet"))
        grown = _tables(staged.projection)
        assert _differences(grown, _tables(_publish(settings, full=True))) == {}

    @pytest.mark.slow
    def test_samples_and_reference_campaign_give_equal_rows(self, settings: Settings, url: str) -> None:
        campaign = REPOSITORY / "accel_platform" / "knowledge" / "reference" / "campaign-2026-11.parquet"
        for command in (["migrate", str(REPOSITORY / "samples" / "legacy")], ["bench", "import", str(campaign)]):
            assert CliRunner().invoke(app, [*command, "--home", str(settings.home)]).exit_code == 0
        expected = _tables(require_current(settings))
        assert len(expected["results"][1]) > 200
        assert _differences(_tables(_publish(_spark(settings, url), full=True)), expected) == {}

    @pytest.mark.slow
    def test_parquet_of_layers_that_went_goes_too(self, settings: Settings, url: str) -> None:
        EventLog.open(settings).append([event(result())])
        shared = settings.model_copy(update={"spark_dir": settings.home / "shared"})
        publish.refresh(_spark(shared, url))
        [folder] = (settings.home / "shared").glob("*/layer-*")
        for _ in range(4):
            publish.refresh(shared, full=True)
        assert not folder.exists()


class TestSail(EnginesAgree):
    @pytest.fixture
    def url(self, sail: str) -> str:
        return sail


@pytest.mark.slow
class TestSparkOnAJvm(EnginesAgree):
    @pytest.fixture
    def url(self, jvm: str) -> str:
        return jvm


@pytest.mark.slow
@given(arrivals(everything=True))
@hypothesis_settings(max_examples=200 if THOROUGH else 10, phases=[Phase.explicit, Phase.reuse, Phase.generate])
def test_generated_logs_give_equal_rows(sail: str, arrival: tuple[list[Event], list[list[Event]]]) -> None:
    events, batches = arrival
    with tempfile.TemporaryDirectory() as directory:
        at_once = Settings(home=Path(directory) / "at-once")
        EventLog.open(at_once).append(events)
        _add_old_segment(at_once)
        expected = _tables(_publish(at_once))
        in_parts = _spark(Settings(home=Path(directory) / "in-parts"), sail)
        middle = len(batches) // 2
        for number, batch in enumerate(batches):
            EventLog.open(in_parts).append(batch, key=f"batch-{number}")
            if number == middle:
                _publish(in_parts)
        _add_old_segment(in_parts)  # late, and of version 1
        assert _differences(_tables(_publish(in_parts)), expected) == {}


def _add_old_segment(settings: Settings) -> None:
    stored = REPOSITORY / "tests" / "data" / "home-v1" / "log" / "segments" / "run-v1.parquet"
    segments = settings.home / "log" / "segments"
    segments.mkdir(parents=True, exist_ok=True)
    shutil.copy(stored, segments)


class TestFailing:
    """An engine that fails leaves what is in service, and says so in one line."""

    @pytest.fixture
    def served(self, settings: Settings, log: EventLog) -> str:
        log.append([event(result())])
        publish.refresh(settings)
        log.append([event(result())])
        return (settings.warehouse_dir / "CURRENT").read_text()

    def _unchanged(self, settings: Settings, served: str) -> None:
        assert (settings.warehouse_dir / "CURRENT").read_text() == served
        assert len(Reader(settings).rows("SELECT * FROM results")) == 1
        left = [path.name for path in settings.warehouse_dir.rglob("*") if ".layer-" in str(path)]
        assert left == []

    def test_out_of_reach(self, settings: Settings, served: str) -> None:
        with socket.socket() as taken:  # bound, and nobody listens
            taken.bind(("127.0.0.1", 0))
            url = f"sc://127.0.0.1:{taken.getsockname()[1]}"
            rebuild = ["db", "rebuild", "--engine", "spark", "--spark", url, "--home", str(settings.home)]
            done = subprocess.run(
                [sys.executable, "-m", "accel_platform", *rebuild], capture_output=True, text=True, check=False
            )
        assert (done.returncode, done.stdout) == (1, "")
        assert re.fullmatch(rf"accel: Spark at {url} cannot be reached \(.*\): start it.*\n", done.stderr)
        self._unchanged(settings, served)

    @pytest.mark.slow
    def test_no_spark_at_all(self, settings: Settings, served: str) -> None:
        with socket.socket() as other:
            other.bind(("127.0.0.1", 0))
            other.listen()
            threading.Thread(target=_hang_up, args=(other,), daemon=True).start()
            with pytest.raises(EngineFailed, match="failed: "):
                publish.refresh(_spark(settings, f"sc://127.0.0.1:{other.getsockname()[1]}"))
        self._unchanged(settings, served)

    def test_too_old(self, settings: Settings, served: str, sail: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(spark_engine, "_OLDEST", (99, 0))
        with pytest.raises(EngineFailed, match=r"too old: it has to be 99\.0 or newer"):
            publish.refresh(_spark(settings, sail))
        self._unchanged(settings, served)

    @pytest.mark.slow
    def test_dies_half_way(self, settings: Settings, served: str, tmp_path: Path) -> None:
        def _kill_after_the_first_table(process: subprocess.Popen[str]) -> None:
            while not list((settings.warehouse_dir / "parquet").glob(".layer-*/result_rows/*.parquet")):
                time.sleep(0.001)
            process.kill()

        with sail_server(tmp_path / "log") as server:
            killer = threading.Thread(target=_kill_after_the_first_table, args=(server.process,))
            killer.start()
            with pytest.raises(EngineFailed, match="failed: "):
                publish.refresh(_spark(settings, server.url))
            killer.join()
        self._unchanged(settings, served)

    @pytest.mark.slow
    def test_broken_rules_are_not_published(
        self, settings: Settings, served: str, sail: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        log = EventLog.open(settings)
        log.append([event(result(), event_id=UUID(int=1))])
        real = spark_engine._compute

        def _twice(session: Any, work: Path, below: list[Path]) -> None:
            real(session, work, below)
            for file in (work / "result_rows").glob("*.parquet"):
                shutil.copy(file, file.with_name(f"again-{file.name}"))

        monkeypatch.setattr(spark_engine, "_compute", _twice)
        with pytest.raises(publish.ChecksFailed, match="result_id_unique"):
            publish.refresh(_spark(settings, sail))
        self._unchanged(settings, served)


def _hang_up(server: socket.socket) -> None:
    try:
        while True:
            server.accept()[0].close()
    except OSError:
        return  # the test is over


@pytest.mark.slow
def test_two_builders_at_once_take_turns(settings: Settings, log: EventLog, sail: str) -> None:
    log.append(_some_events())
    failures: list[BaseException] = []

    def _refresh(chosen: Settings) -> None:
        try:
            publish.refresh(chosen, full=True)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the test fails with it
            failures.append(error)

    threads = [threading.Thread(target=_refresh, args=(s,)) for s in (settings, _spark(settings, sail))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert _differences(_tables(require_current(settings)), _tables(_publish(settings, full=True))) == {}


@pytest.mark.parametrize("url", [None, "http://host", "sc://", "host:15002"])
def test_an_address_is_needed(settings: Settings, url: str | None) -> None:
    chosen = settings.model_copy(update={"engine": "spark", "spark": url})
    with pytest.raises(InvalidInput, match="sc://HOST:15002"):
        SparkEngine.of(chosen)


def test_an_address_without_the_engine_is_refused(settings: Settings) -> None:
    done = CliRunner().invoke(app, ["db", "rebuild", "--spark", "sc://host", "--home", str(settings.home)])
    assert isinstance(done.exception, InvalidInput)
    assert str(done.exception) == "--spark goes with --engine spark."


@pytest.mark.slow
def test_an_installed_client_does_not_disturb_great_expectations() -> None:
    """pyspark ends a process whose main module is no file, and Great Expectations imports it."""
    audit = (
        "import pandas; from accel_platform.warehouse import rules; rules.RULES = ()\n"
        "rules.audit_by_expectations(pandas.DataFrame())"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error::FutureWarning", "-c", audit], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_token_is_not_printed() -> None:
    assert "secret" not in str(EngineFailed("sc://host:443/;token=secret;use_ssl=true", "failed."))
