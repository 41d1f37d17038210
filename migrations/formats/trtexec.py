"""TensorRT's `trtexec` as it prints: milliseconds per query, queries/s, the GPU it chose; one or more runs in a log.

A query is a batch of the shapes on the command line. Copies to and from the GPU overlap with computing: the rate is
no batch over latency.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from migrations.normalize.path_hints import model_part
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import Record, RefusedCell
from migrations.normalize.units import MS_PER_S, count, quantity, scaled
from migrations.sources.documents import Document

_START = re.compile(r"&&&& RUNNING TensorRT\.trtexec(?P<version>[^#]*)#\s*(?P<command>.*)")
_FAILED = re.compile(r"&&&& FAILED TensorRT\.trtexec")
_LATENCY = re.compile(r"\[I\] Latency: (?P<statistics>.*)")
_OLD = re.compile(r"\[I\] (?P<name>min|max|mean|median): (?P<value>[\d.]+) ms(?: \(end to end.*)?$")
_STATISTIC = re.compile(r"(?P<name>min|max|mean|median|percentile\((?P<percent>\d+)%\)) = (?P<value>[\d.]+) ms")
_RATE = re.compile(r"\[I\] Throughput: ([\d.]+) qps")
_FACTS = {
    "rate": _RATE,
    "queries": re.compile(r"\[I\] Timing trace has (\d+) queries"),
    "device": re.compile(r"\[I\] Selected Device: (.+)"),
    "version": re.compile(r"\[I\] TensorRT version: ([\d.]+)"),
    "built": re.compile(r"Engine built in ([\d.]+) sec"),
    "loaded": re.compile(r"Engine loaded in ([\d.]+) sec"),
    "error": re.compile(r"\[E\] (?:Error\[\d+\]: )?(.+)"),
}
"""What a line states, by the name under which it is kept."""
_WHEN = re.compile(r"\[(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>\d{4})-(?P<time>[\d:]{8})\]")
_MODEL = re.compile(r"--(?:onnx|loadEngine|uff|deploy|model)=(?P<path>\S+)")
_SHAPE = re.compile(r"--(?:opt)?[sS]hapes=[^:\s]+:(?P<batch>\d+)x")
_BATCH = re.compile(r"--batch=(?P<batch>\d+)")
_PRECISIONS = (("--fp8", "fp8"), ("--int8", "int8"), ("--bf16", "bf16"), ("--fp16", "fp16"), ("--best", "best"))
_NAMES = {"min": "latency_min_ms", "max": "latency_max_ms", "mean": "latency_mean_ms", "median": "latency_p50_ms"}
_PERCENTS = {"90": "latency_p90_ms", "95": "latency_p95_ms", "99": "latency_p99_ms"}


def detect(document: Document) -> float:
    """Return high confidence where a line announces the run, or the summary speaks of queries/s in the tool's log
    form.
    """
    if document.kind != "text":
        return 0.0
    if any("TensorRT.trtexec" in line and _START.search(line) for line in document.value):
        return 0.95
    return 0.9 if any("qps" in line and _RATE.search(line) for line in document.value) else 0.0


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per run; a run without times is a failure with its last error."""
    lines = document.value
    starts = [number for number, line in enumerate(lines) if _START.search(line)] or [0]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        yield _run(document.source_path, start, lines[start:end])


def _run(source_path: str, start: int, lines: list[str]) -> Record | RefusedCell:
    begun = _START.search(lines[0])
    command = begun["command"].strip() if begun else ""
    facts = _facts(lines)
    cell = _cell(source_path, start, lines, command, facts)
    rate, latencies = quantity(facts.get("rate")), _latencies(lines)
    batch = _SHAPE.search(command) or _BATCH.search(command)
    size = count(batch["batch"], at_least=1) if batch else None
    loading = {
        "batch_size": size,
        "compile_ms": scaled(facts.get("built"), MS_PER_S),
        "load_ms": scaled(facts.get("loaded"), MS_PER_S),
    }
    if not any(latencies.values()) and not rate:
        failed = any(_FAILED.search(line) for line in lines)
        reason = facts.get("error") or ("trtexec failed" if failed else "the run printed no time")
        return cell.result("failed", loading, reason=reason)
    figures = {
        **loading,
        **latencies,
        "iterations": count(facts.get("queries")),
        "throughput_items_per_s": rate * size if rate and size else None,
    }
    return cell.result("ok", figures, units={"Latency": "ms", "Throughput": "queries/s"})


def _facts(lines: list[str]) -> dict[str, str]:
    """Return the last of each fact that a run printed."""
    found = {}
    for line in lines:
        for name, pattern in _FACTS.items():
            if match := pattern.search(line):
                found[name] = match[1].strip()
    return found


def _latencies(lines: list[str]) -> dict[str, Any]:
    """Return the latencies of the summary; old releases print a statistic per line."""
    figures: dict[str, Any] = {}
    for line in lines:
        if (latency := _LATENCY.search(line)) is not None:
            for statistic in _STATISTIC.finditer(latency["statistics"]):
                name = _PERCENTS.get(statistic["percent"] or "") or _NAMES.get(statistic["name"])
                if name:
                    figures[name] = quantity(statistic["value"])
        elif (old := _OLD.search(line)) is not None:
            figures.setdefault(_NAMES[old["name"]], quantity(old["value"]))
    return figures


def _cell(source_path: str, start: int, lines: list[str], command: str, facts: dict[str, str]) -> CellDraft:
    path = _MODEL.search(command)
    name = re.sub(r"\.(?:onnx|engine|plan|trt|uff|prototxt)$", "", path["path"].rpartition("/")[2]) if path else None
    model_hint = None if name else model_part(source_path)
    device = facts.get("device")
    return CellDraft(
        source_path,
        f"/{start}",
        NamesInFile(
            (name or model_hint,),
            "cuda",
            precision=next((precision_name for flag, precision_name in _PRECISIONS if flag in command), None),
            runtime="tensorrt",
        ),
        times=(_when(lines),),
        machine=Machine(
            device_names={"cuda": device} if device else {},
            software={"tensorrt": facts["version"]} if "version" in facts else {},
            settings={"command": command or None},
        ),
        original={
            "hardware": device or "TensorRT",
            "said_by_path": {"model": model_hint} if model_hint else None,
            "concurrency": "copies overlap with computing",
            "stated": {"throughput_queries_per_s": quantity(facts.get("rate"))},
        },
    )


def _when(lines: list[str]) -> str | None:
    """Return the first line's time, written month first, as ISO 8601."""
    found = next((when for line in lines[:20] if (when := _WHEN.match(line))), None)
    return f"{found['year']}-{found['month']}-{found['day']}T{found['time']}" if found else None
