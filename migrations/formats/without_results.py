"""Documents that never hold results, recognized so that they are not quarantined: configurations, logs, descriptions.

Each function is a format of its name. It returns its confidence, as `detect` of a module does. Add a format here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from migrations.formats import Format
from migrations.normalize.canonical_names import hardware_of_key
from migrations.normalize.flat_rows import is_result_row
from migrations.normalize.records import Part, members_of
from migrations.normalize.row_access import object_of, share_of_rows
from migrations.sources.documents import Document
from migrations.tools.optimum import is_config

FORMATS: list[Format] = []


def _parse_nothing(_document: Document) -> Iterator[Part]:
    return iter(())


def _without_results(what: str) -> Callable[[Callable[[Document], float]], Callable[[Document], float]]:
    """Make a format of a function that detects such documents; `what` tells what they are."""

    def register(detect: Callable[[Document], float]) -> Callable[[Document], float]:
        FORMATS.append(Format(detect.__name__, detect, _parse_nothing, what))
        return detect

    return register


@_without_results("an empty list or object")
def empty_document(document: Document) -> float:
    """Return high confidence where somebody collected results, and there were none."""
    return 0.9 if document.kind == "json" and document.value in ([], {}) else 0.0


@_without_results("the configuration of a benchmark, read together with the report beside it")
def optimum_config(document: Document) -> float:
    """Return high confidence where a backend is configured for optimum-benchmark and nothing is reported."""
    value = document.value
    return 0.9 if isinstance(value, dict) and is_config(value) and "report" not in value else 0.0


_PLAN = {"batch_sizes", "hardware_types", "models", "model_families", "models_set", "warmup_iterations", "timeout"}
_OUTCOMES_OF_SUITES = {
    "results", "benchmarks", "batch_results", "performance_benchmarks", "functionality_verification",
}  # fmt: skip


@_without_results("a benchmark configuration")
def suite_config(document: Document) -> float:
    """Return high confidence where an old suite lists batch sizes and hardware beside models, and holds no outcome."""
    value = document.value
    if not isinstance(value, dict) or value.keys() & _OUTCOMES_OF_SUITES:
        return 0.0
    if isinstance(value.get("batch_sizes"), list) and len(value.keys() & _PLAN) >= 3:
        return 0.9
    # The models of a suite alone: `{"bert": {"name": …, "family": …, "modality": …}, …}`.
    described = [isinstance(entry, dict) and {"name", "family"} <= entry.keys() for entry in value.values()]
    return 0.8 if described and all(described) else 0.0


@_without_results("the progress log of a series of benchmarks")
def benchmark_progress(document: Document) -> float:
    """Return high confidence where completed and failed benchmarks are lists; what they measured lies elsewhere."""
    value = object_of(document.value)
    lists = [isinstance(value.get(key), list) for key in ("completed_benchmarks", "failed_benchmarks")]
    return 0.9 if all(lists) else 0.0


_TIMES = {"start_time", "end_time", "duration_s", "duration", "started_at", "finished_at", "command", "run_id", "argv"}


@_without_results("when a run began and ended")
def run_info(document: Document) -> float:
    """Return high confidence where a beginning and an end are all there is."""
    keys = set(object_of(document.value))
    return 0.9 if len(keys) >= 2 and keys <= _TIMES and keys & {"start_time", "started_at"} else 0.0


_KEYS_OF_SETUPS = (
    {"ready", "was_cancelled", "partial"},
    {"cfg", "benchmark_id", "artifact_dir"},
    {"aggregation_type", "num_profile_runs", "per_combination_metrics"},
    {"telemetry_data", "gpu_uuid", "timestamp_ns"},
    {"aiperf_version", "metrics", "summary"},
    {"endpoint_url", "timestamp_ns", "metrics"},
    {"api", "parallel", "model", "tokenizer_path"},
    {"Percentiles", "Latency (s)"},
    {"benchmark_version", "api_backend", "api_model_name"},
)
_MEMBERS_OF_SETUPS = {
    "data": {"session_id", "payloads"},
    "phases": {"phase_name", "metrics_json"},
    "timeslices": {"timeslice_index"},
}


@_without_results(
    "what a load generator writes beside its results: inputs, settings, watched metrics, percentiles, means over runs"
)
def load_test_setup(document: Document) -> float:
    """Return high confidence by the keys of a file that AIPerf, EvalScope or genai-bench writes beside its results.

    The readers of the results take from these files what the results leave out.
    """
    if document.kind == "csv":
        return 0.96 if {"metric", "cv", "ci_low", "t_critical"} <= set(document.columns) else 0.0
    rows = document.value if isinstance(document.value, list) else [document.value]
    first = object_of(rows[0]) if rows else {}
    if any(keys <= first.keys() for keys in _KEYS_OF_SETUPS):
        return 0.96
    if "aiperf_version" in first and "aggregation_type" in object_of(first.get("metadata")):
        return 0.96
    for name, keys in _MEMBERS_OF_SETUPS.items():
        members = first.get(name)
        if isinstance(members, list) and members and keys <= object_of(members[0]).keys():
            return 0.96
    return 0.0


_BENCHMARK = {"code", "name", "type", "unit", "param_names", "params", "timeout"}
_MACHINE = {"arch", "cpu", "machine", "os", "ram"}


@_without_results("asv's list of benchmarks or description of a machine")
def asv_setup(document: Document) -> float:
    """Return high confidence where asv defines benchmarks, or describes one machine and nothing is measured."""
    value = object_of(document.value)
    entries = [entry for key, entry in value.items() if key != "version"]
    if entries and all(isinstance(entry, dict) and len(entry.keys() & _BENCHMARK) >= 4 for entry in entries):
        return 0.9
    if entries and all(isinstance(entry, dict) and entry.keys() >= _MACHINE for entry in entries):
        return 0.85
    return 0.85 if value.keys() >= _MACHINE and "results" not in value else 0.0


_FACTS = {
    "hostname", "kernel", "os", "cpu", "gpu", "gpu_details", "rocm_version", "hip_version", "cuda_version",
    "driver_version", "vulkan_version", "amdgpu_driver", "inxi", "platform", "processor", "memory", "ram",
    "python_version", "distro", "system_name", "host_processor_model_name", "host_processors_per_node",
    "accelerator_model_name", "host_memory_capacity", "accelerators_per_node", "operating_system", "framework",
    "number_of_nodes", "architecture", "machine", "cpu_count", "gpu_count", "gpu_info", "cpu_info", "lscpu",
    "nvidia_smi",
}  # fmt: skip
_BEYOND_DOUBT = 8
"""MLPerf's system descriptions have a `status` too: whether the machine can be bought."""
_OUTCOMES = (
    "result", "latenc", "throughput", "benchmark", "test", "error", "status", "report", "metric", "stats", "time_",
)  # fmt: skip


@_without_results("a description of a machine")
def host_description(document: Document) -> float:
    """Return high confidence where at least four keys are facts about a machine and none speaks of an outcome."""
    keys = {str(key).casefold() for key in object_of(document.value)}
    known = len(keys & _FACTS)
    if any(key.startswith(_OUTCOMES) and key not in _FACTS for key in keys) and known < _BEYOND_DOUBT:
        return 0.0
    return 0.75 if known >= 4 else 0.0


_NAMES = {"name", "device", "gpu", "gpu_name", "model", "id", "card"}
_CHIP = {
    "tdp_watts", "thermal_design_power_w", "memory_bandwidth_gb_s", "mem_bw", "mem_type", "memory_type", "num_sm",
    "streaming_multiprocessors", "tensor_cores", "shading_units", "base_clock_mhz", "boost_clock_mhz", "tflops32",
    "tflops16", "gflops32/w", "gflops16/w", "half_float_performance_gflop_s", "single_float_performance_gflop_s",
    "half", "single", "double", "bandwidth", "cuda_cores", "die_size_mm2", "launch_price", "memory", "tdp",
}  # fmt: skip
_INSTANCES = {"provider", "id", "gpu"}


@_without_results("a hardware spec sheet")
def hardware_specs(document: Document) -> float:
    """Return high confidence where a table names devices and three facts of a data sheet, or rented machines' GPUs."""
    columns = {column.casefold() for column in document.columns}
    if columns & _NAMES and len(columns & _CHIP) >= 3:
        return 0.9
    return 0.8 if columns >= _INSTANCES and len(columns) <= 6 else 0.0


_FEATURES_OF_BROWSERS = {"webnn", "webgpu", "webgl", "wasm"}


@_without_results("a browser's capabilities")
def browser_capabilities(document: Document) -> float:
    """Return high confidence where a browser, or two of its features, say what is supported."""
    value = object_of(document.value)
    if {"metrics", "results", "benchmarks"} & value.keys():
        return 0.0
    features = [key for key in value.keys() & _FEATURES_OF_BROWSERS if "supported" in object_of(value[key])]
    return 0.9 if len(features) >= 2 or (features and "browser" in value) else 0.0


_READING = re.compile(
    r"(?:utilization\.\w+|memory\.(?:used|free|total)|power\.(?:draw|limit)\S*|temperature\.\w+|clocks\.\S+|fan\.speed|"
    r"pcie\.\S+)(?: \[[^]]+\])?|GPU use \(%\)|(?:GFX|Average Graphics Package) (?:Activity|Power) \([%W]\)|"
    r"Temperature \(Sensor .*\) \(C\)|GPU Memory Allocated \(VRAM%\)|VRAM Total .*Memory \(B\)",
    re.IGNORECASE,
)
_RUN = re.compile(r"latenc|throughput|tokens|model|batch|per_sec|fps", re.IGNORECASE)
_DMON = re.compile(r"# gpu\s+(?:pwr|sm|mem)\b", re.IGNORECASE)


@_without_results("a log of a device's load, memory and power")
def device_log(document: Document) -> float:
    """Return high confidence where two columns are readings of a device, as nvidia-smi prints them, none of a run."""
    if document.kind == "text":
        return 0.85 if any(_DMON.match(line) for line in document.value[:5]) else 0.0
    readings = sum(_READING.fullmatch(column) is not None for column in document.columns)
    return 0.85 if readings >= 2 and not any(_RUN.search(column) for column in document.columns) else 0.0


@_without_results("metrics of an idle Triton server, of no model")
def model_analyzer_server(document: Document) -> float:
    """Return high confidence where GPU metrics stand beside a server's name and neither batch nor load are there."""
    columns = set(document.columns)
    metrics = any(column.startswith("GPU ") and column.endswith(")") for column in columns)
    loads = {"Batch", "Batch Size", "Concurrency", "Request Rate"}
    return 0.95 if metrics and columns & {"Model", "GPU UUID"} and not columns & loads else 0.0


_LAYERS = {"layerName", "execStatus", "layerType"}
_COUNTERS = {"avg_performance", "detailed_performance"}
_TENSORRT = {"name", "timeMs", "averageMs", "percentage"}
_SPAN = {"ph", "ts", "pid", "name"}


@_without_results("a trace of a profiler, of single operators")
def trace_profile(document: Document) -> float:
    """Return high confidence for traces and counters of ONNX Runtime, PyTorch, OpenVINO and TensorRT."""
    if {column.strip() for column in document.columns} >= _LAYERS:
        return 0.9
    if isinstance(document.value, list) and document.value[1:]:
        layers = [row for row in document.value[1:200] if isinstance(row, dict) and row.keys() >= _TENSORRT]
        if len(layers) == len(document.value[1:200]):
            return 0.9
    if object_of(document.value).keys() & _COUNTERS:
        return 0.85
    events = object_of(document.value).get("traceEvents", document.value)
    if not isinstance(events, list) or not events:
        return 0.0
    spans = [event for event in events[:200] if isinstance(event, dict) and len(event.keys() & _SPAN) >= 3]
    return 0.9 if len(spans) >= 0.9 * len(events[:200]) else 0.0


_ABOUT = {"pretrain", "pretrained", "dataset", "params", "param_count", "img_size", "crop_pct", "interpolation"}
_ACCURACY = {"top1", "top5", "top1_err", "top5_err", "top1_diff", "top5_diff", "rank_diff"}


@_without_results("a table about models, without times of any run")
def model_list(document: Document) -> float:
    """Return high confidence where a model's row holds nothing beyond what it is and how often it is right."""
    columns = set(document.columns)
    known = _ABOUT | _ACCURACY | {"model"}
    return 0.85 if "model" in columns and len(columns) > 1 and columns <= known else 0.0


@_without_results("a model's answers to the samples of an accuracy run")
def mlperf_accuracy_log(document: Document) -> float:
    """Return high confidence where rows are answers by sample, for MLPerf's accuracy script."""
    return 0.9 if share_of_rows(document, "seq_id", "qsl_idx", "data") == 1.0 else 0.0


_BESIDE = {"versions", "n-shot", "configs", "config", "higher_is_better", "n-samples"}
_SCORES = ("acc", "exact_match", "f1", "bleu", "rouge", "perplexity", "word_perplexity", "mc1", "mc2", "pass@1", "em")


@_without_results("a model's scores on tasks, without any time")
def accuracy_results(document: Document) -> float:
    """Return high confidence where the LM Evaluation Harness wrote scores beside versions or numbers of shots."""
    value = object_of(document.value)
    tasks = object_of(value.get("results"))
    if not tasks or len(value.keys() & _BESIDE) < 2:
        return 0.0
    scored = [str(key).partition(",")[0] for entry in tasks.values() for key in object_of(entry)]
    return 0.9 if any(key in _SCORES for key in scored) else 0.0


_TABLES = (
    {"model_id", "model_name", "model_family"},
    {"hardware_id", "hardware_type"},
    {"hardware_type", "device_name", "compute_units"},
    {"run_id", "test_name", "test_type"},
    {"test_result_id", "test_name", "status"},
    {"assertion_id", "assertion_name", "passed"},
    {"feature_id", "compute_shader_support"},
)
_FIGURES_OF_TABLES = ("latency", "throughput", "inference", "is_compatible", "per_second", "load_time")


@_without_results("a table of the old database that describes models, hardware, runs or tests")
def old_table(document: Document) -> float:
    """Return high confidence where the columns hold those of one table of the old database, and none is a figure."""
    columns: Iterable[str] = document.columns
    if not columns and isinstance(document.value, list):
        rows = document.value
        if not rows or not all(isinstance(row, dict) and row.keys() == rows[0].keys() for row in rows):
            return 0.0
        columns = tuple(rows[0])
    has_figure = any(word in str(column) for column in columns for word in _FIGURES_OF_TABLES)
    if document.kind == "tables" or is_result_row(columns) or has_figure:
        return 0.0
    return 0.7 if any(table <= set(columns) for table in _TABLES) else 0.0


_PERCENTAGE = re.compile(r"\d+(\.\d+)?\s*%")
_MAX_DEPTH = 4
"""Levels of nesting that are searched for figures."""
_FIGURE = re.compile(r"latency|throughput|per_second|inference_time|elapsed|duration")
_RATES = {"coverage_percentage", "pass_rate", "success_rate", "overall_pass_rate", "overall_coverage"}
_COUNTS = {"total_models", "total_tests", "models_tested", "total"}


@_without_results("a coverage report: claims about code and pass rates, derived, with no measurement")
def coverage_report(document: Document) -> float:
    """Return high confidence where coverage by platform, or pass rates, stand beside counts of models or tests."""
    value = document.value
    if not isinstance(value, dict):
        return 0.0
    if "platform_coverage" in value or "hardware_coverage" in value:
        return 0.9
    keys = value.keys() | object_of(value.get("summary")).keys()
    if {"tests", "stats", "results"} & value.keys():
        return 0.0
    return 0.7 if keys & _RATES and keys & _COUNTS else 0.6 if _only_percentages(value) else 0.0


def _only_percentages(value: Any) -> bool:
    """Return whether rates are written as `"100.0%"`, without any time or speed beside them."""
    leaves = list(_leaves(value, _MAX_DEPTH))
    rates = [text for _, text in leaves if isinstance(text, str) and _PERCENTAGE.fullmatch(text.strip())]
    return len(rates) >= 2 and not any(_FIGURE.search(str(key)) for key, _ in leaves)


def _leaves(value: Any, depth: int) -> Iterator[tuple[Any, Any]]:
    for key, member in members_of(value):
        if isinstance(member, dict | list) and depth:
            yield from _leaves(member, depth - 1)
        else:
            yield key, member


_QUEUES = {
    "backoff_test", "queue_test", "backoff_recovery", "basic_queue", "queue_sizes", "circuit_breaker", "queue_tests",
    "backoff_tests", "multiplexing_test", "round_robin_test",
}  # fmt: skip
_MODELS = {"known_models", "api_models", "missing_models", "undocumented_models"}
_FEATURES = {"temperature_results", "system_prompt_results", "streaming_results", "model_comparison"}
_ERROR = {"status", "error", "traceback", "timestamp"}
_CALL_RATES = {"tokens_per_second", "tokens_per_sec", "avg_tokens_per_second", "average_tokens_per_second"}
_CALL = {"response", "tokens", "usage", "model", "success", "avg_time", "time", "completion_tokens", "total_tokens"}
_HARDWARE = {"hardware", "device", "platform", "backend", "gpu", "device_name", "framework"}
_OUTCOME_WORDS = ("success", "fail", "error", "valid", "pass", "skip", "not ")


@_without_results("tests of a remote service, on hardware that nobody names")
def api_tests(document: Document) -> float:
    """Return high confidence for tests of remote services: queues, back-off, keys, model lists.

    It is lower for an error alone, and for outcomes in words that concern no hardware. Times and rates are those of
    somebody else's service behind a network.
    """
    value = document.value
    if not isinstance(value, dict) or not value or any(hardware_of_key(key) for key in value):
        return 0.0
    keys = value.keys()
    queues = (keys | object_of(value.get("results")).keys()) & _QUEUES
    counted = isinstance(value.get("tests"), dict) and {"success_count", "total_tests"} <= keys
    if queues or len(keys & _MODELS) >= 2 or len(keys & _FEATURES) >= 2 or counted:
        return 0.8
    if {"status", "error", "traceback"} <= keys <= _ERROR:
        return 0.6
    return 0.6 if _states_call_rates(value) or _only_outcomes(value) else 0.0


def _states_call_rates(value: Any, depth: int = 4) -> bool:
    """Return whether calls of a service state tokens per second, or a time with tokens, by model without hardware."""
    objects = list(_objects(value, depth))
    calls = any(entry.keys() & _CALL_RATES and entry.keys() & _CALL for entry in objects)
    return calls and not any(entry.keys() & _HARDWARE for entry in objects)


def _objects(value: Any, depth: int) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    if depth:
        for _, member in members_of(value):
            yield from _objects(member, depth - 1)


def _only_outcomes(value: dict[str, Any]) -> bool:
    """Return whether the values are texts by test name, nearly all outcomes of tests, without a number."""
    texts = [text for text in value.values() if isinstance(text, str)]
    plain = all(isinstance(member, str | bool | list) for member in value.values())
    outcomes = sum(text.casefold().startswith(_OUTCOME_WORDS) for text in texts)
    return plain and len(texts) >= 3 and outcomes >= 0.8 * len(texts)
