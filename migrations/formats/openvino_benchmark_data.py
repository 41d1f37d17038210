"""The table behind OpenVINO's performance pages: latencies and rates of networks on Intel's platforms.

Batch 1. Latencies are of `benchmark_app`, one request at a time, which on several sockets runs on one. Rates are of
many requests at once; no field says how many, so they only tell which latencies are copies of another row's. A language
model's latency is the time per token after the first, with the prompt and answer that the pages state. Later pages have
the same in JSON, without the release.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import Record, RefusedCell, child, refuse
from migrations.normalize.row_access import object_of, pick, rows_of, share_of_rows, text_of
from migrations.normalize.units import MS_PER_S, quantity
from migrations.sources.documents import Document

_NEEDED = ("Network model", "Release", "IE-Type", "Platform name", "Latency_int8")
_FIGURES = {
    "int8": ("Latency_int8", "Throughput-INT8"),
    "float16": ("Latency_FP16", "Throughput-FP16"),
    "float32": ("Latency_FP32", "Throughput-FP32"),
    "int4": ("Latency_int4", "Throughput_INT4"),
    "bfloat16": ("Latency_BF16", "Throughput_BF16"),
}
"""Columns of latency and rate by precision."""
_OF_GRAPHS = ("Platform", "Model", "PlatformType", "Parameters")
_SHORT_NAMES = {"int8": "int8", "fp16": "float16", "fp32": "float32", "int4": "int4", "bf16": "bfloat16"}
"""Precisions by their names in JSON."""
_PLATFORM = re.compile(r"(?P<name>.+?) (?P<part>CPU-only|iGPU-only|NPU-only|dGPU)")
_TRADE_WORDS = re.compile(r"[®™]|\bprocessor ")
_BLOCK_ENDS = ("begin_rec", "end_rec")
_ONE_AT_A_TIME, _PER_TOKEN = "msec.", "msec/token"
_UNITS = {"FPS": _ONE_AT_A_TIME, "Tokens per sec": _PER_TOKEN}
"""Units of latencies by those of the rates beside them, in JSON."""
_INPUTS: dict[str, tuple[str | None, dict[str, int]]] = {
    "bert-base-cased": (None, {"sequence_length": 128}),
    "bert-large-uncased-whole-word-masking-squad-0001": ("bert-large", {"sequence_length": 384}),
    "efficientdet-d0": (None, {"image_size": 512}),
    "ssd-resnet34-1200": (None, {"image_size": 1200}),
    "ssd_mobilenet_v1_coco": (None, {"image_size": 300}),
    "yolo_v3_tiny": (None, {"image_size": 416}),
    "yolo_v8n": ("yolov8n", {"image_size": 608}),
}
"""Other names of networks, and their inputs as the pages state them, where these are not the model's own and square."""
_PROMPT_AND_ANSWER = {"sequence_length": 1024, "output_tokens": 128}
"""Tokens of every language model, as the page on performance states."""
_RATE_MARGIN = 1.25
"""Largest ratio of the rate of one request at a time to the highest rate, and of two times: both vary."""
_WEIGHTS = ("int4", "int8", "float16")
"""Formats of weights, the narrowest first."""


def detect(document: Document) -> float:
    """Return high confidence by its columns."""
    return 0.95 * max(share_of_rows(document, *_NEEDED), share_of_rows(document, *_OF_GRAPHS))


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per latency; refuse those that the table itself contradicts, and those in other units."""
    rows = [(pointer, row) for pointer, row in _rows(document) if row["Network model"] not in _BLOCK_ENDS]
    alike = Counter(_figures_of(row) for _, row in rows)
    for pointer, row in rows:
        platform = _PLATFORM.fullmatch(str(row["Platform name"]).strip())
        if platform is None:
            continue  # processor and GPU together have rates alone
        for precision, (latency_column, rate_column) in _FIGURES.items():
            latency, rate = quantity(pick(row, latency_column)), quantity(pick(row, rate_column))
            if not latency:
                continue
            place, unit = child(pointer, latency_column), row.get("UOM_L")
            if unit not in (_ONE_AT_A_TIME, _PER_TOKEN):
                yield refuse(place, "unit_unknown", f"{unit!r} is neither per request nor per token", row)
            elif unit == _ONE_AT_A_TIME and alike[_figures_of(row)] > 1:
                yield refuse(place, "copied_figure", "another device has the same figures of this network", row)
            elif rate and MS_PER_S / latency > _RATE_MARGIN * rate:
                reason = f"{latency:g} ms one at a time are more than the highest rate, {rate:g} a second"
                yield refuse(place, "contradicted_figure", reason, row)
            elif unit == _PER_TOKEN and latency > _RATE_MARGIN * _with_wider_weights(row, precision):
                yield refuse(place, "contradicted_figure", "wider weights took less time per token", row)
            else:
                yield _record(document.source_path, place, row, platform, precision, latency)


def _rows(document: Document) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the rows of the table; records of JSON in the table's columns."""
    for pointer, row in rows_of(document):
        if "Network model" in row:
            yield pointer, row
            continue
        rates, latencies = (object_of(object_of(row.get("Parameters")).get(name)) for name in ("throughput", "latency"))
        stated = {
            "Network model": row.get("Model"),
            "Platform name": row.get("Platform"),
            "UOM_L": _UNITS.get(str(rates.get("Unit"))),
        }
        for figures, position in ((latencies, 0), (rates, 1)):
            by_name = figures.get("Precisions")
            for name, figure in object_of(by_name[0] if isinstance(by_name, list) and by_name else None).items():
                if name in _SHORT_NAMES:
                    stated[_FIGURES[_SHORT_NAMES[name]][position]] = figure
        yield pointer, stated


def _with_wider_weights(row: Mapping[str, Any], precision: str) -> float:
    """Return the shortest time per token with wider weights; infinite without one."""
    wider = _WEIGHTS[_WEIGHTS.index(precision) + 1 :] if precision in _WEIGHTS else ()
    times = (quantity(pick(row, _FIGURES[other][0])) for other in wider)
    return min((time for time in times if time), default=math.inf)


def _figures_of(row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the network and all of its figures in a row; unequal to those of any other row where it has none."""
    figures = tuple(quantity(pick(row, *columns[::-1])) for columns in _FIGURES.values())
    latency = quantity(pick(row, "Latency_int8"))
    return (str(row["Network model"]), latency, *figures) if latency else (id(row),)


def _record(
    source_path: str, pointer: str, row: Mapping[str, Any], platform: re.Match[str], precision: str, latency: float
) -> Record | RefusedCell:
    network = str(row["Network model"])
    other_name, inputs = _INPUTS.get(network, (None, {}))
    version = (text_of(row.get("Release")) or "").removeprefix("OV-")
    per_token = row["UOM_L"] == _PER_TOKEN
    cell = CellDraft(
        source_path,
        pointer,
        NamesInFile((network, other_name), "openvino", precision=precision, runtime="openvino"),
        machine=Machine(
            device_names={"openvino": _device(platform)}, software={"openvino": version} if version else {}
        ),
        original={
            "platform": platform[0],
            "sockets": quantity(pick(row, "Sockets")),
            **({"image_size": inputs["image_size"]} if "image_size" in inputs else {}),
        },
    )
    figures: dict[str, Any] = {"batch_size": 1}
    if per_token:
        figures |= {"mode": "generation", "time_per_output_token_ms": latency, **_PROMPT_AND_ANSWER}
    else:
        figures |= {"latency_p50_ms": latency, "sequence_length": inputs.get("sequence_length")}
    return cell.result("ok", figures, units={"latency": "ms per token" if per_token else "ms"})


def _device(platform: re.Match[str]) -> str:
    """Return the device's name: `Intel Core Ultra 7 165H`, with `iGPU` or `NPU` behind it for these parts of it."""
    name = _TRADE_WORDS.sub("", platform["name"])
    part = platform["part"].removesuffix("-only")
    return f"{name} {part}" if part in ("iGPU", "NPU") else name
