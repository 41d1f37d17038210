"""Qualcomm AI Hub: one network on one phone or board with one runtime, in milliseconds; tables and `perf` files.

The hub names no batch, so it stays open. Its MB are MiB (bytes over 1 << 20). What served the network is the compute
unit most layers ran on: the NPU is `qnn`, whatever the runtime around it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator, Mapping
from typing import Any

from migrations.cells import Cell, Machine, Named, reason_unless_ok
from migrations.documents import Document
from migrations.identity import NOT_STATED
from migrations.records import Record, Refused, child
from migrations.tables import object_of, pick, rows_of, share_of_rows, text_of
from migrations.values import MS_PER_S, number, quantity

_UNITS = {"inference_time_ms": "ms", "peak_mem_max_mb": "MiB, written MB", "tokens_per_second": "tokens/s"}
_BY_UNIT = {"NPU": "qnn", "CPU": "cpu", "GPU": "opencl"}
_BACKENDS = {"onnx": "onnxruntime", "precompiled_qnn_onnx": "onnxruntime", "tflite": "tflite"}
_ABOUT = ("component", "domain", "use_case", "n_params", "model_size", "input_resolution")
_LAYERS = ("layers_total", "layers_npu", "layers_gpu", "layers_cpu")
_BYTES_PER_MIB = 1_048_576


def recognise(document: Document) -> float:
    """Sure by the table's columns, or by `models[].performance_metrics[]` of a `perf` file."""
    if share_of_rows(document, "device", "runtime", "inference_time_ms") == 1.0:
        return 0.95
    return 0.95 if any(True for _ in _perf_entries(document.value)) else 0.0


def read(document: Document) -> Iterator[Record | Refused]:
    """One record per row of the table, or per model, device and runtime of the file."""
    if isinstance(document.value, dict):
        for pointer, row in _perf_entries(document.value):
            yield _record(document.source_path, pointer, row)
        return
    components: dict[Any, set[Any]] = defaultdict(set)
    for _, row in rows_of(document):
        components[row.get("model_id")].add(row.get("component"))
    for pointer, row in rows_of(document):
        is_part = len(components[row.get("model_id")]) > 1
        yield _record(document.source_path, pointer, row, is_part=is_part)


def _record(source_path: str, pointer: str, row: Mapping[str, Any], *, is_part: bool = False) -> Record | Refused:
    """`is_part`: the row is of one of several networks that make up the model, and has a name of its own."""
    model, component = row.get("model_id"), row.get("component")
    runtime, device = text_of(row.get("runtime")), text_of(row.get("device"))
    unit = text_of(pick(row, "primary_compute_unit"))
    llm = _llm(row)
    hardware = _BY_UNIT.get(str(unit).upper()) or (
        "qnn" if runtime and ("qnn" in runtime or runtime == "genie") else NOT_STATED
    )
    backend = _BACKENDS.get(runtime or "", "qnn" if runtime and "qnn" in runtime else runtime)
    tools = _json_object(row.get("tool_versions"))
    cell = Cell(
        source_path,
        pointer,
        Named(
            (f"{model}: {component}",) if is_part else (model, component),
            hardware,
            precision=row.get("precision"),
            runtime=backend,
        ),
        times=(row.get("timestamp"),),
        machine=Machine(
            host={"device": device} if device else {},
            device_names={name: device for name in ("qnn", "cpu", "opencl", "onnxruntime") if device},
            software={str(name): str(version) for name, version in tools.items()},
            settings={"runtime": runtime},
        ),
        original={
            **{name: pick(row, name) for name in _ABOUT},
            "model": model,
            "hardware": unit or runtime,
            "runtime": runtime,
            "layers": {name: count for name in _LAYERS if (count := number(pick(row, name))) is not None},
            "stated": {
                "peak_memory_min_mib": quantity(pick(row, "peak_mem_min_mb")),
                **{key: value for key, value in llm.items() if key != "time_per_output_token_ms"},
            },
        },
    )
    latency = quantity(pick(row, "inference_time_ms"))
    passed = str(row.get("job_status") or "").casefold() in ("passed", "success", "")
    if latency is None and not llm:
        return cell.result("failed", {}, reason=reason_unless_ok("failed", row, row.get("job_status")))
    figures = {
        "latency_mean_ms": latency,
        "memory_peak_mib": quantity(pick(row, "peak_mem_max_mb")) or None,
        **({"mode": "generation", "time_per_output_token_ms": llm["time_per_output_token_ms"]} if llm else {}),
    }
    if not passed:
        return cell.result("failed", {}, reason=reason_unless_ok("failed", row, row.get("job_status")))
    return cell.result("ok", figures, units=_UNITS)


def _llm(row: Mapping[str, Any]) -> dict[str, Any]:
    """Tokens/s, the range of the time to the first token (short prompt to full context), and the context length."""
    metrics = _json_object(row.get("llm_metrics"))
    rate = quantity(metrics.get("tokens_per_second"))
    if not rate:
        return {}
    first = object_of(metrics.get("time_to_first_token_range_milliseconds"))
    return {
        "tokens_per_s": rate,
        "time_per_output_token_ms": MS_PER_S / rate,
        "context_length": metrics.get("context_length"),
        "time_to_first_token_min_ms": quantity(first.get("min")),
        "time_to_first_token_max_ms": quantity(first.get("max")),
    }


def _json_object(value: Any) -> dict[str, Any]:
    """An object, also one written as JSON text inside a cell."""
    if isinstance(value, str) and value.strip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return object_of(value)


def _perf_entries(value: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a `perf` file: `models[].performance_metrics[].{runtime}{inference_time in microseconds, …}`."""
    models = object_of(value).get("models")
    for m, model in enumerate(models if isinstance(models, list) else ()):
        metrics = object_of(model).get("performance_metrics")
        for d, entry in enumerate(metrics if isinstance(metrics, list) else ()):
            reference = object_of(object_of(entry).get("reference_device_info"))
            for runtime, figures in object_of(entry).items():
                if not isinstance(figures, dict) or "inference_time" not in figures:
                    continue
                time_us = quantity(figures["inference_time"])
                memory = object_of(figures.get("estimated_peak_memory_range"))
                low, high = quantity(memory.get("min")), quantity(memory.get("max"))
                layers = object_of(figures.get("layer_info"))
                pointer = child(child(child("/models", m) + "/performance_metrics", d), runtime)
                yield (
                    pointer,
                    {
                        "model_id": model.get("name"),
                        "runtime": runtime.removeprefix("torchscript_onnx_"),
                        "device": reference.get("name"),
                        "timestamp": pick(object_of(entry), "timestamp"),
                        "precision": pick(figures, "precision"),
                        "inference_time_ms": None if time_us is None else time_us / 1000,
                        "peak_mem_min_mb": None if low is None else low / _BYTES_PER_MIB,
                        "peak_mem_max_mb": None if high is None else high / _BYTES_PER_MIB,
                        "primary_compute_unit": pick(figures, "primary_compute_unit"),
                        "job_status": figures.get("job_status"),
                        "layers_total": layers.get("total_layers"),
                        "layers_npu": layers.get("layers_on_npu"),
                        "layers_gpu": layers.get("layers_on_gpu"),
                        "layers_cpu": layers.get("layers_on_cpu"),
                    },
                )
