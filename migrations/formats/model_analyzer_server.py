"""Triton Model Analyzer's metrics of the bare server: memory and power of GPUs on which no model runs."""

from __future__ import annotations

from migrations.sources.documents import Document

NOT_RESULTS = "metrics of an idle Triton server, of no model"


def detect(document: Document) -> float:
    """Return high confidence where GPU metrics stand beside a server's name and neither batch nor load are there."""
    columns = set(document.columns)
    metrics = any(column.startswith("GPU ") and column.endswith(")") for column in columns)
    loads = {"Batch", "Batch Size", "Concurrency", "Request Rate"}
    return 0.95 if metrics and columns & {"Model", "GPU UUID"} and not columns & loads else 0.0
