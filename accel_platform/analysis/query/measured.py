"""Series of own measurements: the results of processes for one comparable cell, in order of time."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from accel_platform.analysis.query.filters import Selection
from accel_platform.analysis.stats.medians import DISAGREEMENT_PREFIX
from accel_platform.events.types import Measure, MeasuredSeries
from accel_platform.warehouse.reader import Reader

_IDENTITY = tuple(MeasuredSeries.model_fields)
# Own measurements only, because imported results have no samples. Ids of measurements begin with their time.
_ROWS = f"""
SELECT {", ".join(f"r.{name}" for name in _IDENTITY)},
    r.result_id, r.run_id, u."commit", u.labels->>'$.branch' AS branch,
    CASE WHEN u.labels->>'$.committed_at' IS NOT NULL
        THEN least(TRY_CAST(u.labels->>'$.committed_at' AS TIMESTAMPTZ), u.started_at) END AS committed_at,
    r.threads, r.latency_p50_ms, r.noisy,
    r.verified, r.disturbed, r.memory_peak_mib, r.memory_device_peak_mib,
    CASE WHEN r.status <> 'ok' THEN r.reason WHEN NOT r.verified THEN 'its outputs were found wrong' END AS failure
FROM judged_results AS r
LEFT JOIN runs AS u USING (run_id)
WHERE r.provenance = 'measured' AND r.precision IS NOT NULL AND r.batch_size IS NOT NULL AND {{condition}}
ORDER BY r.result_id
"""
_DETAILS = """
SELECT event_id, payload->>'$.noisy_reason' AS noisy_reason, samples_ns,
    CAST(payload->>'$.environment.contention.others_share' AS DOUBLE) AS others_share
FROM events
WHERE event_id IN (SELECT unnest($ids))
"""


@dataclass(frozen=True)
class ProcessResult:
    """Result of one measuring process for one cell."""

    result_id: UUID
    run_id: str
    commit: str | None
    threads: int | None
    median_ms: float | None
    """Median latency of a batch; None if it failed, or has too few samples for a median."""
    failure: str | None
    """Reason why there is no valid figure; None if it works."""
    verified: bool
    """True if its outputs were compared with the reference; otherwise it is no evidence."""
    noisy: bool
    disturbed: bool = False
    """True if it waited for a core because other processes ran."""
    doubt: str | None = None
    """Reason to doubt its own samples, if they were read. Disagreement with other processes is no such reason."""
    others_share: float | None = None
    """Processor time of other processes over that of all cores, 0 to 1; None if not read or not recorded."""
    samples_ns: tuple[int, ...] = ()
    memory_mib: float | None = None
    """Peak memory of the process, and (`device_memory_mib`) of the device's allocator; None if it failed or is unknown.
    """
    device_memory_mib: float | None = None
    branch: str | None = None
    """Branch of its commit, by the label of its run."""
    committed_at: datetime | None = None
    """Time of its commit, by the label of its run, and at the latest when that began; None without the label."""

    def figure(self, measure: Measure) -> float | None:
        """Return its figure of a measure: ms, MiB, or for failures 1.0 if it failed and 0.0 if not; None if unknown."""
        if measure == "failures":
            return float(self.failure is not None)
        figures = {"latency": self.median_ms, "memory": self.memory_mib, "device_memory": self.device_memory_mib}
        return figures[measure]


MeasuredProcesses = dict[MeasuredSeries, list[ProcessResult]]


def read_measured_series(reader: Reader, *, model: str | None = None, hardware: str | None = None) -> MeasuredProcesses:
    """Return every series, or those of one model (its id or family) or hardware name, without samples."""
    return read_selected_series(
        reader, Selection(model=() if model is None else (model,), hardware=() if hardware is None else (hardware,))
    )


def read_selected_series(reader: Reader, selection: Selection, *, branch: str | None = None) -> MeasuredProcesses:
    """Return the selected series, of one branch or all, without samples."""
    condition, values = selection.where()
    condition += " AND ($branch IS NULL OR u.labels->>'$.branch' = $branch)"
    return _group_by_series(reader.rows(_ROWS.format(condition=condition), {**values, "branch": branch}))


def read_series_of_runs(reader: Reader, run_ids: Collection[str]) -> MeasuredProcesses:
    """Return the whole series in which these runs took part, and other series of the same models."""
    condition = "r.model_id IN (SELECT model_id FROM results WHERE list_contains($runs, run_id))"
    return _group_by_series(reader.rows(_ROWS.format(condition=condition), {"runs": list(run_ids)}))


def attach_samples(reader: Reader, processes: Iterable[ProcessResult]) -> dict[UUID, ProcessResult]:
    """Return the processes by result id, with their samples and the doubt about them."""
    known = {process.result_id: process for process in processes}
    if not known:
        return {}
    details = {row["event_id"]: row for row in reader.rows(_DETAILS, {"ids": list(known)})}
    return {result_id: _with_samples(process, details[result_id]) for result_id, process in known.items()}


def by_branch(processes: Iterable[ProcessResult]) -> list[list[ProcessResult]]:
    """Divide processes by the branch of their commits, because branches measured in turns differ by code, not noise."""
    groups: dict[str | None, list[ProcessResult]] = {}
    for process in processes:
        groups.setdefault(process.branch, []).append(process)
    return list(groups.values())


def _group_by_series(rows: Sequence[Mapping[str, Any]]) -> MeasuredProcesses:
    found: dict[tuple[Any, ...], list[ProcessResult]] = {}
    for row in rows:
        found.setdefault(tuple(row[name] for name in _IDENTITY), []).append(
            ProcessResult(
                result_id=row["result_id"],
                run_id=row["run_id"],
                commit=row["commit"],
                threads=row["threads"],
                median_ms=None if row["failure"] else row["latency_p50_ms"],
                failure=row["failure"],
                verified=row["failure"] is not None or bool(row["verified"]),
                noisy=bool(row["noisy"]),
                disturbed=bool(row["disturbed"]),
                memory_mib=None if row["failure"] else row["memory_peak_mib"],
                device_memory_mib=None if row["failure"] else row["memory_device_peak_mib"],
                branch=row["branch"],
                committed_at=row["committed_at"],
            )
        )
    return {
        MeasuredSeries.model_validate(dict(zip(_IDENTITY, key, strict=True))): processes
        for key, processes in found.items()
    }


def _with_samples(process: ProcessResult, details: Mapping[str, Any]) -> ProcessResult:
    reason = details["noisy_reason"] if process.noisy else None
    doubt = reason if reason and not reason.startswith(DISAGREEMENT_PREFIX) else None
    samples_ns = tuple(details["samples_ns"] or ())
    return replace(process, samples_ns=samples_ns, doubt=doubt, others_share=details["others_share"])
