"""Models that people describe in a JSON file: key -> name, family, size, modality, and config or weights of their own.

The catalogue, or the checkpoint that an entry names, supplies what the entry leaves out. Nothing is built here.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from accel_platform.errors import AccelError, InvalidInput, NotFound, one_line
from accel_platform.strict_json import read_object, validate_model
from accel_platform.workloads.model_catalog import Modality, ModelSpec, architectures, resolve_model
from accel_platform.workloads.sources import SEQUENCE_LENGTH, spec_of_source
from accel_platform.workloads.weights import config_in, find_weights, with_weights


class CustomModel(BaseModel):
    """One entry of a models file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str | None = Field(default=None, title="text", description="A name of the catalogue: key, alias or hub id.")
    family: str | None = Field(default=None, title="text", description="What results are grouped by.")
    size: str | None = Field(default=None, title="text", description="What you call its size; recorded with the model.")
    modality: Modality | None = Field(default=None, title='"text", "vision", "audio" or "multimodal"')
    architecture: str | None = Field(default=None, title="text", description="A transformers model type.")
    config: dict[str, Any] = Field(default={}, title="an object", description="What differs from its default config.")
    sequence_length: int | None = Field(default=None, ge=1, title="a whole number of at least 1")
    weights: str | None = Field(default=None, title="text", description="A folder, or a hub id.")
    source: str | None = Field(
        default=None,
        title="text",
        description="Code or a file of your own: `net.py:Net` (a class, or a function that returns a module), `net.pt` "
        "(TorchScript), `net.pt2` (torch.export), `net.onnx`, `net.xml` (OpenVINO), or `timm:` and a name.",
    )
    inputs: dict[str, str] = Field(
        default={},
        title="an object of texts",
        description="With `source`: the shape of one item of each input, such as `3x224x224` (numbers), "
        "`length:tokens:30522` (ids below 30522) or `length:mask`. ONNX, OpenVINO and timm tell theirs.",
    )
    arguments: dict[str, Any] = Field(
        default={}, title="an object", description="With `source`: keyword arguments of the class or function."
    )


def read_models(path: Path) -> dict[str, ModelSpec]:
    """Return the models of a file by key, in order. Raises NotFound, or InvalidInput with file, key and fault."""
    entries, text = read_object(path)
    return custom_models(entries, where=str(path), folder=path.parent, text=text)


def custom_models(
    entries: Mapping[str, Any], *, where: str, folder: Path = Path(), text: str = ""
) -> dict[str, ModelSpec]:
    """Return the models of parsed content; `folder` is the base of relative weight paths."""
    if not entries:
        raise InvalidInput(f"{where}: it holds no model.")
    found = {}
    for key, entry in entries.items():
        if not isinstance(entry, Mapping):
            raise InvalidInput(f'{where}: {key}: expected an object such as {{"name": "bert-base"}}, got {entry!r}.')
        model = validate_model(CustomModel, entry, where=f"{where}: {key}", text=text)
        try:
            found[key] = _spec(key, model, folder)
        except AccelError as error:
            raise InvalidInput(f"{where}: {key}: {error}") from error
    return found


def _spec(key: str, entry: CustomModel, folder: Path) -> ModelSpec:
    if entry.source is not None:
        return _source_spec(key, entry, folder)
    if given := [name for name in ("inputs", "arguments") if getattr(entry, name)]:
        raise InvalidInput(f"{given[0]} belong to a source: add one, such as net.py:Net or net.onnx.")
    weights = entry.weights and _resolve_weights_path(entry.weights, folder)
    known = _find_in_catalog(entry.name) if entry.name is not None else None
    if entry.config and not entry.architecture:
        raise InvalidInput("a config belongs to an architecture: add one, a transformers model type.")
    if known is not None and not entry.architecture:
        # A model of the catalogue keeps its family and modality: its results join those that are filed under them.
        length = known.sequence_length and (entry.sequence_length or known.sequence_length)
        spec = replace(known, size=entry.size, sequence_length=length)
        return with_weights(spec, weights) if weights else spec
    architecture, config, found = entry.architecture, entry.config, None
    if weights:
        found = find_weights(weights)
        there, theirs = config_in(found)
        if architecture and (architecture != there or config):
            raise InvalidInput(f"the weights say what they are (a {there}): leave out architecture and config.")
        architecture, config = there, theirs
    if not architecture:
        raise InvalidInput(
            (f"{entry.name!r} is not in the catalogue: " if entry.name else "nothing says what it is: ")
            + "add an architecture (a transformers model type) and its config, or weights (a folder or hub id)."
        )
    return _own_spec(key, architecture, config, entry, found)


def _source_spec(key: str, entry: CustomModel, folder: Path) -> ModelSpec:
    """Return a model of code or a file of the user's."""
    for name in ("name", "architecture", "config", "weights"):
        if getattr(entry, name):
            raise InvalidInput(f"the source says what the model is: leave out {name}.")
    _require_free(key)
    return spec_of_source(
        str(entry.source),
        folder=folder,
        model_id=key,
        **entry.model_dump(include={"inputs", "arguments", "modality", "family", "sequence_length", "size"}),
    )


def _require_free(key: str) -> None:
    if (taken := _find_in_catalog(key)) is not None:
        raise InvalidInput(
            f"the catalogue calls {taken.model_id} so, whose results it would mix with: choose another key."
        )


def _own_spec(key: str, architecture: str, config: dict[str, Any], entry: CustomModel, weights: Any) -> ModelSpec:
    """Return a model outside the catalog, under its own key; the catalog's where that is the same one."""
    _check_architecture(architecture)
    usual = architectures().get(architecture, {})
    modality = entry.modality or usual.get("modality")
    if modality is None:
        raise InvalidInput(f'add the modality of {architecture}: "text", "vision", "audio" or "multimodal".')
    length = entry.sequence_length or usual.get("sequence_length")
    spec = ModelSpec(
        model_id=key,
        architecture=architecture,
        family=entry.family or usual.get("family", architecture),
        modality=modality,
        aliases=(entry.name,) if entry.name else (),
        config=config,
        sequence_length=length or (SEQUENCE_LENGTH if modality in ("text", "multimodal") else None),
        size=entry.size,
        weights=weights,
    )
    _check_config(spec, strictly=weights is None)
    known = _find_in_catalog(key)
    if known is not None and weights is None and _builds_the_same(spec, known):
        return replace(known, size=entry.size, sequence_length=known.sequence_length and length)
    _require_free(key)
    return spec


def _builds_the_same(one: ModelSpec, other: ModelSpec) -> bool:
    from accel_platform.workloads.build import config_of

    if one.architecture != other.architecture:
        return False
    return bool(config_of(one).to_dict() == config_of(other).to_dict())


def _check_architecture(name: str) -> None:
    from transformers import CONFIG_MAPPING

    from accel_platform.workloads.build import register_architecture

    register_architecture(name)
    known: list[str] = list(CONFIG_MAPPING.keys())
    if name not in known:
        close = difflib.get_close_matches(name, known, n=3)
        hint = f"did you mean {', '.join(close)}?" if close else "the model types of transformers are meant."
        raise InvalidInput(f"no architecture is called {name!r}: {hint}")


def _check_config(spec: ModelSpec, *, strictly: bool) -> None:
    """Reject misspelt config fields, because transformers silently ignores unknown keywords."""
    from transformers import CONFIG_MAPPING

    from accel_platform.workloads.build import config_of

    try:
        config_of(spec)
        default = CONFIG_MAPPING[spec.architecture]()
    except Exception as error:  # transformers raises whatever its strict classes raise
        raise InvalidInput(f"its config is refused: {one_line(error)}") from error
    for name in spec.config if strictly else ():
        if not hasattr(default, name):
            close = difflib.get_close_matches(name, default.to_dict(), n=2)
            hint = f", did you mean {' or '.join(close)}?" if close else "."
            raise InvalidInput(f"the config of {spec.architecture} has no {name!r}{hint}")


def _find_in_catalog(name: str) -> ModelSpec | None:
    try:
        return resolve_model(name)
    except NotFound:
        return None


def _resolve_weights_path(source: str, folder: Path) -> str:
    """Resolve a path relative to its file; hub ids and absolute paths stay."""
    return str(folder / source) if (folder / source).is_dir() else source
