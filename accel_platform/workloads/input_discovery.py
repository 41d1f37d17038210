"""Discovery of inputs that any architecture takes, by its forward signature and by trial.

Each way of making the inputs is run, and the model's own error tells how many placeholder tokens it wants. Tensors come
from `synthetic_inputs.py`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import torch

from accel_platform.workloads.inputs import FIRST_PLAIN_TOKEN
from accel_platform.workloads.synthetic_inputs import (
    Inputs,
    look_up,
    make,
    reserved_tokens,
    vocabulary_of,
)

_MOST_PLACEHOLDERS = 4096
_SIGNALS = ("pixel_values", "input_features", "input_values", "pixel_values_videos")
_BESIDE_TEXT = ("visual_feats", "visual_embeds")
_PLACEHOLDERS = {
    "image": ("pixel_values",),
    "video": ("pixel_values_videos",),
    "audio": ("input_features", "input_values"),
    "speech": ("input_values",),
}
"""Names of the signal inputs that each kind of placeholder token stands for."""
_TOKEN_TYPES = {"image": 1, "video": 2, "audio": 3, "speech": 3}
_MISMATCH = re.compile(r"(image|video|audio|speech).*tokens\D+(\d+)\D+(?:features|embed\w*)\D+(\d+)", re.IGNORECASE)


class NoInputs(Exception):
    """The signature asks for something that is no tensor, or that nothing here knows how to make."""


def find_inputs(model: Any, run: Callable[[Inputs], Any], *, partial: bool = False) -> tuple[Inputs, Any]:
    """Return the first inputs that the model takes, and its output. Raises the first error where it takes none.

    A model that reads text beside images or sound gets both; with `partial` only one of them.
    """
    complaint: Exception | None = None
    for candidate in candidates(model, partial=partial):
        counts: dict[str, int] = {}
        while True:
            try:
                inputs = _with_placeholders(model, candidate, counts)
                return inputs, run(inputs)
            except Exception as error:  # noqa: BLE001 - a model may complain in any way about inputs it does not take
                found = _MISMATCH.search(str(error))
                if found and _adopt_count(counts, found[1].lower(), int(found[3]), model.config):
                    continue
                # The first candidate is the likeliest, so its complaint says most.
                complaint = complaint or error
                break
    raise complaint or NoInputs("its forward pass asks for something that is no tensor or has no known form")


def vary_values(inputs: Inputs, config: Any) -> Inputs:
    """Return other values of the same kind: new ids and signals; the same masks, grids and reserved ids."""
    generator = torch.Generator().manual_seed(1)
    reserved = torch.tensor(sorted(reserved_tokens(config)) or [-1])
    other = dict(inputs)
    for name, value in inputs.items():
        if value.is_floating_point() and "mask" not in name and int(torch.unique(value).numel()) > 2:
            other[name] = torch.randn(value.shape, generator=generator)
        elif name.endswith("input_ids"):
            keep = torch.isin(value, reserved)
            top = max(int(value.masked_fill(keep, 0).max()), FIRST_PLAIN_TOKEN + 1)
            drawn = torch.randint(FIRST_PLAIN_TOKEN, top + 1, value.shape, generator=generator)
            other[name] = torch.where(keep | torch.isin(drawn, reserved), value, drawn)
    return other


def candidates(model: Any, *, partial: bool) -> Iterator[Inputs]:
    """Yield ways of making inputs, the most complete first; `partial` is as in `find_inputs`."""
    names = {
        name: parameter.default is inspect.Parameter.empty
        for name, parameter in inspect.signature(model.forward).parameters.items()
        if parameter.kind not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    }
    main = model.main_input_name if isinstance(model.main_input_name, list) else [model.main_input_name]
    wanted = [name for name in (*(n for n, needed in names.items() if needed), *main) if name in names]
    signals = [name for name in _SIGNALS if name in names]
    text = [name for name in ("input_ids",) if name in names]
    rest = [name for name in ("decoder_input_ids", *_BESIDE_TEXT) if name in names]
    full = [[*wanted, *text, *signals[:2], *rest], [*wanted, *text, *signals[:1], *rest]]
    parts = [[*wanted, *signals[:1], *rest], [*wanted, *text, *rest], [*wanted, *signals[:1]], wanted]
    if not (text and signals):
        full, parts = [*full, *parts], []
    for chosen in dict.fromkeys(tuple(dict.fromkeys(one)) for one in (parts if partial else full)):
        yield from _variants(model.config, chosen, names)


def _variants(config: Any, chosen: tuple[str, ...], names: dict[str, bool]) -> Iterator[Inputs]:
    generator = torch.Generator().manual_seed(0)
    options = [made for name in chosen if (made := list(make(name, config, frozenset(names), generator)))]
    required = {name for name, needed in names.items() if needed}
    # The signals vary together: the first ways of the others are the usual ones.
    for number in range(max(map(len, options), default=0)):
        inputs: Inputs = {}
        for ways in options:
            inputs |= {name: value for name, value in ways[min(number, len(ways) - 1)].items() if name in names}
        if inputs and required <= inputs.keys():
            yield inputs


def _adopt_count(counts: dict[str, int], kind: str, features: int, config: Any) -> bool:
    """Take over the number of placeholders asked for; False where that was tried. Some models count single numbers."""
    width = look_up(getattr(config, "text_config", None) or config, "hidden_size", default=1)
    for count in (features, features // width):
        if 0 < count <= _MOST_PLACEHOLDERS and counts.get(kind) not in (count, features // width):
            counts[kind] = count
            return True
    return False


def _with_placeholders(model: Any, candidate: Inputs, counts: dict[str, int]) -> Inputs:
    """Prepend the placeholder tokens that the model asked for (one at first)."""
    inputs = dict(candidate)
    ids = candidate.get("input_ids")
    if ids is None or ids.dim() != 2:
        return inputs
    front: list[int] = []
    types: list[int] = []
    for kind, signals in _PLACEHOLDERS.items():
        token = look_up(model.config, f"{kind}_token_id", f"{kind}_token_index")
        given = kind in counts or any(signal in candidate for signal in signals)
        if given and isinstance(token, int) and 0 <= token < vocabulary_of("input_ids", model.config):
            count = counts.get(kind, 1)
            front += [token] * count
            types += [_TOKEN_TYPES[kind]] * count
    if front:
        inputs["input_ids"] = torch.cat([ids[:, :1], torch.tensor([front]), ids[:, 1:]], dim=1)
        if "attention_mask" in inputs and inputs["attention_mask"].shape == ids.shape:
            inputs["attention_mask"] = torch.ones_like(inputs["input_ids"])
        if "mm_token_type_ids" in inspect.signature(model.forward).parameters:
            inputs["mm_token_type_ids"] = torch.tensor([[0, *types, *[0] * (ids.shape[1] - 1)]])
    return inputs
