"""Resolution of run ids, commits and git names to runs, and the devices that runs observed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel_platform.errors import InvalidInput, NotFound
from accel_platform.events.types import MeasuredSeries

if TYPE_CHECKING:
    # Only for the checker: hosts that only measure have labels, and no tables.
    from accel_platform.warehouse.reader import Reader

MIN_PREFIX_LENGTH = 7
"""Fewest characters of a commit or run id accepted as a prefix."""

_MAX_ANCESTORS = 1000
"""Commits before an unmeasured one among which a measured one is looked for."""
_RUNS = """SELECT run_id, "commit" FROM runs WHERE kind = 'benchmark' ORDER BY run_id"""


@dataclass(frozen=True)
class RunSet:
    """Runs on one side of a comparison."""

    ref: str
    """Reference as given by the user."""
    run_ids: tuple[str, ...]
    commit: str | None
    """Commit that the runs measured; None if they are not labeled with one."""

    @property
    def name(self) -> str:
        """Display name."""
        commit = self.commit[:12] if self.commit else None
        runs = f"{len(self.run_ids)} runs" if len(self.run_ids) > 1 else "1 run"
        return f"{self.ref} ({runs}{f' of {commit}' if commit and not self.ref.startswith(commit) else ''})"


def resolve_runs(reader: Reader, ref: str, *, folder: Path | None = None) -> RunSet:
    """Return the benchmark runs that `ref` names.

    Parameters
    ----------
    ref
        A run's id, the commit that runs are labeled with, a unique prefix of either, or a git name of that commit.
    folder
        Folder in which git resolves names (default: the current one).

    Raises
    ------
    InvalidInput
        For a prefix of several names.
    NotFound
        If no run matches.
    """
    ref = ref.strip()
    runs: dict[str, str | None] = {row["run_id"]: row["commit"] for row in reader.rows(_RUNS)}
    if ref in runs:
        return RunSet(ref, (ref,), runs[ref])
    commits = {commit for commit in runs.values() if commit}
    name = ref if ref in commits else _begun_by(ref, {*runs, *commits})
    if name is None:
        name = _measured_commit(ref, commits, folder)
    if name in runs:
        return RunSet(ref, (name,), runs[name])
    return RunSet(ref, tuple(run for run, commit in runs.items() if commit == name), name)


def _begun_by(prefix: str, names: Collection[str]) -> str | None:
    """Return the name that begins so; None if there is none. Raises InvalidInput for several."""
    matches = [name for name in names if name.startswith(prefix)] if len(prefix) >= MIN_PREFIX_LENGTH else []
    if len(matches) > 1:
        raise InvalidInput(f"{prefix!r} begins several names: {', '.join(sorted(matches)[:5])}. Write more of it.")
    return matches[0] if matches else None


def _measured_commit(ref: str, commits: Collection[str], folder: Path | None) -> str:
    """Return the label of the commit that git calls so. Raises NotFound if git knows none, or no run measured it."""
    resolved = _commit_answer(ref, folder, "rev-parse", "--verify", "--quiet")
    if resolved is None:
        raise NotFound(
            f"{ref!r} is no run, no commit of a run and nothing that git knows here. {_git_hint(folder)} "
            'Runs: `accel db query "SELECT run_id, started_at, \\"commit\\" FROM runs"`.'
        )
    if (label := _label_of(resolved, commits)) is not None:
        return label
    history = (_git(folder, "rev-list", f"--max-count={_MAX_ANCESTORS}", resolved) or "").split()
    before = next((found for commit in history if (found := _label_of(commit, commits)) is not None), None)
    if before is not None:
        known = f" The last measured commit before it is {before[:12]}."
    else:
        known = f" Commits that were: {', '.join(sorted(c[:12] for c in commits)[:8])}." if commits else ""
    name = "" if resolved.startswith(ref) else f"{ref!r} is "
    raise NotFound(
        f"{name}commit {resolved[:12]}, which no run here measured: check it out and `accel bench run --label "
        f"commit={resolved[:12]}`, or import its results with `accel bench import`.{known}"
    )


def _label_of(commit: str, labels: Collection[str]) -> str | None:
    """Return the label that names a commit, whole or shortened; None if none does."""
    return next((name for name in labels if len(name) >= MIN_PREFIX_LENGTH and commit.startswith(name)), None)


def _git_hint(folder: Path | None) -> str:
    """Return what may be missing where git does not know a name."""
    is_shallow = _git(folder, "rev-parse", "--is-shallow-repository")
    if is_shallow is None:
        return "There is no git repository here: name a run, or a commit that was measured."
    if is_shallow == "true":
        return "This clone is shallow: `git fetch --unshallow --tags` brings its history."
    return "`git fetch --tags` brings tags."


def git_commit_time(commit: str) -> str | None:
    """Return when a commit was made, in ISO 8601, by the git folder this runs in; None where that does not know it."""
    return _commit_answer(commit, None, "show", "-s", "--format=%cI")


def _commit_answer(ref: str, folder: Path | None, *command: str) -> str | None:
    """Return what git says of the commit that it calls so; None without one."""
    return _git(folder, *command, f"{ref}^{{commit}}") if ref and not ref.startswith("-") else None


def _git(folder: Path | None, *command: str) -> str | None:
    """Return what git says in a folder; None if that is nothing, an error, or git is not there."""
    words = ["git", *command]
    try:
        answer = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None if answer.returncode == 0 else None


PlannedCell = tuple[str, str, str | None, int, int | None, str, str, int, str | None]
"""Model id, hardware, its choice, batch size, sequence length, precision, mode, processes, hash of real weights."""


_RECORDED_CELLS = """
SELECT DISTINCT model_id, hardware, choice, batch_size, sequence_length, precision, mode, coalesce(processes, 1),
    weights_sha256
FROM results WHERE list_contains($runs, run_id)
"""


def unrecorded_cells(reader: Reader, run_ids: Collection[str]) -> frozenset[PlannedCell]:
    """Return the cells that these runs were to measure and that none has a result of, not even a failed one."""
    runs = {"runs": list(run_ids)}
    planned: set[PlannedCell] = set()
    for row in reader.rows("SELECT plan FROM runs WHERE list_contains($runs, run_id)", runs):
        plan = json.loads(row["plan"] or "{}")
        for cell in plan.get("work", ()) if plan.get("how", {}).get("work") != "verify" else ():
            model, (hardware, _, choice) = plan["models"][cell["model"]], cell["hardware"].partition(":")
            size = cell["batch_size"], cell["sequence_length"]
            weights = model["weights"]["sha256"] if model["weights"] else None
            kind = cell["precision"], cell["mode"], cell["processes"]
            planned.add((model["model_id"], hardware, choice or None, *size, *kind, weights))
    recorded = {tuple(row.values()) for row in reader.rows(_RECORDED_CELLS, runs)} if planned else set()
    return frozenset(planned - recorded)


def planned_cell(series: MeasuredSeries) -> PlannedCell:
    """Return the cell of a series as `unrecorded_cells` names it."""
    hardware, size = (series.hardware, series.choice), (series.batch_size, series.sequence_length)
    kind = series.precision, series.mode, series.processes or 1
    return (series.model_id, *hardware, *size, *kind, series.weights_sha256)


_DEVICES = """
SELECT run_id, payload->>'$.hardware' AS hardware, payload->>'$.choice' AS choice, payload->>'$.driver' AS driver,
    payload->'$.runtime_versions' AS versions
FROM other_events
WHERE type = 'DeviceObserved' AND list_contains($runs, run_id)
"""
ObservedDevices = dict[tuple[str, str, str | None], dict[str, Any]]
"""By run, hardware name and choice: the driver and the versions of the runtime's packages."""


def observed_devices(reader: Reader, run_ids: Collection[str]) -> ObservedDevices:
    """Return driver and runtime versions that these runs observed of their devices."""
    found: ObservedDevices = {}
    for row in reader.rows(_DEVICES, {"runs": list(run_ids)}):
        versions = json.loads(row["versions"] or "{}")
        found[row["run_id"], row["hardware"], row["choice"]] = {"driver": row["driver"], **versions}
    return found


_UNAVAILABLE = """
SELECT payload->>'$.hardware' AS hardware, payload->>'$.choice' AS choice,
    any_value(payload->>'$.reason' ORDER BY run_id DESC) AS reason
FROM other_events
WHERE type = 'DeviceObserved' AND list_contains($runs, run_id)
GROUP BY ALL HAVING NOT bool_or(CAST(payload->>'$.available' AS BOOLEAN))
"""


def unavailable_hardware(reader: Reader, run_ids: Collection[str]) -> dict[tuple[str, str | None], str | None]:
    """Return the hardware, by name and choice, that none of these runs had, and the reason that the last one gave."""
    rows = reader.rows(_UNAVAILABLE, {"runs": list(run_ids)})
    return {(row["hardware"], row["choice"]): row["reason"] for row in rows}


def differing_keys(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the sorted keys whose values differ between two mappings."""
    return [name for name in sorted({*one, *other}) if one.get(name) != other.get(name)]
