"""Ways to divide cases into what is known and what is asked: the five questions an advisor is asked. Nothing is fitted.

Each yields pairs of index arrays, training and test; every case is asked about at most once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from predictor.data.samples import Sample
from predictor.models.analytical import has_known_rates

Indices = npt.NDArray[np.int64]
Split = Callable[[Sequence[Sample]], Iterator[tuple[Indices, Indices]]]
FOLDS = 10
FEWER_FOLDS = 5
FEW_SHOT_SAMPLES = 10
DRAWS = 5
_SEED = 0


def random_split(samples: Sequence[Sample]) -> Iterator[tuple[Indices, Indices]]:
    """Single figures are missing; the model and the device are known from others."""
    yield from _leave_one_out(np.random.default_rng(_SEED).permutation(len(samples)) % FEWER_FOLDS)


def unseen_family(samples: Sequence[Sample]) -> Iterator[tuple[Indices, Indices]]:
    """No model of the family was measured anywhere."""
    yield from _leave_one_out(group_folds([sample.family for sample in samples], FOLDS))


def unseen_device(samples: Sequence[Sample]) -> Iterator[tuple[Indices, Indices]]:
    """Nothing was measured on the device, whose peak and bandwidth are published; the model was measured elsewhere."""
    names, codes = np.unique([sample.device for sample in samples], return_inverse=True)
    if len(names) > 1:
        for train, test in _leave_one_out(codes):
            if has_known_rates(samples[test[0]]):
                yield train, test


def unseen_both(samples: Sequence[Sample]) -> Iterator[tuple[Indices, Indices]]:
    """Neither the device nor the model's family."""
    families = group_folds([sample.family for sample in samples], FEWER_FOLDS)
    for train, test in unseen_device(samples):
        for fold in np.unique(families[test]):
            yield train[families[train] != fold], test[families[test] == fold]


def few_shot(samples: Sequence[Sample]) -> Iterator[tuple[Indices, Indices]]:
    """As unseen hardware, but ten cases of the device were measured: drawn at random, anew for each part of the others,
    since much depends on which ten."""
    chance = np.random.default_rng(_SEED)
    for train, test in unseen_device(samples):
        for part in np.array_split(chance.permutation(test), DRAWS if len(test) > DRAWS * FEW_SHOT_SAMPLES else 1):
            rest = np.setdiff1d(test, part) if len(part) < len(test) else part
            drawn = chance.permutation(rest)[:FEW_SHOT_SAMPLES]
            left = np.setdiff1d(part, drawn)
            if len(left):  # of a device with ten figures or fewer nothing is left to ask about
                yield np.concatenate([train, drawn]), left


def sister_device(samples: Sequence[Sample]) -> Iterator[tuple[Indices, Indices]]:
    """The same work was measured in the same way on another device of the same kind; other families on this one."""
    families = group_folds([sample.family for sample in samples], FEWER_FOLDS)
    _, devices = np.unique([sample.device for sample in samples], return_inverse=True)
    places = defaultdict(set)
    for sample in samples:
        places[_run_key(sample)].add(sample.device)
    # Fold and device together number the round: each device misses each fold once.
    for train, test in _leave_one_out((families + devices) % FEWER_FOLDS):
        kept = [i for i in test if len(places[_run_key(samples[i])]) > 1]
        if kept:
            yield train, np.array(kept)


def _run_key(sample: Sample) -> tuple[object, ...]:
    way = (
        sample.kind,
        sample.hardware,
        sample.devices,
        sample.backend,
        sample.precision,
        sample.layout,
        sample.compiler,
    )
    return (*sample.shape, *way, str(sample.version))


SPLITS: dict[str, Split] = {
    "random": random_split,
    "unseen family": unseen_family,
    "unseen hardware": unseen_device,
    "unseen hardware + 10": few_shot,
    "both unseen": unseen_both,
    "sister device": sister_device,
}


def group_folds(groups: Sequence[str], count: int) -> Indices:
    """A fold per case, groups whole: the largest group first, each into the fold with the fewest cases so far."""
    sizes = Counter(groups)
    load = [0] * min(len(sizes), count)
    fold_of = {}
    for name in sorted(sizes, key=lambda n: (-sizes[n], n)):
        fold_of[name] = load.index(min(load))
        load[fold_of[name]] += sizes[name]
    return np.array([fold_of[name] for name in groups], dtype=np.int64)


def _leave_one_out(codes: npt.NDArray[np.integer]) -> Iterator[tuple[Indices, Indices]]:
    for code in np.unique(codes):
        yield np.flatnonzero(codes != code), np.flatnonzero(codes == code)
