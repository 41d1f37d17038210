"""What a mode asks of a model and a runtime. Nothing is run here."""

from __future__ import annotations

from typing import get_args

from accel_platform.backends.registry import runtime_for
from accel_platform.errors import InvalidInput
from accel_platform.events.types import Mode
from accel_platform.workloads.heads import Head, generation_head, training_head
from accel_platform.workloads.model_catalog import ModelSpec

MODES: tuple[Mode, ...] = get_args(Mode)


def mode_named(name: str) -> Mode:
    """Raises InvalidInput with the names there are."""
    for mode in MODES:
        if name.casefold() == mode:
            return mode
    raise InvalidInput(f"No mode is called {name!r}. Known: {', '.join(MODES)}.")


def head_for(spec: ModelSpec, mode: Mode) -> Head | None:
    """The head to build the model with; None where the model cannot have this mode. Imports torch but for inference."""
    if mode == "inference":
        return "AutoModel"
    return generation_head(spec) if mode == "generation" else training_head(spec)


def has_mode(hardware: str, mode: Mode) -> bool:
    """Whether the runtime behind a hardware name has this mode: a graph is exported for one forward pass."""
    return mode == "inference" or runtime_for(hardware).reads == "weights"
