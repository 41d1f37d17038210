"""Measured loads: rows of others who served a model, as deployments and loads with their times."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.parquet as pq

from accel_platform.backend_names import canonical_backend
from accel_platform.hardware.catalog import DeviceSpec, find_spec
from accel_platform.knowledge.packs import PACKS
from accel_platform.warehouse.reader import Reader
from predictor.serving.loads import ENGINES, Deployment, Engine, Load, resolve_quantization
from predictor.serving.models import find_served_model

_SOURCES = ("aiconfigurator", "llm-inference-bench", "llm-pilot")
_IN_TABLES = f"""
SELECT CAST(event_id AS VARCHAR) AS event_id, CAST(payload AS VARCHAR) AS payload,
    starts_with(usable_results.source, 'pack:') AS from_pack
FROM usable_results JOIN events USING (event_id)
WHERE mode = 'generation' AND backend IN {ENGINES}
"""
_IN_ONE_HOST = (1, 2, 4, 8, 16)
"""Devices over which attention heads divide. Rows of others (20, 28, 72, ...) are of disaggregated serving, though they
do not say so."""


@dataclass(frozen=True)
class MeasuredLoad:
    """One measured row."""

    deployment: Deployment
    load: Load
    model: str
    token_ms: float
    """Milliseconds per output token after the first; of a batch those of the whole per output token of a request."""
    first_ms: float
    """Milliseconds to the first token; NaN where nobody timed it."""
    event_id: str
    from_pack: bool = True
    """False for a load that was measured or imported here."""


def load_measured_loads() -> list[MeasuredLoad]:
    """Return the shipped rows of aggregated serving, each once, however many exports of it there are."""
    tables = (pq.read_table(PACKS / source / "results.parquet", columns=["event_id", "payload"]) for source in _SOURCES)
    return _distinct(row for table in tables for row in table.to_pylist())


def measured_loads_in(reader: Reader) -> list[MeasuredLoad]:
    """Return the usable rows of the tables, those of shipped packs and of files that were imported."""
    return _distinct(reader.rows(_IN_TABLES))


def _distinct(rows: Iterable[Mapping[str, Any]]) -> list[MeasuredLoad]:
    found = (
        measured_load(str(row["event_id"]), json.loads(row["payload"]), from_pack=row.get("from_pack", True))
        for row in rows
    )
    # Those that name the engine's version go first, because the others are copies of them.
    known = sorted(filter(None, found), key=lambda row: row.deployment.engine_version is None)
    return list({_identity(row): row for row in reversed(known)}.values())[::-1]


def measured_load(event_id: str, payload: Mapping[str, Any], *, from_pack: bool = True) -> MeasuredLoad | None:
    """Return the row of an imported result; None where it is of another kind, or says too little."""
    original = payload.get("original") or {}
    decoder = find_served_model(str(original.get("model")))
    engine = canonical_backend(str(payload.get("backend")))
    length, out = payload.get("sequence_length"), payload.get("output_tokens")
    if decoder is None or engine not in ENGINES or not length or not out:
        return None
    readers = (_planned, _whole_batch, _load_test, _client_report)
    found = next(filter(None, (read(payload, original) for read in readers)), None)
    if found is None or found.device is None or found.devices not in _IN_ONE_HOST:
        return None
    precision = payload.get("precision")
    kept = (
        precision
        if precision and precision != "unstated"
        else "fp8"
        if "fp8" in original["model"].casefold()
        else "bf16"
    )
    quantization = resolve_quantization(kept)
    return MeasuredLoad(
        Deployment(
            decoder, found.device, engine, quantization, found.devices, found.copies, engine_version=found.version
        ),
        Load(float(found.users), float(length), float(out), batch=found.batch),
        model=model_family(str(original["model"])),
        token_ms=float(found.token_ms),
        first_ms=float(found.first_ms),
        event_id=event_id,
        from_pack=from_pack,
    )


@dataclass(frozen=True)
class _Stated:
    """What a row says in the way of its tool."""

    device: DeviceSpec | None
    devices: int
    users: float
    token_ms: float
    first_ms: float = math.nan
    copies: int = 1
    batch: bool = False
    version: str | None = None


def _planned(payload: Mapping[str, Any], original: Mapping[str, Any]) -> _Stated | None:
    """Return what aiconfigurator's rows say."""
    stated: dict[str, Any] = original.get("configuration") or {}
    first, token = payload.get("time_to_first_token_ms"), payload.get("time_per_output_token_ms")
    if stated.get("mode") != "agg" or not first or not token:
        return None
    devices, copies = _devices(stated)
    return _Stated(
        find_spec(re.sub(r"^(.*)_sxm$", r"\1 SXM", str(stated.get("system")))),
        devices,
        original.get("concurrency") or payload["batch_size"],
        token,
        first,
        copies,
        version=stated.get("backend_version"),
    )


def _whole_batch(payload: Mapping[str, Any], original: Mapping[str, Any]) -> _Stated | None:
    """Return what rows of LLM-Inference-Bench say: seconds of a whole batch."""
    latency = payload.get("latency_mean_ms")
    if (original.get("units") or {}).get("Latency") != "s per batch" or not latency or not payload.get("batch_size"):
        return None
    return _Stated(
        find_spec(str(original.get("hardware"))),
        original.get("devices") or 1,
        payload["batch_size"],
        latency / payload["output_tokens"],
        batch=True,
    )


def _load_test(payload: Mapping[str, Any], original: Mapping[str, Any]) -> _Stated | None:
    """Return what load tests of LLM-Pilot say. Their time to the first token leaves the prompt out."""
    token, users = payload.get("time_per_output_token_ms"), original.get("concurrency")
    if payload.get("backend") != "tgis" or not token or not users:
        return None
    return _Stated(find_spec(str(original.get("hardware"))), original.get("devices") or 1, users, token)


def _client_report(payload: Mapping[str, Any], original: Mapping[str, Any]) -> _Stated | None:
    """Return what a load generator says of so many requests under way at once, where it names the device."""
    first, token = payload.get("time_to_first_token_ms"), payload.get("time_per_output_token_ms")
    users, hardware = original.get("concurrency"), payload.get("device_name") or original.get("hardware")
    if original.get("configuration") or not first or not token or not users:
        return None
    environment, engine = payload.get("environment") or {}, canonical_backend(str(payload.get("backend")))
    settings = environment.get("settings") or {}
    copies = max(1, int(settings.get("data_parallel_size") or settings.get("dp_size") or 1))
    split = settings.get("tensor_parallel_size") or settings.get("tp_size")
    devices = int(settings.get("devices") or copies * int(split or 1))
    return _Stated(
        find_spec(re.sub(r"^\d+ x ", "", str(hardware))),
        devices,
        users,
        token,
        first,
        min(copies, devices),
        version=next((stated for name, stated in environment.items() if canonical_backend(name) == engine), None),
    )


def _devices(stated: Mapping[str, Any]) -> tuple[int, int]:
    """Return the devices of one copy and how many of them attend apart.

    Exports count differently. The newest put the number of devices into the row's id (`tp4_ep4`); older ones multiply
    the sizes of attention and experts into `tp_size`, so that TP 8 with EP 8 reads 64.
    """
    tensor, copies, experts, shards = (
        max(1, int(float(stated.get(name) or 1)))
        for name in ("tp_size", "attention_dp_size", "moe_ep_size", "moe_tp_size")
    )
    row_id = str(stated.get("id"))
    exported = re.search(r"^2026_.*_tp(\d+)_", row_id)
    devices = tensor * copies
    if exported:
        devices = int(exported[1])
    elif copies == tensor > 1 and experts == tensor * copies:
        devices = tensor
    elif re.search(r"_cfg\d+", row_id):
        if copies == 1 and shards == experts > 1 and tensor == shards * experts:
            devices = experts
    else:
        devices = max(devices, shards * experts)
    return devices, min(copies, devices)


def model_family(model: str) -> str:
    """Return the model's architecture and size, so that two ways of keeping it are one model."""
    slug = model.casefold().rpartition("/")[2]
    slug = re.sub(r"[-_](instruct|fp8|nvfp4|hf)\b", "", slug).removeprefix("meta-")
    return re.sub(r"deepseek-(r1|v3(\.1)?)", "deepseek-v3", slug)


def _identity(row: MeasuredLoad) -> tuple[object, ...]:
    where = row.deployment.device.name, row.deployment.engine, row.model
    # Exports of the same request-by-request load count its devices differently.
    devices = row.deployment.devices if row.load.batch else None
    return *where, devices, row.load, f"{row.first_ms:.0f}", round(row.token_ms, 2)


def versions_of(engine: Engine, rows: Iterable[MeasuredLoad]) -> set[str]:
    """Return the versions of an engine that the rows name."""
    versions = {row.deployment.engine_version for row in rows if row.deployment.engine == engine}
    return {version for version in versions if version}


def version_key(version: str) -> tuple[int, ...]:
    """Return the numbers of a version, by which it is older or newer: `0.19.0rc1` is 0, 19, 0, 1."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def groups_of(rows: Iterable[MeasuredLoad]) -> dict[str, list[str]]:
    """Return what each row shares with those to leave out along with it: device, model, engine version, layout."""
    rows = list(rows)
    return {
        "device": [row.deployment.device.name for row in rows],
        "model": [row.model for row in rows],
        "engine version": [f"{row.deployment.engine} {row.deployment.engine_version}" for row in rows],
        "parallelism": [f"{row.deployment.devices} / {row.deployment.attention_copies}" for row in rows],
    }
