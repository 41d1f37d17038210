"""Serving benchmarks of vLLM and SGLang: requests from many clients at once, times in milliseconds per request.

`benchmark_serving.py`, `vllm bench serve` and `sglang.bench_serving` write nearly the same object, one per file or
line; Infinity stands for no limit. A request joins whatever batch the server makes, so no batch size is recorded.
Neither writes the hardware, SGLang often not the model: both come from the file's place, which the record says.
Detailed files list each request's first token and gaps in seconds, which give the statistics that the file leaves out.
A time that was not measured is written as 0: the first token of an answer in one piece, the gaps of one token.
Embeddings and rankings make no token, so they are forward passes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from migrations.normalize.canonical_names import NOT_STATED, UNKNOWN_ENGINE, hardware_named
from migrations.normalize.path_hints import device_in, given_names, hardware_part, model_part, spaced
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.records import Record, RefusedCell, child, refuse
from migrations.normalize.row_access import first_positive, object_of, pick, rows_of, share_of_rows, strays_of, text_of
from migrations.normalize.units import MS_PER_S, count, number, quantity, scaled
from migrations.sources.documents import Document

_UNITS = {"*_ms": "ms per request", "request_throughput": "requests/s", "output_throughput": "tokens/s"}
_WHOLE = {"mean": "mean", "median": "p50", "p50": "p50", "p90": "p90", "p95": "p95", "p99": "p99", "std": "std"}
_OF_LISTS = {"mean": 0, "median": 50, "p90": 90, "p95": 95, "p99": 99}
_BEYOND = 2
"""Fewest requests that must lie above a percentile for it to be stated."""
_TITLE = "Serving Benchmark Result"
_CLOSING = re.compile(r"={10,}")
_MODEL = re.compile(r"\bmodel(?:_id)?=['\"]([^'\"]+)['\"]")
_LINE = re.compile(r"(?P<name>[A-Za-z][\w .()/-]*?)\s*(?:\([^()]*\))?:\s+(?P<value>\S+)")
_STATISTIC = re.compile(r"(?P<which>mean|median|std|p\d\d) (?P<what>ttft|tpot|itl|e2el|e2e latency)")
_NAMES = {
    "backend": "backend", "traffic request rate": "request_rate", "max request concurrency": "max_concurrency",
    "successful requests": "completed", "benchmark duration": "duration", "total input tokens": "total_input_tokens",
    "total generated tokens": "total_output_tokens", "request throughput": "request_throughput",
    "input token throughput": "input_throughput", "output token throughput": "output_throughput",
    "total token throughput": "total_token_throughput", "maximum request concurrency": "max_concurrency",
    "failed requests": "failed", "request rate configured": "request_rate", "accept length": "accept_length",
    "acceptance length": "spec_decode_acceptance_length",
}  # fmt: skip
_LISTS = ("input_lens", "output_lens", "ttfts", "itls", "latencies", "generated_texts", "errors", "start_times")
_OTHER_NAMES = {
    "successful_requests": "completed", "total_input": "total_input_tokens", "total_output": "total_output_tokens",
}  # fmt: skip
_ENGINES = {"engine": "sglang", "runtime": "sglang", "tensorrt-llm": "trtllm", "trt": "trtllm"}
_OF_CLIENT = re.compile(r"-(?:oai|chat|native|embeddings?|pooling|rerank|completions?).*")
"""Ending after the engine in a client's name, as in `sglang-oai-chat` or `vllm-rerank`."""
_NEAR = 0.02
"""Largest relative difference of a request's length from the requested one."""
_RATES = (
    "input_throughput",
    "output_throughput",
    "total_throughput",
    "total_token_throughput",
    "request_goodput",
    "request_goodput:",
)
_SETTINGS = (
    "request_rate", "max_concurrency", "burstiness", "num_prompts", "dataset_name", "random_input_len",
    "random_output_len", "random_range_ratio", "sharegpt_output_len", "best_of", "use_beam_search",
    "tensor_parallel_size", "tp_size", "dp_size", "ep_size",
)  # fmt: skip


def detect(document: Document) -> float:
    """Return high confidence where every row has a request rate reached, beside times to the first token or of whole
    requests.
    """
    if document.kind == "text":
        printed = _printed(document.value) if any(_TITLE in line for line in document.value) else ()
        return 0.95 if any("completed" in row for _, row in printed) else 0.0
    whole = max(
        share_of_rows(document, "request_throughput", name)
        for name in ("mean_ttft_ms", "mean_e2e_latency_ms", "mean_e2el_ms", "median_ttft_ms", "output_throughput")
    )
    return 0.95 * whole


def parse(document: Document) -> Iterator[Record | RefusedCell]:
    """Yield one record per run; a run that was stopped, or of which no request came through, is a failure."""
    for pointer, value in strays_of(document):
        yield refuse(pointer, "unexpected_shape", "an object was expected", value)
    for pointer, written in _printed(document.value) if document.kind == "text" else rows_of(document):
        named = {_OTHER_NAMES.get(name, name): value for name, value in written.items()}
        row = {**_of_requests(named), **named}
        completed = count(row.get("completed"))
        cell = _cell(document.source_path, pointer, row, completed)
        mode = "inference" if _makes_no_token(row) else "generation"
        figures = _figures(row, completed)
        if stopped := text_of(row.get("stopped")):
            yield cell.result("failed", {"mode": mode}, reason=stopped)
        elif completed == 0 or not any(value for key, value in figures.items() if key != "output_tokens"):
            reason = text_of(_first_error(row)) or f"{completed} requests were completed"
            yield cell.result("failed", {"mode": mode}, reason=reason)
        else:
            yield cell.result("ok", {"mode": mode, **figures}, units=_UNITS)


def _printed(lines: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the same rows from the tools' printed output, each at the line of its title.

    What is printed between the end of one run and the title of the next, such as its rate, is of the next.
    """
    starts = [number for number, line in enumerate(lines) if _TITLE in line]
    before = 0
    for start, following in pairwise([*starts, len(lines)]):
        end = next(
            (n + 1 for n in range(start + 1, following) if _CLOSING.fullmatch(lines[n].strip("# \t"))), following
        )
        row: dict[str, Any] = {}
        if models := _MODEL.findall("\n".join(lines[before:start])):
            row["model_id"] = models[-1]
        for line in lines[before:end]:
            found = _LINE.fullmatch(line.strip("# \t"))
            name = found["name"].casefold() if found else ""
            if found and name in _NAMES:
                row[_NAMES[name]] = found["value"]
            elif found and (statistic := _STATISTIC.fullmatch(name)):
                row[f"{statistic['which']}_{statistic['what'].replace(' ', '_')}_ms"] = found["value"]
        before = end
        yield child("", start), row


def _figures(row: Mapping[str, Any], completed: int | None) -> dict[str, Any]:
    first, each = (
        first_positive(row, "median_ttft_ms", "mean_ttft_ms"),
        first_positive(row, "median_tpot_ms", "mean_tpot_ms"),
    )
    made, rate = _length(row, "output", completed), quantity(row.get("output_throughput")) or None
    if made == 1 and each is None and first_positive(row, "mean_itl_ms"):
        made = rate = None  # more than one piece came, so nobody counted the tokens
    elif made != 1 and each is None and "median_tpot_ms" in row:
        first = None  # the whole answer came at once
    figures: dict[str, Any] = {
        "throughput_items_per_s": quantity(row.get("request_throughput")),
        "throughput_tokens_per_s": rate,
        "iterations": completed,
        "time_to_first_token_ms": first,
        "time_per_output_token_ms": each,
        "sequence_length": _length(row, "input", completed),
        "output_tokens": made,
    }
    for statistic, field_name in _WHOLE.items():
        time = first_positive(row, f"{statistic}_e2el_ms", f"{statistic}_e2e_latency_ms", f"{statistic}_latency_ms")
        if time is not None:
            figures[f"latency_{field_name}_ms"] = time
    return figures


def _length(row: Mapping[str, Any], side: str, completed: int | None) -> int | None:
    """Return the tokens of a request: those asked for where the requests had them, else their mean.

    SGLang writes the lengths of its random data set also with other data sets, and draws lengths up to them.
    """
    asked = count(pick(row, f"random_{side}_len", f"random_{side}"), at_least=1)
    total = count(row.get(f"total_{side}_tokens"), at_least=1)
    if not total or not completed:
        return asked
    mean = total / completed
    return asked if asked and abs(mean / asked - 1) <= _NEAR else max(1, round(mean))


def _makes_no_token(row: Mapping[str, Any]) -> bool:
    """Return whether the requests were of a model that makes none: embeddings, rankings, scores."""
    if first_positive(row, "output_throughput", "total_output_tokens", "median_ttft_ms", "mean_ttft_ms"):
        return False
    written = "total_output_tokens" in row or "output_throughput" in row
    return quantity(row.get("total_output_tokens")) == 0 if written else "total_token_throughput" in row


def _of_requests(row: Mapping[str, Any]) -> dict[str, float]:
    """Return statistics of a detailed file's requests, under the names that the tools give them.

    Only for metrics that the file does not state, because two ways of computing a figure contradict each other.
    """
    found: dict[str, list[float]] = {"ttft": [], "tpot": [], "e2el": _whole_ms(row)}
    firsts, gaps, lengths = row.get("ttfts"), row.get("itls"), row.get("output_lens")
    if not isinstance(firsts, list) or not isinstance(gaps, list) or len(firsts) != len(gaps):
        firsts, gaps = [], []
    if not isinstance(lengths, list) or len(lengths) != len(gaps):
        lengths = [None] * len(gaps)
    whole = []
    for first_s, of_request, length in zip(firsts, gaps, lengths, strict=True):
        first = scaled(first_s, MS_PER_S)
        after = [scaled(gap, MS_PER_S) for gap in of_request] if isinstance(of_request, list) else [None]
        if not first or any(gap is None for gap in after):
            continue  # a request that failed has a first token after 0 s
        rest = sum(gap for gap in after if gap is not None)
        found["ttft"].append(first)
        whole.append(first + rest)
        if after:  # a piece of the stream may carry several tokens
            found["tpot"].append(rest / ((count(length, at_least=2) or len(after) + 1) - 1))
    found["e2el"] = found["e2el"] or whole
    statistics: dict[str, float] = {}
    for metric, times in found.items():
        if times and not any(_states(key, metric) for key in row):
            statistics |= _statistics_of(metric, times)
    return statistics


def _statistics_of(metric: str, times_ms: Sequence[float]) -> dict[str, float]:
    """Return mean and percentiles of a metric; percentiles with too few requests beyond them are left out."""
    statistics = {}
    for name, percentile in _OF_LISTS.items():
        if name in ("mean", "median") or len(times_ms) * (100 - percentile) >= 100 * _BEYOND:
            value = np.mean(times_ms) if name == "mean" else np.percentile(times_ms, percentile)
            statistics[f"{name}_{metric}_ms"] = float(value)
    return statistics


def _states(key: str, metric: str) -> bool:
    """Return whether a key is of a statistic of the metric; probes are small requests beside the load."""
    ends = (f"_{metric}_ms", f"_{metric.replace('l', '')}_latency_ms")
    return key.endswith(ends) and not key.startswith("probe_")


def _whole_ms(row: Mapping[str, Any]) -> list[float]:
    """Return the times of whole requests, which newer files of vLLM hold; one that failed has none or 0 s."""
    times = row.get("latencies")
    found = [scaled(time, MS_PER_S) for time in times] if isinstance(times, list) else []
    return [time for time in found if time]


def _cell(source_path: str, pointer: str, row: Mapping[str, Any], completed: int | None) -> CellDraft:
    server = object_of(row.get("server_info"))
    model = text_of(pick(row, "model_id", "model", "model_path", "tokenizer_id") or server.get("model_path"))
    stated_device = text_of(pick(row, "gpu_type", "gpu", "gpu_name", "device", "accelerator", "hardware"))
    place = None if stated_device else hardware_part(source_path)
    device = stated_device or (spaced(place) if place else None)
    hardware = hardware_named(device)
    name = device_in(place) if place else device
    backend = text_of(pick(row, "backend", "endpoint_type", "framework"))
    engine = _engine(backend)
    given = None if engine else given_names().engine
    runtime = engine or given or UNKNOWN_ENGINE
    version = text_of(pick(row, "vllm_version", "sglang_version", "version") or server.get("version"))
    hints = {"model": None if model else model_part(source_path), "hardware": place, "engine": given}
    stated = {key: value for key, value in row.items() if key not in _LISTS and _is_figure(key, value)}
    return CellDraft(
        source_path,
        pointer,
        NamesInFile(
            (model or hints["model"],),
            device or NOT_STATED,
            precision=pick(row, "dtype", "quantization"),
            runtime=runtime,
        ),
        times=(_date(row.get("date")), row.get("timestamp")),
        machine=Machine(
            device_names={hardware: name} if hardware and name else {},
            software={runtime: version} if version else {},
            settings={key: str(row[key]) for key in _SETTINGS if row.get(key) is not None},
        ),
        original={
            "hardware": stated_device or place or NOT_STATED,
            "backend": backend,
            "concurrency": count(pick(row, "max_concurrency"), at_least=1),
            "request_rate": str(row["request_rate"]) if row.get("request_rate") is not None else None,
            "said_by_path": {key: value for key, value in hints.items() if value},
            "stated": stated,
            "duration_ms": scaled(row.get("duration"), MS_PER_S),
            "failed_requests": _failed(row, completed),
            "configuration": _special(row),
        },
    )


def _engine(client: str | None) -> str | None:
    """Return the engine that a client was made for; one of a common protocol tells none."""
    name = _OF_CLIENT.sub("", client or "")
    return _ENGINES.get(name, name) if name and name not in ("openai", "infinity", "unknown") else None


def _special(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what makes the load none of a plain engine at a steady pace."""
    accepted = quantity(pick(row, "spec_decode_acceptance_length", "accept_length"))
    if accepted is not None and accepted > 1:
        return {"mode": "speculative decoding", "tokens_accepted": accepted}
    if ramp := text_of(row.get("ramp_up_strategy")):
        return {"mode": f"{ramp} ramp-up"}
    return None


def _is_figure(key: str, value: Any) -> bool:
    """Return whether it is a statistic of first tokens, tokens or gaps, or a token count, without an event field."""
    return number(value) is not None and (key.endswith("_ms") or key.startswith("total_") or key in _RATES)


def _failed(row: Mapping[str, Any], completed: int | None) -> int | None:
    requested, failed, errors = count(row.get("num_prompts")), count(row.get("failed")), row.get("errors")
    if failed is not None:
        return failed
    if requested and completed is not None:
        return requested - completed
    return sum(map(bool, errors)) if isinstance(errors, list) and errors else None


def _first_error(row: Mapping[str, Any]) -> Any:
    errors = row.get("errors")
    return next((error for error in errors if error), None) if isinstance(errors, list) else row.get("error")


def _date(value: Any) -> Any:
    """Return the time of `20250131-235959` as vLLM writes it."""
    return value.replace("-", "_") if isinstance(value, str) and len(value) == 15 else value
