"""Durability of the log: unnoticed damage, the cost of hashing, and the disk use of many small appends."""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from accel_platform.events import EventLog, integrity, seal
from accel_platform.events.compaction import compact
from accel_platform.events.log import segment_key
from accel_platform.settings import Settings
from accel_platform.warehouse import disk_use, publish
from figures import Figure, tell
from synthetic import result_events, write_log

_ARROW_ERRORS = (pa.ArrowInvalid, OSError, ValueError)


def damage(home: Path, cases: int, seed: int = 16) -> Figure:
    """Flip bits, cut ends and swap contents of segments and packs; count what reads back as other data unnoticed."""
    log = EventLog.open(Settings(home=home))
    for number in range(40):
        log.append_table(result_events(1 + 25 * (number % 4), first=1000 * number), key=f"small-{number}")
    compact(log)
    for number in range(10):
        log.append_table(result_events(500, first=100_000 + 1000 * number), key=f"large-{number}")
    files = sorted(path for folder in ("segments", "packs") for path in (home / "log" / folder).glob("*.parquet"))
    whole = {path: path.read_bytes() for path in files}
    tables = {path: pq.read_table(pa.BufferReader(data)) for path, data in whole.items()}
    checks = integrity.Checks(log)
    rng = random.Random(seed)  # noqa: S311 - which damage is tried, for all to try again
    seen = unreadable = same = other = 0
    for number in range(cases):
        path = rng.choice(files)
        data = whole[path]
        kind = ("flip", "flip", "flip", "cut", "swap")[number % 5]
        if kind == "flip":
            changed = bytearray(data)
            changed[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            content = bytes(changed)
        elif kind == "cut":
            content = data[: rng.randrange(len(data))]
        else:
            content = whole[rng.choice([one for one in files if one != path])]
        key = path.relative_to(home / "log").as_posix()
        if checks.problem_in(key, content) is not None:
            seen += 1
            continue
        try:
            read = pq.read_table(pa.BufferReader(content))
        except _ARROW_ERRORS:
            unreadable += 1
            continue
        same, other = (same + 1, other) if read.equals(tables[path]) else (same, other + 1)
    return {"what": f"{cases:,} flips, cuts and swaps in segments and packs: silently other data", "reach": "0",
            "got": other, "detail": f"{seen:,} noticed, {unreadable} unreadable, {same} without effect"}  # fmt: skip


def hashing(home: Path, rounds: int, events: int) -> list[Figure]:
    """Measure what the seal adds to an append of one event, and checking to a rebuild, taken in turn."""
    log = EventLog.open(Settings(home=home / "append"))
    shares = []
    for number in range(400):
        table = result_events(1, first=number)
        started = time.perf_counter()
        log.append_table(table, key=f"one-{number}")
        whole = time.perf_counter() - started
        data = log.store.local_path(segment_key(f"one-{number}")).read_bytes()
        shares.append(_median_s(lambda data=data: seal.fill_hash(_unsealed(data))) / whole)  # type: ignore[misc]
    write_log(home / "bulk", events)
    settings = Settings(home=home / "bulk")
    log = EventLog.open(settings)
    sources = log.sources(log.snapshot().segments)
    ratios, checks = [], []
    for _ in range(rounds):
        started = time.perf_counter()
        assert integrity.find_damage(log, sources) == []
        checks.append(time.perf_counter() - started)
        ratios.append(checks[-1] / (publish.stage(settings, full=True).seconds - checks[-1]))
    checked = [_crc_s(home, result_events(10_000, first=0), checksums) for checksums in (False, True)]
    return [
        {"what": "hashing within one append, p50", "reach": "<= 5 %", "got": f"{statistics.median(shares):.1%}",
         "detail": f"of 400 appends, p90 {sorted(shares)[360]:.1%}"},
        {"what": f"checking within a rebuild of {events:,} events", "reach": "<= 5 %",
         "got": f"{statistics.median(ratios):.1%}", "detail": f"{statistics.median(checks):.2f} s"},
        {"what": "page checksums instead: writing and reading 10,000 events with them against without", "reach": "-",
         "got": round(checked[1] / checked[0], 2), "detail": "the footer stays unprotected, DuckDB ignores them"},
    ]  # fmt: skip


def disk(home: Path, appends: int, nights: int) -> Figure:
    """Compare the disk use after many small appends and nightly compactions with that of one segment."""
    settings = Settings(home=home / "many")
    log = EventLog.open(settings)
    table = result_events(appends, first=0)
    each = appends // nights
    for number in range(appends):
        log.append_table(table.slice(number, 1), key=f"events-{seal.sha256(str(number).encode())[:32]}")
        if number % 10 == 9:
            log.save_snapshot(log.snapshot())
        if number % each == each - 1:
            # The night: what is superseded by then is older than an hour.
            compact(log, grace_s=0)
    used = sum(use.size_bytes for use in disk_use.measure_disk_use(settings))
    one = EventLog.open(Settings(home=home / "one"))
    one.append_table(table, key="all")
    compacted = sum(use.size_bytes for use in disk_use.measure_disk_use(Settings(home=home / "one")))
    parts = ", ".join(f"{use.part} {use.size_bytes / 1e3:,.0f} kB" for use in disk_use.measure_disk_use(settings))
    return {"what": f"disk after {appends:,} appends, a snapshot each 10, {nights} nights, against one segment",
            "reach": "<= 1.5", "got": round(used / compacted, 2),
            "detail": f"{parts}; one segment {compacted / 1e3:,.0f} kB"}  # fmt: skip


def _unsealed(data: bytes) -> bytes:
    """Return the file as it was before its hash was put in."""
    start = data.rfind(b"accel.sha256") + len(b"accel.sha256") + 2
    return data[:start] + b"0" * 64 + data[start + 64 :]


def _crc_s(home: Path, table: pa.Table, checksums: bool) -> float:
    path = home / "crc.parquet"

    def work() -> None:
        pq.write_table(table, path, compression="zstd", write_page_checksum=checksums)
        pq.read_table(path, page_checksum_verification=checksums)
        with duckdb.connect() as con:
            con.execute(f"SELECT count(*) FROM read_parquet('{path}')").fetchall()

    return _median_s(work, rounds=9)


def _median_s(work: Callable[[], object], rounds: int = 5) -> float:
    taken = []
    for _ in range(rounds):
        started = time.perf_counter()
        work()
        taken.append(time.perf_counter() - started)
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=5_000, help="damages to try")
    parser.add_argument("--events", type=int, default=1_000_000, help="events of the rebuild")
    parser.add_argument("--appends", type=int, default=10_000)
    parser.add_argument("--nights", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, help="where to work (default: a temporary directory)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.directory, prefix="accel-bench-") as directory:
        root = Path(directory)
        figures = [damage(root / "damage", arguments.cases)]
        figures += hashing(root, arguments.rounds, arguments.events)
        figures.append(disk(root, arguments.appends, arguments.nights))
    tell(figures, for_machines=arguments.json)


if __name__ == "__main__":
    main()
