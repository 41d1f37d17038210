"""Growth of costs with history: measured to 10^7 results and 10^5 segments, and modelled beyond.

Histories are of imported results, of one event each, and of verified ones, of two, as a run writes them.

Each step runs in a process of its own, which tells its seconds, its seconds of processor and its peak of memory.
Requests are counted at a local S3 server.
"""

from __future__ import annotations

import argparse
import math
import multiprocessing
import os
import resource
import shutil
import statistics
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from accel_platform.events import EventLog, codec
from accel_platform.events.compaction import compact
from accel_platform.events.log import pack_key, segment_key
from accel_platform.events.segment_set import Snapshot
from accel_platform.settings import Settings
from accel_platform.warehouse import publish
from accel_platform.warehouse.layers import require_current
from accel_platform.warehouse.reader import Reader
from figures import Figure, tell
from synthetic import result_events, with_verifications, write_log

_MODELLED = (10**8, 10**9, 10**10)
_WRITERS_LOG = "s3://growth/writers"
"""Another one than the logs that are opened, because servers of one process may share their objects."""
_PAGE = "SELECT * FROM results ORDER BY result_id DESC LIMIT 100"
_QUERY = "SELECT model_id, hardware, avg(throughput_items_per_s) FROM results GROUP BY model_id, hardware"


@dataclass(frozen=True)
class Cost:
    """Cost of one step; times in seconds, memory as the peak of the process's resident set in GiB."""

    wall_s: float
    cpu_s: float
    memory_gib: float

    def __str__(self) -> str:
        return f"{self.wall_s:.2f} s, {self.cpu_s:.2f} s of processor, {self.memory_gib:.2f} GiB"


def _timed(work: Callable[[], object]) -> Cost:
    before, started = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
    work()
    wall_s, after = time.perf_counter() - started, resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall_s, cpu_s, after.ru_maxrss / 2**20)


def _median(costs: Sequence[Cost]) -> Cost:
    return Cost(
        statistics.median(cost.wall_s for cost in costs),
        statistics.median(cost.cpu_s for cost in costs),
        max(cost.memory_gib for cost in costs),
    )


def _apart(work: Callable[..., Any], *arguments: object) -> Any:
    """Run it in a fresh process."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(work, *arguments).result()


def _rebuild(home: Path) -> Cost:
    return _timed(lambda: publish.refresh(Settings(home=home), full=True))


def _of_one_model(first: int) -> pa.Table:
    """Return some 1,000 results of the same one of 200 models."""
    events = result_events(200_000, first=first)
    return events.filter(pc.match_substring(events["payload"], '"model_id":"model-7"'))


def _increment(home: Path, first: int, *, verified: bool, one_model: bool, rounds: int = 3) -> Cost:
    """Measure 1,000 new results on what is there, from the log to audited tables and matrix in service."""
    settings, costs = Settings(home=home), []
    for number in range(rounds):
        start = first + 200_000 * number
        events = _of_one_model(start) if one_model else result_events(1000, first=start)
        events = with_verifications(events) if verified else events
        EventLog.open(settings).append_table(events, key=f"new-{start}")

        def work() -> None:
            staged = publish.stage(settings)
            assert staged.mode == "incremental"
            publish.check(staged)
            publish.publish(settings, staged)

        costs.append(_timed(work))
    return _median(costs)


def _ask(home: Path, sql: str, rounds: int = 11) -> Cost:
    reader = Reader(Settings(home=home))
    reader.rows(sql)
    return _median([_timed(lambda: reader.rows(sql)) for _ in range(rounds)])


def sizes(home: Path, results: Sequence[int], *, verified: bool) -> Iterator[Figure]:
    """Measure a rebuild, an increment, a page and a query on histories of these sizes, and model larger ones."""
    found: dict[str, list[tuple[int, Cost]]] = {}
    settings, written, kind = Settings(home=home), 0, "verified results" if verified else "results"
    increment = partial(_increment, verified=verified)
    for size in sorted(results):
        write_log(home, size, first=written, per_segment=50_000, verified=verified)
        written = size
        for name, work in (
            ("full rebuild", _rebuild),
            ("increment of 1,000", partial(increment, first=10**11 + size, one_model=False)),
            ("increment of 1,000 of one model", partial(increment, first=2 * 10**11 + size, one_model=True)),
            ("page of 100", partial(_ask, sql=_PAGE)),
            ("average by model and hardware", partial(_ask, sql=_QUERY)),
        ):
            found.setdefault(name, []).append((size, _apart(work, home)))
        layers = sum((settings.warehouse_dir / layer.file).stat().st_size for layer in require_current(settings).layers)
        log = sum(path.stat().st_size for path in (home / "log").rglob("*.parquet"))
        yield {"what": f"bytes of {size:,} {kind}", "reach": "", "got": f"{log / size:.0f} a result",
               "detail": f"of the log; {layers / size:.0f} of the tables"}  # fmt: skip
        for name, costs in found.items():
            yield {"what": f"{name}, {size:,} {kind}", "reach": "", "got": str(costs[-1][1]),
                   "detail": f"{costs[-1][1].cpu_s / size * 1e6:.2f} us of processor a result"}  # fmt: skip
    for name, costs in found.items():
        if len(costs) > 1:
            yield _modelled(f"{name}, {kind}", costs)


def _modelled(name: str, costs: Sequence[tuple[int, Cost]]) -> Figure:
    """Fit a line of seconds of processor over results by the least relative error, and follow it."""
    n, y = np.array([size for size, _ in costs], float), np.array([cost.cpu_s for _, cost in costs])
    fixed, each = np.linalg.lstsq(np.column_stack([1 / y, n / y]), np.ones(len(n)), rcond=None)[0]
    worst = float(np.max(np.abs((fixed + each * n) / y - 1)))
    beyond = ", ".join(f"{fixed + each * size:,.1f} s at 10^{math.log10(size):.0f}" for size in _MODELLED)
    return {"what": f"{name}, model", "reach": "", "got": f"{fixed:.3g} s + {each * 1e6:.3g} us x results",
            "detail": f"of processor, at most {worst:.0%} off what was measured; {beyond}"}  # fmt: skip


def opening(root: Path, segments: Sequence[int], tail: int) -> Iterator[Figure]:
    """Measure opening logs of so many segments, the id included: never packed, and packed but for a tail."""
    for many in segments:
        loose, packed = root / f"loose-{many}", root / f"packed-{many}"
        names = [f"events-{number:032x}" for number in np.random.default_rng(16).permutation(many)]
        _write_loose(loose, names)
        _write_packed(packed, names[tail:])
        table, log = result_events(tail, first=many), EventLog.open(Settings(home=packed))
        for number, name in enumerate(names[:tail]):
            log.append_table(table.slice(number, 1), key=name)
        for kind, home in (("in no pack", loose), (f"in packs but {tail:,}", packed)):
            cost = _apart(_open, home)
            yield {"what": f"opening {many:,} segments, {kind}", "reach": "<= 1 s", "got": f"{cost.wall_s:.2f} s",
                   "detail": f"{cost}; {sum(1 for _ in (home / 'log').rglob('*.*'))} files"}  # fmt: skip
        yield from _requests(packed / "log", Settings(home=root / "here", log_uri="s3://growth/log"), many)


def _requests(log: Path, there: Settings, many: int) -> Iterator[Figure]:
    """Copy a log to S3, and count the requests of work with it."""
    table = result_events(2, first=10**9)

    def open_again() -> None:
        assert len(EventLog.open(there).snapshot().id) == 32

    def append(number: int) -> None:
        EventLog.open(there).append_table(table.slice(number, 1), key=f"new-{number}")

    def build() -> None:
        publish.refresh(there)

    with s3_server() as requests:
        store = EventLog.open(there).store
        for path in log.rglob("*.*"):
            store.publish(path.relative_to(log).as_posix(), path.read_bytes())
        for what, reach, work in (
            ("opening them on S3", "<= 20", open_again),
            ("opening them again", "<= 20", open_again),
            ("the first append of a process", "", partial(append, 0)),
            ("a first build of the tables", "", build),
            ("one more append", "", partial(append, 1)),
            ("an increment of it", "", build),
        ):
            requests.clear()
            work()
            yield {"what": f"requests of {what}, {many:,} segments", "reach": reach, "got": requests.total(),
                   "detail": _listed(requests)}  # fmt: skip


def _open(home: Path) -> Cost:
    return _timed(lambda: EventLog.open(Settings(home=home)).snapshot().id)


def _write_loose(home: Path, names: Iterable[str]) -> None:
    """Write segments that opening only lists, with one content for all, because that is not read."""
    (home / "log" / "segments").mkdir(parents=True, exist_ok=True)
    content = codec.to_parquet(result_events(1), segment_key("any"))
    for name in names:
        (home / "log" / segment_key(name)).write_bytes(content)


def _write_packed(home: Path, names: Sequence[str], packs: int = 8) -> None:
    """Write packs of one event a segment, and their catalog, as nightly compaction leaves them."""
    log = EventLog.open(Settings(home=home))
    each = -(-len(names) // packs)
    for start in range(0, len(names), each):
        here = sorted(names[start : start + each])
        table = result_events(len(here), first=start).append_column("segment", pa.array(here, pa.string()))
        key = pack_key(Snapshot(frozenset(here)).id)
        log.store.publish(key, codec.to_parquet(table, key))
    log.saved.merge(grace_s=0, packs=log.known_packs())


def writers(root: Path, processes: int, each: int, appends: int) -> Figure:
    """Let so many writers append to S3 beside compaction, and count what is lost or doubled."""
    with s3_server() as requests:
        arguments = [(root / f"host-{n}", each, appends) for n in range(processes)]
        packer = EventLog.open(Settings(home=root / "packer", log_uri=_WRITERS_LOG))
        started, nights = time.perf_counter(), 0
        with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
            running = [pool.submit(_write, *one) for one in arguments]
            while not all(one.done() for one in running):
                compact(packer, grace_s=0)
                nights += 1
        acknowledged = Counter(one for written in running for one in written.result())
        seconds = time.perf_counter() - started
        stored = Counter(
            event.event_id for event in EventLog.open(Settings(home=root / "r", log_uri=_WRITERS_LOG)).read()
        )
        lost, doubled = acknowledged - stored, stored - acknowledged
        return {"what": f"{processes * each} writers x {appends} appends to S3 beside compaction: lost or doubled",
                "reach": "0", "got": lost.total() + doubled.total(),
                "detail": f"{stored.total():,} events, {nights} compactions, {seconds:.1f} s, {_listed(requests)}"
                }  # fmt: skip


def _write(home: Path, writers_here: int, appends: int) -> list[UUID]:
    acknowledged: list[UUID] = []

    def write(number: int) -> None:
        log = EventLog.open(Settings(home=home / str(number), log_uri=_WRITERS_LOG))
        table = result_events(appends, first=abs(hash((home, number))) % 10**9)
        for n in range(appends):
            log.append_table(table.slice(n, 1), key=f"{home.name}-{number}-{n}")
            acknowledged.append(table["event_id"][n].as_py())

    threads = [threading.Thread(target=write, args=(number,)) for number in range(writers_here)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return acknowledged


@contextmanager
def s3_server() -> Iterator[Counter[str]]:
    """Run an S3 server with a bucket `growth`, to which the environment leads, and count its requests by kind."""
    import boto3  # type: ignore[import-untyped]
    from moto.core.model_instances import reset_model_data
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        protocol_version = "HTTP/1.1"

        def log(self, *_: object) -> None:
            """Log nothing."""

    requests: Counter[str] = Counter()
    answer = DomainDispatcherApplication(create_backend_app)

    def counted(environ: dict[str, Any], start_response: Any) -> Any:
        requests["LIST" if "list-type" in environ["QUERY_STRING"] else environ["REQUEST_METHOD"]] += 1
        return answer(environ, start_response)

    server = make_server("127.0.0.1", 0, counted, threaded=True, request_handler=Quiet)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    names = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "DEFAULT_REGION", "REGION")
    os.environ |= {f"AWS_{name}": "us-east-1" for name in names}
    os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{server.server_port}"
    reset_model_data()  # servers of one process share their objects
    boto3.client("s3").create_bucket(Bucket="growth")
    requests.clear()
    try:
        yield requests
    finally:
        server.shutdown()


def _listed(requests: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(requests.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--sizes", type=int, nargs="*", default=[10**5, 10**6], help="results; 10^7 takes minutes, 8 GB"
    )
    parser.add_argument("--segments", type=int, nargs="*", default=[10**4, 10**5], help="segments of logs to open")
    parser.add_argument("--tail", type=int, default=1_100, help="segments of these that are in no pack yet")
    parser.add_argument("--appends", type=int, default=50, help="appends of each of 20 writers")
    parser.add_argument("--directory", type=Path, help="where to work (default: a temporary directory)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="accel-bench-") as directory:
        root = Path(directory)
        figures = [*opening(root, arguments.segments, arguments.tail)]
        figures.append(writers(root / "writers", 4, 5, arguments.appends))
        for verified in (False, True):
            figures += sizes(root / f"verified-{verified}", arguments.sizes, verified=verified)
            shutil.rmtree(root / f"verified-{verified}", ignore_errors=True)
    tell(figures, for_machines=arguments.json)


if __name__ == "__main__":
    main()
