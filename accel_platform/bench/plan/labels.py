"""What a run's user says of it: labels, of which `commit` names the code that is measured. Git is not asked."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from accel_platform.errors import InvalidInput

COMMIT_VARIABLES = ("ACCEL_COMMIT", "GITHUB_SHA", "CI_COMMIT_SHA")
"""The first that is set says the commit where no label does: ours, GitHub's, GitLab's."""


def labels_of(words: Sequence[str]) -> dict[str, str]:
    """Labels from words such as `branch=main`. Raises InvalidInput for a word that is none."""
    labels = {}
    for word in words:
        key, equals, value = (part.strip() for part in word.partition("="))
        if not (key and equals and value):
            raise InvalidInput(f"{word!r} is no label: write KEY=VALUE, such as branch=main.")
        labels[key] = value
    return labels


def with_commit(labels: Mapping[str, str]) -> dict[str, str]:
    """The labels, with the commit that the environment names where they name none."""
    commit = commit_here()
    return {**({"commit": commit} if commit else {}), **labels}


def commit_here() -> str | None:
    """The commit that the environment says is being measured, None where it says nothing."""
    return next((value for name in COMMIT_VARIABLES if (value := os.environ.get(name, "").strip())), None)
