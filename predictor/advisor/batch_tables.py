"""Tables of many predictions: models by hardware, or a model over batch sizes."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from typing import Any

from accel_platform.errors import InvalidInput
from accel_platform.table_io.values import guard_row
from accel_platform.workloads.model_catalog import find_model
from predictor.data.evidence import Evidence
from predictor.schemas.requests import MAX_CELLS, PredictQuery, validate_query
from predictor.schemas.responses import BatchAnswer, Interval, Unanswered

COLUMNS = (
    "model", "asked", "hardware", "device", "device_id", "batch_size", "sequence_length", "precision", "provenance",
    "latency_ms", "latency_low_ms", "latency_high_ms", "level", "items_per_s", "items_per_s_low", "items_per_s_high",
    "memory_peak_mib", "usd_per_million_items", "j_per_item", "energy", "bound", "why", "warnings", "problem",
)  # fmt: skip
_SEPARATOR = " | "
"""Text between the reasons, or the warnings, of a row of CSV."""


def measured_models(evidence: Evidence) -> list[str]:
    """Return every model with a usable measurement."""
    return sorted(evidence.by_model)


def known_hardware(evidence: Evidence) -> list[str]:
    """Return every hardware name that a host has or results are of."""
    here = {target.hardware for target in evidence.available}
    return sorted(here | {target.hardware for target in evidence.by_target})


def batch_queries(
    models: Sequence[Any],
    hardware: Sequence[Any],
    batch_sizes: Sequence[int],
    precisions: Sequence[str | None] = (None,),
    *,
    field_name: Callable[[str], str] = str,
    **shared: Any,
) -> list[PredictQuery]:
    """Return a query for every model on every hardware at every batch size in every precision.

    All have the `shared` fields, but models with inputs of one size get no sequence length. Raises InvalidInput for
    more than MAX_CELLS cells, and for a field that cannot be, under its `field_name`.
    """
    cells = len(models) * len(hardware) * len(batch_sizes) * len(precisions)
    if cells > MAX_CELLS:
        raise InvalidInput(f"{cells:,} cells are more than the {MAX_CELLS:,} that are answered at once: name fewer.")
    return [
        validate_query(
            PredictQuery,
            {
                "model": model,
                "hardware": name,
                "batch_size": size,
                "precision": precision,
                **_shared_fields(model, shared),
            },
            name=field_name,
        )
        for model in models
        for name in hardware
        for size in batch_sizes
        for precision in precisions
    ]


def answer_rows(queries: Sequence[PredictQuery], batch: BatchAnswer) -> list[dict[str, Any]]:
    """Return one row per query, with the columns of COLUMNS; `asked` is the hardware as the query named it.

    Unknown is None; `problem` is the reason where there is no answer; `why` and `warnings` are lists.
    """
    rows = []
    for query, answer in zip(queries, batch.answers, strict=True):
        name = query.place
        row: dict[str, Any] = dict.fromkeys(COLUMNS) | {"why": [], "warnings": []}
        row |= {"model": answer.model, "asked": name, "batch_size": answer.batch_size, "precision": query.precision}
        if isinstance(answer, Unanswered):
            rows.append(row | {"problem": answer.problem.detail})
            continue
        cost, energy = answer.cost, answer.energy
        rows.append(
            row
            | {
                "hardware": answer.hardware,
                "device": answer.device,
                "device_id": answer.device_id,
                "sequence_length": answer.sequence_length,
                "precision": answer.precision,
                "provenance": answer.provenance,
                **_interval_columns("latency", "_ms", answer.latency_ms),
                "level": answer.latency_ms.level,
                **_interval_columns("items_per_s", "", answer.items_per_s),
                "memory_peak_mib": answer.memory_peak_mib and answer.memory_peak_mib.p50,
                "usd_per_million_items": cost and cost.usd_per_million_items.p50,
                "j_per_item": energy and energy.j_per_item.p50,
                "energy": energy and energy.how,
                "bound": answer.bound and answer.bound.by,
                "why": answer.why,
                "warnings": answer.warnings,
            }
        )
    return rows


def rows_to_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Return the rows as CSV with a header; unknown is an empty field, and text like a formula is escaped."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        lists = {name: _SEPARATOR.join(value) for name, value in row.items() if isinstance(value, list)}
        writer.writerow(guard_row(row | lists))
    return text.getvalue()


def _interval_columns(name: str, unit: str, interval: Interval) -> dict[str, float | None]:
    return {f"{name}{unit}": interval.p50, f"{name}_low{unit}": interval.low, f"{name}_high{unit}": interval.high}


def _shared_fields(model: Any, shared: dict[str, Any]) -> dict[str, Any]:
    """Return the shared fields, less the sequence length for a model whose inputs have none."""
    spec = find_model(model) if isinstance(model, str) else None
    if spec is None or spec.sequence_length is not None:
        return shared
    return {key: value for key, value in shared.items() if key != "sequence_length"}
