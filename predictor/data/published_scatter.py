"""Scatter of published figures, from which one figure without limits gets its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from predictor.schemas.responses import INTERVAL_LEVEL

_LEAST_FIGURES = 40
"""Fewest imported figures of a backend, each beside others of its configuration, that tell their scatter."""


@dataclass(frozen=True)
class PublishedScatter:
    """Scatter of imported figures: the natural log of a factor within which figures of one configuration agree.

    INTERVAL_LEVEL of the figures lie so near the geometric mean of the others. Others are of other hosts, versions of
    the software, or days.
    """

    by_backend: dict[str, float] = field(default_factory=dict)
    of_any_backend: float | None = None
    """Scatter where each backend counts the same; None where no figures can be compared."""

    @classmethod
    def of(cls, distances: Mapping[str, Sequence[float]]) -> PublishedScatter:
        """Return the scatter by the distances of figures from others, in natural logs, by backend."""
        known = {backend: np.sort(found) for backend, found in distances.items() if len(found) >= _LEAST_FIGURES}
        if not known:
            return cls()
        every = np.concatenate(list(known.values()))
        weights = np.concatenate([np.full(len(found), 1 / len(found)) for found in known.values()])
        order = np.argsort(every)
        covered = np.cumsum(weights[order]) / len(known)
        of_any = every[order][np.searchsorted(covered, INTERVAL_LEVEL)]
        return cls({backend: float(np.quantile(d, INTERVAL_LEVEL)) for backend, d in known.items()}, float(of_any))

    def log_factor(self, backend: str) -> float | None:
        """Return the scatter of a backend's figures, else that of any backend."""
        return self.by_backend.get(backend, self.of_any_backend)
