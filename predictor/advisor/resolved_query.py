"""A question made definite: one model, its sizes, and the cells whose measurement would answer it. No answers here."""

from __future__ import annotations

from dataclasses import dataclass

from accel_platform.errors import InvalidInput
from accel_platform.precisions import PRECISIONS, canonical
from predictor.advisor.serving_state import ServingState
from predictor.data.evidence import CellKey, Target
from predictor.data.model_resolution import (
    ResolvedModel,
    convert_to_layer_outputs,
    resolve_input_sizes,
    resolve_item_cost,
    resolve_output_tokens,
    resolve_queried_model,
    resolve_sequence_length,
)
from predictor.data.traced_models import InputSizes, ItemCost
from predictor.schemas.requests import ModelConfig, ModelFigures, Query

PLAIN = "float32"


@dataclass(frozen=True)
class ResolvedQuery:
    """What a query means."""

    subject: ResolvedModel
    mode: str
    precisions: tuple[str | None, ...]
    """Any of these answers it, the first best; None is a figure that states none."""
    batch_size: int
    sequence_length: int | None
    sizes: InputSizes
    cost: ItemCost | None
    """Of one item; None where nothing tells what it costs."""
    model: str
    """The name that the predictor may have learned it by."""
    family: str
    size: float | None
    """Tokens in; None where inputs have one size, of images told by `cost`."""
    image_size: float | None
    """Pixels along an edge of the model's own images, where they are known."""
    output_tokens: int | None = None
    """Of each item, in generation."""

    @property
    def precision(self) -> str:
        """That a measurement would have to have."""
        return self.precisions[0] or PLAIN

    @property
    def weights_mib(self) -> float | None:
        """Of the weights alone in this precision; None where parameters or the width of one are not known."""
        known = PRECISIONS.get(self.precision)
        return None if self.cost is None or known is None else self.cost.parameters * known.weight_bytes / 2**20

    def cells(self, target: Target) -> list[CellKey]:
        """The cells that answer it, the best first."""
        model_id, batch_size, length = self.subject.model_id, self.batch_size, self.sequence_length
        return [
            CellKey(model_id, target, self.mode, precision, batch_size, length, image_size, self.output_tokens)
            for image_size in self._image_sizes()
            for precision in self.precisions
        ]

    def _image_sizes(self) -> list[float | None]:
        """As figures tell them: ours are of the model's own size and say nothing of it, files may state it."""
        if self.sizes.audio_seconds is not None:
            return []
        own: list[float | None] = [] if self.sizes.image_size else [None]
        pixels = self.image_size if self.sizes.image_size is None else float(self.sizes.image_size)
        return own if pixels is None else [*own, pixels]


def _stored_otherwise(model: str | ModelConfig | ModelFigures) -> str | None:
    """A warning where a config says that its weights are not of the precision that is answered for."""
    if not isinstance(model, ModelConfig):
        return None
    quantized, dtype = model.root.get("quantization_config"), model.root.get("dtype", model.root.get("torch_dtype"))
    if isinstance(quantized, dict):
        what = f"quantised ({quantized.get('quant_method', 'it does not say how')})"
    elif isinstance(dtype, str) and canonical(dtype) != PLAIN:
        what = f"kept in {canonical(dtype)}"
    else:
        return None
    return f"The config's weights are {what}; no precision was given, so this is of {PLAIN}."


def resolve_query(knowledge: ServingState, query: Query) -> tuple[ResolvedQuery, list[str]]:
    """The question and what its asker should know about how it was understood.

    Raises NotFound for the model, InvalidInput for a config or a size that cannot be.
    """
    evidence = knowledge.evidence
    subject = resolve_queried_model(query.model, evidence)
    length, warning = resolve_sequence_length(subject, query.sequence_length, evidence, query.mode)
    own_images = None if subject.named_only else query.image_size
    sizes = resolve_input_sizes(subject, own_images, query.audio_seconds)
    cost = resolve_item_cost(subject, length, sizes, evidence.models)
    cost, counted = (
        (cost, None) if cost is None or subject.figures is None else convert_to_layer_outputs(cost, evidence.models)
    )
    tokens, unsaid = None, None
    if query.mode == "generation":
        tokens, unsaid = resolve_output_tokens(subject, query.output_tokens, length, evidence)
    stored = None if query.precision is not None else _stored_otherwise(query.model)
    alone = (
        f"{subject.model_id} is costed for text alone: what it would do with images or sound is left out."
        if subject.text_alone
        else None
    )
    warnings = [told for told in (warning, unsaid, stored, counted, alone) if told is not None]
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
    learned = None
    if query.mode != "generation" and (
        subject.named_only or (subject.spec is not None and length is None and sizes == InputSizes())
    ):
        # What a file says of a model's cost is what the predictor learned it by, and not counted as we count.
        learned = knowledge.learned(*names)
        learned = None if learned and cost and learned.name == subject.model_id else learned
    known = knowledge.decoder(*names) if query.mode == "generation" else learned
    asked = ResolvedQuery(
        subject=subject,
        mode=query.mode,
        precisions=(PLAIN, None) if query.precision is None else (canonical(query.precision),),
        batch_size=query.batch_size,
        sequence_length=length,
        sizes=sizes,
        cost=cost if learned is None else learned.cost,
        model=known.name if known else subject.model_id,
        family=known.family if known else subject.family or subject.model_id,
        size=length or (None if learned is None else learned.size),
        image_size=pixels,
        output_tokens=tokens,
    )
    return asked, warnings
