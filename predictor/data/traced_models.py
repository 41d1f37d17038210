"""Traced costs, operators and decoder shapes of the platform's own models: shipped, else cached per user.

Tracing imports torch and takes seconds. The result depends only on the model, the versions of the tracing packages and
our code, which make up the cache key. Another process need not trace again.

`catalog_traces.parquet` holds the traces of the catalog's models at their own sizes, because a first question should
not wait. `python -m predictor.data.traced_models` adds those that it lacks, and drops those of models that are gone or
changed. After a change of how models are traced, delete the file first.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import cache, lru_cache, partial
from importlib.metadata import version
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

import accel_platform.workloads
from accel_platform.atomic_write import make_directory, write_durably
from accel_platform.errors import AccelError, Busy, InvalidInput, one_line
from accel_platform.workloads.kv_cache import Decoder
from accel_platform.workloads.model_catalog import ModelSpec, find_model, known_models
from accel_platform.workloads.operators import OperatorProfile, profile_from_json, profile_to_json, trace_operators
from accel_platform.workloads.sources import is_sourced
from predictor.data.fast_path import require_slow_path

TRACE_LOCK = threading.Lock()
"""Guards tracing, because transformers' lazy modules break when two threads import them at once."""
_MAX_FILES = 4096
"""Bound on cached files, so that many different lengths cannot fill a disk."""
SHIPPED = Path(__file__).with_name("catalog_traces.parquet")
_log = logging.getLogger("accel.traced")
T = TypeVar("T")


@dataclass(frozen=True)
class ItemCost:
    """Cost of one item at one sequence length, in float32; None where unknown."""

    parameters: float
    layers: float | None
    flops: float
    activation_bytes: float | None
    """Bytes written by all operators."""
    layer_output_bytes: float | None = None
    """Bytes written by linear layers and convolutions alone, as timm and fvcore count."""
    image_size: float | None = None
    """Pixels along an edge; None without images, or where the size is unknown."""
    steps: float = 1.0
    """Equal passes one after the other that make an item: each reads the weights, and one at a time is held."""

    @property
    def written_bytes(self) -> float | None:
        """Bytes written by all operators, else by the layers."""
        return self.activation_bytes or self.layer_output_bytes


@dataclass(frozen=True)
class InputSizes:
    """Sizes of images and sound, and the steps that an image is drawn in; None for the model's own."""

    image_size: int | None = None
    """Pixels along an edge."""
    audio_seconds: float | None = None
    steps: int | None = None
    """Denoising steps of a model that draws images."""

    def applied_to(self, spec: ModelSpec) -> ModelSpec:
        """Return the model for images of this size and these steps. Raises InvalidInput for a model without them."""
        from accel_platform.workloads.inputs import with_image_size, with_steps

        sized = spec if self.image_size is None else with_image_size(spec, self.image_size)
        return sized if self.steps is None else with_steps(sized, self.steps)


OWN_SIZES = InputSizes()


def has_own_sizes(spec: ModelSpec, sizes: InputSizes) -> bool:
    """Return whether these sizes are the model's own."""
    require_slow_path()
    with TRACE_LOCK:
        from accel_platform.workloads.build import config_of
        from accel_platform.workloads.inputs import describe_inputs

        sized = sizes.applied_to(spec)
        if sizes.steps is not None and config_of(spec).steps != sizes.steps:
            return False
        inputs = describe_inputs(sized, batch_size=1, audio_seconds=sizes.audio_seconds)
        return inputs == describe_inputs(spec, batch_size=1)


@lru_cache(maxsize=4096)
def traced_cost(spec: ModelSpec, sequence_length: int | None, sizes: InputSizes) -> ItemCost:
    """Return the cost of one item. Raises InvalidInput for a length or size that the model cannot take."""
    require_slow_path()
    key = _cost_key(sequence_length, sizes)
    return ItemCost(**_load_or_trace(spec, key, lambda: asdict(_trace_cost(spec, sequence_length, sizes))))


@lru_cache(maxsize=1024)
def traced_decoder(spec: ModelSpec) -> Decoder | None:
    """Return the decoder's shape; None for a model that does not generate or that transformers does not know."""
    require_slow_path()
    shape = _load_or_trace(spec, _DECODER_KEY, lambda: _trace_decoder(spec))
    return None if shape is None else Decoder(**shape)


@lru_cache(maxsize=256)
def traced_operators(
    spec: ModelSpec, sequence_length: int | None, sizes: InputSizes, *, training: bool = False
) -> OperatorProfile | str:
    """Return the operators of one pass, or the reason why they cannot be told; of a training step those of its pass."""
    if is_sourced(spec):
        return _described_operators(spec, sequence_length, sizes, training=training)
    require_slow_path()
    key = _operators_key(sequence_length, sizes, training)
    return stored_profile(
        _load_or_trace(spec, key, lambda: trace_profile(spec, sequence_length, sizes, training=training))
    )


def stored_profile(stored: Mapping[str, Any]) -> OperatorProfile | str:
    """Return the operators that `trace_profile` found, or its reason why they cannot be told."""
    return str(stored["problem"]) if "problem" in stored else profile_from_json(stored["profile"])


def _described_operators(
    spec: ModelSpec, sequence_length: int | None, sizes: InputSizes, *, training: bool
) -> OperatorProfile | str:
    """Return the operators recorded with a model of the user's own code, which is not run here."""
    if training:
        return f"of {spec.model_id} only the forward pass is known"
    if spec.operators is None:
        return f"its operators could not be traced when {spec.model_id} was described"
    if sequence_length != spec.sequence_length or sizes != OWN_SIZES:
        return f"the operators of {spec.model_id} are known at {spec.sequence_length} tokens only"
    return profile_from_json(spec.operators)


def trace_profile(spec: ModelSpec, sequence_length: int | None, sizes: InputSizes, *, training: bool) -> dict[str, Any]:
    """Return the operators of one pass as JSON under `profile`, or under `problem` why they cannot be told.

    Nothing is cached. Raises MemoryError and OSError, which say nothing of the model.
    """
    from accel_platform.workloads.heads import training_head

    sized = sizes.applied_to(spec)
    try:
        profile = trace_operators(
            sized,
            sequence_length=sequence_length,
            audio_seconds=sizes.audio_seconds,
            head=training_head(sized) if training else "AutoModel",
        )
    except (AccelError, RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        _raise_if_passing(error)
        # A model's own code may need values, which the meta device does not have.
        return {"problem": f"its operators cannot be traced: {one_line(error)[:200]}"}
    return {"profile": profile_to_json(profile)}


def _trace_cost(spec: ModelSpec, sequence_length: int | None, sizes: InputSizes) -> ItemCost:
    from accel_platform.workloads.cost import cost_of
    from accel_platform.workloads.inputs import usual_image_size

    sized = sizes.applied_to(spec)
    try:
        pixels = usual_image_size(sized)
        cost = cost_of(sized, batch_size=1, sequence_length=sequence_length, audio_seconds=sizes.audio_seconds)
    except (RuntimeError, ValueError, TypeError) as error:
        _raise_if_passing(error)
        if sizes == OWN_SIZES:
            raise
        raise InvalidInput(f"{spec.model_id} cannot take inputs of this size: {one_line(error)}") from error
    written = cost.activation_bytes, cost.layer_output_bytes
    return ItemCost(cost.parameters, cost.layers, cost.flops, *written, pixels, _steps_of(sized))


def _steps_of(spec: ModelSpec | None) -> float:
    return 1.0 if spec is None or not spec.draws_images else float(spec.config.get("steps", 1))


def _trace_decoder(spec: ModelSpec) -> dict[str, Any] | None:
    from accel_platform.workloads.kv_cache import decoder_of

    try:
        shape = decoder_of(spec)
    except Exception as error:  # noqa: BLE001 - another transformers measured the model; this one may fail in any way
        _raise_if_passing(error)
        return None
    return None if shape is None else asdict(shape)


_DECODER_KEY = "decoder shape"


def _cost_key(sequence_length: int | None, sizes: InputSizes) -> dict[str, Any]:
    return {"length": sequence_length, **asdict(sizes)}


def _operators_key(sequence_length: int | None, sizes: InputSizes, training: bool) -> dict[str, Any]:
    return {"operators": training, "length": sequence_length, **asdict(sizes)}


def _load_or_trace(spec: ModelSpec, key: Any, trace: Callable[[], dict[str, Any] | None]) -> Any:
    identity = [asdict(_catalog_entry(spec)), key]
    shipped = shipped_traces().get(_digest(identity))
    return load_or_compute(identity, lambda: _trace_locked(trace)) if shipped is None else json.loads(shipped)


def _catalog_entry(spec: ModelSpec) -> ModelSpec:
    """Return the catalog's entry of a model that results call by another of its names; else the model itself."""
    known = find_model(spec.model_id)
    return known if known is not None and replace(known, model_id=spec.model_id) == spec else spec


@cache
def shipped_traces() -> dict[str, str]:
    """Return the traces that ship with the package: JSON by the digest of model and key."""
    table = pq.read_table(SHIPPED)
    return dict(zip(table["digest"].to_pylist(), table["trace"].to_pylist(), strict=True))


def with_shipped_cost(model: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the table `models` with what its model costs at its own size, where nobody described it.

    Only models of the catalog are known; nothing is traced.
    """
    spec = find_model(model["model_id"])
    identity = None if spec is None else [asdict(spec), _cost_key(spec.sequence_length, OWN_SIZES)]
    shipped = None if identity is None else shipped_traces().get(_digest(identity))
    if shipped is None:
        return model
    cost = ItemCost(**json.loads(shipped))
    known = {"parameters": cost.parameters, "layers": cost.layers, "flops_per_item": cost.flops}
    return model | {name: value for name, value in known.items() if name in model and model[name] is None}


def catalog_traces(spec: ModelSpec, known: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Return a model's traces at its own sizes as `shipped_traces` does; those that are not `known` are traced."""
    length = spec.sequence_length
    traces: list[tuple[Any, Callable[[], Any]]] = [
        (_cost_key(length, OWN_SIZES), lambda: asdict(_trace_cost(spec, length, OWN_SIZES))),
        (_DECODER_KEY, lambda: _trace_decoder(spec)),
        *(
            (
                _operators_key(length, OWN_SIZES, training),
                partial(trace_profile, spec, length, OWN_SIZES, training=training),
            )
            for training in (False, True)
        ),
    ]
    digests = [_digest([asdict(spec), key]) for key, _ in traces]
    return {
        digest: known[digest] if digest in known else json.dumps(trace())
        for digest, (_, trace) in zip(digests, traces, strict=True)
    }


def load_or_compute(key: Any, compute: Callable[[], T], is_kept: Callable[[T], bool] = lambda _: True) -> T:
    """Return what a process has computed of this key, else call `compute`, and keep the result for other processes.

    Results are JSON; those that `is_kept` denies are not kept. A cache that cannot be used costs time only.
    """
    folder = _cache_folder()
    if folder is None:
        return compute()
    path = folder / f"{_digest(key)}.json"
    with suppress(OSError, ValueError):
        loaded: T = json.loads(path.read_bytes())
        return loaded
    result = compute()
    try:
        make_directory(folder)
        if is_kept(result) and len(os.listdir(folder)) < _MAX_FILES:
            write_durably(path, json.dumps(result))
    except OSError as problem:
        _log.debug("what was traced is not kept: %s", problem)
    return result


def _digest(key: Any) -> str:
    text = json.dumps(key, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _trace_locked(trace: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
    """Call `trace`, one at a time. Raises Busy, which no cache keeps, for want of memory or of a file."""
    with TRACE_LOCK:
        try:
            return trace()
        except (MemoryError, OSError) as error:
            raise Busy(f"The model cannot be examined now ({one_line(error)[:200]}): try again soon.") from error


def _raise_if_passing(error: Exception) -> None:
    """Raise the error again if it says nothing of the model, so that it is not kept as an answer."""
    if isinstance(error, (MemoryError, OSError)):
        raise error
    if "allocate memory" in str(error):  # torch's own words, in a RuntimeError
        raise MemoryError(str(error)) from error


@cache
def _cache_folder() -> Path | None:
    """Return the cache folder of these versions and this code; None without a home folder."""
    digest = hashlib.sha256("".join(version(package) for package in ("diffusers", "torch", "transformers")).encode())
    ours = (Path(__file__), Path(__file__).with_name("config_worker.py"))
    for path in (*ours, *sorted(Path(accel_platform.workloads.__path__[0]).rglob("*.py"))):
        digest.update(path.read_bytes())
    try:
        root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    except RuntimeError:
        return None
    return Path(root) / "accel-platform" / "traced" / digest.hexdigest()[:16]


def lookup_item_cost(
    model_id: str,
    spec: ModelSpec | None,
    sequence_length: int | None,
    models: Mapping[str, dict[str, Any]],
    sizes: InputSizes = OWN_SIZES,
) -> ItemCost | None:
    """Return the cost of one item from the warehouse or the model's config; None where unknown or without a length.

    The warehouse's figures hold for the model's default length and own sizes. For others the model is traced on the
    meta device, which imports torch and takes seconds the first time. Raises InvalidInput for what it cannot take.
    """
    row = models.get(model_id) if sizes == OWN_SIZES else None
    default = None if spec is None else spec.sequence_length
    if default is not None and sequence_length is None:
        return None
    if row is not None and row["flops_per_item"] is not None and row["parameters"] is not None:
        described = ItemCost(
            row["parameters"],
            row["layers"],
            row["flops_per_item"],
            row["activation_bytes_per_item"],
            row["layer_output_bytes_per_item"],
            row["image_size"],
            _steps_of(spec),
        )
        # A row without layer outputs is of an old version, and serves only if the model cannot be traced.
        if spec is None or (sequence_length == default and described.layer_output_bytes is not None):
            return described
    if spec is None or is_sourced(spec):
        return None
    return traced_cost(spec, sequence_length, sizes)


def lookup_decoder(model_id: str, spec: ModelSpec | None, models: Mapping[str, dict[str, Any]]) -> Decoder | None:
    """Return the decoder's shape of a catalog model, or of one whose config is in the warehouse.

    None where unknown, or where the model does not generate.
    """
    row = models.get(model_id) or {}
    if spec is None and row.get("architecture") and row.get("config"):
        config = json.loads(row["config"])
        spec = ModelSpec(model_id, row["architecture"], str(row["family"]), row["modality"], config=config)
    return None if spec is None else traced_decoder(spec)


def _write_shipped() -> None:
    """Trace the models of the catalog that `catalog_traces.parquet` lacks, and write it; each takes some seconds."""
    stored = shipped_traces() if SHIPPED.exists() else {}
    # What could not be traced may be traced by now.
    known = {digest: trace for digest, trace in stored.items() if not trace.startswith('{"problem"')}
    traces: dict[str, str] = {}
    for number, spec in enumerate(known_models(), start=1):
        own = catalog_traces(spec, known)
        if not own.keys() <= known.keys():
            print(f"{number} of {len(known_models())}: {spec.model_id}", flush=True)
        traces |= own
    table = pa.table({"digest": list(traces), "trace": list(traces.values())})
    pq.write_table(table, SHIPPED, compression="zstd", compression_level=19)


if __name__ == "__main__":
    _write_shipped()
