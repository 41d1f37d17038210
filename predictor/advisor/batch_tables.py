"""Many cells as one table: models by hardware, or a model over batch sizes. Questions out, rows back; no drawing."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from accel_platform.errors import InvalidInput
from accel_platform.table_io.values import guarded_row
from accel_platform.workloads.model_catalog import find_model
from predictor.data.evidence import Evidence
from predictor.schemas.requests import MAX_CELLS, PredictQuery
from predictor.schemas.responses import BatchAnswer, Interval, Unanswered

COLUMNS = (
    "model", "asked", "hardware", "device", "batch_size", "sequence_length", "provenance", "latency_ms",
    "latency_low_ms", "latency_high_ms", "level", "items_per_s", "items_per_s_low", "items_per_s_high",
    "memory_peak_mib", "usd_per_million_items", "j_per_item", "energy", "bound", "problem",
)  # fmt: skip


def models_known(evidence: Evidence) -> list[str]:
    """Every model with a usable measurement."""
    return sorted(evidence.by_model)


def hardware_known(evidence: Evidence) -> list[str]:
    """Every hardware name that a host has or that figures tell of."""
    here = {target.hardware for target in evidence.available}
    return sorted(here | {target.hardware for target in evidence.by_target})


def questions(
    models: Sequence[Any], hardware: Sequence[Any], batch_sizes: Sequence[int], **same: Any
) -> list[PredictQuery]:
    """Every model on every hardware at every batch size. Raises InvalidInput for more cells than are answered at once.

    `same` are fields that all of them share; a sequence length goes to the models that read text.
    """
    cells = len(models) * len(hardware) * len(batch_sizes)
    if cells > MAX_CELLS:
        raise InvalidInput(f"{cells:,} cells are more than the {MAX_CELLS:,} that are answered at once: name fewer.")
    return [
        PredictQuery(model=model, hardware=name, batch_size=size, **_fitting(model, same))
        for model in models
        for name in hardware
        for size in batch_sizes
    ]


def rows_of(asked: Sequence[PredictQuery], answered: BatchAnswer) -> list[dict[str, Any]]:
    """One row per question, with the columns of COLUMNS; `asked` is the hardware as the question called it.

    What is not known is None, and why nothing is, is in `problem`.
    """
    rows = []
    for query, answer in zip(asked, answered.answers, strict=True):
        name = query.place
        row: dict[str, Any] = dict.fromkeys(COLUMNS)
        row |= {"model": answer.model, "asked": name, "batch_size": answer.batch_size}
        if isinstance(answer, Unanswered):
            rows.append(row | {"problem": answer.problem})
            continue
        cost, energy = answer.cost, answer.energy
        rows.append(
            row
            | {
                "hardware": answer.hardware,
                "device": answer.device,
                "sequence_length": answer.sequence_length,
                "provenance": answer.provenance,
                **_limits("latency", "_ms", answer.latency_ms),
                "level": answer.latency_ms.level,
                **_limits("items_per_s", "", answer.throughput_items_per_s),
                "memory_peak_mib": answer.memory_peak_mib and answer.memory_peak_mib.p50,
                "usd_per_million_items": cost and cost.usd_per_million_items.p50,
                "j_per_item": energy and energy.j_per_item.p50,
                "energy": energy and energy.how,
                "bound": answer.bound and answer.bound.by,
            }
        )
    return rows


def as_csv(rows: Sequence[dict[str, Any]]) -> str:
    """The rows with a header; unknown is an empty field, and no text is a formula."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(map(guarded_row, rows))
    return text.getvalue()


def _limits(name: str, unit: str, interval: Interval) -> dict[str, float | None]:
    return {f"{name}{unit}": interval.p50, f"{name}_low{unit}": interval.low, f"{name}_high{unit}": interval.high}


def _fitting(model: Any, same: dict[str, Any]) -> dict[str, Any]:
    """Without a sequence length for a model whose inputs have none."""
    spec = find_model(model) if isinstance(model, str) else None
    if spec is None or spec.sequence_length is not None:
        return same
    return {key: value for key, value in same.items() if key != "sequence_length"}
