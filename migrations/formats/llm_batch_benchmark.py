"""Benchmarks of one batch through an LLM engine: `vllm bench latency` and `throughput`, SGLang's `bench_one_batch`.

vLLM's latency file is seconds per run of one batch (`avg_latency`, `latencies`, `percentiles`), its throughput file
one number of requests over time. SGLang writes a line per batch with its prefill and the median of its decoding steps.
Through a server, the line has the first token of the batch's last request. The time per token follows from it and the
time of the whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from migrations.normalize.canonical_names import NOT_STATED, hardware_named
from migrations.normalize.path_hints import device_in, hardware_part, model_part, spaced
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import Record, RefusedCell, refuse
from migrations.normalize.row_access import object_of, pick, rows_of, strays_of, text_of
from migrations.normalize.units import MS_PER_S, NS_PER_S, count, quantity, samples_ns, scaled
from migrations.sources.documents import Document

_LATENCY = {"avg_latency", "percentiles"}
"""Keys of vLLM's latencies; many scripts write `avg_latency` beside `latencies`."""
_THROUGHPUT = {"elapsed_time", "num_requests", "requests_per_second"}
_ONE_BATCH = ({"prefill_latency", "batch_size"}, {"input_len", "output_len", "batch_size", "latency"})
_UNNAMED = "default"
"""SGLang's name of a run that nobody named."""
_UNITS = {"latency": "s", "latencies": "s", "elapsed_time": "s", "throughput": "tokens/s"}


def detect(document: Document) -> float:
    """Return high confidence where every row is of one of the kinds."""
    if document.kind not in ("json", "json_lines"):
        return 0.0
    rows = [row for _, (_, row) in zip(range(1000), rows_of(document), strict=False)]
    return 0.9 if rows and sum(_is_known(row) for row in rows) >= 0.5 * len(rows) else 0.0


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per row."""
    for pointer, value in strays_of(document):
        yield refuse(pointer, "unexpected_shape", "an object was expected", value)
    for pointer, row in rows_of(document):
        if not _is_known(row) and "error" not in row:
            yield refuse(pointer, "unexpected_shape", "a row of none of these benchmarks", row)
            continue
        figures = (
            _latency(row) if row.keys() >= _LATENCY else _throughput(row) if row.keys() >= _THROUGHPUT else _batch(row)
        )
        size = {
            "mode": "generation",
            "batch_size": count(row.get("batch_size"), at_least=1),
            "sequence_length": count(pick(row, "input_len", "prompt_len"), at_least=1),
            "output_tokens": count(pick(row, "output_len"), at_least=1),
        }
        cell = _cell(document.source_path, pointer, row)
        if not any(figures.values()):
            yield cell.result("failed", size, reason=text_of(row.get("error")) or "the row holds no figure")
        else:
            yield cell.result("ok", {**size, **figures}, units=_UNITS)


def _latency(row: Mapping[str, Any]) -> dict[str, Any]:
    samples = samples_ns(row.get("latencies"), ns_per_unit=NS_PER_S)
    if samples:
        return {"samples_ns": samples}
    percentiles = object_of(row.get("percentiles"))
    named = {f"latency_p{which}_ms": scaled(percentiles.get(str(which)), MS_PER_S) for which in (50, 90, 95, 99)}
    return {"latency_mean_ms": scaled(row.get("avg_latency"), MS_PER_S), **named}


def _throughput(row: Mapping[str, Any]) -> dict[str, Any]:
    return {"throughput_items_per_s": quantity(row.get("requests_per_second"))}


def _batch(row: Mapping[str, Any]) -> dict[str, Any]:
    prefill = scaled(pick(row, "prefill_latency"), MS_PER_S)
    step = scaled(pick(row, "median_decode_latency"), MS_PER_S)
    whole = scaled(pick(row, "total_latency", "latency"), MS_PER_S)
    first = scaled(pick(row, "ttft", "last_ttft"), MS_PER_S)
    tokens = count(row.get("output_len"), at_least=2)
    if step is None and whole and first and tokens and whole > first and not row.get("num_early_stopped"):
        step = (whole - first) / (tokens - 1)
    return {
        "latency_mean_ms": whole,
        "prefill_ms": prefill,
        "time_to_first_token_ms": first if first is not None else prefill,
        "time_per_output_token_ms": step,
    }


def _cell(source_path: str, pointer: str, row: Mapping[str, Any]) -> CellDraft:
    model = text_of(pick(row, "model", "model_id", "model_path"))
    stated = text_of(pick(row, "device", "gpu_type", "gpu", "gpu_name"))
    place = None if stated else hardware_part(source_path)
    device = stated or (spaced(place) if place else None)
    hardware = hardware_named(device)
    name = device_in(place) if place else device
    run = text_of(row.get("run_name"))
    named = None if run == _UNNAMED else run
    hints = {"model": None if model else model_part(source_path) or named, "hardware": place}
    runtime = "sglang" if any(kind <= row.keys() for kind in _ONE_BATCH) else "vllm"
    numbers = {key: value for key, value in row.items() if "throughput" in key or key.endswith("_per_second")}
    return CellDraft(
        source_path,
        pointer,
        NamesInFile((model or hints["model"],), device or NOT_STATED, precision=pick(row, "dtype"), runtime=runtime),
        machine=Machine(
            device_names={hardware: name} if hardware and name else {},
            settings={"tensor_parallel_size": pick(row, "tensor_parallel_size", "tp_size")},
        ),
        original={
            "hardware": stated or place or NOT_STATED,
            "run": run,
            "said_by_path": {key: value for key, value in hints.items() if value},
            "stated": {key: value for key, value in numbers.items() if quantity(value) is not None},
            "total_tokens": row.get("total_num_tokens"),
        },
    )


def _is_known(row: Mapping[str, Any]) -> bool:
    return any(kind <= row.keys() for kind in (_LATENCY, _THROUGHPUT, *_ONE_BATCH)) and "request_throughput" not in row
