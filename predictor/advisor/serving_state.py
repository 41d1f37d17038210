"""All that an answer may rest on, at one moment. Nothing is answered here."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

from accel_platform.precisions import PRECISIONS
from predictor.advisor.answer_cache import AnswerCache
from predictor.calibration.predictor import Predictor
from predictor.data.evidence import Evidence
from predictor.data.samples import IMAGES, LAYER_OUTPUTS, Sample, weight_bytes
from predictor.data.traced_models import ItemCost


@dataclass(frozen=True)
class KnownModel:
    """A model as the predictor knows it: by what the files it learned from say of its cost."""

    name: str
    family: str
    cost: ItemCost
    size: float | None
    """Pixels along an edge or tokens in, that most of its figures are of."""


@dataclass(frozen=True)
class PredictorModelName:
    """What the predictor calls a model."""

    name: str
    family: str


@dataclass(frozen=True)
class ServingState:
    """Evidence of one snapshot and a predictor; `no_predictor` says why there is none."""

    evidence: Evidence
    predictor: Predictor | None = None
    no_predictor: str = "no predictor was trained yet (`accel train`)"
    blind: dict[Hashable, str] = field(default_factory=dict, compare=False, repr=False)
    """Why the predictor says nothing of any work that is run in a way; the ways are as few as hardware is known."""
    said: AnswerCache = field(default_factory=AnswerCache, compare=False, repr=False)
    """From it, to be said again."""

    def learned(self, *names: str) -> KnownModel | None:
        """What the predictor knows of the model that any of these names means, the first of them first."""
        return next(filter(None, (self._learned.get(_compact(name)) for name in names)), None)

    def decoder(self, *names: str) -> PredictorModelName | None:
        """The same of a model that generates, whose cost follows from the shape of its decoder."""
        return next(filter(None, (self._decoders.get(_compact(name)) for name in names)), None)

    @cached_property
    def _decoders(self) -> dict[str, PredictorModelName]:
        mode = None if self.predictor is None else self.predictor.modes.get("generation")
        cases = () if mode is None else mode.latency_model.known_samples
        # The warehouse makes one word of a hub id, owner and all.
        return {
            _compact(name): PredictorModelName(case.model, case.family)
            for case in cases
            for name in (case.model.replace("/", "-"), case.model)
        }

    @cached_property
    def _learned(self) -> dict[str, KnownModel]:
        mode = None if self.predictor is None else self.predictor.modes.get("inference")
        by_model: dict[str, list[Sample]] = defaultdict(list)
        for case in mode.latency_model.known_samples if mode is not None else ():
            by_model[_compact(case.model)].append(case)
        return {slug: _of(cases) for slug, cases in by_model.items()}


def _of(cases: list[Sample]) -> KnownModel:
    sizes = Counter(case.size for case in cases if not math.isnan(case.size))
    size = max(sizes, key=lambda n: (sizes[n], -n), default=None)
    case = next(case for case in cases if size is None or case.size == size)
    known = PRECISIONS.get(case.precision)
    width = known.activation_bytes if known else weight_bytes(case.precision, case.mode)
    work, batch = case.work, case.batch_size
    written = work.activation_bytes * 4 / width / batch
    by_layers = case.counted == LAYER_OUTPUTS
    cost = ItemCost(
        work.parameters,
        None,
        work.flops / batch,
        activation_bytes=None if by_layers else written,
        layer_output_bytes=written if by_layers else None,
        image_size=case.size if case.reads == IMAGES else None,
    )
    return KnownModel(case.model, case.family, cost, size)


@lru_cache(maxsize=4096)
def _compact(name: str) -> str:
    """`vitbasepatch16224` of `google/vit-base-patch16-224` and, less the name of its weights, of
    `vit_base_patch16_224.augreg_in1k`."""
    plain = re.sub(r"\.[a-z]\w*$", "", name.casefold().rpartition("/")[2])
    return re.sub(r"[^a-z0-9.]+", "", plain)
