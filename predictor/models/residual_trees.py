"""Boosted trees and ridge regression on the analytical model's residuals, and the encoding of their features."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import lightgbm as lgb
import numpy as np
import numpy.typing as npt

from predictor.data.fast_path import require_slow_path
from predictor.data.features import architecture_features, architecture_table
from predictor.data.samples import Sample
from predictor.models.analytical import AdditiveRoofline, roofline_terms_ms
from predictor.models.tree_shap import TreeShapTable

Array = npt.NDArray[np.float64]
FEATURE_SCHEMA = 8
"""Version of the features: raise it when one changes its meaning. Artifacts of another version are rejected."""
ROUNDS = 600
"""Boosting rounds."""
_GENERALIST_RIDGE, _SPECIALIST_RIDGE = 3.0, 10.0
"""Penalties of the ridge regressions."""
_MIN_DEVICES, _DEVICE_SHARE = 3, 0.05
"""A generalist has roofline terms as features if so many devices have this share of the samples each."""
_LEAF_SHARE = 40
"""A leaf of a generalist has at least 1 / 40 of all samples, because a smaller one would fit a single model."""
_COSTS = (
    "parameters",
    "FLOPs",
    "activations",
    "size",
    "batch",
    "intensity",
    "weights per FLOP",
    "FLOPs per area",
    "activations per area",
    "batch activations",
    "steps",
    "version",
    "devices",
)
_TERMS = ("computing", "activations moved", "weights read", "launches")
_TERM_FEATURES = len(_TERMS) + 4
"""Number of roofline features: the terms, the first three of them per item, and the sum of these."""
_GROUP_OF = {
    "batch": "batch",
    "batch activations": "batch",
    "architecture": "architecture",
    "size": "input size",
    "device": "device",
    "devices": "device",
    "kind": "device",
    "setting": "device",
    "backend": "runtime",
    "layout": "runtime",
    "compiler": "runtime",
    "version": "runtime",
    "precision": "precision",
    "mode": "mode",
    **dict.fromkeys((*_TERMS, "roofline", "intensity"), "roofline"),
}
"""Group of each feature in explanations. Features without an entry are in `model cost`."""
GROUPS = ("model cost", *dict.fromkeys(_GROUP_OF.values()))
REPRODUCIBLE: dict[str, Any] = {
    # One, because threads wait for each other on a busy machine and the tables are small.
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "seed": 0,
    "verbosity": -1,
}
"""Parameters of all boosted trees, which give equal trees for equal samples."""
_PARAMETERS: dict[str, Any] = {
    **REPRODUCIBLE,
    "objective": "l1",
    "learning_rate": 0.05,
    "num_leaves": 15,
    "min_data_in_leaf": 50,
    # A quarter of the default, because that takes an eighth off the fits and nothing off their accuracy.
    "max_bin": 63,
    "feature_fraction": 0.6,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
}


@dataclass(frozen=True)
class Encoder:
    """Encoder of samples as rows of features. Names are encoded as numbers; a name that was not fitted is NaN."""

    codes: dict[str, dict[str, int]]
    """Code of each value, by attribute of a sample."""
    terms: bool = True
    """True if roofline terms are features."""

    @classmethod
    def fit(cls, samples: Sequence[Sample], names: Sequence[str], *, terms: bool = True) -> Encoder:
        codes = {name: {v: i for i, v in enumerate(sorted({getattr(c, name) for c in samples}))} for name in names}
        return cls(codes, terms)

    def transform(self, samples: Sequence[Sample]) -> Array:
        """Return the features, one row per sample, in the order of `feature_names`.

        They are log costs and ratios of them, codes of names, architecture, and roofline terms if they are features.
        """
        p, flops, written, size, batch, steps, devices = np.log(np.array([s.costs for s in samples]).reshape(-1, 7)).T
        f, a = flops - batch, written - batch
        version = [s.version for s in samples]
        costs = (p, f, a, size, batch, f - a, p - f, f - 2 * size, a - 2 * size, batch + a, steps, version, devices)
        codes = [[known.get(getattr(s, name), np.nan) for name, known in self.codes.items()] for s in samples]
        blocks = architecture_table([sample.model for sample in samples])
        coded = len(costs) + len(self.codes)
        plain = coded + blocks.shape[1]
        features = np.empty((len(samples), plain + (_TERM_FEATURES if self.terms else 0)))
        features[:, : len(costs)].T[:] = costs
        features[:, len(costs) : coded] = np.array(codes, dtype=float).reshape(len(samples), len(self.codes))
        features[:, coded:plain] = blocks
        if self.terms:
            parts = np.log(np.maximum(roofline_terms_ms(samples), 1e-12))
            per_item = parts[:, :3] - batch[:, None]
            features[:, plain:-4], features[:, -4:-1] = parts, per_item
            features[:, -1] = np.logaddexp.reduce(per_item, axis=1)
        return features

    def feature_names(self) -> list[str]:
        """Return the name of each feature; all architecture features are `architecture`."""
        blocks = len(architecture_features(""))
        terms = [*_TERMS, *_TERMS[:3], "roofline"] if self.terms else []
        return [*_COSTS, *self.codes, *["architecture"] * blocks, *terms]

    def design_matrix(self, features: Array) -> Array:
        """Return the ridge's matrix: a column of ones, plain features and one-hot names."""
        plain = features[:, self._plain_columns]
        coded, codes = self._one_hot_columns
        # Column by column in memory, because the last digit of sums over a row depends on it.
        design = np.empty((len(features), 1 + plain.shape[1] + len(codes)), order="F")
        design[:, 0] = 1.0
        design[:, 1 : 1 + plain.shape[1]] = plain if np.isfinite(plain).all() else np.nan_to_num(plain)
        design[:, 1 + plain.shape[1] :] = features[:, coded] == codes
        return design

    def design_names(self) -> list[str]:
        """Return the name of each column of the design matrix."""
        names = self.feature_names()
        hot = (name for name, known in self.codes.items() for _ in known)
        return ["", *(names[i] for i in self._plain_columns), *hot]

    @cached_property
    def _plain_columns(self) -> npt.NDArray[np.int64]:
        """Features that the ridge takes unchanged: no codes of names, and no versions, since many are unknown."""
        first = len(_COSTS)
        left_out = {*range(first, first + len(self.codes)), _COSTS.index("version")}
        return np.array([i for i in range(len(self.feature_names())) if i not in left_out])

    @cached_property
    def _one_hot_columns(self) -> tuple[npt.NDArray[np.int64], Array]:
        """Feature index and code of each one-hot column."""
        pairs = [
            (i, code) for i, codes in enumerate(self.codes.values(), start=len(_COSTS)) for code in range(len(codes))
        ]
        coded, codes = zip(*pairs, strict=True)
        return np.array(coded), np.array(codes, dtype=np.float64)


@dataclass(frozen=True)
class ResidualTrees:
    """Mean of two boosted models of the analytical model's residuals, one of them on top of a ridge regression.

    A specialist knows devices by name; a generalist does not.
    """

    analytical: AdditiveRoofline
    levels: dict[str, float]
    """Median residual by vendor, of a generalist; `""` is that of all devices."""
    encoder: Encoder
    mean: Array
    scale: Array
    coefficients: Array
    boosters: tuple[lgb.Booster, lgb.Booster]
    fitted_logs: Array | None = field(default=None, compare=False, repr=False)
    """Predictions of the samples that it was fitted to, in their order; None where it was read from an artifact."""

    @classmethod
    def fit(cls, samples: Sequence[Sample], logs: Array, names: Sequence[str], rounds: int = ROUNDS) -> ResidualTrees:
        analytical = AdditiveRoofline.fit(samples, logs)
        levels, generalist = {"": 0.0}, "device" not in names
        encoder = Encoder.fit(samples, names, terms=not generalist or _tells_terms_apart(samples))
        residuals = logs - analytical.predict_log(samples)
        if generalist:
            residuals, levels = _remove_device_medians(residuals, samples)
        features = encoder.transform(samples)
        design = encoder.design_matrix(features)
        mean, scale = design.mean(axis=0), design.std(axis=0)
        # A constant column gets no coefficient, because rounding alone would decide it.
        constant = scale < 1e-6
        scale[constant] = 1.0
        mean[0] = 0.0
        design = (design - mean) / scale
        penalty = np.eye(design.shape[1]) * (_GENERALIST_RIDGE if generalist else _SPECIALIST_RIDGE)
        penalty[0, 0] = 0.0
        coefficients = np.linalg.solve(design.T @ design + penalty, design.T @ residuals)
        coefficients[constant & (np.arange(len(scale)) > 0)] = 0.0
        least = max(_PARAMETERS["min_data_in_leaf"], len(residuals) // _LEAF_SHARE)
        overrides = {"min_data_in_leaf": least} if generalist else {}
        # A generalist has extra trees: random thresholds are smoother and extrapolate better to unseen devices.
        # Threads suffice, because boosting releases the GIL.
        with ThreadPoolExecutor(max_workers=2) as pool:
            plain = pool.submit(boost, features, residuals, rounds, **overrides)
            over_ridge = pool.submit(
                boost, features, residuals - design @ coefficients, rounds, extra_trees=generalist, **overrides
            )
            boosters = plain.result(), over_ridge.result()
        trees = cls(analytical, levels, encoder, mean, scale, coefficients, boosters)
        plain_logs, over_ridge_logs = map(_training_predictions, boosters)
        return replace(trees, fitted_logs=trees._logs(samples, plain_logs + over_ridge_logs, design @ coefficients))

    def predict_log(self, samples: Sequence[Sample]) -> Array:
        """Return natural logs of latencies in ms."""
        features = self.encoder.transform(samples)
        ridge = (self.encoder.design_matrix(features) - self.mean) / self.scale @ self.coefficients
        plain_log, over_ridge_log = (np.asarray(b.predict(features, num_threads=1)) for b in self.boosters)
        return self._logs(samples, plain_log + over_ridge_log, ridge)

    def _logs(self, samples: Sequence[Sample], by_trees: Array, ridge: Array) -> Array:
        """Return the logs of latencies from the sum of both boosted models and the ridge's part of the second."""
        base = self.analytical.predict_log(samples) + self._device_level(samples)
        return np.asarray(base + (by_trees + ridge) / 2)

    def _device_level(self, samples: Sequence[Sample]) -> Array:
        return np.array([self.levels.get(sample.vendor, self.levels[""]) for sample in samples])

    def shap_values(self, samples: Sequence[Sample]) -> list[dict[str, float]]:
        """Return the terms of each log latency: the analytical model's, and those of each group of features.

        The terms of a group are SHAP values of the trees and terms of the ridge.
        """
        features = self.encoder.transform(samples)
        terms, mean_terms = self._terms
        base = (
            self.analytical.predict_log(samples)
            + self._device_level(samples)
            + (self._shap_table.base + self.coefficients[0]) / 2
        )
        # Not a matrix product, because its last bits depend on the other rows.
        ridge = np.einsum("rc,cg->rg", self.encoder.design_matrix(features), terms) - mean_terms
        added = (self._shap_table.contributions(features) + ridge) / 2
        return [
            {"physical law": term, **dict(zip(GROUPS, groups, strict=True))}
            for term, groups in zip(base.tolist(), added.tolist(), strict=True)
        ]

    def warm_up(self) -> None:
        """Compute what explanations would wait for."""
        _ = self._terms
        self._shap_table.complete()

    @cached_property
    def _shap_table(self) -> TreeShapTable:
        require_slow_path()
        return TreeShapTable.build(self.boosters, _group_indices(self.encoder.feature_names()))

    @cached_property
    def _terms(self) -> tuple[Array, Array]:
        """Ridge coefficients by design column and group, without the intercept; and their sums at the mean."""
        groups = _group_indices(self.encoder.design_names())
        terms = np.zeros((len(groups), len(GROUPS)))
        terms[np.arange(len(groups)), groups] = self.coefficients / self.scale
        terms[0] = 0.0
        return terms, self.mean @ terms


def _group_indices(names: Sequence[str]) -> list[int]:
    return [GROUPS.index(_GROUP_OF.get(name, "model cost")) for name in names]


def boost(features: Array, target: Array, rounds: int, **overrides: Any) -> lgb.Booster:
    """Fit boosted trees; small sets of samples allow smaller leaves."""
    parameters = {**_PARAMETERS, **overrides}
    parameters["min_data_in_leaf"] = max(5, min(parameters["min_data_in_leaf"], len(target) // 20))
    dataset = lgb.Dataset(features, label=target, params=parameters)
    # The training booster is kept, because the other kind is written to text and parsed again.
    return lgb.train(parameters, dataset, num_boost_round=rounds, keep_training_booster=True)


def _training_predictions(booster: lgb.Booster) -> Array:
    """Return the predictions of the samples that were boosted, which LightGBM keeps: to predict them takes a third of
    the time that boosting takes."""
    found: list[Array] = []

    def keep(predictions: Array, _: lgb.Dataset) -> tuple[str, float, bool]:
        found.append(np.array(predictions))
        return "", 0.0, False

    booster.eval_train(feval=keep)
    return found[0]


def _tells_terms_apart(samples: Sequence[Sample]) -> bool:
    """Return whether enough devices show what roofline terms add to costs: on one or two both say the same."""
    counts = Counter(sample.device for sample in samples)
    return sum(count >= _DEVICE_SHARE * len(samples) for count in counts.values()) >= _MIN_DEVICES


def _remove_device_medians(residuals: Array, samples: Sequence[Sample]) -> tuple[Array, dict[str, float]]:
    """Subtract each device's median, so that no tree learns to tell devices apart.

    Returns the rest, and the median of these medians over each vendor's devices and over all (`""`).
    """
    names, codes = np.unique([sample.device for sample in samples], return_inverse=True)
    medians = np.array([np.median(residuals[codes == code]) for code in range(len(names))])
    vendors = {sample.device: sample.vendor for sample in samples}
    device_vendors = np.array([vendors[name] for name in names.tolist()])
    levels = {
        str(vendor): float(np.median(medians[device_vendors == vendor]))
        for vendor in np.unique(device_vendors)
        if vendor
    }
    return residuals - medians[codes], {**levels, "": float(np.median(medians))}
