"""Summaries of hardware benchmarks: `model_families.{f}.hardware_results.{hw}`, lists in the order of `models_tested`.

Each figure is a mean over unlike shapes, computed from results stored elsewhere. It is kept as a claim
(`original.derived_claim`) and never counts as a measurement. Latency in ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from accel_platform.table_io.values import count_of
from migrations.normalize.record_builder import CellDraft, NamesInFile
from migrations.normalize.records import NoResult, Part, child, pointer_to, refuse
from migrations.normalize.units import number, quantity
from migrations.sources.documents import Document

DERIVED = "a mean over batch sizes and shapes"
_UNITS = {"latency_ms": "ms", "throughput": "items/s"}

ReadHardware = Callable[[Document, str, str, str, Any], Iterator[Part]]
"""Reader of one hardware of a family: document, pointer, family, hardware name, and the value there."""


def detect(document: Document) -> float:
    """Return high confidence where some family has results by hardware."""
    return 0.95 if some_family_has(document, "hardware_results") else 0.0


def parse(document: Document) -> Iterator[Part]:
    """Yield one record per model and hardware; lists shorter than the models tested name nobody and are refused."""
    return read_families(document, "hardware_results", _hardware, nothing="a summary of no results")


def some_family_has(document: Document, member: str) -> bool:
    """Return whether some object under `model_families` has this member."""
    families = document.value.get("model_families") if isinstance(document.value, dict) else None
    return isinstance(families, dict) and any(isinstance(f, dict) and member in f for f in families.values())


def read_families(document: Document, member: str, read: ReadHardware, *, nothing: str) -> Iterator[Part]:
    """Yield what `read` makes of each hardware in `model_families.{f}.{member}`; without any, NoResult(`nothing`)."""
    none = True
    for family, content in document.value["model_families"].items():
        by_hardware = content.get(member) if isinstance(content, dict) else content
        if by_hardware and not isinstance(by_hardware, dict):
            none = False
            yield refuse(child("/model_families", family), "unexpected_shape", "an object was expected", content)
        for hardware, value in by_hardware.items() if isinstance(by_hardware, dict) else ():
            none = False
            yield from read(document, pointer_to("model_families", family, member, hardware), family, hardware, value)
    if none:
        yield NoResult("/model_families", nothing)


def _hardware(document: Document, where: str, family: str, hardware: str, lists: Any) -> Iterator[Part]:
    models = document.value["model_families"][family].get("models_tested")
    columns = {key: lists.get(key) for key in _UNITS} if isinstance(lists, dict) else {}
    if isinstance(models, list) and len(models) == 1:
        columns = {key: [one] if number(one) is not None else one for key, one in columns.items()}
    known = {key: column for key, column in columns.items() if isinstance(column, list) and column}
    if not known or not isinstance(models, list):
        yield refuse(where, "unexpected_shape", "lists of figures beside a list of models were expected", lists)
        return
    if any(len(column) != len(models) for column in known.values()):
        counts = ", ".join(f"{count_of(len(column), 'figure')} of {key}" for key, column in known.items())
        reason = f"{counts} for {count_of(len(models), 'model')}: nobody can say whose they are"
        yield refuse(where, "model_unnamed", reason, {"models_tested": models, hardware: lists})
        return
    for index, model in enumerate(models):
        latency, throughput = (known[key][index] if key in known else None for key in _UNITS)
        cell = CellDraft(
            document.source_path,
            _place(where, lists, next(iter(known)), index),
            NamesInFile((model,), hardware, family=family),
            times=(document.value.get("timestamp"),),
            original={"family": family, "derived_claim": DERIVED},
        )
        figures = {"latency_mean_ms": quantity(latency), "throughput_items_per_s": quantity(throughput)}
        yield cell.result("ok", figures, units=_UNITS)


def _place(where: str, lists: Any, key: str, index: int) -> str:
    at = child(where, key)
    return child(at, index) if isinstance(lists[key], list) else at
