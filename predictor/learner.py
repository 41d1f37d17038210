"""What is predicted for a case, from cases: the law, trees on what the law leaves over, and the same work elsewhere.

Three kinds of knowledge, each for what it can bear:

* the *specialist*, trees that know devices by name, speaks for a device with many figures;
* the *generalist*, trees of one kind of silicon that see no device, speaks for a device of that kind nobody measured;
* a model measured elsewhere is carried over: its figures there, times what the trees say of the difference.

A few figures of a new device correct it as a whole (`_Correction`). Where neither the kind of silicon nor the way of
running was ever measured, the learner still computes a figure but does not stand behind it: `supported` is False.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import lightgbm as lgb
import numpy as np
import numpy.typing as npt

from predictor.blocks import blocks_of
from predictor.cases import Case
from predictor.law import Law, parts_ms

Array = npt.NDArray[np.float64]
FEW = 50
"""Figures below which a device has not been measured enough to have a specialist."""
_ENOUGH = 200
_RIDGE = 10.0
_NAMES = ("device", "backend", "precision", "layout", "compiler", "kind", "mode", "setting")
_ROUNDS = 600
_PARAMETERS: dict[str, Any] = {
    "objective": "l1",
    "learning_rate": 0.05,
    "num_leaves": 15,
    "min_data_in_leaf": 50,
    "feature_fraction": 0.6,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "seed": 0,
    "verbosity": -1,
}


def log_latency(cases: Sequence[Case]) -> Array:
    """Natural logs of latencies in ms."""
    return np.log([case.latency_ms for case in cases])


@dataclass(frozen=True)
class Encoder:
    """Cases as numbers; a name never seen is NaN."""

    codes: dict[str, dict[str, int]]

    @classmethod
    def fit(cls, cases: Sequence[Case], names: Sequence[str]) -> Encoder:
        return cls({name: {v: i for i, v in enumerate(sorted({getattr(c, name) for c in cases}))} for name in names})

    def numbers(self, cases: Sequence[Case]) -> Array:
        """Cost in logs, intensities, the parts of the law, setting and names."""
        rows = []
        for c in cases:
            w, batch, size = c.work, np.log(c.batch_size), np.log(c.size)
            p, f, a = np.log(w.parameters), np.log(max(w.flops, 1.0)) - batch, np.log(w.activation_bytes) - batch
            cost = (p, f, a, size, batch, f - a, p - f, f - 2 * size, a - 2 * size, batch + a, np.log(w.steps))
            codes = (known.get(getattr(c, name), np.nan) for name, known in self.codes.items())
            rows.append((*cost, c.version, np.log(c.devices), *codes, *blocks_of(c.model)))
        parts = np.log(np.maximum(parts_ms(cases), 1e-12))
        per_item = parts[:, :3] - np.log([[case.batch_size] for case in cases])
        return np.hstack(
            [np.array(rows, dtype=np.float64), parts, per_item, np.logaddexp.reduce(per_item, axis=1)[:, None]]
        )

    def columns(self, cases: Sequence[Case]) -> Array:
        """For the ridge: 1, costs, parts of the law and blocks as they are, a column per name."""
        numbers = self.numbers(cases)
        coded = slice(13, 13 + len(self.codes))
        hot = [
            numbers[:, 13 + i, None] == np.arange(len(known))[None, :] for i, known in enumerate(self.codes.values())
        ]
        plain = np.nan_to_num(np.delete(numbers, [*range(*coded.indices(numbers.shape[1])), 11], axis=1))
        return np.hstack([np.ones((len(cases), 1)), plain, *map(np.asarray, hot)]).astype(np.float64)


@dataclass(frozen=True)
class Trees:
    """The mean of two boosted models: one of what the law leaves over, one of what law and ridge leave over."""

    law: Law
    level: float
    """What devices have in common beyond the law, where they are not told apart."""
    encoder: Encoder
    mean: Array
    scale: Array
    coefficients: Array
    boosters: tuple[lgb.Booster, lgb.Booster]

    @classmethod
    def fit(cls, cases: Sequence[Case], logs: Array, names: Sequence[str]) -> Trees:
        law = Law.fit(cases, logs)
        encoder = Encoder.fit(cases, names)
        left = logs - law.logs(cases)
        level, smooth = 0.0, "device" not in names
        if smooth:
            left, level = _levelled(left, [case.device for case in cases])
        design = encoder.columns(cases)
        mean, scale = design.mean(axis=0), design.std(axis=0) + 1e-9
        mean[0], scale[0] = 0.0, 1.0
        design = (design - mean) / scale
        penalty = np.eye(design.shape[1]) * _RIDGE
        penalty[0, 0] = 0.0
        coefficients = np.linalg.solve(design.T @ design + penalty, design.T @ left)
        numbers = encoder.numbers(cases)
        # Random thresholds are smoother, which is what carries to devices the trees never saw.
        boosters = (
            _boost(numbers, left),
            _boost(numbers, left - design @ coefficients, extra_trees=smooth),
        )
        return cls(law, level, encoder, mean, scale, coefficients, boosters)

    def logs(self, cases: Sequence[Case]) -> Array:
        """Natural logs of latencies."""
        numbers = self.encoder.numbers(cases)
        ridge = (self.encoder.columns(cases) - self.mean) / self.scale @ self.coefficients
        plain, over_ridge = (np.asarray(b.predict(numbers, num_threads=1)) for b in self.boosters)
        return np.asarray(self.law.logs(cases) + self.level + (plain + over_ridge + ridge) / 2)


@dataclass(frozen=True)
class Predicted:
    """Natural logs of latencies, and where the learner stands behind them."""

    logs: Array
    supported: npt.NDArray[np.bool_]


class Learner:
    """Fitted on cases, at least one; speaks of others. Everything is deterministic."""

    def __init__(self, cases: Sequence[Case]) -> None:
        counts = Counter(case.device for case in cases)
        # Where every device has few, the best measured ones have to do.
        enough = min(FEW, max(counts.values()))
        self._known = {device for device, count in counts.items() if count >= enough}
        learned = [case for case in cases if case.device in self._known]
        logs = log_latency(learned)
        self._cases, self._logs = learned, logs
        self._law = Law.fit(learned, logs)
        self._specialist: Trees | None = None
        self._generalists: dict[str, Trees | None] = {}
        self._measured: dict[Any, list[int]] = defaultdict(list)
        for i, case in enumerate(learned):
            self._measured[case.shape].append(i)
        self._ways = {(case.kind, case.compiler) for case in cases}
        self._corrections = self._correct([case for case in cases if case.device not in self._known])

    def predict(self, cases: Sequence[Case]) -> Predicted:
        """One figure per case, and whether it is supported by figures of its kind of silicon and way of running."""
        logs = self._uncorrected(cases)
        for device, correction in self._corrections.items():
            here = [i for i, case in enumerate(cases) if case.device == device]
            if here:
                logs[here] += correction.of([cases[i] for i in here])
        return Predicted(logs, np.array([(case.kind, case.compiler) in self._ways for case in cases]))

    def _uncorrected(self, cases: Sequence[Case]) -> Array:
        logs = np.empty(len(cases))
        known = np.array([case.device in self._known for case in cases])
        for here, which in ((np.flatnonzero(known).tolist(), True), (np.flatnonzero(~known).tolist(), False)):
            if here:
                logs[here] = self._of([cases[i] for i in here], known=which)
        return logs

    def _of(self, cases: Sequence[Case], *, known: bool) -> Array:
        """Carried over from elsewhere where the same work was measured, else as the trees say."""
        sources = [self._measured.get(case.shape, []) for case in cases]
        logs = np.empty(len(cases))
        carried = np.array([bool(found) for found in sources])
        if not carried.all():
            fresh = np.flatnonzero(~carried).tolist()
            logs[fresh] = self._trees([cases[i] for i in fresh], known=known)
        if carried.any():
            here = np.flatnonzero(carried).tolist()
            there = sorted({j for i in here for j in sources[i]})
            at = {j: n for n, j in enumerate(there)}
            elsewhere = [self._cases[j] for j in there]
            between = self._trees([cases[i] for i in here], known=known)
            base = self._trees(elsewhere, known=known)
            left = self._logs[there] - base
            for n, i in enumerate(here):
                rows = [at[j] for j in sources[i]]
                weights = np.exp([-_apart(cases[i], elsewhere[r]) for r in rows])
                logs[i] = between[n] + _weighted_median(left[rows], weights)
        return logs

    def _trees(self, cases: Sequence[Case], *, known: bool) -> Array:
        if known:
            if self._specialist is None:
                self._specialist = Trees.fit(self._cases, self._logs, _NAMES)
            return self._specialist.logs(cases)
        logs = self._law.logs(cases)
        for kind in {case.kind for case in cases}:
            if kind not in self._generalists:
                rows = [i for i, case in enumerate(self._cases) if case.kind == kind]
                names = [name for name in _NAMES if name not in ("device", "kind", "setting")]
                enough = len(rows) >= _ENOUGH
                self._generalists[kind] = (
                    Trees.fit([self._cases[i] for i in rows], self._logs[rows], names) if enough else None
                )
            trees = self._generalists[kind]
            if trees is not None:
                here = [i for i, case in enumerate(cases) if case.kind == kind]
                logs[here] = trees.logs([cases[i] for i in here])
        return logs

    def _correct(self, few: Sequence[Case]) -> dict[str, _Correction]:
        by_device: dict[str, list[Case]] = defaultdict(list)
        for case in few:
            by_device[case.device].append(case)
        return {
            device: _Correction.fit(cases, log_latency(cases) - self._uncorrected(cases))
            for device, cases in sorted(by_device.items())
        }


@dataclass(frozen=True)
class _Correction:
    """How a device as a whole differs from what was expected of it: Bayesian regression on what ten figures can tell.

    Prior standard deviations, in logs: of the device 1, of being compiled 0.4, of intensity, work and batch 0.1 each.
    """

    centre: Array
    scale: Array
    coefficients: Array

    @classmethod
    def fit(cls, cases: Sequence[Case], left: Array) -> _Correction:
        raw = _described(cases)
        centre, scale = raw.mean(axis=0), np.maximum(raw.std(axis=0), 1e-6)
        design = _with_one((raw - centre) / scale)
        prior = np.diag(np.array([1.0, 0.4, 0.1, 0.1, 0.1]) ** 2)
        noise = 0.2**2 * np.eye(len(cases))
        coefficients = prior @ design.T @ np.linalg.solve(design @ prior @ design.T + noise, left)
        return cls(centre, scale, coefficients)

    def of(self, cases: Sequence[Case]) -> Array:
        # What lies far outside the few figures is corrected no further than they reach.
        return _with_one(np.clip((_described(cases) - self.centre) / self.scale, -3, 3)) @ self.coefficients


def _levelled(left: Array, devices: Sequence[str]) -> tuple[Array, float]:
    """What is left with each device's own median taken off, so that no tree learns which device it has before it; and
    the median of these medians."""
    names, codes = np.unique(devices, return_inverse=True)
    medians = np.array([np.median(left[codes == code]) for code in range(len(names))])
    return left - medians[codes], float(np.median(medians))


def _described(cases: Sequence[Case]) -> Array:
    parts = np.log(np.maximum(parts_ms(cases), 1e-12))
    compiled = np.array([bool(case.compiler) for case in cases], dtype=np.float64)
    batch = np.log([case.batch_size for case in cases])
    return np.column_stack([compiled, parts[:, 0] - parts[:, 1], parts[:, 1] - batch, batch])


def _with_one(design: Array) -> Array:
    return np.hstack([np.ones((len(design), 1)), design])


def _apart(case: Case, other: Case) -> float:
    """How little a figure of `other` says of the same work in `case`: 0 for the same device run the same way."""
    version = abs(case.version - other.version) / 50
    return (
        6.0 * (case.compiler != other.compiler)
        + 3.0 * (case.kind != other.kind)
        + 3.0 * (case.layout != other.layout)
        + 3.0 * (case.backend != other.backend)
        + 2.0 * (case.hardware != other.hardware)
        + 2.0 * (case.device != other.device)
        + 2.0 * abs(float(np.log2(case.devices / other.devices)))
        + (0.0 if np.isnan(version) else min(version, 2.0))
    )


def _weighted_median(values: Array, weights: Array) -> float:
    """The value at which half of the weight is reached: one odd device among the sources does not count."""
    order = np.argsort(values)
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, reached[-1] / 2)])


def _boost(numbers: Array, target: Array, **more: Any) -> lgb.Booster:
    parameters = {**_PARAMETERS, **more}
    return lgb.train(parameters, lgb.Dataset(numbers, label=target, params=parameters), num_boost_round=_ROUNDS)
