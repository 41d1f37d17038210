"""Utilization of a device by operators: boosted trees over relative features, plus a fixed effect per device.

log(time / roofline time) = trees(features) + device effect

Utilization is the share of the roofline that a kernel reaches: roofline time over time. The device effect is the median
log time by which a device differs from the typical one. It is subtracted before the trees are fitted, so that a device
that throttles or lacks tuned kernels does not distort the trees. A device without kernel measurements gets the effect
of the measured devices with its chip, else of its architecture, shrunk towards 0, the effect of the typical device.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import lightgbm as lgb
import numpy as np
import numpy.typing as npt

from accel_platform.workloads.operators import OperatorKind
from predictor.models.residual_trees import REPRODUCIBLE
from predictor.models.tree_masks import TreeMasks
from predictor.operators.device_rates import DeviceRates, RateColumns, have_same_chip
from predictor.operators.features import Array, RooflineFeatures, roofline_features
from predictor.operators.kernels import KernelTable, device_key, devices_in, kernel_class

ROUNDS = 120
"""Boosting rounds. More of them fit the kernels better and predict whole models no better."""
_ITERATIONS = 4
"""Number of alternations between fitting the effects and fitting the trees."""
_EFFECT_RANGE = (0.4, 0.8)
"""Range of a device's kernels, as quantiles of their roofline time, whose median gives the device's effect.

Shorter kernels are mostly launch. On longer ones a card of little power throttles more than it does in a model.
"""
_TYPICAL_WEIGHT = 1.0
"""Weight of the typical device (effect 0), in devices, beside the measured devices of an unmeasured one's architecture.

With 0 a card short of power, such as the P4, would pass its own large effect on to others.
"""
_MAX_CACHED = 256
"""Most cached pairs of a model's operators and devices."""
Sizes = tuple[tuple[OperatorKind, int], ...]
"""Kind and number of operators of each table of a model."""
_LEAST_FOR_TREES = 10
"""Fewest kernels of a device from which the trees learn. Fewer set its effect alone, or trees would bend to them."""
_PARAMETERS = {**REPRODUCIBLE, "objective": "l1", "learning_rate": 0.08, "num_leaves": 31, "seed": 1}


@dataclass(frozen=True)
class ClassUtilization:
    """Utilization model of one class of operators."""

    trees: str
    """LightGBM's text format."""
    effects: dict[str, float]
    """Natural log of a device's time over that of the typical device, by `device_key`."""

    def effect(self, device: DeviceRates, bits: int) -> float:
        """Return the effect of a device, else that of the measured devices like it, else 0."""
        own = self.effects.get(device_key(device.name, bits))
        if own is not None:
            return own
        relatives = self._by_architecture.get(device_key(str(device.architecture), bits), ())
        same = [effect for relative, effect in relatives if have_same_chip(relative, device)]
        if same:
            return sum(same) / len(same)
        return sum(effect for _, effect in relatives) / (len(relatives) + _TYPICAL_WEIGHT)

    @cached_property
    def _by_architecture(self) -> dict[str, list[tuple[DeviceRates, float]]]:
        """Measured devices of each architecture with their effects, by `device_key`."""
        found: dict[str, list[tuple[DeviceRates, float]]] = defaultdict(list)
        for rates, bits, effect in devices_in(self.effects):
            if rates.architecture is not None:
                found[device_key(rates.architecture, bits)].append((rates, effect))
        return found


@dataclass(frozen=True)
class Utilization:
    """Utilization models of all classes of operators."""

    classes: dict[OperatorKind, ClassUtilization]
    trees: TreeMasks
    """Trees of all classes for fast prediction; a class is known there by its position in `classes`."""

    @classmethod
    def of(cls, classes: dict[OperatorKind, ClassUtilization]) -> Utilization:
        """Compile the trees of these classes."""
        return cls(classes, TreeMasks.build([learned.trees for learned in classes.values()]))

    def times_ms(
        self, tables: Sequence[tuple[OperatorKind, Array]], devices: Sequence[DeviceRates], bits: int
    ) -> list[Array]:
        """Return the times of operators in ms: for each table an array of shape (devices, operators).

        A table is a kind with its dimensions, one row per operator, as in `roofline_features`. All operators on all
        devices are predicted in one call of the trees, because a call costs more than a row.
        """
        columns = RateColumns.of(devices)
        rooflines = [roofline_features(kind, dimensions, columns, bits) for kind, dimensions in tables]
        features, rows_of = _stack_features(rooflines)
        sizes = tuple((kind, len(dimensions)) for kind, dimensions in tables)
        class_of_row, effect_of_row = self._row_models(sizes, tuple(devices), bits)
        factors = np.exp(self.trees.predict(features, class_of_row) + effect_of_row)
        return [
            roofline_ms * factors[rows].reshape(roofline_ms.shape)
            for (roofline_ms, _), rows in zip(rooflines, rows_of, strict=True)
        ]

    @cached_property
    def _row_models(self) -> Callable[[Sizes, tuple[DeviceRates, ...], int], tuple[npt.NDArray[np.int64], Array]]:
        """`_find_row_models`, cached because they are the same at every batch size of a model."""
        return lru_cache(maxsize=_MAX_CACHED)(self._find_row_models)

    def _find_row_models(
        self, sizes: Sizes, devices: tuple[DeviceRates, ...], bits: int
    ) -> tuple[npt.NDArray[np.int64], Array]:
        """Return the number of the class and the device effect of each row of features, as `_stack_features` orders
        the operators of tables on all devices."""
        number_of = {name: number for number, name in enumerate(self.classes)}
        classes, effects = [], []
        for kind, operators in sizes:
            for device in devices:
                name = kernel_class(kind, device, bits)
                classes += [number_of[name]] * operators
                effects += [self.classes[name].effect(device, bits)] * operators
        return np.array(classes, dtype=np.int64), np.array(effects)


def _stack_features(rooflines: Sequence[RooflineFeatures]) -> tuple[Array, list[slice]]:
    """Return the features of all tables on all devices, a row each, and the rows of each table.

    Tables of fewer features than others are filled up with minus infinity, as `TreeMasks` takes them.
    """
    width = max(features.shape[-1] for _, features in rooflines)
    stacked = np.full((sum(roofline_ms.size for roofline_ms, _ in rooflines), width), -math.inf)
    rows_of: list[slice] = []
    first = 0
    for roofline_ms, features in rooflines:
        rows = slice(first, first + roofline_ms.size)
        stacked[rows, : features.shape[-1]] = features.reshape(roofline_ms.size, -1)
        rows_of.append(rows)
        first = rows.stop
    return stacked, rows_of


def fit_utilization(kernels: Mapping[OperatorKind, KernelTable]) -> Utilization:
    """Fit the utilization model of each class to its measured kernels. It is deterministic."""
    return Utilization.of({kind: _fit_class(table) for kind, table in sorted(kernels.items())})


def _fit_class(table: KernelTable) -> ClassUtilization:
    """Fit effects and trees in turn (backfitting); devices have the same total weight in the trees, or none."""
    groups, group_of_row = np.unique(table.groups, return_inverse=True)
    counts = np.bincount(group_of_row)
    weights = (len(group_of_row) / len(groups)) / counts[group_of_row]
    for_trees = counts[group_of_row] >= _LEAST_FOR_TREES
    for_effect = _rows_for_effects(table, group_of_row)
    target = table.log_time_over_roofline
    effects = np.zeros(len(groups))
    # Effects are fitted before the first trees, because features would let the trees identify the devices.
    residuals = target
    for _ in range(_ITERATIONS):
        effects = np.array([np.median(residuals[for_effect & (group_of_row == i)]) for i in range(len(groups))])
        effects -= np.median(effects)
        without_effects = target - effects[group_of_row]
        trees = _boost(table.features[for_trees], without_effects[for_trees], weights[for_trees])
        residuals = target - np.asarray(trees.predict(table.features))
    return ClassUtilization(
        trees.model_to_string(num_iteration=-1),
        {str(group): float(effect) for group, effect in zip(groups, effects, strict=True)},
    )


def _rows_for_effects(table: KernelTable, group_of_row: npt.NDArray[np.intp]) -> npt.NDArray[np.bool_]:
    """Return a mask of the rows within `_EFFECT_RANGE` of their own device."""
    chosen = np.zeros(len(group_of_row), dtype=bool)
    for i in range(group_of_row.max() + 1):
        roofline_ms = table.roofline_ms[group_of_row == i]
        low, high = np.quantile(roofline_ms, _EFFECT_RANGE)
        chosen[group_of_row == i] = (roofline_ms >= low) & (roofline_ms <= high)
    return chosen


def _boost(features: Array, target: Array, weights: Array) -> lgb.Booster:
    data = lgb.Dataset(features, label=target, weight=weights, params=_PARAMETERS)
    return lgb.train(_PARAMETERS, data, num_boost_round=ROUNDS)
