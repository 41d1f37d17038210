"""Learned predictor as it serves: latency and memory with intervals, probabilities of failure, reasons to abstain.

It has one latency model per mode, fitted to all figures. In addition, each kind of device (GPU, CPU, NPU) of the log's
own users has a model that is fitted to their figures only. Tens of these have no weight among thousands of knowledge
packs. On three hosts the median error on unseen families is 9 to 12 % that way, and 33 to 65 % with one model
for all. The memory model and the failure model serve all modes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from accel_platform.table_io.values import count_of
from predictor.calibration.cross_validation import Regime, RegimeCalibrations
from predictor.calibration.failure_model import FailureModel
from predictor.calibration.memory_model import MemoryModel
from predictor.data.fast_path import require_slow_path
from predictor.data.samples import Sample
from predictor.models.explanations import Contribution, rank_contributions
from predictor.models.latency_model import LatencyModel
from predictor.schemas.responses import Interval

MAX_EXTRAPOLATION = 10.0
"""Extrapolation factor above which nothing is predicted."""
MAX_INTERVAL_RATIO = 50.0
"""Upper over lower limit of an interval, above which it is no answer."""
_MAX_FAST_SAMPLES = 16
"""Most samples of one mode that the fast path predicts."""


class Prediction(NamedTuple):
    """Prediction of one sample."""

    latency_ms: Interval | None
    """Latency of a whole batch in ms. Without limits if unsupported; None if it was not computed."""
    memory_peak_mib: Interval | None
    supported: bool
    reason: str
    """Reason why the prediction is unsupported; if it is supported, its basis."""
    regime: Regime
    """Gap between the sample and the training set, such as an unseen family or device."""
    extrapolation_factor: float
    """Factor by which FLOPs, batch or size lie outside the training range; 1 inside."""
    risks: dict[str, float]
    """Probability by class of failure; a class without evidence is left out."""
    contributions: tuple[Contribution, ...] = ()
    """Factors of the latency, if they were asked for."""


@dataclass(frozen=True)
class TrainingRange:
    """Smallest and largest values of the training samples."""

    flops: tuple[float, float]
    batch: tuple[float, float]
    size: tuple[float, float]

    @classmethod
    def fit(cls, samples: Sequence[Sample]) -> TrainingRange:
        sizes = [sample.size for sample in samples if not math.isnan(sample.size)] or [1.0]
        flops, batches = [sample.work.flops for sample in samples], [float(sample.batch_size) for sample in samples]
        return cls((min(flops), max(flops)), (min(batches), max(batches)), (min(sizes), max(sizes)))

    def extrapolation_factor(self, sample: Sample) -> float:
        """Return by how many times FLOPs, batch or size lie outside the range; 1 inside."""
        flops, batch = sample.work.flops, float(sample.batch_size)
        size = self.size[0] if math.isnan(sample.size) else sample.size
        beyond = flops / self.flops[1], batch / self.batch[1], size / self.size[1]
        return max(1.0, *beyond, self.flops[0] / flops, self.batch[0] / batch, self.size[0] / size)


@dataclass(frozen=True)
class ModeModel:
    """Latency model of one mode, with its calibration."""

    latency_model: LatencyModel
    calibrations: RegimeCalibrations
    range: TrainingRange
    median_log_ms: float
    """Median of the natural logs of the training latencies, the typical latency that explanations start from."""

    def find_regime(self, sample: Sample) -> Regime:
        """Return what the training set lacks of a sample."""
        model = sample.model in self.latency_model.models
        if sample.device in self.latency_model.known_devices:
            return Regime.SEEN if model else Regime.UNSEEN_FAMILY
        if sample.device in self.latency_model.corrections:
            return Regime.FEW_SHOT if model else Regime.FEW_SHOT_UNSEEN_FAMILY
        return Regime.UNSEEN_DEVICE if model else Regime.UNSEEN_BOTH


def own_group(mode: str, kind: str) -> str:
    """Return the key of a mode's model for one kind of device of the log's own users: `inference, own GPUs`."""
    return f"{mode}, own {kind.upper()}s"


@dataclass(frozen=True)
class Predictor:
    """All fitted models, as an artifact holds them."""

    predictor_id: str
    snapshot_id: str
    rows: int
    families: tuple[str, ...]
    modes: dict[str, ModeModel]
    """Models by mode, and by `own_group` where the users' own figures stand beside those of others."""
    memory: MemoryModel | None
    risks: FailureModel

    def unsupported_reason(self, sample: Sample) -> str | None:
        """Return why nothing can be predicted for samples run like this one, whatever their work; None if it can."""
        if self.risks.boosters or (self.memory is not None and self.memory.supports(sample)):
            return None
        mode = self.modes.get(sample.mode)
        return _unknown_mode_reason(sample.mode) if mode is None else mode.latency_model.unsupported_reason(sample)

    def _find_group(self, sample: Sample) -> tuple[str, _Support | None]:
        """Return the key of the model that predicts a sample, and its support; None if there is no such model.

        It is the model of the users' own devices if that supports the sample, else the model of the mode.
        """
        name = own_group(sample.mode, sample.kind)
        own = self.modes.get(name)
        if own is not None and sample.device in own.latency_model.devices:
            support = _assess_support(own, sample)
            if support.doubt is None:
                return name, support
        mode = self.modes.get(sample.mode)
        return sample.mode, None if mode is None else _assess_support(mode, sample)

    def predict(self, samples: Sequence[Sample], *, explain: bool = False) -> list[Prediction]:
        """Return one prediction per sample, in order.

        With `explain` predictions have contributions, which takes longer, and unsupported ones have no latency. Raises
        SlowPathRequired for many samples of a mode on the fast path.
        """
        predictions: dict[int, Prediction] = {}
        peaks = [None] * len(samples) if self.memory is None else self.memory.predict(samples)
        risks = self.risks.predict(samples, peaks)
        groups = [self._find_group(sample) for sample in samples]
        for name in sorted({name for name, _ in groups}):
            rows = [i for i, (group, _) in enumerate(groups) if group == name]
            mode = self.modes.get(name)
            if mode is None:
                reason = _unknown_mode_reason(name)
                predictions |= {
                    i: Prediction(None, None, False, reason, Regime.UNSEEN_BOTH, math.inf, {}) for i in rows
                }
                continue
            supports = {i: support for i in rows if (support := groups[i][1]) is not None}
            computed = [i for i in rows if supports[i].doubt is None or not explain]
            logs_of: dict[int, float] = {}
            contributions: dict[int, tuple[Contribution, ...]] = {}
            if computed:
                if len(computed) > _MAX_FAST_SAMPLES:
                    require_slow_path()
                batch = [samples[i] for i in computed]
                if explain:
                    logs, terms = mode.latency_model.explain(batch)
                    for i, added in zip(computed, terms, strict=True):
                        contributions[i] = rank_contributions(mode.latency_model, samples[i], added, mode.median_log_ms)
                else:
                    logs = mode.latency_model.predict(batch).logs
                logs_of = dict(zip(computed, logs.tolist(), strict=True))
            for i in rows:
                predictions[i] = _make_prediction(
                    mode, samples[i], supports[i], logs_of.get(i), peaks[i], risks[i], contributions.get(i, ())
                )
        return [predictions[i] for i in range(len(samples))]


def _unknown_mode_reason(mode: str) -> str:
    return f"nothing in mode {mode} was learned from"


class _Support(NamedTuple):
    """Support of a sample by a model, and the width of its interval; both are known before the latency is."""

    regime: Regime
    extrapolation_factor: float
    doubt: str | None
    """Reason why the figure is unsupported; None where it is supported."""
    half_width: float
    """Half width of the interval as a natural log; NaN without a calibration."""
    level: float
    """Share of figures in the interval; NaN without a calibration."""


def _assess_support(mode: ModeModel, sample: Sample) -> _Support:
    regime, factor = mode.find_regime(sample), mode.range.extrapolation_factor(sample)
    calibration = mode.calibrations.find(regime, sample)
    doubt = mode.latency_model.unsupported_reason(sample)
    if doubt is None and factor > MAX_EXTRAPOLATION:
        doubt = f"{factor:.0f} times beyond anything learned from"
    if doubt is not None or calibration is None:
        few = f"too little was measured to tell how far a figure would be off where {_REGIME_TEXT[regime]}"
        return _Support(regime, factor, doubt or few, math.nan, math.nan)
    # Outside the training range a doubling of the work may change the latency by any factor from 1 to 4, while the
    # model says about 2. So the interval is widened by the extrapolation factor.
    half_width = calibration.half_width + math.log(factor)
    if math.exp(2 * half_width) > MAX_INTERVAL_RATIO:
        doubt = f"a prediction would be uncertain by a factor of {math.exp(2 * half_width):.0f}"
    return _Support(regime, factor, doubt, half_width, calibration.level)


def _make_prediction(
    mode: ModeModel,
    sample: Sample,
    support: _Support,
    log: float | None,
    peak: Interval | None,
    risks: dict[str, float],
    contributions: tuple[Contribution, ...],
) -> Prediction:
    return Prediction(
        latency_ms=None if log is None else _interval(math.exp(log), support),
        memory_peak_mib=peak,
        supported=support.doubt is None,
        reason=support.doubt or _basis_text(mode, sample, support.regime),
        regime=support.regime,
        extrapolation_factor=support.extrapolation_factor,
        risks=risks,
        contributions=contributions,
    )


def _interval(p50: float, support: _Support) -> Interval:
    """Return the interval around a latency in ms, without limits if it is unsupported."""
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


def _basis_text(mode: ModeModel, sample: Sample, regime: Regime) -> str:
    count = mode.latency_model.count_same_workload(sample)
    transfer = f"; the same work was measured {count_of(count, 'time')} elsewhere or otherwise" if count else ""
    return f"learned from {count_of(len(mode.latency_model.samples), 'figure')}; {_REGIME_TEXT[regime]}{transfer}"


def median_log_latency(latency_model: LatencyModel) -> float:
    """Return the median of the natural logs of the latencies of known devices, in ms."""
    return float(np.median([math.log(sample.latency_ms) for sample in latency_model.known_samples]))
