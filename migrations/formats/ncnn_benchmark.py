"""Tables of ncnn's `benchncnn`: milliseconds of one picture per device, model and number of threads.

`gpu_device` -1 is the processor, any other the Vulkan device of that number.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import Record, RefusedCell
from migrations.normalize.row_access import pick, rows_of, share_of_rows, text_of
from migrations.normalize.units import count, number, quantity
from migrations.sources.documents import Document

_UNITS = {"min_ms": "ms", "max_ms": "ms", "avg_ms": "ms"}


def detect(document: Document) -> float:
    """Return high confidence by its columns."""
    return 0.95 * share_of_rows(document, "model", "min_ms", "max_ms", "avg_ms", "loop_count", "num_threads")


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per row. benchncnn runs one picture at a time and prints milliseconds of it."""
    for pointer, row in rows_of(document):
        gpu = number(pick(row, "gpu_device"))
        hardware = None if gpu is None else "cpu" if gpu < 0 else "vulkan"
        device = text_of(row.get("device"))
        model, precision = _precision(str(row.get("model") or ""))
        cell = CellDraft(
            document.source_path,
            pointer,
            NamesInFile((model,), hardware or _by_command(row), precision=precision, runtime="ncnn"),
            machine=Machine(
                host={"device": device} if device else {},
                device_names={name: device for name in ("cpu", "vulkan") if device},
                threads=count(row.get("num_threads"), at_least=1),
                settings={name: pick(row, name) for name in ("powersave", "cooling_down", "gpu_device")},
            ),
            original={"model": row.get("model"), "device": device, "command": row.get("command")},
        )
        figures = {
            "batch_size": 1,
            "latency_min_ms": quantity(row.get("min_ms")),
            "latency_max_ms": quantity(row.get("max_ms")),
            "latency_mean_ms": quantity(row.get("avg_ms")),
            "iterations": count(row.get("loop_count")),
        }
        if figures["latency_mean_ms"] is None:
            yield cell.result("failed", {"batch_size": 1}, reason="the row holds no average")
        else:
            yield cell.result("ok", figures, units=_UNITS)


def _precision(model: str) -> tuple[str, str | None]:
    """Return name and precision: `squeezenet_int8` is squeezenet in int8; otherwise ncnn chooses (None)."""
    bare = model.removesuffix("_int8")
    return (bare, "int8") if bare != model else (model, None)


def _by_command(row: dict[str, Any]) -> str | None:
    """Return the hardware in `benchncnn [loops] [threads] [powersave] [gpu device] [cooling down]`.

    The processor by default, as in the program.
    """
    words = str(row.get("command") or "").split()
    if not words or "benchncnn" not in words[0]:
        return None
    return "vulkan" if len(words) > 4 and (number(words[4]) or -1) >= 0 and words[4] != "-1" else "cpu"
