"""What each feature of a row adds to what boosted trees say of it: their SHAP values, exact and looked up.

The values are those of TreeSHAP as LightGBM computes it (Lundberg et al., 2020: path-dependent, weighted by the rows
that trained each leaf). A leaf's part of them depends only on which of the features on its path send the row towards
it; these are few, so all outcomes are worked out once (as "Fast TreeSHAP v2" does, Yang, 2021), and a row then asks one
table per leaf. How features are named is not here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import lightgbm as lgb
import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

Array = npt.NDArray[np.float64]
_NAN_GOES_LEFT = {0: None, 2: None, 8: False, 10: True}
"""By LightGBM's `decision_type`; None where NaN is taken for 0."""
_AT_ONCE = 1 << 20
"""Numbers worked on at once while tables are made."""


class _Condition(NamedTuple):
    """What one feature has to be for a row to be sent towards a leaf: over `low`, at most `high`, or NaN."""

    feature: int
    low: float
    high: float
    nan: bool


@dataclass(frozen=True)
class _Leaf:
    value: float
    share: dict[_Condition, float]
    """Of the rows that trained the nodes asking for the feature, those that went on towards the leaf."""


@dataclass(frozen=True)
class Shares:
    """Tables for all leaves of some boosted models of the same features, added up by groups of features."""

    base: float
    """What the models say of a row of which nothing is known."""
    features: npt.NDArray[np.int64]
    """Of each condition, and below what it asks for."""
    low: Array
    high: Array
    nan: npt.NDArray[np.bool_]
    places: csr_array
    """Leaves by conditions: what a condition that holds adds to the place in the leaf's table."""
    starts: npt.NDArray[np.int32]
    """Where in `table` each leaf's begins."""
    table: Array
    """By outcome, what each group of features adds."""

    @classmethod
    def of(cls, boosters: Sequence[lgb.Booster], groups: Sequence[int]) -> Shares:
        """`groups` has the number of each feature's group."""
        leaves = [leaf for booster in boosters for tree in _trees(booster) for leaf in _leaves(tree)]
        base = math.fsum(leaf.value * math.prod(leaf.share.values()) for leaf in leaves)
        leaves = sorted((leaf for leaf in leaves if leaf.share), key=lambda leaf: len(leaf.share))
        conditions = {
            condition: i for i, condition in enumerate(dict.fromkeys(c for leaf in leaves for c in leaf.share))
        }
        sizes = [len(leaf.share) for leaf in leaves]
        places = csr_array(
            (
                np.array([1 << i for size in sizes for i in range(size)], dtype=np.int32),
                np.array([conditions[c] for leaf in leaves for c in leaf.share], dtype=np.int32),
                np.cumsum([0, *sizes], dtype=np.int32),
            ),
            shape=(len(leaves), len(conditions)),
        )
        starts = np.cumsum([0, *(1 << size for size in sizes)], dtype=np.int32)
        tables = [_tables(alike, np.asarray(groups)) for alike in _by_size(leaves)]
        features, low, high, nan = zip(*conditions, strict=True) if conditions else ((), (), (), ())
        return cls(
            base,
            np.array(features, dtype=np.int64),
            np.array(low),
            np.array(high),
            np.array(nan, dtype=bool),
            places,
            starts[:-1],
            np.concatenate(tables) if tables else np.zeros((0, max(groups) + 1)),
        )

    def added(self, numbers: Array) -> Array:
        """What each group of features adds to `base`, by row: summed, with it, what the models say."""
        asked = numbers.T[self.features]
        holds = (asked > self.low[:, None]) & (asked <= self.high[:, None])
        holds |= np.isnan(asked) & self.nan[:, None]
        at = (self.places @ holds.astype(np.int32) + self.starts[:, None]).T
        ends = np.arange(len(numbers) + 1, dtype=np.int32) * len(self.starts)
        once = csr_array((np.ones(at.size), at.ravel(), ends), shape=(len(numbers), len(self.table)))
        return np.asarray(once @ self.table)


def _trees(booster: lgb.Booster) -> Iterator[dict[str, list[str]]]:
    """The arrays of each tree, as LightGBM writes them."""
    text: str = booster.model_to_string(num_iteration=-1)
    for tree in text.partition("\nend of trees")[0].split("\nTree=")[1:]:
        yield {name: values.split() for name, _, values in (line.partition("=") for line in tree.split("\n"))}


def _leaves(tree: dict[str, list[str]]) -> Iterator[_Leaf]:
    values = [float(value) for value in tree["leaf_value"]]
    if len(values) == 1:
        yield _Leaf(values[0], {})
        return
    features, thresholds = [int(f) for f in tree["split_feature"]], [float(t) for t in tree["threshold"]]
    children = [[int(child) for child in tree[side]] for side in ("left_child", "right_child")]
    # A child that is no node is the complement of a leaf's number.
    rows = [int(count) for count in (*tree["internal_count"], *reversed(tree["leaf_count"]))]
    ways = [_NAN_GOES_LEFT[int(kind)] for kind in tree["decision_type"]]
    todo: list[tuple[int, dict[int, tuple[float, float, bool, float]]]] = [(0, {})]
    while todo:
        node, path = todo.pop()
        if node < 0:
            yield _Leaf(values[~node], {_Condition(f, *asked): share for f, (*asked, share) in path.items()})
            continue
        feature, threshold, way = features[node], thresholds[node], ways[node]
        low, high, nan, share = path.get(feature, (-math.inf, math.inf, True, 1.0))
        nan_left = 0.0 <= threshold if way is None else way
        for left, child in zip((True, False), (children[0][node], children[1][node]), strict=True):
            went = share * rows[child] / rows[node]
            bounds = (low, min(high, threshold)) if left else (max(low, threshold), high)
            todo.append((child, {**path, feature: (*bounds, nan and nan_left == left, went)}))


def _by_size(leaves: Sequence[_Leaf]) -> Iterator[list[_Leaf]]:
    """Of one number of features each, in order, and not too many at once."""
    by_size: dict[int, list[_Leaf]] = defaultdict(list)
    for leaf in leaves:
        by_size[len(leaf.share)].append(leaf)
    for size, alike in by_size.items():
        step = max(1, _AT_ONCE // (size * size << size))
        yield from (alike[i : i + step] for i in range(0, len(alike), step))


def _tables(leaves: Sequence[_Leaf], groups: npt.NDArray[np.int64]) -> Array:
    """What each group of features adds by these leaves of m features, one leaf after the other, for all 2^m outcomes.

    With o = 1 where a feature sends the row towards the leaf, else 0, and z the share that it sends of those that
    trained it, a feature adds value · (o - z) · ∫ Π over the others of (t · o + (1 - t) · z) dt, t from 0 to 1: that
    gives each set of others Shapley's weight (Owen, 1972). Gauss and Legendre's rule of m / 2 points is exact for it.
    """
    m = len(leaves[0].share)
    trained = np.array([list(leaf.share.values()) for leaf in leaves])[:, None, :]
    sent = (np.arange(1 << m)[:, None] >> np.arange(m) & 1).astype(np.float64)
    others = np.zeros((len(leaves), 1 << m, m))
    for point, weight in zip(*np.polynomial.legendre.leggauss(m // 2 + 1), strict=True):
        t = (1 + point) / 2
        factors = t * sent + (1 - t) * trained
        others += weight / 2 * factors.prod(axis=2, keepdims=True) / factors
    added = np.array([leaf.value for leaf in leaves])[:, None, None] * (sent - trained) * others
    table = np.zeros((len(leaves), 1 << m, int(groups.max()) + 1))
    of = groups[[[condition.feature for condition in leaf.share] for leaf in leaves]]
    for i in range(m):
        table[np.arange(len(leaves)), :, of[:, i]] += added[:, :, i]
    return table.reshape(-1, table.shape[2])
