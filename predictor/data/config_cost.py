"""Cost and operators of an unknown model from its transformers config, traced in a child process and cached.

Configs are untrusted. The child lays the model out on the meta device with bounded memory and time. It runs only the
code of the installed transformers, downloads nothing and allocates no weights.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from accel_platform.errors import AccelError, InvalidInput
from accel_platform.subprocesses.json_child import Child, ChildCrashed, ChildTimeout, Message, child_environment
from accel_platform.workloads.kv_cache import Decoder
from accel_platform.workloads.operators import OperatorProfile
from predictor.data.fast_path import require_slow_path
from predictor.data.traced_models import load_or_compute, stored_profile

WORKER = "predictor.data.config_worker"
MEMORY_MIB = 4_096
CPU_S = 40
WALL_S = 90.0
"""Limit on the wall clock. It is longer than that on CPU time, because the machine may be busy."""
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
    """Model of a config, and the cost of one item in float32."""

    architecture: str
    family: str
    modality: str
    text_alone: bool
    """True if the model also reads images or sound, which the cost does not count."""
    sequence_length: int | None
    """Tokens per item that the cost is for; None for inputs of a fixed size."""
    parameters: float
    layers: float | None
    flops: float
    activation_bytes: float
    layer_output_bytes: float
    image_size: float | None
    """Pixels along an edge; None for a model without square images."""
    decoder: Decoder | None
    """Shape of the decoder of a model that generates, else None."""


def estimate_config_cost(
    config: Mapping[str, Any],
    *,
    sequence_length: int | None = None,
    image_size: int | None = None,
    audio_seconds: float | None = None,
) -> ConfigCost:
    """Return the cost of one item; a new config takes seconds, a cached one no time.

    Raises InvalidInput for a config or size that is wrong or too large to lay out.
    """
    _check_size_bounds(config)
    traced = _trace_in_child(canonical_config(config), sequence_length, image_size, audio_seconds, False)
    if isinstance(traced, str):
        raise InvalidInput(f"The config is refused: {traced}")
    return traced.cost


def config_operators(
    config: str,
    *,
    sequence_length: int | None = None,
    image_size: int | None = None,
    audio_seconds: float | None = None,
    training: bool = False,
) -> OperatorProfile | str:
    """Return the operators of one pass of a canonical config, or the reason why they cannot be told.

    Those of a forward pass are traced with the cost of the same sizes; those of a training step take seconds the first
    time.
    """
    traced = _trace_in_child(config, sequence_length, image_size, audio_seconds, training)
    return traced if isinstance(traced, str) else stored_profile(traced.operators)


def canonical_config(config: Mapping[str, Any]) -> str:
    """Return the keys that define the network as sorted JSON, equal for equal networks."""
    network = {key: value for key, value in config.items() if key not in _IGNORED_KEYS and not key.startswith("_")}
    identity = {key: config[key] for key in ("model_type", "architectures") if config.get(key) is not None}
    return json.dumps({**network, **identity}, sort_keys=True, separators=(",", ":"))


@dataclass(frozen=True)
class _Traced:
    """Cost of a config, and its operators as `trace_profile` returns them."""

    cost: ConfigCost
    operators: Message


@lru_cache(maxsize=256)
def _trace_in_child(
    text: str, length: int | None, image: int | None, seconds: float | None, training: bool
) -> _Traced | str:
    """Return cost and operators, or the reason why there is no cost; what has both is kept for other processes."""
    require_slow_path()
    job = {
        "config": json.loads(text),
        "sequence_length": length,
        "image_size": image,
        "audio_seconds": seconds,
        "training": training,
        "memory_mib": MEMORY_MIB,
        "cpu_s": CPU_S,
    }
    answer, operators = load_or_compute(job, lambda: _ask_child(job), lambda found: "profile" in found[1])
    if "refused" in answer:
        return str(answer["refused"])
    shape = answer.pop("decoder")
    return _Traced(ConfigCost(**answer, decoder=None if shape is None else Decoder(**shape)), operators)


def _ask_child(job: Message) -> tuple[Message, Message]:
    """Return the child's cost, or the reason under `refused`, and its operators, or the problem with them.

    Both come from one child, because most of its time goes into starting it.
    """
    if not _CHILD_LOCK.acquire(timeout=WALL_S):
        raise AccelError("Other configs are being costed. Try again in a minute.")
    try:
        with Child(WORKER, job, env=child_environment(1)) as child:
            messages = child.messages(WALL_S)
            answer = next(messages)
            return answer, {} if "refused" in answer else _next_operators(messages)
    except ChildTimeout as error:
        raise AccelError(
            f"The config was not costed within {WALL_S:g} s, because the machine is busy. Try again later."
        ) from error
    except (ChildCrashed, StopIteration, ValueError) as error:
        return {"refused": f"its model cannot be laid out within {CPU_S} s and {MEMORY_MIB} MiB ({error})."}, {}
    finally:
        _CHILD_LOCK.release()


def _next_operators(messages: Iterator[Message]) -> Message:
    """Return the child's operators, or the problem that it ended before it had them."""
    try:
        return next(messages)
    except (ChildCrashed, StopIteration) as error:
        reason = f"its operators cannot be traced within {CPU_S} s and {MEMORY_MIB} MiB"
        return {"problem": f"{reason} ({error})" if str(error) else reason}


def _check_size_bounds(config: Mapping[str, Any]) -> None:
    """Refuse absurd numbers of layers or experts without building them."""
    for key, value in config.items():
        if isinstance(value, Mapping):
            _check_size_bounds(value)
        most = MAX_EXPERTS if "experts" in key else MAX_LAYERS if _LAYER_COUNT_KEY.search(key) else None
        numbers = [v for v in (value if isinstance(value, list) else [value]) if isinstance(v, int | float)]
        if most is not None and sum(numbers) > most:
            raise InvalidInput(f"The config is refused: {key} is over the limit of {most:,}.")
