"""What would settle a question: the command that measures it, or what has to be asked instead. Nothing is run."""

from __future__ import annotations

from accel_platform.backends.registry import RUNTIMES, runtime_for
from accel_platform.bench.measure.generation import NEW_TOKENS
from predictor.advisor.resolved_query import ResolvedQuery
from predictor.data.traced_models import InputSizes

_OWN = InputSizes()


def suggestion(asked: ResolvedQuery, hardware: str, *, here: bool) -> str:
    """The measurement that would help most, here or on a host that has the hardware; `hardware` is `accel bench`'s name
    for it."""
    command = _command(asked, hardware)
    return command if here or not command.startswith(("accel bench", "with")) else f"on a host that has it: {command}"


def _command(asked: ResolvedQuery, hardware: str) -> str:  # noqa: PLR0911 - a reason per line
    subject = asked.subject
    if subject.named_only:
        return "accel migrate PATH, with results that hold it (this model is known by name only)"
    if subject.figures is not None:
        return "ask with its transformers config, which can be measured (cost figures cannot)"
    if asked.sizes != _OWN:
        return "ask without image_size and audio_seconds: only a model's own sizes are measured"
    if asked.output_tokens not in (None, NEW_TOKENS):
        return f"ask for {NEW_TOKENS} output_tokens, which can be measured here: no other number is"
    if hardware.partition(":")[0] not in RUNTIMES:
        return f"ask for a device that one of these drives: {', '.join(RUNTIMES)}"
    runtime = runtime_for(hardware)
    if runtime.refusal(asked.precision) is not None:
        able = [name for name, other in RUNTIMES.items() if asked.precision in other.precisions]
        if not able:
            return f"ask in a precision that it has: {', '.join(runtime.precisions)}"
        return f"ask for hardware that has {asked.precision}: {', '.join(able)}"
    length = "" if asked.sequence_length is None else f" --sequence-length {asked.sequence_length}"
    mode = "" if asked.mode == "inference" else f" --mode {asked.mode}"
    precision = "" if asked.precision == runtime.precision else f" --precision {asked.precision}"
    how = f"--hardware {hardware} --batch-sizes {asked.batch_size}{length}{mode}{precision}"
    if subject.spec is not None:
        return f"accel bench run --models {subject.model_id} {how}"
    usual = "" if subject.default_sequence_length is None else f'"sequence_length": {subject.default_sequence_length}, '
    return (
        f'with {{"{subject.model_id}": {{"architecture": <its model_type>, "modality": "{subject.modality}", '
        f'{usual}"config": <the rest of it>}}}} in models.json: accel bench run --models-file models.json {how}'
    )
