"""What tracing tells of the platform's own models: what an item costs, and the shape of a decoder. How it is traced is
in `workloads`.

Tracing imports torch and takes seconds. What it finds follows from the model, from the versions of what traces and from
our own code alone, so that is what it is kept under, in the user's cache, and another process need not trace it again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache, lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import accel_platform.workloads
from accel_platform.atomic_write import make_directory, write_durably
from accel_platform.errors import InvalidInput
from accel_platform.workloads.kv_cache import Decoder
from accel_platform.workloads.model_catalog import ModelSpec
from predictor.data.fast_path import require_slow_path

TRACE_LOCK = threading.Lock()
"""The first trace imports transformers, whose lazy modules break when two threads import them at once."""
_MAX_FILES = 4096
"""Files kept: who asks for one length after the other must not fill a disk."""
_log = logging.getLogger("accel.traced")


@dataclass(frozen=True)
class ItemCost:
    """One item of a batch at one sequence length, in float32; None where it is not known."""

    parameters: float
    layers: float | None
    flops: float
    activation_bytes: float | None
    """Written by all operators."""
    layer_output_bytes: float | None = None
    """Of these, what linear layers and convolutions put out, as timm and fvcore count."""
    image_size: float | None = None
    """Pixels along an edge; None where it reads no image, or nobody says how large."""

    @property
    def written_bytes(self) -> float | None:
        """By all operators, or at least by those that are known."""
        return self.activation_bytes or self.layer_output_bytes


@dataclass(frozen=True)
class InputSizes:
    """Of images and sound, where they are not the model's own."""

    image_size: int | None = None
    """Pixels along an edge."""
    audio_seconds: float | None = None


@lru_cache(maxsize=4096)
def traced_cost(spec: ModelSpec, sequence_length: int | None, sizes: InputSizes) -> ItemCost:
    """The cost of one item. Raises InvalidInput for a length or size that the model cannot take."""
    require_slow_path()
    found = _load_or_trace(
        spec, {"length": sequence_length, **asdict(sizes)}, lambda: asdict(_trace_cost(spec, sequence_length, sizes))
    )
    return ItemCost(**found)


@lru_cache(maxsize=1024)
def traced_decoder(spec: ModelSpec) -> Decoder | None:
    """The shape of its decoder; None where it does not generate, or the installed transformers does not know it."""
    require_slow_path()
    found = _load_or_trace(spec, "decoder", lambda: _trace_decoder(spec))
    return None if found is None else Decoder(**found)


def _trace_cost(spec: ModelSpec, sequence_length: int | None, sizes: InputSizes) -> ItemCost:
    from accel_platform.workloads.cost import cost_of
    from accel_platform.workloads.inputs import usual_image_size, with_image_size

    sized = spec if sizes.image_size is None else with_image_size(spec, sizes.image_size)
    try:
        cost = cost_of(sized, batch_size=1, sequence_length=sequence_length, audio_seconds=sizes.audio_seconds)
    except (RuntimeError, ValueError, TypeError) as error:
        if sizes == InputSizes():
            raise
        reason = " ".join(str(error).split())
        raise InvalidInput(f"{spec.model_id} cannot take inputs of this size: {reason}") from error
    pixels = usual_image_size(sized)
    return ItemCost(cost.parameters, cost.layers, cost.flops, cost.activation_bytes, cost.layer_output_bytes, pixels)


def _trace_decoder(spec: ModelSpec) -> dict[str, Any] | None:
    from accel_platform.workloads.kv_cache import decoder_of

    try:
        found = decoder_of(spec)
    except Exception:  # noqa: BLE001 - what another transformers measured, this one may refuse in any way
        return None
    return None if found is None else asdict(found)


def _load_or_trace(spec: ModelSpec, asked: Any, trace: Callable[[], dict[str, Any] | None]) -> Any:
    """What `trace` finds, from the cache where it was found before; a cache that cannot be used costs time alone."""
    folder = _cache_folder()
    if folder is None:
        return _trace_locked(trace)
    asked_for = json.dumps([asdict(spec), asked], sort_keys=True, default=str)
    path = folder / f"{hashlib.sha256(asked_for.encode()).hexdigest()[:32]}.json"
    with suppress(OSError, ValueError):
        return json.loads(path.read_bytes())
    found = _trace_locked(trace)
    try:
        make_directory(folder)
        if len(os.listdir(folder)) < _MAX_FILES:
            write_durably(path, json.dumps(found))
    except OSError as problem:
        _log.debug("what was traced of %s is not kept: %s", spec.model_id, problem)
    return found


def _trace_locked(trace: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
    with TRACE_LOCK:
        return trace()


@cache
def _cache_folder() -> Path | None:
    """Where what these versions and this code find is kept; None where there is no place for it."""
    made_by = hashlib.sha256("".join(version(package) for package in ("torch", "transformers")).encode())
    for path in (Path(__file__), *sorted(Path(accel_platform.workloads.__path__[0]).glob("*.py"))):
        made_by.update(path.read_bytes())
    try:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(root) / "accel-platform" / "traced" / made_by.hexdigest()[:16]
