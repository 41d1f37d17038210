"""What it is worth that settings of the learner were chosen while looking at the splits they are judged on: each is
chosen again for every round, by the same split of that round's training part alone, and the round is asked with that.

A setting is looked at by itself, the others as they are. Beside the error with the nested choice stand the errors with
each value throughout: the least of them is what choosing with hindsight gives. Takes half an hour of one core.

Needs a folder of timm's tables and LLM-Inference-Bench (default: ../shared/data/perf beside the repository).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
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
Rounds = list[tuple[list[Sample], list[Sample]]]
"""A few figures of a device, where there are any, and what is asked."""
SETTINGS: dict[str, tuple[Any, str, tuple[Any, ...]]] = {
    "doubt": (latency_model, "_PRIOR_WEIGHT", (0.0, math.exp(-6), math.exp(-4), math.exp(-3), math.exp(-2))),
    "stretch": (few_shot, "_STRETCH_STD", (0.0, 0.1, 0.2, 0.3)),
    "leaves": (residual_trees, "_LEAF_SHARE", (20, 40, 80)),
    "ridge": (residual_trees, "_GENERALIST_RIDGE", (1.0, 3.0, 10.0)),
    "reach": (gaussian_process, "_LENGTH_SCALE", (2.0, 3.0, 4.5)),
    "vendors": (None, "vendor", (False, True)),
}
GROWN = ("leaves", "ridge", "vendors")
"""Settings that trees are grown with: the others change an answer of the same trees."""
ASKED = (
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


def rounds_of(split: str, cases: Sequence[Sample]) -> Iterator[tuple[list[Sample], Rounds]]:
    """Per training set, its rounds: draws of ten figures share one."""
    by_known: dict[tuple[int, ...], Rounds] = defaultdict(list)
    for train, test in cv_splits.SPLITS[split](cases):
        few = {cases[test[0]].device} if split == "unseen hardware + 10" else set()
        known = tuple(i for i in train.tolist() if cases[i].device not in few)
        ten = [cases[i] for i in train.tolist() if cases[i].device in few]
        by_known[known].append((ten, [cases[i] for i in test.tolist()]))
    for known, rounds in by_known.items():
        yield [cases[i] for i in known], rounds


def errors(setting: str, known: list[Sample], rounds: Rounds) -> list[Array]:
    """With each value of the setting, predicted less true in logs."""
    module, name, values = SETTINGS[setting]
    told = None if setting in GROWN else LatencyModel(known)
    found = []
    before = getattr(module, name) if module else None
    for value in values:
        blind: Callable[[Sample], Sample] = (
            (lambda c: replace(c, vendor="")) if (module, value) == (None, False) else _same
        )
        if module:
            setattr(module, name, value)
        model = told or LatencyModel([*map(blind, known)])
        if setting == "reach":
            model._architecture_gp = ArchitectureGP(model.known_samples, model._logs, model._analytical)
        parts = []
        for ten, asked in rounds:
            model.adapt(ten)
            parts.append(model.predict([*map(blind, asked)]).logs - log_latency(asked))
        found.append(np.concatenate(parts))
    if module:
        setattr(module, name, before)
    return found


def nested(mode: str, split: str, setting: str, cases: list[Sample]) -> dict[str, Any]:
    values = SETTINGS[setting][2]
    outer: list[list[Array]] = [[] for _ in values]
    chosen_errors: list[Array] = []
    chosen: Counter[str] = Counter()
    for known, rounds in rounds_of(split, cases):
        inner: list[list[Array]] = [[] for _ in values]
        for inner_known, inner_rounds in rounds_of(split, known):
            for kept, told in zip(inner, errors(setting, inner_known, inner_rounds), strict=True):
                kept.append(told)
        best = int(np.argmin([_median(kept) for kept in inner])) if inner[0] else len(values) // 2
        chosen[f"{values[best]:.3g}" if inner[0] else "nothing to choose by"] += 1
        found = errors(setting, known, rounds)
        for kept, error in zip(outer, found, strict=True):
            kept.append(error)
        chosen_errors.append(found[best])
    throughout = {f"{value:.3g}": round(_median(kept), 2) for value, kept in zip(values, outer, strict=True)}
    asked = {"dataset": mode, "split": split, "setting": setting}
    return {
        **asked,
        "nested_percent": round(_median(chosen_errors), 2),
        "throughout_percent": throughout,
        "chosen": dict(chosen),
    }


def _median(errors: list[Array]) -> float:
    return 100 * float(np.median(np.abs(np.expm1(-np.concatenate(errors)))))


def _same(case: Sample) -> Sample:
    return case


def cases_of(directory: Path) -> list[Sample]:
    with tempfile.TemporaryDirectory() as place:
        settings = Settings(home=Path(place), log_uri=None)
        migrate([directory], EventLog.open(settings))
        refresh(settings)
        return load_training_set(Reader(settings)).measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", nargs="?", type=Path, default=DATA, help="files that `accel migrate` reads")
    cases = cases_of(parser.parse_args().dataset)
    if not cases:
        sys.exit("no usable figures there")
    # Ten folds of ten would take hours; phones with a handful of figures each have no device to hold out in turn.
    cv_splits.FOLDS = 5
    for mode, split, setting in ASKED:
        here = [c for c in cases if c.mode == mode and (mode != "inference" or c.backend == "pytorch")]
        json.dump(nested(mode, split, setting, here), sys.stdout)
        print(flush=True)


if __name__ == "__main__":
    main()
