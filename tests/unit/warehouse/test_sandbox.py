"""SQL of strangers: what it may do, and one test per way out of the sandbox that is known."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import duckdb
import psutil
import pytest

from accel_platform.errors import Busy, InvalidInput, WarehouseEmpty
from accel_platform.settings import Settings
from accel_platform.warehouse.layers import attach_statements, require_current
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.sandbox import QueryCancelled, Sandbox, SandboxLimits
from accel_platform.warehouse.sandbox import child as sandbox_child
from predictor_world import MODELS, append, measured_grid, result, world

ENDLESS = "WITH RECURSIVE t AS (SELECT 1 AS i UNION ALL SELECT i + 1 FROM t) SELECT count(*) FROM t"


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    return world(tmp_path_factory.mktemp("sandboxed"), measured_grid(MODELS[:2]))


@pytest.fixture(scope="module")
def sandbox(settings: Settings) -> Iterator[Sandbox]:
    with Sandbox(settings, SandboxLimits(wall_s=1.5, memory_mib=128, answer_mib=4)) as sandbox:
        yield sandbox


def test_a_query_answers_as_the_tables_do(sandbox: Sandbox, settings: Settings) -> None:
    found = sandbox.query(
        "SELECT model_id, count(*) AS n FROM results WHERE hardware = $hardware GROUP BY ALL ORDER BY ALL",
        {"hardware": "cpu"},
        max_rows=10,
    )
    assert found.table.to_pylist() == [{"model_id": "bert-base", "n": 2}, {"model_id": "vit-base", "n": 2}]
    assert not found.truncated
    assert found.snapshot_id == require_current(settings).snapshot_id
    assert found.elapsed_ms > 0
    assert sandbox.query("SELECT ? + 1 AS two", [1], max_rows=1).table.to_pylist() == [{"two": 2}]


@pytest.mark.parametrize(
    ("sql", "rows", "truncated"),
    [
        ("SELECT * FROM range(7)", 7, False),
        ("SELECT * FROM range(8)", 7, True),
        ("SELECT * FROM range(1000000000000)", 7, True),
        ("SELECT repeat('x', 1500000) FROM range(6)", 1, True),
        ("SELECT list_resize([NULL], 200000) FROM range(6)", 1, True),
        (
            "SELECT {'a': list_resize(['y'::ENUM('"
            + "y" * 100_000
            + "', 'y')], 20, '"
            + "y" * 100_000
            + "')} FROM range(7)",
            1,
            True,
        ),
        ("SELECT union_value(a := 'x') FROM range(6)", 6, False),
        ("DESCRIBE results", 7, True),
        ("SELECT 1 AS a, 2 AS a", 1, False),
        ("SELECT * FROM results WHERE false", 0, False),
    ],
)
def test_rows_are_limited_in_number_and_size(sandbox: Sandbox, sql: str, rows: int, truncated: bool) -> None:
    found = sandbox.query(sql, max_rows=7)
    assert (found.table.num_rows, found.truncated) == (rows, truncated)


ESCAPES = {
    # files
    "read_text": "SELECT * FROM read_text('/etc/passwd')",
    "read_blob": "SELECT * FROM read_blob('/proc/self/environ')",
    "read_csv": "SELECT * FROM read_csv('/etc/passwd', header = false)",
    "read_json": "SELECT * FROM read_json('/etc/passwd')",
    "read_parquet": "SELECT * FROM read_parquet('/tmp/*.parquet')",
    "sniff_csv": "SELECT * FROM sniff_csv('/etc/passwd')",
    "glob": "SELECT * FROM glob('/*')",
    "a file's name for a table": "SELECT * FROM '/etc/passwd.csv'",
    "query_table": "SELECT * FROM query_table('/etc/passwd.csv')",
    "a query put together": "SELECT * FROM query('SELECT * FROM duckdb_' || 'databases()')",
    "copy out": "COPY results TO '/tmp/stolen.csv'",
    "copy in": "COPY results FROM '/etc/passwd'",
    "export": "EXPORT DATABASE '/tmp/stolen'",
    "attach": "ATTACH '/tmp/other.duckdb' AS other",
    "detach": "DETACH layer_0",
    # network and extensions
    "httpfs": "SELECT * FROM read_text('http://127.0.0.1:1/')",
    "install": "INSTALL httpfs",
    "load": "LOAD httpfs",
    "secrets": "SELECT * FROM duckdb_secrets()",
    "create a secret": "CREATE SECRET s (TYPE s3)",
    # settings and the machine
    "set": "SET memory_limit = '100GB'",
    "reset": "RESET lock_configuration",
    "pragma": "PRAGMA database_list",
    "call": "CALL pragma_version()",
    "getenv": "SELECT getenv('HOME')",
    "settings": "SELECT * FROM duckdb_settings()",
    "settings as a view": "SELECT * FROM pg_catalog.pg_settings",
    "one setting": "SELECT current_setting('allowed_paths')",
    "one setting, shouted": "SELECT CURRENT_SETTING('allowed_paths')",
    "one setting, in quotes": "SELECT system.main.\"Current_Setting\"('allowed_paths')",
    "one setting as a method": "SELECT 'allowed_paths'.current_setting()",
    "one setting, shown": "SHOW allowed_paths",
    "one setting, shown as a table": "FROM (SHOW temp_directory)",
    "one setting in a plan": "SELECT JSON_Serialize_Plan('SELECT current_setting(''threads'')', optimize := true)",
    "a query as JSON": "SELECT * FROM json_execute_serialized_sql(json_serialize_sql('FROM duckdb_databases()'))",
    "where the files lie": "SELECT path FROM duckdb_databases()",
    "the same as a view": "SELECT path FROM duckdb_databases",
    "the same under another name": "WITH x AS (WITH duckdb_databases AS (SELECT 1) SELECT 1) FROM duckdb_databases",
    "the same beside another table": "SELECT * FROM results, LATERAL (SELECT path FROM duckdb_databases())",
    "the same in a condition": "SELECT 1 WHERE EXISTS (SELECT path FROM duckdb_databases() WHERE path LIKE '/%')",
    "logs": "SELECT * FROM duckdb_logs()",
    # writing
    "create": "CREATE TABLE t AS SELECT 1",
    "drop": "DROP VIEW results",
    "delete": "DELETE FROM layer_0.result_rows",
    "explain analyze": "EXPLAIN ANALYZE CREATE TABLE t AS SELECT 1",
    "prepare": "PREPARE p AS SELECT 1",
    "several": "SELECT 1; DROP VIEW results",
    "none": "-- SELECT 1",
    # Python
    "a variable of the child": "SELECT * FROM setup",
    "a table of the child": "SELECT * FROM con",
    # memory and time
    "a huge string": "SELECT repeat('x', 1000000000)",
    "its length": "SELECT length(repeat('x', 1000000000))",
    "a huge list": "SELECT list_sum(range(1000000000))",
    "a huge aggregate": "SELECT string_agg(i::VARCHAR || repeat('x', 1000)) FROM range(10000000) t(i)",
    "nested deeply": "SELECT " + "(" * 5000 + "1" + ")" * 5000,
    "a huge literal": "SELECT '" + "x" * 1_000_000 + "' || '" + "y" * 1_000_000 + "' FROM nothing",
}


IN_A_CHILD = (
    "read_csv", "httpfs", "set", "one setting", "drop", "a variable of the child", "a table of the child",
    "a huge string", "its length", "a huge list", "a huge aggregate", "nested deeply", "a huge literal",
)  # fmt: skip
"""Escapes to try in a real child: one of each kind, and all that only the child's own state or limits hold."""


@pytest.fixture(scope="module")
def locked(settings: Settings) -> Iterator[duckdb.DuckDBPyConnection]:
    """The connection of a child, in this process: starting a child takes a fifth of a second."""
    projection = require_current(settings)
    statements = [*attach_statements(projection.directory, projection.layers).values()]
    with sandbox_child._open_tables({"statements": statements}) as con:
        con.execute("SET lock_configuration = true")
        yield con


def _no_insides(said: str, settings: Settings) -> None:
    for inside in (str(settings.home), "Traceback", sys.prefix):
        assert inside not in said


@pytest.mark.parametrize("sql", [ESCAPES[name] for name in IN_A_CHILD], ids=IN_A_CHILD)
def test_no_way_out(sandbox: Sandbox, settings: Settings, sql: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        sandbox.query(sql, max_rows=5)
    _no_insides(str(refused.value), settings)


@pytest.mark.parametrize("name", [name for name in ESCAPES if name not in IN_A_CHILD])
def test_no_way_out_of_the_connection(locked: duckdb.DuckDBPyConnection, settings: Settings, name: str) -> None:
    request = {"sql": ESCAPES[name], "max_rows": 5, "parameters": None}
    with pytest.raises((duckdb.Error, ValueError)) as refused:
        sandbox_child._read_rows(locked, request, most_bytes=1 << 20)
    _no_insides(str(refused.value), settings)


@pytest.mark.parametrize(
    "sql",
    [
        ENDLESS,
        "SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000) b",
        "SELECT count(*) FROM range(100000000) t(i) WHERE regexp_matches(repeat('ab', 999) || i, '(a|b)*c$')",
    ],
    ids=["recursion", "cross join", "regular expression"],
)
def test_time_is_limited(sandbox: Sandbox, sql: str) -> None:
    started = time.monotonic()
    with pytest.raises(InvalidInput, match=r"may take 1\.5 s"):
        sandbox.query(sql, max_rows=5)
    assert time.monotonic() - started < 15, "the limit, a start and a busy machine"


def test_no_table_of_the_catalogue_says_where_files_lie(locked: duckdb.DuckDBPyConnection, settings: Settings) -> None:
    with require_current(settings).open() as con:
        [*views] = con.execute("SELECT schema_name || '.' || view_name FROM duckdb_views() WHERE internal").fetchall()
    open_ones = [view for (view,) in views if not view.split(".")[1].startswith(("duckdb_", "pg_", "pragma_"))]
    assert len(open_ones) > 5
    for view in open_ones:
        request = {"sql": f"SELECT * FROM {view}", "max_rows": 1000, "parameters": None}
        try:
            table, _ = sandbox_child._read_rows(locked, request, most_bytes=1 << 20)
        except (duckdb.Error, ValueError):
            continue
        assert str(settings.home) not in str(table.to_pydict()), view


def test_the_lock_of_the_database_holds_by_itself(locked: duckdb.DuckDBPyConnection) -> None:
    """Also what the look at the statement lets through must find files, settings and network shut."""
    for name in ("read_text", "read_blob", "read_csv", "read_json", "glob", "copy out", "httpfs", "set", "load"):
        with pytest.raises(duckdb.Error):
            locked.execute(ESCAPES[name]).fetchall()
    variable = [1]
    with pytest.raises(duckdb.Error):
        locked.sql("SELECT * FROM variable").fetchall()
    assert variable


def test_the_kernel_holds_what_the_database_would_let_through() -> None:
    code = (
        f"import sys; sys.path.insert(0, {os.path.dirname(sandbox_child.__file__)!r})\n"
        "import child as c, socket, threading, json\n"
        "c._limit({'memory_mib': 64, 'answer_mib': 1, 'cpu_s': 5})\n"
        "said = {}\n"
        "for name, attempt in {'file': lambda: open('/etc/passwd'), 'socket': socket.socket,\n"
        "    'memory': lambda: bytearray(1 << 29), 'write': lambda: (c.os.write(2, b'x'))}.items():\n"
        "    try: attempt(); said[name] = 'done'\n"
        "    except BaseException as error: said[name] = type(error).__name__\n"
        "print(json.dumps(said))"
    )
    with open(os.devnull) as nothing:
        done = subprocess.run([sys.executable, "-I", "-c", code], stdin=nothing, capture_output=True, check=True)
    said = json.loads(done.stdout)
    assert said == {"file": "OSError", "socket": "OSError", "memory": "MemoryError", "write": "done"}


def test_the_child_has_nothing_of_our_environment(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a secret")
    with Sandbox(settings) as sandbox:
        sandbox.query("SELECT 1", max_rows=1)
        waiting: list[psutil.Process] = []
        # Repeated, because a program that was just started shows no arguments for a moment.
        started = time.monotonic()
        while not waiting and time.monotonic() - started < 20:
            children = psutil.Process().children()
            waiting = [child for child in children if "warehouse/sandbox/child.py" in " ".join(child.cmdline())]
        for child in waiting:
            assert "AWS_SECRET_ACCESS_KEY" not in child.environ()
            assert str(settings.home) not in " ".join(child.cmdline())
    assert len([child for child in waiting if not child.is_running()]) == 1


def test_whoever_goes_away_ends_the_query(settings: Settings) -> None:
    gone = threading.Event()
    with Sandbox(settings, SandboxLimits(wall_s=60, cpu_s=60)) as sandbox:
        sandbox.query("SELECT 1", max_rows=1)
        threading.Timer(0.3, gone.set).start()
        started = time.monotonic()
        with pytest.raises(QueryCancelled):
            sandbox.query(ENDLESS, max_rows=1, cancelled=gone)
        assert time.monotonic() - started < 20
        assert sandbox.query("SELECT 1 AS one", max_rows=1).table.to_pylist() == [{"one": 1}]


def test_so_many_at_a_time(settings: Settings) -> None:
    gone = threading.Event()
    with Sandbox(settings, SandboxLimits(wall_s=1, at_once=1)) as sandbox:

        def stay() -> None:
            with pytest.raises((QueryCancelled, InvalidInput)):
                sandbox.query(ENDLESS, max_rows=1, cancelled=gone)

        sandbox._turns.acquire()
        with pytest.raises(Busy, match="again"):
            sandbox.query("SELECT 1", max_rows=1)
        sandbox._turns.release()
        thread = threading.Thread(target=stay)
        thread.start()
        gone.set()
        thread.join()
        assert sandbox.query("SELECT 1 AS one", max_rows=1).table.num_rows == 1, "the turn was given back"


def test_it_follows_the_tables(tmp_path: Path) -> None:
    with Sandbox(Settings(home=tmp_path / "empty")) as empty, pytest.raises(WarehouseEmpty):
        empty.query("SELECT 1", max_rows=1)
    settings = world(tmp_path, measured_grid(MODELS[:1]))
    count = "SELECT count(*) AS n FROM results"
    with Sandbox(settings) as sandbox:
        [[before]] = sandbox.query(count, max_rows=1).table.to_pydict().values()
        append(settings, [result(MODELS[1], "cpu", 1)])
        refresh(settings, full=True)
        [[after]] = sandbox.query(count, max_rows=1).table.to_pydict().values()
    assert after == before + 1
