"""Pipeline tests of one model: `results` and `performance` by method and hardware (`pipeline_cuda`), in seconds.

One entry of either is one cell; the times of `performance` are those of `results` again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from migrations.normalize.canonical_names import hardware_named
from migrations.normalize.field_aliases import stated_ms, unread_figures
from migrations.normalize.record_builder import CellDraft, NamesInFile
from migrations.normalize.records import NoResult, Part, child, refuse
from migrations.normalize.units import count, quantity
from migrations.normalize.unread_figures import refuse_figures
from migrations.sources.documents import Document

_UNITS = {"avg_time": "s", "load_time": "s", "inference_time": "s"}
_LATENCY = ("avg_time", "average_time", "mean_time", "inference_time", "avg_inference_time")
_READ = {*_LATENCY, "load_time", "model_load_time", "min_time", "max_time"}
_METHODS = ("pipeline", "from_pretrained", "openvino")
_LOAD = ("load_time", "model_load_time")


def detect(document: Document) -> float:
    """Return high confidence where `results` and `performance` are objects beside `hardware` or `metadata`; also
    without `performance` where every result is of a known method.
    """
    value = document.value
    if not isinstance(value, dict) or not {"hardware", "metadata"} & value.keys():
        return 0.0
    results, performance = value.get("results"), value.get("performance")
    if isinstance(results, dict) and isinstance(performance, dict):
        return 0.9 if performance and all(str(key).startswith(_METHODS) for key in performance) else 0.85
    alone = results if isinstance(results, dict) else performance if "results" not in value else None
    methods = isinstance(alone, dict) and bool(alone) and all(str(key).startswith(_METHODS) for key in alone)
    return 0.7 if methods else 0.0


def parse(document: Document) -> Iterator[Part]:
    """Yield one record per method and hardware."""
    value = document.value
    results = value["results"] if isinstance(value.get("results"), dict) else {}
    performance = value["performance"] if isinstance(value.get("performance"), dict) else {}
    metadata = value["metadata"] if isinstance(value.get("metadata"), dict) else {}
    for key in dict.fromkeys((*results, *performance)):
        outcome, times = results.get(key), performance.get(key)
        if outcome is None and times is None:
            continue
        where = child("/results" if outcome is not None else "/performance", key)
        if not isinstance(outcome, dict | None) or not isinstance(times, dict | None):
            yield refuse(where, "unexpected_shape", "an object was expected", [outcome, times])
            continue
        yield _cell(document, where, key, outcome or {}, times or {}, metadata)
        if outcome is not None and (unread := unread_figures(times or {})):
            yield refuse_figures(child("/performance", key), unread, times or {}, is_result=True)
    if not results and not performance:
        yield NoResult("", "a pipeline test without any method")


def _cell(
    document: Document,
    where: str,
    key: str,
    outcome: Mapping[str, Any],
    times: Mapping[str, Any],
    about: dict[str, Any],
) -> Part:
    hardware = outcome.get("device") or key
    method = key.removesuffix(f"_{hardware}")
    fields = {_plain(name, method): v for name, v in outcome.items()}
    both = {**fields, **times}
    cell = CellDraft(
        document.source_path,
        where,
        NamesInFile(
            tuple(name for name in (outcome.get("model"), about.get("model")) if name),
            hardware if hardware_named(hardware) else key,
        ),
        times=(about.get("timestamp"),),
        original={
            "method": method,
            "task": outcome.get("task") or about.get("task"),
            "class": outcome.get("class"),
            "stated": {
                name: figure
                for name, value in both.items()
                if name not in _READ and (name.endswith(("_time", "_mb", "_gb"))) and (figure := quantity(value))
            },
        },
    )
    reason = _failure(fields)
    if reason is not None:
        return cell.result("failed", {}, reason=reason)
    figures = {
        "latency_mean_ms": _first_ms(both, _LATENCY),
        "latency_min_ms": stated_ms(both.get("min_time"), "s"),
        "latency_max_ms": stated_ms(both.get("max_time"), "s"),
        "load_ms": _first_ms(both, _LOAD),
        "iterations": count(both.get("num_runs")),
        "batch_size": count(both.get("batch_size"), at_least=1),
    }
    return cell.result("ok", figures, units=_UNITS)


def _plain(name: str, method: str) -> str:
    """Return a name without its method: `pipeline_avg_time` of `pipeline` is `avg_time`."""
    return name.removeprefix(f"{method}_")


def _failure(outcome: Mapping[str, Any]) -> str | None:
    """Return the file's own message; a missing dependency is one too."""
    if outcome.get("success") is True:
        return None
    message = outcome.get("error") or (outcome.get("test") if outcome.get("missing_deps") else None)
    if message:
        return str(message)
    return "the file says it failed and gives no reason" if outcome.get("success") is False else None


def _first_ms(values: Mapping[str, Any], keys: tuple[str, ...]) -> float | None:
    found = (stated_ms(values[key], "s") for key in keys if key in values)
    return next((time for time in found if time is not None), None)
