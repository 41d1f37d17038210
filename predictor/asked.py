"""A question made definite: one model, its sizes, and the cells whose measurement would answer it. No answers here."""

from __future__ import annotations

from dataclasses import dataclass

from accel_platform.precisions import PRECISIONS, canonical
from predictor.evidence import Cell, Target
from predictor.knowledge import Knowledge
from predictor.questions import Query
from predictor.subject import ItemCost, Sizes, Subject, cost_asked, length_asked, resolve_subject, sizes_asked

PLAIN = "float32"


@dataclass(frozen=True)
class Asked:
    """What a query means."""

    subject: Subject
    mode: str
    precisions: tuple[str | None, ...]
    """Any of these answers it, the first best; None is a figure that states none."""
    batch_size: int
    sequence_length: int | None
    sizes: Sizes
    cost: ItemCost | None
    """Of one item; None where nothing tells what it costs."""
    model: str
    """The name that the predictor may have learned it by."""
    family: str
    size: float | None
    """Tokens in; None where inputs have one size, of images told by `cost`."""

    @property
    def precision(self) -> str:
        """That a measurement would have to have."""
        return self.precisions[0] or PLAIN

    @property
    def weights_mib(self) -> float | None:
        """Of the weights alone in this precision; None where parameters or the width of one are not known."""
        known = PRECISIONS.get(self.precision)
        return None if self.cost is None or known is None else self.cost.parameters * known.weight_bytes / 2**20

    def cells(self, target: Target) -> list[Cell]:
        """The cells that answer it, the best first; none where its sizes are not those that models are measured at."""
        if self.sizes != Sizes():
            return []
        return [
            Cell(self.subject.model_id, target, self.mode, precision, self.batch_size, self.sequence_length)
            for precision in self.precisions
        ]


def make_definite(knowledge: Knowledge, query: Query) -> tuple[Asked, list[str]]:
    """The question and what its asker should know about how it was understood.

    Raises NotFound for the model, InvalidInput for a config or a size that cannot be.
    """
    evidence = knowledge.evidence
    subject = resolve_subject(query.model, evidence)
    length, warning = length_asked(subject, query.sequence_length, evidence, query.mode)
    sizes = sizes_asked(subject, query.image_size, query.audio_seconds)
    cost = cost_asked(subject, length, sizes, evidence.models)
    aliases = () if subject.spec is None else subject.spec.aliases
    learned = None
    if subject.named_only or (subject.spec is not None and length is None and sizes == Sizes()):
        # What a file says of a model's cost is what the predictor learned it by, and not counted as we count.
        learned = knowledge.learned(subject.model_id, *aliases)
        learned = None if learned and cost and learned.name == subject.model_id else learned
    asked = Asked(
        subject=subject,
        mode=query.mode,
        precisions=(PLAIN, None) if query.precision is None else (canonical(query.precision),),
        batch_size=query.batch_size,
        sequence_length=length,
        sizes=sizes,
        cost=cost if learned is None else learned.cost,
        model=learned.name if learned else subject.model_id,
        family=learned.family if learned else subject.family or subject.model_id,
        size=length or (None if learned is None else learned.size),
    )
    return asked, [] if warning is None else [warning]
