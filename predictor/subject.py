"""Which model a name means, at which length it is asked for, and what it costs. Nothing is estimated here."""

from __future__ import annotations

import difflib
import json
import re
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accel_platform.errors import NotFound
from accel_platform.workloads.families import ModelSpec, resolve_model, sequence_length_for
from predictor.evidence import Evidence

_TRACING = threading.Lock()
"""The first trace imports transformers, whose lazy modules break when two threads import them at once."""


@dataclass(frozen=True)
class Subject:
    """A model that is known: by its config (`spec`), or only by a name that results carry."""

    model_id: str
    family: str | None
    modality: str | None
    spec: ModelSpec | None


@dataclass(frozen=True)
class ItemCost:
    """One item of a batch at one sequence length, in float32; None where it is not known."""

    parameters: float
    layers: float | None
    flops: float
    activation_bytes: float | None


def resolve_subject(name: str, evidence: Evidence) -> Subject:
    """The model that a name means, without a network: the platform's own names first, then those of the warehouse.

    Raises NotFound with the closest names.
    """
    try:
        spec = resolve_model(name)
    except NotFound as error:
        known = _warehouse_names(evidence)
        model_id = known.get(_slug(name))
        if model_id is not None:
            row = evidence.models[model_id]
            return Subject(model_id, row["family"], row["modality"], None)
        close = list(dict.fromkeys(known[n] for n in difflib.get_close_matches(_slug(name), known, n=4)))
        more = f" In the warehouse: {', '.join(close)}." if close else ""
        raise NotFound(f"{error}{more}") from error
    return Subject(spec.model_id, spec.family, spec.modality, spec)


def length_asked(subject: Subject, asked: int | None, evidence: Evidence, mode: str) -> tuple[int | None, str | None]:
    """The sequence length a question is about, and a warning where it was not simply what was asked.

    Without one it is the length at which most is measured, else the model's default. Figures that do not state theirs
    answer only for a model that is known by name alone.
    """
    if subject.spec is not None and subject.spec.sequence_length is None:
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
    if subject.spec is None:
        return None, None
    length = subject.spec.sequence_length
    return length, f"No sequence_length given: answering for {length}, the default of {subject.model_id}."


def item_cost(
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
    known = row is not None and row["flops_per_item"] is not None and row["parameters"] is not None
    if known and (spec is None or sequence_length == default):
        assert row is not None
        return ItemCost(row["parameters"], row["layers"], row["flops_per_item"], row["activation_bytes_per_item"])
    if spec is None:
        return None
    with _TRACING:
        from accel_platform.workloads.cost import cost_of

        cost = cost_of(spec, batch_size=1, sequence_length=sequence_length)
    return ItemCost(cost.parameters, cost.layers, cost.flops, cost.activation_bytes)


def spec_of(model_id: str) -> ModelSpec | None:
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
