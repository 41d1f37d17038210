"""The evidence and predictor that answers rest on, and a cache of what was computed from them."""

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
from predictor.data.number_widths import weight_bytes
from predictor.data.roofline import LAYER_OUTPUTS
from predictor.data.samples import IMAGES, Sample
from predictor.data.traced_models import ItemCost


@dataclass(frozen=True)
class KnownModel:
    """A model of the predictor's training set, with its cost as the training files state it."""

    name: str
    family: str
    cost: ItemCost
    size: float | None
    """Most frequent input size in the training set: pixels along an edge, or input tokens."""


@dataclass(frozen=True)
class KnownDecoder:
    """A generating model of the predictor's training set; its cost follows from the shape of its decoder."""

    name: str
    family: str


@dataclass(frozen=True)
class ServingState:
    """Evidence of one snapshot, and a predictor; `no_predictor` is the reason where there is none."""

    evidence: Evidence
    predictor: Predictor | None = None
    no_predictor: str = "no predictor was trained yet (`accel train`)"
    unsupported: dict[Hashable, str] = field(default_factory=dict, compare=False, repr=False)
    """Reason by kind of workload and target, where the predictor never supports an estimate.

    It stays small, because there are few targets.
    """
    results: AnswerCache = field(default_factory=AnswerCache, compare=False, repr=False)
    """Results computed from this state, for reuse."""

    @property
    def predictor_id(self) -> str | None:
        return None if self.predictor is None else self.predictor.predictor_id

    def known_model(self, *names: str) -> KnownModel | None:
        """Return the training set's model under the first of these names that has one."""
        return next(filter(None, (self._known_models.get(_normalize_name(name)) for name in names)), None)

    def known_decoder(self, *names: str) -> KnownDecoder | None:
        """Return the training set's generating model under the first of these names that has one."""
        return next(filter(None, (self._known_decoders.get(_normalize_name(name)) for name in names)), None)

    @cached_property
    def _known_decoders(self) -> dict[str, KnownDecoder]:
        mode = None if self.predictor is None else self.predictor.modes.get("generation")
        samples = () if mode is None else mode.latency_model.known_samples
        # The warehouse writes a hub id as one word, with a dash between owner and name.
        return {
            _normalize_name(name): KnownDecoder(sample.model, sample.family)
            for sample in samples
            for name in (sample.model.replace("/", "-"), sample.model)
        }

    @cached_property
    def _known_models(self) -> dict[str, KnownModel]:
        mode = None if self.predictor is None else self.predictor.modes.get("inference")
        by_name: dict[str, list[Sample]] = defaultdict(list)
        for sample in mode.latency_model.known_samples if mode is not None else ():
            by_name[_normalize_name(sample.model)].append(sample)
        return {name: _summarize(samples) for name, samples in by_name.items()}


def _summarize(samples: list[Sample]) -> KnownModel:
    """Return the model that all of these samples are of, with its cost at the most frequent input size."""
    counts = Counter(sample.size for sample in samples if not math.isnan(sample.size))
    size = max(counts, key=lambda n: (counts[n], -n), default=None)
    sample = next(sample for sample in samples if size is None or sample.size == size)
    precision = PRECISIONS.get(sample.precision)
    width = precision.activation_bytes if precision else weight_bytes(sample.precision, sample.mode)
    work, batch = sample.work, sample.batch_size
    float32_bytes = work.activation_bytes * 4 / width / batch
    by_layers = sample.counted == LAYER_OUTPUTS
    cost = ItemCost(
        work.parameters,
        None,
        work.flops / batch,
        activation_bytes=None if by_layers else float32_bytes,
        layer_output_bytes=float32_bytes if by_layers else None,
        image_size=sample.size if sample.reads == IMAGES else None,
    )
    return KnownModel(sample.model, sample.family, cost, size)


@lru_cache(maxsize=4096)
def _normalize_name(name: str) -> str:
    """Return a model's name in lower case without owner, separators and the name of its weights.

    `google/vit-base-patch16-224` and `vit_base_patch16_224.augreg_in1k` both give `vitbasepatch16224`.
    """
    plain = re.sub(r"\.[a-z]\w*$", "", name.casefold().rpartition("/")[2])
    return re.sub(r"[^a-z0-9.]+", "", plain)
