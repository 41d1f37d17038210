"""Resolved query: one model with its sizes and cost, the candidate hardware, and the cells that answer on each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

from accel_platform.errors import InvalidInput, NotFound
from accel_platform.events.types import Mode
from accel_platform.hardware.instances import naming_caution
from accel_platform.precisions import PRECISIONS, canonical_precision, unknown_precision
from predictor.advisor.candidates import AbsentDevice, Candidate, choose_candidates
from predictor.advisor.serving_state import KnownDecoder, KnownModel, ServingState
from predictor.data.evidence import CellKey, Evidence, Target
from predictor.data.model_resolution import (
    ResolvedModel,
    describe_answer,
    describe_drawing,
    resolve_item_cost,
    resolve_output_tokens,
    resolve_queried_model,
    resolve_sequence_length,
)
from predictor.data.traced_models import InputSizes, ItemCost
from predictor.schemas.requests import ModelFigures, OwnDevice, PredictQuery, Query, TransformersConfig
from predictor.serving.models import find_served_model

DEFAULT_PRECISION = "float32"


@dataclass(frozen=True)
class ResolvedQuery:
    """Query with every default filled in. It is equal for queries with the same figures on every target."""

    subject: ResolvedModel
    mode: Mode
    precisions: tuple[str | None, ...]
    """Precisions that answer it, the preferred one first; None stands for results that state no precision."""
    batch_size: int
    sequence_length: int | None
    sizes: InputSizes
    cost: ItemCost | None
    """Cost of one item; None where it is unknown."""
    model: str
    """Name of the model in the training set, else its id."""
    family: str
    size: float | None
    """Input tokens per item; None for inputs without a length (the size of images is in `cost`)."""
    image_size: float | None
    """Pixels along an edge of the model's own images, where known."""
    output_tokens: int | None = None
    """Generated tokens per item."""
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """Warnings about what the query left open, and how it was resolved."""
    candidates: tuple[Candidate, ...] = field(default=(), compare=False, repr=False)
    absent: tuple[AbsentDevice, ...] = field(default=(), compare=False, repr=False)
    """Named hardware that has no target."""

    @property
    def open_precision(self) -> bool:
        """True if the query gave no precision, so that results of the default or of an unstated one answer."""
        return None in self.precisions

    @cached_property
    def precision(self) -> str:
        """Precision in which a measurement would answer the query."""
        return self.precisions[0] or DEFAULT_PRECISION

    @cached_property
    def weights_mib(self) -> float | None:
        """Size of the weights in MiB; None if their number or width is unknown."""
        precision = PRECISIONS.get(self.precision)
        if self.cost is None or precision is None:
            return None
        return self.cost.parameters * precision.weight_bytes / 2**20

    def cells(self, target: Target) -> list[CellKey]:
        """Return the keys of the cells on a target that answer the query, the preferred one first."""
        model_id, batch_size, length = self.subject.model_id, self.batch_size, self.sequence_length
        return [
            CellKey(model_id, target, self.mode, precision, batch_size, length, image_size, self.output_tokens)
            for image_size in self._image_sizes()
            for precision in self.precisions
        ]

    def _image_sizes(self) -> list[float | None]:
        """Return the image sizes of answering results: None of the platform's own, the model's if a file states it."""
        if self.sizes.audio_seconds is not None or self.sizes.steps is not None:
            return []
        own: list[float | None] = [] if self.sizes.image_size else [None]
        pixels = self.image_size if self.sizes.image_size is None else float(self.sizes.image_size)
        return own if pixels is None else [*own, pixels]


def require_known_names(evidence: Evidence, queries: Sequence[PredictQuery]) -> None:
    """Check the models, hardware and precisions of many queries, each once. Raises as `resolve_query` does for them."""
    for model in {str(query.model): query.model for query in queries}.values():
        _resolve_subject(model, evidence)
    choose_candidates(evidence, list(dict.fromkeys(query.hardware for query in queries)))
    for precision in dict.fromkeys(query.precision for query in queries if query.precision is not None):
        _resolve_precision(precision, evidence)


def _resolve_subject(model: str | TransformersConfig | ModelFigures, evidence: Evidence) -> ResolvedModel:
    """Return the queried model. Raises NotFound, with the command that knows it where it is one of served models."""
    try:
        return resolve_queried_model(model, evidence)
    except NotFound as error:
        if (served := _served_warning(model)) is not None:
            raise NotFound(f"{error} {served}") from error
        raise


def _served_warning(model: str | TransformersConfig | ModelFigures) -> str | None:
    """Return the command that answers for a published language model; None for any other."""
    if not isinstance(model, str) or find_served_model(model) is None:
        return None
    return (
        f"Served by an engine on GPUs of NVIDIA or AMD it is known: `accel serving {model}` answers, also for one user."
    )


def resolve_query(
    state: ServingState, query: Query, hardware: Sequence[str | OwnDevice] | None, *, add_unmeasured_gpus: bool = False
) -> ResolvedQuery:
    """Resolve a query to one model, its sizes, its cost and its candidates.

    Parameters
    ----------
    hardware, add_unmeasured_gpus
        As for `choose_candidates`. In generation no GPU is added, because the operator predictor does not cover it.

    Raises
    ------
    NotFound
        For an unknown model.
    InvalidInput
        For unknown hardware or an unknown precision, and for a config or size that cannot be.
    """
    evidence = state.evidence
    subject = _resolve_subject(query.model, evidence)
    inputs = _resolve_inputs(query, subject, evidence)
    trained = _find_trained_model(state, query, subject, inputs)
    cost, size = inputs.cost, None
    if isinstance(trained, KnownModel):
        cost, size = trained.cost, trained.size
    if query.precision is None:
        precisions: tuple[str | None, ...] = (DEFAULT_PRECISION, None)
    else:
        precisions = (_resolve_precision(query.precision, evidence),)
    candidates, absent = choose_candidates(
        evidence, hardware, add_unmeasured_gpus=add_unmeasured_gpus and query.mode != "generation"
    )
    names = (name for name in hardware or () if isinstance(name, str))
    warnings = (
        *inputs.warnings,
        _stored_precision(query.model) if query.precision is None else None,
        *map(naming_caution, names),
        _served_warning(query.model) if subject.named_only else None,
    )
    return ResolvedQuery(
        subject=subject,
        mode=query.mode,
        precisions=precisions,
        batch_size=query.batch_size,
        sequence_length=inputs.sequence_length,
        sizes=inputs.sizes,
        cost=cost,
        model=trained.name if trained else subject.model_id,
        family=trained.family if trained else subject.family or subject.model_id,
        size=inputs.sequence_length or size,
        image_size=inputs.image_size,
        output_tokens=inputs.output_tokens,
        warnings=tuple(filter(None, warnings)),
        candidates=tuple(candidates),
        absent=tuple(absent),
    )


@dataclass(frozen=True)
class _Inputs:
    """Sizes of a query's inputs and outputs, the cost of one item, and warnings about what was left open."""

    sequence_length: int | None
    output_tokens: int | None
    sizes: InputSizes
    cost: ItemCost | None
    image_size: float | None
    """Pixels along an edge, where known."""
    warnings: tuple[str | None, ...]


def _resolve_inputs(query: Query, subject: ResolvedModel, evidence: Evidence) -> _Inputs:
    """Return the sizes that a query states or leaves to the model. Raises InvalidInput for one that cannot be."""
    length, length_warning = resolve_sequence_length(subject, query.sequence_length, evidence, query.mode)
    tokens, tokens_warning = None, None
    if query.mode == "generation":
        tokens, tokens_warning = resolve_output_tokens(subject, query.output_tokens, length, evidence)
    stated = InputSizes(None if subject.named_only else query.image_size, query.audio_seconds, query.steps)
    sizes, cost, cost_warning = resolve_item_cost(subject, length, stated, evidence.models)
    pixels, image_warning = None if cost is None else cost.image_size, None
    if subject.named_only:
        pixels, image_warning = _resolve_measured_image_size(subject, query.image_size, evidence)
    text_warning = None
    if subject.text_alone:
        text_warning = (
            f"{subject.model_id} is costed for text alone: what it would do with images or sound is left out."
        )
    item = describe_drawing(subject, query.mode, pixels, query.steps) or describe_answer(subject, query.mode)
    warnings = (item, length_warning, tokens_warning, cost_warning, text_warning, image_warning)
    return _Inputs(length, tokens, sizes, cost, pixels, warnings)


def _resolve_measured_image_size(
    subject: ResolvedModel, image_size: int | None, evidence: Evidence
) -> tuple[float | None, str | None]:
    """Return the image size of a model that only results name, in pixels along an edge, and a warning.

    Without a queried size it is the one that most cells were measured at, the largest of several such, None if results
    state none. Raises InvalidInput for a size that no result states.
    """
    cells = evidence.image_sizes.get(subject.model_id, Counter())
    stated = sorted(cells)
    if image_size is not None and image_size not in stated:
        raise InvalidInput(
            f"{subject.model_id} is known by its results only, at image sizes "
            f"{', '.join(f'{size:g}' for size in stated) or 'that nobody states'}: ask for one of them."
        )
    pixels = float(image_size) if image_size else max(stated, key=lambda size: (cells[size], size), default=None)
    if image_size is not None or len(stated) <= 1:
        return pixels, None
    warning = f"No image_size given: answering for {pixels:g}, as {subject.model_id} was measured most often."
    return pixels, warning


def _find_trained_model(
    state: ServingState, query: Query, subject: ResolvedModel, inputs: _Inputs
) -> KnownModel | KnownDecoder | None:
    """Return the model as the predictor's training set has it, where its name and cost there differ from the catalog's.

    The predictor learned published models by the cost that their files state, which may be counted in another way. For
    a model of the catalog that applies at its own input sizes only. None where the subject's own name and cost apply.
    """
    names = (
        subject.model_id,
        *state.evidence.aliases(subject.model_id),
        *(subject.spec.aliases if subject.spec else ()),
    )
    if query.mode == "generation":
        return state.known_decoder(*names)
    at_own_sizes = subject.spec is not None and inputs.sequence_length is None and inputs.sizes == InputSizes()
    if not subject.named_only and not at_own_sizes:
        return None
    known = state.known_model(*names)
    return None if known and inputs.cost and known.name == subject.model_id else known


def _resolve_precision(name: str, evidence: Evidence) -> str:
    """Return the precision of this name, of the platform or of a result. Raises InvalidInput with the closest."""
    precision = canonical_precision(name)
    recorded = evidence.memoize(
        "recorded precisions", lambda: {cell.precision for cell in evidence.summaries if cell.precision is not None}
    )
    if precision not in PRECISIONS and precision not in recorded:
        known = [*PRECISIONS, *sorted(recorded - PRECISIONS.keys())]
        raise InvalidInput(unknown_precision(name, known))
    return precision


def _stored_precision(model: str | TransformersConfig | ModelFigures) -> str | None:
    """Return a warning where a config stores its weights in another precision than the default; None otherwise."""
    if not isinstance(model, TransformersConfig):
        return None
    quantization, dtype = model.root.get("quantization_config"), model.root.get("dtype", model.root.get("torch_dtype"))
    advice = ""
    if isinstance(quantization, dict):
        stored = f"quantised ({quantization.get('quant_method', 'it does not say how')})"
    elif isinstance(dtype, str) and (precision := canonical_precision(dtype)) != DEFAULT_PRECISION:
        stored = f"kept in {precision}"
        advice = f": ask in precision {precision} for theirs" if precision in PRECISIONS else ""
    else:
        return None
    return f"The config's weights are {stored}; no precision was given, so this is of {DEFAULT_PRECISION}{advice}."
