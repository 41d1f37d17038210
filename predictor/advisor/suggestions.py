"""Suggestions for a query without a figure: a command that measures it, or a query to ask instead."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable

from accel_platform.backends.registry import RUNTIMES, runtime_for
from accel_platform.bench.measure.generation import NEW_TOKENS
from accel_platform.bench.plan.support import runs_loops, supports_mode
from predictor.advisor.candidates import Candidate
from predictor.advisor.resolved_query import ResolvedQuery
from predictor.data.evidence import CellKey, Evidence, Target
from predictor.data.traced_models import OWN_SIZES
from predictor.schemas.responses import Excluded


def suggest_measurement(query: ResolvedQuery, hardware: str, *, here: bool) -> str:
    """Return the measurement that would help most, on this host (`here`) or one that has the hardware.

    `hardware` is its name for `accel bench`. Where nothing can be measured, it is what to ask or import instead.
    """
    instead = _alternative_to_measuring(query, hardware)
    if instead is not None:
        return instead
    command = _bench_command(query, hardware)
    return command if here else f"on a host that has it: {command}"


def _alternative_to_measuring(query: ResolvedQuery, hardware: str) -> str | None:  # noqa: PLR0911 - a reason per line
    """Return what to do where `accel bench` cannot measure the query on the hardware; None where it can."""
    subject = query.subject
    if subject.named_only:
        return "accel migrate PATH, with results that hold it (this model is known by name only)"
    if subject.figures is not None:
        return "ask with its transformers config, which can be measured (cost figures cannot)"
    if query.sizes != OWN_SIZES:
        return "ask without image_size, audio_seconds and steps: only a model's own are measured"
    if query.output_tokens not in (None, NEW_TOKENS):
        return f"ask for {NEW_TOKENS} output tokens, which can be measured here: no other number is"
    name = hardware.partition(":")[0]
    if name not in RUNTIMES:
        return f"ask for a device that one of these drives: {', '.join(RUNTIMES)}"
    if subject.draws_images and not runs_loops(hardware):
        return f"ask for hardware that runs loops: {', '.join(filter(runs_loops, RUNTIMES))}"
    if not supports_mode(name, query.mode):
        able = (other for other in RUNTIMES if supports_mode(other, query.mode))
        return f"ask for hardware that runs {query.mode}: {', '.join(able)}"
    runtime = runtime_for(hardware).in_mode(query.mode)
    if runtime.precision_problem(query.precision) is None:
        return None
    others = [other for other, it in RUNTIMES.items() if query.precision in it.in_mode(query.mode).precisions]
    if not others:
        return f"ask in a precision that it has: {', '.join(runtime.precisions)}"
    instead = ", ".join(runtime.precisions)
    return f"ask for hardware that has {query.precision}: {', '.join(others)}; or in {instead}, which {hardware} has"


def _bench_command(query: ResolvedQuery, hardware: str) -> str:
    """Return the command that measures the query; a model outside the catalog goes into a models file first."""
    subject, usual_precision = query.subject, runtime_for(hardware).in_mode(query.mode).precision
    length = "" if query.sequence_length is None else f" --sequence-length {query.sequence_length}"
    mode = "" if query.mode == "inference" else f" --mode {query.mode}"
    precision = "" if query.precision == usual_precision else f" --precision {query.precision}"
    options = f"--hardware {hardware} --batch-sizes {query.batch_size}{length}{mode}{precision}"
    if subject.spec is not None:
        return f"accel bench run --models {subject.model_id} {options}"
    length_field = (
        "" if subject.default_sequence_length is None else f'"sequence_length": {subject.default_sequence_length}, '
    )
    return (
        f'with {{"{subject.model_id}": {{"architecture": <its model_type>, "modality": "{subject.modality}", '
        f'{length_field}"config": <the rest of it>}}}} in models.json: '
        f"accel bench run --models-file models.json {options}"
    )


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
