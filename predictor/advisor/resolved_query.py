"""A query made definite: one model, its sizes and cost, the candidates, and the cells that answer it on each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from accel_platform.errors import InvalidInput, NotFound
from accel_platform.events.types import Mode
from accel_platform.hardware.catalog import form_factor_caution
from accel_platform.precisions import PRECISIONS, canonical_precision, unknown_precision
from predictor.advisor.candidates import AbsentDevice, Candidate, choose_candidates
from predictor.advisor.serving_state import ServingState
from predictor.data.evidence import CellKey, Evidence, Target
from predictor.data.model_resolution import (
    ResolvedModel,
    resolve_item_cost,
    resolve_output_tokens,
    resolve_queried_model,
    resolve_sequence_length,
)
from predictor.data.traced_models import InputSizes, ItemCost
from predictor.schemas.requests import ModelConfig, ModelFigures, OwnDevice, PredictQuery, Query
from predictor.serving.models import find_served_model

DEFAULT_PRECISION = "float32"


@dataclass(frozen=True)
class ResolvedQuery:
    """A query with every default filled in; equal for queries that have the same figures on every target."""

    subject: ResolvedModel
    mode: Mode
    precisions: tuple[str | None, ...]
    """Precisions that answer it, the best first; None stands for figures that state none."""
    batch_size: int
    sequence_length: int | None
    sizes: InputSizes
    cost: ItemCost | None
    """Cost of one item; None where it is unknown."""
    model: str
    """The model's name in the training set, where it has one."""
    family: str
    size: float | None
    """Input tokens; None where inputs have one size (that of images is in `cost`)."""
    image_size: float | None
    """Pixels along an edge of the model's own images, where known."""
    output_tokens: int | None = None
    """Generated tokens per item."""
    warnings: tuple[str, ...] = field(default=(), compare=False)
    """How the query was understood, where it left something open."""
    candidates: tuple[Candidate, ...] = field(default=(), compare=False, repr=False)
    absent: tuple[AbsentDevice, ...] = field(default=(), compare=False, repr=False)
    """Hardware that was named and that no target stands for."""

    @property
    def open_precision(self) -> bool:
        """True if none was given, so that the default or an unstated one answers."""
        return None in self.precisions

    @property
    def precision(self) -> str:
        """Precision that a measurement would need."""
        return self.precisions[0] or DEFAULT_PRECISION

    @property
    def weights_mib(self) -> float | None:
        """Size of the weights in this precision; None where their number or width is unknown."""
        precision = PRECISIONS.get(self.precision)
        if self.cost is None or precision is None:
            return None
        return self.cost.parameters * precision.weight_bytes / 2**20

    def cells(self, target: Target) -> list[CellKey]:
        """Return the cells on a target that answer the query, the best first."""
        model_id, batch_size, length = self.subject.model_id, self.batch_size, self.sequence_length
        return [
            CellKey(model_id, target, self.mode, precision, batch_size, length, image_size, self.output_tokens)
            for image_size in self._image_sizes()
            for precision in self.precisions
        ]

    def _image_sizes(self) -> list[float | None]:
        """Return the image sizes that results state: None for the platform's own, files may state the model's."""
        if self.sizes.audio_seconds is not None:
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


def _resolve_subject(model: str | ModelConfig | ModelFigures, evidence: Evidence) -> ResolvedModel:
    """Return the queried model. Raises NotFound, with the command that knows it where it is one of served models."""
    try:
        return resolve_queried_model(model, evidence)
    except NotFound as error:
        if isinstance(model, str) and find_served_model(model) is not None:
            command = f"accel serving {model}"
            raise NotFound(
                f"{error} Served by an engine it is known: `{command}` answers, also for one user."
            ) from error
        raise


def resolve_query(
    state: ServingState, query: Query, hardware: Sequence[str | OwnDevice] | None, *, priced: bool = False
) -> ResolvedQuery:
    """Return the query with one model, its sizes, its cost and its candidates.

    Parameters
    ----------
    hardware, priced
        As for `choose_candidates`. Operators of generation have no price yet.

    Raises
    ------
    NotFound
        For an unknown model.
    InvalidInput
        For unknown hardware or an unknown precision, and for a config or size that cannot be.
    """
    evidence = state.evidence
    precision_warning = None if query.precision is not None else _stored_precision(query.model)
    subject = _resolve_subject(query.model, evidence)
    length, length_warning = resolve_sequence_length(subject, query.sequence_length, evidence, query.mode)
    tokens, tokens_warning = None, None
    if query.mode == "generation":
        tokens, tokens_warning = resolve_output_tokens(subject, query.output_tokens, length, evidence)
    image_size = None if subject.named_only else query.image_size
    sizes, cost, cost_warning = resolve_item_cost(subject, length, image_size, query.audio_seconds, evidence.models)
    text_warning = (
        f"{subject.model_id} is costed for text alone: what it would do with images or sound is left out."
        if subject.text_alone
        else None
    )
    warnings = [*filter(None, [length_warning, tokens_warning, precision_warning, cost_warning, text_warning])]
    names_of_devices = [name for name in hardware or () if isinstance(name, str)]
    warnings += filter(None, map(form_factor_caution, names_of_devices))
    pixels = None if cost is None else cost.image_size
    if subject.named_only:
        stated = sorted(evidence.image_sizes.get(subject.model_id, ()))
        if query.image_size is not None and query.image_size not in stated:
            raise InvalidInput(
                f"{subject.model_id} is known by its results only, at image sizes "
                f"{', '.join(f'{size:g}' for size in stated) or 'that nobody states'}: ask for one of them."
            )
        pixels = float(query.image_size) if query.image_size else next(iter(stated), None)
        if query.image_size is None and len(stated) > 1:
            warnings.append(f"No image_size given: answering for {pixels:g}, the least that {subject.model_id} was "
                            "measured at.")  # fmt: skip
    names = (subject.model_id, *evidence.aliases(subject.model_id), *(subject.spec.aliases if subject.spec else ()))
    known = None
    if query.mode != "generation" and (
        subject.named_only or (subject.spec is not None and length is None and sizes == InputSizes())
    ):
        # The predictor learned the model by the cost its file states, which may be counted otherwise than ours.
        known = state.known_model(*names)
        known = None if known and cost and known.name == subject.model_id else known
    trained = state.known_decoder(*names) if query.mode == "generation" else known
    precisions = (
        (DEFAULT_PRECISION, None) if query.precision is None else (_resolve_precision(query.precision, evidence),)
    )
    candidates, absent = choose_candidates(evidence, hardware, priced=priced and query.mode != "generation")
    return ResolvedQuery(
        subject=subject,
        mode=query.mode,
        precisions=precisions,
        batch_size=query.batch_size,
        sequence_length=length,
        sizes=sizes,
        cost=cost if known is None else known.cost,
        model=trained.name if trained else subject.model_id,
        family=trained.family if trained else subject.family or subject.model_id,
        size=length or (None if known is None else known.size),
        image_size=pixels,
        output_tokens=tokens,
        warnings=tuple(warnings),
        candidates=tuple(candidates),
        absent=tuple(absent),
    )


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


def _stored_precision(model: str | ModelConfig | ModelFigures) -> str | None:
    """Return a warning where a config stores its weights in another precision than the default; None otherwise."""
    if not isinstance(model, ModelConfig):
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
