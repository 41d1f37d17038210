"""Cases as numbers, and boosted trees with a ridge on what the law leaves over. Which cases they learn is not here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import lightgbm as lgb
import numpy as np
import numpy.typing as npt

from predictor.data.features import architecture_features
from predictor.data.samples import Sample
from predictor.models.analytical import AdditiveRoofline, roofline_terms_ms
from predictor.models.tree_shap import TreeShapTable

Array = npt.NDArray[np.float64]
FEATURE_SCHEMA = 6
"""Raise it when the meaning of a number changes: artefacts of another schema are refused."""
ROUNDS = 600
_GENERALIST_RIDGE, _SPECIALIST_RIDGE = 3.0, 10.0
_LEAF_SHARE = 40
"""One in so many cases is in each leaf at least where devices are not told apart: models return in every setting of a
device, and a leaf of one model's figures would learn that model."""
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
"""What numbers tell of, for people; all others tell what the model costs."""
GROUPS = ("model cost", *dict.fromkeys(_GROUP_OF.values()))
_PARAMETERS: dict[str, Any] = {
    "objective": "l1",
    "learning_rate": 0.05,
    "num_leaves": 15,
    "min_data_in_leaf": 50,
    "feature_fraction": 0.6,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    # Two wait for each other on a machine that has anything else to do, and tables are small.
    "num_threads": 1,
    "deterministic": True,
    "force_row_wise": True,
    "seed": 0,
    "verbosity": -1,
}


@dataclass(frozen=True)
class Encoder:
    """Cases as numbers; a name never seen is NaN."""

    codes: dict[str, dict[str, int]]

    @classmethod
    def fit(cls, samples: Sequence[Sample], names: Sequence[str]) -> Encoder:
        return cls({name: {v: i for i, v in enumerate(sorted({getattr(c, name) for c in samples}))} for name in names})

    def transform(self, samples: Sequence[Sample]) -> Array:
        """Cost in logs, intensities, the parts of the law, setting and names."""
        rows = []
        works = [(c.work, c.batch_size, c.size) for c in samples]
        logs = np.log(
            [
                (w.parameters, max(w.flops, 1.0), w.activation_bytes, size, batch, w.steps, c.devices)
                for c, (w, batch, size) in zip(samples, works, strict=True)
            ]
        ).tolist()
        for c, (p, flops, written, size, batch, steps, devices) in zip(samples, logs, strict=True):
            f, a = flops - batch, written - batch
            cost = (p, f, a, size, batch, f - a, p - f, f - 2 * size, a - 2 * size, batch + a, steps)
            codes = (known.get(getattr(c, name), np.nan) for name, known in self.codes.items())
            rows.append((*cost, c.version, devices, *codes))
        parts = np.log(np.maximum(roofline_terms_ms(samples), 1e-12))
        per_item = parts[:, :3] - np.log([[sample.batch_size] for sample in samples])
        blocks = np.array([architecture_features(sample.model) for sample in samples], dtype=np.float64)
        return np.hstack(
            [np.array(rows, dtype=np.float64), blocks, parts, per_item, np.logaddexp.reduce(per_item, axis=1)[:, None]]
        )

    def feature_names(self) -> list[str]:
        """What each number is of, for people; blocks of a network are all `architecture`."""
        blocks = len(architecture_features(""))
        return [*_COSTS, *self.codes, *["architecture"] * blocks, *_TERMS, *_TERMS[:3], "roofline"]

    def design_matrix(self, numbers: Array) -> Array:
        """For the ridge: 1, costs, parts of the law and blocks as they are, and a column per name."""
        plain = np.nan_to_num(numbers[:, self._plain])
        coded, codes = self._hot
        return np.hstack([np.ones((len(numbers), 1)), plain, numbers[:, coded] == codes])

    def design_names(self) -> list[str]:
        """What each column of the design is of."""
        names = self.feature_names()
        hot = (name for name, known in self.codes.items() for _ in known)
        return ["", *(names[i] for i in self._plain), *hot]

    @cached_property
    def _plain(self) -> npt.NDArray[np.int64]:
        """Numbers that the ridge takes as they are: neither codes of names nor versions, of which many are unknown."""
        first = len(_COSTS)
        left_out = {*range(first, first + len(self.codes)), _COSTS.index("version")}
        return np.array([i for i in range(len(self.feature_names())) if i not in left_out])

    @cached_property
    def _hot(self) -> tuple[npt.NDArray[np.int64], Array]:
        """By column that the ridge has per name: the number that holds the code, and the name's own."""
        pairs = [
            (i, code) for i, codes in enumerate(self.codes.values(), start=len(_COSTS)) for code in range(len(codes))
        ]
        coded, codes = zip(*pairs, strict=True)
        return np.array(coded), np.array(codes, dtype=np.float64)


@dataclass(frozen=True)
class ResidualTrees:
    """The mean of two boosted models: one of what the law leaves over, one of what law and ridge leave over."""

    analytical: AdditiveRoofline
    levels: dict[str, float]
    """By vendor, what its devices have in common beyond the law, where they are not told apart; `""` is of all."""
    encoder: Encoder
    mean: Array
    scale: Array
    coefficients: Array
    boosters: tuple[lgb.Booster, lgb.Booster]

    @classmethod
    def fit(cls, samples: Sequence[Sample], logs: Array, names: Sequence[str], rounds: int = ROUNDS) -> ResidualTrees:
        analytical = AdditiveRoofline.fit(samples, logs)
        encoder = Encoder.fit(samples, names)
        left = logs - analytical.predict_log(samples)
        levels, smooth = {"": 0.0}, "device" not in names
        if smooth:
            left, levels = _remove_device_medians(left, samples)
        numbers = encoder.transform(samples)
        design = encoder.design_matrix(numbers)
        mean, scale = design.mean(axis=0), design.std(axis=0)
        # What never varies tells nothing of what it would change, whatever rounding makes of it.
        constant = scale < 1e-6
        scale[constant] = 1.0
        mean[0] = 0.0
        design = (design - mean) / scale
        penalty = np.eye(design.shape[1]) * (_GENERALIST_RIDGE if smooth else _SPECIALIST_RIDGE)
        penalty[0, 0] = 0.0
        coefficients = np.linalg.solve(design.T @ design + penalty, design.T @ left)
        coefficients[constant & (np.arange(len(scale)) > 0)] = 0.0
        # Random thresholds are smoother, which is what carries to devices the trees never saw.
        more = {"min_data_in_leaf": max(_PARAMETERS["min_data_in_leaf"], len(left) // _LEAF_SHARE)} if smooth else {}
        boosters = (
            boost(numbers, left, rounds, **more),
            boost(numbers, left - design @ coefficients, rounds, extra_trees=smooth, **more),
        )
        return cls(analytical, levels, encoder, mean, scale, coefficients, boosters)

    def predict_log(self, samples: Sequence[Sample]) -> Array:
        """Natural logs of latencies."""
        numbers = self.encoder.transform(samples)
        ridge = (self.encoder.design_matrix(numbers) - self.mean) / self.scale @ self.coefficients
        plain, over_ridge = (np.asarray(b.predict(numbers, num_threads=1)) for b in self.boosters)
        return np.asarray(
            self.analytical.predict_log(samples) + self._level(samples) + (plain + over_ridge + ridge) / 2
        )

    def _level(self, samples: Sequence[Sample]) -> Array:
        return np.array([self.levels.get(sample.vendor, self.levels[""]) for sample in samples])

    def shap_values(self, samples: Sequence[Sample]) -> list[dict[str, float]]:
        """What adds up to each logarithm: the law, and by group what its numbers change (SHAP values, terms of the
        ridge)."""
        numbers = self.encoder.transform(samples)
        terms, usual = self._terms
        base = (
            self.analytical.predict_log(samples)
            + self._level(samples)
            + (self._shap_table.base + self.coefficients[0]) / 2
        )
        # To the last bit the same whatever is asked beside it, which a product of matrices is not.
        ridge = np.einsum("rc,cg->rg", self.encoder.design_matrix(numbers), terms) - usual
        added = (self._shap_table.contributions(numbers) + ridge) / 2
        return [
            {"physical law": analytical, **dict(zip(GROUPS, groups, strict=True))}
            for analytical, groups in zip(base.tolist(), added.tolist(), strict=True)
        ]

    def warm_up(self) -> None:
        """Make what the first reasons would wait for."""
        _ = self._shap_table, self._terms

    @cached_property
    def _shap_table(self) -> TreeShapTable:
        return TreeShapTable.build(self.boosters, _group_indices(self.encoder.feature_names()))

    @cached_property
    def _terms(self) -> tuple[Array, Array]:
        """The ridge's coefficients by column of the design and group, without the first, which is of no number; and
        what they come to at the mean."""
        groups = _group_indices(self.encoder.design_names())
        terms = np.zeros((len(groups), len(GROUPS)))
        terms[np.arange(len(groups)), groups] = self.coefficients / self.scale
        terms[0] = 0.0
        return terms, self.mean @ terms


def _group_indices(names: Sequence[str]) -> list[int]:
    return [GROUPS.index(_GROUP_OF.get(name, "model cost")) for name in names]


def boost(numbers: Array, target: Array, rounds: int, **more: Any) -> lgb.Booster:
    """Boosted trees; with little to learn from, leaves may be small as well."""
    parameters = {**_PARAMETERS, **more}
    parameters["min_data_in_leaf"] = max(5, min(parameters["min_data_in_leaf"], len(target) // 20))
    return lgb.train(parameters, lgb.Dataset(numbers, label=target, params=parameters), num_boost_round=rounds)


def _remove_device_medians(left: Array, samples: Sequence[Sample]) -> tuple[Array, dict[str, float]]:
    """What is left with each device's own median taken off, so that no tree learns which device it has before it; and
    the median of these medians: over each vendor's devices, and over all (`""`)."""
    names, codes = np.unique([sample.device for sample in samples], return_inverse=True)
    medians = np.array([np.median(left[codes == code]) for code in range(len(names))])
    vendors = {sample.device: sample.vendor for sample in samples}
    made = np.array([vendors[name] for name in names.tolist()])
    levels = {str(vendor): float(np.median(medians[made == vendor])) for vendor in np.unique(made) if vendor}
    return left - medians[codes], {**levels, "": float(np.median(medians))}
