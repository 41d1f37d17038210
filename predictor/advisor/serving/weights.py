"""Weights of a serving query: the quantization to answer for, and the engines that read the repository's format."""

from __future__ import annotations

from accel_platform.errors import InvalidInput
from predictor.schemas.requests import TransformersConfig
from predictor.schemas.serving import ServingQuery
from predictor.serving.engines import ENGINES, READERS, TRTLLM_MODEL_TYPES, Engine
from predictor.serving.models import (
    original_of,
    published_quantization,
    quantization_of_hub_id,
    sharding_of,
    stored_bytes,
)
from predictor.serving.quantization import resolve_quantization
from predictor.serving.stored_weights import (
    StoredWeights,
    format_of_config,
    format_of_hub_id,
    number_format_of,
    quantization_of_config,
    rounds_bits_up,
)

_SIXTEEN_BITS = frozenset(("bfloat16", "float16"))
"""Quantizations that most repositories store, and that engines turn into each other."""


def resolve_weights(query: ServingQuery) -> tuple[StoredWeights, list[str]]:
    """Return the weights to answer for, with warnings.

    Without a quantization they are of the one that the hub id or the config states, else the one that the model is
    published in. Raises InvalidInput for an unknown quantization, and for weights that the engine does not read.
    """
    readers, warnings = _readers(query)
    (stated, stored), name = _stated_or_published(query.model), _name(query.model)
    is_gguf = readers == READERS["gguf"]
    # llama.cpp takes the 4 bits of Q4_K_M from a repository unless told.
    quantization = resolve_quantization(query.quantization or stored or ("int4" if is_gguf else "bfloat16"))
    if query.quantization is not None:
        if stored is not None and not _are_equivalent(quantization, stored):
            how = "states" if stated else "is published in"
            warnings.append(f"{name} {how} {stored}: this is of {quantization}, as asked.")
    elif stored is None and _holds_unknown_bits(query.model):
        warnings.append(
            f"{name} holds quantized weights, and does not say of how many bits: this is of {quantization}. "
            "Give the quantization, such as int8."
        )
    elif quantization not in _SIXTEEN_BITS:
        how = f"which {name} states" if stated else f"in which {name} is published"
        if isinstance(query.model, str) and rounds_bits_up(query.model):
            how = f"the next of more bits than {name} states"
        warnings.append(f"No quantization given: this is of {stored}, {how}.")
    size = None if stated or is_gguf or not isinstance(query.model, str) else stored_bytes(query.model)
    size = size if stored is not None and _are_equivalent(quantization, stored) else None
    return StoredWeights(
        quantization, number_format_of(quantization, query.quantization, stored), readers, size
    ), warnings


def command_warnings(query: ServingQuery, quantization: str, command_model: str) -> list[str]:
    """Return a warning where the command's repository may not hold weights in the quantization; else none."""
    _, stored = _stated_or_published(query.model)
    if format_of_hub_id(command_model) == "gguf" or _are_equivalent(quantization, stored or "bfloat16"):
        return []
    warning = (
        f"The command loads weights as {command_model} stores them: where these are not in {quantization}, name a "
        "repository that has them so."
    )
    return [warning]


def _stated_or_published(model: str | TransformersConfig) -> tuple[bool, str | None]:
    """Return whether a hub id or a config states a quantization, and that or else the one that it is published in."""
    stated = (
        quantization_of_config(model.root) if isinstance(model, TransformersConfig) else quantization_of_hub_id(model)
    )
    published = None if isinstance(model, TransformersConfig) else published_quantization(model)
    if isinstance(model, str) and format_of_hub_id(model) == "gguf" and published != "mxfp4":
        # Of the quantizations that models are published in, GGUF has MXFP4 alone.
        published = None
    return stated is not None, stated or published


def _readers(query: ServingQuery) -> tuple[tuple[Engine, ...], list[str]]:
    """Return the engines that read the weights, with a warning where that is one alone.

    Raises InvalidInput where none of the engines in question does.
    """
    model, name = query.model, _name(query.model)
    stored = format_of_config(model.root) if isinstance(model, TransformersConfig) else format_of_hub_id(model)
    if stored is None and _stated_or_published(model)[1] in ("int4", "int8"):
        # As Kimi K2.5 and the w4a16 and w8a8 of Red Hat are stored.
        stored = "compressed-tensors"
    readers, original = READERS.get(stored or "", ENGINES), isinstance(model, str) and original_of(model)
    kind = sharding_of(model.root if isinstance(model, TransformersConfig) else model).model_type
    if kind and kind not in TRTLLM_MODEL_TYPES and "trtllm" in readers:
        readers = tuple(engine for engine in readers if engine != "trtllm")
        if query.engine == "trtllm":
            raise InvalidInput(
                f"{name} is of kind {kind}, which TensorRT-LLM does not serve: leave out the engine, for vllm or "
                "sglang."
            )
    if readers and query.engine in (None, *readers):
        alone = f"{name} stores weights for {stored}, which {readers[0]} alone reads here: "
        instead = f"for another engine name {original}." if original else "for another engine convert them."
        return readers, [alone + instead] if len(readers) == 1 and query.engine is None else []
    who = f"{query.engine} does not" if query.engine else "no engine that is known here does"
    remedies = [f"leave out the engine, for {' or '.join(readers)}"] if readers else []
    remedies += [f"name {original} and a quantization"] if original and original != model else []
    remedies = remedies or ["give the config of the unquantized model, and a quantization"]
    raise InvalidInput(f"{name} stores weights for {stored}, which {who} read: {', or '.join(remedies)}.")


def _name(model: str | TransformersConfig) -> str:
    return model if isinstance(model, str) else "The config"


def _holds_unknown_bits(model: str | TransformersConfig) -> bool:
    """Return whether weights are quantized, for all that a hub id or a config says, without the number of bits."""
    if isinstance(model, TransformersConfig):
        return bool(model.root.get("quantization_config"))
    return format_of_hub_id(model) is not None


def _are_equivalent(quantization: str, other: str) -> bool:
    """Return whether both are one quantization, or each of 16 bits."""
    both = {resolve_quantization(quantization), resolve_quantization(other)}
    return len(both) == 1 or both <= _SIXTEEN_BITS
