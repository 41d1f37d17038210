"""The predictor in service: what is thought of a case, how sure that is, what speaks against it, and why it abstains.

One learner per mode, intervals calibrated on what each question lacks, the peak of memory, and the risk of failing.
Training is in `train`, files in `artifact`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from predictor.calibration.conformal import Calibration
from predictor.calibration.cross_validation import Regime
from predictor.calibration.failure_model import FailureModel
from predictor.calibration.memory_model import MemoryModel
from predictor.data.fast_path import require_slow_path
from predictor.data.samples import Sample
from predictor.models.explanations import Contribution, rank_contributions
from predictor.models.latency_model import LatencyModel
from predictor.schemas.responses import Interval

MAX_EXTRAPOLATION = 10.0
"""Times beyond what was learned from at which nothing is predicted any more."""
MAX_INTERVAL_RATIO = 50.0
"""High over low at which an interval is no answer."""
_MAX_FAST_SAMPLES = 16
"""Cases that are explained in a moment."""
_REPORTED_REGIME: dict[Regime, Literal["nothing", "family", "hardware", "both"]] = {
    "nothing": "nothing",
    "family": "family",
    "hardware": "hardware",
    "few": "hardware",
    "both": "both",
    "few, family": "both",
}


@dataclass(frozen=True)
class Prediction:
    """What is thought of one case."""

    latency_ms: Interval | None
    """Of a whole batch. Without limits where it is not supported; None where no figure can be, or was, computed."""
    memory_peak_mib: Interval | None
    supported: bool
    reason: str
    """Why it is not supported, else what it rests on."""
    lacks: Literal["nothing", "family", "hardware", "both"]
    """Whether the model was measured anywhere, and the device with any model (with many, that is)."""
    outside: float
    """How many times the work, batch or size lies beyond what was learned from; 1 inside."""
    risks: dict[str, float]
    """Probability by class of failure; a class without evidence is not there."""
    rank_contributions: tuple[Contribution, ...] = ()


@dataclass(frozen=True)
class TrainingRange:
    """Least and most of what was learned from."""

    flops: tuple[float, float]
    batch: tuple[float, float]
    size: tuple[float, float]

    @classmethod
    def of(cls, cases: Sequence[Sample]) -> TrainingRange:
        sizes = [case.size for case in cases if not math.isnan(case.size)] or [1.0]
        flops, batches = [case.work.flops for case in cases], [float(case.batch_size) for case in cases]
        return cls((min(flops), max(flops)), (min(batches), max(batches)), (min(sizes), max(sizes)))

    def times_outside(self, case: Sample) -> float:
        size = self.size[0] if math.isnan(case.size) else case.size
        pairs = ((case.work.flops, self.flops), (float(case.batch_size), self.batch), (size, self.size))
        return max(1.0, *(max(value / most, least / value) for value, (least, most) in pairs))


@dataclass(frozen=True)
class ModeModel:
    """What is known of one mode."""

    learner: LatencyModel
    calibrations: dict[Regime, Calibration]
    range: TrainingRange
    typical: float
    """Median of the natural logs of what was learned from: where explanations begin."""

    def lack_of(self, case: Sample) -> Regime:
        model = case.model in self.learner.models
        if case.device in self.learner.known:
            return "nothing" if model else "family"
        if case.device in self.learner.corrections:
            return "few" if model else "few, family"
        return "hardware" if model else "both"


@dataclass(frozen=True)
class Predictor:
    """All that was learned, as an artefact holds it."""

    predictor_id: str
    snapshot_id: str
    rows: int
    families: tuple[str, ...]
    modes: dict[str, ModeModel]
    memory: MemoryModel | None
    risks: FailureModel

    def blind_to(self, case: Sample) -> str | None:
        """Why it stands behind no figure and knows no risk of any work run as this is; None where it may."""
        if self.risks.boosters or (self.memory is not None and self.memory.knows(case)):
            return None
        known = self.modes.get(case.mode)
        return _unknown_mode_reason(case.mode) if known is None else known.learner.why_not(case)

    def judge(self, cases: Sequence[Sample], *, explain: bool = False) -> list[Prediction]:
        """One judgement per case, in order; with `explain` also what each feature adds, which takes long, and no figure
        that it does not stand behind."""
        found: dict[int, Prediction] = {}
        peaks = [None] * len(cases) if self.memory is None else self.memory.intervals(cases)
        risks = self.risks.of_all(cases, peaks)
        for mode in {case.mode for case in cases}:
            here = [i for i, case in enumerate(cases) if case.mode == mode]
            known = self.modes.get(mode)
            if known is None:
                reason = _unknown_mode_reason(mode)
                found |= {i: Prediction(None, None, False, reason, "both", math.inf, {}) for i in here}
                continue
            stances = {i: _assess_support(known, cases[i]) for i in here}
            told = [i for i in here if stances[i].doubt is None or not explain]
            figures: dict[int, float] = {}
            why: dict[int, tuple[Contribution, ...]] = {}
            if told:
                if len(told) > _MAX_FAST_SAMPLES:
                    require_slow_path()
                asked = [cases[i] for i in told]
                if explain:
                    logs, added = known.learner.explain(asked)
                    for i, one in zip(told, added, strict=True):
                        why[i] = rank_contributions(known.learner, cases[i], one, known.typical)
                else:
                    logs = known.learner.predict(asked).logs
                figures = dict(zip(told, logs.tolist(), strict=True))
            for i in here:
                found[i] = _make_prediction(
                    known, cases[i], stances[i], figures.get(i), peaks[i], risks[i], why.get(i, ())
                )
        return [found[i] for i in range(len(cases))]


def _unknown_mode_reason(mode: str) -> str:
    return f"nothing in mode {mode} was learned from"


@dataclass(frozen=True)
class _Support:
    """Whether a figure will be stood behind, and how far it may be off; known before the figure is."""

    lack: Regime
    outside: float
    doubt: str | None
    half_width: float
    """Of the interval, in logs."""
    level: float


def _assess_support(known: ModeModel, case: Sample) -> _Support:
    lack, outside = known.lack_of(case), known.range.times_outside(case)
    calibration = known.calibrations.get(lack)
    doubt = known.learner.why_not(case)
    if doubt is None and outside > MAX_EXTRAPOLATION:
        doubt = f"{outside:.0f} times beyond anything learned from"
    if doubt is not None or calibration is None:
        few = f"too little was measured to tell how far a figure would be off where {_REGIME_TEXT[lack]}"
        return _Support(lack, outside, doubt or few, math.nan, math.nan)
    # Outside, a doubling may cost anything between nothing and twice what the law says of it.
    half_width = calibration.half_width + math.log(outside)
    if math.exp(2 * half_width) > MAX_INTERVAL_RATIO:
        doubt = f"a prediction would be uncertain by a factor of {math.exp(2 * half_width):.0f}"
    return _Support(lack, outside, doubt, half_width, calibration.level)


def _make_prediction(
    known: ModeModel,
    case: Sample,
    stance: _Support,
    log: float | None,
    peak: Interval | None,
    risks: dict[str, float],
    why: tuple[Contribution, ...],
) -> Prediction:
    return Prediction(
        latency_ms=None if log is None else _interval(math.exp(log), stance),
        memory_peak_mib=peak,
        supported=stance.doubt is None,
        reason=stance.doubt or _basis_text(known, case, stance.lack),
        lacks=_REPORTED_REGIME[stance.lack],
        outside=stance.outside,
        risks=risks,
        contributions=why,
    )


def _interval(p50: float, stance: _Support) -> Interval:
    """Without limits where it is not supported."""
    if stance.doubt is not None:
        return Interval(p50=p50)
    spread = math.exp(stance.half_width)
    return Interval(p50=p50, low=p50 / spread, high=p50 * spread, level=stance.level)


_REGIME_TEXT: dict[Regime, str] = {
    "nothing": "the model and the device were measured",
    "family": "the model was never measured",
    "hardware": "nothing was measured on the device",
    "both": "neither the model nor the device was ever measured",
    "few": "the device was hardly measured",
    "few, family": "the device was hardly and the model never measured",
}


def _basis_text(known: ModeModel, case: Sample, lack: Regime) -> str:
    count = known.learner.elsewhere(case)
    carried = f"; the same work was measured {count} times elsewhere or otherwise" if count else ""
    return f"learned from {len(known.learner.cases)} figures; {_REGIME_TEXT[lack]}{carried}"


def median_log_latency(learner: LatencyModel) -> float:
    """The median of the natural logs of latencies learned from."""
    return float(np.median([math.log(case.latency_ms) for case in learner.cases]))
