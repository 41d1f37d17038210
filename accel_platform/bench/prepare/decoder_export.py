"""Export of decoders with their cache of keys and values, for OpenVINO GenAI and ONNX Runtime GenAI.

OpenVINO's graph keeps the cache in itself as state; ONNX's takes it and returns it. Neither needs a tokenizer.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accel_platform.backends.base import UnsupportedMode, UnsupportedPrecision
from accel_platform.bench.plan.support import BUILDER_ARCHITECTURES

if TYPE_CHECKING:
    import torch

INT4_BLOCK = 32
"""Weights that share one scale in int4, the builder's and most checkpoints' number."""
_BUILDER = "onnxruntime_genai.models.builder"
_BUILDER_PRECISIONS = {"float32": "fp32", "int8": "int8", "int4": "int4"}


@dataclass(frozen=True)
class _Example:
    """Inputs of one pass that continues cached tokens, and the cache's shape, layer by layer."""

    inputs: dict[str, torch.Tensor]
    heads: tuple[tuple[int, int], ...]
    """Heads and numbers per head of each cached tensor, keys and values alternating."""

    @property
    def cache_names(self) -> list[str]:
        return [name for name in self.inputs if name.startswith("past_key_values")]

    @property
    def outputs(self) -> list[str]:
        return ["logits", *(name.replace("past_key_values", "present") for name in self.cache_names)]


def write_openvino_decoder(model: Any, folder: Path) -> None:
    """Write a stateful graph with the inputs that OpenVINO GenAI gives: tokens, mask, positions and beams.

    Raises UnsupportedMode for models that keep more than keys and values.
    """
    import openvino
    from openvino import opset13 as ops
    from openvino._offline_transformations import apply_make_stateful_transformation

    example = _example_of(model)
    with _quiet():
        graph = openvino.convert_model(_with_cache(model), example_input=tuple(example.inputs.values()))
    for port, name in zip(graph.inputs, example.inputs, strict=True):
        port.get_tensor().set_names({name})
        port.get_node().set_friendly_name(name)
    for port, name in zip(graph.outputs, example.outputs, strict=True):
        port.get_tensor().set_names({name})
    cached = dict(zip(example.cache_names, example.heads, strict=True))
    plain = {name: [-1, -1] for name in example.inputs if name not in cached}
    graph.reshape(plain | {name: [-1, heads, -1, width] for name, (heads, width) in cached.items()})
    # Beam search reorders the cache before each pass; greedy decoding gives the rows as they are.
    beams = ops.parameter([-1], openvino.Type.i32, name="beam_idx")
    beams.output(0).get_tensor().add_names({"beam_idx"})
    graph.add_parameters([beams])
    for name in cached:
        port = graph.input(name)
        readers = port.get_target_inputs()
        chosen = ops.gather(port, beams, ops.constant(0))
        for reader in readers:
            reader.replace_source_output(chosen.output(0))
    graph.validate_nodes_and_infer_types()
    apply_make_stateful_transformation(graph, dict(zip(cached, example.outputs[1:], strict=True)))
    _start_empty(graph)
    openvino.save_model(graph, folder / "openvino_model.xml", compress_to_fp16=False)


def compress_openvino_decoder(plain: Path, precision: str, folder: Path) -> None:
    """Write the graph with its weights in int8, a scale per row, or int4, a scale per INT4_BLOCK; nothing else."""
    import nncf
    import openvino

    modes = nncf.CompressWeightsMode
    chosen: dict[str, Any] = {"mode": modes.INT8_SYM}
    if precision == "int4":
        chosen = {"mode": modes.INT4_SYM, "group_size": INT4_BLOCK, "ratio": 1.0, "all_layers": True}
    compressed = nncf.compress_weights(openvino.Core().read_model(plain), **chosen)
    openvino.save_model(compressed, folder / "openvino_model.xml", compress_to_fp16=False)


def write_onnx_decoder(model: Any, weights: Path, precision: str, folder: Path) -> None:
    """Write a graph and `genai_config.json`, by the runtime's own builder where it knows the model.

    Raises UnsupportedPrecision for int8 and int4 of models that the builder does not know, UnsupportedMode for those
    that keep more than keys and values.
    """
    if model.config.model_type in BUILDER_ARCHITECTURES:
        _build(weights, precision, folder)
    elif precision != "float32":
        raise UnsupportedPrecision(f"ONNX Runtime GenAI's builder has no {model.config.model_type}.")
    else:
        _export(model, folder)
    path = folder / "genai_config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    # No token ends a sequence, because all have the same length here.
    config["model"] |= {"eos_token_id": [], "pad_token_id": 0}
    path.write_text(json.dumps(config, indent=1), encoding="utf-8")


def _build(weights: Path, precision: str, folder: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    with tempfile.TemporaryDirectory() as held:
        source = Path(held) / "model"
        source.mkdir()
        for file in weights.glob("*.safetensors*"):
            (source / file.name).symlink_to(file)
        config = json.loads((weights / "config.json").read_text(encoding="utf-8"))
        # The builder wants tokens that end a sequence, which random weights need not name and nothing here uses.
        ends = {name: config.get(name) or 0 for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
        (source / "config.json").write_text(json.dumps(config | ends), encoding="utf-8")
        # The builder copies a tokenizer, which measuring does not need.
        words = Tokenizer(models.WordLevel({"<unk>": 0}, unk_token="<unk>"))  # noqa: S106 - no password
        tokenizer: Any = PreTrainedTokenizerFast
        tokenizer(tokenizer_object=words).save_pretrained(source)
        given = {"-i": source, "-o": folder, "-p": _BUILDER_PRECISIONS[precision], "-e": "cpu", "-c": held}
        options = [str(part) for pair in given.items() for part in pair]
        command = [sys.executable, "-P", "-m", _BUILDER, *options, "--extra_options", "hf_token=false"]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
    if built.returncode != 0:
        last = (built.stderr.strip().splitlines() or [f"exit code {built.returncode}"])[-1]
        raise RuntimeError(f"ONNX Runtime GenAI's builder failed: {last}")


def _export(model: Any, folder: Path) -> None:
    import torch

    example = _example_of(model)
    auto = torch.export.Dim.AUTO
    shapes = tuple({0: auto, 2: auto} if name in example.cache_names else {0: auto, 1: auto} for name in example.inputs)
    with _quiet():
        torch.onnx.export(
            _with_cache(model),
            tuple(example.inputs.values()),
            folder / "model.onnx",
            input_names=list(example.inputs),
            output_names=example.outputs,
            dynamic_shapes={"values": shapes},
            dynamo=True,
            external_data=True,
            verbose=False,
        )
    config = model.config.get_text_config(decoder=True)
    heads, width = example.heads[0]
    decoder = {
        "filename": "model.onnx",
        "session_options": {"provider_options": []},
        "head_size": width,
        "hidden_size": config.hidden_size,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": heads,
        "num_hidden_layers": len(example.heads) // 2,
        "inputs": {
            **{name: name for name in example.inputs if name not in example.cache_names},
            "past_key_names": "past_key_values.%d.key",
            "past_value_names": "past_key_values.%d.value",
        },
        "outputs": {
            "logits": "logits",
            "present_key_names": "present.%d.key",
            "present_value_names": "present.%d.value",
        },
    }
    described = {
        # Any decoder with such inputs is driven as Llama is.
        "type": "llama",
        "bos_token_id": 0,
        "vocab_size": config.vocab_size,
        "context_length": config.max_position_embeddings,
        "decoder": decoder,
    }
    # A graph that appends to the cache returns a new one.
    search = {"max_length": config.max_position_embeddings, "past_present_share_buffer": False}
    text = json.dumps({"model": described, "search": search})
    (folder / "genai_config.json").write_text(text, encoding="utf-8")


def _example_of(model: Any) -> _Example:
    import torch
    from transformers.cache_utils import DynamicLayer

    if "position_ids" not in signature(model.forward).parameters:
        raise UnsupportedMode(f"{type(model).__name__} takes no positions, which runtimes that generate give.")
    rows, cached, added = 2, 5, 3
    with torch.no_grad():
        output = model(input_ids=torch.zeros((rows, cached), dtype=torch.int64), use_cache=True)
    kept = getattr(output, "cache", None) or getattr(output, "past_key_values", None)
    layers = getattr(kept, "layers", ())
    if not layers or not all(isinstance(layer, DynamicLayer) for layer in layers):
        raise UnsupportedMode(f"{type(model).__name__} keeps something else than keys and values of each layer.")
    tensors = {
        f"past_key_values.{at}.{name}": tensor
        for at, layer in enumerate(layers)
        for name, tensor in (("key", layer.keys), ("value", layer.values))
    }
    plain = {
        "input_ids": torch.zeros((rows, added), dtype=torch.int64),
        "attention_mask": torch.ones((rows, cached + added), dtype=torch.int64),
        "position_ids": torch.arange(cached, cached + added).repeat(rows, 1),
    }
    # Tensors of their own, because an exporter takes those of one storage for one input.
    return _Example(
        plain | {name: tensor.clone() for name, tensor in tensors.items()},
        tuple((tensor.shape[1], tensor.shape[3]) for tensor in tensors.values()),
    )


def _with_cache(model: Any) -> torch.nn.Module:
    """Return the model with positional inputs, the cache among them, and the logits and the cache as outputs."""
    import torch
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    empty_layer: Any = DynamicLayer
    named = "cache" if "cache" in signature(model.forward).parameters else "past_key_values"

    class WithCache(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, *values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            tokens, mask, positions, *past = values
            cache: Any = DynamicCache()
            for keys, held in zip(past[::2], past[1::2], strict=True):
                layer = empty_layer()
                layer.lazy_initialization(keys, held)
                layer.keys, layer.values = keys, held
                cache.layers.append(layer)
            given = {"input_ids": tokens, "attention_mask": mask, "position_ids": positions, named: cache}
            logits = self.model(**given, use_cache=True).logits
            return (logits, *(tensor for layer in cache.layers for tensor in (layer.keys, layer.values)))

    return WithCache().eval()


def _start_empty(graph: Any) -> None:
    """Let every state of the graph begin with as many rows as there are prompts, and no token."""
    import numpy as np
    from openvino import opset13 as ops

    tokens = ops.shape_of(graph.input("input_ids"), output_type="i64")
    rows = ops.gather(tokens, ops.constant([0]), ops.constant(0))
    for node in graph.get_ops():
        if node.get_type_name() == "ReadValue":
            _, heads, _, width = node.get_output_partial_shape(0)
            rest = ops.constant(np.array([heads.get_length(), 0, width.get_length()], dtype=np.int64))
            zero = ops.constant(0.0, dtype=node.get_output_element_type(0))
            node.set_arguments([ops.broadcast(zero, ops.concat([rows, rest], axis=0))])
    graph.validate_nodes_and_infer_types()


@contextmanager
def _quiet() -> Iterator[None]:
    """Compute without gradients; leave out the exporters' warnings of constants, which the verification checks."""
    import torch

    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
