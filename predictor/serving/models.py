"""Published language models: their names, and the shapes that their configs state.

`python -m predictor.serving.models HUB_ID config.json` prints the row of `models.csv` of a further model.
"""

from __future__ import annotations

import argparse
import csv
import math
import re
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from accel_platform.errors import AccelError, InvalidInput
from accel_platform.strict_json import read_object
from accel_platform.workloads.build import config_of
from accel_platform.workloads.cost import head_parameters, sizes_of_parameters, text_tower
from accel_platform.workloads.heads import generation_head
from accel_platform.workloads.kv_cache import (
    KEEP_A_WINDOW,
    KEEP_ALL,
    KEEP_COMPRESSED,
    READ_BY_ROW,
    Decoder,
    decoder_of,
    experts_of,
    layers_of,
)
from accel_platform.workloads.model_catalog import find_model
from predictor.data.config_worker import spec_from_config
from predictor.serving.stored_weights import quantization_in, quantization_of_config, words_in

_FIGURES = {
    "parameters_b": "parameters",
    "active_b": "active_parameters",
    "layers": "layers",
    "width": "width",
    "cache_per_token": "kept_per_token",
    "cache_in_window": "kept_in_window",
    "window": "window",
    "attended": "attended",
    "cache_parts": "cache_parts",
    "expert_share": "expert_share",
    "context": "context",
    "vocabulary_b": "vocabulary_parameters",
    "unread_b": "unread_parameters",
    "chosen_tokens": "chosen_tokens",
    "index_per_token": "index_per_token",
    "index_attended": "index_attended",
}
"""Columns of `models.csv`, and the fields of a `Decoder` that they hold. An empty column stands for 0."""
_MOSTLY_EMPTY = ("unread_b", "chosen_tokens", "index_per_token", "index_attended")
"""Columns of tables of which a token needs one row per layer (Gemma 4 E2B), and of sparse attention's index."""
_OWN = ("context", "vocabulary_b")
"""Columns in which models of one shape may differ."""
_SPARSE = "; sparse attention"
"""Word in the source of a model with sparse attention, whose index chooses the tokens (DeepSeek V3.2)."""
_PART = "; its part for text"
"""End of the source of a model that also reads images."""
_ROUNDED = 2e-3
"""Largest relative difference of two parameter counts that rounding explains."""
_BILLION = 1e9
_VARIANT = re.compile(r"-(base|chat|hf|instruct|it|pt)$")
"""Ends of names that tell how a model was trained, not what shape it has."""
_OTHER_MODEL = re.compile(
    r"^-\d(\.\d+)?(?![\w.])|\b(\d+(\.\d+)?b|distill|draft|eagle\d*|embedding|flash|lite|medusa|mini|multimodal|reranker|speculator|vision|vl)\b"
)
"""Suffix of a name that makes it another model's: a generation (`Mistral-Large-3`), a size, or another kind."""


@dataclass(frozen=True)
class Sharding:
    """Kind and widths, by which engines serve a model and split it over devices; empty and 0 if unknown."""

    model_type: str = ""
    """Kind of model, as transformers names it."""
    heads: int = 0
    """Query heads of a layer."""
    expert_width: int = 0
    """Intermediate width of one expert; 0 without experts."""

    def unsplit_heads(self, devices: int, key_value_heads: float) -> str | None:
        """Return the heads that tensor parallelism cannot split over so many devices, in words; None if it can.

        vLLM, SGLang and TensorRT-LLM refuse to start so. Fewer key-value heads than devices are copied.
        """
        if self.heads % devices:
            return f"{self.heads} heads"
        if key_value_heads % devices and devices % key_value_heads:
            return f"{key_value_heads:.0f} key-value heads"
        return None


def sharding_of(model: str | Mapping[str, Any]) -> Sharding:
    """Return how a model is split, by its name or its config."""
    if isinstance(model, str):
        row = _row(model)
        if row is not None:
            return Sharding(row["model_type"], int(row["heads"]), int(row["expert_width"] or 0))
        spec = find_model(model)
        return Sharding() if spec is None else sharding_of({**spec.config, "model_type": spec.architecture})
    text = model.get("text_config")
    shape = text if isinstance(text, Mapping) else model
    width = shape.get("moe_intermediate_size") or (shape.get("intermediate_size") if _has_experts(shape) else 0)
    return Sharding(str(model.get("model_type") or ""), _whole(shape.get("num_attention_heads")), _whole(width))


def _has_experts(config: Mapping[str, Any]) -> bool:
    return experts_of(SimpleNamespace(**config))[0] > 1


def _whole(value: object) -> int:
    """Return a positive whole number of a config; 0 for anything else."""
    return value if isinstance(value, int) and value > 0 else 0


def find_served_model(name: str) -> Decoder | None:
    """Return the shape of a published model by its hub id or name; None if `models.csv` does not hold it.

    What follows the name may be a version or a way of keeping it (`-Instruct`, `-FP8`), but no other model:
    `Phi-4-multimodal-instruct` is no Phi-4.
    """
    found = _split(name)
    return None if found is None else _models()[found[0]]


def quantization_of_hub_id(name: str) -> str | None:
    """Return the quantization that the hub id of a published model states: `int4` for `-AWQ`; None for none."""
    found = _split(name)
    return None if found is None else quantization_in(found[1])


def published_quantization(name: str) -> str | None:
    """Return the quantization that a model is published in: `mxfp4` for gpt-oss; None for 16 bits."""
    row = _row(name)
    return (row and row["quantization"]) or None


def stored_bytes(name: str) -> float | None:
    """Return the bytes of weights in a published model's repository; None where its quantization says them.

    Kimi K2 Thinking quantizes its experts alone, in groups of 32 weights: 4.5 bits each, and 16 for the others.
    """
    row = _row(name)
    return None if row is None or not row["stored_gb"] else float(row["stored_gb"]) * 1e9


def state_numbers(name: str) -> float:
    """Return the numbers in the states of one sequence of a published model with linear layers; 0 without any.

    They are apart from its `Decoder`, because times were fitted without them.
    """
    row = _row(name)
    return 0.0 if row is None else float(row["state"] or 0)


def holds_text_alone(name: str) -> bool:
    """Return whether a published model also reads images, which its row leaves out."""
    row = _row(name)
    return row is not None and row["source"].endswith(_PART)


def generates_no_text(name: str) -> bool:
    """Return whether a hub id says that its model embeds or ranks texts."""
    return any(word.startswith(("embed", "rerank")) for word in words_in(name))


def attends_sparsely(model: str | Mapping[str, Any]) -> bool:
    """Return whether a model, by its name or config, has sparse attention to tokens that an index chooses."""
    if isinstance(model, str):
        decoder = find_served_model(model)
        return decoder is not None and decoder.chosen_tokens > 0
    parts = [part for part in (model, model.get("text_config")) if isinstance(part, Mapping)]
    return any(part.get("index_topk") or part.get("sparse_attention_config") for part in parts)


def hub_id_of(name: str) -> str:
    """Return the hub id of a published model named without its publisher; any other name unchanged."""
    original, found = original_of(name), _split(name)
    if "/" in name or original is None or found is None:
        return name
    if not found[1]:
        return original
    publisher = original.partition("/")[0]
    return f"{publisher}/{name}" if _VARIANT.fullmatch(found[1]) else name


def original_of(name: str) -> str | None:
    """Return the hub id of the published model that a name leads to, whatever its publisher and quantization.

    None if there is no such model.
    """
    row = _row(name)
    return None if row is None else row["source"].split()[0]


def served_models() -> list[str]:
    """Return the names of the published models."""
    return list(_models())


def row_of(hub_id: str, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the row of `models.csv` of a published config, or of its part for text if the model also reads images.

    A model of the shape of a known one has its figures, so that measured loads of either count for both. Raises
    InvalidInput for a model that generates no text, or whose config does not say what it caches.
    """
    spec = spec_from_config(dict(config))
    decoder, head = decoder_of(spec), generation_head(spec)
    if decoder is None or head is None:
        raise InvalidInput(f"{hub_id} generates no text, or its config does not say what it caches.")
    of_head = head_parameters(spec, head)
    by_row = sum(count for name, count in sizes_of_parameters(spec).items() if READ_BY_ROW in name)
    towers = decoder.unread_parameters - of_head - by_row if text_tower(spec) else 0.0
    shape = replace(
        decoder,
        parameters=_billions(decoder.parameters - towers),
        unread_parameters=_billions(by_row),
        # The embedding counts among the active parameters, because it did in the rows that the predictor was fitted to.
        active_parameters=_billions(decoder.active_parameters + of_head),
        # Engines quantize none of the tables, as they quantize neither embedding nor head.
        vocabulary_parameters=_billions(decoder.vocabulary_parameters + by_row),
    )
    row = {column: _number(getattr(shape, field), column) for column, field in _FIGURES.items()}
    sharding = sharding_of(config_of(spec).to_dict())
    known = next((other for other in _rows() if _of_same_shape(other, row)), row)
    source = f"{hub_id} config.json: {_describe(shape, config_of(spec).get_text_config(decoder=True))}"
    source += _SPARSE if decoder.chosen_tokens else ""
    return {
        "name": _VARIANT.sub("", _slug(hub_id)),
        **{column: (row if column in _OWN else known)[column] for column in _FIGURES},
        "state": f"{decoder.state:.8g}" if decoder.state else "",
        "model_type": sharding.model_type,
        "heads": str(sharding.heads),
        "expert_width": str(sharding.expert_width or ""),
        "quantization": _few_bits(quantization_of_config(config) or quantization_in(hub_id)),
        "stored_gb": "",
        "source": source + _PART if towers else source,
    }


def _number(value: float, column: str) -> str:
    """Return a number as `models.csv` holds it; nothing for 0 in a column that most models have nothing in."""
    return f"{value:.8g}" if value or column not in _MOSTLY_EMPTY else ""


def _few_bits(quantization: str | None) -> str:
    return "" if quantization is None or quantization in ("bfloat16", "float16") else quantization


def _billions(parameters: float) -> float:
    return float(f"{parameters / _BILLION:.4g}")


def _of_same_shape(known: Mapping[str, str], row: Mapping[str, str]) -> bool:
    """Return whether two rows have one shape: equal but for columns of the model's own, and for rounding."""
    numbers = [(float(known[column] or 0), float(row[column] or 0)) for column in _FIGURES if column not in _OWN]
    return all(math.isclose(one, other, rel_tol=_ROUNDED) for one, other in numbers)


def _describe(decoder: Decoder, config: Any) -> str:
    """Return layers, heads and experts in words."""
    caching = [
        (kind, layer)
        for kind, layer in layers_of(config, int(config.num_hidden_layers))
        if kind in KEEP_A_WINDOW | KEEP_ALL | KEEP_COMPRESSED
    ]
    sliding = sum(kind in KEEP_A_WINDOW for kind, _ in caching)
    rates = Counter(int(layer.compress_rates[kind]) for kind, layer in caching if kind in KEEP_COMPRESSED)
    layers = f"{decoder.layers:.0f} layers"
    if rates:
        layers += f" that look back {decoder.window:.0f} tokens"
        layers += "".join(f", {count} of them to a vector for {rate} more" for rate, count in sorted(rates.items()))
    elif sliding:
        which = "that" if sliding == decoder.layers else f"of which {sliding}"
        layers += f" {which} look back {decoder.window:.0f} tokens"
    elif len(caching) < decoder.layers:
        layers += f" of which {len(caching)} attend to all"
    _, layer = caching[-1]
    heads = int(layer.num_attention_heads)
    latent = getattr(layer, "kv_lora_rank", None)
    if latent:
        kept = f"a latent of {latent} and {layer.qk_rope_head_dim}; {heads} heads"
    else:
        size = getattr(layer, "head_dim", None) or layer.hidden_size // heads
        shared = "" if decoder.cache_parts == heads else f" and {decoder.cache_parts:.0f} key-value heads"
        kept = f"{heads} heads{shared} of {size}"
    experts, chosen = experts_of(config)
    return f"{layers}; {kept}" + (f"; {chosen:.0f} of {experts:.0f} experts" if experts > 1 and chosen else "")


def _row(name: str) -> dict[str, str] | None:
    """Return the row of `models.csv` that a hub id or name leads to; None for none."""
    found = _split(name)
    return None if found is None else next(row for row in _rows() if row["name"] == found[0])


@lru_cache(maxsize=256)
def _split(name: str) -> tuple[str, str] | None:
    """Return the longest name of a published model that a hub id begins with, and what follows; None for none.

    A size that the model's own hub id states makes it no other: `Mistral-Large-3-675B-Instruct-2512`.
    """
    slug = _slug(name)
    for end in (at for at in range(len(slug), 0, -1) if not slug[at : at + 1].isalnum()):
        if slug[:end] in _models():
            rests = [slug[len(known) :] for known in (slug[:end], _hub_slugs()[slug[:end]]) if slug.startswith(known)]
            return None if all(map(_OTHER_MODEL.search, rests)) else (slug[:end], rests[0])
    return None


def _slug(hub_id: str) -> str:
    """Return a hub id without its publisher, who may also stand before an underscore: `Qwen_Qwen3-8B-GGUF`."""
    name = hub_id.casefold().rpartition("/")[2]
    publisher, _, rest = name.partition("_")
    slug = re.sub(r"[^a-z0-9.]+", "-", rest if publisher in _publishers() else name)
    return re.sub(r"^(c4ai|meta|nvidia)-", "", slug)


@cache
def _models() -> dict[str, Decoder]:
    return {row["name"]: Decoder(**_figures(row)) for row in _rows()}


@cache
def _hub_slugs() -> dict[str, str]:
    """Return the hub id of each published model as names are compared."""
    return {row["name"]: _slug(row["source"].split()[0]) for row in _rows()}


def _figures(row: Mapping[str, str]) -> dict[str, float]:
    """Return the figures of a row by the fields of a `Decoder`."""
    return {
        field: float(row[column] or 0) * (_BILLION if column.endswith("_b") else 1)
        for column, field in _FIGURES.items()
    }


@cache
def _publishers() -> frozenset[str]:
    return frozenset(row["source"].partition("/")[0].casefold() for row in _rows())


@cache
def _rows() -> tuple[dict[str, str], ...]:
    """Return the rows of `models.csv`; each `source` begins with the model's hub id."""
    text = files(__package__).joinpath("models.csv").read_text(encoding="utf-8")
    return tuple(csv.DictReader(text.splitlines()))


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the row of `models.csv` of a published config. Ends with a message where there is none."""
    parser = argparse.ArgumentParser(prog="python -m predictor.serving.models", description=main.__doc__)
    parser.add_argument("hub_id", help="such as Qwen/Qwen3-8B")
    parser.add_argument("config", type=Path, help="the config.json of its hub page")
    asked = parser.parse_args(arguments)
    try:
        row = row_of(asked.hub_id, read_object(asked.config)[0])
    except AccelError as error:
        parser.error(str(error))
    csv.DictWriter(sys.stdout, list(row), lineterminator="\n").writerow(row)


if __name__ == "__main__":
    main()
