"""Output of ncnn's `benchncnn`: settings as `name = value`, then milliseconds of one picture per model.

One text may hold several blocks, each under the heading of a device.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from migrations.normalize.canonical_names import NOT_STATED
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import Record, RefusedCell, child
from migrations.normalize.units import count, number, quantity
from migrations.sources.documents import Document

_ROW = re.compile(
    r"\s*(?P<model>[\w.-]+)\s+min\s*=\s*(?P<min>-?[\d.]+)\s+max\s*=\s*(?P<max>-?[\d.]+)\s+avg\s*=\s*(?P<avg>-?[\d.]+)\s*"
)
_SETTING = re.compile(
    r"\s*(?P<name>loop_count|num_threads|powersave|gpu_device|cooling_down)\s*=\s*(?P<value>-?\d+)\s*"
)
_HEADING = re.compile(r"#+\s*(?P<device>.+?)\s*$")
_COMMAND = re.compile(r".*(?:[$#>]\s*)?\S*benchncnn(?P<arguments>(?:\s+-?\d+)+)\s*$")
_ORDER = ("loop_count", "num_threads", "powersave", "gpu_device", "cooling_down")
_INT8 = "_int8"


def detect(document: Document) -> float:
    """Return high confidence where two lines are rows of it, or one beside a setting."""
    if document.kind != "text":
        return 0.0
    rows = sum(1 for line in document.value if "avg =" in line and _ROW.fullmatch(line))
    settings = any(_SETTING.fullmatch(line) for line in document.value[:200])
    return 0.9 if rows >= 2 or (rows and settings) else 0.0


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per row."""
    settings: dict[str, str] = {}
    device = None
    for index, line in enumerate(document.value):
        if found := _HEADING.match(line):
            device, settings = found["device"], {}
        elif found := _COMMAND.fullmatch(line):
            settings = dict(zip(_ORDER, found["arguments"].split(), strict=False))
        elif found := _SETTING.fullmatch(line):
            settings[found["name"]] = found["value"]
        elif found := _ROW.fullmatch(line):
            yield _record(document.source_path, child("", index), found, settings, device)


def _record(
    source_path: str, pointer: str, row: re.Match[str], settings: dict[str, str], device: str | None
) -> Record | RefusedCell:
    gpu = number(settings.get("gpu_device"))
    hardware = NOT_STATED if gpu is None else "cpu" if gpu < 0 else "vulkan"
    model = row["model"]
    cell = CellDraft(
        source_path,
        pointer,
        NamesInFile(
            (model.removesuffix(_INT8),),
            hardware,
            precision="int8" if model.endswith(_INT8) else None,
            runtime="ncnn",
        ),
        machine=Machine(
            host={"device": device} if device else {},
            device_names={name: device for name in ("cpu", "vulkan") if device},
            threads=count(settings.get("num_threads"), at_least=1),
            settings={name: settings.get(name) for name in ("powersave", "cooling_down", "gpu_device")},
        ),
        original={"model": model, "device": device},
    )
    figures: dict[str, Any] = {f"latency_{name}_ms": quantity(row[name]) for name in ("min", "max")}
    figures |= {"latency_mean_ms": quantity(row["avg"]), "iterations": count(settings.get("loop_count"))}
    if not figures["latency_mean_ms"]:
        return cell.result("failed", {"batch_size": 1}, reason=f"the row gives {row['avg']} as its average")
    return cell.result("ok", {"batch_size": 1, **figures}, units={"avg": "ms"})
