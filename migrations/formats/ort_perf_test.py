"""ONNX Runtime's `onnxruntime_perf_test`: its output, or its result file of `model,seconds,bytes,cpu %,run` lines.

Latencies of the statistics are seconds, averages milliseconds. The batch is the model's input's and is not written.
Neither form names the execution provider unless its command or a `using …` line is part of the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from migrations.normalize.canonical_names import NOT_STATED, hardware_named
from migrations.normalize.path_hints import hardware_part, model_part, parts, spaced
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import Record, RefusedCell
from migrations.normalize.units import BYTES_PER_MIB, MS_PER_S, NS_PER_S, count, quantity, samples_ns, scaled
from migrations.sources.documents import Document

_PRINTED = re.compile(r"\s*(?P<name>[A-Za-z][\w ]*?)\s*:\s*(?P<value>[\d.eE+-]+)\s*(?P<unit>ms|s|bytes|%)?\s*")
_ROW = re.compile(r"(?P<model>[^,]*),(?P<seconds>[\d.eE+-]+),(?P<bytes>\d+),(?P<cpu>\d+),(?P<run>\d+)")
_COMMAND = re.compile(r"onnxruntime_perf_test\b(?P<arguments>.*)")
_PROVIDER = re.compile(r"(?:-e|using)\s*(?P<name>[A-Za-z]+)", re.IGNORECASE)
_MODEL = re.compile(r"(?P<name>[^\s\"']+)\.(?:onnx|ort)\b")
_TO_MS = {"s": MS_PER_S, "ms": 1.0}
_STATISTICS = {
    "min latency": "latency_min_ms", "max latency": "latency_max_ms", "p50 latency": "latency_p50_ms",
    "p90 latency": "latency_p90_ms", "p95 latency": "latency_p95_ms", "p99 latency": "latency_p99_ms",
    "average inference time cost": "latency_mean_ms", "average inference time cost total": "latency_mean_ms",
    "first inference time cost": "first_ms", "session creation time cost": "load_ms",
}  # fmt: skip
_PROVIDERS = {
    "cpu": "onnxruntime", "cuda": "cuda", "tensorrt": "cuda", "nv": "cuda", "rocm": "rocm", "migraphx": "rocm",
    "openvino": "openvino", "dml": "directml", "coreml": "mps", "qnn": "qnn", "dnnl": "onnxruntime",
    "xnnpack": "onnxruntime", "webgpu": "webgpu", "acl": "onnxruntime",
}  # fmt: skip


def detect(document: Document) -> float:
    """Return high confidence by the lines it prints, or where nearly all lines are rows of its result file."""
    if document.kind != "text":
        return 0.0
    text = "\n".join(document.value[:2000])
    if "Number of inferences per second" in text or "Session creation time cost" in text:
        return 0.95
    filled = [line for line in document.value if line.strip()]
    rows = sum(_ROW.fullmatch(line.strip()) is not None for line in filled)
    return 0.9 if filled and rows >= 0.5 * len(filled) else 0.0


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per printed summary, or one of the whole result file with its rows as samples."""
    starts = [i for i, line in enumerate(document.value) if "Session creation time cost" in line]
    rows = [found for line in document.value if (found := _ROW.fullmatch(line.strip()))]
    if rows and not starts:
        yield _rows(document, rows)
        return
    for start, end in zip(starts or [0], [*starts[1:], len(document.value)], strict=True):
        context = (
            document.value[max(0, start - 12) : end] if len(starts) < 2 else document.value[max(0, start - 6) : end]
        )
        yield _printed(document, start, document.value[start:end], "\n".join(context))


def _printed(document: Document, start: int, lines: list[str], context: str) -> Record | RefusedCell:
    figures: dict[str, Any] = {}
    for line in lines:
        found = _PRINTED.fullmatch(line)
        if found is None:
            continue
        name = found["name"].casefold()
        if name in _STATISTICS and found["unit"] in _TO_MS:
            figures[_STATISTICS[name]] = scaled(found["value"], _TO_MS[found["unit"]])
        elif name == "number of inferences per second":
            figures["throughput_items_per_s"] = quantity(found["value"])
        elif name == "peak working set size":
            figures["memory_peak_mib"] = scaled(found["value"], 1 / BYTES_PER_MIB) or None
        elif name in ("total inference requests", "runs"):
            figures["iterations"] = count(found["value"])
    cell = _cell(document, f"/{start}", context, None)
    if not any(value for key, value in figures.items() if key.startswith(("latency", "throughput"))):
        return cell.result("failed", {}, reason="the run printed no time")
    return cell.result("ok", figures, units={"latency": "s", "average": "ms", "memory": "bytes"})


def _rows(document: Document, rows: list[re.Match[str]]) -> Record | RefusedCell:
    cell = _cell(document, "/0", "", rows[0]["model"])
    figures = {
        "samples_ns": samples_ns([float(row["seconds"]) for row in rows], ns_per_unit=NS_PER_S),
        "memory_peak_mib": max(int(row["bytes"]) for row in rows) / BYTES_PER_MIB or None,
        "iterations": len(rows),
    }
    return cell.result("ok", figures, units={"time": "s", "memory": "bytes"})


def _cell(document: Document, pointer: str, context: str, model: str | None) -> CellDraft:
    path = document.source_path
    command = _COMMAND.search(context)
    arguments = command["arguments"] if command else ""
    provider = _PROVIDER.search(arguments) or _PROVIDER.search(context)
    name = provider["name"].casefold().removesuffix("executionprovider") if provider else None
    place = None if name else hardware_part(path)
    hardware = _PROVIDERS.get(name or "", name) or (spaced(place) if place else None)
    onnx = _MODEL.search(arguments)
    model = model or (onnx["name"].rpartition("/")[2] if onnx else None)
    model_hint = None if model else model_part(path) or next(iter(parts(path)), None)
    named = hardware_named(hardware)
    return CellDraft(
        path,
        pointer,
        NamesInFile((model or model_hint,), hardware if named else NOT_STATED, runtime="onnxruntime"),
        machine=Machine(settings={"provider": name, "arguments": arguments.strip() or None}),
        original={
            "hardware": (provider["name"] if provider else place) or NOT_STATED,
            "said_by_path": {"model": model_hint, "hardware": place},
        },
    )
