"""What the predictor says of every cell of the GPU campaign, written before anything was measured, and how it did.

`python benchmarks/gpu_predictions.py write` made the files of `gpu_predictions/`. They are never made again for a
device that was measured since. `judge` tells what the present operator predictor says of the cells of a measured
campaign: no test of it where it has learned from that campaign.
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
from accel_platform.errors import AccelError, NotFound
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
COLUMNS = (
    *("model_id", "modality", "precision", "batch_size", "sequence_length"),
    *("latency_ms", "low", "high", "level", "provenance", "reason"),
)


def file_of(device: str) -> Path | None:
    """Return the file with the predictions for a device of the spec sheet; None where there is none."""
    key = next((key for key, name in DEVICES.items() if name == device), None)
    return None if key is None else FOLDER / f"{key}.csv.gz"


def predict_all(home: Path, device: str) -> list[dict[str, Any]]:
    """Return a row per eager cell; where the predictor abstains, with its reason."""
    from predictor.advisor.advisor import Advisor

    advisor = Advisor(Settings(home=home))
    rows = []
    models = {model.model_id: model for model in gpu_campaign.models()}
    catalog = set(gpu_campaign.catalog_names())
    for group in gpu_campaign.cells("cuda"):
        for cell in group:
            if cell.hardware != "cuda":
                continue
            model = models[cell.model.model_id]
            row: dict[str, Any] = {
                "model_id": model.model_id,
                "modality": model.modality,
                "precision": cell.precision,
                "batch_size": cell.batch_size,
                "sequence_length": cell.sequence_length,
            }
            try:
                latency = (
                    _ask(advisor, cell, device) if model.model_id in catalog else _sum_of_operators(model, cell, device)
                )
            except (AccelError, ValueError) as error:
                row["reason"] = " ".join(str(error).split())[:160]
            else:
                figures = {"latency_ms": latency.p50, "low": latency.low, "high": latency.high, "level": latency.level}
                row |= {name: float(f"{value:.5g}") for name, value in figures.items()}
                row["provenance"] = "predicted"
            rows.append(row)
    return rows


def _ask(advisor: Any, cell: Cell, device: str) -> Interval:
    """Return what `accel predict` answers for a model of the catalog."""
    from predictor.schemas.requests import PredictQuery

    query = PredictQuery(
        model=cell.model.model_id,
        hardware=device,
        batch_size=cell.batch_size,
        sequence_length=cell.sequence_length,
        precision=cell.precision,
    )
    latency: Interval | None = advisor.predict(query).latency_ms
    if latency is None:
        raise NotFound("no figure")
    return latency


def _sum_of_operators(model: ModelSpec, cell: Cell, device: str) -> Interval:
    """Return the same for a model of the campaign's own, as `accel predict` does once a run has described it."""
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


def write(rows: Iterable[Mapping[str, Any]], path: Path) -> None:
    """Write rows as a compressed CSV; equal rows give equal bytes."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))


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
        row = known.get(_key({name: getattr(result, name) for name in COLUMNS[:5] if name != "modality"}))
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
    names = ("model_id", "precision", "batch_size", "sequence_length")
    return tuple("" if row[name] is None else str(row[name]) for name in names)


def predict_measured(measured: Iterable[ResultRecorded], device: str) -> list[dict[str, str]]:
    """Return rows as `read` does, of what the present operator predictor says of the measured eager cells."""
    models = {model.model_id: model for model in gpu_campaign.models()}
    rows = []
    for result in measured:
        if result.choice is not None or result.batch_size is None or result.model_id not in models:
            continue
        model = models[result.model_id]
        [cell] = plan_cells([model], ["cuda"], [result.batch_size], precisions=[result.precision])
        row = {name: getattr(result, name) for name in COLUMNS[:5] if name != "modality"}
        row |= {"modality": model.modality, "latency_ms": "", "low": "", "high": ""}
        try:
            latency = _sum_of_operators(model, cell, device)
        except NotFound:
            pass
        else:
            row |= {"latency_ms": latency.p50, "low": latency.low, "high": latency.high}
        rows.append({name: "" if value is None else str(value) for name, value in row.items()})
    return rows


def _judge(campaign: Path, device: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(home=Path(folder))
        EventLog.open(settings).adopt(campaign)
        results = gpu_campaign.results(settings.home)
    compared = compare(predict_measured(results, device), results)
    for group, figures in compared["groups"].items():
        error, inside = figures["median_error"], figures["inside_interval"]
        print(f"{group}: {figures['cells']} cells, {error:.1%} off in the median, {inside:.0%} inside")
    for loss in compared["worst"]:
        print(
            ", ".join(f"{name} {value:.4g}" if isinstance(value, float) else str(value) for name, value in loss.items())
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="what", required=True)
    writing = commands.add_parser("write", help="write the predictions of every cell")
    writing.add_argument("--home", type=Path, required=True, help="a home with `accel knowledge add --all`")
    writing.add_argument("--device", choices=DEVICES, action="append")
    judging = commands.add_parser("judge", help="compare the present predictor with a measured campaign")
    judging.add_argument("campaign", type=Path, help="events, such as the reference campaign of an H100")
    judging.add_argument("--device", choices=DEVICES, required=True)
    arguments = parser.parse_args()
    if arguments.what == "judge":
        _judge(arguments.campaign, DEVICES[arguments.device])
        return
    for key in arguments.device or DEVICES:
        path = FOLDER / f"{key}.csv.gz"
        if path.exists():
            raise SystemExit(f"{path} was written before, and predictions are not made again.")
        rows = predict_all(arguments.home, DEVICES[key])
        write(rows, path)
        answered = sum("latency_ms" in row for row in rows)
        print(f"{path}: {answered} of {len(rows)} cells predicted, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
