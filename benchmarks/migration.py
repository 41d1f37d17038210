"""Figures of importing: documents accounted for, time over parsing, second run, stored size, rate and memory.

The data is any directory of old results, by default the one beside this repository. Importing and parsing take turns,
each in a process of its own, so that neither warms the other; the median of the ratios counts.
"""

from __future__ import annotations

import argparse
import csv
import json
import multiprocessing
import re
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from accel_platform.events import EventLog
from accel_platform.events.types import DocumentImported, ResultRecorded
from accel_platform.settings import Settings
from figures import Figure, tell
from migrations.formats import all_formats
from migrations.pipeline.importer import migrate
from migrations.suspicion.statistics import has_other_figure

DATA = Path(__file__).parent.parent.parent / "shared" / "data"
_STATED = re.compile(
    r'"?[a-z_]*(latency|throughput|inference_time|avg_time|average_time|elapsed_time|generation_time|memory_peak)[a-z_]*"?'
    r": ?\[?\s*[0-9.]*[1-9]"
)


def _files(directory: Path, *endings: str) -> list[Path]:
    found = sorted(path for path in directory.rglob("*") if path.is_file())
    return [path for path in found if not endings or path.suffix in endings]


def _aside(work: Callable[..., Any], *args: Any) -> Any:
    """Return the function's result from a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(work, args)


def _parse(paths: list[Path]) -> float:
    """Return the seconds to parse these files with the json module, line by line where the whole is no JSON."""
    started = time.perf_counter()
    for path in paths:
        text = path.read_text(errors="replace")
        try:
            json.loads(text)
        except ValueError:
            for line in text.splitlines():
                try:
                    json.loads(line)
                except ValueError:
                    continue
    return time.perf_counter() - started


def _import(paths: list[Path], home: Path) -> dict[str, Any]:
    """Import twice; return the seconds of each, and the peak memory of this process in MiB."""
    all_formats()  # a command pays for its modules once, whatever it imports
    seconds, of_processor, reports = [], [], []
    for _ in range(2):
        log = EventLog.open(Settings(home=home))
        started, used = time.perf_counter(), time.process_time()
        reports.append(migrate(paths, log))
        seconds.append(time.perf_counter() - started)
        of_processor.append(time.process_time() - used)
    stored = sum(path.stat().st_size for path in (home / "log").rglob("*") if path.is_file())
    return {
        "first_s": seconds[0],
        "first_cpu_s": of_processor[0],
        "second_s": seconds[1],
        "second_events": reports[1].events,
        "found": reports[0].found,
        "outcomes": reports[0].outcomes,
        "records": reports[0].records,
        "stored": stored,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def whole(data: Path, home: Path) -> list[Figure]:
    """Count documents accounted for and rows without figures, and measure a second run and the stored size."""
    paths = _files(data)
    size = sum(path.stat().st_size for path in paths)
    done = _aside(_import, paths, home)
    counted = sum(done["outcomes"].values())
    lost = _without_figures(home)
    return [
        {"what": "documents accounted for", "reach": "100 %", "got": f"{counted / len(paths):.1%}",
         "detail": f"{len(paths)} files: {done['outcomes']}, {done['records']} records"},
        {"what": "documents whose rows have no figure though the source had one", "reach": "0", "got": len(lost),
         "detail": ", ".join(Path(path).name for path in lost[:5])},
        {"what": "second run against the first", "reach": "<= 10 %, no event",
         "got": f"{done['second_s'] / done['first_s']:.1%}",
         "detail": f"{done['second_s']:.3f} s against {done['first_s']:.2f} s, {done['second_events']} events"},
        {"what": "stored size against the source", "reach": "<= 20 %", "got": f"{done['stored'] / size:.1%}",
         "detail": f"{done['stored']:,} of {size:,} bytes"},
    ]  # fmt: skip


def _without_figures(home: Path) -> list[str]:
    """Return imported documents without a latency, throughput or memory, though their text states one."""
    log = EventLog.open(Settings(home=home))
    known: dict[str, bool] = {}
    for event in log.read(types={"ResultRecorded"}):
        result = event.payload
        if isinstance(result, ResultRecorded):
            path = (result.source_path or "").partition("#")[0]
            figure = result.samples_ns or result.latency_mean_ms or result.latency_p50_ms or result.latency_p90_ms
            found = figure or result.throughput_items_per_s or result.memory_peak_mib or has_other_figure(result)
            known[path] = known.get(path, False) or bool(found)
    entries = [e.payload for e in log.read(types={"DocumentImported"})]
    read = {
        e.source_path for e in entries if isinstance(e, DocumentImported) and e.records and "#" not in e.source_path
    }
    empty = sorted(path for path in read if not known.get(path))
    return [path for path in empty if _STATED.search(Path(path).read_text(errors="replace"))]


def against_parsing(what: str, paths: list[Path], scratch: Path, rounds: int) -> Figure:
    """Compare the time of a first import with parsing the same files."""
    ratios, imports, parses = [], [], []
    for number in range(rounds):
        parses.append(_aside(_parse, paths))
        imports.append(_aside(_import, paths, scratch / f"{what}-{number}"))
        ratios.append(imports[-1]["first_s"] / parses[-1])
    size, records = sum(path.stat().st_size for path in paths), imports[0]["records"]
    first_s, parse_s = statistics.median(i["first_s"] for i in imports), statistics.median(parses)
    return {"what": f"time against json: {what}", "reach": "<= 3", "got": round(statistics.median(ratios), 1),
            "detail": f"{first_s:.2f} s against {parse_s:.3f} s; {len(paths)} files, {size / 1e6:.1f} MB, {records} "
                      f"records, {1e6 * first_s / max(1, records):.0f} us each"}  # fmt: skip


def write_runs(directory: Path, count: int, samples: int) -> None:
    """Write files as the old hardware benchmark runner did, with their samples."""
    numbers = np.random.default_rng(5)
    directory.mkdir(parents=True)
    for number in range(count):
        cells = {}
        for batch in (1, 2, 4, 8):
            times = (numbers.uniform(0.01, 0.02, samples) * batch).tolist()
            mean = sum(times) / len(times)
            cells[f"batch_{batch}_seq_128"] = {
                "status": "completed", "batch_size": batch, "sequence_length": 128, "latencies": times,
                "avg_latency": mean, "min_latency": min(times), "max_latency": max(times),
                "throughput": batch / mean, "iterations": samples, "memory_usage": {"peak": 812.5 + number},
            }  # fmt: skip
        run = {"status": "completed", "model_class": "BertModel", "model_load_time": 1.5, "benchmark_results": cells}
        models = {"bert-base-uncased": {"cpu": {**run, "hardware": "cpu"}, "cuda": {**run, "hardware": "cuda"}}}
        value = {"timestamp": f"20250302_{number:06}", "benchmarks": {"embedding": models}}
        (directory / f"{number}.json").write_text(json.dumps(value, indent=2))


def write_lines(path: Path, size: int) -> None:
    """Write at least `size` bytes of flat results as JSON Lines."""
    numbers = np.random.default_rng(7)
    names = ("bert-base-uncased", "gpt2", "t5-small", "vit-base", "whisper-tiny")
    with path.open("w") as file:
        while file.tell() < size:
            for number in range(5_000):
                latency = float(numbers.uniform(4, 90))
                row = {
                    "model_name": names[number % 5], "hardware_type": ("cpu", "cuda", "rocm")[number % 3],
                    "batch_size": 1 << number % 5, "precision": "fp16", "average_latency_ms": latency,
                    "throughput_items_per_second": (1 << number % 5) * 1000 / latency,
                    "memory_peak_mb": float(numbers.uniform(200, 9000)), "iterations": 100, "warmup_iterations": 10,
                    "timestamp": "2025-03-02T10:00:00", "test_case": f"case {numbers.integers(1 << 60):x}",
                    "notes": "as the nightly job of the old framework wrote it, with what it said of the machine",
                }  # fmt: skip
                file.write(json.dumps(row) + "\n")


def tables(scratch: Path, size: int, rounds: int) -> list[Figure]:
    """Measure records per second of one core, for the same rows as JSON Lines and as CSV."""
    lines, cells = scratch / "table.jsonl", scratch / "table.csv"
    write_lines(lines, size)
    with lines.open() as file, cells.open("w", newline="") as table:
        rows = map(json.loads, file)
        first = next(rows)
        writer = csv.DictWriter(table, list(first))
        writer.writeheader()
        writer.writerows([first, *rows])
    figures: list[Figure] = []
    for path in (lines, cells):
        rates, parses = [], []
        for number in range(rounds):
            parses.append(_aside(_parse_table, path))
            done = _aside(_import, [path], scratch / f"{path.name}-{number}")
            rates.append(done["records"] / done["first_cpu_s"])
        records, rate = done["records"], statistics.median(rates)
        figures.append(
            {"what": f"records/s of one core, a table as {path.suffix[1:]}", "reach": ">= 25,000", "got": round(rate),
             "detail": f"{records:,} records, {path.stat().st_size / 1e6:.0f} MB, {1e6 / rate:.0f} us each, "
                       f"parsing alone {1e6 * statistics.median(parses) / records:.1f} us; "
                       f"rounds {', '.join(f'{rate:,.0f}' for rate in rates)}"})  # fmt: skip
    return figures


def _parse_table(path: Path) -> float:
    """Return the processor seconds to read a table into dicts with the standard library."""
    started = time.process_time()
    with path.open(newline="") as file:
        for _ in csv.DictReader(file) if path.suffix == ".csv" else map(json.loads, file):
            pass
    return time.process_time() - started


def large(scratch: Path, size: int) -> list[Figure]:
    """Measure peak memory and time on one large file of JSON Lines."""
    path = scratch / "large.jsonl"
    write_lines(path, size)
    done = _aside(_import, [path], scratch / "large-home")
    seconds = f"{done['first_s']:.0f} s, second run {done['second_s']:.1f} s, {done['records']} records"
    return [
        {"what": f"peak memory on {size / 1e9:.1f} GB of JSON Lines", "reach": "<= 500 MB",
         "got": f"{done['peak_mib'] * 1.048576:.0f} MB", "detail": f"{seconds}, {done['outcomes']}"},
        {"what": "its stored size", "reach": "<= 20 %", "got": f"{done['stored'] / path.stat().st_size:.1%}",
         "detail": f"{done['stored']:,} bytes"},
        {"what": "its second run", "reach": "<= 10 %", "got": f"{done['second_s'] / done['first_s']:.1%}",
         "detail": f"{done['second_events']} events"},
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA, help="directory of old results")
    parser.add_argument("--bytes", type=int, default=1_000_000_000, help="size of the large file; 0 leaves it out")
    parser.add_argument("--table-bytes", type=int, default=80_000_000, help="size of the table as JSON Lines")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not options.data.is_dir():
        sys.exit(f"There is no directory {options.data}: name one with --data.")
    with tempfile.TemporaryDirectory() as name:
        scratch = Path(name)
        write_runs(scratch / "runs", 300, 400)
        figures = whole(options.data, scratch / "whole")
        for what, paths in (
            ("its JSON files", _files(options.data, ".json", ".jsonl")),
            ("300 made runs with their samples", _files(scratch / "runs")),
        ):
            figures.append(against_parsing(what, paths, scratch, options.rounds))
        figures += tables(scratch, options.table_bytes, options.rounds)
        if options.bytes:
            figures += large(scratch, options.bytes)
    tell(figures, for_machines=options.json)


if __name__ == "__main__":
    main()
