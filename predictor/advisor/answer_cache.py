"""What was said of single candidates, kept for the next question about them: another objective, limit or choice of
hardware changes the ranking and no figure. Nothing is answered here."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from predictor.data.evidence import Target
from predictor.schemas.responses import Excluded, Figures

MOST = 20_000
"""A few KiB each."""


@dataclass(frozen=True)
class CandidateResult:
    """Of one candidate: figures, or why there are none, or neither, where it is no hardware one could name."""

    figures: Figures | None = None
    excluded: Excluded | None = None
    cautions: tuple[str, ...] = ()


class AnswerCache:
    """By question and target, until they are too many: then it begins again. Safe to share between threads."""

    def __init__(self) -> None:
        self._about: dict[Hashable, dict[Target, CandidateResult]] = {}
        self._kept = 0

    def about(self, question: Hashable) -> dict[Target, CandidateResult]:
        """What was said of each target; to look at only."""
        return self._about.get(question, {})

    def keep(self, question: Hashable, told: dict[Target, CandidateResult]) -> None:
        if self._kept > MOST:
            self._about, self._kept = {}, 0
        before = self._about.get(question, {})
        self._about[question] = {**before, **told}
        self._kept += len(told.keys() - before.keys())
