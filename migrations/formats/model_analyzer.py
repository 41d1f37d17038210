"""Triton Model Analyzer's CSV of inference and of GPU metrics, one row per model configuration; units in the headers.

Clients send at a concurrency or a request rate, so throughput is no batch over latency: both stay with the row. The
GPU file has the same rows' memory (decimal MB) and no times. An instance group says where the model ran.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from migrations.normalize.canonical_names import NOT_STATED
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import Record, RefusedCell
from migrations.normalize.row_access import pick, rows_of, text_of
from migrations.normalize.units import MIB_PER_MB, TO_MS, count, quantity, scaled
from migrations.sources.documents import Document

_COLUMN = re.compile(r"(?P<name>.*?)\s*\((?P<unit>[^()]*)\)")
_PERCENTILE = re.compile(r"p(\d+) latency", re.IGNORECASE)
_TIMES = {"latency avg": "mean", "avg latency": "mean", "latency": "mean", "response wait time": None}
_KEPT = ("p50", "p90", "p95", "p99", "mean")
_ABOUT = (
    "Model Config Path", "Instance Group", "Max Batch Size", "Preferred Batch Size", "Dynamic Batcher Sizes",
    "Satisfies Constraints", "GPU UUID", "Backend Parameters", "Composing Config Paths", "Model Config",
)  # fmt: skip


def detect(document: Document) -> float:
    """Return high confidence where a model's rows have a batch, a load, and a rate, latency or GPU figure with its
    unit.
    """
    columns = set(document.columns)
    if "Model" not in columns or not columns & {"Batch", "Batch Size"} or not columns & {"Concurrency", "Request Rate"}:
        return 0.0
    names = {found["name"].casefold() for column in columns if (found := _COLUMN.fullmatch(column))}
    known = any("latency" in name or name.startswith(("throughput", "gpu ")) for name in names)
    return 0.95 if known else 0.0


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per row."""
    columns = {column: found for column in document.columns if (found := _COLUMN.fullmatch(column))}
    for pointer, row in rows_of(document):
        cell = _cell(document.source_path, pointer, row, columns)
        batch = {"batch_size": count(pick(row, "Batch", "Batch Size"), at_least=1)}
        figures = _figures(row, columns)
        if not any(figures.values()):
            yield cell.result("failed", batch, reason="the row holds no figure")
        else:
            yield cell.result(
                "ok", {**batch, **figures}, units={name: found["unit"] for name, found in columns.items()}
            )


def _figures(row: Mapping[str, Any], columns: Mapping[str, re.Match[str]]) -> dict[str, float | None]:
    figures: dict[str, float | None] = {}
    for column, found in columns.items():
        name, unit = found["name"].casefold(), found["unit"].casefold()
        value = quantity(pick(row, column))
        percentile = _PERCENTILE.fullmatch(name)
        which = f"p{percentile[1]}" if percentile else _TIMES.get(name)
        if which in _KEPT and unit in TO_MS:
            figures[f"latency_{which}_ms"] = scaled(value, TO_MS[unit])
        elif name == "throughput" and unit.startswith("infer"):
            figures["throughput_items_per_s"] = value
        elif name in ("gpu memory usage", "max gpu memory usage") and unit == "mb":
            figures["memory_device_peak_mib"] = scaled(value, MIB_PER_MB)
        elif name == "ram usage" and unit == "mb":
            figures["memory_peak_mib"] = scaled(value, MIB_PER_MB)
    return figures


def _cell(source_path: str, pointer: str, row: Mapping[str, Any], columns: Mapping[str, re.Match[str]]) -> CellDraft:
    group = text_of(pick(row, "Instance Group"))
    places = set(re.findall(r"GPU|CPU", group.upper())) if group else set()
    gpu = text_of(pick(row, "GPU UUID", "GPU Name"))
    # Triton serves on NVIDIA's GPUs, and the UUIDs are NVIDIA's.
    hardware = "cuda" if gpu or places == {"GPU"} else "cpu" if places == {"CPU"} else None
    rest = {name: quantity(pick(row, name)) for name in columns}
    return CellDraft(
        source_path,
        pointer,
        NamesInFile((row.get("Model"),), hardware or NOT_STATED, runtime="triton"),
        machine=Machine(settings={"instance_group": group, "model_config": pick(row, "Model Config Path")}),
        original={
            "hardware": group or gpu or NOT_STATED,
            "concurrency": count(pick(row, "Concurrency"), at_least=1),
            "request_rate": quantity(pick(row, "Request Rate")),
            "gpu_uuid": gpu,
            **{name.casefold().replace(" ", "_"): pick(row, name) for name in _ABOUT if name != "GPU UUID"},
            "stated": {
                name: value for name, value in rest.items() if value is not None and not _is_read(columns[name])
            },
        },
    )


def _is_read(found: re.Match[str]) -> bool:
    name = found["name"].casefold()
    return name in (*_TIMES, "throughput", "gpu memory usage", "ram usage") or _PERCENTILE.fullmatch(name) is not None
