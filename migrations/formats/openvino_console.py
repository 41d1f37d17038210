"""OpenVINO benchmark_app as text: its sectioned CSV report (`name;value`), or its console output.

Newer versions print latencies below 1 ms in microseconds, and the precision that the device computes in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

from migrations.normalize.records import Record, RefusedCell
from migrations.sources.documents import Document
from migrations.tools import benchmark_app

_SECTIONS = ("command line parameters", "configuration setup", "runtime configuration", "execution results")
_PRINTED = re.compile(
    r"\s*(?:\[\s*INFO\s*\])?\s*(?P<name>[\w ().-]+?)\s*:\s*(?P<value>[^:]+?)\s*(?:ms|FPS|iterations)?\s*"
)
_MICROSECONDS = re.compile(r"(?P<value>[\d.]+) us")
_PRECISION = re.compile(r".*\bINFERENCE_PRECISION_HINT\s*:\s*(?:<Type: ')?(?P<value>\w+)'?>?\s*")
_TOOK = re.compile(r".*?(?P<name>(?:read|load|compile|first)[\w ]* took) (?P<value>[\d.]+) ms.*", re.IGNORECASE)
_FIRST_STEP = re.compile(r"\[Step 1/\d+\]")
_TITLE = re.compile(rf"{_FIRST_STEP.pattern}|\[ ?INFO ?\] (?:Count|Execution Devices)", re.IGNORECASE)
_ARGUMENT = re.compile(r"(?:^|\s)-(?P<name>m|d|b|nireq|nstreams|hint|api|ip|nthreads)[ =](?P<value>[^\s]+)")
_RESULTS = re.compile(r"execution results|throughput\s*:\s*\d", re.IGNORECASE)
"""Line at which a report's results begin, or a console's output ends."""
_BATCH = re.compile(r"batch size:\s*(?P<size>\d+)", re.IGNORECASE)
_REQUESTS = re.compile(r"(?P<count>\d+) infer(?:ence)? requests", re.IGNORECASE)


def detect(document: Document) -> float:
    """Return high confidence where a report has the section of results, or a console the tool's steps and a
    throughput.
    """
    if document.kind != "text":
        return 0.0
    lines = [line.strip().strip(";").casefold() for line in document.value]
    if "execution results" in lines and any(";" in line for line in document.value):
        return 0.95
    steps = any(_TITLE.search(line) for line in document.value)
    return 0.9 if steps and any("throughput" in line or "[ error ]" in line for line in lines) else 0.0


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per run, at the line where its results begin."""
    lines: list[str] = document.value
    if any(line.strip().strip(";").casefold() in _SECTIONS for line in lines):
        yield _result(document.source_path, 0, lines, _report(lines))
        return
    for first, run in _runs(lines):
        yield _result(document.source_path, first, run, _console(run))


def _result(source_path: str, first: int, lines: list[str], found: Iterable[tuple[str, Any]]) -> Record | RefusedCell:
    at = next((number for number, line in enumerate(lines, start=first) if _RESULTS.search(line)), first)
    return benchmark_app.result(source_path, f"/{at}", dict(found))


def _runs(lines: list[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield each run's first line by number, and its lines: from the first step on, behind the command that began it.

    What a script prints before, such as `Model name: Intel(R) Xeon(R)` of lscpu, is none of the tool's.
    """
    starts = [number for number, line in enumerate(lines) if _FIRST_STEP.search(line)]
    if not starts:
        yield 0, lines
    end = 0
    for start, following in pairwise([*starts, len(lines)]):
        command = [line for line in lines[end:start] if "benchmark_app" in line][-1:]
        end = next((number + 1 for number in range(start, following) if _RESULTS.search(lines[number])), following)
        yield start - len(command), [*command, *lines[start:end]]


def _report(lines: list[str]) -> Iterator[tuple[str, Any]]:
    for line in lines:
        name, semicolon, value = line.partition(";")
        if semicolon and value.strip(" ;"):
            yield benchmark_app.plain(name), value.strip(" ;")


def _console(lines: list[str]) -> Iterator[tuple[str, Any]]:
    """Yield names and values; later lines win, because the configuration is printed before its outcome."""
    for line in lines:
        if "benchmark_app" in line:
            yield from ((argument["name"], argument["value"]) for argument in _ARGUMENT.finditer(line))
        if batch := _BATCH.search(line):
            yield "batch size", batch["size"]
        if requests := _REQUESTS.search(line):
            yield "number of parallel infer requests", requests["count"]
        if "ERROR" in line:
            yield "error", line.partition("]")[2].strip() or line.strip()
        if precision := _PRECISION.fullmatch(line):
            yield "inference precision hint", precision["value"]
        if took := _TOOK.fullmatch(line):
            yield benchmark_app.plain(took["name"]), took["value"]
        elif printed := _PRINTED.fullmatch(line):
            yield _renamed(benchmark_app.plain(printed["name"])), _value(printed["value"].strip())


def _value(text: str) -> str:
    """Return a printed value in milliseconds, or a device without the marks of a list."""
    tiny = _MICROSECONDS.fullmatch(text)
    return str(float(tiny["value"]) / 1000) if tiny else text.strip("[]'")


def _renamed(name: str) -> str:
    return {
        "optimal number of infer requests": "number of parallel infer requests",
        "network name": "model name",
        "execution devices": "target device",
    }.get(name, name)
