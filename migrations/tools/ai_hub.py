"""Qualcomm AI Hub's rows, whatever file they come in: one network on one device with one runtime, in milliseconds.

The hub names no batch, so it stays open. Its MB are MiB (bytes over 1 << 20). The hardware is the compute unit most
layers ran on: the NPU is `qnn`, whatever the runtime around it. How the files are laid out is in the formats.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from migrations.normalize.canonical_names import NOT_STATED
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile, reason_unless_ok
from migrations.normalize.records import Record, RefusedCell
from migrations.normalize.row_access import object_of, pick, text_of
from migrations.normalize.units import BYTES_PER_MIB, MS_PER_S, number, quantity, scaled

_UNITS = {"inference_time_ms": "ms", "peak_mem_max_mb": "MiB, written MB", "tokens_per_second": "tokens/s"}
_BY_UNIT = {"NPU": "qnn", "CPU": "cpu", "GPU": "opencl"}
_BACKENDS = {"onnx": "onnxruntime", "precompiled_qnn_onnx": "onnxruntime", "tflite": "tflite"}
_ABOUT = ("component", "domain", "use_case", "n_params", "model_size", "input_resolution")
_LAYERS = ("layers_total", "layers_npu", "layers_gpu", "layers_cpu")
_US_PER_MS = 1_000

Entry = tuple[tuple[str | int, ...], dict[str, Any], dict[str, Any]]
"""The steps to an entry of a `perf` file, the entry, and the row it means."""


def record(source_path: str, pointer: str, row: Mapping[str, Any], *, is_part: bool = False) -> Record | RefusedCell:
    """Return the result of a row. With `is_part` it is one of several networks of the model, with its own name."""
    model, component = row.get("model_id"), row.get("component")
    runtime, device = text_of(row.get("runtime")), text_of(row.get("device"))
    unit = text_of(pick(row, "primary_compute_unit"))
    llm = _llm(row)
    hardware = _BY_UNIT.get(str(unit).upper()) or (
        "qnn" if runtime and ("qnn" in runtime or runtime == "genie") else NOT_STATED
    )
    backend = _BACKENDS.get(runtime or "", "qnn" if runtime and "qnn" in runtime else runtime)
    tools = _json_object(row.get("tool_versions"))
    cell = CellDraft(
        source_path,
        pointer,
        NamesInFile(
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
    if not passed or (latency is None and not llm):
        return cell.result("failed", {}, reason=reason_unless_ok("failed", row, row.get("job_status")))
    figures = {
        "latency_mean_ms": latency,
        "memory_peak_mib": quantity(pick(row, "peak_mem_max_mb")) or None,
        **(
            {
                "mode": "generation",
                "time_per_output_token_ms": llm["time_per_output_token_ms"],
                "throughput_tokens_per_s": llm["tokens_per_s"],
            }
            if llm
            else {}
        ),
    }
    return cell.result("ok", figures, units=_UNITS)


def perf_entries(value: Any) -> Iterator[Entry]:
    """Yield the entries of a `perf` file."""
    yield from _entries_by_model(object_of(value).get("models"))
    for precision, by_component in object_of(object_of(value).get("precisions")).items():
        yield from _entries_by_component(precision, object_of(object_of(by_component).get("components")))


def _entries_by_model(models: Any) -> Iterator[Entry]:
    """Yield the entries of the old layout: `models[].performance_metrics[].{runtime}` in microseconds and bytes."""
    for m, model in enumerate(models if isinstance(models, list) else ()):
        metrics = object_of(model).get("performance_metrics")
        for d, entry in enumerate(metrics if isinstance(metrics, list) else ()):
            about = {
                "model_id": object_of(model).get("name"),
                "device": object_of(object_of(entry).get("reference_device_info")).get("name"),
                "timestamp": pick(object_of(entry), "timestamp"),
            }
            for runtime, figures in object_of(entry).items():
                if isinstance(figures, dict) and figures.keys() & {"inference_time", "tokens_per_second"}:
                    steps = ("models", m, "performance_metrics", d, runtime)
                    yield steps, figures, {**about, "runtime": _plain(runtime), **_in_microseconds(figures)}


def _entries_by_component(precision: str, components: dict[str, Any]) -> Iterator[Entry]:
    """Yield the entries of the layout since 2025, in milliseconds and MiB.

    It is `precisions.{p}.components.{c}.performance_metrics.{device}.{runtime}`.
    """
    for component, content in components.items():
        about = {"model_id": component, "component": component, "parts": len(components)}
        about["precision"] = pick(object_of(content), "precision") or precision
        for device, by_runtime in object_of(object_of(content).get("performance_metrics")).items():
            for runtime, figures in object_of(by_runtime).items():
                steps = ("precisions", precision, "components", component, "performance_metrics", device, runtime)
                for inner, stated in _in_milliseconds(figures) if isinstance(figures, dict) else ():
                    row = {**about, "device": device, "runtime": _plain(runtime), **stated}
                    yield (*steps, *inner), _inside(figures, inner), row


def _plain(runtime: str) -> str:
    return runtime.removeprefix("torchscript_onnx_")


def _in_microseconds(figures: dict[str, Any]) -> dict[str, Any]:
    memory = object_of(figures.get("estimated_peak_memory_range"))
    layers = object_of(figures.get("layer_info"))
    first = object_of(figures.get("time_to_first_token_range"))
    rate = pick(figures, "tokens_per_second")
    return {
        "precision": pick(figures, "precision"),
        "inference_time_ms": _ms(pick(figures, "inference_time")),
        "peak_mem_min_mb": scaled(pick(memory, "min"), 1 / BYTES_PER_MIB),
        "peak_mem_max_mb": scaled(pick(memory, "max"), 1 / BYTES_PER_MIB),
        "primary_compute_unit": pick(figures, "primary_compute_unit"),
        "job_status": pick(figures, "job_status"),
        "layers_total": layers.get("total_layers"),
        "layers_npu": layers.get("layers_on_npu"),
        "layers_gpu": layers.get("layers_on_gpu"),
        "layers_cpu": layers.get("layers_on_cpu"),
        "llm_metrics": {
            "tokens_per_second": rate,
            "time_to_first_token_range_milliseconds": {k: _ms(v) for k, v in first.items()},
        }
        if rate is not None
        else None,
    }


def _ms(microseconds: Any) -> float | None:
    time = quantity(microseconds)
    return None if time is None else time / _US_PER_MS


def _in_milliseconds(figures: dict[str, Any]) -> Iterator[tuple[tuple[str | int, ...], dict[str, Any]]]:
    """Yield one row, or one per context length of a language model."""
    memory = object_of(figures.get("estimated_peak_memory_range_mb"))
    layers = object_of(figures.get("layer_counts"))
    row = {
        "inference_time_ms": pick(figures, "inference_time_milliseconds"),
        "peak_mem_min_mb": pick(memory, "min"),
        "peak_mem_max_mb": pick(memory, "max"),
        "primary_compute_unit": pick(figures, "primary_compute_unit"),
        "job_status": pick(figures, "job_status"),
        "tool_versions": figures.get("tool_versions"),
        **{f"layers_{name}": layers.get(name) for name in ("total", "npu", "gpu", "cpu")},
    }
    metrics = figures.get("llm_metrics")
    if not isinstance(metrics, list) or not metrics:
        yield (), {**row, "llm_metrics": metrics}
        return
    for index, metric in enumerate(metrics):
        yield ("llm_metrics", index), {**row, "llm_metrics": metric}


def _inside(figures: dict[str, Any], steps: tuple[str | int, ...]) -> dict[str, Any]:
    value: Any = figures
    for step in steps:
        value = value[step]
    return value if isinstance(value, dict) else figures


def _llm(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return tokens/s, the range of the time to first token (short prompt to full context), and the context length."""
    metrics = _json_object(row.get("llm_metrics"))
    rate = quantity(metrics.get("tokens_per_second"))
    if not rate:
        return {}
    first = object_of(metrics.get("time_to_first_token_range_milliseconds"))
    return {
        "tokens_per_s": rate,
        "time_per_output_token_ms": MS_PER_S / rate,
        "context_length": number(metrics.get("context_length")),
        "time_to_first_token_min_ms": quantity(first.get("min")),
        "time_to_first_token_max_ms": quantity(first.get("max")),
    }


def _json_object(value: Any) -> dict[str, Any]:
    """Return an object, also from JSON text inside a cell."""
    if isinstance(value, str) and value.strip().startswith("{"):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return object_of(value)
