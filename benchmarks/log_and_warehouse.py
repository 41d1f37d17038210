"""Figures of event log and warehouse: append, concurrency, rebuild, increment, growth, size and query path."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import duckdb
import pyarrow.parquet as pq

from accel_platform.events import EventLog, codec
from accel_platform.events.types import Event, ResultRecorded
from accel_platform.settings import Settings
from accel_platform.warehouse import publish
from accel_platform.warehouse.layers import require_current
from accel_platform.warehouse.reader import Reader
from figures import Figure, tell
from synthetic import result_events, with_verifications, write_log


def _event(index: int) -> Event:
    return Event.of(
        ResultRecorded(
            model_id="bert-base",
            model_family="bert",
            hardware="cpu",
            backend="pytorch",
            status="ok",
            provenance="measured",
            precision="float32",
            batch_size=1,
            sequence_length=128,
            device_id="cpu-synthetic",
            fingerprint="synthetic",
            samples_ns=tuple(25_000_000 + 1009 * index * k % 90_001 for k in range(30)),
            memory_peak_mib=512.25,
        ),
        source="bench",
        host_id="host",
        run_id="run",
    )


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _write_plainly(path: Path, data: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    os.write(descriptor, data)
    os.fsync(descriptor)
    os.close(descriptor)


def append_some(home: Path, many: int) -> Figure:
    """Compare the p50 of appending `many` events at once with writing and syncing the same bytes to a new file."""
    log = EventLog.open(Settings(home=home))
    plain_dir = home / "plain"
    plain_dir.mkdir(parents=True)
    events = [_event(i) for i in range(max(600, 60 * many))]
    data = codec.to_parquet(codec.to_arrow(events[:many]), "segments/some.parquet")
    appended, plain, encoded = [], [], []
    for i in range(0, len(events), many):
        some = events[i : i + many]
        appended.append(_seconds(lambda some=some: log.append(some)))  # type: ignore[misc]
        plain.append(_seconds(lambda i=i: _write_plainly(plain_dir / f"{i}", data)))  # type: ignore[misc]
        encoded.append(_seconds(lambda some=some: codec.to_parquet(codec.to_arrow(some), "segments/x")))  # type: ignore[misc]
    a, p, e = (statistics.median(times) * 1e3 for times in (appended, plain, encoded))
    what = "one event" if many == 1 else f"{many} events at once"
    return {"what": f"append {what}, p50, against plain write + fsync", "reach": "<= 1.8" if many == 1 else "<= 1.2",
            "got": round(a / p, 2),
            "detail": f"{a:.3f} ms, encoding {e:.3f} ms of it, against {p:.3f} ms; {len(data):,} bytes"}  # fmt: skip


def _appender(home: str, worker: int, ready: object, go: object, failures: object) -> None:
    log = EventLog.open(Settings(home=Path(home)))
    events = [_event(worker * 1000 + i) for i in range(200)]
    ready.release()  # type: ignore[attr-defined]
    go.wait()  # type: ignore[attr-defined]
    for event in events:
        try:
            log.append([event])
        except Exception as error:  # every failure counts, whatever it is
            failures.put(repr(error))  # type: ignore[attr-defined]


def append_together(home: Path) -> Figure:
    """Measure four processes that append 200 events each, from their common start to the last end."""
    context = multiprocessing.get_context("spawn")
    ready, go, failures = context.Semaphore(0), context.Event(), context.Queue()
    workers = [context.Process(target=_appender, args=(str(home), n, ready, go, failures)) for n in range(4)]
    for worker in workers:
        worker.start()
    for _ in workers:
        ready.acquire()
    started = time.perf_counter()
    go.set()
    for worker in workers:
        worker.join()
    seconds = time.perf_counter() - started
    events = sum(1 for _ in EventLog.open(Settings(home=home)).read())
    return {"what": "4 processes x 200 appends", "reach": "800 events, 0 errors, <= 2 s", "got": round(seconds, 2),
            "detail": f"{events} events, {failures.qsize()} errors, {seconds:.2f} s"}  # fmt: skip


def rebuild(home: Path, rounds: int) -> list[Figure]:
    """Compare a full rebuild with one plain table and an increment with it, in turns; then size and query path."""
    settings = Settings(home=home)
    segments = sorted((home / "log" / "segments").glob("*.parquet"))
    n_events = sum(pq.read_metadata(file).num_rows for file in segments)
    full, plain, incremental = [], [], []
    for round_ in range(rounds):
        plain.append(_seconds(lambda: _plain_table(home)))
        staged = publish.stage(settings, full=True)
        full.append(staged.seconds)
        publish.publish(settings, staged)
        table = with_verifications(result_events(1000, first=10_000_000 + round_ * 1000))
        EventLog.open(settings).append_table(table, key=f"new-{round_}")
        increment = publish.stage(settings)
        assert increment.mode == "incremental"
        incremental.append(increment.seconds)
        publish.publish(settings, increment)
    f, p, i = statistics.median(full), statistics.median(plain), statistics.median(incremental)
    return [
        {"what": f"full rebuild of {n_events:,} events against one plain table", "reach": "<= 1.4",
         "got": round(f / p, 2), "detail": f"{f:.2f} s against {p:.2f} s"},
        {"what": f"1,000 new verified results on {n_events:,}: increment against full rebuild", "reach": "<= 5 %",
         "got": f"{100 * i / f:.1f} %", "detail": f"{i:.3f} s against {f:.2f} s"},
        _size(segments),
        _query_path(settings),
    ]  # fmt: skip


def growth(home: Path, sizes: Sequence[int]) -> list[Figure]:
    """Measure one more event, from its append to the tables in service, on a history of each of these sizes."""
    settings, figures, written = Settings(home=home), list[Figure](), 0
    log = EventLog.open(settings)
    for size in sizes:
        write_log(home, size, first=written)
        written = size
        publish.refresh(settings, full=True)
        rounds = []
        for number in range(7):
            event = _event(size + number)
            times = [_seconds(lambda event=event: log.append([event]))]  # type: ignore[misc]
            started = time.perf_counter()
            staged = publish.stage(settings)
            times.append(time.perf_counter() - started)
            times.append(_seconds(lambda staged=staged: publish.check(staged)))  # type: ignore[misc]
            times.append(_seconds(lambda staged=staged: publish.publish(settings, staged)))  # type: ignore[misc]
            rounds.append(times)
        append, project, check, matrix = (statistics.median(times) * 1e3 for times in zip(*rounds, strict=True))
        parts = f"append {append:.2f} ms, project {project:.0f} ms, check {check:.0f} ms, matrix {matrix:.0f} ms"
        figures.append(
            {"what": f"one more event on {size:,}, to the tables in service", "reach": "",
             "got": f"{append + project + check + matrix:.0f} ms", "detail": parts})  # fmt: skip
    return figures


def _plain_table(home: Path) -> None:
    path = home / "plain.duckdb"
    path.unlink(missing_ok=True)
    with duckdb.connect(path) as con:
        con.execute("SET preserve_insertion_order = false")
        con.execute(f"CREATE TABLE plain AS SELECT * FROM read_parquet('{home}/log/segments/bulk-*.parquet')")


def _size(segments: list[Path]) -> Figure:
    import pyarrow.parquet as pq

    table = pq.read_table(segments[0], partitioning=None)
    as_json = sum(len(e.model_dump_json(exclude_none=True)) + 1 for e in codec.from_arrow(table.to_batches()))
    stored = segments[0].stat().st_size
    return {"what": "bytes of the log against the same events as JSON Lines", "reach": "<= 15 %",
            "got": f"{100 * stored / as_json:.1f} %",
            "detail": f"{stored:,} against {as_json:,} bytes, {table.num_rows:,} events"}  # fmt: skip


def _query_path(settings: Settings) -> Figure:
    sql = "SELECT model_id, hardware, avg(throughput_items_per_s) FROM results GROUP BY model_id, hardware"
    reader = Reader(settings)
    ours, plain = [], []
    with require_current(settings).open() as con:
        con.execute("CREATE TEMP TABLE rows AS SELECT * FROM results")
        plain_sql = sql.replace("results", "rows")
        for _ in range(30):
            plain.append(_seconds(lambda: con.execute(plain_sql).fetchall()))
            ours.append(_seconds(lambda: reader.rows(sql)))
    o, p = statistics.median(ours) * 1e3, statistics.median(plain) * 1e3
    return {"what": "avg(throughput) by model and hardware, our query path against plain DuckDB", "reach": "<= 1.2",
            "got": round(o / p, 2), "detail": f"{o:.1f} ms against {p:.1f} ms"}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--growth", type=int, nargs="*", default=[10_000, 100_000, 1_000_000], help="sizes of history, growing"
    )
    parser.add_argument("--directory", type=Path, help="where to work (default: a temporary directory)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="accel-bench-") as directory:
        root = Path(directory)
        figures = [append_some(root / "one", 1), append_some(root / "hundred", 100), append_together(root / "four")]
        figures += growth(root / "growth", arguments.growth)
        write_log(root / "bulk", arguments.events)
        figures += rebuild(root / "bulk", arguments.rounds)
    tell(figures, for_machines=arguments.json)


if __name__ == "__main__":
    main()
