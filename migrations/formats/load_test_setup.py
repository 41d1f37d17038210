"""Files of load generators beside the results of a run: inputs, settings, monitored figures, means over runs.

AIPerf, EvalScope and genai-bench write them. The readers of the results take from them what the results leave out.
"""

from __future__ import annotations

from migrations.normalize.row_access import object_of
from migrations.sources.documents import Document

NOT_RESULTS = (
    "what a load generator writes beside its results: inputs, settings, watched metrics, percentiles, means over runs"
)

_KEYS = (
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
_MEMBERS = {
    "data": {"session_id", "payloads"},
    "phases": {"phase_name", "metrics_json"},
    "timeslices": {"timeslice_index"},
}


def detect(document: Document) -> float:
    """Return high confidence by the keys of one of these files, or of the members of its list."""
    if document.kind == "csv":
        return 0.96 if {"metric", "cv", "ci_low", "t_critical"} <= set(document.columns) else 0.0
    rows = document.value if isinstance(document.value, list) else [document.value]
    first = object_of(rows[0]) if rows else {}
    if any(keys <= first.keys() for keys in _KEYS):
        return 0.96
    if "aiperf_version" in first and "aggregation_type" in object_of(first.get("metadata")):
        return 0.96
    for name, keys in _MEMBERS.items():
        members = first.get(name)
        if isinstance(members, list) and members and keys <= object_of(members[0]).keys():
            return 0.96
    return 0.0
