"""Results of airspeed velocity: one value per benchmark and combination of parameters, on one commit and machine.

`date` is the commit's time in epoch milliseconds. NaN means skipped, null failed. Units stand in asv's separate list of
benchmarks, so only `time_*` and `timeraw_*` (seconds) and `peakmem_*` (bytes) are read; `mem_*` and `track_*` are kept
as stated. Version 2 writes each benchmark as a list under `result_columns`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from migrations.normalize.record_builder import CellDraft
from migrations.normalize.records import Record, RefusedCell, refuse
from migrations.normalize.row_access import object_of, text_of
from migrations.normalize.units import BYTES_PER_MIB, MS_PER_S, NS_PER_S, number, samples_ns, scaled
from migrations.sources.documents import Document
from migrations.tools import microbenchmark

_TIMES = ("time_", "timeraw_", "Time", "TimeRaw")
_PEAKS = ("peakmem_", "PeakMem")
_FINE_NS = 1_000


def detect(document: Document) -> float:
    """Return high confidence where results stand beside a commit and the parameters of the machine."""
    value = object_of(document.value)
    if not isinstance(value.get("results"), dict) or "commit_hash" not in value:
        return 0.0
    return 0.95 if value.keys() & {"params", "env_vars", "requirements", "python"} else 0.0


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per benchmark and combination of parameters."""
    columns = document.value.get("result_columns")
    for name, entry in document.value["results"].items():
        pointer = microbenchmark.member("/results", name)
        found = _entry(entry, columns if isinstance(columns, list) else None)
        if found is None:
            yield refuse(pointer, "unexpected_shape", "no result is read from this", entry)
            continue
        yield from _benchmark(document, pointer, name, found)


def _benchmark(document: Document, pointer: str, name: str, entry: dict[str, Any]) -> Iterator[Record | RefusedCell]:
    values = entry["result"]
    several = isinstance(values, list)
    params = entry.get("params")
    lists = [level if isinstance(level, list) else [level] for level in params] if isinstance(params, list) else []
    combinations = list(itertools.product(*lists)) if lists else [()]
    place = microbenchmark.member(pointer, *entry["where"])
    if not several:
        yield _value(document, place, name, values, entry, 0, ())
        return
    if len(values) == 0:
        yield refuse(place, "unexpected_shape", "a benchmark without values", entry["result"])
    for index, value in enumerate(values):
        chosen = combinations[index] if len(combinations) == len(values) else (f"combination {index}",)
        yield _value(document, microbenchmark.member(place, index), name, value, entry, index, chosen)


def _value(
    document: Document,
    pointer: str,
    name: str,
    value: Any,
    entry: dict[str, Any],
    index: int,
    params: tuple[Any, ...],
) -> Record | RefusedCell:
    kind = name.rpartition(".")[2]
    called = f"{name}({', '.join(str(part) for part in params)})" if params and params != ("combination 0",) else name
    cell = _cell(document, pointer, called, entry, index)
    if isinstance(value, float) and math.isnan(value):
        return cell.result("unavailable", {}, reason="skipped: asv writes NaN for it")
    if number(value) is None:
        reason = text_of(entry.get("stderr")) or f"failed: asv writes {'null' if value is None else repr(value)} for it"
        return cell.result("failed", {}, reason=reason)
    if kind.startswith(_PEAKS):
        return cell.result("ok", {"memory_peak_mib": scaled(value, 1 / BYTES_PER_MIB)}, units={"result": "bytes"})
    if not kind.startswith(_TIMES):
        content = {"benchmark": name, "value": value, "params": list(params)}
        return refuse(pointer, "no_time", "asv counted something here that is neither time nor peak memory", content)
    raw = entry.get("samples")
    listed = raw[index] if isinstance(raw, list) and index < len(raw) and isinstance(raw[index], list) else raw
    samples = samples_ns(listed, ns_per_unit=NS_PER_S)
    if samples and min(samples) >= _FINE_NS:
        return cell.result("ok", {"samples_ns": samples}, units={"samples": "s"})
    return cell.result("ok", {"latency_p50_ms": scaled(value, MS_PER_S)}, units={"result": "s, the median"})


def _cell(document: Document, pointer: str, name: str, entry: dict[str, Any], index: int) -> CellDraft:
    value = document.value
    params = object_of(value.get("params"))
    needs = {**object_of(value.get("requirements")), "python": value.get("python") or params.get("python")}
    date = number(entry.get("started_at") or value.get("date"))
    stats = {key: entry[key] for key in ("stats_q_25", "stats_q_75", "stats_ci_99_a", "stats_ci_99_b") if key in entry}
    return microbenchmark.cell(
        document.source_path,
        pointer,
        name,
        tool="asv",
        times=(date / 1000 if date is not None else None,),
        host={key: params.get(key) for key in ("machine", "arch", "cpu", "num_cpu", "os", "ram")},
        cpu=text_of(params.get("cpu")),
        software={str(key): str(version) for key, version in needs.items() if version},
        original={
            "commit": value.get("commit_hash"),
            "environment": value.get("env_name"),
            "stated": {key: part[index] for key, part in stats.items() if isinstance(part, list) and index < len(part)},
        },
    )


def _entry(entry: Any, columns: list[Any] | None) -> dict[str, Any] | None:
    """Return one benchmark's columns in every version, with the steps to its values."""
    if isinstance(entry, list) and columns:
        named = dict(zip((str(column) for column in columns), entry, strict=False))
        if "result" not in named:
            return None
        return {**named, "where": [list(named).index("result")]}
    if isinstance(entry, dict):
        return {**entry, "where": ["result"]} if "result" in entry else None
    if entry is None or number(entry) is not None or isinstance(entry, float):
        return {"result": entry, "where": []}
    return None
