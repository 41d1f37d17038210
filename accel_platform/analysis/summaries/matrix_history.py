"""History of the compatibility matrix, day by day, from the events recorded by then."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field

from accel_platform.analysis.query.filters import Selection, reject_choices
from accel_platform.analysis.summaries.matrix import Verdict, cell_verdict
from accel_platform.hardware.device_names import with_distinct_names
from accel_platform.warehouse.compat_matrix import matrix_history_sql
from accel_platform.warehouse.reader import Reader

MAX_DAYS = 120
"""Largest number of days replayed, the newest on which something was recorded."""

_OF_MODELS = "(len($models) = 0 OR list_contains($models, r.model_id) OR list_contains($models, r.model_family))"
_DAYS = f"""
SELECT DISTINCT date_trunc('day', recorded_at) AS day FROM (
    SELECT recorded_at FROM result_rows AS r WHERE {_OF_MODELS}
    UNION ALL
    SELECT e.recorded_at FROM (FROM suspicions UNION ALL BY NAME FROM suspicion_overrides) AS s
    JOIN events AS e USING (event_id)
    JOIN result_rows AS r ON r.event_id = s.result_id
    WHERE {_OF_MODELS}
)
ORDER BY day
"""
Key = tuple[Any, ...]
Row = dict[str, Any]
_KEY = ("model_id", "hardware", "device_id", "mode")


@dataclass(frozen=True)
class MatrixChange:
    """Change of one device's verdict by a day's events. `relative_speed` is against the best device."""

    day: Annotated[datetime, Field(description="Day in UTC, at whose end the verdict was the new one.")]
    model_id: str
    hardware: str
    device: Annotated[
        str | None, Field(description="Device name, or its id where no name is known; null where neither is.")
    ]
    mode: str
    before: Annotated[Verdict, Field(description="Verdict before that day; untested without evidence.")]
    after: Annotated[Verdict, Field(description="Verdict after that day; untested without evidence.")]
    relative_speed_before: Annotated[
        float | None, Field(description="Speed against the best device before that day; null where unknown.")
    ]
    relative_speed_after: Annotated[
        float | None, Field(description="Speed against the best device after that day; null where unknown.")
    ]
    results_ok: int
    results_failed: int
    reason: str | None
    evidence: list[UUID]


def matrix_history(
    reader: Reader, selection: Selection | None = None, *, mode: str | None = None
) -> list[MatrixChange]:
    """Return every change of a verdict, oldest first, for the selected models and hardware in one mode or all.

    The matrix is recomputed for the end of each day (UTC) on which results, or doubts about results, were recorded,
    from what was recorded by then. At most the newest `MAX_DAYS` such days are covered, starting from the state before
    them. Other filters of the selection are ignored.

    Raises WarehouseEmpty before the first publish, and InvalidInput for hardware with a choice.
    """
    selection = selection or Selection()
    reject_choices(selection.hardware)
    models, shown = selection.recorded_models(), {*selection.hardware, *selection.hardware_devices.values()}
    days = [row["day"] for row in reader.rows(_DAYS, {"models": models})]
    cells: dict[datetime, dict[Key, Row]] = {day: {} for day in days[-MAX_DAYS:]}
    moments = [day + timedelta(days=1) for day in cells]
    rows = reader.rows(matrix_history_sql(), {"moments": moments, "models": models}) if moments else []
    selected = [
        row
        for row in rows
        if mode in (None, row["mode"]) and (not shown or {row["hardware"], row["device_name"]} & shown)
    ]
    for row in with_distinct_names(selected):
        cells[row["moment"] - timedelta(days=1)][tuple(row[name] for name in _KEY)] = row
    changes: list[MatrixChange] = []
    before: dict[Key, Row] = {}
    for number, (day, now) in enumerate(cells.items()):
        if number or len(days) <= MAX_DAYS:
            keys = sorted({*before, *now}, key=lambda key: tuple(map(str, key)))
            changes += [
                change for key in keys if (change := _change(day, before.get(key), now.get(key))) is not None
            ]  # fmt: skip
        before = now
    return changes


def _change(day: datetime, before: Row | None, after: Row | None) -> MatrixChange | None:
    known = after or before
    assert known is not None, "it is in one of them"
    old, new = (
        cell_verdict(row["state"], row["rating"], row["failure_class"]) if row else "untested"
        for row in (before, after)
    )
    if old == new:
        return None
    return MatrixChange(
        day=day,
        model_id=known["model_id"],
        hardware=known["hardware"],
        device=known["device_name"],
        mode=known["mode"],
        before=old,
        after=new,
        relative_speed_before=before["relative_speed"] if before else None,
        relative_speed_after=after["relative_speed"] if after else None,
        results_ok=after["results_ok"] if after else 0,
        results_failed=after["results_failed"] if after else 0,
        reason=after["reason"] if after else "what it rested on is doubted now",
        evidence=list(after["evidence"]) if after else [],
    )
