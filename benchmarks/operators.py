"""Errors of the operator predictor on whole models, and the share of a newcomer's questions that it answers.

Whole models are those of `predictor/operators/whole_models.csv`, each predicted without its device, then without its
model, then without any newer device. Questions: in an empty home with the shipped packs, before anything is trained.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from accel_platform.events import EventLog
from accel_platform.hardware.catalog import find_spec
from accel_platform.knowledge import adopt_campaigns
from accel_platform.knowledge.kernels import kernel_tables
from accel_platform.knowledge.packs import adopt_packs
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from accel_platform.workloads.build import build_model
from accel_platform.workloads.inputs import make_inputs
from accel_platform.workloads.model_catalog import resolve_model
from accel_platform.workloads.operators import trace_operators
from predictor.advisor.advisor import Advisor
from predictor.operators.fit import HeldOutError, leave_one_device_out, leave_one_model_out, load_whole_models
from predictor.operators.kernels import LARGEST_PRODUCTS, load_kernels
from predictor.operators.predictor import shipped_predictor
from predictor.schemas.requests import RecommendQuery

MODELS = ("bert-large", "bert-base", "resnet50", "vit-large", "whisper-base", "t5-small")
DEVICES = ("RTX 4090", "T4", "A10G", "L4", "H100", "A100", "MI300X")
_NEWER_YEAR = 2020
_TINY: dict[str, dict[str, Any]] = {
    "bert-base": {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 64},
    "gpt2": {"n_embd": 16, "n_head": 2, "vocab_size": 64},
    "vit-base": {
        "hidden_size": 16,
        "num_attention_heads": 2,
        "intermediate_size": 32,
        "image_size": 32,
        "patch_size": 16,
    },
    "t5-small": {"d_model": 16, "d_kv": 8, "num_heads": 2, "d_ff": 32, "vocab_size": 64},
    "resnet-50": {"embedding_size": 2, "hidden_sizes": [4, 4, 4, 4]},
}


def _errors(held_out: Sequence[HeldOutError]) -> list[dict[str, object]]:
    """Return errors in percent by mode, width and device, and over all devices."""
    groups: dict[tuple[str, int, str], list[float]] = defaultdict(list)
    for each in held_out:
        error = 100 * float(np.expm1(each.log_error))
        for device in (each.measured.device.name, "all"):
            groups[each.measured.mode, each.measured.bits, device].append(error)
    return [
        {
            "mode": mode,
            "bits": bits,
            "device": device,
            "models": len(errors),
            "median": round(statistics.median(map(abs, errors)), 1),
            "mean": round(statistics.fmean(map(abs, errors)), 1),
            "bias": round(statistics.median(errors), 1),
        }
        for (mode, bits, device), errors in sorted(groups.items())
    ]


def _is_newer(device: str) -> bool:
    spec = find_spec(device)
    return spec is not None and (spec.release_year or 0) >= _NEWER_YEAR


def whole_models() -> dict[str, list[dict[str, object]]]:
    """Return errors with the device, the model, and all newer devices left out."""
    kernels, models = load_kernels([*kernel_tables(), LARGEST_PRODUCTS]), load_whole_models()
    newer = leave_one_device_out(kernels, models, hide=_is_newer)
    return {
        "device left out": _errors(leave_one_device_out(kernels, models)),
        "model left out": _errors(leave_one_model_out(shipped_predictor().utilization, models)),
        "newer devices left out": _errors([each for each in newer if _is_newer(each.measured.device.name)]),
    }


def host_us_per_operator(rounds: int = 60) -> dict[str, float]:
    """Return the time in which PyTorch computes one operator of tiny layers on one core, by model, in microseconds."""
    import torch

    torch.set_num_threads(1)
    found = {}
    for name, sizes in _TINY.items():
        spec = resolve_model(name)
        tiny = replace(spec, config={**spec.config, **sizes}, sequence_length=8 if spec.sequence_length else None)
        operators = sum(operator.count for operator in trace_operators(tiny).of_two)
        model = build_model(tiny)
        inputs = {key: torch.from_numpy(values) for key, values in make_inputs(tiny, batch_size=1).items()}
        times = []
        with torch.inference_mode():
            for _ in range(rounds):
                started = time.perf_counter()
                model(**inputs)
                times.append(time.perf_counter() - started)
        found[name] = round(1e6 * statistics.median(times) / operators, 1)
    return found


def questions() -> list[dict[str, object]]:
    """Return what a fresh home answers to 42 questions."""
    rows: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="accel-bench-") as directory:
        settings = Settings(home=Path(directory), log_uri=None)
        log = EventLog.open(settings)
        adopt_campaigns(log)
        adopt_packs(log)
        refresh(settings)
        advisor = Advisor(settings)
        for model in MODELS:
            for device in DEVICES:
                query = {"model": model, "batch_size": 8, "hardware": [device]}
                answer = advisor.recommend(RecommendQuery.model_validate(query))
                best = answer.recommendations[0] if answer.recommendations else None
                latency = None if best is None else best.latency_ms
                answered = latency is not None and latency.high_over_low <= 6 and (latency.level or 0) >= 0.8
                rows.append(
                    {
                        "model": model,
                        "device": device,
                        "provenance": None if best is None else best.provenance,
                        "ms": None if latency is None else round(latency.p50, 3),
                        "high/low": None if latency is None else round(latency.high_over_low, 1),
                        "answered": answered,
                    }
                )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    asked = questions()
    answered = sum(bool(row["answered"]) for row in asked)
    if not arguments.json:
        print(f"questions of a fresh home answered, high/low <= 6 at level >= 0.8: {answered} of 42 (reach >= 38)")
    print("Fitting without each device in turn takes 4 to 18 minutes ...", file=sys.stderr)
    errors, host = whole_models(), host_us_per_operator()
    if arguments.json:
        print(json.dumps({"questions": asked, "whole models": errors, "host us per operator": host}, indent=2))
        return
    for left_out, rows in errors.items():
        print(f"whole models, {left_out}: errors in percent")
        for row in rows:
            print("  " + ", ".join(f"{name} {value}" for name, value in row.items()))
    print(f"host time per operator in microseconds: {host}; median {statistics.median(host.values())}")


if __name__ == "__main__":
    main()
