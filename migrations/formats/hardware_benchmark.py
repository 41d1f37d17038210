"""Results of the old framework's hardware benchmark runner: `benchmarks.{family}.{model}.{hardware}`, in seconds.

A cell's key says its shape (`batch_4_seq_128`, `batch_4_img_224x224`, `batch_4_audio_30s`, `batch_4`). The runner names
no precision and never filled in memory. Its outer status says nothing about the cells inside.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from migrations.normalize.field_aliases import batch_in, completed, length_in, other_figures, stated_ms
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile, outcome, reason_unless_ok, status_of
from migrations.normalize.records import NoResult, Part, Record, RefusedCell, child, refuse
from migrations.normalize.row_access import object_of
from migrations.normalize.units import MS_PER_S, NS_PER_S, count, quantity, samples_ns, scaled
from migrations.sources.documents import Document

_HOST_FACTS = ("hostname", "architecture", "os", "processor", "cpu_count_physical", "cpu_count_logical")
_SOFTWARE = ("python_version", "torch_version", "transformers_version", "cuda_version", "openvino_version")
_UNITS = {"latencies": "s", "avg_latency": "s", "total_time": "s", "model_load_time": "s", "throughput": "items/s"}
_STATED = ("avg_latency", "throughput", "total_time", "timeout", "completed_iterations", "real_time_factor")


def detect(document: Document) -> float:
    """Return high confidence where some entry three levels under `benchmarks` holds `benchmark_results` or a status."""
    value = document.value
    if not isinstance(value, dict) or not isinstance(value.get("benchmarks"), dict):
        return 0.0
    entries = [entry for *_, entry in _entries(value["benchmarks"]) if isinstance(entry, dict)]
    if any("benchmark_results" in entry for entry in entries):
        return 0.95
    described = "system_info" in value or "hardware_info" in value
    return 0.8 if described and all("status" in entry for entry in entries) else 0.0


def parse(document: Document) -> Iterator[Part]:
    """Yield every cell; an entry without cells is one record about the model as a whole."""
    machine = _machine(document.value)
    if not document.value["benchmarks"]:
        yield NoResult("/benchmarks", "a run without a benchmark")
    for pointer, family, model, hardware, entry in _entries(document.value["benchmarks"]):
        if not isinstance(entry, dict):
            yield refuse(pointer, "unexpected_shape", "an object was expected", entry)
            continue
        whole = CellDraft(
            document.source_path,
            pointer,
            NamesInFile((model, entry.get("model_name")), hardware, family=family),
            times=(entry.get("timestamp"), document.value.get("timestamp")),
            machine=machine,
            original={"family": family, "model_class": entry.get("model_class")},
        )
        load = {"load_ms": stated_ms(entry.get("model_load_time"), "s")}
        cells = entry.get("benchmark_results")
        if isinstance(cells, dict) and cells:
            for key, content in cells.items():
                where = child(child(pointer, "benchmark_results"), key)
                yield _cell(replace(whole, pointer=where), key, content, load)
        else:
            status = status_of(entry.get("status"))
            yield whole.result(status, load, reason=reason_unless_ok(status, entry, entry.get("status")))


def _cell(whole: CellDraft, key: str, content: Any, load: dict[str, float | None]) -> Record | RefusedCell:
    batch_size = batch_in(key)
    if batch_size is None or not isinstance(content, dict):
        return refuse(whole.pointer, "unexpected_shape", f"no cell is read from key {key!r}", content)
    stated = {**{name: content[name] for name in _STATED if name in content}, **other_figures(content)}
    cell = replace(whole, original={**whole.original, "cell": key, "stated": stated})
    samples = samples_ns(content.get("latencies"), ns_per_unit=NS_PER_S)
    mean_ms = scaled(content.get("avg_latency"), MS_PER_S)
    measured = {
        "samples_ns": samples,
        "latency_mean_ms": None if samples else mean_ms,
        "throughput_items_per_s": quantity(content.get("throughput")),
    }
    measured = completed(measured, content, seconds=True)
    status = outcome(content.get("status"), content.get("success"), figures=measured, error=content.get("error"))
    if content.get("timeout") and not any(measured.values()):
        status = "timeout"
    figures: dict[str, Any] = {"batch_size": batch_size, "sequence_length": length_in(key), **load}
    if status == "ok":
        figures |= {**measured, "iterations": count(content.get("iterations"))}
    word = content.get("status") or ("timeout" if status == "timeout" else None)
    return cell.result(status, figures, reason=reason_unless_ok(status, content, word), units=_UNITS)


def _entries(benchmarks: dict[str, Any]) -> Iterator[tuple[str, str, str, str, Any]]:
    """Yield pointer, family, model, hardware and entry; other values on the way down are yielded as they are.

    Some files omit the level of families.
    """
    for family, models in benchmarks.items():
        at_family = child("/benchmarks", family)
        if not isinstance(models, dict):
            yield at_family, family, "", "", models
            continue
        for model, entries in models.items():
            at_model = child(at_family, model)
            if not isinstance(entries, dict):
                yield at_model, family, model, "", entries
                continue
            if _is_entry(entries):
                yield at_model, "", family, model, entries
                continue
            for hardware, entry in entries.items():
                yield child(at_model, hardware), family, model, hardware, entry


def _is_entry(value: dict[str, Any]) -> bool:
    return isinstance(value.get("benchmark_results"), dict) or isinstance(value.get("status"), str)


def _machine(value: dict[str, Any]) -> Machine:
    info = object_of(value.get("system_info"))
    host = {key: info[key] for key in _HOST_FACTS if key in info}
    software = {key: str(info[key]) for key in _SOFTWARE if info.get(key)}
    return Machine(
        host=host, device_names=_device_names(info, object_of(value.get("hardware_details"))), software=software
    )


def _device_names(info: dict[str, Any], details: dict[str, Any]) -> dict[str, str]:
    """Return CPU and GPU names. `processor` often repeats the architecture, which names nothing."""
    names: dict[str, str] = {}
    cpu = object_of(details.get("openvino_device_info")).get("CPU") or info.get("processor")
    if isinstance(cpu, str) and cpu and cpu != info.get("architecture"):
        names |= {"cpu": cpu, "openvino": cpu, "onnxruntime": cpu}
    gpus = info.get("cuda_devices") or details.get("cuda_devices")
    if isinstance(gpus, list) and gpus and isinstance(gpus[0], Mapping) and isinstance(gpus[0].get("name"), str):
        names["cuda"] = gpus[0]["name"]
    return names
