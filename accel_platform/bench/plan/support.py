"""Support of modes and precisions by models and runtimes, decided before anything is built."""

from __future__ import annotations

from typing import get_args

from accel_platform.backends.registry import RUNTIMES, runtime_for
from accel_platform.bench.measure.failures import FailureReason
from accel_platform.bench.plan.plan import Cell
from accel_platform.errors import InvalidInput
from accel_platform.events.types import Mode
from accel_platform.hardware.cpu import usable_cores
from accel_platform.precisions import PRECISIONS
from accel_platform.table_io.values import rounded
from accel_platform.workloads.heads import Head, generation_head, training_head
from accel_platform.workloads.model_catalog import ModelSpec
from accel_platform.workloads.sources import GRAPHS, is_sourced, runs_on

MODES: tuple[Mode, ...] = get_args(Mode)


def resolve_mode(name: str) -> Mode:
    """Return the mode of this name, in any case. Raises InvalidInput with the known modes."""
    for mode in MODES:
        if name.casefold() == mode:
            return mode
    raise InvalidInput(f"No mode is called {name!r}. Known: {', '.join(MODES)}.")


def head_for(spec: ModelSpec, mode: Mode) -> Head | None:
    """Return the head to build the model with; None where the model cannot have this mode. Imports torch but for
    inference."""
    if mode == "inference":
        return "AutoModel"
    if is_sourced(spec):
        return None
    return generation_head(spec) if mode == "generation" else training_head(spec)


def supports_mode(hardware: str, mode: Mode) -> bool:
    """Return whether the runtime has this mode: exported and compiled graphs hold one forward pass, so most of them
    serve inference only.

    OpenVINO and ONNX Runtime generate on the processor, by their libraries for it.
    """
    runtime = runtime_for(hardware)
    if mode == "inference" or runtime.choice is not None:
        return mode == "inference"
    return runtime.reads == "weights" or (mode == "generation" and runtime.generation is not None)


def runs_loops(hardware: str) -> bool:
    """Return whether the runtime can repeat a part of a model: graphs would hold, and compilers unroll, all passes."""
    runtime = runtime_for(hardware)
    return runtime.reads == "weights" and runtime.choice is None


BUILDER_ARCHITECTURES = frozenset(("gemma", "llama", "mistral", "phi3", "qwen2", "qwen3", "smollm3"))
"""Decoders that ONNX Runtime GenAI's builder makes, and quantizes, as far as tried here. torch exports the others."""

UNSUPPORTED_MODE = "unsupported_mode"
UNSUPPORTED_PRECISION = "unsupported_precision"


def unsupported_reason(cell: Cell) -> FailureReason | None:
    """Return why the cell cannot be measured; None where nothing is known against it, though its device may still
    refuse."""
    if (reason := _unsupported_mode_reason(cell) or _unsupported_drawing_reason(cell)) is not None:
        return FailureReason("failed", UNSUPPORTED_MODE, reason)
    if (reason := cell.runtime.precision_problem(cell.precision)) is not None:
        return FailureReason("failed", UNSUPPORTED_PRECISION, reason)
    if (reason := _unsupported_weights_reason(cell)) is not None:
        return FailureReason("failed", UNSUPPORTED_PRECISION, reason)
    return None


def memory_shortage(cell: Cell, memory_mib: float | None) -> str | None:
    """Return why the cell cannot fit into a device's memory; None where what it surely holds fits, or where the memory
    is not known.

    Activations are not counted, because tracing them takes seconds for each model and length.
    """
    if memory_mib is None:
        return None
    held_gib = {what: size / 2**30 for what, size in _held_bytes(cell).items()}
    if sum(held_gib.values()) <= memory_mib / 1024:
        return None
    parts = " and ".join(f"{rounded(gib)} GiB of {what}" for what, gib in held_gib.items())
    precision = PRECISIONS[cell.precision].name
    return f"in {precision} it holds {parts}, besides activations; there are {rounded(memory_mib / 1024)} GiB"


def _held_bytes(cell: Cell) -> dict[str, float]:
    """Return the bytes of what the cell holds at once on every runtime, by its name."""
    from accel_platform.workloads.cost import parameters_of, sizes_of_parameters, text_tower
    from accel_platform.workloads.kv_cache import decoder_of

    model, precision = cell.model, PRECISIONS[cell.precision]
    held = {"weights": parameters_of(model) * precision.weight_bytes}
    if cell.mode == "training":
        # A text teaches nothing to towers for images and sound.
        tower = text_tower(model) if model.modality == "text" else ""
        trained = sum(size for name, size in sizes_of_parameters(model).items() if name.startswith(tower))
        held["gradients and moments of AdamW"] = 3 * trained * precision.weight_bytes
    if cell.mode == "generation" and cell.sequence_length and (decoder := decoder_of(model)) is not None:
        # Quantizing runtimes may keep them as narrow as the weights.
        width = min(precision.weight_bytes, precision.activation_bytes)
        held["keys and values"] = decoder.held(cell.sequence_length) * cell.batch_size * width
    return held


def _unsupported_mode_reason(cell: Cell) -> str | None:
    model, runtime = cell.model, cell.runtime
    if not supports_mode(cell.hardware, cell.mode):
        able = ", ".join(name for name in RUNTIMES if supports_mode(name, cell.mode))
        return f"{runtime.backend} runs inference only here; {cell.mode} runs on {able}"
    if not runs_on(model, runtime.backend):
        readers = ", ".join(name for name in RUNTIMES if runs_on(model, runtime_for(name).backend))
        return f"{model.model_id} is {GRAPHS[model.architecture].name}, which runs on {readers}"
    head = head_for(model, cell.mode)
    if head is None:
        if is_sourced(model):
            return f"of {model.model_id} only the forward pass is known: it is measured in inference"
        return f"{model.model_id} does not generate: no {model.architecture} model was made to predict the next token"
    if cell.processes > usable_cores():
        return f"training in {cell.processes} processes needs a core for each; here: {usable_cores()}"
    return None if runtime.reads == "weights" or cell.mode == "inference" else _unsupported_decoder_reason(cell, head)


def _unsupported_drawing_reason(cell: Cell) -> str | None:
    """Return why a model that draws images cannot be measured; None where it can, and for other models."""
    if not cell.model.draws_images:
        return None
    if cell.mode != "inference":
        return f"{cell.model.model_id} draws images: it is measured in inference, not in {cell.mode}"
    if runs_loops(cell.hardware):
        return None
    able = ", ".join(filter(runs_loops, RUNTIMES))
    name = cell.model.model_id
    return f"{name} repeats its denoiser, which no graph holds and no compiler unrolls: it runs on {able}"


def _unsupported_weights_reason(cell: Cell) -> str | None:
    """Return why the decoder's weights cannot be quantized for its runtime; None where they can or need not be."""
    if not cell.runtime.precisions[cell.precision].startswith("onnx-decoder-"):
        return None
    if cell.model.architecture in BUILDER_ARCHITECTURES:
        return None
    known = ", ".join(sorted(BUILDER_ARCHITECTURES))
    return (
        f"{cell.hardware} quantizes weights of {known} only, and {cell.model.model_id} is a {cell.model.architecture}"
    )


def _unsupported_decoder_reason(cell: Cell, head: Head) -> str | None:
    """Return why a library that generates by itself cannot take the cell's model; None where it may."""
    if head != "AutoModelForCausalLM":
        return f"{cell.runtime.backend} generates with decoders alone here, which {cell.model.model_id} is not"
    if missing := cell.runtime.missing_packages():
        return f"{cell.hardware} generates with {' and '.join(missing)}: pip install accel-platform[genai]"
    return None
