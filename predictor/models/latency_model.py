"""Latency model: analytical roofline, boosted trees on its residuals, and transfer from the same workload elsewhere.

Each component answers for what it can support:

* the *specialist*, trees that know devices by name, for a device with many figures;
* the *generalist*, trees of one kind of silicon that know only a device's vendor, for an unmeasured device;
* transfer: a model measured elsewhere takes a share of the trees' residuals there;
* for a model measured nowhere, a Gaussian process over architectures (`ArchitectureGP`), on a known device.

A few figures of a new device correct it as a whole (`FewShotCorrection`).
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

from predictor.data.number_widths import weight_bytes
from predictor.data.roofline import has_known_rates
from predictor.data.samples import Sample
from predictor.models.analytical import AdditiveRoofline
from predictor.models.few_shot import FewShotCorrection
from predictor.models.gaussian_process import ArchitectureGP
from predictor.models.residual_trees import ROUNDS, ResidualTrees

Array = npt.NDArray[np.float64]
MIN_DEVICE_SAMPLES = 50
"""Figures that a device needs for the specialist."""
_MIN_GENERALIST_SAMPLES = 200
_MIN_FAMILIES = 3
"""Model families that a device's figures with a runtime need before a model of any family is predicted there."""
_MIN_FAMILY_SAMPLES = 10
"""Figures of one's own family that do instead."""
_SPECIALIST_NAMES = ("device", "backend", "precision", "layout", "compiler", "kind", "mode", "setting")
_GENERALIST_NAMES = tuple(name for name in _SPECIALIST_NAMES if name not in ("device", "kind", "setting"))


def known_device_count(counts: Mapping[str, int]) -> float:
    """Return the number of figures from which on a device is known; `counts` has that of each device."""
    # Relative to the best measured device, because all may have few figures.
    return min(MIN_DEVICE_SAMPLES, max(counts.values(), default=0) / 8)


def known_of(samples: Sequence[Sample]) -> list[Sample]:
    """Return the samples of devices with enough figures to be known, to which the trees are fitted."""
    counts = Counter(sample.device for sample in samples)
    least = known_device_count(counts)
    return [sample for sample in samples if counts[sample.device] >= least]


def log_latency(samples: Sequence[Sample]) -> Array:
    """Return natural logs of the measured latencies in ms."""
    return np.log([sample.latency_ms for sample in samples])


@dataclass(frozen=True)
class LatencyPrediction:
    """Natural logs of latencies in ms, and whether each is supported."""

    logs: Array
    supported: npt.NDArray[np.bool_]


@dataclass(frozen=True)
class FittedEnsembles:
    """Fitted parts of a latency model that take long to fit. An artifact stores them beside the samples."""

    specialist: ResidualTrees
    generalists: dict[str, ResidualTrees]
    """Generalist by kind of silicon (gpu, cpu, npu), where that has enough samples."""
    known_device_residuals: Array
    """Log residual of the specialist on each known sample, for transfer to known devices."""
    new_device_residuals: Array
    """Log residual of the generalist, else of the roofline, on each known sample, for transfer to new devices."""


class LatencyModel:
    """Latency model fitted to one sample at least. It is deterministic, and its parts are fitted on first use.

    A *known* device has enough figures for trees (`known_device_count`), and known samples are those of known devices.
    """

    def __init__(
        self, samples: Sequence[Sample], *, rounds: int = ROUNDS, ensembles: FittedEnsembles | None = None
    ) -> None:
        self.samples = list(samples)
        counts = Counter(sample.device for sample in samples)
        known_samples = known_of(samples)
        self.known_devices = {sample.device for sample in known_samples}
        logs = log_latency(known_samples)
        self.known_samples = known_samples
        self._logs, self._rounds = logs, rounds
        self._analytical = AdditiveRoofline.fit(known_samples, logs)
        self._architecture_gp = ArchitectureGP(known_samples, logs, self._analytical)
        self._specialist_trees: ResidualTrees | None = None
        self._generalists: dict[str, ResidualTrees | None] = {}
        self._ensembles = ensembles
        self._rows_by_workload: dict[Any, list[int]] = defaultdict(list)
        for i, sample in enumerate(known_samples):
            self._rows_by_workload[sample.workload_key].append(i)
        self._distance = _SettingDistance.fit(known_samples)
        self.models = {sample.model for sample in samples}
        self.devices = set(counts)
        self._families: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for sample in samples:
            self._families[sample.device, sample.backend][sample.family] += 1
        self._least_of_runtime = known_device_count(counts)
        self._run_modes = {(sample.kind, sample.backend, sample.compiler) for sample in samples}
        self._weight_widths = {(sample.kind, weight_bytes(sample.precision, sample.mode)) for sample in samples}
        self._counting_methods = {(sample.kind, sample.counted) for sample in samples}
        self._input_kinds = {(sample.kind, sample.backend, sample.reads) for sample in samples}
        self.corrections: dict[str, FewShotCorrection] = {}
        self._corrected_runtimes: dict[str, set[str]] = {}
        """Runtimes of the figures that each correction was fitted to, by device."""
        self.adapt([sample for sample in samples if sample.device not in self.known_devices])

    def predict(self, samples: Sequence[Sample]) -> LatencyPrediction:
        """Return the log latency of each sample, and whether figures of its kind of silicon and run mode support it."""
        logs = self._predict_uncorrected(samples)
        logs += self._predict_corrections(samples, logs)
        return LatencyPrediction(
            logs, np.array([self.unsupported_reason(sample) is None for sample in samples], dtype=bool)
        )

    def explain(self, samples: Sequence[Sample]) -> tuple[Array, list[dict[str, float]]]:
        """Return the same logs as `predict`, and for each its terms by name, which add up to it.

        The trees have one term per group of features.
        """
        terms: list[dict[str, float]] = [{} for _ in samples]
        rows_by_kind: dict[str | None, list[int]] = defaultdict(list)
        for i, sample in enumerate(samples):
            rows_by_kind[None if sample.device in self.known_devices else sample.kind].append(i)
        for kind, rows in rows_by_kind.items():
            trees, group = self._specialist() if kind is None else self._generalist(kind), [samples[i] for i in rows]
            if trees is None:
                tree_terms = [{"physical law": log} for log in self._analytical.predict_log(group).tolist()]
            else:
                tree_terms = trees.shap_values(group)
            for i, added in zip(rows, tree_terms, strict=True):
                terms[i] = added
        by_trees = np.array([sum(added.values()) for added in terms])
        uncorrected = self._predict_uncorrected(samples, by_trees)
        corrections = self._predict_corrections(samples, uncorrected)
        transferred = (uncorrected - by_trees).tolist()
        for sample, added, transfer, correction in zip(samples, terms, transferred, corrections.tolist(), strict=True):
            added["same work measured elsewhere" if self.count_same_workload(sample) else "models like it"] = transfer
            added["few figures of this device"] = correction
        return uncorrected + corrections, terms

    def unsupported_reason(self, sample: Sample) -> str | None:
        """Return why the model does not support a sample; None if it does."""
        if (sample.kind, sample.backend, sample.compiler) not in self._run_modes:
            compiled = f", compiled by {sample.compiler}" if sample.compiler else ""
            return f"nothing was learned from {sample.backend} on any {sample.kind}{compiled}"
        if (sample.kind, weight_bytes(sample.precision, sample.mode)) not in self._weight_widths:
            return f"nothing as wide as precision {sample.precision} was learned from on any {sample.kind}"
        if (sample.kind, sample.counted) not in self._counting_methods:
            return f"no model whose activations are counted by {sample.counted} was learned from on any {sample.kind}"
        if (sample.kind, sample.backend, sample.reads) not in self._input_kinds:
            return f"no model that reads {sample.reads} was learned from with {sample.backend} on any {sample.kind}"
        return self._missing_of_device(sample)

    def _missing_of_device(self, sample: Sample) -> str | None:
        """Return what too little was learned of: the device, or its runtime; None if enough was of both."""
        known = sample.device in self.known_devices
        families = self._families.get((sample.device, sample.backend), Counter())
        if known and families.total() < self._least_of_runtime:
            # Its figures with other runtimes tell how fast the device is, and not how far this one would be off.
            return f"too few figures of {sample.device} with {sample.backend} were learned from: {families.total()}"
        if known and len(families) < _MIN_FAMILIES and families[sample.family] < _MIN_FAMILY_SAMPLES:
            # Many batch sizes of one model tell no more of another one than a single batch size does.
            only = " and ".join(sorted(families))
            return f"only models of {only} were learned from on {sample.device} with {sample.backend}"
        if not known and not has_known_rates(sample):
            unknown = "was learned from, and its peak or bandwidth is not known"
            if sample.device not in self.corrections:
                return f"not one figure of {sample.device} {unknown}"
            if sample.backend not in self._corrected_runtimes[sample.device]:
                return f"not one figure of {sample.device} with {sample.backend} {unknown}"
        return None

    def adapt(self, samples: Sequence[Sample]) -> None:
        """Fit a correction for each device that is not known to its few samples."""
        by_device: dict[str, list[Sample]] = defaultdict(list)
        for sample in samples:
            by_device[sample.device].append(sample)
        everything = [sample for _, few in sorted(by_device.items()) for sample in few]
        if not everything:
            return
        logs = self._predict_uncorrected(everything)
        beyond, residuals = self._beyond_analytical(everything, logs), log_latency(everything) - logs
        first = 0
        for device, few in sorted(by_device.items()):
            here = slice(first, first := first + len(few))
            self.corrections[device] = FewShotCorrection.fit(few, beyond[here], residuals[here])
            self._corrected_runtimes[device] = {sample.backend for sample in few}

    def fit(self) -> FittedEnsembles:
        """Fit the specialist and the generalists in parallel, unless they are fitted already."""
        if self._ensembles is None:
            everything = list(range(len(self.known_samples)))
            kinds = sorted({sample.kind for sample in self.known_samples})
            # Threads suffice, because boosting and predicting release the GIL.
            with ThreadPoolExecutor(max_workers=2) as pool:
                known = pool.submit(self._residuals, everything, known=True)
                new = pool.submit(self._residuals, everything, known=False)
                residuals = known.result(), new.result()
            by_kind = {kind: self._generalist(kind) for kind in kinds}
            generalists = {kind: trees for kind, trees in by_kind.items() if trees is not None}
            self._ensembles = FittedEnsembles(self._specialist(), generalists, *residuals)
        return self._ensembles

    def warm_up(self) -> None:
        """Fit and compute what the first prediction would wait for."""
        self._architecture_gp.warm_up()
        ensembles = self.fit()
        for trees in (ensembles.specialist, *ensembles.generalists.values()):
            trees.warm_up()

    def count_same_workload(self, sample: Sample) -> int:
        """Return the number of known samples of the same workload, whose residuals transfer to the sample."""
        return len(self._rows_by_workload.get(sample.workload_key, ()))

    def _beyond_analytical(self, samples: Sequence[Sample], logs: Array) -> Array:
        """Return log predictions less the analytical model's: how models of equal cost differ."""
        return logs - self._analytical.predict_log(samples)

    def _predict_corrections(self, samples: Sequence[Sample], uncorrected: Array) -> Array:
        """Return the few-shot corrections in logs; 0 on devices without one."""
        logs = np.zeros(len(samples))
        by_device: dict[str, list[int]] = defaultdict(list)
        for i, sample in enumerate(samples):
            if sample.device in self.corrections:
                by_device[sample.device].append(i)
        for device, here in by_device.items():
            group = [samples[i] for i in here]
            beyond = self._beyond_analytical(group, uncorrected[here])
            logs[here] = self.corrections[device].predict(group, beyond)
        return logs

    def _predict_uncorrected(self, samples: Sequence[Sample], by_trees: Array | None = None) -> Array:
        logs = np.empty(len(samples))
        known = np.array([sample.device in self.known_devices for sample in samples], dtype=bool)
        for rows, are_known in ((np.flatnonzero(known).tolist(), True), (np.flatnonzero(~known).tolist(), False)):
            if rows:
                tree_logs = None if by_trees is None else by_trees[rows]
                logs[rows] = self._predict_group([samples[i] for i in rows], tree_logs, known=are_known)
        return logs

    def _predict_group(self, samples: Sequence[Sample], by_trees: Array | None, *, known: bool) -> Array:
        """Return log latencies of samples whose devices are all known, or all not.

        They are the trees' logs (`by_trees`, if computed already) plus the transfer from the same workload elsewhere.
        For an unmeasured model on a known device they are the mean of trees and Gaussian process.
        """
        logs = self._predict_trees(samples, known=known) if by_trees is None else by_trees.copy()
        sources = [self._rows_by_workload.get(sample.workload_key, []) for sample in samples]
        self._add_transfer(logs, samples, sources, known=known)
        # Generation is left out, because a decoder's name does not tell its architecture.
        new = [i for i, rows in enumerate(sources) if known and not rows and samples[i].mode != "generation"]
        if new:
            by_gp = self._architecture_gp.predict_log([samples[i] for i in new])
            logs[new] = np.where(np.isnan(by_gp), logs[new], (logs[new] + by_gp) / 2)
        return logs

    def _add_transfer(
        self, logs: Array, samples: Sequence[Sample], sources: Sequence[list[int]], *, known: bool
    ) -> None:
        """Add to each log the trees' median residual on the sources, weighted by their distance and shrunk towards 0.

        `sources` holds for each sample the known samples of the same workload, which may be none.
        """
        all_sources = sorted({row for rows in sources for row in rows})
        if not all_sources:
            return
        residuals = self._residuals(all_sources, known=known)
        by_workload: dict[Any, list[int]] = defaultdict(list)
        for i, sample in enumerate(samples):
            by_workload[sample.workload_key].append(i)
        settings = self._distance.encode(samples)
        for here in by_workload.values():
            if rows := sources[here[0]]:
                weights = np.exp(-self._distance.distances(settings.of(here), np.array(rows)))
                total = weights.sum(axis=1)
                logs[here] += total / (total + _PRIOR_WEIGHT) * _weighted_medians(residuals[rows], weights)

    def _residuals(self, rows: list[int], *, known: bool) -> Array:
        """Return the trees' residual on each known sample; it is computed for `rows`, and may be NaN for others."""
        if self._ensembles is not None:
            return self._ensembles.known_device_residuals if known else self._ensembles.new_device_residuals
        residuals = np.full(len(self.known_samples), np.nan)
        if known:
            fitted = self._specialist().fitted_logs
            assert fitted is not None, "it was fitted here"
            residuals[rows] = (self._logs - fitted)[rows]
            return residuals
        for kind in {self.known_samples[j].kind for j in rows}:
            here = [j for j in rows if self.known_samples[j].kind == kind]
            residuals[here] = self._logs[here] - self._known_samples_logs(kind, here)
        return residuals

    def _known_samples_logs(self, kind: str, rows: list[int]) -> Array:
        """Return predicted logs of known samples (`rows`, of one kind of silicon) as if their devices were new.

        LightGBM keeps the predictions of samples that the generalist was fitted to, so only others are computed.
        """
        logs = np.full(len(self.known_samples), np.nan)
        trees = self._generalist(kind)
        if trees is not None and trees.fitted_logs is not None:
            logs[self._generalist_rows(kind)] = trees.fitted_logs
        rest = [j for j in rows if np.isnan(logs[j])]
        if rest:
            logs[rest] = self._predict_trees([self.known_samples[j] for j in rest], known=False)
        return logs[rows]

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
            rows = self._generalist_rows(kind)
            enough = len(rows) >= _MIN_GENERALIST_SAMPLES
            samples = [self.known_samples[i] for i in rows]
            self._generalists[kind] = (
                ResidualTrees.fit(samples, self._logs[rows], _GENERALIST_NAMES, self._rounds) if enough else None
            )
        return self._generalists[kind]

    def _generalist_rows(self, kind: str) -> list[int]:
        """Return the known samples that the generalist of a kind of silicon is fitted to."""
        return [i for i, sample in enumerate(self.known_samples) if sample.kind == kind and has_known_rates(sample)]


_MISMATCH_PENALTIES = {"compiler": 6.0, "kind": 3.0, "layout": 3.0, "backend": 3.0, "hardware": 2.0, "device": 2.0}
"""Distance that a difference in each of these attributes adds; a figure's weight is exp(-distance)."""
_PENALTIES = np.array(list(_MISMATCH_PENALTIES.values()))
_PRIOR_WEIGHT = math.exp(-4.0)
"""Weight of "no transfer" beside the figures' weights: that of one figure at distance 4."""


@dataclass(frozen=True)
class _Settings:
    """Encoded settings of samples, one row each."""

    names: npt.NDArray[np.int64]
    """Codes of the attributes in `_MISMATCH_PENALTIES`, one column each; -1 for values that no known sample has."""
    devices: Array
    """Binary logarithm of the number of devices."""
    version: Array
    """Version number of the runtime; NaN where unknown."""

    def of(self, rows: list[int]) -> _Settings:
        """Return the settings of these rows."""
        return _Settings(self.names[rows], self.devices[rows], self.version[rows])


@dataclass(frozen=True)
class _SettingDistance:
    """Distance between the settings (device, runtime, version) of known samples and of others."""

    codes: Mapping[str, dict[str, int]]
    known: _Settings

    @classmethod
    def fit(cls, samples: Sequence[Sample]) -> _SettingDistance:
        codes = {
            name: {v: i for i, v in enumerate(sorted({getattr(c, name) for c in samples}))}
            for name in _MISMATCH_PENALTIES
        }
        return cls(codes, _encode(samples, codes))

    def encode(self, samples: Sequence[Sample]) -> _Settings:
        """Return the settings of other samples."""
        return _encode(samples, self.codes)

    def distances(self, settings: _Settings, rows: npt.NDArray[np.int64]) -> Array:
        """Return the distances of shape (settings, rows) to these rows of known samples; 0 for equal settings."""
        known = self.known
        differ = (known.names[rows] != settings.names[:, None]) @ _PENALTIES
        differ += 2.0 * np.abs(known.devices[rows] - settings.devices[:, None])
        apart = np.minimum(np.abs(known.version[rows] - settings.version[:, None]) / 50, 2.0)
        # An unknown version is at distance 0 from all.
        return np.asarray(differ + np.where(np.isnan(apart), 0.0, apart))


def _encode(samples: Sequence[Sample], codes: Mapping[str, dict[str, int]]) -> _Settings:
    names = [[known.get(getattr(sample, name), -1) for name, known in codes.items()] for sample in samples]
    return _Settings(
        np.array(names, dtype=np.int64).reshape(len(samples), len(codes)),
        np.log2([float(sample.devices) for sample in samples]),
        np.array([sample.version for sample in samples]),
    )


def _weighted_medians(values: Array, weights: Array) -> Array:
    """Return the weighted median of the values for each row of weights."""
    order = np.argsort(values)
    reached = np.cumsum(weights[:, order], axis=1)
    return np.asarray(values[order[(reached < reached[:, -1:] / 2).sum(axis=1)]])
