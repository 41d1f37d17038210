"""All that an answer may rest on, at one moment. Nothing is answered here."""

from __future__ import annotations

from dataclasses import dataclass

from predictor.artifact import Predictor
from predictor.evidence import Evidence


@dataclass(frozen=True)
class Knowledge:
    """Evidence of one snapshot and a predictor; `no_predictor` says why there is none."""

    evidence: Evidence
    predictor: Predictor | None = None
    no_predictor: str = "no predictor was trained yet (`accel train`)"
