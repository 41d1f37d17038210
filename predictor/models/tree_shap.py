"""What each feature of a row adds to what boosted trees say of it: their SHAP values, exact and looked up.

The values are those of TreeSHAP as LightGBM computes it (Lundberg et al., 2020: path-dependent, weighted by the rows
that trained each leaf). A leaf's part of them depends only on which of the features on its path send the row towards
it; these are few, so all outcomes are worked out once (as "Fast TreeSHAP v2" does, Yang, 2021), and a row then asks one
table per leaf; rows of which the same conditions hold ask them once. How features are named is not here.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import NamedTuple

import lightgbm as lgb
import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

Array = npt.NDArray[np.float64]
_NAN_GOES_LEFT = {0: None, 2: None, 8: False, 10: True}
"""By LightGBM's `decision_type`; None where NaN is taken for 0."""
_MAX_BATCH_NUMBERS = 1 << 20
"""Numbers worked on at once while tables are made."""
_MAX_CACHED = 4_096
"""Sums that are kept: KiB each, where there are many conditions."""


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
class TreeShapTable:
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
    _cache: dict[bytes, Array] = field(default_factory=dict, compare=False, repr=False)
    """What was added up before, by which conditions hold, a bit each; until it is too much, then it begins again."""

    @classmethod
    def build(cls, boosters: Sequence[lgb.Booster], groups: Sequence[int]) -> TreeShapTable:
        """`groups` has the number of each feature's group."""
        leaves = [leaf for booster in boosters for tree in _parse_trees(booster) for leaf in _iter_leaves(tree)]
        base = math.fsum(leaf.value * math.prod(leaf.share.values()) for leaf in leaves)
        # Leaves that ask for the same of a row share a table.
        alike: dict[tuple[_Condition, ...], list[_Leaf]] = defaultdict(list)
        for leaf in leaves:
            if leaf.share:
                alike[tuple(leaf.share)].append(leaf)
        asked = sorted(alike, key=len)
        conditions = {condition: i for i, condition in enumerate(dict.fromkeys(c for all_ in asked for c in all_))}
        places = csr_array(
            (
                np.array([1 << i for all_ in asked for i in range(len(all_))], dtype=np.int32),
                np.array([conditions[c] for all_ in asked for c in all_], dtype=np.int32),
                np.cumsum([0, *map(len, asked)], dtype=np.int32),
            ),
            shape=(len(asked), len(conditions)),
        )
        starts = np.cumsum([0, *(1 << len(all_) for all_ in asked)], dtype=np.int32)[:-1]
        of = np.asarray(groups)
        tables = [_shap_tables([alike[all_] for all_ in some], of) for some in _batched_by_length(asked)]
        nothing = np.zeros((0, max(groups) + 1))
        features, low, high, nan = zip(*conditions, strict=True) if conditions else ((), (), (), ())
        return cls(
            base,
            np.array(features, dtype=np.int64),
            np.array(low),
            np.array(high),
            np.array(nan, dtype=bool),
            places,
            starts,
            np.concatenate([nothing, *tables]),
        )

    def contributions(self, numbers: Array) -> Array:
        """What each group of features adds to `base`, by row: summed, with it, what the models say."""
        asked = numbers[:, self.features]
        holds = (asked > self.low) & (asked <= self.high)
        holds |= np.isnan(asked) & self.nan
        outcomes = [outcome.tobytes() for outcome in np.packbits(holds, axis=1)]
        found = {outcome: self._cache.get(outcome) for outcome in outcomes}
        if new := {outcome: row for row, outcome in enumerate(outcomes) if found[outcome] is None}:
            summed = dict(zip(new, self._sum_tables(holds[[*new.values()]]), strict=True))
            found |= summed
            if len(self._cache) + len(summed) > _MAX_CACHED:
                self._cache.clear()
            self._cache.update(summed)
        return np.array([found[outcome] for outcome in outcomes]).reshape(len(numbers), self.table.shape[1])

    def _sum_tables(self, holds: npt.NDArray[np.bool_]) -> Array:
        """What the tables add up to, by row, where these conditions hold of it."""
        at = (self.places @ holds.T.astype(np.int32, order="C") + self.starts[:, None]).T
        ends = np.arange(len(at) + 1, dtype=np.int32) * len(self.starts)
        once = csr_array((np.ones(at.size), at.ravel(), ends), shape=(len(at), len(self.table)))
        return np.asarray(once @ self.table)


def _parse_trees(booster: lgb.Booster) -> Iterator[dict[str, list[str]]]:
    """The arrays of each tree, as LightGBM writes them."""
    text: str = booster.model_to_string(num_iteration=-1)
    for tree in text.partition("\nend of trees")[0].split("\nTree=")[1:]:
        yield {name: values.split() for name, _, values in (line.partition("=") for line in tree.split("\n"))}


def _iter_leaves(tree: dict[str, list[str]]) -> Iterator[_Leaf]:
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
            asked = sorted((_Condition(f, low, high, nan), share) for f, (low, high, nan, share) in path.items())
            yield _Leaf(values[~node], dict(asked))
            continue
        feature, threshold, way = features[node], thresholds[node], ways[node]
        low, high, nan, share = path.get(feature, (-math.inf, math.inf, True, 1.0))
        nan_left = threshold >= 0.0 if way is None else way
        for left, child in zip((True, False), (children[0][node], children[1][node]), strict=True):
            went = share * rows[child] / rows[node]
            bounds = (low, min(high, threshold)) if left else (max(low, threshold), high)
            todo.append((child, {**path, feature: (*bounds, nan and nan_left == left, went)}))


def _batched_by_length(asked: Sequence[tuple[_Condition, ...]]) -> Iterator[list[tuple[_Condition, ...]]]:
    """Of one length each, in order, and not too many at once."""
    for size, alike in groupby(asked, key=len):
        step = max(1, _MAX_BATCH_NUMBERS // (size * size << size))
        while some := list(islice(alike, step)):
            yield some


def _shap_tables(alike: Sequence[Sequence[_Leaf]], groups: npt.NDArray[np.int64]) -> Array:
    """What each group of features adds by leaves that ask for the same m things, for all 2^m outcomes: one such table
    after the other.

    With o = 1 where a feature sends the row towards the leaf, else 0, and z the share that it sends of those that
    trained it, a feature adds value · (o - z) · ∫ Π over the others of (t · o + (1 - t) · z) dt, t from 0 to 1: that
    gives each set of others Shapley's weight (Owen, 1972). Gauss and Legendre's rule of m / 2 points is exact for it.
    """
    leaves = [leaf for these in alike for leaf in these]
    m = len(leaves[0].share)
    trained = np.array([list(leaf.share.values()) for leaf in leaves])[:, None, :]
    sent = (np.arange(1 << m)[:, None] >> np.arange(m) & 1).astype(np.float64)
    others = np.zeros((len(leaves), 1 << m, m))
    for point, weight in zip(*np.polynomial.legendre.leggauss(m // 2 + 1), strict=True):
        t = (1 + point) / 2
        factors = t * sent + (1 - t) * trained
        others += weight / 2 * factors.prod(axis=2, keepdims=True) / factors
    added = np.array([leaf.value for leaf in leaves])[:, None, None] * (sent - trained) * others
    added = np.add.reduceat(added, np.cumsum([0, *map(len, alike)])[:-1])
    table = np.zeros((len(alike), 1 << m, int(groups.max()) + 1))
    of = groups[[[condition.feature for condition in these[0].share] for these in alike]]
    for i in range(m):
        table[np.arange(len(alike)), :, of[:, i]] += added[:, :, i]
    return table.reshape(-1, table.shape[2])
