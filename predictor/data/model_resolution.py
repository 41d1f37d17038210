"""Which model is meant, at which sizes it is asked for, and what it costs. Nothing is estimated here."""

from __future__ import annotations

import difflib
import hashlib
import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from accel_platform.bench.measure.generation import NEW_TOKENS
from accel_platform.errors import InvalidInput, NotFound
from accel_platform.workloads.kv_cache import Decoder
from accel_platform.workloads.model_catalog import ModelSpec, find_model, resolve_model, sequence_length_for
from predictor.data.config_cost import canonical_config, estimate_config_cost
from predictor.data.evidence import Evidence
from predictor.data.fast_path import require_slow_path
from predictor.data.traced_models import TRACE_LOCK, InputSizes, ItemCost, traced_cost, traced_decoder
from predictor.schemas.requests import ModelConfig, ModelFigures

_MIN_COUNTED_MODELS = 5


@dataclass(frozen=True)
class ResolvedModel:
    """A model: of the catalogue (`spec`), known to results by name alone, or the asker's own (`config`, `figures`)."""

    model_id: str
    family: str | None
    modality: str | None
    spec: ModelSpec | None
    config: str | None = None
    """A transformers config in JSON, of a model that nobody here knows."""
    figures: ItemCost | None = None
    """What the asker says that one item costs."""
    decoder: Decoder | None = None
    """Of a config that describes what generates: its shape."""
    text_alone: bool = False
    """It reads images or sound besides text, which are not counted."""
    default_sequence_length: int | None = None
    """Tokens at which it is asked about unless told; None where it has one size of input, or nobody knows."""

    @property
    def has_fixed_input_size(self) -> bool:
        """Its inputs have no length that could be asked for."""
        if self.spec is None and self.config is None:
            return self.figures is not None and self.modality in ("vision", "audio")
        return self.default_sequence_length is None

    @property
    def named_only(self) -> bool:
        """Nothing but results and their names tell of it."""
        return self.spec is None and self.config is None and self.figures is None


def resolve_queried_model(asked: str | ModelConfig | ModelFigures, evidence: Evidence) -> ResolvedModel:
    """The model that is meant, without a network: for a name the platform's own first, then those of the warehouse.

    A config that costs to the last FLOP what a measured model of its architecture costs is taken for that model. Raises
    NotFound with the closest names, InvalidInput for a config that describes no model.
    """
    if isinstance(asked, ModelConfig):
        return _resolve_config(asked.root, evidence)
    if isinstance(asked, ModelFigures):
        written = asked.activation_bytes_per_item, asked.layer_output_bytes_per_item
        cost = ItemCost(asked.parameters, None, asked.flops_per_item, *written)
        name = f"{asked.family or 'figures'}-{_digest(asked.model_dump_json())}"
        return ResolvedModel(name, asked.family, asked.modality, None, figures=cost)
    return _resolve_name(asked, evidence)


def _resolve_name(name: str, evidence: Evidence) -> ResolvedModel:
    spec = find_model(name)
    if spec is None:
        known = evidence.memoize("model names", lambda: _warehouse_names(evidence))
        model_id = known.get(_slug(name))
        if model_id is not None:
            row = evidence.models[model_id]
            return ResolvedModel(model_id, row["family"], row["modality"], None)
        require_slow_path()
        try:
            spec = resolve_model(name)
        except NotFound as error:
            close = list(dict.fromkeys(known[n] for n in difflib.get_close_matches(_slug(name), known, n=4)))
            more = f" In the warehouse: {', '.join(close)}." if close else ""
            raise NotFound(f"{error}{more}") from error
    return ResolvedModel(spec.model_id, spec.family, spec.modality, spec, default_sequence_length=spec.sequence_length)


def _resolve_config(config: dict[str, Any], evidence: Evidence) -> ResolvedModel:
    found = estimate_config_cost(config)
    cost = (found.architecture, found.parameters, found.flops, found.activation_bytes)
    same = (
        model_id
        for model_id, row in evidence.models.items()
        if cost == tuple(row[k] for k in ("architecture", "parameters", "flops_per_item", "activation_bytes_per_item"))
    )
    known = next(same, None)
    if known is not None and (by_name := _resolve_name(known, evidence)).spec is not None:
        return by_name
    text = canonical_config(config)
    return ResolvedModel(
        # Of a model of somebody's own the name tells of its results, and its config of all else.
        model_id=known or f"{found.architecture}-{_digest(text)}",
        family=evidence.models[known]["family"] if known else found.family,
        modality=found.modality,
        spec=None,
        config=text,
        decoder=found.decoder,
        text_alone=found.text_alone,
        default_sequence_length=found.sequence_length,
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def resolve_sequence_length(
    subject: ResolvedModel, asked: int | None, evidence: Evidence, mode: str
) -> tuple[int | None, str | None]:
    """The sequence length a question is about, and a warning where it was not simply what was asked.

    Without one it is the length at which most is measured, else the model's default. Figures that do not state theirs
    answer only for a model that is known by name alone.
    """
    if subject.has_fixed_input_size:
        ignored = (
            None if asked is None else f"{subject.model_id} has inputs of one fixed size: sequence_length ignored."
        )
        return None, ignored
    if asked is not None:
        return asked, None
    cells = [p for p in evidence.by_model.get(subject.model_id, []) if p.cell.mode == mode]
    stated = [p for p in cells if p.cell.sequence_length is not None]
    counts = Counter(p.cell.sequence_length for p in [p for p in stated if p.measured] or stated)
    if counts:
        # The shorter of two equally frequent lengths, so that the answer does not depend on the order of rows.
        length = min(counts, key=lambda n: (-counts[n], n))
        return (
            length,
            f"No sequence_length given: answering for {length}, at which {subject.model_id} was measured most.",
        )
    length = subject.default_sequence_length
    if length is None:
        return None, None
    return length, f"No sequence_length given: answering for {length}, the default of {subject.model_id}."


def resolve_output_tokens(
    subject: ResolvedModel, asked: int | None, length: int | None, evidence: Evidence
) -> tuple[int, str | None]:
    """How many tokens each item of a generation comes to, and a warning where nobody said.

    Without a number it is the one that most is measured at with that length in, else what this platform measures.
    """
    if asked is not None:
        return asked, None
    cells = [p.cell for p in evidence.by_model.get(subject.model_id, []) if p.cell.mode == "generation"]
    counts = Counter(cell.output_tokens for cell in cells if cell.output_tokens and cell.sequence_length == length)
    tokens = min(counts, key=lambda n: (-counts[n], n), default=NEW_TOKENS)
    how = f"at which {subject.model_id} was measured most" if counts else "as this platform measures"
    return tokens, f"No output_tokens given: answering for {tokens}, {how}."


def resolve_input_sizes(subject: ResolvedModel, image_size: int | None, audio_seconds: float | None) -> InputSizes:
    """The sizes of images and sound where they are not the model's own. Raises InvalidInput where it reads none."""
    for name, value, modality in (("image_size", image_size, "vision"), ("audio_seconds", audio_seconds, "audio")):
        if value is None:
            continue
        if subject.named_only:
            raise InvalidInput(f"{subject.model_id} is known by its results only, which state no {name}: leave it out.")
        if subject.text_alone:
            raise InvalidInput(
                f"{subject.model_id} is costed for text alone: leave out {name}, and let sequence_length count the "
                f"tokens that its processor makes of the {'image' if modality == 'vision' else 'sound'}."
            )
        if subject.modality not in (None, modality, "multimodal"):
            raise InvalidInput(f"{subject.model_id} is a {subject.modality} model: leave out {name}.")
    if subject.config and image_size and image_size == estimate_config_cost(json.loads(subject.config)).image_size:
        image_size = None
    asked = InputSizes(image_size, audio_seconds)
    if subject.spec is None or asked == InputSizes():
        return asked
    require_slow_path()
    with TRACE_LOCK:
        from accel_platform.workloads.inputs import describe_inputs, with_image_size

        sized = subject.spec if image_size is None else with_image_size(subject.spec, image_size)
        inputs = describe_inputs(sized, batch_size=1, audio_seconds=audio_seconds)
        return InputSizes() if inputs == describe_inputs(subject.spec, batch_size=1) else asked


def resolve_item_cost(
    subject: ResolvedModel, sequence_length: int | None, sizes: InputSizes, models: Mapping[str, dict[str, Any]]
) -> ItemCost | None:
    """What one item costs at these sizes; None where nothing tells. Raises InvalidInput for what it cannot take."""
    if subject.figures is not None:
        return replace(subject.figures, image_size=sizes.image_size)
    if subject.config is not None:
        found = estimate_config_cost(
            json.loads(subject.config),
            # What it was known again by is remembered: its usual length needs no second look.
            sequence_length=None if sequence_length == subject.default_sequence_length else sequence_length,
            image_size=sizes.image_size,
            audio_seconds=sizes.audio_seconds,
        )
        written = found.activation_bytes, found.layer_output_bytes
        return ItemCost(found.parameters, found.layers, found.flops, *written, found.image_size)
    if sizes == InputSizes():
        return lookup_item_cost(subject.model_id, subject.spec, sequence_length, models)
    assert subject.spec is not None, "other models have no sizes"
    return traced_cost(subject.spec, sequence_length, sizes)


def convert_to_layer_outputs(cost: ItemCost, models: Mapping[str, dict[str, Any]]) -> tuple[ItemCost, str | None]:
    """Cost figures whose activations are of all operators, as layers alone would have it, and a warning that says so:
    that is how those who measured have counted. As they came where too few described models were counted both ways."""
    if cost.layer_output_bytes is not None or cost.activation_bytes is None:
        return cost, None
    counted = [(row["layer_output_bytes_per_item"], row["activation_bytes_per_item"]) for row in models.values()]
    shares = [layers / operators for layers, operators in counted if layers and operators]
    if len(shares) < _MIN_COUNTED_MODELS:
        return cost, None
    share = median(shares)
    told = f"Of activation_bytes_per_item {share:.0%} are taken for what layers put out, as {len(shares)} models show."
    return replace(cost, layer_output_bytes=share * cost.activation_bytes), told


def lookup_item_cost(
    model_id: str, spec: ModelSpec | None, sequence_length: int | None, models: Mapping[str, dict[str, Any]]
) -> ItemCost | None:
    """The cost of one item; None where neither the warehouse nor the model's config tells, or a length it needs is not
    stated.

    The warehouse's figures hold for the model's default length; for another one the model is traced on the meta
    device, which imports torch and takes seconds the first time. Raises InvalidInput for a length it cannot take.
    """
    row = models.get(model_id)
    default = None if spec is None else sequence_length_for(spec, None)
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
        )
        # A description of before layers were told apart is good enough only where nothing can be traced.
        if spec is None or (sequence_length == default and described.layer_output_bytes is not None):
            return described
    if spec is None:
        return None
    return traced_cost(spec, sequence_length, InputSizes())


def lookup_decoder(model_id: str, spec: ModelSpec | None, models: Mapping[str, dict[str, Any]]) -> Decoder | None:
    """The shape of a model that generates: of the platform's own, or of one whose config the warehouse holds; None
    where neither tells, or it was not made to."""
    row = models.get(model_id) or {}
    if spec is None and row.get("architecture") and row.get("config"):
        config = json.loads(row["config"])
        spec = ModelSpec(model_id, row["architecture"], str(row["family"]), row["modality"], config=config)
    return None if spec is None else traced_decoder(spec)


def find_spec_by_id(model_id: str) -> ModelSpec | None:
    """The platform's own model of that id, None for one that only results name."""
    try:
        spec = resolve_model(model_id)
    except NotFound:
        return None
    return spec if spec.model_id == model_id else None


def _warehouse_names(evidence: Evidence) -> dict[str, str]:
    names: dict[str, str] = {}
    for model_id, row in evidence.models.items():
        for name in (model_id, *json.loads(row["aliases"] or "[]")):
            names.setdefault(_slug(name), model_id)
            names.setdefault(_slug(name.rpartition("/")[2]), model_id)
    return names


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.casefold()).strip("-")
