"""Errors of predictions of the GPU campaign: those made before it was measured, and those of the present predictor.

The files of `gpu_predictions/` were written before the measurements, and are never made again. This command predicts
the cells of a measured campaign anew, which is no test of a predictor that has learned from that campaign.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import math
import statistics
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpu_campaign
from accel_platform.analysis.stats.medians import MIN_MEDIAN_SAMPLES, median_ns
from accel_platform.bench.plan.plan import Cell, plan_cells
from accel_platform.errors import NotFound
from accel_platform.events import EventLog
from accel_platform.events.types import ResultRecorded
from accel_platform.hardware.catalog import find_spec
from accel_platform.settings import Settings
from accel_platform.workloads.model_catalog import ModelSpec

if TYPE_CHECKING:
    # Not on hosts that only measure: comparing needs the files alone.
    from predictor.schemas.responses import Interval

FOLDER = Path(__file__).with_name("gpu_predictions")
DEVICES = {"h100": "NVIDIA H100 SXM5 80GB", "h200": "NVIDIA H200 SXM"}
_CELL = ("model_id", "precision", "batch_size", "sequence_length")
"""Fields that tell cells apart."""


def file_of(device: str) -> Path | None:
    """Return the file with the predictions for a device of the spec sheet; None where there is none."""
    key = next((key for key, name in DEVICES.items() if name == device), None)
    return None if key is None else FOLDER / f"{key}.csv.gz"


def _sum_of_operators(model: ModelSpec, cell: Cell, device: str) -> Interval:
    """Return the operator predictor's latency. Raises NotFound where it has none."""
    from predictor.data.traced_models import OWN_SIZES, traced_operators
    from predictor.operators.device_rates import DeviceRates, device_rates
    from predictor.operators.kernels import BITS
    from predictor.operators.predictor import shipped_predictor
    from predictor.operators.tables import operator_tables

    spec = find_spec(device)
    rates = device_rates(spec) if spec is not None else "the device is unknown"
    if cell.precision not in BITS:
        raise NotFound(f"operators are priced in {', '.join(BITS)}, not in {cell.precision}")
    profile = traced_operators(model, cell.sequence_length, OWN_SIZES)
    if isinstance(profile, str) or not isinstance(rates, DeviceRates):
        raise NotFound(profile if isinstance(profile, str) else str(rates))
    tables = operator_tables(profile.at(cell.batch_size))
    [found] = shipped_predictor().predict(tables, [rates], BITS[cell.precision])
    return found.latency_ms


def read(path: Path) -> list[dict[str, str]]:
    """Return the rows of a file of predictions."""
    return list(csv.DictReader(io.StringIO(gzip.decompress(path.read_bytes()).decode())))


def compare(predicted: Iterable[Mapping[str, str]], measured: Iterable[ResultRecorded]) -> dict[str, Any]:
    """Return errors of predictions that were made before: median, share inside the intervals, and the worst cells.

    Only eager cells that were measured without a failure count; an interval is of about 90 %.
    """
    known = {_key(row): row for row in predicted}
    errors: dict[str, list[float]] = defaultdict(list)
    inside: dict[str, list[bool]] = defaultdict(list)
    cells = []
    skipped: Counter[str] = Counter()
    for result in measured:
        if result.choice is not None or result.mode != "inference":
            continue
        row = known.get(_key({name: getattr(result, name) for name in _CELL}))
        if result.status != "ok" or len(result.samples_ns) < MIN_MEDIAN_SAMPLES:
            skipped["failed, or with too few samples"] += 1
        elif row is None or not row["latency_ms"]:
            skipped["not predicted"] += 1
        else:
            got = median_ns(result.samples_ns) / 1e6
            error = math.log(float(row["latency_ms"]) / got)
            within = float(row["low"]) <= got <= float(row["high"])
            for group in ("all", row["precision"], row["modality"], f"batch {row['batch_size']}"):
                errors[group].append(abs(math.expm1(error)))
                inside[group].append(within)
            cells.append({**_cell(row), "predicted_ms": float(row["latency_ms"]), "measured_ms": got, "inside": within})
    groups = {
        name: {
            "cells": len(found),
            "median_error": statistics.median(found),
            "inside_interval": sum(inside[name]) / len(found),
        }
        for name, found in errors.items()
    }
    worst = sorted(cells, key=lambda c: -abs(math.log(c["predicted_ms"] / c["measured_ms"])))
    return {"groups": groups, "worst": worst[:15], "left_out": dict(skipped)}


def _cell(row: Mapping[str, str]) -> dict[str, Any]:
    return {name: row[name] for name in ("model_id", "precision", "batch_size")}


def _key(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple("" if row[name] is None else str(row[name]) for name in _CELL)


def predict_measured(measured: Iterable[ResultRecorded], device: str) -> list[dict[str, str]]:
    """Return rows as `read` does, with the present operator predictor's answers for the measured eager cells."""
    models = {model.model_id: model for model in gpu_campaign.models()}
    rows = []
    for result in measured:
        if result.choice is not None or result.batch_size is None or result.model_id not in models:
            continue
        model = models[result.model_id]
        [cell] = plan_cells([model], ["cuda"], [result.batch_size], precisions=[result.precision])
        row = {name: getattr(result, name) for name in _CELL}
        row |= {"modality": model.modality, "latency_ms": "", "low": "", "high": ""}
        try:
            latency = _sum_of_operators(model, cell, device)
        except NotFound:
            pass
        else:
            row |= {"latency_ms": latency.p50, "low": latency.low, "high": latency.high}
        rows.append({name: "" if value is None else str(value) for name, value in row.items()})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("campaign", type=Path, help="events, such as the reference campaign of an H100")
    parser.add_argument("--device", choices=DEVICES, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(home=Path(folder))
        EventLog.open(settings).adopt(arguments.campaign)
        results = gpu_campaign.results(settings.home)
    compared = compare(predict_measured(results, DEVICES[arguments.device]), results)
    for group, figures in compared["groups"].items():
        error, inside = figures["median_error"], figures["inside_interval"]
        print(f"{group}: {figures['cells']} cells, {error:.1%} off in the median, {inside:.0%} inside")
    for loss in compared["worst"]:
        print(
            ", ".join(f"{name} {value:.4g}" if isinstance(value, float) else str(value) for name, value in loss.items())
        )


if __name__ == "__main__":
    main()
