"""Settings in which the queried model was measured on hardware that has no figure for the query itself."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

from predictor.advisor.candidates import Candidate
from predictor.advisor.resolved_query import ResolvedQuery
from predictor.data.evidence import CellKey, Evidence, Target
from predictor.schemas.responses import Excluded

Setting = tuple[str, str]
"""Field of a query and its value, such as `precision` and `int8`."""
_SETTINGS = ("precision", "batch_size", "sequence_length", "output_tokens", "image_size")


def nearest_settings(
    evidence: Evidence, query: ResolvedQuery, excluded: Iterable[tuple[Candidate, Excluded]]
) -> dict[tuple[Setting, ...], list[Excluded]]:
    """Return what to ask otherwise, and where the model was measured so: of each place the fewest changes.

    Places where it was not measured in the queried mode are left out. Most places first.
    """
    if query.subject.model_id not in evidence.by_model:
        return {}
    measured = evidence.memoize(
        ("cells by target", query.subject.model_id), lambda: _cells_by_target(evidence, query.subject.model_id)
    )
    found: dict[tuple[Setting, ...], list[Excluded]] = defaultdict(list)
    for candidate, place in excluded:
        cells = [cell for cell in measured.get(candidate.target, ()) if cell.mode == query.mode]
        if cells:
            changes = min((_changes(query, cell) for cell in cells), key=lambda change: (len(change[1]), change))[1]
            if changes:
                found[changes].append(place)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def _cells_by_target(evidence: Evidence, model_id: str) -> dict[Target, list[CellKey]]:
    cells: dict[Target, list[CellKey]] = defaultdict(list)
    for summary in evidence.by_model[model_id]:
        cells[summary.cell.target].append(summary.cell)
    return cells


def _changes(query: ResolvedQuery, cell: CellKey) -> tuple[float, tuple[Setting, ...]]:
    """Return how far a cell's sizes are from the query's, in natural logs, and the settings that differ."""
    distance, changes = 0.0, []
    for name in _SETTINGS:
        value = getattr(cell, name)
        asked = query.precisions if name == "precision" else (getattr(query, name),)
        if value is None or value in asked or asked == (None,):
            continue
        changes.append((name, f"{value:g}" if isinstance(value, float) else str(value)))
        if name != "precision":
            distance += abs(math.log(value / asked[0]))
    return distance, tuple(changes)
