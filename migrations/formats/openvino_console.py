"""OpenVINO benchmark_app as text: its sectioned CSV report (`name;value`), or what it prints on the console.

Newer versions print latencies below 1 ms in microseconds, and the precision that the device computes in.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
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
_TITLE = re.compile(r"\[Step 1/\d+\]|\[ ?INFO ?\] (?:Count|Execution Devices)", re.IGNORECASE)
_ARGUMENT = re.compile(r"(?:^|\s)-(?P<name>m|d|b|nireq|nstreams|hint|api|ip|nthreads)[ =](?P<value>[^\s]+)")
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
    """Yield one record, at the line where the results begin."""
    is_report = any(line.strip().strip(";").casefold() in _SECTIONS for line in document.value)
    found = dict(_report(document.value) if is_report else _console(document.value))
    marks = ("execution results", "throughput")
    at = next((i for i, line in enumerate(document.value) if any(mark in line.casefold() for mark in marks)), 0)
    yield benchmark_app.result(document.source_path, f"/{at}", found)


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
