"""Configurations of the old benchmark suites: what was to be run, and no figure of any run."""

from __future__ import annotations

from migrations.sources.documents import Document

NOT_RESULTS = "a benchmark configuration"

_PLAN = {"batch_sizes", "hardware_types", "models", "model_families", "models_set", "warmup_iterations", "timeout"}
_OUTCOMES = {"results", "benchmarks", "batch_results", "performance_benchmarks", "functionality_verification"}


def detect(document: Document) -> float:
    """Return high confidence where batch sizes and hardware types are listed beside models, and nothing holds an
    outcome.
    """
    value = document.value
    if not isinstance(value, dict) or value.keys() & _OUTCOMES:
        return 0.0
    if isinstance(value.get("batch_sizes"), list) and len(value.keys() & _PLAN) >= 3:
        return 0.9
    return 0.8 if _is_model_list(value) else 0.0


def _is_model_list(value: dict[str, object]) -> bool:
    """Return whether it is `{"bert": {"name": …, "family": …, "modality": …}, …}` alone: the models of a suite."""
    described = {"name", "family"}
    return bool(value) and all(isinstance(entry, dict) and described <= entry.keys() for entry in value.values())
