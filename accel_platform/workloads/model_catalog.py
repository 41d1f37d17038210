"""Catalog of models: every name that people use leads to one `ModelSpec`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal, get_args

from accel_platform.errors import InvalidInput, NotFound
from accel_platform.workloads.architectures import named_models

Modality = Literal["text", "vision", "audio", "multimodal"]
SourceKind = Literal["module", "torchscript", "exported", "onnx", "openvino", "timm"]
SOURCE_KINDS: tuple[SourceKind, ...] = get_args(SourceKind)
"""Architectures of models that do not come from transformers; `sources.py` reads them."""
VIDEO_GENERATORS = ("cogvideox", "hunyuan-video", "ltx-video", "wan")
"""Architectures that draw videos."""
IMAGE_GENERATORS = (
    "stable-diffusion", "stable-diffusion-xl", "stable-diffusion-3", "flux", "flux-2", "pixart-sigma", "qwen-image",
    "sana", "z-image", *VIDEO_GENERATORS,
)  # fmt: skip
"""Architectures that draw images or videos; `image_generation` adds them to those of transformers."""
FORECASTERS = ("chronos-bolt",)
"""Architectures of series; `chronos` adds them to those of transformers."""
CONVOLUTIONAL = ("densenet", "mobilenet-v3", "vgg")
"""Architectures of classifiers; `convnets` adds them to those of transformers."""
DETECTORS = ("yolov5", "yolov8", "yolo11")
"""Architectures that find objects; `yolo` adds them to those of transformers."""
ENCODER_DECODERS = frozenset({
    "bart", "blenderbot", "m2m_100", "marian", "mbart", "moonshine", "mt5", "pegasus", "seamless_m4t_v2", "t5",
    "whisper",
})  # fmt: skip
"""Architectures of catalog models that generate and read their prompt with an encoder of its own."""


@dataclass(frozen=True)
class Weights:
    """Real weights: where they come from, where they lie, and a hash of what they are."""

    source: str
    """A folder, or a hub id with its revision."""
    folder: str
    sha256: str


@dataclass(frozen=True)
class ModelSpec:
    """A model's identity and everything needed to build it from its config."""

    model_id: str
    architecture: str
    """The transformers `model_type`, or one of `SOURCE_KINDS`."""
    family: str
    modality: Modality
    aliases: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict, hash=False)
    """Keyword arguments of the architecture's transformers config; of a source its file, arguments and inputs."""
    sequence_length: int | None = None
    """Tokens measured unless another length is asked for; None where the inputs have one fixed size."""
    size: str | None = None
    """Name of its size in a models file, such as `base`; nothing is decided by it."""
    weights: Weights | None = None
    """Real weights; None for random ones, seeded by the config."""
    operators: str | None = None
    """`OperatorProfile` of one pass at the usual length, in JSON, where the model's code may not be at hand."""

    @property
    def draws_images(self) -> bool:
        """True for a model that makes images or videos in steps."""
        return self.architecture in IMAGE_GENERATORS

    @property
    def reads_text_alone(self) -> bool:
        """True for a model that is measured on text alone, but also reads images or sound."""
        return self.modality == "text" and architectures().get(self.architecture, {}).get("category") == "multimodal"

    @classmethod
    def of_job(cls, fields: dict[str, Any]) -> ModelSpec:
        """Rebuild the specification from the JSON of another process (`asdict`)."""
        weights = fields.get("weights")
        return cls(**{**fields, "aliases": tuple(fields["aliases"]), "weights": weights and Weights(**weights)})

    @classmethod
    def of_description(cls, described: Mapping[str, Any]) -> ModelSpec | None:
        """Return the model of a `ModelDescribed` event's fields; None where they do not suffice to build it."""
        architecture = described["architecture"]
        if architecture not in (*architectures(), *SOURCE_KINDS) or not described["config"]:
            return None
        usual = architectures().get(architecture, {})
        return cls(
            described["model_id"],
            architecture,
            described["family"],
            described["modality"],
            tuple(described["aliases"]),
            dict(described["config"]),
            described["sequence_length"] or usual.get("sequence_length"),
            described["size"],
            operators=described["operators"],
        )


def resolve_model(name: str) -> ModelSpec:
    """Return the model of a canonical key, alias or hub id, in any case and spelling of separators.

    Raises NotFound with the closest known names, or the command that lists all.
    """
    found = find_model(name)
    if found is not None:
        return found
    catalog = _catalog()
    close = difflib.get_close_matches(slug(name), catalog.names, n=4, cutoff=0.6)
    near = list(dict.fromkeys(catalog.names[c] for c in close))
    hint = f"Did you mean {', '.join(near)}?" if near else "`accel bench models` lists those that can be measured."
    raise NotFound(f"No model is called {name!r}. {hint}")


@lru_cache(maxsize=4096)
def find_model(name: str) -> ModelSpec | None:
    """Return the model of a name, without the slow search for close names; None for an unknown name."""
    catalog = _catalog()
    ids = (catalog.names.get(spelling) for spelling in spellings(name))
    return next((catalog.models[model_id] for model_id in ids if model_id is not None), None)


def with_catalog_facts(model: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the table `models` with what the catalog knows of it: nobody described an imported one."""
    spec = find_model(model["model_id"])
    if spec is None:
        return model
    known = {"architecture": spec.architecture, "family": spec.family, "modality": spec.modality}
    return model | {name: value for name, value in known.items() if name in model and model[name] is None}


def architectures() -> dict[str, dict[str, Any]]:
    """Return family, modality, category and usual sequence length of each architecture of the catalog.

    The category is left out where it is the modality.
    """
    return _catalog().architectures


def known_models() -> tuple[ModelSpec, ...]:
    """Return every model of the catalog, in order."""
    return tuple(_catalog().models.values())


def model_set(name: str) -> tuple[ModelSpec, ...]:
    """Return the models of a named set, e.g. `small`. Raises NotFound."""
    sets = _catalog().sets
    if name not in sets:
        raise NotFound(f"No set of models is called {name!r}. Known: {', '.join(sets)}.")
    return tuple(resolve_model(model) for model in sets[name])


def sets_of(spec: ModelSpec) -> tuple[str, ...]:
    """Return the names of the sets that hold this model."""
    return tuple(name for name, models in _catalog().sets.items() if spec.model_id in models)


def sequence_length_for(spec: ModelSpec, requested: int | None) -> int | None:
    """Return the length to measure: the requested one, else the default; None for inputs of one fixed size.

    Raises InvalidInput for a length below 1.
    """
    if requested is not None and requested < 1:
        raise InvalidInput(f"A sequence length must be at least 1, not {requested}.")
    return None if spec.sequence_length is None else requested or spec.sequence_length


def slug(name: str) -> str:
    """Return a name in lower case with one hyphen in place of all else than letters and digits."""
    return re.sub(r"[^a-z0-9]+", "-", name.casefold()).strip("-")


def slugs_of(names: Iterable[str]) -> Iterator[str]:
    """Yield the slugs under which a model is found: of each name, and without its hub organization."""
    for name in names:
        yield slug(name)
        yield slug(name.rpartition("/")[2])


def spellings(name: str) -> Iterator[str]:
    """Yield the slugs of a name that somebody asks for, from exact to lenient.

    The lenient ones lack the hub organization, the `hf_` of old scripts, and of timm's models on the hub the tag of
    their weights (`timm/resnet50.a1_in1k`).
    """
    organization, _, last = name.rpartition("/")
    texts = [name, last, last.partition(".")[0]] if organization.casefold() == "timm" else [name, last]
    for text in texts:
        yield slug(text)
        yield slug(text).removeprefix("hf-")


@dataclass(frozen=True)
class _Catalog:
    models: dict[str, ModelSpec]
    names: dict[str, str]
    """Slug of every name to the model's id."""
    sets: dict[str, list[str]]
    architectures: dict[str, dict[str, Any]]


@lru_cache(maxsize=1)
def _catalog() -> _Catalog:
    raw = named_models()
    models = {}
    for model_id, entry in raw["models"].items():
        usual = raw["architectures"][entry["architecture"]]
        models[model_id] = ModelSpec(
            model_id=model_id,
            architecture=entry["architecture"],
            family=usual["family"],
            modality=usual["modality"],
            aliases=tuple(entry["aliases"]),
            config=entry["config"],
            sequence_length=entry.get("sequence_length", usual.get("sequence_length")),
        )
    names: dict[str, str] = {}
    for spec in models.values():
        for own in slugs_of((spec.model_id, *spec.aliases)):
            if names.setdefault(own, spec.model_id) != spec.model_id:
                raise InvalidInput(f"sets.toml: {own!r} names both {names[own]} and {spec.model_id}.")
    return _Catalog(models, names, raw["sets"], raw["architectures"])
