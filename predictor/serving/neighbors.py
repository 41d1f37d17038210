"""Gaussian process over the log residuals that formula and trees leave on measured loads.

It carries the residual of a measured load over to similar ones. Loads are similar in their ratios of work, and more so
where they share the model, the device and engine, or both: a load group measured on four GPUs tells of eight. One
kernel serves both times, per output token and to the first, because the same loads are similar in both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.optimize import minimize

from predictor.serving.loads import Deployment, Load
from predictor.serving.measured_loads import version_key
from predictor.serving.work import Array

PRIORS = {
    "any": 0.1,  # variance shared by loads of equal ratios of work
    "model": 0.1,
    "place": 0.05,  # device and engine
    "model_engine": 0.1,
    "load_group": 0.5,  # model, device and engine
    "ratios_length": 8.0,
    "users_length": 10.0,
    "input_length": 10.0,
    "output_length": 20.0,
    "devices_length": 20.0,
    "copies_length": 4.0,
    "other_quantization": 1.0,  # odds c / (1 - c) of the correlation c of two quantizations
    "other_version": 0.1,
    "noise": 0.05,
}
"""Parameters of the kernel before anything is learned; variances of standardized residuals, lengths in natural logs."""
_PRIOR_WEIGHT = 0.05
_LEARNED_FROM = 500
"""Number of loads that the kernel's parameters are learned from: more take minutes, and change them little."""
_STEPS = 15
_REACH = 4.0
"""Most that the log of a parameter may differ from its prior; far from it, covariances cannot be factorized."""
DEVICE = 1
"""Column of `names` that holds the device."""
_VERSION = 3
"""Column of `names` that holds the engine's version."""
_NO_FACTOR = 1e9
"""Negative log likelihood where a covariance cannot be factorized: finite, so that the search turns back."""
_LARGEST_RESIDUAL = 1.5
"""Bound to which log errors of loads are clipped, because some loads are of other deployments than they say."""
_SIZES = ("users", "input", "output", "devices", "copies")
"""Names of the columns of `sizes`."""
Names = npt.NDArray[np.str_]
Pairs = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Points:
    """Points of the Gaussian process: ratios of work, names and sizes by which loads are alike, a row per load."""

    ratios: Array
    """Ratios of work as the trees read them, one column each."""
    names: Names
    """Model's shape, device, engine, its version ("" where none is known), quantization."""
    sizes: Array
    """Logs of users, tokens in and out, devices and copies of attention; users and devices of one pipeline stage."""

    def rows(self, chosen: Any) -> Points:
        return Points(self.ratios[chosen], self.names[chosen], self.sizes[chosen])


def points_of(cells: Sequence[tuple[Deployment, Load]], ratios: Array) -> Points:
    """Return the points of these loads."""
    names = [_names(deployment) for deployment, _ in cells]
    sizes = [
        [load.users / d.stages, load.input_tokens, load.output_tokens, d.devices // d.stages, d.attention_copies]
        for d, load in cells
    ]
    return Points(
        ratios, np.array(names, dtype=str).reshape(-1, 5), np.log(np.array(sizes, dtype=float).reshape(-1, 5))
    )


def _names(deployment: Deployment) -> list[str]:
    """Return the model's shape, device, engine, its version and quantization."""
    d = deployment
    return [d.model_shape, d.device.name, d.engine, d.engine_version or "", d.quantization]


@dataclass(frozen=True)
class PairsOfLoads:
    """Distances and shared names of each pair of loads from two lists, before the kernel's parameters are applied."""

    ratios: Array
    """Distances of the standardized ratios."""
    sizes: tuple[Array, Array]
    """Sizes of the loads of each list."""
    model: Pairs
    place: Pairs
    model_engine: Pairs
    load_group: Pairs
    quantization: Pairs
    version: Pairs

    @classmethod
    def of(cls, one: Points, other: Points, center: Array, scale: Array) -> PairsOfLoads:
        model, device, engine, version, quantization = (
            _equal(one.names[:, i], other.names[:, i]) for i in range(one.names.shape[1])
        )
        return cls(
            _distances((one.ratios - center) / scale, (other.ratios - center) / scale),
            (one.sizes, other.sizes),
            model,
            device & engine,
            model & engine,
            model & device & engine,
            quantization,
            version,
        )

    def covariance(self, value: Mapping[str, float]) -> Array:
        """Return the kernel of each pair."""
        return self.total(self.terms(value))

    def total(self, terms: Mapping[str, Array]) -> Array:
        """Return the kernel that has these terms."""
        return sum(terms.values(), start=np.zeros(self.ratios.shape))

    def slopes(self, value: Mapping[str, float], terms: Mapping[str, Array]) -> Iterator[tuple[str, Array]]:
        """Yield each parameter but the noise, with the derivative of this kernel by the log of the parameter."""
        yield from terms.items()
        yield "ratios_length", terms["any"] * self.ratios / value["ratios_length"]
        by_size = self.total({name: term for name, term in terms.items() if name != "any"})
        squares = [
            np.subtract.outer(one, other) ** 2 / value[f"{of}_length"] ** 2
            for of, one, other in zip(_SIZES, self.sizes[0].T, self.sizes[1].T, strict=True)
        ]
        distances = np.sqrt(sum(squares))
        # Two loads of one size stay at a distance of 0 whatever the lengths are.
        falling = np.divide(by_size, distances, out=np.zeros_like(distances), where=distances > 0)
        for of, square in zip(_SIZES, squares, strict=True):
            yield f"{of}_length", falling * square
        # The share's derivative by the log of its odds is share x (1 - share), and the terms hold the share already.
        across = (terms["model_engine"] + terms["load_group"]) * ~self.quantization
        yield "other_quantization", across * (1 - _share(value["other_quantization"]))
        released = (terms["model_engine"] + terms["load_group"]) * ~self.version
        yield "other_version", released * (1 - _share(value["other_version"]))

    def terms(self, value: Mapping[str, float]) -> dict[str, Array]:
        """Return the terms of the kernel, by the names of their variances."""
        lengths = np.array([value[f"{of}_length"] for of in _SIZES])
        near = np.exp(-_distances(self.sizes[0] / lengths, self.sizes[1] / lengths))
        kept = np.where(self.quantization, 1.0, _share(value["other_quantization"]))
        released = np.where(self.version, 1.0, _share(value["other_version"]))
        return {
            "any": value["any"] * np.exp(-self.ratios / value["ratios_length"]),
            "model": value["model"] * near * self.model,
            "place": value["place"] * near * self.place,
            "model_engine": value["model_engine"] * near * self.model_engine * kept * released,
            "load_group": value["load_group"] * near * self.load_group * kept * released,
        }


@dataclass(frozen=True)
class Neighbors:
    """Measured loads with their log residuals beyond formula and trees, and the fitted kernel."""

    parameters: dict[str, float]
    """Parameters of the kernel as natural logs, by the names of `PRIORS`."""
    points: Points
    """Points of the measured loads."""
    residuals: Array
    """Natural logs of measured over expected, with a column for each of the two times."""
    weights: Array

    @classmethod
    def fit(cls, points: Points, residuals: Array, weights: Array) -> Neighbors:
        """Return the process whose kernel makes these residuals likeliest. It is deterministic."""
        residuals = np.clip(residuals, -_LARGEST_RESIDUAL, _LARGEST_RESIDUAL)
        drawn = np.random.default_rng(0).permutation(len(residuals))[:_LEARNED_FROM]
        part = cls({}, points.rows(drawn), residuals[drawn], weights[drawn])
        return cls(part._likeliest(), points, residuals, weights)

    def predict(self, points: Points) -> tuple[Array, Array]:
        """Return the log residuals expected of loads and their standard deviations, a column for each time.

        An engine of unknown version is taken for the newest that was measured.
        """
        names: list[list[str]] = points.names.tolist()
        for row in names:
            row[_VERSION] = row[_VERSION] or self._newest_of(row)
        versioned = Points(points.ratios, np.array(names, dtype=str).reshape(points.names.shape), points.sizes)
        between = PairsOfLoads.of(versioned, self.points, *self._standard).covariance(self._value)
        means = between @ self._solved
        explained = np.sum(solve_triangular(self._factor, between.T, lower=True, check_finite=False) ** 2, axis=0)
        variances = np.maximum(self._own_variance - explained, 0.0) + self._value["noise"] ** 2
        return means * self._scales, np.sqrt(variances)[:, None] * self._scales

    def newest_version(self, deployment: Deployment) -> str | None:
        """Return the newest version of its engine that was measured with the model on the device; None without any.

        Versions that were measured in the quantization go before others.
        """
        return self._newest_of(_names(deployment)) or None

    def measured_version(self, deployment: Deployment) -> str | None:
        """Return the version of its engine that answers for a deployment, "" for an unstated one.

        None if nobody measured the model on the device in this quantization.
        """
        shape, device, engine, version, quantization = _names(deployment)
        version = version or self._newest.get((shape, device, engine, quantization), "")
        return version if (shape, device, engine, version, quantization) in self._measured else None

    def versions_of(self, engine: str) -> set[str]:
        """Return the versions of an engine that were measured."""
        return {version for _, _, name, version, _ in self.points.names.tolist() if name == engine and version}

    @cached_property
    def devices(self) -> frozenset[str]:
        """Names of the devices that loads were measured on."""
        return frozenset(self.points.names[:, DEVICE].tolist())

    @cached_property
    def models_measured(self) -> Counter[str]:
        """Number of models that were measured, by quantization."""
        return Counter(
            quantization for _, quantization in {(names[0], names[-1]) for names in self.points.names.tolist()}
        )

    def _newest_of(self, names: Sequence[str]) -> str:
        *load_group, _, quantization = names
        return self._newest.get((*load_group, quantization)) or self._newest.get(tuple(load_group)) or ""

    def _likeliest(self) -> dict[str, float]:
        """Return the parameters under which these residuals are likeliest, and not far from the priors."""
        names, prior = list(PRIORS), np.log(list(PRIORS.values()))
        pairs = PairsOfLoads.of(self.points, self.points, *self._standard)
        outputs = self.residuals / self._scales

        def unlikeliness(values: Array) -> tuple[float, Array]:
            """Return the negative log likelihood, less a constant, and its gradient (Rasmussen and Williams, 5.9)."""
            value = dict(zip(names, np.exp(values).tolist(), strict=True))
            terms = pairs.terms(value)
            try:
                factor = _factor(pairs.total(terms), value["noise"], self.weights)
            except np.linalg.LinAlgError:
                return _NO_FACTOR, np.zeros_like(values)
            solved = cho_solve((factor, True), outputs)
            likely = 0.5 * np.sum(outputs * solved) + outputs.shape[1] * np.sum(np.log(np.diag(factor)))
            by_pair = outputs.shape[1] * cho_solve((factor, True), np.eye(len(outputs))) - solved @ solved.T
            slopes = {name: 0.5 * float(np.vdot(by_pair, slope)) for name, slope in pairs.slopes(value, terms)}
            slopes["noise"] = float(np.sum(np.diag(by_pair) * value["noise"] ** 2 / self.weights))
            away = values - prior
            gradient = np.array([slopes[name] for name in names]) + 2 * _PRIOR_WEIGHT * away
            return float(likely + _PRIOR_WEIGHT * np.sum(away**2)), gradient

        bounds = [(value - _REACH, value + _REACH) for value in prior]
        options = {"maxiter": _STEPS}
        found = minimize(unlikeliness, prior, method="L-BFGS-B", jac=True, bounds=bounds, options=options).x
        return {name: round(float(value), 6) for name, value in zip(names, found, strict=True)}

    @cached_property
    def _value(self) -> dict[str, float]:
        return {name: float(np.exp(value)) for name, value in self.parameters.items()}

    @property
    def _own_variance(self) -> float:
        return sum(self._value[name] for name in ("any", "model", "place", "model_engine", "load_group"))

    @cached_property
    def _scales(self) -> Array:
        """Root mean squares of the residuals, which the kernel's standard deviations are relative to."""
        return np.asarray(np.sqrt(np.average(self.residuals**2, axis=0, weights=self.weights)))

    @cached_property
    def _newest(self) -> dict[tuple[str, ...], str]:
        """Newest engine version by model, device and engine, for each quantization and for any."""
        ordered = sorted(self.points.names.tolist(), key=lambda row: version_key(row[_VERSION]))
        in_any = {tuple(row[:_VERSION]): row[_VERSION] for row in ordered}
        return in_any | {(*row[:_VERSION], row[_VERSION + 1]): row[_VERSION] for row in ordered}

    @cached_property
    def _measured(self) -> frozenset[tuple[str, ...]]:
        return frozenset(map(tuple, self.points.names.tolist()))

    @cached_property
    def _standard(self) -> tuple[Array, Array]:
        """Mean and standard deviation of each ratio's column; the deviation of a constant column counts as 1."""
        spread = self.points.ratios.std(axis=0)
        return self.points.ratios.mean(axis=0), np.where(spread > 0, spread, 1.0)

    @cached_property
    def _solved(self) -> Array:
        return np.asarray(cho_solve((self._factor, True), self.residuals / self._scales))

    @cached_property
    def _factor(self) -> Array:
        covariance = PairsOfLoads.of(self.points, self.points, *self._standard).covariance(self._value)
        return _factor(covariance, self._value["noise"], self.weights)


def to_document(neighbors: Neighbors) -> dict[str, Any]:
    """Return the process as JSON values, which `from_document` reads."""
    points = neighbors.points
    kinds, codes = np.unique(points.names, return_inverse=True)
    return {
        "parameters": neighbors.parameters,
        "ratios": _round_columns(points.ratios),
        "kinds": kinds.tolist(),
        "names": codes.reshape(points.names.shape).T.tolist(),
        "sizes": _round_columns(points.sizes),
        "residuals": _round_columns(neighbors.residuals),
        "weights": _round_columns(neighbors.weights[:, None]),
    }


def from_document(document: Mapping[str, Any]) -> Neighbors:
    """Return the process that `to_document` wrote."""
    columns = {name: np.array(document[name], dtype=float).T for name in ("ratios", "sizes", "residuals", "weights")}
    names = np.array(document["kinds"], dtype=str)[np.array(document["names"]).T]
    points = Points(columns["ratios"], names, columns["sizes"])
    return Neighbors(dict(document["parameters"]), points, columns["residuals"], columns["weights"][:, 0])


def _round_columns(rows: Array) -> list[list[float]]:
    """Return the columns with four digits after the point: columns of like numbers compress best."""
    columns: list[list[float]] = np.round(rows.T, 4).tolist()
    return columns


def _equal(one: Names, other: Names) -> Pairs:
    """Return whether each pair of names is the same; as numbers, because texts take much longer."""
    _, codes = np.unique(np.concatenate([one, other]), return_inverse=True)
    return np.asarray(codes[: len(one), None] == codes[None, len(one) :])


def _factor(covariance: Array, noise: float, weights: Array) -> Array:
    """Return the lower Cholesky factor of the covariance of measured loads, their noise included."""
    covariance[np.diag_indices_from(covariance)] += noise**2 / weights
    return np.tril(cho_factor(covariance, lower=True, overwrite_a=True)[0])


def _distances(one: Array, other: Array) -> Array:
    squares = np.sum(one**2, axis=1)[:, None] + np.sum(other**2, axis=1)[None] - 2 * one @ other.T
    return np.asarray(np.sqrt(np.maximum(squares, 0.0)))


def _share(odds: float) -> float:
    return odds / (1 + odds)
