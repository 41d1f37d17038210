"""Output of Triton's perf_analyzer: `Request concurrency: N`, then the clients' rate and microseconds per request."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from migrations.normalize.canonical_names import NOT_STATED
from migrations.normalize.path_hints import hardware_part, model_part, spaced
from migrations.normalize.record_builder import CellDraft, NamesInFile
from migrations.normalize.records import Record, RefusedCell
from migrations.normalize.units import MS_PER_US, count, quantity, scaled
from migrations.sources.documents import Document

_LOAD = re.compile(r"Request (?P<kind>concurrency|Rate): (?P<value>[\d.]+)(?: inference requests per seconds)?\s*$")
_RATE = re.compile(r"\s+Throughput: (?P<value>[\d.]+) infer/sec")
_AVERAGE = re.compile(r"\s+Avg latency: (?P<value>\d+) usec(?: \(standard deviation (?P<std>\d+) usec\))?")
_PERCENTILE = re.compile(r"\s+p(?P<which>50|90|95|99) latency: (?P<value>\d+) usec")
_COUNT = re.compile(r"\s+Request count: (?P<value>\d+)")
_BATCH = re.compile(r"\s+Batch size: (?P<value>\d+)")
_SETTINGS = "Measurement Settings"
_MODEL = re.compile(r"perf_(?:analyzer|client)\b.*?\s-m[ =]?(?P<name>\S+)")


def detect(document: Document) -> float:
    """Return high confidence where a load is followed by a rate of inferences."""
    if document.kind != "text":
        return 0.0
    rates = any("infer/sec" in line and _RATE.match(line) for line in document.value)
    return 0.9 if rates and any(_LOAD.match(line) for line in document.value) else 0.0


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per load."""
    lines = document.value
    loads = list(_loads(lines))
    for (start, model, batch), end in zip(loads, [*(load[0] for load in loads[1:]), len(lines)], strict=True):
        yield _load(document.source_path, start, lines[start:end], model, count(batch, at_least=1))


def _loads(lines: list[str]) -> Iterator[tuple[int, str | None, str | None]]:
    """Yield the line of each load with the model and batch of its run: those printed last, in a log of several runs."""
    model = batch = None
    is_new = False
    for number, line in enumerate(lines):
        if named := _MODEL.search(line):
            model, is_new = named["name"], True
        elif _SETTINGS in line:
            # A run whose command nobody printed is not of the model of the run before.
            model, batch, is_new = model if is_new else None, None, False
        elif found := _BATCH.match(line):
            batch = found["value"]
        elif _LOAD.match(line):
            yield number, model, batch


def _load(path: str, start: int, lines: list[str], model: str | None, batch: int | None) -> Record | RefusedCell:
    load = _LOAD.match(lines[0])
    is_rate = load is not None and load["kind"] == "Rate"
    value = load["value"] if load else None
    figures: dict[str, Any] = {}
    for line in lines:
        if found := _RATE.match(line):
            figures.setdefault("throughput_items_per_s", quantity(found["value"]))
        elif found := _AVERAGE.match(line):
            figures["latency_mean_ms"] = scaled(found["value"], MS_PER_US)
            figures["latency_std_ms"] = scaled(found["std"], MS_PER_US)
        elif found := _PERCENTILE.match(line):
            figures[f"latency_p{found['which']}_ms"] = scaled(found["value"], MS_PER_US)
        elif found := _COUNT.match(line):
            figures.setdefault("iterations", count(found["value"]))
    place = hardware_part(path)
    model_hint = None if model else model_part(path)
    cell = CellDraft(
        path,
        f"/{start}",
        NamesInFile((model or model_hint,), spaced(place) if place else NOT_STATED, runtime="triton"),
        original={
            "hardware": place or NOT_STATED,
            "concurrency": None if is_rate else count(value, at_least=1),
            "request_rate": quantity(value) if is_rate else None,
            "said_by_path": {"model": model_hint, "hardware": place} if model_hint or place else None,
        },
    )
    if not any(value for name, value in figures.items() if name.startswith(("latency", "throughput"))):
        return cell.result("failed", {"batch_size": batch}, reason="the load printed no figure")
    return cell.result("ok", {"batch_size": batch, **figures}, units={"latency": "us", "Throughput": "items/s"})
