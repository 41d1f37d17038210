"""TensorFlow Lite's `benchmark_model` as it prints: microseconds per run, its MB are MiB (kilobytes over 1024).

Flags the tool was given are printed first (`Use gpu: [1]`), a line of averages and one of statistics at the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from migrations.normalize.canonical_names import NOT_STATED
from migrations.normalize.path_hints import hardware_part, model_part, spaced
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import Record, RefusedCell
from migrations.normalize.units import MS_PER_US, count, scaled
from migrations.sources.documents import Document

_AVERAGES = re.compile(
    r"Inference timings in us: Init: (?P<init>[\d.e+]+), First inference: (?P<first>[\d.e+]+), "
    r"Warmup \(avg\): (?P<warmup>[\d.e+]+), Inference \(avg\): (?P<inference>[\d.e+]+)"
)
_COUNTED = re.compile(r"count=(?P<count>\d+) .*?min=(?P<min>[\d.e+]+) max=(?P<max>[\d.e+]+) avg=(?P<avg>[\d.e+]+)")
_MORE = re.compile(r"\b(?P<name>std|median|p95)=(?P<value>[\d.e+]+)")
_FLAG = re.compile(r"(?P<name>[A-Za-z#][\w ]+?): \[(?P<value>[^]]*)\]\s*$")
_PEAK = re.compile(r"(?:Overall peak|Peak) memory footprint \(MB\)[^:]*: (?:init=[\d.]+ overall=)?(?P<overall>[\d.]+)")
_DELEGATES = (("use gpu", "opencl"), ("use hexagon", "qnn"), ("use coreml", "mps"), ("use nnapi", "nnapi"))
_START = "STARTING!"


def detect(document: Document) -> float:
    """Return high confidence by its line of averages, or by its start and graph."""
    if document.kind != "text":
        return 0.0
    if any("Inference timings in us" in line and _AVERAGES.search(line) for line in document.value):
        return 0.95
    return 0.8 if any(_START in line for line in document.value) and _flags(document.value).get("graph") else 0.0


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per start of the tool; a run without averages is a failure."""
    lines = document.value
    starts = [number for number, line in enumerate(lines) if _START in line] or [0]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield _run(document.source_path, start, lines[start:end])


def _run(source_path: str, start: int, lines: list[str]) -> Record | RefusedCell:
    cell = _cell(source_path, start, _flags(lines))
    averages = next((found for line in lines if (found := _AVERAGES.search(line))), None)
    if averages is None:
        error = next((line.strip() for line in lines if "ERROR" in line or "Failed" in line), None)
        return cell.result("failed", {}, reason=error or "the run printed no time")
    peak = next((found["overall"] for line in lines if (found := _PEAK.search(line))), None)
    figures = {
        "latency_mean_ms": scaled(averages["inference"], MS_PER_US),
        "first_ms": scaled(averages["first"], MS_PER_US),
        "load_ms": scaled(averages["init"], MS_PER_US),
        "memory_peak_mib": scaled(peak, 1.0) or None,
        **_statistics(lines),
    }
    return cell.result("ok", figures, units={"Inference (avg)": "us", "memory footprint": "MiB, written MB"})


def _statistics(lines: list[str]) -> dict[str, Any]:
    """Return the figures of the last line of statistics, because those before it are of the warm-up."""
    counted = [(line, found) for line in lines if (found := _COUNTED.search(line))]
    if not counted:
        return {}
    line, last = counted[-1]
    more = {found["name"]: scaled(found["value"], MS_PER_US) for found in _MORE.finditer(line)}
    return {
        "iterations": count(last["count"]),
        "latency_min_ms": scaled(last["min"], MS_PER_US),
        "latency_max_ms": scaled(last["max"], MS_PER_US),
        "latency_std_ms": more.get("std"),
        "latency_p50_ms": more.get("median"),
        "latency_p95_ms": more.get("p95"),
    }


def _cell(source_path: str, start: int, flags: dict[str, str]) -> CellDraft:
    """Return the cell by the tool's flags; without a graph among them, the path names model and hardware."""
    graph = flags.get("graph")
    name = re.sub(r"\.(?:tflite|lite)$", "", graph.rpartition("/")[2]) if graph else None
    place = None if graph else hardware_part(source_path)
    delegate = next(
        (delegate_name for flag, delegate_name in _DELEGATES if flags.get(flag, "").casefold() in ("1", "true")), None
    )
    model_hint = None if name else model_part(source_path)
    return CellDraft(
        source_path,
        f"/{start}",
        NamesInFile(
            (name or model_hint,),
            delegate or (spaced(place) if place else "cpu" if graph else NOT_STATED),
            runtime="tflite",
        ),
        machine=Machine(
            threads=count(flags.get("num threads") or flags.get("#threads used for cpu inference"), at_least=1),
            settings={flag: flags[flag] for flag in sorted(flags) if flag.startswith("use ")},
        ),
        original={
            "model": graph or model_hint,
            "hardware": delegate or place or ("CPU, no delegate asked for" if graph else NOT_STATED),
            "said_by_path": {"model": model_hint, "hardware": place} if model_hint or place else None,
        },
    )


def _flags(lines: list[str]) -> dict[str, str]:
    return {found["name"].strip().casefold(): found["value"] for line in lines if (found := _FLAG.search(line))}
