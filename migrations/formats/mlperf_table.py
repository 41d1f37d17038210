"""Tables of MLPerf inference results: a checker's `summary` (CSV or JSON), or a results list with a row per model.

The meaning of `Result` follows from units or scenario: a percentile of latency in ms for streams (90 for one, 99 for
several), else a rate. Numbers may be quoted, and unknown ones `N/A`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from migrations.normalize.canonical_names import NOT_STATED, hardware_named
from migrations.normalize.path_hints import hardware_part, spaced
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import Record, RefusedCell, refuse
from migrations.normalize.row_access import pick, rows_of, share_of_rows, strays_of, text_of
from migrations.normalize.units import count, quantity
from migrations.sources.documents import Document
from migrations.tools import mlperf

_MODEL = ("MlperfModel", "Model", "model", "UsedModel", "Benchmark", "benchmark")
_SCENARIO = ("Scenario", "scenario")
_RESULT = ("Result", "Performance_Result", "Performance Result", "result", "performance")
_RATE = ("Throughput", "Samples per second", "Samples/s", "throughput", "QPS", "qps")
_LATENCY = ("Latency (in ms)", "Latency (ms)", "latency_ms", "Latency")
_UNITS = ("Units", "Performance_Units", "Performance Units", "units")
_ACCELERATOR = ("accelerator_model_name", "Accelerator", "accelerator")
_PROCESSOR = ("host_processor_model_name", "Processor", "processor")
_ABOUT = (
    "Organization", "Submitter", "Availability", "Division", "SystemType", "SystemName", "System", "Platform",
    "Accuracy", "number_of_nodes", "accelerators_per_node", "a#", "framework", "version", "has_power", "inferred",
    "notes", "ID", "Location", "compliance", "operating_system",
)  # fmt: skip
_TESTS = re.compile(r"TEST\d+|Power.*", re.IGNORECASE)


def detect(document: Document) -> float:
    """Return high confidence where rows have a model, a scenario of MLPerf, and a result."""
    if document.kind not in ("csv", "json", "json_lines") or isinstance(document.value, dict):
        return 0.0
    has = [max(share_of_rows(document, name) for name in names) for names in (_MODEL, _SCENARIO)]
    figures = max(share_of_rows(document, name) for name in (*_RESULT, *_RATE, *_LATENCY))
    rows = [row for _, row in rows_of(document)][:50]
    named = sum(mlperf.scenario_of(pick(row, *_SCENARIO)) is not None for row in rows) / len(rows) if rows else 0.0
    return 0.95 * min(*has, figures, named)


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per row; a row whose result is open or whose run had errors is a failure."""
    for pointer, value in strays_of(document):
        yield refuse(pointer, "unexpected_shape", "an object was expected", value)
    for pointer, row in rows_of(document):
        scenario = mlperf.scenario_of(pick(row, *_SCENARIO))
        cell = _cell(document.source_path, pointer, row)
        figures, stated = _figures(row, scenario)
        size = {
            "batch_size": mlperf.batch_of(scenario, pick(row, "samples_per_query")),
            "sequence_length": count(pick(row, "sequence_length"), at_least=1),
        }
        if not any(figures.values()) and not any(stated.values()):
            reason = text_of(pick(row, "errors", "error"))
            counted = reason is not None and reason.isdigit()
            if reason is None or counted:
                errors = f", and counts {reason} errors" if counted and reason != "0" else ""
                reason = f"the table leaves the result open{errors}"
            yield cell.result("failed", size, reason=reason)
            continue
        cell = CellDraft(
            cell.source_path, cell.pointer, cell.named, cell.times, cell.machine, {**cell.original, "stated": stated}
        )
        units = {"Result": str(pick(row, *_UNITS) or f"as of scenario {pick(row, *_SCENARIO)}")}
        yield cell.result("ok", {**size, **figures}, units=units)


def _figures(row: Mapping[str, Any], scenario: str | None) -> tuple[dict[str, float | None], dict[str, float]]:
    rate, latency = quantity(pick(row, *_RATE)), quantity(pick(row, *_LATENCY))
    result, units = quantity(pick(row, *_RESULT)), str(pick(row, *_UNITS) or "").casefold()
    percentile = "latency_p99_ms" if scenario == "multistream" else "latency_p90_ms"
    stated: dict[str, float] = {}
    if result is not None:
        if "token" in units:
            stated["throughput_tokens_per_s"] = result
        elif "latency" in units or "ms" in units.split() or (not units and scenario in ("singlestream", "multistream")):
            latency = result if latency is None else latency
        elif "/s" in units or "second" in units or not units:
            rate = result if rate is None else rate
        else:
            stated[f"result ({units})"] = result
    tokens = stated.get("throughput_tokens_per_s") or None
    logged = mlperf.latencies(row, scenario, mlperf.LATENCIES)
    figures = {percentile: latency, "throughput_items_per_s": rate, "throughput_tokens_per_s": tokens}
    return {**figures, **{name: value for name, value in logged.items() if value is not None}}, stated


@dataclass(frozen=True)
class _Place:
    """Hardware of a row: the text that names its kind, the device in the row's words, and their number."""

    hardware_text: str | None
    device_text: str
    device_name: str | None
    """Name with the number of devices in front, where there are several."""
    devices: int | None
    """None where no accelerator is named."""


def _place(source_path: str, row: Mapping[str, Any], system: str | None, processor: str | None) -> _Place:
    """Return where a row was measured: its accelerator, its platform, its processor or system, else its folder."""
    accelerator = text_of(pick(row, *_ACCELERATOR))
    per_node = count(pick(row, "accelerators_per_node", "a#"))
    folder = None if accelerator or processor or system else hardware_part(source_path)
    # A platform's name may tell of an accelerator that the list leaves out.
    platform = spaced(str(pick(row, "Platform") or ""))
    on_processor = accelerator is None and per_node == 0
    if accelerator is not None or on_processor or hardware_named(platform) in (None, "cpu"):
        platform = ""
    texts = (accelerator, platform, None if accelerator else processor, system, spaced(folder) if folder else None)
    hardware_text = "cpu" if on_processor else next((text for text in texts if text and hardware_named(text)), None)
    nodes = count(pick(row, "number_of_nodes", "Nodes"), at_least=1)
    devices = (per_node or 1) * (nodes or 1) if accelerator else None
    device = platform or accelerator or processor
    return _Place(
        hardware_text,
        accelerator or platform or processor or system or folder or NOT_STATED,
        f"{devices} x {device}" if device and devices and devices > 1 else device,
        devices,
    )


def _cell(source_path: str, pointer: str, row: Mapping[str, Any]) -> CellDraft:
    processor = text_of(pick(row, *_PROCESSOR))
    system = text_of(pick(row, "SystemName", "System", "Platform"))
    place = _place(source_path, row, system, processor)
    hardware = hardware_named(place.hardware_text)
    model, scenario = text_of(pick(row, *_MODEL)), pick(row, *_SCENARIO)
    image_size = mlperf.image_size_of(model)
    software = f"{pick(row, 'framework', 'Software')} {spaced(str(pick(row, 'Platform') or ''))}"
    return CellDraft(
        source_path,
        pointer,
        NamesInFile(
            (mlperf.model_of(model),),
            place.hardware_text or NOT_STATED,
            precision=mlperf.precision_of(pick(row, "weight_data_types")),
            runtime=mlperf.runtime_in(software),
        ),
        machine=Machine(
            host={"system": system, "processor": processor},
            device_names={hardware: place.device_name} if hardware and place.device_name else {},
            settings={"scenario": scenario},
        ),
        original={
            **{name: pick(row, name) for name in (*_ABOUT, *filter(_TESTS.fullmatch, map(str, row)))},
            "model": model,
            **({"image_size": image_size} if image_size else {}),
            "hardware": place.device_text,
            "scenario": scenario,
            "devices": place.devices,
        },
    )
