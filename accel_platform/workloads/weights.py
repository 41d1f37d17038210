"""Real weights: a folder here or a repository on the hub, its content hash, and whether they are the model's.

Loading them is `build.py`. The hub is asked only for an id that somebody gave.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from accel_platform.errors import InvalidInput, NotFound, one_line
from accel_platform.workloads.model_catalog import ModelSpec, Weights

CONFIG = "config.json"
_SAFETENSORS = ("model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json")
_PICKLED = ("pytorch_model.bin", "pytorch_model-*-of-*.bin", "pytorch_model.bin.index.json")
"""Pickled weight files of older checkpoints; torch reads only tensors from them."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_NOT_CONFIG = frozenset(
    {"model_type", "architectures", "transformers_version", "dtype", "torch_dtype", "_name_or_path"}
)


def is_weights_folder(name: str) -> bool:
    """Return whether a model's name is the path of a folder that `save_pretrained` wrote."""
    return (Path(name).expanduser() / CONFIG).is_file()


def find_weights(source: str) -> Weights:
    """Return the weights in a `save_pretrained` folder, else of a hub id, downloaded unless cached.

    Reads all of them once, for the hash. Raises NotFound where there are none, or the hub cannot be reached.
    """
    folder = Path(source).expanduser()
    if folder.is_dir():
        return _in_folder(folder.resolve(), str(folder.resolve()))
    if folder.exists():
        raise NotFound(f"The weights {source} are a file: name the folder it lies in, with its {CONFIG}.")
    if not _HUB_ID.fullmatch(source):
        raise NotFound(f"There is no folder {source} with weights.")
    fetched = _from_hub(source)
    # The cache keeps each revision in a folder of that name.
    return _in_folder(fetched, f"{source}@{fetched.name}")


def with_weights(spec: ModelSpec, source: str) -> ModelSpec:
    """Return the model with real weights. Raises InvalidInput for weights of another architecture or size.

    A model id stands for one workload, so weights of other shapes need an id of their own.
    """
    weights = find_weights(source)
    architecture, config = config_in(weights)
    if architecture != spec.architecture:
        raise InvalidInput(f"{spec.model_id} is a {spec.architecture}, but the weights {source} are a {architecture}.")
    ours, theirs = _shapes(spec), _shapes(replace(spec, config=config))
    for name in ours.keys() | theirs.keys():
        if ours.get(name) != theirs.get(name):
            raise InvalidInput(
                f"The weights {source} are not of {spec.model_id}'s size: {name} is {_size(theirs.get(name))} there and"
                f" {_size(ours.get(name))} in {spec.model_id}. Give them a name of their own in a models file."
            )
    return replace(spec, weights=weights)


def config_in(weights: Weights) -> tuple[str, dict[str, Any]]:
    """Return architecture (the transformers `model_type`) and config of the checkpoint. Raises InvalidInput."""
    path = Path(weights.folder) / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        return config["model_type"], {key: value for key, value in config.items() if key not in _NOT_CONFIG}
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidInput(f"{path} is no transformers config: {type(error).__name__}: {error}.") from error


def _in_folder(folder: Path, source: str) -> Weights:
    files = _files(folder)
    if not (folder / CONFIG).is_file() or not files:
        lacking = CONFIG if files else f"{_SAFETENSORS[0]} (or its parts, or {_PICKLED[0]})"
        raise NotFound(f"The weights {source} have no {lacking}: name a folder that save_pretrained wrote.")
    digest = hashlib.sha256()
    for path in (folder / CONFIG, *files):
        with path.open("rb") as file:
            digest.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return Weights(source, str(folder), digest.hexdigest())


def _files(folder: Path) -> list[Path]:
    """Return the files that transformers would load from there: safetensors before pickles."""
    for patterns in (_SAFETENSORS, _PICKLED):
        if found := sorted(path for pattern in patterns for path in folder.glob(pattern)):
            return found
    return []


def _from_hub(hub_id: str) -> Path:
    """Return the cache folder of the newest revision; without a network, of the one fetched last."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        for patterns in (_SAFETENSORS, _PICKLED):
            folder = Path(snapshot_download(hub_id, allow_patterns=[CONFIG, *patterns]))
            if _files(folder):
                break
    except LocalEntryNotFoundError as error:
        raise NotFound(
            f"The weights {hub_id!r} are no folder here, and as a hub id neither cached nor to be fetched (no"
            " connection, or HF_HUB_OFFLINE is set). Fetch them once where the hub can be reached, or name a folder."
        ) from error
    except RepositoryNotFoundError as error:
        raise NotFound(f"The weights {hub_id!r} are no folder here, and the hub has no such model for you.") from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise NotFound(
            f"The weights {hub_id!r} are no folder here, and the hub does not give them: {one_line(error)}"
        ) from error
    return folder


def _shapes(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    import torch
    from transformers import AutoModel

    from accel_platform.workloads.build import config_of

    auto: Any = AutoModel
    with torch.device("meta"):
        model = auto.from_config(config_of(spec))
    return {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def _size(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else " x ".join(f"{side:,}" for side in shape)
