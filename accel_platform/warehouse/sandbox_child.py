"""The child that runs one stranger's SELECT: it shuts itself in first, then reads it. Started by `sandbox.py`.

It stands alone and imports nothing of ours, so that it starts in a fraction of a second and has nothing to give away:
no settings, no environment. DuckDB's own lock keeps SQL from files, network and settings; the kernel's limits hold
where DuckDB has a hole, for without a file descriptor to be had no file opens and no socket.
"""

import json
import os
import resource
import sys
import threading
from typing import Any

if __name__ == "__main__":
    # Arrow would import it, for half of what a start costs; nothing here is made of arrays.
    sys.modules["numpy"] = None  # type: ignore[assignment]

import duckdb
import pyarrow as pa

# What SQL can read of settings and paths is then the same on every machine. Extensions are never fetched.
_SHUT = """
SET TimeZone = 'UTC';
SET temp_directory = '';
SET secret_directory = '/nonexistent';
SET extension_directory = '/nonexistent';
SET allow_persistent_secrets = false;
SET autoinstall_known_extensions = false;
SET autoload_known_extensions = false;
SET allow_community_extensions = false;
SET python_enable_replacements = false;
SET enable_external_access = false;
"""
_MAKING_ROWS = {"range", "generate_series", "generate_subscripts", "unnest", "repeat", "repeat_row", "json_each",
                "json_tree"}  # fmt: skip
"""Table functions that look at nothing but their arguments."""
_TELLING_OF_THE_MACHINE = ("duckdb_", "pg_", "pragma_")
"""What the catalogue's own tables begin with; some say where files lie."""


def main() -> None:
    channel = os.fdopen(os.dup(1), "wb")
    setup = json.loads(sys.stdin.buffer.readline())
    try:
        con = _tables(setup)
    except duckdb.Error as error:
        _say(channel, {"gone": str(error)})
        return
    questions: list[bytes] = []
    asked = threading.Event()
    # A thread of its own, for the parent's death must end this process in the middle of a query too.
    threading.Thread(target=_listen, args=(questions, asked), daemon=True).start()
    _limit(setup)
    _say(channel, {"ready": True})
    asked.wait()
    question = json.loads(questions[0])
    try:
        con.execute(f"SET memory_limit = '{int(setup['memory_mib'])}MiB'; SET lock_configuration = true")
        table, truncated = _rows(con, question, most_bytes=int(setup["answer_mib"]) << 20)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        content = sink.getvalue()
    except (MemoryError, duckdb.OutOfMemoryException, pa.ArrowMemoryError):
        _say(channel, {"refused": f"It needs more than {setup['memory_mib']} MiB of memory."})
    except (duckdb.Error, pa.ArrowException, ValueError, TypeError, RuntimeError) as error:
        _say(channel, {"refused": str(error)})
    else:
        _say(channel, {"bytes": content.size, "truncated": truncated})
        channel.write(content)
        channel.flush()
    # DuckDB may take long to give memory back, and there is nobody to give it to.
    os._exit(0)


def _tables(setup: dict[str, Any]) -> duckdb.DuckDBPyConnection:
    """The tables of a projection, and then no other file."""
    con = duckdb.connect(":memory:", config={"threads": 1})
    for statement in setup["statements"]:
        con.execute(statement)
    con.execute(_SHUT)
    return con


def _limit(setup: dict[str, Any]) -> None:
    """What the kernel holds it to, from here on."""
    with open("/proc/self/statm") as statm:
        taken = int(statm.read().split()[0]) * resource.getpagesize()
    cpu = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2])) + int(setup["cpu_s"])
    room = taken + (int(setup["memory_mib"]) + int(setup["answer_mib"]) * 3 + 64 << 20)
    os.nice(5)
    for what, most in (
        (resource.RLIMIT_AS, room),
        (resource.RLIMIT_CPU, cpu),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_NOFILE, 0),
    ):
        resource.setrlimit(what, (most, most))


def _listen(questions: list[bytes], asked: threading.Event) -> None:
    questions.append(sys.stdin.buffer.readline())
    if questions[0]:
        asked.set()
        sys.stdin.buffer.read(1)
    os._exit(0)


def _rows(con: duckdb.DuckDBPyConnection, question: dict[str, Any], *, most_bytes: int) -> tuple[pa.Table, bool]:
    """The first rows, and whether there were more. Reading stops there, so an endless query ends."""
    sql, most_rows = question["sql"], question["max_rows"]
    statements = con.extract_statements(sql)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise ValueError("Give one SELECT statement: the tables are made from the log and cannot be changed here.")
    [(text,)] = con.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
    tree = json.loads(text)
    if tree["error"]:
        raise ValueError(f"It cannot be looked through: {tree['error_message']}")
    _refuse_what_tells_of_the_machine(tree)
    relation = con.sql(sql, params=question["parameters"] or None)
    if relation is None:
        raise ValueError("It has no rows.")
    reader = relation.to_arrow_reader(2048)
    batches: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in reader:
        kept = batch.slice(0, most_rows - rows)
        while size + kept.nbytes > most_bytes and kept.num_rows:
            kept = kept.slice(0, kept.num_rows // 2)
        batches.append(kept)
        rows += kept.num_rows
        size += kept.nbytes
        if kept.num_rows < batch.num_rows:
            return pa.Table.from_batches(batches, reader.schema), True
    return pa.Table.from_batches(batches, reader.schema), False


def _refuse_what_tells_of_the_machine(node: Any) -> None:
    """Raise ValueError for a parsed statement that asks for settings or files, wherever in it."""
    for part in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        _refuse_what_tells_of_the_machine(part)
    if not isinstance(node, dict):
        return
    if node.get("type") == "TABLE_FUNCTION":
        name = node["function"].get("function_name", "")
        if name.lower() not in _MAKING_ROWS:
            raise ValueError(f"The table function {name}() is not to be had here; of those there are: "
                             f"{', '.join(sorted(_MAKING_ROWS))}.")  # fmt: skip
    named = node.get("table_name") if node.get("type") == "BASE_TABLE" else node.get("function_name")
    if isinstance(named, str) and (named.lower().startswith(_TELLING_OF_THE_MACHINE) or named == "current_setting"):
        raise ValueError(f"{named} is not to be had here: it tells of this machine, not of what was measured.")


def _say(channel: Any, message: dict[str, Any]) -> None:
    channel.write(json.dumps(message).encode() + b"\n")
    channel.flush()


if __name__ == "__main__":
    main()
