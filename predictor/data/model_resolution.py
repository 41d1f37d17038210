"""Resolution of a queried model: its identity, its input sizes and its cost."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from statistics import median
from typing import Any

from accel_platform.bench.measure.generation import NEW_TOKENS
from accel_platform.errors import InvalidInput, NotFound
from accel_platform.table_io.values import count_of
from accel_platform.workloads.inputs import DECODER_TOKENS, whisper_window_s
from accel_platform.workloads.kv_cache import Decoder
from accel_platform.workloads.model_catalog import (
    IMAGE_GENERATORS,
    ModelSpec,
    find_model,
    resolve_model,
    slug,
    slugs_of,
    spellings,
)
from accel_platform.workloads.operators import OperatorProfile
from predictor.data.config_cost import canonical_config, config_operators, estimate_config_cost
from predictor.data.evidence import Evidence
from predictor.data.fast_path import require_slow_path
from predictor.data.traced_models import (
    OWN_SIZES,
    InputSizes,
    ItemCost,
    has_own_sizes,
    lookup_item_cost,
    traced_operators,
)
from predictor.schemas.requests import ModelFigures, TransformersConfig

_MIN_COUNTED_MODELS = 5


@dataclass(frozen=True)
class ResolvedModel:
    """Queried model: of the catalog (`spec`), named by results only, or the user's own (`config`, `figures`)."""

    model_id: str
    family: str | None
    modality: str | None
    spec: ModelSpec | None
    config: str | None = None
    """Transformers config in JSON, of an unknown model."""
    figures: ItemCost | None = None
    """Cost of one item, as the user states it."""
    decoder: Decoder | None = None
    """Shape of the decoder, where the config's model generates."""
    text_alone: bool = False
    """True if it also reads images or sound, which the cost does not count."""
    image_size: float | None = None
    """Pixels along an edge of the images that the config reads, where they are square."""
    default_sequence_length: int | None = None
    """Tokens per item if a query states none; None for inputs of a fixed size, or where unknown."""

    @property
    def has_fixed_input_size(self) -> bool:
        """True for inputs without a length to query."""
        if self.spec is None and self.config is None:
            return self.figures is not None and self.modality in ("vision", "audio")
        return self.default_sequence_length is None

    @property
    def named_only(self) -> bool:
        """True for a model that only results name."""
        return self.spec is None and self.config is None and self.figures is None

    @cached_property
    def known_config(self) -> dict[str, Any]:
        """Config of the catalog's or the user's model; empty where there is none."""
        return json.loads(self.config or "{}") if self.spec is None else self.spec.config

    @cached_property
    def draws_images(self) -> bool:
        """True for a model that makes images in steps."""
        if self.spec is not None:
            return self.spec.draws_images
        return self.known_config.get("model_type") in IMAGE_GENERATORS

    @property
    def traceable(self) -> bool:
        """True for a model that can be traced for its operators."""
        return self.spec is not None or self.config is not None


def describe_drawing(model: ResolvedModel, mode: str, pixels: float | None, steps: int | None) -> str | None:
    """Return what an item of a model that draws images is; None for other models.

    Raises InvalidInput for a mode that draws none.
    """
    if not model.draws_images:
        return None
    if mode != "inference":
        raise InvalidInput(f"{model.model_id} draws images, which is priced in the mode inference, not in {mode}.")
    config = model.known_config
    steps = steps or config.get("steps")
    drawn = "" if steps is None else f", drawn in {count_of(steps, 'step')}"
    if {"frames", "width", "height"} <= config.keys():
        size = f"{config['frames']} frames of {config['width']} x {config['height']} pixels"
        return f"An item of {model.model_id} is a video of {size}{drawn}."
    read = " from another that it reads" if config.get("edits") else ""
    return (
        f"An item of {model.model_id} is an image of {pixels:g} x {pixels:g} pixels{drawn}{read}." if pixels else None
    )


def describe_answer(model: ResolvedModel, mode: str) -> str | None:
    """Return what an item is of a model that answers sound or an image with text; None where whole texts are generated.

    Also None for all other models.
    """
    if mode == "generation":
        return None
    config = model.known_config
    architecture = config.get("model_type") if model.spec is None else model.spec.architecture
    answer = "An answer"
    if architecture == "whisper":
        window_s = whisper_window_s(config.get("max_source_positions", 1500))
        read, answer = f"{window_s:g} s of sound and {DECODER_TOKENS} tokens of text at once", "A transcript"
    elif architecture in ("florence2", "vision-encoder-decoder"):
        read = f"an image and {DECODER_TOKENS} tokens of text at once"
    elif architecture == "seamless_m4t_v2":
        read, answer = f"sound and {DECODER_TOKENS} tokens of text at once", "A translation"
    elif architecture == "parakeet_tdt":
        read, answer = "sound and one token of text", "A transcript"
    elif architecture == "musicgen":
        read, answer = "a prompt and as many frames of music, 50 a second", "Music"
    elif architecture in ("blip-2", "internvl", "llava", "llava_next", "llava_onevision", "paligemma"):
        read = "an image and a question about it"
    else:
        return None
    return (
        f"An item of {model.model_id} is one pass over {read}. {answer} takes longer: a pass of the decoder for each "
        "token, which is not counted."
    )


def resolve_queried_model(query: str | TransformersConfig | ModelFigures, evidence: Evidence) -> ResolvedModel:
    """Resolve a queried model offline: a name by the platform's catalog first, then by the warehouse.

    A config with the architecture and cost of a measured model is resolved to that model. Raises NotFound
    with the closest names, and InvalidInput for a config that describes no model.
    """
    if isinstance(query, str):
        resolve = evidence.memoize(
            "models by name", lambda: lru_cache(maxsize=1024)(partial(_resolve_name, evidence=evidence))
        )
        return resolve(query)
    if isinstance(query, ModelFigures):
        written = query.activation_bytes_per_item, query.layer_output_bytes_per_item
        figures = ItemCost(query.parameters, None, query.flops_per_item, *written)
        name = f"{query.family or 'figures'}-{_digest(query.model_dump_json())}"
        return ResolvedModel(name, query.family, query.modality, None, figures=figures)
    cost = estimate_config_cost(query.root)
    identity = (cost.architecture, cost.parameters, cost.flops, cost.activation_bytes)
    matches = (
        model_id
        for model_id, row in evidence.models.items()
        if identity
        == tuple(row[k] for k in ("architecture", "parameters", "flops_per_item", "activation_bytes_per_item"))
    )
    known = next(matches, None)
    if known is not None and (by_name := _resolve_name(known, evidence)).spec is not None:
        return by_name
    text = canonical_config(query.root)
    return ResolvedModel(
        # A measured model keeps its name, which its results have, and takes all else from the config.
        model_id=known or f"{cost.architecture}-{_digest(text)}",
        family=evidence.models[known]["family"] if known else cost.family,
        modality=cost.modality,
        spec=None,
        config=text,
        decoder=cost.decoder,
        text_alone=cost.text_alone,
        image_size=cost.image_size,
        default_sequence_length=cost.sequence_length,
    )


def _resolve_name(name: str, evidence: Evidence) -> ResolvedModel:
    spec = find_model(name)
    if spec is None or spec.model_id not in evidence.by_model:
        named = _resolve_result_name(name, spec, evidence)
        if named is not None:
            return named
    if spec is None:
        require_slow_path()
        try:
            spec = resolve_model(name)
        except NotFound as error:
            known = _result_names(evidence)
            close = list(dict.fromkeys(known[n] for n in difflib.get_close_matches(slug(name), known, n=4)))
            listed = '`accel db query "SELECT model_id FROM models"`'
            more = f" {listed} lists those that results name." if not close else ""
            if others := [name for name in close if name not in re.split(r"[\s,?]+", str(error))]:
                more = f" Results name {', '.join(others)}."
            raise NotFound(f"{error}{more} Of any other model of transformers give the config.json.") from error
    return ResolvedModel(
        spec.model_id,
        spec.family,
        spec.modality,
        spec,
        text_alone=spec.reads_text_alone,
        default_sequence_length=spec.sequence_length,
    )


def _resolve_result_name(name: str, spec: ModelSpec | None, evidence: Evidence) -> ResolvedModel | None:
    """Resolve a model by a name that results have; None if there is none.

    A model of the catalog (`spec`) may have results under another of its names, because the catalog came to know it
    later.
    """
    known = _result_names(evidence)
    names = [*spellings(name), *(() if spec is None else slugs_of((spec.model_id, *spec.aliases)))]
    model_id = next((known[spelling] for spelling in names if spelling in known), None)
    if model_id is None or (spec is not None and model_id not in evidence.by_model):
        return None
    row = evidence.models[model_id]
    described = ModelSpec.of_description(
        {**row, **{key: json.loads(row[key] or "null") for key in ("aliases", "config")}}
    )
    if described is None and spec is not None:
        described = replace(spec, model_id=model_id)
    return ResolvedModel(
        model_id,
        row["family"],
        row["modality"],
        described,
        text_alone=described is not None and described.reads_text_alone,
        default_sequence_length=None if described is None else described.sequence_length,
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def resolve_sequence_length(
    model: ResolvedModel, sequence_length: int | None, evidence: Evidence, mode: str
) -> tuple[int | None, str | None]:
    """Return the sequence length of a query, and a warning where it is not the one stated.

    Without one it is the most measured length, else the model's default. None for inputs of a fixed size, and where no
    length is known.
    """
    if model.has_fixed_input_size:
        ignored = (
            None
            if sequence_length is None
            else f"{model.model_id} has inputs of one fixed size: sequence_length ignored."
        )
        return None, ignored
    if sequence_length is not None:
        # Taken for tokens, a length would change the prediction of a model that reads images.
        if model.named_only and all(p.cell.sequence_length is None for p in evidence.by_model.get(model.model_id, ())):
            return None, f"No result of {model.model_id} states a sequence_length: ignored."
        return sequence_length, None
    if model.model_id in evidence.by_model:
        most_measured = evidence.memoize(
            ("most measured length", model.model_id, mode),
            lambda: _most_measured_length(evidence, model.model_id, mode),
        )
        if most_measured is not None:
            return most_measured
    length = model.default_sequence_length
    if length is None:
        return None, None
    return length, f"No sequence_length given: answering for {length}, the default of {model.model_id}."


def _most_measured_length(evidence: Evidence, model_id: str, mode: str) -> tuple[int, str] | None:
    """Return the length at which a model was measured most, and a warning that names it; None without lengths."""
    lengths = [
        (length, p.measured)
        for p in evidence.by_model[model_id]
        if p.cell.mode == mode and (length := p.cell.sequence_length) is not None
    ]
    own = [length for length, measured in lengths if measured]
    counts = Counter(own or [length for length, _ in lengths])
    if not counts:
        return None
    # Of equally frequent lengths the shortest, so that the order of rows does not matter.
    length = min(counts, key=lambda n: (-counts[n], n))
    origin = f"at which {model_id} was measured most{'' if own else ' by others'}"
    return length, f"No sequence_length given: answering for {length}, {origin}."


def resolve_output_tokens(
    model: ResolvedModel, output_tokens: int | None, length: int | None, evidence: Evidence
) -> tuple[int, str | None]:
    """Return the generated tokens per item, and a warning where the query states none.

    Without a number it is the most measured one at that length, else the one that this platform measures.
    """
    if output_tokens is not None:
        return output_tokens, None
    cells = [p.cell for p in evidence.by_model.get(model.model_id, []) if p.cell.mode == "generation"]
    counts = Counter(cell.output_tokens for cell in cells if cell.output_tokens and cell.sequence_length == length)
    tokens = min(counts, key=lambda n: (-counts[n], n), default=NEW_TOKENS)
    origin = f"at which {model.model_id} was measured most" if counts else "as this platform measures"
    return tokens, f"No output_tokens given: answering for {tokens}, {origin}."


def resolve_item_cost(
    model: ResolvedModel,
    sequence_length: int | None,
    sizes: InputSizes,
    models: Mapping[str, dict[str, Any]],
) -> tuple[InputSizes, ItemCost | None, str | None]:
    """Return the sizes that are not the model's own, the cost of one item, and a warning.

    The cost is None where it is unknown. Raises InvalidInput for a size that the model does not read or cannot take.
    """
    _check_sizes_are_read(model, sizes)
    if model.figures is not None:
        return sizes, *_convert_to_layer_outputs(replace(model.figures, image_size=sizes.image_size), models)
    if model.config is not None:
        if sizes.image_size == model.image_size:
            sizes = replace(sizes, image_size=None)
        cost = estimate_config_cost(
            json.loads(model.config),
            sequence_length=_stated_length(model, sequence_length),
            image_size=sizes.image_size,
            audio_seconds=sizes.audio_seconds,
        )
        written = cost.activation_bytes, cost.layer_output_bytes
        return sizes, ItemCost(cost.parameters, cost.layers, cost.flops, *written, cost.image_size), None
    if model.spec is not None and sizes != OWN_SIZES and has_own_sizes(model.spec, sizes):
        sizes = OWN_SIZES
    return sizes, lookup_item_cost(model.model_id, model.spec, sequence_length, models, sizes), None


def _stated_length(model: ResolvedModel, sequence_length: int | None) -> int | None:
    """Return the length to trace a config at: None for its default, because that is traced to resolve the model."""
    return None if sequence_length == model.default_sequence_length else sequence_length


def resolve_operators(
    model: ResolvedModel, sequence_length: int | None, sizes: InputSizes, *, training: bool = False
) -> OperatorProfile | str:
    """Return the operators of one pass, or the reason why they cannot be told; of a training step those of its pass.

    The model is `traceable`. The sizes are those of `resolve_item_cost`.
    """
    if model.spec is not None:
        return traced_operators(model.spec, sequence_length, sizes, training=training)
    assert model.config is not None, "without spec and config there is nothing to trace"
    return config_operators(
        model.config,
        sequence_length=_stated_length(model, sequence_length),
        image_size=sizes.image_size,
        audio_seconds=sizes.audio_seconds,
        training=training,
    )


def _check_sizes_are_read(model: ResolvedModel, sizes: InputSizes) -> None:
    """Raise InvalidInput for a size of images or sound that the model does not read, and for steps that it lacks."""
    if sizes.steps is not None and not model.draws_images:
        raise InvalidInput(f"{model.model_id} draws no images: leave out steps.")
    if sizes.steps is not None and model.config is not None:
        raise InvalidInput("A config states its own steps: set them there, and leave out steps.")
    for name, modality in (("image_size", "vision"), ("audio_seconds", "audio")):
        if getattr(sizes, name) is None:
            continue
        if model.named_only:
            raise InvalidInput(f"{model.model_id} is known by its results only, which state no {name}: leave it out.")
        if model.text_alone:
            raise InvalidInput(
                f"{model.model_id} is costed for text alone: leave out {name}, and let sequence_length count the "
                f"tokens that its processor makes of the {'image' if modality == 'vision' else 'sound'}."
            )
        if model.modality not in (None, modality, "multimodal"):
            raise InvalidInput(f"{model.model_id} is a {model.modality} model: leave out {name}.")


def _convert_to_layer_outputs(cost: ItemCost, models: Mapping[str, dict[str, Any]]) -> tuple[ItemCost, str | None]:
    """Scale activations of all operators to layer outputs, which samples count, and return a warning that says so.

    The cost stays unchanged where too few models in the warehouse are counted both ways.
    """
    if cost.layer_output_bytes is not None or cost.activation_bytes is None:
        return cost, None
    counted = [(row["layer_output_bytes_per_item"], row["activation_bytes_per_item"]) for row in models.values()]
    shares = [layers / operators for layers, operators in counted if layers and operators]
    if len(shares) < _MIN_COUNTED_MODELS:
        return cost, None
    share = median(shares)
    of = count_of(len(shares), "model")
    warning = f"Scaled activation_bytes_per_item by {share:.2f} to layer outputs (median of {of})."
    return replace(cost, layer_output_bytes=share * cost.activation_bytes), warning


def find_spec_by_id(model_id: str) -> ModelSpec | None:
    """Return the catalog's model with this id; None for one that only results name."""
    spec = find_model(model_id)
    return spec if spec is not None and spec.model_id == model_id else None


def _result_names(evidence: Evidence) -> dict[str, str]:
    """Return the id of each model of the tables by its slugs, kept with the evidence."""

    def build() -> dict[str, str]:
        names: dict[str, str] = {}
        for model_id, row in evidence.models.items():
            for own in slugs_of((model_id, *json.loads(row["aliases"] or "[]"))):
                names.setdefault(own, model_id)
        return names

    return evidence.memoize("model names", build)
