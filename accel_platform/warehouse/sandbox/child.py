"""Child process of the sandbox that restricts itself, then runs one untrusted SELECT.

It imports nothing of the platform, so it starts in a fraction of a second and has no settings or environment to reveal.
DuckDB's own lock keeps SQL from files, network and settings. The kernel's limits hold where DuckDB has a gap: without a
free file descriptor no file and no socket opens.
"""

import json
import os
import resource
import sys
import threading
from typing import Any

if __name__ == "__main__":
    # Blocked, because Arrow would import it, which takes half of the start time, and nothing here needs arrays.
    sys.modules["numpy"] = None  # type: ignore[assignment]

import duckdb
import pyarrow as pa

# Fixed values make the settings and paths that SQL can read equal on every machine. Extensions are never fetched.
_LOCKDOWN = """
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
_ALLOWED_TABLE_FUNCTIONS = {
    "range", "generate_series", "generate_subscripts", "unnest", "repeat", "repeat_row", "json_each", "json_tree",
}  # fmt: skip
"""Table functions that read nothing but their arguments."""
_MACHINE_PREFIXES = ("duckdb_", "pg_", "pragma_")
"""Prefixes of the catalog's own tables, some of which reveal file paths."""
_SETTING_FUNCTIONS = {"current_setting", "json_serialize_plan"}
"""Functions that read settings; an optimized plan holds the values of those that its own text asks for."""
_VALUE_BYTES = 8
"""Bytes counted for each value beside its own, because nulls have none and a reader keeps a pointer to each."""
_MESSAGE_CHARACTERS = 2_000
"""Most of an error's text, because SQL can make it as long as memory."""


def main() -> None:
    channel = os.fdopen(os.dup(1), "wb")
    setup = json.loads(sys.stdin.buffer.readline())
    try:
        con = _open_tables(setup)
    except duckdb.Error as error:
        _send(channel, {"gone": str(error)})
        return
    requests: list[bytes] = []
    received = threading.Event()
    # In a thread of its own, because the parent's death must end this process in the middle of a query too.
    threading.Thread(target=_listen, args=(requests, received), daemon=True).start()
    _limit(setup)
    _send(channel, {"ready": True})
    received.wait()
    request = json.loads(requests[0])
    try:
        con.execute(f"SET memory_limit = '{int(setup['memory_mib'])}MiB'; SET lock_configuration = true")
        table, truncated = _read_rows(con, request, most_bytes=int(setup["answer_mib"]) << 20)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        content = sink.getvalue()
    except (MemoryError, duckdb.OutOfMemoryException, pa.ArrowMemoryError):
        _send(channel, {"refused": f"It needs more than {setup['memory_mib']} MiB of memory."})
    except (duckdb.Error, pa.ArrowException, ValueError, TypeError, RuntimeError) as error:
        _send(channel, {"refused": str(error)[:_MESSAGE_CHARACTERS]})
    else:
        _send(channel, {"bytes": content.size, "truncated": truncated})
        channel.write(content)
        channel.flush()
    # Exit at once, because DuckDB may take long to release memory.
    os._exit(0)


def _open_tables(setup: dict[str, Any]) -> duckdb.DuckDBPyConnection:
    """Open the tables of a projection, then lock the connection against all other files."""
    con = duckdb.connect(":memory:", config={"threads": 1})
    for statement in setup["statements"]:
        con.execute(statement)
    con.execute(_LOCKDOWN)
    return con


def _limit(setup: dict[str, Any]) -> None:
    """Set the kernel's limits on this process."""
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


def _listen(requests: list[bytes], received: threading.Event) -> None:
    requests.append(sys.stdin.buffer.readline())
    if requests[0]:
        received.set()
        sys.stdin.buffer.read(1)
    os._exit(0)


def _read_rows(con: duckdb.DuckDBPyConnection, request: dict[str, Any], *, most_bytes: int) -> tuple[pa.Table, bool]:
    """Return the first rows, and whether there were more. Reading stops there, so an endless query ends."""
    sql, most_rows = request["sql"], request["max_rows"]
    statements = con.extract_statements(sql)
    if len(statements) != 1 or statements[0].type != duckdb.StatementType.SELECT:
        raise ValueError("Give one SELECT statement: the tables are made from the log and cannot be changed here.")
    [(text,)] = con.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
    tree = json.loads(text)
    if tree["error"]:
        raise ValueError(f"It cannot be looked through: {tree['error_message']}")
    _reject_machine_access(tree)
    relation = con.sql(sql, params=request["parameters"] or None)
    if relation is None:
        raise ValueError("It has no rows.")
    reader = relation.to_arrow_reader(2048)
    batches: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in reader:
        part = batch.slice(0, most_rows - rows)
        while (part_size := sum(map(_count_bytes, part.columns))) > most_bytes - size and part.num_rows:
            part = part.slice(0, part.num_rows // 2)
        batches.append(part)
        rows += part.num_rows
        size += part_size
        if part.num_rows < batch.num_rows:
            return pa.Table.from_batches(batches, reader.schema), True
    return pa.Table.from_batches(batches, reader.schema), False


def _count_bytes(array: Any) -> int:
    """Return the bytes of an array to whoever writes its values out: neither nulls nor repeated texts are free.

    Arrow's own flattening and decoding are not used, because they start threads, and no more may start.
    """
    size = _VALUE_BYTES * len(array)
    if isinstance(array, pa.DictionaryArray):
        return size + len(array) * max(map(len, array.dictionary.to_pylist()), default=0)
    if isinstance(array, pa.StructArray | pa.UnionArray):
        return size + sum(_count_bytes(array.field(i)) for i in range(array.type.num_fields))
    if isinstance(array, pa.FixedSizeListArray):
        width = array.type.list_size
        return size + _count_bytes(array.values.slice(array.offset * width, len(array) * width))
    if isinstance(array, pa.ListArray):
        first, last = array.offsets[0].as_py(), array.offsets[-1].as_py()
        return size + _count_bytes(array.values.slice(first, last - first))
    return size + int(array.nbytes)


def _reject_machine_access(node: Any) -> None:
    """Raise ValueError if a parsed statement reads settings or files anywhere."""
    for part in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
        _reject_machine_access(part)
    if not isinstance(node, dict):
        return
    if node.get("type") == "TABLE_FUNCTION":
        name = node["function"].get("function_name", "")
        if name.lower() not in _ALLOWED_TABLE_FUNCTIONS:
            raise ValueError(f"The table function {name}() is not to be had here; of those there are: "
                             f"{', '.join(sorted(_ALLOWED_TABLE_FUNCTIONS))}.")  # fmt: skip
    if node.get("type") == "SHOW_REF" and node["show_type"] == "SHOW":
        raise ValueError("SHOW of one name is not to be had here, for it may be a setting: write DESCRIBE for a table.")
    named = node.get("table_name") if node.get("type") == "BASE_TABLE" else node.get("function_name")
    if isinstance(named, str) and (named.lower().startswith(_MACHINE_PREFIXES) or named in _SETTING_FUNCTIONS):
        raise ValueError(f"{named} is not to be had here: it tells of this machine, not of what was measured.")


def _send(channel: Any, message: dict[str, Any]) -> None:
    channel.write(json.dumps(message).encode() + b"\n")
    channel.flush()


if __name__ == "__main__":
    main()
