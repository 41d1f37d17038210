"""Exact SHAP values of boosted trees by table lookup.

The values equal those of TreeSHAP in LightGBM (Lundberg et al., 2020: path-dependent, weighted by the training rows of
each leaf). The method is that of Fast TreeSHAP v2 (Yang, 2021):

* A *condition* is a feature with the interval in which a row's value sends it towards a leaf. The conditions on the way
  from the root to a leaf are the leaf's *path*. A feature has one condition on it, however often it splits.
* What a leaf contributes depends only on which conditions of its path hold for the row. With m conditions there are 2^m
  such *outcomes*, so their contributions are tabulated, and a row needs one look-up per path.
* An outcome is computed when a row first has it, because computing all takes seconds. Leaves of equal paths share a
  table, and sums over all paths are cached by the conditions that hold.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import lightgbm as lgb
import numpy as np
import numpy.typing as npt
from scipy.sparse import csr_array

from predictor.data.fast_path import require_slow_path

Array = npt.NDArray[np.float64]
_NAN_GOES_LEFT = {"0": None, "2": None, "8": False, "10": True}
"""True if NaN goes to the left child, by LightGBM's `decision_type`; None if NaN counts as 0."""
_MAX_BATCH_NUMBERS = 1 << 20
"""Most numbers of one batch of outcomes that are computed together, to bound the memory."""
_MAX_FAST_OUTCOMES = 4_000
"""Most outcomes that the fast path computes, in milliseconds."""
_PATHS_AT_ONCE = 256
"""Paths whose outcomes `complete` computes between pauses for other threads."""
_MAX_CACHED = 4_096
"""Most cached sums; each takes some KiB if there are many conditions."""
_Condition = tuple[int, float, float, bool]
"""Feature, low, high and nan: it holds if low < value <= high, or for NaN if `nan` is True.

A plain tuple, because the garbage collector would traverse each of many objects of a class again and again.
"""


@dataclass(frozen=True)
class _Leaf:
    value: float
    share: dict[_Condition, float]
    """Conditions of the path, each with the share of training rows that it sends towards the leaf.

    The share is the product of child over parent row counts over this feature's splits.
    """


@dataclass(frozen=True)
class TreeShapTable:
    """Table of the SHAP contributions of all leaves of some boosted models, summed by groups of features.

    The number of conditions is C, of paths P, of leaves L, of outcomes over all paths R.
    """

    base: float
    """Expected prediction over the training rows, to which contributions are added."""
    features: npt.NDArray[np.int64]
    """Feature of each condition (C); `low`, `high` and `nan` are its bounds."""
    low: Array
    high: Array
    nan: npt.NDArray[np.bool_]
    places: csr_array
    """Number that each condition, if it holds, adds to the outcome of a path: a power of 2 (P, C)."""
    starts: npt.NDArray[np.int32]
    """First row of each path in `table`, and at the end the number of rows (P + 1)."""
    lengths: npt.NDArray[np.int64]
    """Number of conditions of each path, ascending (P)."""
    groups: npt.NDArray[np.int64]
    """Group of each condition's feature (C)."""
    first_leaf: npt.NDArray[np.int64]
    """First leaf of each path, and at the end the number of leaves (P + 1)."""
    values: Array
    """Value of each leaf (L)."""
    shares: Array
    """Share of training rows that each condition of its path sends towards a leaf; 1 beyond the path's end (L, m)."""
    table: Array
    """Contribution of each group of features by outcome (R, groups). Memory is taken only by rows that are written."""
    known: npt.NDArray[np.bool_]
    """True for rows of `table` that are computed (R). Two threads may compute the same row, with the same result."""
    _cache: dict[bytes, Array] = field(default_factory=dict, compare=False, repr=False)
    """Contributions by the packed bits of the conditions that hold; emptied when full."""

    @classmethod
    def build(cls, boosters: Sequence[lgb.Booster], groups: Sequence[int]) -> TreeShapTable:
        """Return a table with no outcome computed yet; `groups` holds the group index of each feature."""
        texts: list[str] = [booster.model_to_string(num_iteration=-1) for booster in boosters]
        leaves = [leaf for text in texts for tree in parse_trees(text) for leaf in _iter_leaves(tree)]
        base = math.fsum(leaf.value * math.prod(leaf.share.values()) for leaf in leaves)
        # Leaves with equal conditions share a path.
        by_path: dict[tuple[_Condition, ...], list[_Leaf]] = defaultdict(list)
        for leaf in leaves:
            if leaf.share:
                by_path[tuple(leaf.share)].append(leaf)
        paths = sorted(by_path, key=len)
        conditions = {condition: i for i, condition in enumerate(dict.fromkeys(c for path in paths for c in path))}
        places = csr_array(
            (
                np.array([1 << i for path in paths for i in range(len(path))], dtype=np.int32),
                np.array([conditions[c] for path in paths for c in path], dtype=np.int32),
                np.cumsum([0, *map(len, paths)], dtype=np.int32),
            ),
            shape=(len(paths), len(conditions)),
        )
        starts = np.cumsum([0, *(1 << len(path) for path in paths)], dtype=np.int32)
        ordered = [leaf for path in paths for leaf in by_path[path]]
        shares = np.ones((len(ordered), max(map(len, paths), default=0)))
        for row, leaf in enumerate(ordered):
            shares[row, : len(leaf.share)] = [*leaf.share.values()]
        features, low, high, nan = zip(*conditions, strict=True) if conditions else ((), (), (), ())
        return cls(
            base,
            np.array(features, dtype=np.int64),
            np.array(low),
            np.array(high),
            np.array(nan, dtype=bool),
            places,
            starts,
            np.diff(places.indptr).astype(np.int64),
            np.asarray(groups)[list(features)],
            np.cumsum([0, *(len(by_path[path]) for path in paths)]),
            np.array([leaf.value for leaf in ordered]),
            shares,
            np.empty((int(starts[-1]), max(groups) + 1)),
            np.zeros(int(starts[-1]), dtype=bool),
        )

    def contributions(self, rows: Array) -> Array:
        """Return the contributions, shape (rows, groups); a row's sum plus `base` is its prediction."""
        values = rows[:, self.features]
        holds = (values > self.low) & (values <= self.high)
        holds |= np.isnan(values) & self.nan
        outcomes = [outcome.tobytes() for outcome in np.packbits(holds, axis=1)]
        found = {outcome: self._cache.get(outcome) for outcome in outcomes}
        if new := {outcome: row for row, outcome in enumerate(outcomes) if found[outcome] is None}:
            summed = dict(zip(new, self._sum_tables(holds[[*new.values()]]), strict=True))
            found |= summed
            if len(self._cache) + len(summed) > _MAX_CACHED:
                self._cache.clear()
            self._cache.update(summed)
        return np.array([found[outcome] for outcome in outcomes]).reshape(len(rows), self.table.shape[1])

    def complete(self) -> None:
        """Compute all outcomes in advance, which takes seconds and changes no result."""
        for path in range(0, len(self.lengths), _PATHS_AT_ONCE):
            last = min(path + _PATHS_AT_ONCE, len(self.lengths))
            self._compute(np.arange(self.starts[path], self.starts[last]))

    def _sum_tables(self, holds: npt.NDArray[np.bool_]) -> Array:
        """Return the contributions summed over all paths; `holds` tells which conditions hold, shape (rows, C)."""
        at = (self.places @ holds.T.astype(np.int32, order="C") + self.starts[:-1, None]).T
        if not (known := self.known[at]).all():
            self._compute(np.unique(at[~known]))
        ends = np.arange(len(at) + 1, dtype=np.int32) * len(self.lengths)
        indicators = csr_array((np.ones(at.size), at.ravel(), ends), shape=(len(at), len(self.table)))
        return np.asarray(indicators @ self.table)

    def _compute(self, rows: npt.NDArray[np.int64]) -> None:
        """Compute these rows of the table, given in ascending order, unless they are computed already."""
        rows = rows[~self.known[rows]]
        if len(rows) > _MAX_FAST_OUTCOMES:
            require_slow_path()
        paths = np.searchsorted(self.starts, rows, side="right") - 1
        lengths = self.lengths[paths]
        for m in np.unique(lengths).tolist():
            (same,) = np.nonzero(lengths == m)
            for batch in np.array_split(same, len(same) * m * m // _MAX_BATCH_NUMBERS + 1):
                self.table[rows[batch]] = self._outcomes(m, paths[batch], rows[batch] - self.starts[paths[batch]])
        self.known[rows] = True

    def _outcomes(self, m: int, paths: npt.NDArray[np.int64], outcomes: npt.NDArray[np.int64]) -> Array:
        """Return the contributions, shape (outcomes, groups), of outcomes of paths with m conditions.

        The k-th bit of an outcome is set if the k-th condition of its path holds.

        Let o be 1 where a feature sends the row towards the leaf, else 0. Let z be the share of training rows that it
        sends there. A feature adds value · (o - z) · ∫ Π over the others of (t · o + (1 - t) · z) dt, t from 0 to 1.
        The integral gives each set of others Shapley's weight (Owen, 1972). Gauss-Legendre quadrature of m / 2 points
        is exact for it. No step mixes columns, so that a result does not depend on what is computed beside it.
        """
        counts = self.first_leaf[paths + 1] - self.first_leaf[paths]
        starts = np.cumsum(counts) - counts
        leaf = np.repeat(self.first_leaf[paths] - starts, counts) + np.arange(counts.sum())
        trained = self.shares[leaf, :m].T.copy()
        sent = (np.repeat(outcomes, counts) >> np.arange(m)[:, None] & 1).astype(np.float64)
        others = np.zeros_like(trained)
        for point, weight in zip(*np.polynomial.legendre.leggauss(m // 2 + 1), strict=True):
            t = (1 + point) / 2
            factors = t * sent + (1 - t) * trained
            product = factors[0].copy()
            for factor in factors[1:]:
                product *= factor
            others += weight / 2 * product / factors
        added = np.add.reduceat(self.values[leaf] * (sent - trained) * others, starts, axis=1)
        groups = self.groups[self.places.indices[self.places.indptr[paths] + np.arange(m)[:, None]]]
        table = np.zeros((len(paths), self.table.shape[1]))
        every = np.arange(len(paths))
        for group, values in zip(groups, added, strict=True):
            table[every, group] += values
        return table


def parse_trees(text: str) -> Iterator[dict[str, str]]:
    """Yield each tree of LightGBM's text format as its lines by name."""
    for tree in text.partition("\nend of trees")[0].split("\nTree=")[1:]:
        yield {name: values for name, _, values in (line.partition("=") for line in tree.split("\n"))}


def nan_goes_left(tree: dict[str, str], thresholds: Sequence[float]) -> list[bool]:
    """Return whether each node of a tree sends NaN to its left child."""
    rules = [_NAN_GOES_LEFT[kind] for kind in tree["decision_type"].split()]
    return [at >= 0.0 if rule is None else rule for at, rule in zip(thresholds, rules, strict=True)]


def _iter_leaves(tree: dict[str, str]) -> Iterator[_Leaf]:
    """Yield the leaves of a tree with the conditions of their paths."""
    values = [float(value) for value in tree["leaf_value"].split()]
    if len(values) == 1:
        yield _Leaf(values[0], {})
        return
    features, thresholds = [*map(int, tree["split_feature"].split())], [*map(float, tree["threshold"].split())]
    children = [[*map(int, tree[side].split())] for side in ("left_child", "right_child")]
    # A negative child is the complement of a leaf's index.
    rows = [*map(int, (*tree["internal_count"].split(), *reversed(tree["leaf_count"].split())))]
    nan_left = nan_goes_left(tree, thresholds)
    stack: list[tuple[int, dict[int, tuple[float, float, bool, float]]]] = [(0, {})]
    while stack:
        node, path = stack.pop()
        if node < 0:
            conditions = sorted(((f, low, high, nan), share) for f, (low, high, nan, share) in path.items())
            yield _Leaf(values[~node], dict(conditions))
            continue
        feature, threshold = features[node], thresholds[node]
        low, high, nan, share = path.get(feature, (-math.inf, math.inf, True, 1.0))
        for is_left, child in zip((True, False), (children[0][node], children[1][node]), strict=True):
            child_share = share * rows[child] / rows[node]
            bounds = (low, min(high, threshold)) if is_left else (max(low, threshold), high)
            stack.append((child, {**path, feature: (*bounds, nan and nan_left[node] == is_left, child_share)}))
