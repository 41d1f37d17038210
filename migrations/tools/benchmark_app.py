"""Figures of OpenVINO's benchmark_app, by the words it uses for them in reports and on the console."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from accel_platform.hardware.catalog import find_spec
from migrations.normalize.canonical_names import NOT_STATED, silicon_in
from migrations.normalize.path_hints import given_names, model_part, parts
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import Record, RefusedCell
from migrations.normalize.row_access import pick, text_of
from migrations.normalize.units import count, quantity

_UNIT = re.compile(r"\s*\((?:ms|fps|s)\)\s*$", re.IGNORECASE)
_ENDING = re.compile(r"\.(?:xml|onnx|pb|pdmodel|blob|tflite)$")
_GENERIC = re.compile(
    r"models?\d*|openvino_model|saved_model|main_graph|torch[-_]jit.*|tensorflow_frontend_ir", re.IGNORECASE
)
"""Names that converters give whatever the model."""
_WORD_UNIT = re.compile(r" (?:ms|fps)$")
_NAMES = {
    "latency_p50_ms": ("latency median", "median latency", "median", "50 percentile", "latency"),
    "latency_mean_ms": ("latency average", "latency avg", "avg latency", "average", "avg"),
    "latency_min_ms": ("latency min", "min latency", "min"),
    "latency_max_ms": ("latency max", "max latency", "max"),
    "latency_p90_ms": ("90 percentile", "latency 90 percentile", "latency (90 percentile)"),
    "latency_p95_ms": ("95 percentile", "latency 95 percentile", "latency (95 percentile)"),
    "latency_p99_ms": ("99 percentile", "latency 99 percentile", "latency (99 percentile)"),
    "throughput_items_per_s": ("throughput",),
    "first_ms": ("first inference time", "first inference took"),
    "load_ms": ("read network time", "read model time", "read network took", "read model took"),
    "compile_ms": (
        "load network time", "load model time", "compile model time", "compile model took", "compilation time",
        "load network took",
    ),
}  # fmt: skip
_ITERATIONS = ("total number of iterations", "iterations num", "number of iterations", "count")
_MODEL = ("topology", "model name", "m", "path to model", "model")
_PATH = ("m", "path to model", "model")
_DEVICE = ("target device", "d", "device")
_REQUESTS = ("number of parallel infer requests", "nireq", "number of infer requests")


def plain(name: str) -> str:
    """Return a name for comparison: lower case, blanks for underscores, no unit, no dashes of an option."""
    return _WORD_UNIT.sub("", _UNIT.sub("", name.strip().strip(":").lstrip("-")).replace("_", " ").casefold())


def result(source_path: str, pointer: str, found: Mapping[str, Any]) -> Record | RefusedCell:
    """Return the result of one run from its names and values, in milliseconds and items/s.

    Requests run side by side (`concurrency`), so a latency is of one of many in flight.
    """
    figures: dict[str, Any] = {field: quantity(pick(found, *names)) for field, names in _NAMES.items()}
    batch = pick(found, "batch size", "b")
    figures["iterations"] = count(pick(found, *_ITERATIONS))
    model = text_of(pick(found, *_MODEL))
    device = text_of(pick(found, *_DEVICE))
    hardware, silicon = place_of(device, source_path)
    streams = text_of(pick(found, "number of streams", "nstreams"))
    short = _model(found)
    model_hint = None if short else model_part(source_path)
    cell = CellDraft(
        source_path,
        pointer,
        NamesInFile(
            (short or model_hint,),
            hardware,
            precision=_precision(found),
            runtime="openvino",
        ),
        machine=Machine(
            device_names={hardware: silicon} if silicon else {},
            software={"openvino": version} if (version := text_of(pick(found, "build", "openvino version"))) else {},
            threads=count(pick(found, "number of threads", "nthreads", "inference num threads"), at_least=1),
            settings={
                "device": device,
                "requests": count(pick(found, *_REQUESTS), at_least=1),
                "streams": streams,
                "api": pick(found, "api"),
                "hint": pick(found, "hint", "performance hint"),
            },
        ),
        original={
            "model": model or model_hint,
            "said_by_path": {"model": model_hint, **({"hardware": silicon} if silicon else {})},
            "hardware": device or NOT_STATED,
            "concurrency": count(pick(found, *_REQUESTS), at_least=1),
            "duration_ms": quantity(pick(found, "total execution time", "execution time", "duration")),
        },
    )
    size = {"batch_size": count(batch, at_least=1)}
    measured = [value for field, value in figures.items() if field.startswith(("latency", "throughput"))]
    if not any(measured):
        loading = {field: figures[field] for field in ("load_ms", "compile_ms", "first_ms")}
        reason = text_of(pick(found, "error")) or "the report holds neither latency nor throughput"
        return cell.result("failed", {**size, **loading}, reason=reason)
    return cell.result("ok", {**size, **figures}, units={"latency": "ms", "throughput": "items/s", "time": "ms"})


def _model(found: Mapping[str, Any]) -> str | None:
    """Return the model's name: that of the graph, else of its file or folder where the graph has none of its own."""
    named, path = text_of(pick(found, *_MODEL)), text_of(pick(found, *_PATH))
    parts = [
        _ENDING.sub("", part) for text in (named, path) if text for part in text.replace("\\", "/").split("/")[:-3:-1]
    ]
    return next((part for part in parts if part and not _GENERIC.fullmatch(part)), next(iter(parts), None))


def _precision(found: Mapping[str, Any]) -> str | None:
    """Return the precision of execution, which may not be the model's; None where the tool knows none."""
    stated = text_of(pick(found, "inference precision hint", "precision", "infer precision", "ip"))
    return None if stated is None or stated.casefold() in ("unspecified", "undefined", "mixed") else stated


def place_of(device: str | None, source_path: str) -> tuple[str, str | None]:
    """Return the hardware name of one of OpenVINO's devices, and the name of the silicon where it is known.

    A GPU or NPU is that of the processor that a person or the path names, or a card by its own name. One of unknown
    make has no hardware, because figures of two makes are not of one device.
    """
    if device is None:
        return NOT_STATED, None
    kind, _, number = device.upper().partition(":")[0].partition(".")
    if kind not in ("GPU", "NPU"):
        return {"CPU": "openvino", "AUTO": "openvino", "NVIDIA": "cuda"}.get(kind, device), None
    named = given_names().device or next(filter(None, map(silicon_in, parts(source_path))), None)
    if named is not None:
        part = f"{named} {'iGPU' if kind == 'GPU' else 'NPU'}"
        # The GPU of a processor is the first of several.
        for name in (named, part) if number in ("", "0") else (named,):
            spec = find_spec(name)
            if spec is not None and (spec.vendor, spec.kind) == ("Intel", kind.lower()):
                return "openvino", name
    return NOT_STATED, None
