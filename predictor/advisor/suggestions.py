"""Suggestions for a query without a figure: the command that measures it, or the query to ask instead."""

from __future__ import annotations

from accel_platform.backends.registry import RUNTIMES, runtime_for
from accel_platform.bench.measure.generation import NEW_TOKENS
from accel_platform.bench.plan.support import runs_loops, supports_mode
from predictor.advisor.resolved_query import ResolvedQuery
from predictor.data.traced_models import InputSizes

_OWN_SIZES = InputSizes()


def suggest_measurement(query: ResolvedQuery, hardware: str, *, here: bool) -> str:
    """Return the measurement that would help most, on this host (`here`) or one that has the hardware.

    `hardware` is its name for `accel bench`.
    """
    command = _command(query, hardware)
    return command if here or not command.startswith(("accel bench", "with")) else f"on a host that has it: {command}"


def _command(query: ResolvedQuery, hardware: str) -> str:  # noqa: PLR0911 - a reason per line
    subject = query.subject
    if subject.named_only:
        return "accel migrate PATH, with results that hold it (this model is known by name only)"
    if subject.figures is not None:
        return "ask with its transformers config, which can be measured (cost figures cannot)"
    if query.sizes != _OWN_SIZES:
        return "ask without image_size, audio_seconds and steps: only a model's own are measured"
    if query.output_tokens not in (None, NEW_TOKENS):
        return f"ask for {NEW_TOKENS} output_tokens, which can be measured here: no other number is"
    if hardware.partition(":")[0] not in RUNTIMES:
        return f"ask for a device that one of these drives: {', '.join(RUNTIMES)}"
    if subject.draws_images and not runs_loops(hardware):
        return f"ask for hardware that runs loops: {', '.join(filter(runs_loops, RUNTIMES))}"
    if not supports_mode(hardware.partition(":")[0], query.mode):
        return (
            f"ask for hardware that runs {query.mode}: {', '.join(n for n in RUNTIMES if supports_mode(n, query.mode))}"
        )
    runtime = runtime_for(hardware).in_mode(query.mode)
    if runtime.precision_problem(query.precision) is not None:
        others = [name for name, other in RUNTIMES.items() if query.precision in other.in_mode(query.mode).precisions]
        if not others:
            return f"ask in a precision that it has: {', '.join(runtime.precisions)}"
        instead = ", ".join(runtime.precisions)
        return (
            f"ask for hardware that has {query.precision}: {', '.join(others)}; or in {instead}, which {hardware} has"
        )
    length = "" if query.sequence_length is None else f" --sequence-length {query.sequence_length}"
    mode = "" if query.mode == "inference" else f" --mode {query.mode}"
    precision = "" if query.precision == runtime.precision else f" --precision {query.precision}"
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
