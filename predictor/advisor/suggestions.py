"""Suggestions for a query without a figure: the command that measures it, or the query to ask instead."""

from __future__ import annotations

from accel_platform.backends.registry import RUNTIMES, runtime_for
from accel_platform.bench.measure.generation import NEW_TOKENS
from accel_platform.bench.plan.support import runs_loops, supports_mode
from predictor.advisor.resolved_query import ResolvedQuery
from predictor.data.traced_models import OWN_SIZES


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
