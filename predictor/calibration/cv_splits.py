"""Cross-validation splits for evaluation, one per question that an advisor meets.

Each yields pairs of index arrays, training and test. Every sample is tested at most once. Add a split to `SPLITS`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from predictor.data.roofline import has_known_rates
from predictor.data.samples import Sample

Indices = npt.NDArray[np.int64]
Split = Callable[[Sequence[Sample]], Iterator[tuple[Indices, Indices]]]
FOLDS = 10
FEWER_FOLDS = 5
FEW_SHOT_SAMPLES = 10
DRAWS = 5
_SEED = 0


def random_split(samples: Sequence[Sample]) -> Iterator[tuple[Indices, Indices]]:
    """Split at random: the model and the device are known from other figures."""
    yield from _leave_one_out(np.random.default_rng(_SEED).permutation(len(samples)) % FEWER_FOLDS)


def unseen_family(samples: Sequence[Sample]) -> Iterator[tuple[Indices, Indices]]:
    """Split by family: no model of it was measured anywhere."""
    yield from _leave_one_out(group_folds([sample.family for sample in samples], FOLDS))


def unseen_device(samples: Sequence[Sample]) -> Iterator[tuple[Indices, Indices]]:
    """Split by device: its peak and bandwidth are published, and the model was measured elsewhere."""
    names, codes = np.unique([sample.device for sample in samples], return_inverse=True)
    if len(names) > 1:
        for train, test in _leave_one_out(codes):
            if has_known_rates(samples[test[0]]):
                yield train, test


def unseen_both(samples: Sequence[Sample]) -> Iterator[tuple[Indices, Indices]]:
    """Split by device and family: neither was measured."""
    families = group_folds([sample.family for sample in samples], FEWER_FOLDS)
    for train, test in unseen_device(samples):
        for fold in np.unique(families[test]):
            yield train[families[train] != fold], test[families[test] == fold]


def few_shot(samples: Sequence[Sample]) -> Iterator[tuple[Indices, Indices]]:
    """Split as `unseen_device`, with ten samples of the device in the training set.

    They are drawn at random and anew for each part of the others, since much depends on which ten.
    """
    rng = np.random.default_rng(_SEED)
    for train, test in unseen_device(samples):
        for part in np.array_split(rng.permutation(test), DRAWS if len(test) > DRAWS * FEW_SHOT_SAMPLES else 1):
            rest = np.setdiff1d(test, part) if len(part) < len(test) else part
            drawn = rng.permutation(rest)[:FEW_SHOT_SAMPLES]
            tested = np.setdiff1d(part, drawn)
            if len(tested):  # empty for a device with ten figures or fewer
                yield np.concatenate([train, drawn]), tested


def sister_device(samples: Sequence[Sample]) -> Iterator[tuple[Indices, Indices]]:
    """Split by family and device: the run was measured on another device of the kind, other families on this one."""
    families = group_folds([sample.family for sample in samples], FEWER_FOLDS)
    _, devices = np.unique([sample.device for sample in samples], return_inverse=True)
    devices_of_run = defaultdict(set)
    for sample in samples:
        devices_of_run[_run_key(sample)].add(sample.device)
    # Fold plus device is the round's number, so that each device misses each fold once.
    for train, test in _leave_one_out((families + devices) % FEWER_FOLDS):
        comparable = [i for i in test if len(devices_of_run[_run_key(samples[i])]) > 1]
        if comparable:
            yield train, np.array(comparable)


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
    return (*sample.workload_key, *way, str(sample.version))


SPLITS: dict[str, Split] = {
    "random": random_split,
    "unseen family": unseen_family,
    "unseen hardware": unseen_device,
    "unseen hardware + 10": few_shot,
    "both unseen": unseen_both,
    "sister device": sister_device,
}


def group_folds(groups: Sequence[str], count: int) -> Indices:
    """Return a fold per sample with whole groups: the largest first, each into the smallest fold so far."""
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
