"""What is predicted for a case, from cases: the law, trees on what the law leaves over, and the same work elsewhere.

Four kinds of knowledge, each for what it can bear:

* the *specialist*, trees that know devices by name, speaks for a device with many figures;
* the *generalist*, trees of one kind of silicon that see no device but its vendor's level, speaks for a device of that
  kind nobody measured;
* a model measured elsewhere is carried over: its figures there, times what the trees say of the difference, in part;
* of one measured nowhere, models like it on a known device have a say of their own (`alike`).

A few figures of a new device correct it as a whole (`Correction`). How sure any of this is, is not here.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from predictor.data.samples import Sample, weight_bytes
from predictor.models.analytical import AdditiveRoofline, has_known_rates
from predictor.models.few_shot import Correction
from predictor.models.gaussian_process import ArchitectureGP
from predictor.models.residual_trees import ROUNDS, ResidualTrees

Array = npt.NDArray[np.float64]
MIN_DEVICE_SAMPLES = 50
"""Figures below which a device has not been measured enough to have a specialist."""
_MIN_GENERALIST_SAMPLES = 200
_SPECIALIST_NAMES = ("device", "backend", "precision", "layout", "compiler", "kind", "mode", "setting")
_GENERALIST_NAMES = tuple(name for name in _SPECIALIST_NAMES if name not in ("device", "kind", "setting"))


def log_latency(samples: Sequence[Sample]) -> Array:
    """Natural logs of latencies in ms."""
    return np.log([sample.latency_ms for sample in samples])


@dataclass(frozen=True)
class LatencyPrediction:
    """Natural logs of latencies, and where the learner stands behind them."""

    logs: Array
    supported: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class FittedEnsembles:
    """All that takes long to fit: what is stored of a learner beside its cases."""

    specialist: ResidualTrees
    generalists: dict[str, ResidualTrees]
    """By kind of silicon, where there is enough of it."""
    known_device_residuals: Array
    """Per learned case, what the specialist leaves over, in logs: what is carried over to known devices."""
    new_device_residuals: Array
    """As the generalists, else the law, leave over: what is carried over to devices nobody measured."""


class LatencyModel:
    """Fitted on cases, at least one; speaks of others. Everything is deterministic, and grown when it is asked for."""

    def __init__(
        self, samples: Sequence[Sample], *, rounds: int = ROUNDS, ensembles: FittedEnsembles | None = None
    ) -> None:
        self.samples = list(samples)
        counts = Counter(sample.device for sample in samples)
        # Where every device has few, the better measured ones have to do.
        enough = min(MIN_DEVICE_SAMPLES, max(counts.values()) / 8)
        self.known_devices = {device for device, count in counts.items() if count >= enough}
        learned = [sample for sample in samples if sample.device in self.known_devices]
        logs = log_latency(learned)
        self.known_samples = learned
        self._logs, self._rounds = logs, rounds
        self._analytical = AdditiveRoofline.fit(learned, logs)
        self._architecture_gp = ArchitectureGP(learned, logs, self._analytical)
        self._specialist_trees: ResidualTrees | None = None
        self._generalists: dict[str, ResidualTrees | None] = {}
        self._ensembles = ensembles
        self._rows_by_workload: dict[Any, list[int]] = defaultdict(list)
        for i, sample in enumerate(learned):
            self._rows_by_workload[sample.shape].append(i)
        self._distance = _SettingDistance.of(learned)
        self.models = {sample.model for sample in samples}
        self._run_modes = {(sample.kind, sample.backend, sample.compiler) for sample in samples}
        self._weight_widths = {(sample.kind, weight_bytes(sample.precision, sample.mode)) for sample in samples}
        self._counting_methods = {(sample.kind, sample.counted) for sample in samples}
        self._input_kinds = {(sample.kind, sample.reads) for sample in samples}
        self.corrections: dict[str, Correction] = {}
        self.adapt([sample for sample in samples if sample.device not in self.known_devices])

    def predict(self, samples: Sequence[Sample]) -> LatencyPrediction:
        """One figure per case, and whether it is supported by figures of its kind of silicon and way of running."""
        logs = self._predict_uncorrected(samples)
        logs += self._predict_corrections(samples, logs)
        return LatencyPrediction(
            logs, np.array([self.unsupported_reason(sample) is None for sample in samples], dtype=bool)
        )

    def explain(self, samples: Sequence[Sample]) -> tuple[Array, list[dict[str, float]]]:
        """The same figures, and what adds up to each, by name: of the trees what each group of numbers changes."""
        found: list[dict[str, float]] = [{} for _ in samples]
        by_trees: dict[str | None, list[int]] = defaultdict(list)
        for i, sample in enumerate(samples):
            by_trees[None if sample.device in self.known_devices else sample.kind].append(i)
        for kind, here in by_trees.items():
            trees, asked = self._specialist() if kind is None else self._generalist(kind), [samples[i] for i in here]
            if trees is None:
                parts = [{"physical law": log} for log in self._analytical.predict_log(asked).tolist()]
            else:
                parts = trees.shap_values(asked)
            for i, added in zip(here, parts, strict=True):
                found[i] = added
        alone = np.array([sum(added.values()) for added in found])
        uncorrected = self._predict_uncorrected(samples, alone)
        corrected = self._predict_corrections(samples, uncorrected)
        more = (uncorrected - alone).tolist()
        for sample, added, beside, few in zip(samples, found, more, corrected.tolist(), strict=True):
            added["same work measured elsewhere" if self.count_same_workload(sample) else "models like it"] = beside
            added["few figures of this device"] = few
        return uncorrected + corrected, found

    def unsupported_reason(self, sample: Sample) -> str | None:
        """Why the learner does not stand behind its figure; None where it does."""
        if (sample.kind, sample.backend, sample.compiler) not in self._run_modes:
            compiled = f", compiled by {sample.compiler}" if sample.compiler else ""
            return f"nothing was learned from {sample.backend} on any {sample.kind}{compiled}"
        if (sample.kind, weight_bytes(sample.precision, sample.mode)) not in self._weight_widths:
            return f"nothing as wide as precision {sample.precision} was learned from on any {sample.kind}"
        if (sample.kind, sample.counted) not in self._counting_methods:
            return f"no model whose activations are counted by {sample.counted} was learned from on any {sample.kind}"
        if (sample.kind, sample.reads) not in self._input_kinds:
            return f"no model that reads {sample.reads} was learned from on any {sample.kind}"
        if not has_known_rates(sample) and sample.device not in self.known_devices | self.corrections.keys():
            return f"not one figure of {sample.device} was learned from, and its peak or bandwidth is not known"
        return None

    def adapt(self, few: Sequence[Sample]) -> None:
        """Take in a few figures of devices that are not known."""
        by_device: dict[str, list[Sample]] = defaultdict(list)
        for sample in few:
            by_device[sample.device].append(sample)
        for device, samples in sorted(by_device.items()):
            logs = self._predict_uncorrected(samples)
            self.corrections[device] = Correction.fit(
                samples, self._beyond_analytical(samples, logs), log_latency(samples) - logs
            )

    def fit(self) -> FittedEnsembles:
        """Fit all that has not been asked for yet, too: the specialist and the generalists side by side."""
        if self._ensembles is None:
            everything = list(range(len(self.known_samples)))
            kinds = sorted({sample.kind for sample in self.known_samples})
            # Boosting and predicting leave Python to itself, so threads of it do not wait for each other.
            with ThreadPoolExecutor(max_workers=2) as pool:
                known = pool.submit(self._residuals, everything, known=True)
                new = pool.submit(self._residuals, everything, known=False)
                left = known.result(), new.result()
            found = {kind: self._generalist(kind) for kind in kinds}
            generalists = {kind: trees for kind, trees in found.items() if trees is not None}
            self._ensembles = FittedEnsembles(self._specialist(), generalists, *left)
        return self._ensembles

    def warm_up(self) -> None:
        """Make what the first cases would wait for."""
        self._architecture_gp.warm_up()
        ensembles = self.fit()
        for trees in (ensembles.specialist, *ensembles.generalists.values()):
            trees.warm_up()

    def count_same_workload(self, sample: Sample) -> int:
        """How many figures of the same work can be carried over to the case."""
        return len(self._rows_by_workload.get(sample.shape, ()))

    def _beyond_analytical(self, samples: Sequence[Sample], logs: Array) -> Array:
        """How far these logs lie from the law, which is what sets models apart whose cost is the same."""
        return logs - self._analytical.predict_log(samples)

    def _predict_corrections(self, samples: Sequence[Sample], uncorrected: Array) -> Array:
        """By how much, which is nothing but on devices with few figures."""
        logs = np.zeros(len(samples))
        for device, correction in self.corrections.items():
            here = [i for i, sample in enumerate(samples) if sample.device == device]
            if here:
                asked = [samples[i] for i in here]
                logs[here] = correction.predict(asked, self._beyond_analytical(asked, uncorrected[here]))
        return logs

    def _predict_uncorrected(self, samples: Sequence[Sample], alone: Array | None = None) -> Array:
        logs = np.empty(len(samples))
        known = np.array([sample.device in self.known_devices for sample in samples], dtype=bool)
        for here, are_known in ((np.flatnonzero(known).tolist(), True), (np.flatnonzero(~known).tolist(), False)):
            if here:
                by_trees = None if alone is None else alone[here]
                logs[here] = self._predict_group([samples[i] for i in here], by_trees, known=are_known)
        return logs

    def _predict_group(self, samples: Sequence[Sample], alone: Array | None, *, known: bool) -> Array:
        """As the trees say (`alone`, where that is known already), and where the same work was measured elsewhere off
        as they are there, by a share that shrinks with how differently it was run; of other work on a known device, the
        mean of them and of what models like it say."""
        logs = self._predict_trees(samples, known=known) if alone is None else alone.copy()
        sources = [self._rows_by_workload.get(sample.shape, []) for sample in samples]
        there = sorted({j for found in sources for j in found})
        if there:
            left = self._residuals(there, known=known)
            by_shape: dict[Any, list[int]] = defaultdict(list)
            for i, sample in enumerate(samples):
                by_shape[sample.shape].append(i)
            for here in by_shape.values():
                if rows := sources[here[0]]:
                    weights = np.exp(-self._distance.distances([samples[i] for i in here], np.array(rows)))
                    total = weights.sum(axis=1)
                    logs[here] += total / (total + _PRIOR_WEIGHT) * _weighted_medians(left[rows], weights)
        # Of decoders their cost says it all: nothing in their names tells what they are built of.
        new = [i for i, rows in enumerate(sources) if known and not rows and samples[i].mode != "generation"]
        if new:
            like = self._architecture_gp.predict_log([samples[i] for i in new])
            logs[new] = np.where(np.isnan(like), logs[new], (logs[new] + like) / 2)
        return logs

    def _residuals(self, rows: list[int], *, known: bool) -> Array:
        """Per learned case, at least of these rows; NaN where nobody knows yet."""
        if self._ensembles is not None:
            return self._ensembles.known_device_residuals if known else self._ensembles.new_device_residuals
        left = np.full(len(self.known_samples), np.nan)
        left[rows] = self._logs[rows] - self._predict_trees([self.known_samples[j] for j in rows], known=known)
        return left

    def _predict_trees(self, samples: Sequence[Sample], *, known: bool) -> Array:
        if known:
            return self._specialist().predict_log(samples)
        logs = self._analytical.predict_log(samples)
        for kind in {sample.kind for sample in samples}:
            trees = self._generalist(kind)
            if trees is not None:
                here = [i for i, sample in enumerate(samples) if sample.kind == kind]
                logs[here] = trees.predict_log([samples[i] for i in here])
        return logs

    def _specialist(self) -> ResidualTrees:
        if self._ensembles is not None:
            return self._ensembles.specialist
        if self._specialist_trees is None:
            self._specialist_trees = ResidualTrees.fit(self.known_samples, self._logs, _SPECIALIST_NAMES, self._rounds)
        return self._specialist_trees

    def _generalist(self, kind: str) -> ResidualTrees | None:
        if self._ensembles is not None:
            return self._ensembles.generalists.get(kind)
        if kind not in self._generalists:
            rows = [i for i, sample in enumerate(self.known_samples) if sample.kind == kind and has_known_rates(sample)]
            enough = len(rows) >= _MIN_GENERALIST_SAMPLES
            told = [self.known_samples[i] for i in rows]
            self._generalists[kind] = (
                ResidualTrees.fit(told, self._logs[rows], _GENERALIST_NAMES, self._rounds) if enough else None
            )
        return self._generalists[kind]


_MISMATCH_PENALTIES = {"compiler": 6.0, "kind": 3.0, "layout": 3.0, "backend": 3.0, "hardware": 2.0, "device": 2.0}
"""How much less a figure says of the same work where one of these differs, in logs of its weight."""
_PENALTIES = np.array(list(_MISMATCH_PENALTIES.values()))
_PRIOR_WEIGHT = math.exp(-4.0)
"""Weight of carrying nothing over: that of one figure of another device behind another kind of driver."""


@dataclass(frozen=True)
class _SettingDistance:
    """Where and how each learned case was run."""

    codes: Mapping[str, dict[str, int]]
    names: npt.NDArray[np.int64]
    devices: Array
    version: Array

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> _SettingDistance:
        codes = {
            name: {v: i for i, v in enumerate(sorted({getattr(c, name) for c in samples}))}
            for name in _MISMATCH_PENALTIES
        }
        names = np.array([[codes[n][getattr(c, n)] for n in _MISMATCH_PENALTIES] for c in samples], dtype=np.int64)
        return cls(codes, names, np.log2([c.devices for c in samples]), np.array([c.version for c in samples]))

    def distances(self, samples: Sequence[Sample], rows: npt.NDArray[np.int64]) -> Array:
        """How little the figures of these rows say of the same work in each case: 0 for one device run in one way."""
        own = np.array(
            [[codes.get(getattr(sample, name), -1) for name, codes in self.codes.items()] for sample in samples]
        )
        devices = np.array([[math.log2(sample.devices)] for sample in samples])
        versions = np.array([[sample.version] for sample in samples])
        differ = (self.names[rows] != own[:, None]) @ _PENALTIES + 2.0 * np.abs(self.devices[rows] - devices)
        # An unknown version differs from none.
        return np.asarray(differ + np.nan_to_num(np.minimum(np.abs(self.version[rows] - versions) / 50, 2.0)))


def _weighted_medians(values: Array, weights: Array) -> Array:
    """By row of weights the value at which half of the weight is reached: one odd device among the sources does not
    count."""
    order = np.argsort(values)
    reached = np.cumsum(weights[:, order], axis=1)
    return np.asarray(values[order[(reached < reached[:, -1:] / 2).sum(axis=1)]])
