"""What a model costs that nobody here knows, by its transformers config alone: asked of a child, and remembered.

A config is a stranger's: a process of its own lays the model out, on the meta device, with bounded memory and time. It
runs no code but that of the installed transformers, downloads nothing and makes no weights (`config_worker.py`).
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from accel_platform.errors import AccelError, InvalidInput
from accel_platform.subprocesses.json_child import Child, ChildCrashed, ChildTimeout, child_environment
from accel_platform.workloads.kv_cache import Decoder
from predictor.data.fast_path import require_slow_path

WORKER = "predictor.data.config_worker"
MEMORY_MIB = 4_096
CPU_S = 40
WALL_S = 90.0
"""The processor's time is what a config may use up; the clock runs on where the machine has others to serve."""
MAX_LAYERS = 1_024
MAX_EXPERTS = 1_024
_IGNORED_KEYS = frozenset(
    (
        "architectures", "auto_map", "dtype", "id2label", "label2id", "model_type", "quantization_config",
        "task_specific_params", "torch_dtype", "transformers_version", "attn_implementation",
    )
)  # fmt: skip
_LAYER_COUNT_KEY = re.compile(r"(^|_)(n_)?(layers?|depths?|blocks|repeats)($|_)")
_CHILD_LOCK = threading.Lock()


@dataclass(frozen=True)
class ConfigCost:
    """What a config describes, and what one item of it costs in float32."""

    architecture: str
    family: str
    modality: str
    text_alone: bool
    """It would read images or sound besides, of which nothing is counted."""
    sequence_length: int | None
    """That the cost is of; None where inputs have one size."""
    parameters: float
    layers: float | None
    flops: float
    activation_bytes: float
    layer_output_bytes: float
    image_size: float | None
    """Pixels along an edge; None where it reads no image, or none that is square."""
    decoder: Decoder | None
    """Its shape, where it was made to generate."""


def estimate_config_cost(
    config: Mapping[str, Any],
    *,
    sequence_length: int | None = None,
    image_size: int | None = None,
    audio_seconds: float | None = None,
) -> ConfigCost:
    """Cost one item; seconds for a config never seen before, nothing for one that was. Raises InvalidInput with what is
    wrong with the config or the size, or that it is more than can be laid out."""
    _check_size_bounds(config)
    found = _cost_in_child(canonical_config(config), sequence_length, image_size, audio_seconds)
    if isinstance(found, str):
        raise InvalidInput(f"The config is refused: {found}")
    return found


def canonical_config(config: Mapping[str, Any]) -> str:
    """What of a config decides the network, the same for equal configs: labels and how it was saved are left out."""
    kept = {key: value for key, value in config.items() if key not in _IGNORED_KEYS and not key.startswith("_")}
    named = {key: config[key] for key in ("model_type", "architectures") if config.get(key) is not None}
    return json.dumps({**kept, **named}, sort_keys=True, separators=(",", ":"))


@lru_cache(maxsize=256)
def _cost_in_child(text: str, length: int | None, image: int | None, seconds: float | None) -> ConfigCost | str:
    """The appraisal, or why there is none."""
    require_slow_path()
    job = {"config": json.loads(text), "sequence_length": length, "image_size": image, "audio_seconds": seconds}
    limits = {"memory_mib": MEMORY_MIB, "cpu_s": CPU_S}
    if not _CHILD_LOCK.acquire(timeout=WALL_S):
        raise AccelError("Other configs are being looked at just now: ask again in a minute.")
    try:
        with Child(WORKER, {**job, **limits}, env=child_environment(1)) as child:
            [answer] = child.messages(WALL_S)
    except ChildTimeout as error:
        raise AccelError(f"The config could not be looked at within {WALL_S:g} s on this busy machine.") from error
    except (ChildCrashed, ValueError) as error:
        return f"its model cannot be laid out within {CPU_S} s and {MEMORY_MIB} MiB ({error})."
    finally:
        _CHILD_LOCK.release()
    if "refused" in answer:
        return str(answer["refused"])
    shape = answer.pop("decoder")
    return ConfigCost(**answer, decoder=None if shape is None else Decoder(**shape))


def _check_size_bounds(config: Mapping[str, Any]) -> None:
    """At once, what would only be found out by building it layer after layer."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            _check_size_bounds(value)
        most = MAX_EXPERTS if "experts" in key else MAX_LAYERS if _LAYER_COUNT_KEY.search(key) else None
        numbers = [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, int | float)]
        if most is not None and sum(numbers) > most:
            raise InvalidInput(f"The config is refused: {key} is more than {most:,}, which nobody has built.")
