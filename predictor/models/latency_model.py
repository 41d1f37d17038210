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


def log_latency(cases: Sequence[Sample]) -> Array:
    """Natural logs of latencies in ms."""
    return np.log([case.latency_ms for case in cases])


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
    left_known: Array
    """Per learned case, what the specialist leaves over, in logs: what is carried over to known devices."""
    left_new: Array
    """As the generalists, else the law, leave over: what is carried over to devices nobody measured."""


class LatencyModel:
    """Fitted on cases, at least one; speaks of others. Everything is deterministic, and grown when it is asked for."""

    def __init__(self, cases: Sequence[Sample], *, rounds: int = ROUNDS, grown: FittedEnsembles | None = None) -> None:
        self.told = list(cases)
        counts = Counter(case.device for case in cases)
        # Where every device has few, the better measured ones have to do.
        enough = min(MIN_DEVICE_SAMPLES, max(counts.values()) / 8)
        self.known = {device for device, count in counts.items() if count >= enough}
        learned = [case for case in cases if case.device in self.known]
        logs = log_latency(learned)
        self.cases = learned
        self._logs, self._rounds = logs, rounds
        self._law = AdditiveRoofline.fit(learned, logs)
        self._alike = ArchitectureGP(learned, logs, self._law)
        self._named: ResidualTrees | None = None
        self._generalists: dict[str, ResidualTrees | None] = {}
        self._grown = grown
        self._measured: dict[Any, list[int]] = defaultdict(list)
        for i, case in enumerate(learned):
            self._measured[case.shape].append(i)
        self._places = _SettingDistance.of(learned)
        self.models = {case.model for case in cases}
        self._ways = {(case.kind, case.backend, case.compiler) for case in cases}
        self._widths = {(case.kind, weight_bytes(case.precision, case.mode)) for case in cases}
        self._counted = {(case.kind, case.counted) for case in cases}
        self._read = {(case.kind, case.reads) for case in cases}
        self.corrections: dict[str, Correction] = {}
        self.correct([case for case in cases if case.device not in self.known])

    def predict(self, cases: Sequence[Sample]) -> LatencyPrediction:
        """One figure per case, and whether it is supported by figures of its kind of silicon and way of running."""
        logs = self._uncorrected(cases)
        logs += self._corrected(cases, logs)
        return LatencyPrediction(logs, np.array([self.why_not(case) is None for case in cases], dtype=bool))

    def explain(self, cases: Sequence[Sample]) -> tuple[Array, list[dict[str, float]]]:
        """The same figures, and what adds up to each, by name: of the trees what each group of numbers changes."""
        found: list[dict[str, float]] = [{} for _ in cases]
        by_trees: dict[str | None, list[int]] = defaultdict(list)
        for i, case in enumerate(cases):
            by_trees[None if case.device in self.known else case.kind].append(i)
        for kind, here in by_trees.items():
            trees, asked = self._specialist() if kind is None else self._generalist(kind), [cases[i] for i in here]
            told = (
                [{"physical law": x} for x in self._law.logs(asked).tolist()] if trees is None else trees.reasons(asked)
            )
            for i, added in zip(here, told, strict=True):
                found[i] = added
        alone = np.array([sum(added.values()) for added in found])
        uncorrected = self._uncorrected(cases, alone)
        corrected = self._corrected(cases, uncorrected)
        more = (uncorrected - alone).tolist()
        for case, added, beside, few in zip(cases, found, more, corrected.tolist(), strict=True):
            added["same work measured elsewhere" if self.elsewhere(case) else "models like it"] = beside
            added["few figures of this device"] = few
        return uncorrected + corrected, found

    def why_not(self, case: Sample) -> str | None:
        """Why the learner does not stand behind its figure; None where it does."""
        if (case.kind, case.backend, case.compiler) not in self._ways:
            compiled = f", compiled by {case.compiler}" if case.compiler else ""
            return f"nothing was learned from {case.backend} on any {case.kind}{compiled}"
        if (case.kind, weight_bytes(case.precision, case.mode)) not in self._widths:
            return f"nothing as wide as precision {case.precision} was learned from on any {case.kind}"
        if (case.kind, case.counted) not in self._counted:
            return f"no model whose activations are counted by {case.counted} was learned from on any {case.kind}"
        if (case.kind, case.reads) not in self._read:
            return f"no model that reads {case.reads} was learned from on any {case.kind}"
        if not has_known_rates(case) and case.device not in self.known | self.corrections.keys():
            return f"not one figure of {case.device} was learned from, and its peak or bandwidth is not known"
        return None

    def correct(self, few: Sequence[Sample]) -> None:
        """Take in a few figures of devices that are not known."""
        by_device: dict[str, list[Sample]] = defaultdict(list)
        for case in few:
            by_device[case.device].append(case)
        for device, cases in sorted(by_device.items()):
            logs = self._uncorrected(cases)
            self.corrections[device] = Correction.fit(cases, self._beyond(cases, logs), log_latency(cases) - logs)

    def grow(self) -> FittedEnsembles:
        """Fit all that has not been asked for yet, too: the specialist and the generalists side by side."""
        if self._grown is None:
            everything = list(range(len(self.cases)))
            kinds = sorted({case.kind for case in self.cases})
            # Boosting and predicting leave Python to itself, so threads of it do not wait for each other.
            with ThreadPoolExecutor(max_workers=2) as pool:
                known = pool.submit(self._left_over, everything, known=True)
                new = pool.submit(self._left_over, everything, known=False)
                left = known.result(), new.result()
            found = {kind: self._generalist(kind) for kind in kinds}
            generalists = {kind: trees for kind, trees in found.items() if trees is not None}
            self._grown = FittedEnsembles(self._specialist(), generalists, *left)
        return self._grown

    def make_ready(self) -> None:
        """Make what the first cases would wait for."""
        self._alike.make_ready()
        grown = self.grow()
        for trees in (grown.specialist, *grown.generalists.values()):
            trees.make_ready()

    def elsewhere(self, case: Sample) -> int:
        """How many figures of the same work can be carried over to the case."""
        return len(self._measured.get(case.shape, ()))

    def _beyond(self, cases: Sequence[Sample], logs: Array) -> Array:
        """How far these logs lie from the law, which is what sets models apart whose cost is the same."""
        return logs - self._law.logs(cases)

    def _corrected(self, cases: Sequence[Sample], uncorrected: Array) -> Array:
        """By how much, which is nothing but on devices with few figures."""
        logs = np.zeros(len(cases))
        for device, correction in self.corrections.items():
            here = [i for i, case in enumerate(cases) if case.device == device]
            if here:
                asked = [cases[i] for i in here]
                logs[here] = correction.of(asked, self._beyond(asked, uncorrected[here]))
        return logs

    def _uncorrected(self, cases: Sequence[Sample], alone: Array | None = None) -> Array:
        logs = np.empty(len(cases))
        known = np.array([case.device in self.known for case in cases], dtype=bool)
        for here, which in ((np.flatnonzero(known).tolist(), True), (np.flatnonzero(~known).tolist(), False)):
            if here:
                logs[here] = self._of([cases[i] for i in here], None if alone is None else alone[here], known=which)
        return logs

    def _of(self, cases: Sequence[Sample], alone: Array | None, *, known: bool) -> Array:
        """As the trees say (`alone`, where that is known already), and where the same work was measured elsewhere off
        as they are there, by a share that shrinks with how differently it was run; of other work on a known device, the
        mean of them and of what models like it say."""
        logs = self._trees(cases, known=known) if alone is None else alone.copy()
        sources = [self._measured.get(case.shape, []) for case in cases]
        there = sorted({j for found in sources for j in found})
        if there:
            left = self._left_over(there, known=known)
            by_shape: dict[Any, list[int]] = defaultdict(list)
            for i, case in enumerate(cases):
                by_shape[case.shape].append(i)
            for here in by_shape.values():
                if rows := sources[here[0]]:
                    weights = np.exp(-self._places.apart([cases[i] for i in here], np.array(rows)))
                    total = weights.sum(axis=1)
                    logs[here] += total / (total + _PRIOR_WEIGHT) * _weighted_medians(left[rows], weights)
        # Of decoders their cost says it all: nothing in their names tells what they are built of.
        new = [i for i, rows in enumerate(sources) if known and not rows and cases[i].mode != "generation"]
        if new:
            like = self._alike.logs([cases[i] for i in new])
            logs[new] = np.where(np.isnan(like), logs[new], (logs[new] + like) / 2)
        return logs

    def _left_over(self, rows: list[int], *, known: bool) -> Array:
        """Per learned case, at least of these rows; NaN where nobody knows yet."""
        if self._grown is not None:
            return self._grown.left_known if known else self._grown.left_new
        left = np.full(len(self.cases), np.nan)
        left[rows] = self._logs[rows] - self._trees([self.cases[j] for j in rows], known=known)
        return left

    def _trees(self, cases: Sequence[Sample], *, known: bool) -> Array:
        if known:
            return self._specialist().logs(cases)
        logs = self._law.logs(cases)
        for kind in {case.kind for case in cases}:
            trees = self._generalist(kind)
            if trees is not None:
                here = [i for i, case in enumerate(cases) if case.kind == kind]
                logs[here] = trees.logs([cases[i] for i in here])
        return logs

    def _specialist(self) -> ResidualTrees:
        if self._grown is not None:
            return self._grown.specialist
        if self._named is None:
            self._named = ResidualTrees.fit(self.cases, self._logs, _SPECIALIST_NAMES, self._rounds)
        return self._named

    def _generalist(self, kind: str) -> ResidualTrees | None:
        if self._grown is not None:
            return self._grown.generalists.get(kind)
        if kind not in self._generalists:
            rows = [i for i, case in enumerate(self.cases) if case.kind == kind and has_known_rates(case)]
            enough = len(rows) >= _MIN_GENERALIST_SAMPLES
            told = [self.cases[i] for i in rows]
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
    def of(cls, cases: Sequence[Sample]) -> _SettingDistance:
        codes = {
            name: {v: i for i, v in enumerate(sorted({getattr(c, name) for c in cases}))}
            for name in _MISMATCH_PENALTIES
        }
        names = np.array([[codes[n][getattr(c, n)] for n in _MISMATCH_PENALTIES] for c in cases], dtype=np.int64)
        return cls(codes, names, np.log2([c.devices for c in cases]), np.array([c.version for c in cases]))

    def apart(self, cases: Sequence[Sample], rows: npt.NDArray[np.int64]) -> Array:
        """How little the figures of these rows say of the same work in each case: 0 for one device run in one way."""
        own = np.array([[codes.get(getattr(case, name), -1) for name, codes in self.codes.items()] for case in cases])
        devices = np.array([[math.log2(case.devices)] for case in cases])
        versions = np.array([[case.version] for case in cases])
        differ = (self.names[rows] != own[:, None]) @ _PENALTIES + 2.0 * np.abs(self.devices[rows] - devices)
        # An unknown version differs from none.
        return np.asarray(differ + np.nan_to_num(np.minimum(np.abs(self.version[rows] - versions) / 50, 2.0)))


def _weighted_medians(values: Array, weights: Array) -> Array:
    """By row of weights the value at which half of the weight is reached: one odd device among the sources does not
    count."""
    order = np.argsort(values)
    reached = np.cumsum(weights[:, order], axis=1)
    return np.asarray(values[order[(reached < reached[:, -1:] / 2).sum(axis=1)]])
