"""Options of a benchmark run: the work to do, what counts as stale, and the run's labels."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from accel_platform.analysis.query.run_refs import git_commit_time
from accel_platform.durations import parse_age
from accel_platform.errors import InvalidInput

RunScope = Literal["all", "verify", "measure"]
"""Measure and verify, only verify (nothing is timed), or only measure (the results are unverified)."""


@dataclass(frozen=True)
class RunOptions:
    """The options of a run; the defaults are the usual ones."""

    work: RunScope = "all"
    fix: bool = True
    """True if a failed cell is tried again by the fallbacks of its failure class."""
    parallel: bool = False
    """True if separate physical devices are measured side by side."""
    pooled: bool = True
    """True if cells of one model, hardware and precision share a process, which loads the model once."""
    at_once: int = 1
    """Workers of an accelerator: while one measures, the next ones start, load their model and wait for their turn.
    Their models share the device's memory. A processor has one worker, because starting another would disturb it."""
    operators: bool = False
    """True if each measured cell is run once more afterwards under the runtime's operator profiler."""


def resolve_work(verify_only: bool, benchmark_only: bool) -> RunScope:
    """Return the work that the two flags select. Raises InvalidInput where both are given."""
    if verify_only and benchmark_only:
        raise InvalidInput("--verify-only and --benchmark-only leave nothing to do: give one of them.")
    return "verify" if verify_only else "measure" if benchmark_only else "all"


def stale_cutoff(age: str | None, *, missing: bool, now: datetime | None = None) -> datetime | None:
    """Return the time before which a result is stale, for an age such as 30d, 12h or 2w; None without an age.

    Raises InvalidInput for another form, and for an age without `missing`.
    """
    if age is None:
        return None
    if not missing:
        raise InvalidInput("An age (older_than) says what missing takes for lacking: give both.")
    return (now or datetime.now(UTC)) - parse_age(age)


COMMIT_VARIABLES = ("ACCEL_COMMIT", "GITHUB_SHA", "CI_COMMIT_SHA")
"""The first that is set says the commit where no label does: ours, GitHub's, GitLab's."""
BRANCH_VARIABLES = ("GITHUB_HEAD_REF", "GITHUB_REF", "CI_MERGE_REQUEST_SOURCE_BRANCH_NAME", "CI_COMMIT_BRANCH")
"""The same for the branch. `GITHUB_REF` also names tags, and of a pull request a merge that GitHub made for it."""


def parse_labels(words: Sequence[str]) -> dict[str, str]:
    """Parse words such as `branch=main` to labels. Raises InvalidInput for a word without key or value."""
    labels = {}
    for word in words:
        key, equals, value = (part.strip() for part in word.partition("="))
        if not (key and equals and value):
            raise InvalidInput(f"{word!r} is no label: write KEY=VALUE, such as branch=main.")
        labels[key] = value
    return labels


def add_commit_label(labels: Mapping[str, str]) -> dict[str, str]:
    """Return the labels with the environment's commit and branch, where they name none.

    Where git knows the commit here its time is added as `committed_at`, which orders the commits of a series, whenever
    each was measured.
    """
    commit = labels.get("commit") or commit_from_environment()
    if not commit:
        return dict(labels)
    found = {"commit": commit, "branch": _branch_from_environment(), "committed_at": git_commit_time(commit)}
    return {**{name: value for name, value in found.items() if value}, **labels}


def commit_from_environment() -> str | None:
    """Return the measured commit from the first variable that is set, None without one."""
    return next((value for name in COMMIT_VARIABLES if (value := os.environ.get(name, "").strip())), None)


def _branch_from_environment() -> str | None:
    """Return the branch that GitHub or GitLab builds, of a pull request its own; None for a tag, and without them."""
    names = (os.environ.get(name, "").removeprefix("refs/heads/") for name in BRANCH_VARIABLES)
    return next((name for name in names if name and not name.startswith("refs/")), None)
