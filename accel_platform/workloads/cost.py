"""Cost of a model on paper: parameters, FLOPs and bytes of one forward pass."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from accel_platform.workloads.fusion import tensors_in
from accel_platform.workloads.heads import Head
from accel_platform.workloads.inputs import InputSpec, describe_inputs
from accel_platform.workloads.model_catalog import ModelSpec
from accel_platform.workloads.sources import GRAPHS, is_sourced, meta_source, source_file

_LAYERS = frozenset(("mm", "addmm", "bmm", "baddbmm", "convolution"))
"""ATen operators of matrix products and convolutions."""
_FLOAT32_BYTES = 4


@dataclass(frozen=True)
class ModelCost:
    """Cost of one forward pass of a whole batch in float32."""

    parameters: int
    layers: int | None
    flops: int
    """FLOPs of matrix products, convolutions and attention, 2 per multiply-add, by torch's own formulas."""
    activation_bytes: int
    """Bytes written by all operators together, attention counted as one: memory traffic, not peak memory."""
    layer_output_bytes: int
    """Part of `activation_bytes` that matrix products and convolutions write, without attention's own products. fvcore
    and timm count the same outputs as activations."""


def cost_of(
    spec: ModelSpec,
    *,
    batch_size: int,
    sequence_length: int | None = None,
    audio_seconds: float | None = None,
) -> ModelCost:
    """Return the cost of one forward pass, traced on the meta device (about a second) and cached.

    Raises InvalidInput for an impossible batch size or length.
    """
    return _cost(
        spec,
        describe_inputs(spec, batch_size=batch_size, sequence_length=sequence_length, audio_seconds=audio_seconds),
    )


def parameters_of(spec: ModelSpec, head: Head = "AutoModel") -> int:
    """Return the number of parameters; faster than `cost_of`, because nothing is traced."""
    if spec.architecture in GRAPHS:
        from accel_platform.workloads.graph_operators import graph_parameters

        return graph_parameters(source_file(spec))
    return sum(p.numel() for p in meta_model(spec, head).parameters())


def head_parameters(spec: ModelSpec, head: Head) -> int:
    """Return the number of parameters that a head adds; 0 where an embedding serves as its matrix."""
    model = meta_model(spec, head)
    out = model.get_output_embeddings()
    # For some models that read images, such as Llama 4, transformers' model without a head has one all the same.
    if out is None or meta_model(spec, "AutoModel").get_output_embeddings() is not None:
        return 0
    others = {id(p) for module in model.modules() if module is not out for p in module.parameters(recurse=False)}
    return sum(p.numel() for p in out.parameters() if id(p) not in others)


def embedding_parameters(spec: ModelSpec) -> int:
    """Return the number of parameters of the token embedding."""
    return sum(p.numel() for p in meta_model(spec, "AutoModel").get_input_embeddings().parameters())


def sizes_of_parameters(spec: ModelSpec) -> dict[str, int]:
    """Return how many numbers each parameter has, by name."""
    return {name: p.numel() for name, p in meta_model(spec, "AutoModel").named_parameters()}


def text_tower(spec: ModelSpec) -> str:
    """Return the common prefix of the names of text parameters in a model with other towers; "" otherwise."""

    from accel_platform.workloads.build import text_part

    model = meta_model(spec, "AutoModel")
    if type(text_part(model.config)) is type(model.config):
        return ""
    reads = model.get_decoder()
    return next((f"{name}." for name, module in model.named_modules() if name and module is reads), "")


@lru_cache(maxsize=4096)
def _cost(spec: ModelSpec, inputs: tuple[InputSpec, ...]) -> ModelCost:
    from accel_platform.workloads.build import text_part

    if spec.architecture in GRAPHS:
        return ModelCost(parameters_of(spec), None, *_operator_sums(spec, inputs))
    model = meta_model(spec, "AutoModel")
    if spec.draws_images:
        # torch's FLOP counter cannot count one step for all.
        flops, written, put_out = _operator_sums(spec, inputs)
    else:
        flops, written, put_out = _trace(model, meta_inputs(inputs))
    return ModelCost(
        parameters=sum(p.numel() for p in model.parameters()),
        # Layers for images do not count, because they do not run where a model gets text only.
        layers=None
        if is_sourced(spec)
        else _layers(text_part(model.config) if spec.modality == "text" else model.config),
        flops=flops,
        activation_bytes=written,
        layer_output_bytes=put_out,
    )


def _operator_sums(spec: ModelSpec, inputs: tuple[InputSpec, ...]) -> tuple[int, int, int]:
    """Return FLOPs, bytes written and bytes of layer outputs of one forward pass, as sums over its operators."""
    from accel_platform.workloads.operators import operators_of

    operators = operators_of(spec, inputs)
    layers = [one for one in operators if one.kind in ("linear", "batched_matmul", "convolution")]
    return (
        round(sum(one.count * one.flops for one in operators)),
        round(sum(one.count * one.written for one in operators) * _FLOAT32_BYTES),
        round(sum(one.count * one.written for one in layers) * _FLOAT32_BYTES),
    )


def meta_inputs(inputs: tuple[InputSpec, ...]) -> dict[str, Any]:
    """Return tensors of these shapes without values, signals in float32."""
    import torch

    return {
        # Sizes decide shapes, so they need their values.
        item.name: torch.full(item.shape, item.value)
        if item.kind == "size"
        else torch.empty(item.shape, dtype=torch.float32 if item.kind == "signal" else torch.int64, device="meta")
        for item in inputs
    }


@lru_cache(maxsize=8)
def meta_model(spec: ModelSpec, head: Head) -> Any:
    """Return the model in float32 and evaluation mode, without values."""
    import torch
    import transformers

    from accel_platform.workloads.build import config_of

    if is_sourced(spec):
        return meta_source(spec).to(torch.float32)
    auto: Any = getattr(transformers, head)
    with torch.device("meta"):
        model = auto.from_config(config_of(spec), dtype=torch.float32).eval()
    # Torch's FLOP counter fails on parameters that modules put out if they may learn, as SAM's do. Some are made by
    # `torch.Tensor(...)`, which heeds no device.
    model = model.requires_grad_(False).to("meta")
    for layer in model.modules():
        if isinstance(layer, (torch.nn.Linear, torch.nn.MultiheadAttention)):
            for parameter in layer.parameters(recurse=False):
                # Only by a matrix that may learn does torch multiply strided tokens at once, as in a model that runs.
                parameter.requires_grad_(True)
    return model


def _trace(model: Any, inputs: dict[str, Any]) -> tuple[int, int, int]:
    """Return FLOPs, bytes written and bytes of layer outputs of one forward pass on the meta device."""
    from torch.utils.flop_counter import FlopCounterMode

    from accel_platform.workloads.meta_trace import ComputedOperators, FusedOperators, trace

    counter, sums = FlopCounterMode(display=False), _Sums()
    fused = FusedOperators(sums.add_attention, sums.add_product_by_experts)
    trace(model, inputs, counter, ComputedOperators(sums.add_output), fused)
    return counter.get_total_flops() + sums.fused_flops, sums.written_bytes, sums.layer_output_bytes


@dataclass
class _Sums:
    """Sums over the operators of a trace; torch's counter counts the FLOPs of those that are not fused."""

    fused_flops: int = 0
    written_bytes: int = 0
    layer_output_bytes: int = 0

    def add_output(self, name: str, _args: Any, _kwargs: dict[str, Any], out: Any) -> None:
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors_in((out,)))
        self.written_bytes += size
        if name in _LAYERS:
            self.layer_output_bytes += size

    def add_attention(self, query: Any, key: Any, value: Any, _causal: bool) -> Any:
        # Two products, queries by keys and weights by values; each query head does the whole work.
        rows, columns = math.prod(query.shape[:-1]), key.shape[-2]
        self.fused_flops += 2 * rows * columns * (query.shape[-1] + value.shape[-1])
        return query.new_empty((*query.shape[:-1], value.shape[-1]))

    def add_product_by_experts(self, tokens: Any, weights: Any, out: Any) -> None:
        self.fused_flops += 2 * tokens.shape[0] * weights.shape[-2] * weights.shape[-1]
        self.layer_output_bytes += out.numel() * out.element_size()


def _layers(config: Any) -> int | None:
    """Return the repeated blocks of encoder and decoder together; None where the config does not say."""
    if getattr(config, "is_encoder_decoder", False):
        pairs = (("encoder_layers", "decoder_layers"), ("num_layers", "num_decoder_layers"))
        for first, second in pairs:
            if getattr(config, first, None) is not None:
                return int(getattr(config, first) + getattr(config, second))
    if getattr(config, "depths", None) is not None:
        return int(sum(config.depths))
    towers = [getattr(config, f"{name}_config", None) for name in ("text", "vision", "audio")]
    parts = [_layers(tower) for tower in towers if tower is not None and hasattr(tower, "model_type")]
    if parts:
        return None if None in parts else sum(part for part in parts if part is not None)
    layers = getattr(config, "num_hidden_layers", None)
    return None if layers is None else int(layers)
