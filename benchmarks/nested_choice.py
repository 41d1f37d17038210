"""Optimism of the predictor's settings, which were chosen on the splits that they are judged by.

Nested cross-validation chooses a setting again for each training set, by inner splits of that set alone, with the other
settings as they are. Its error stands beside the error of each value in all folds, whose least is the choice with
hindsight. It takes half an hour of one core.

It needs a folder of timm's tables and LLM-Inference-Bench (default: ../shared/data/perf beside the repository).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from accel_platform.events import EventLog
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.reader import Reader
from migrations.pipeline.importer import migrate
from predictor.calibration import cv_splits
from predictor.data.dataset import load_training_set
from predictor.data.samples import Sample
from predictor.models import few_shot, gaussian_process, latency_model, residual_trees
from predictor.models.gaussian_process import ArchitectureGP
from predictor.models.latency_model import LatencyModel, log_latency

Array = npt.NDArray[np.float64]
DATA = Path(__file__).parents[2] / "shared" / "data" / "perf"
Folds = list[tuple[list[Sample], list[Sample]]]
"""Pairs of a few samples of a device, where there are any, and the samples to predict."""
SETTINGS: dict[str, tuple[Any, str, tuple[Any, ...]]] = {
    "doubt": (latency_model, "_PRIOR_WEIGHT", (0.0, math.exp(-6), math.exp(-4), math.exp(-3), math.exp(-2))),
    "stretch": (few_shot, "_STRETCH_STD", (0.0, 0.1, 0.2, 0.3)),
    "leaves": (residual_trees, "_LEAF_SHARE", (20, 40, 80)),
    "ridge": (residual_trees, "_GENERALIST_RIDGE", (1.0, 3.0, 10.0)),
    "reach": (gaussian_process, "_LENGTH_SCALE", (2.0, 3.0, 4.5)),
    "vendors": (None, "vendor", (False, True)),
}
OF_TREES = ("leaves", "ridge", "vendors")
"""Settings that trees are grown with: the others change the predictions of the same trees."""
STUDIES = (
    ("generation", "unseen hardware", "vendors"),
    ("generation", "unseen hardware", "doubt"),
    ("generation", "sister device", "doubt"),
    ("generation", "unseen hardware + 10", "stretch"),
    ("inference", "unseen hardware", "doubt"),
    ("inference", "sister device", "doubt"),
    ("inference", "unseen hardware + 10", "stretch"),
    ("inference", "unseen family", "reach"),
    ("generation", "unseen hardware", "leaves"),
    ("inference", "unseen hardware", "leaves"),
    ("generation", "unseen hardware", "ridge"),
    ("inference", "unseen hardware", "ridge"),
)
"""Mode, split and setting."""


def split_samples(split: str, samples: Sequence[Sample]) -> Iterator[tuple[list[Sample], Folds]]:
    """Yield each training set with its folds: folds that differ in the ten samples of a device share one."""
    by_training: dict[tuple[int, ...], Folds] = defaultdict(list)
    for train, test in cv_splits.SPLITS[split](samples):
        few = {samples[test[0]].device} if split == "unseen hardware + 10" else set()
        training = tuple(i for i in train.tolist() if samples[i].device not in few)
        ten = [samples[i] for i in train.tolist() if samples[i].device in few]
        by_training[training].append((ten, [samples[i] for i in test.tolist()]))
    for training, folds in by_training.items():
        yield [samples[i] for i in training], folds


def log_errors(setting: str, training: list[Sample], folds: Folds) -> list[Array]:
    """Return predicted minus true log latency, for each value of the setting."""
    module, name, values = SETTINGS[setting]
    same_trees = None if setting in OF_TREES else LatencyModel(training)
    errors = []
    before = getattr(module, name) if module else None
    for value in values:
        hidden: dict[str, Any] = {"vendor": ""} if module is None and not value else {}
        if module:
            setattr(module, name, value)
        model = same_trees or LatencyModel([replace(sample, **hidden) for sample in training])
        if setting == "reach":
            model._architecture_gp = ArchitectureGP(model.known_samples, model._logs, model._analytical)
        parts = []
        for ten, test in folds:
            model.adapt(ten)
            parts.append(model.predict([replace(sample, **hidden) for sample in test]).logs - log_latency(test))
        errors.append(np.concatenate(parts))
    if module:
        setattr(module, name, before)
    return errors


def choose_nested(mode: str, split: str, setting: str, samples: list[Sample]) -> dict[str, Any]:
    """Return the median errors in percent of the nested choice and of each value in all folds."""
    values = SETTINGS[setting][2]
    outer: list[list[Array]] = [[] for _ in values]
    nested: list[Array] = []
    chosen: Counter[str] = Counter()
    for training, folds in split_samples(split, samples):
        inner = [log_errors(setting, *inner_split) for inner_split in split_samples(split, training)]
        by_value = list(zip(*inner, strict=True))
        best = int(np.argmin([_median_percent(errors) for errors in by_value])) if inner else len(values) // 2
        chosen[f"{values[best]:.3g}" if inner else "nothing to choose by"] += 1
        errors = log_errors(setting, training, folds)
        for of_value, error in zip(outer, errors, strict=True):
            of_value.append(error)
        nested.append(errors[best])
    return {
        "dataset": mode,
        "split": split,
        "setting": setting,
        "nested_percent": round(_median_percent(nested), 2),
        "throughout_percent": {
            f"{value:.3g}": round(_median_percent(errors), 2) for value, errors in zip(values, outer, strict=True)
        },
        "chosen": dict(chosen),
    }


def _median_percent(errors: Sequence[Array]) -> float:
    return 100 * float(np.median(np.abs(np.expm1(-np.concatenate(errors)))))


def load_samples(directory: Path) -> list[Sample]:
    with tempfile.TemporaryDirectory() as home:
        settings = Settings(home=Path(home), log_uri=None)
        migrate([directory], EventLog.open(settings))
        refresh(settings)
        return load_training_set(Reader(settings)).measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", nargs="?", type=Path, default=DATA, help="files that `accel migrate` reads")
    samples = load_samples(parser.parse_args().dataset)
    if not samples:
        sys.exit("no usable figures there")
    # Ten folds of ten would take hours; phones with a handful of figures each have no device to hold out in turn.
    cv_splits.FOLDS = 5
    for mode, split, setting in STUDIES:
        of_mode = [s for s in samples if s.mode == mode and (mode != "inference" or s.backend == "pytorch")]
        print(json.dumps(choose_nested(mode, split, setting, of_mode)), flush=True)


if __name__ == "__main__":
    main()
