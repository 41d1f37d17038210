"""Training set: all usable results of the warehouse as samples, and all cells that failed.

The cost of a model comes from the result's own file if it states one, as timm's do. Otherwise it comes from the
warehouse's table of models or the model's config.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from statistics import median
from typing import Any, NamedTuple

from accel_platform.errors import InvalidInput
from accel_platform.knowledge.cards import SOURCE_PREFIX
from accel_platform.warehouse.reader import Reader
from accel_platform.workloads.kv_cache import Decoder
from predictor.data.evidence import LATENCY, KnownDevice, Target, observed_devices
from predictor.data.model_resolution import find_spec_by_id
from predictor.data.roofline import waits_for_host
from predictor.data.samples import (
    MAX_SPEED_LIMIT_RATIO,
    Sample,
    Setup,
    Workload,
    device_spec_for,
    find_published_decoder,
    finite_float,
    make_sample,
    parse_device_name,
    speed_limit_ratio,
)
from predictor.data.traced_models import ItemCost, lookup_decoder, lookup_item_cost

_MEMORY_FAILURES = ("out_of_memory", "killed")
_CELL = (
    "model_id, model_family, hardware, backend, device_id, device_name, mode, precision, batch_size, sequence_length"
)
_QUERY = f"""
SELECT {_CELL}, output_tokens, provenance, r.source, failure_class, status, memory_peak_mib,
    {LATENCY} AS latency_ms,
    e.payload->'$.original' AS original, e.payload->'$.environment' AS environment, r.recorded_at
FROM {{table}} AS r JOIN events AS e ON e.event_id = r.event_id
WHERE batch_size IS NOT NULL AND coalesce(processes, 1) = 1 AND {{condition}}
-- Only the newest fingerprint of a machine of ours counts, because a change makes it another machine.
QUALIFY fingerprint IS NULL OR provenance <> 'measured'
    OR fingerprint = arg_max(fingerprint, r.recorded_at) OVER (PARTITION BY {_CELL.replace("model_family, ", "")})
ORDER BY ALL
"""


class StatedCost(NamedTuple):
    """Cost of one item as a file states it, and what it calls the model."""

    name: str
    cost: ItemCost


@dataclass(frozen=True)
class TrainingSet:
    """Measured samples and failed cells, in an order that depends only on the evidence."""

    measured: list[Sample]
    failed: list[tuple[Sample, str]]
    """Cells that never ran, each once, with the class of its newest failure."""
    skipped: dict[str, int]
    """Figures left out, by reason."""


def load_training_set(reader: Reader) -> TrainingSet:
    """Load the usable results of known cost and device: one sample per configuration, with the median of its runs."""
    models = {row["model_id"]: row for row in reader.rows("SELECT * FROM models ORDER BY model_id")}
    # Also those that are gone, because what was measured on a processor stays true after the host got another.
    devices = {device.target: device for device in observed_devices(reader, gone=True)}
    rows = _rows(reader, "usable_results", f"{LATENCY} > 0")
    stated_costs = _stated_costs(rows)
    runs: dict[tuple[Any, ...], list[Sample]] = defaultdict(list)
    skipped: Counter[str] = Counter()
    for row in rows:
        sample = _sample_from_row(row, stated_costs, models, devices)
        if isinstance(sample, Sample):
            sample = _with_figures(sample, row)
        if (
            isinstance(sample, Sample)
            and row["provenance"] != "measured"
            and speed_limit_ratio(sample, sample.latency_ms) > MAX_SPEED_LIMIT_RATIO
        ):
            sample = "faster than its device at full speed"
        if isinstance(sample, Sample) and row["provenance"] == "measured" and waits_for_host(sample):
            # It still answers for itself; what others publish fills the device, with batches of hundreds.
            sample = "so short that the host set its time"
        if isinstance(sample, Sample):
            runs[sample.configuration()].append(sample)
        else:
            skipped[sample] += 1
    # A cell counts once however often it failed, as one that ran does: else retries would raise the share of failures.
    failed: dict[tuple[Any, ...], tuple[datetime, str, Sample]] = {}
    for row in _rows(reader, "judged_results", "counts AND status = 'failed'"):
        sample = _sample_from_row(row, stated_costs, models, devices)
        if isinstance(sample, Sample) and (cell := sample.configuration()) not in runs:
            kind = row["failure_class"] or "error"
            newest = row["recorded_at"], "out_of_memory" if kind in _MEMORY_FAILURES else kind, sample
            failed[cell] = max(newest, failed.get(cell, newest), key=lambda found: found[:2])
    measured = [_median_sample(samples) for samples in runs.values()]
    return TrainingSet(measured, [(cell, kind) for _, kind, cell in failed.values()], dict(sorted(skipped.items())))


def _rows(reader: Reader, table: str, condition: str) -> list[dict[str, Any]]:
    rows = reader.rows(_QUERY.format(table=table, condition=condition))
    # Thousands of rows share one environment.
    environments = {text: json.loads(text or "{}") for text in {row["environment"] for row in rows}}
    for row in rows:
        row["original"] = json.loads(row["original"] or "{}")
        row["environment"] = environments[row["environment"]]
    return rows


def _median_sample(samples: list[Sample]) -> Sample:
    if len(samples) == 1:
        return samples[0]
    peaks = [sample.memory_peak_mib for sample in samples if not math.isnan(sample.memory_peak_mib)]
    latency = median(sample.latency_ms for sample in samples)
    own = all(sample.own for sample in samples)
    return replace(samples[0], own=own, latency_ms=latency, memory_peak_mib=median(peaks) if peaks else math.nan)


def _sample_from_row(
    row: dict[str, Any],
    stated_costs: Mapping[tuple[str, Any], StatedCost],
    models: Mapping[str, dict[str, Any]],
    devices: Mapping[Target, KnownDevice],
) -> Sample | str:
    original, environment = row["original"], row["environment"]
    settings = environment.get("settings", {})
    device = row["device_id"] or row["device_name"]
    if device is None:
        return "device not named"
    target = Target(row["hardware"], row["backend"], device, row["device_name"] or device)
    count, spec = parse_device_name(str(target.device))
    name = str(original.get("model") or row["model_id"])
    pixels = finite_float(original.get("image_size"))
    stated = stated_costs.get((name, pixels)) or stated_costs.get((row["model_id"], pixels))
    cost = None
    if stated is not None and row["mode"] != "generation":
        name, cost = stated
    decoder = find_published_decoder(name) if row["mode"] == "generation" else None
    # Each published decoder is a family of its own, because they are few.
    family = name if decoder else row["model_family"]
    if cost is None and decoder is None:
        name = row["model_id"]
        try:
            cost, decoder = _lookup_cost(row, models)
        except InvalidInput:
            return "sequence length beyond what the model reads"
    workload = Workload(
        model=name,
        family=family,
        mode=row["mode"],
        batch_size=row["batch_size"],
        size=finite_float(row["sequence_length"]),
        precision=row["precision"],
        cost=cost,
        output_tokens=row["output_tokens"],
        decoder=decoder,
    )
    setup = Setup(
        device=spec if count > 1 and spec is not None else device_spec_for(target, devices),
        hardware=row["hardware"],
        backend=row["backend"],
        devices=count,
        layout=str(settings.get("layout") or ""),
        compiler=str(settings.get("compiler") or ""),
        version=_version_number(environment.get("pytorch")),
    )
    return make_sample(workload, setup)


def _with_figures(sample: Sample, row: dict[str, Any]) -> Sample:
    own, peak = not row["source"].startswith(SOURCE_PREFIX), row["memory_peak_mib"]
    return replace(sample, own=own, latency_ms=row["latency_ms"], memory_peak_mib=math.nan if peak is None else peak)


def _lookup_cost(row: dict[str, Any], models: Mapping[str, dict[str, Any]]) -> tuple[ItemCost | None, Decoder | None]:
    """Return the cost of a model, or its decoder's shape for generation; None for each that is unknown."""
    spec = find_spec_by_id(row["model_id"])
    if row["mode"] == "generation":
        return None, lookup_decoder(row["model_id"], spec, models)
    return lookup_item_cost(row["model_id"], spec, row["sequence_length"], models), None


def _stated_costs(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, Any], StatedCost]:
    """Collect the costs of one item that files state, by model and image size; they hold for all files.

    They are found by a model's name in such a file and by its id, for files that call it otherwise.
    """
    costs: dict[tuple[str, Any], StatedCost] = {}
    for row in rows:
        original = row["original"]
        parameters, gmacs, macts = (
            finite_float(original.get(key)) for key in ("parameters_millions", "gmacs", "macts")
        )
        if parameters and gmacs and macts:
            name, pixels = str(original.get("model")), finite_float(original.get("image_size"))
            stated = StatedCost(name, ItemCost(parameters * 1e6, None, 2e9 * gmacs, None, 4e6 * macts, pixels))
            costs[name, pixels] = stated
            costs.setdefault((row["model_id"], pixels), stated)
    return costs


def _version_number(text: Any) -> float:
    """Return a version as a number in the order of release, 204 for 2.4 and 113 for 1.13; NaN for other text."""
    parts = re.match(r"(\d+)\.(\d+)", str(text))
    return math.nan if parts is None else int(parts[1]) * 100 + int(parts[2])
