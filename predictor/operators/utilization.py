"""Utilization of a device by operators: boosted trees over relative features, and what is particular to a device.

log(time / speed of light) = f(features) + effect of the device. The effects are taken out before the trees are fitted,
so that a device that throttles or lacks tuned kernels does not teach them its own failing. A device without kernel
measurements stands between those of its architecture and the typical one, whose effect is 0.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import lightgbm as lgb
import numpy as np

from accel_platform.hardware.catalog import find_spec
from accel_platform.workloads.operators import OperatorKind
from predictor.models.tree_masks import TreeMasks
from predictor.operators.device_rates import DeviceRates, RateColumns
from predictor.operators.features import Array, price
from predictor.operators.kernels import KernelTable, effect_group, learned_as

ROUNDS = 120
"""More rounds fit the kernels better and whole models no better."""
_ITERATIONS = 4
"""Times that effects and trees are fitted in turn."""
_EFFECT_RANGE = (0.4, 0.8)
"""Quantiles of a device's kernels, by their speed of light, from which its effect is read: shorter ones are launches,
and on longer ones a card of little power throttles more than in a model."""
_TYPICAL_WEIGHT = 1.0
"""Measured devices of an architecture that the typical device weighs as much as, for one of it that nobody measured.
With 0 the H100 and H200 tell more of each other, but a card that lacks power, as the P4 does, too much of others."""
_PARAMETERS = {
    "objective": "l1",
    "learning_rate": 0.08,
    "num_leaves": 31,
    "deterministic": True,
    "force_row_wise": True,
    "seed": 1,
    "num_threads": 2,
    "verbose": -1,
}


@dataclass(frozen=True)
class ClassUtilization:
    """Utilization of one class of operators."""

    trees: str
    """In LightGBM's text format."""
    effects: dict[str, float]
    """Log time over that of the typical device, by `effect_group`."""

    def effect(self, own: str, alike: str) -> float:
        """Return the log time over that of the typical device: its own, else what those of its architecture tell.

        The device is given by its `effect_groups`.
        """
        effect = self.effects.get(own)
        return self._by_architecture.get(alike, 0.0) if effect is None else effect

    @cached_property
    def _by_architecture(self) -> dict[str, float]:
        alike: dict[str, list[float]] = defaultdict(list)
        for group, effect in self.effects.items():
            name, bits = group.rsplit(" ", 1)
            spec = find_spec(name)
            if spec is not None and spec.architecture is not None:
                alike[effect_group(spec.architecture, int(bits))].append(effect)
        return {group: sum(found) / (len(found) + _TYPICAL_WEIGHT) for group, found in alike.items()}


@dataclass(frozen=True)
class Utilization:
    """Utilization by class of operator."""

    classes: dict[OperatorKind, ClassUtilization]
    trees: TreeMasks
    """Those of the classes, in their order."""

    @classmethod
    def of(cls, classes: dict[OperatorKind, ClassUtilization]) -> Utilization:
        """Return the utilization that these classes make up."""
        return cls(classes, TreeMasks.build([learned.trees for learned in classes.values()]))

    def times_ms(
        self, tables: Sequence[tuple[OperatorKind, Array]], devices: Sequence[DeviceRates], bits: int
    ) -> list[Array]:
        """Return a table of times for each table of operators of one kind: a row per device, a column per operator.

        The other arguments are those of `price`.
        """
        columns = RateColumns.of(devices)
        priced = [price(kind, dimensions, columns, bits) for kind, dimensions in tables]
        width = max(of_table.shape[-1] for _, of_table in priced)
        features = np.full((sum(light.size for light, _ in priced), width), -math.inf)
        classes, effects = np.empty(len(features), dtype=np.int64), np.empty(len(features))
        order = {name: number for number, name in enumerate(self.classes)}
        groups = [effect_groups(device, bits) for device in devices]
        of_classes: dict[OperatorKind, Array] = {}
        rows: list[slice] = []
        first = 0
        for (kind, _), (light, of_table) in zip(tables, priced, strict=True):
            here = slice(first, first := first + light.size)
            features[here, : of_table.shape[-1]] = of_table.reshape(light.size, -1)
            names = [learned_as(kind, device, bits) for device in devices]
            different = set(names)
            for name in different:
                if name not in of_classes:
                    of_classes[name] = np.array([[self.classes[name].effect(*group)] for group in groups])
                on = slice(None) if len(different) == 1 else [other == name for other in names]
                classes[here].reshape(light.shape)[on] = order[name]
                effects[here].reshape(light.shape)[on] = of_classes[name][on]
            rows.append(here)
        factors = np.exp(self.trees.predict(features, classes) + effects)
        return [light * factors[here].reshape(light.shape) for (light, _), here in zip(priced, rows, strict=True)]


def fit_utilization(kernels: Mapping[OperatorKind, KernelTable]) -> Utilization:
    """Learn utilization from kernel measurements; equal ones give an equal result."""
    return Utilization.of({kind: _fit_class(table) for kind, table in sorted(kernels.items())})


def effect_groups(device: DeviceRates, bits: int) -> tuple[str, str]:
    """Return the groups of kernels of a device and of its architecture."""
    return effect_group(device.name, bits), effect_group(str(device.architecture), bits)


def _fit_class(table: KernelTable) -> ClassUtilization:
    groups, member = np.unique(table.groups, return_inverse=True)
    counts = np.bincount(member)
    weights = (len(member) / len(groups)) / counts[member]
    telling = np.zeros(len(member), dtype=bool)
    for i in range(len(groups)):
        light = table.light_ms[member == i]
        least, most = np.quantile(light, _EFFECT_RANGE)
        telling[member == i] = (light >= least) & (light <= most)
    target = table.log_time_over_light
    effects = np.zeros(len(groups))
    # The effects go first, because trees that see the devices' levels tell devices apart by their features.
    residuals = target
    for _ in range(_ITERATIONS):
        effects = np.array([np.median(residuals[telling & (member == i)]) for i in range(len(groups))])
        effects -= np.median(effects)
        trees = _boost(table.features, target - effects[member], weights)
        residuals = target - np.asarray(trees.predict(table.features))
    return ClassUtilization(
        trees.model_to_string(num_iteration=-1),
        {str(group): float(effect) for group, effect in zip(groups, effects, strict=True)},
    )


def _boost(features: Array, target: Array, weights: Array) -> lgb.Booster:
    data = lgb.Dataset(features, label=target, weight=weights, params=_PARAMETERS)
    return lgb.train(_PARAMETERS, data, num_boost_round=ROUNDS)
