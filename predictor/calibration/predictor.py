"""The predictor in service: what is thought of a case, how sure that is, what speaks against it, and why it abstains.

One learner per mode, intervals calibrated on what each question lacks, the peak of memory, and the risk of failing.
Training is in `train`, files in `artifact`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

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
_REPORTED_REGIME = {
    Regime.FEW_SHOT: Regime.UNSEEN_DEVICE,
    Regime.FEW_SHOT_UNSEEN_FAMILY: Regime.UNSEEN_BOTH,
}
"""Regimes that a prediction reports as another."""


@dataclass(frozen=True)
class Prediction:
    """What is thought of one case."""

    latency_ms: Interval | None
    """Of a whole batch. Without limits where it is not supported; None where no figure can be, or was, computed."""
    memory_peak_mib: Interval | None
    supported: bool
    reason: str
    """Why it is not supported, else what it rests on."""
    regime: Regime
    """Whether the model was measured anywhere, and the device with any model (with many, that is)."""
    extrapolation_factor: float
    """How many times the work, batch or size lies beyond what was learned from; 1 inside."""
    risks: dict[str, float]
    """Probability by class of failure; a class without evidence is not there."""
    contributions: tuple[Contribution, ...] = ()


@dataclass(frozen=True)
class TrainingRange:
    """Least and most of what was learned from."""

    flops: tuple[float, float]
    batch: tuple[float, float]
    size: tuple[float, float]

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> TrainingRange:
        sizes = [sample.size for sample in samples if not math.isnan(sample.size)] or [1.0]
        flops, batches = [sample.work.flops for sample in samples], [float(sample.batch_size) for sample in samples]
        return cls((min(flops), max(flops)), (min(batches), max(batches)), (min(sizes), max(sizes)))

    def extrapolation_factor(self, sample: Sample) -> float:
        size = self.size[0] if math.isnan(sample.size) else sample.size
        pairs = ((sample.work.flops, self.flops), (float(sample.batch_size), self.batch), (size, self.size))
        return max(1.0, *(max(value / most, least / value) for value, (least, most) in pairs))


@dataclass(frozen=True)
class ModeModel:
    """What is known of one mode."""

    latency_model: LatencyModel
    calibrations: dict[Regime, Calibration]
    range: TrainingRange
    median_log_ms: float
    """Median of the natural logs of what was learned from: where explanations begin."""

    def find_regime(self, sample: Sample) -> Regime:
        model = sample.model in self.latency_model.models
        if sample.device in self.latency_model.known_devices:
            return Regime.SEEN if model else Regime.UNSEEN_FAMILY
        if sample.device in self.latency_model.corrections:
            return Regime.FEW_SHOT if model else Regime.FEW_SHOT_UNSEEN_FAMILY
        return Regime.UNSEEN_DEVICE if model else Regime.UNSEEN_BOTH


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

    def unsupported_reason(self, sample: Sample) -> str | None:
        """Why it stands behind no figure and knows no risk of any work run as this is; None where it may."""
        if self.risks.boosters or (self.memory is not None and self.memory.supports(sample)):
            return None
        known = self.modes.get(sample.mode)
        return _unknown_mode_reason(sample.mode) if known is None else known.latency_model.unsupported_reason(sample)

    def predict(self, samples: Sequence[Sample], *, explain: bool = False) -> list[Prediction]:
        """One judgement per case, in order; with `explain` also what each feature adds, which takes long, and no figure
        that it does not stand behind."""
        found: dict[int, Prediction] = {}
        peaks = [None] * len(samples) if self.memory is None else self.memory.predict(samples)
        risks = self.risks.predict(samples, peaks)
        for mode in {sample.mode for sample in samples}:
            here = [i for i, sample in enumerate(samples) if sample.mode == mode]
            known = self.modes.get(mode)
            if known is None:
                reason = _unknown_mode_reason(mode)
                found |= {i: Prediction(None, None, False, reason, Regime.UNSEEN_BOTH, math.inf, {}) for i in here}
                continue
            supports = {i: _assess_support(known, samples[i]) for i in here}
            told = [i for i in here if supports[i].doubt is None or not explain]
            figures: dict[int, float] = {}
            why: dict[int, tuple[Contribution, ...]] = {}
            if told:
                if len(told) > _MAX_FAST_SAMPLES:
                    require_slow_path()
                asked = [samples[i] for i in told]
                if explain:
                    logs, added = known.latency_model.explain(asked)
                    for i, one in zip(told, added, strict=True):
                        why[i] = rank_contributions(known.latency_model, samples[i], one, known.median_log_ms)
                else:
                    logs = known.latency_model.predict(asked).logs
                figures = dict(zip(told, logs.tolist(), strict=True))
            for i in here:
                found[i] = _make_prediction(
                    known, samples[i], supports[i], figures.get(i), peaks[i], risks[i], why.get(i, ())
                )
        return [found[i] for i in range(len(samples))]


def _unknown_mode_reason(mode: str) -> str:
    return f"nothing in mode {mode} was learned from"


@dataclass(frozen=True)
class _Support:
    """Whether a figure will be stood behind, and how far it may be off; known before the figure is."""

    regime: Regime
    extrapolation_factor: float
    doubt: str | None
    half_width: float
    """Of the interval, in logs."""
    level: float


def _assess_support(known: ModeModel, sample: Sample) -> _Support:
    regime, extrapolation_factor = known.find_regime(sample), known.range.extrapolation_factor(sample)
    calibration = known.calibrations.get(regime)
    doubt = known.latency_model.unsupported_reason(sample)
    if doubt is None and extrapolation_factor > MAX_EXTRAPOLATION:
        doubt = f"{extrapolation_factor:.0f} times beyond anything learned from"
    if doubt is not None or calibration is None:
        few = f"too little was measured to tell how far a figure would be off where {_REGIME_TEXT[regime]}"
        return _Support(regime, extrapolation_factor, doubt or few, math.nan, math.nan)
    # Outside, a doubling may cost anything between nothing and twice what the law says of it.
    half_width = calibration.half_width + math.log(extrapolation_factor)
    if math.exp(2 * half_width) > MAX_INTERVAL_RATIO:
        doubt = f"a prediction would be uncertain by a factor of {math.exp(2 * half_width):.0f}"
    return _Support(regime, extrapolation_factor, doubt, half_width, calibration.level)


def _make_prediction(
    known: ModeModel,
    sample: Sample,
    support: _Support,
    log: float | None,
    peak: Interval | None,
    risks: dict[str, float],
    why: tuple[Contribution, ...],
) -> Prediction:
    return Prediction(
        latency_ms=None if log is None else _interval(math.exp(log), support),
        memory_peak_mib=peak,
        supported=support.doubt is None,
        reason=support.doubt or _basis_text(known, sample, support.regime),
        regime=_REPORTED_REGIME.get(support.regime, support.regime),
        extrapolation_factor=support.extrapolation_factor,
        risks=risks,
        contributions=why,
    )


def _interval(p50: float, support: _Support) -> Interval:
    """Without limits where it is not supported."""
    if support.doubt is not None:
        return Interval(p50=p50)
    spread = math.exp(support.half_width)
    return Interval(p50=p50, low=p50 / spread, high=p50 * spread, level=support.level)


_REGIME_TEXT: dict[Regime, str] = {
    Regime.SEEN: "the model and the device were measured",
    Regime.UNSEEN_FAMILY: "the model was never measured",
    Regime.UNSEEN_DEVICE: "nothing was measured on the device",
    Regime.UNSEEN_BOTH: "neither the model nor the device was ever measured",
    Regime.FEW_SHOT: "the device was hardly measured",
    Regime.FEW_SHOT_UNSEEN_FAMILY: "the device was hardly and the model never measured",
}


def _basis_text(known: ModeModel, sample: Sample, regime: Regime) -> str:
    count = known.latency_model.count_same_workload(sample)
    carried = f"; the same work was measured {count} times elsewhere or otherwise" if count else ""
    return f"learned from {len(known.latency_model.samples)} figures; {_REGIME_TEXT[regime]}{carried}"


def median_log_latency(latency_model: LatencyModel) -> float:
    """The median of the natural logs of latencies learned from."""
    return float(np.median([math.log(sample.latency_ms) for sample in latency_model.known_samples]))
