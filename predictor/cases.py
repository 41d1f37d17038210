"""Published figures as cases to learn from and be judged on: what was run, where, how, and how long a batch took.

A case is made of a usable result. What the work costs comes from what the files say of the model (timm writes
multiply-adds and activations), or from the published config of a decoder (`decoders.csv`). Nothing is fitted here.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from accel_platform.hardware.catalog import DeviceSpec, find_spec
from accel_platform.precisions import PRECISIONS
from accel_platform.warehouse.query import Reader
from predictor.blocks import family_of

_ACTIVATION_BYTES = {"amp": 2, "float16": 2, "bfloat16": 2, "float32": 4}
_HALF_UNLESS_STATED = 2
"""Bytes of a decoder's weight where a file states no precision: published checkpoints are 16 bits wide."""


@dataclass(frozen=True)
class Work:
    """What one batch asks of a device."""

    parameters: float
    flops: float
    activation_bytes: float
    """Activations written (vision), or keys and values read (decoders)."""
    weight_bytes: float
    """Weights read: once, or once per generated token."""
    steps: float
    """Passes through the network, each with its launches."""


@dataclass(frozen=True)
class Case:
    """One figure. `setting` holds what a figure depends on beside model, batch and silicon, as names or numbers."""

    model: str
    family: str
    dataset: str
    mode: str
    batch_size: int
    size: float
    """Pixels along an edge, or tokens in."""
    work: Work
    hardware: str
    kind: str
    """Of silicon: gpu, cpu or npu; knowledge of one device helps with another of its kind."""
    device: str
    devices: int
    peak_flops: float
    bandwidth: float
    backend: str
    precision: str
    layout: str
    compiler: str
    version: float
    latency_ms: float

    @property
    def setting(self) -> str:
        """All that one benchmark campaign keeps fixed, as one name."""
        return f"{self.devices} {self.device} {self.backend} {self.layout} {self.compiler} {self.version}"

    @property
    def shape(self) -> tuple[str, str, int, float]:
        """Equal for the same work done elsewhere."""
        return self.model, self.mode, self.batch_size if self.mode == "generation" else 0, self.size


_QUERY = """
SELECT r.model_id, r.model_family, r.hardware, r.backend, coalesce(r.device_name, r.device_id) AS device, r.mode,
    r.precision, r.batch_size, r.sequence_length, r.output_tokens, r.source_path,
    coalesce(r.latency_p50_ms, r.latency_mean_ms) AS latency_ms,
    e.payload->'$.original' AS original, e.payload->'$.environment' AS environment
FROM usable_results AS r JOIN events AS e ON e.event_id = r.event_id
WHERE r.batch_size IS NOT NULL AND coalesce(r.latency_p50_ms, r.latency_mean_ms) > 0
    AND r.mode IN ('inference', 'generation') AND coalesce(r.processes, 1) = 1
ORDER BY ALL
"""


def load_cases(reader: Reader) -> tuple[list[Case], dict[str, int]]:
    """Every usable figure whose work and device are known, and how many were left out, by reason."""
    rows = reader.rows(_QUERY)
    for row in rows:
        row["original"] = json.loads(row["original"] or "{}")
        row["environment"] = json.loads(row["environment"] or "{}")
    stated = _stated_costs(rows)
    cases: list[Case] = []
    skipped: Counter[str] = Counter()
    for row in rows:
        made = _case(row, stated)
        if isinstance(made, Case):
            cases.append(made)
        else:
            skipped[made] += 1
    return cases, dict(sorted(skipped.items()))


def _case(row: dict[str, Any], stated: dict[tuple[str, Any], tuple[float, float, float]]) -> Case | str:
    original, environment = row["original"], row["environment"]
    settings = environment.get("settings", {})
    name = str(original.get("model") or row["model_id"])
    if row["device"] is None:
        return "device not named"
    devices, spec = _silicon(row["device"])
    if spec is None:
        return "device not in the spec sheet"
    precision = row["precision"] or "unstated"
    if row["mode"] == "generation":
        work = _generation(name, row, precision)
    else:
        work = _pass(stated.get((name, _number(original.get("image_size")))), row["batch_size"], precision)
    if work is None:
        return "cost of the model unknown"
    wide = _ACTIVATION_BYTES.get(precision, _HALF_UNLESS_STATED) == 4
    peak = spec.peak_fp32_tflops if wide or spec.peak_fp16_tensor_tflops is None else spec.peak_fp16_tensor_tflops
    if peak is None or spec.bandwidth_gb_s is None:
        return f"peak or bandwidth of {spec.name} not published"
    return Case(
        model=name,
        family=family_of(name) if row["mode"] == "inference" else name,
        dataset=_dataset(row, original),
        mode=row["mode"],
        batch_size=row["batch_size"],
        size=_number(original.get("image_size")) or _number(row["sequence_length"]) or math.nan,
        work=work,
        hardware=row["hardware"],
        kind=spec.kind,
        device=spec.name,
        devices=devices,
        peak_flops=peak * 1e12 * devices,
        bandwidth=spec.bandwidth_gb_s * 1e9 * devices,
        backend=row["backend"],
        precision=precision,
        layout=str(settings.get("layout") or ""),
        compiler=str(settings.get("compiler") or ""),
        version=_version(environment.get("pytorch")),
        latency_ms=row["latency_ms"],
    )


def _dataset(row: dict[str, Any], original: dict[str, Any]) -> str:
    """Cases that are judged together: figures of one kind of benchmark."""
    return "vision" if original.get("gmacs") or row["mode"] == "inference" else "generation"


def _stated_costs(rows: Iterable[dict[str, Any]]) -> dict[tuple[str, Any], tuple[float, float, float]]:
    """Parameters, multiply-adds and activations of one item, by model and image size: what one file says of a model
    holds for it in all."""
    costs = {}
    for row in rows:
        said = row["original"]
        parameters, gmacs, macts = (_number(said.get(key)) for key in ("parameters_millions", "gmacs", "macts"))
        if parameters and gmacs and macts:
            key = (str(said.get("model")), _number(said.get("image_size")))
            costs[key] = (parameters * 1e6, gmacs * 1e9, macts * 1e6)
    return costs


def _pass(cost: tuple[float, float, float] | None, batch: int, precision: str) -> Work | None:
    if cost is None:
        return None
    parameters, macs, activations = cost
    width = _ACTIVATION_BYTES.get(precision, _HALF_UNLESS_STATED)
    return Work(parameters, 2 * macs * batch, activations * width * batch, parameters * width, 1.0)


def _generation(name: str, row: dict[str, Any], precision: str) -> Work | None:
    """A prompt read in one pass, then one pass per token, each of which reads the weights and all keys and values."""
    model = _decoder(name)
    into, out, batch = row["sequence_length"], row["output_tokens"], row["batch_size"]
    if model is None or into is None or out is None:
        return None
    known = PRECISIONS.get(precision)
    width = known.weight_bytes if known else _HALF_UNLESS_STATED
    # Of a mixture of experts a larger batch reads more: each sequence chooses its own.
    share = 1 - (1 - model["active_parameters_b"] / model["parameters_b"]) ** batch
    read = model["parameters_b"] * 1e9 * share
    per_token = 2 * model["layers"] * model["kv_heads"] * model["head_dim"] * _HALF_UNLESS_STATED
    return Work(
        parameters=model["parameters_b"] * 1e9,
        flops=2 * model["active_parameters_b"] * 1e9 * batch * (into + out),
        activation_bytes=per_token * batch * out * (into + out / 2),
        weight_bytes=read * width * out,
        steps=out * model["layers"],
    )


def _decoder(name: str) -> dict[str, float] | None:
    slug = re.sub(r"[^a-z0-9.]+", "-", name.lower().rpartition("/")[2])
    return next((facts for stem, facts in _decoders() if slug.startswith(stem)), None)


@cache
def _decoders() -> tuple[tuple[str, dict[str, float]], ...]:
    text = files(__package__).joinpath("decoders.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    return tuple((row["name"], {k: float(v) for k, v in row.items() if k not in ("name", "source")}) for row in rows)


def _silicon(name: str) -> tuple[int, DeviceSpec | None]:
    """How many of which device: `4 x Nvidia A100 GPU` is four."""
    found = re.match(r"(\d+) x (.+)", name)
    return (int(found[1]), find_spec(found[2])) if found else (1, find_spec(name))


def _number(value: Any) -> float | None:
    """A figure as a file wrote it; None where it wrote none that is finite."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _version(text: Any) -> float:
    """2.4 as 204, 1.13 as 113: in the order of release."""
    found = re.match(r"(\d+)\.(\d+)", str(text))
    return math.nan if found is None else int(found[1]) * 100 + int(found[2])
