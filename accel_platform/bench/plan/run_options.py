"""Options of a benchmark run: its effort, the work to do, what counts as stale, and its labels."""

from __future__ import annotations

import difflib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from accel_platform.analysis.query.run_refs import git_commit_time
from accel_platform.analysis.stats.medians import MIN_PERCENTILE_SAMPLES
from accel_platform.bench.measure.sampling import Sampling
from accel_platform.durations import parse_age
from accel_platform.errors import InvalidInput


@dataclass(frozen=True)
class Effort:
    """Sampling rules and timeouts: a process that stays silent longer is killed."""

    name: str
    sampling: Sampling
    timeout_s: float = 300.0
    """Timeout of loading, and of each cell."""
    prepare_timeout_s: float = 1200.0
    """Timeout of exporting a graph and computing the reference."""


EFFORTS = {
    effort.name: effort
    for effort in (
        Effort("quick", Sampling(min_time_s=0.3, max_time_s=1.5, limit_s=15.0, warmup_max_s=1.0)),
        Effort("standard", Sampling()),
        Effort(
            "thorough",
            Sampling(
                min_time_s=10.0,
                min_count=MIN_PERCENTILE_SAMPLES[99],
                target_error=0.005,
                max_time_s=60.0,
                limit_s=600.0,
            ),
            timeout_s=1800.0,
        ),
    )
}


def effort_preset(name: str) -> Effort:
    """Return the preset of this name. Raises InvalidInput with the closest names."""
    if name not in EFFORTS:
        close = difflib.get_close_matches(name, EFFORTS, n=1) or list(EFFORTS)
        raise InvalidInput(f"No effort is called {name!r}. Try {', '.join(close)}.")
    return EFFORTS[name]


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
