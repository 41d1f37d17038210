"""TorchBench's user benchmarks: `metrics{"model=…, test=…, device=…, bs=…, metric=latencies": value}` beside `environ`.

Latencies are milliseconds of one step, `ttfb` too; peak memories are decimal GB. Other metrics are kept as they are,
and refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from migrations.normalize.canonical_names import hardware_named
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import Record, RefusedCell, child, refuse
from migrations.normalize.row_access import first_positive, object_of, pick, text_of
from migrations.normalize.units import MIB_PER_GB, count, number, quantity, scaled
from migrations.sources.documents import Document

_PART = re.compile(r"\s*(?P<name>\w+)\s*=\s*(?P<value>\[[^]]*\]|[^,]*?)\s*(?:,|$)")
_LATENCIES = ("latencies", "latency", "latency_ms")
_FIELDS = {"cpu_peak_mem": "memory_peak_mib", "gpu_peak_mem": "memory_device_peak_mib"}
_MODES = {"eval": "inference", "train": "training"}
_RATES = ("throughputs", "throughput")


def detect(document: Document) -> float:
    """Return high confidence where metrics named by model and device stand beside the environment."""
    value = object_of(document.value)
    metrics = object_of(value.get("metrics"))
    if not metrics or not value.keys() & {"environ", "name"}:
        return 0.0
    return 0.95 if any(_named(key).keys() >= {"model", "metric"} for key in metrics) else 0.0


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per model, test, device and batch; its metrics are put together."""
    groups: dict[tuple[str, ...], dict[str, tuple[str, Any]]] = {}
    for key, value in document.value["metrics"].items():
        parts = _named(key)
        if parts.keys() >= {"model", "metric"}:
            who = tuple(f"{name}={part}" for name, part in parts.items() if name != "metric")
            groups.setdefault(who, {})[parts["metric"]] = (key, value)
        else:
            yield refuse(child("/metrics", key), "metric_unknown", f"no metric is called {key[:100]!r} here", value)
    for metrics in groups.values():
        yield _record(document, metrics)


def _named(key: str) -> dict[str, str]:
    return {part["name"]: part["value"] for part in _PART.finditer(key)} if "=" in key else {}


def _record(document: Document, metrics: Mapping[str, tuple[str, Any]]) -> Record | RefusedCell:
    key = next((metrics[name][0] for name in _LATENCIES if name in metrics), next(iter(metrics.values()))[0])
    about = _named(key)
    environment = object_of(document.value.get("environ"))
    device = text_of(pick(environment, "device", "gpu_name", "device_name"))
    hardware = hardware_named(about.get("device"))
    values = {name: value for name, (_, value) in metrics.items()}
    figures: dict[str, Any] = {
        "latency_mean_ms": first_positive(values, *_LATENCIES),
        "throughput_items_per_s": first_positive(values, *_RATES),
        "first_ms": quantity(values.get("ttfb")),
        **{field_name: scaled(values.get(name), MIB_PER_GB) or None for name, field_name in _FIELDS.items()},
    }
    cell = CellDraft(
        document.source_path,
        child("/metrics", key),
        NamesInFile((about["model"],), about.get("device"), precision=about.get("precision"), runtime="pytorch"),
        times=(pick(environment, "timestamp", "date"), document.value.get("timestamp")),
        machine=Machine(
            device_names={hardware: device} if hardware and device and hardware_named(device) == hardware else {},
            software={
                name: str(version) for name, version in environment.items() if "version" in str(name) and version
            },
            settings={"extra_args": about.get("extra_args")},
        ),
        original={
            "benchmark": document.value.get("name"),
            "stated": {name: number(value) for name, value in values.items() if number(value) is not None},
        },
    )
    size = {
        "mode": _MODES.get(about.get("test", "eval"), "inference"),
        "batch_size": count(about.get("bs"), at_least=1),
    }
    if not any(figures.values()):
        error = next((value for value in values.values() if isinstance(value, str)), None)
        return cell.result("failed", size, reason=error or "the metrics hold no figure")
    return cell.result("ok", {**size, **figures}, units={"latencies": "ms", "*_peak_mem": "GB"})
