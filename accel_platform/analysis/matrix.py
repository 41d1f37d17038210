"""The compatibility matrix as people read it: models by hardware, with the cells nobody tested. The rating rule is
`warehouse/sql/compat_matrix.sql`."""

from __future__ import annotations

from typing import Any, TypedDict

from accel_platform.warehouse.query import Reader


class Cell(TypedDict):
    """One model on one hardware name, the best of its devices. `state`: compatible, failed or untested."""

    state: str
    rating: str | None
    relative_speed: float | None
    latency_p50_ms: float | None
    batch_size: int | None
    sequence_length: int | None
    device: str | None
    reason: str | None
    evidence: list[str]


class Matrix(TypedDict):
    snapshot_id: str
    hardware: list[str]
    models: dict[str, dict[str, Cell]]


_UNTESTED = Cell(state="untested", rating=None, relative_speed=None, latency_p50_ms=None, batch_size=None,
    sequence_length=None, device=None,
                 reason=None, evidence=[])  # fmt: skip

# Of several devices under one hardware name the best speaks for it; a device that works beats one that failed.
_BEST = """
SELECT model_id, hardware, state, rating, relative_speed, latency_p50_ms, batch_size, sequence_length,
    coalesce(device_name, device_id) AS device, reason, evidence
FROM compat_matrix
WHERE mode = $mode AND ($model IS NULL OR model_id = $model OR model_family = $model)
QUALIFY row_number() OVER (
    PARTITION BY model_id, hardware
    ORDER BY state, relative_speed DESC NULLS LAST, latency_p50_ms NULLS LAST, device_id
) = 1
ORDER BY model_id, hardware
"""


def compatibility_matrix(reader: Reader, *, model: str | None = None, mode: str = "inference") -> Matrix:
    """Every model (or one, by id or family) against every hardware name that has evidence in this mode.

    Raises WarehouseEmpty before the first publish.
    """
    rows: list[dict[str, Any]] = reader.rows(_BEST, {"model": model, "mode": mode})
    hardware = sorted({row["hardware"] for row in rows})
    models: dict[str, dict[str, Cell]] = {}
    for row in rows:
        cells = models.setdefault(row["model_id"], dict.fromkeys(hardware, _UNTESTED))
        cells[row["hardware"]] = Cell(
            state=row["state"],
            rating=row["rating"],
            relative_speed=row["relative_speed"],
            latency_p50_ms=row["latency_p50_ms"],
            batch_size=row["batch_size"],
            sequence_length=row["sequence_length"],
            device=row["device"],
            reason=row["reason"],
            evidence=[str(event_id) for event_id in row["evidence"]],
        )
    return Matrix(snapshot_id=reader.snapshot_id, hardware=hardware, models=models)
