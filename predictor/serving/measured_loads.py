"""Measured loads: published and imported results of serving a model, as deployments and loads with their times.

Each tool states a load in its own fields; a reader per tool (`_read_...`) turns them into a `_StatedLoad`.
"""

from __future__ import annotations

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from accel_platform.backend_names import canonical_backend
from accel_platform.hardware.catalog import DeviceSpec, find_spec
from accel_platform.hardware.device_names import split_count
from accel_platform.hardware.instances import result_device_name
from accel_platform.knowledge.packs import PACKS
from accel_platform.warehouse.reader import Reader
from predictor.serving.engines import ENGINES, Engine
from predictor.serving.impossible_loads import are_impossible
from predictor.serving.loads import Deployment, Load
from predictor.serving.models import find_served_model
from predictor.serving.quantization import resolve_quantization
from predictor.serving.slot_waits import slot_waits_ms

_SOURCES = ("aiconfigurator", "llm-inference-bench", "llm-pilot")
"""Packs that the serving predictor learns from. With `inferencex` other GPUs or models came out worse."""
_SINGLE_USER_RATES = Path(__file__).with_name("single_user_rates.csv")
"""Table of llama.cpp's rates on GPUs without HBM. It is no pack, because it lacks lengths, versions and prompts."""
_IN_TABLES = f"""
SELECT CAST(event_id AS VARCHAR) AS event_id, CAST(payload AS VARCHAR) AS payload,
    starts_with(usable_results.source, 'pack:') AS from_pack
FROM usable_results JOIN events USING (event_id)
WHERE mode = 'generation' AND backend IN {ENGINES}
"""
_IN_ONE_HOST = (1, 2, 4, 8, 16)
"""Numbers of devices over which attention heads can be divided.

Rows with other numbers (20, 28, 72, ...) are of disaggregated serving, though they do not state it.
"""
_NEWEST_ID = re.compile(r"^2026_.*_tp(?P<devices>\d+)_")
"""Id of a row in aiconfigurator's newest exports: `2026_04_06_deepseek_r1_..._tp8_ep8_945` states 8 devices."""
_OLDER_ID = re.compile(r"_cfg\d+")
"""Id of a row in its older exports: `dsr1_b200_sglang_fp4_agg_1024x8192_c4_cfg201`."""
_TIMES = ("time_to_first_token_ms", "time_per_output_token_ms")
_REACHED = 0.5
"""Least share of the allowed requests at once that a load must reach. Below it arrivals set the pace, not engines."""


@dataclass(frozen=True)
class MeasuredLoad:
    """One measured load of one deployment, with its times."""

    deployment: Deployment
    load: Load
    model: str
    """Architecture and size, as `model_family` gives them."""
    token_ms: float
    """Milliseconds per output token after the first; for a batch its whole time over the output tokens of a request."""
    first_ms: float
    """Milliseconds to the first token; NaN where nobody timed it."""
    event_id: str
    from_pack: bool = True
    """True for a row of a shipped knowledge pack, False for one that was measured or imported here."""
    slot_wait_ms: float = 0.0
    """Part of `first_ms` that was a wait for a slot of the engine (`slot_waits`)."""
    impossible: bool = False
    """True if it took less time than the devices can take, so that it answers for nothing (`impossible_loads`)."""

    @property
    def first_with_slot_ms(self) -> float:
        """Milliseconds to the first token less the wait for a slot; NaN where that leaves nothing."""
        left = self.first_ms - self.slot_wait_ms
        return left if left > 0 else math.nan


def load_measured_loads() -> list[MeasuredLoad]:
    """Return the shipped rows of aggregated serving. A row that several exports hold is returned once."""
    tables = (pq.read_table(PACKS / source / "results.parquet", columns=["event_id", "payload"]) for source in _SOURCES)
    return [*_distinct(row for table in tables for row in table.to_pylist()), *_single_user_loads()]


def _single_user_loads() -> Iterator[MeasuredLoad]:
    """Yield the rates at which llama.cpp generates for one user. Prompts, timed apart, are of one token."""
    with _SINGLE_USER_RATES.open(encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.DictReader(file)):
            device, decoder = find_spec(row["device"]), find_served_model(row["model"])
            assert device is not None, row
            assert decoder is not None, row
            yield MeasuredLoad(
                Deployment(decoder, device, "llama.cpp", resolve_quantization(row["precision"])),
                Load(1.0, 1.0, float(row["output_tokens"]), batch=True),
                model=model_family(row["model"]),
                token_ms=1e3 / float(row["tokens_per_s"]),
                first_ms=math.nan,
                event_id=f"{row['source']} {number}",
            )


def measured_loads_in(reader: Reader) -> list[MeasuredLoad]:
    """Return the usable rows of the tables: those of knowledge packs and of imported files."""
    return _distinct(reader.rows(_IN_TABLES))


def _distinct(rows: Iterable[Mapping[str, Any]]) -> list[MeasuredLoad]:
    found = (
        measured_load(str(row["event_id"]), json.loads(row["payload"]), from_pack=row.get("from_pack", True))
        for row in rows
    )
    # Of several copies of a row the one that names the engine's version is kept.
    known = sorted(filter(None, found), key=lambda row: row.deployment.engine_version is None)
    distinct = list({_identity(row): row for row in reversed(known)}.values())[::-1]
    judged = zip(distinct, slot_waits_ms(distinct), are_impossible(distinct), strict=True)
    return [replace(row, slot_wait_ms=wait, impossible=impossible) for row, wait, impossible in judged]


def measured_load(event_id: str, payload: Mapping[str, Any], *, from_pack: bool = True) -> MeasuredLoad | None:
    """Return the measured load of an imported result; None if the result is of another kind or incomplete."""
    original = payload.get("original") or {}
    decoder = find_served_model(str(original.get("model")))
    engine = canonical_backend(str(payload.get("backend")))
    length, out = payload.get("sequence_length"), payload.get("output_tokens")
    if decoder is None or engine not in ENGINES or not length or not out:
        return None
    readers = (_read_aiconfigurator, _read_inference_bench, _read_llm_pilot, _read_inferencex, _read_client_report)
    found = next(filter(None, (read(payload, original) for read in readers)), None)
    if found is None or found.device is None or found.devices not in _IN_ONE_HOST:
        return None
    quantization = resolve_quantization(_stated_precision(payload, str(original["model"])))
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


def _stated_precision(payload: Mapping[str, Any], model: str) -> str:
    """Return the precision that a result states; without one, fp8 if the model's name says so, else bf16."""
    precision = payload.get("precision")
    if precision and precision != "unstated":
        return str(precision)
    return "fp8" if "fp8" in model.casefold() else "bf16"


@dataclass(frozen=True)
class _StatedLoad:
    """Deployment and times as a tool states them, in common fields."""

    device: DeviceSpec | None
    devices: int
    users: float
    token_ms: float
    first_ms: float = math.nan
    copies: int = 1
    batch: bool = False
    version: str | None = None


def _read_aiconfigurator(payload: Mapping[str, Any], original: Mapping[str, Any]) -> _StatedLoad | None:
    """Read a row of aiconfigurator's measurements; None for any other."""
    stated: dict[str, Any] = original.get("configuration") or {}
    first, token = payload.get("time_to_first_token_ms"), payload.get("time_per_output_token_ms")
    if stated.get("mode") != "agg" or not first or not token:
        return None
    devices, copies = _devices(stated)
    return _StatedLoad(
        device=find_spec(re.sub(r"^(.*)_sxm$", r"\1 SXM", str(stated.get("system")))),
        devices=devices,
        users=original.get("concurrency") or payload["batch_size"],
        token_ms=token,
        first_ms=first,
        copies=copies,
        version=stated.get("backend_version"),
    )


def _read_inference_bench(payload: Mapping[str, Any], original: Mapping[str, Any]) -> _StatedLoad | None:
    """Read a row of LLM-Inference-Bench, which states seconds of a whole batch; None for any other."""
    latency = payload.get("latency_mean_ms")
    if (original.get("units") or {}).get("Latency") != "s per batch" or not latency or not payload.get("batch_size"):
        return None
    return _StatedLoad(
        device=find_spec(str(original.get("hardware"))),
        devices=original.get("devices") or 1,
        users=payload["batch_size"],
        token_ms=latency / payload["output_tokens"],
        batch=True,
    )


def _read_llm_pilot(payload: Mapping[str, Any], original: Mapping[str, Any]) -> _StatedLoad | None:
    """Read a load test of LLM-Pilot; None for any other. Its time to the first token leaves out the prompt: unused."""
    token, users = payload.get("time_per_output_token_ms"), original.get("concurrency")
    if payload.get("backend") != "tgis" or not token or not users:
        return None
    return _StatedLoad(
        device=find_spec(str(original.get("hardware"))),
        devices=original.get("devices") or 1,
        users=users,
        token_ms=token,
    )


def _read_inferencex(payload: Mapping[str, Any], original: Mapping[str, Any]) -> _StatedLoad | None:
    """Read a row of InferenceX; None for any other, and for one without means.

    It is read by its means, because aiconfigurator's table states those of the same rows. In the median of these rows,
    the mean first token takes 1.3 times as long as the typical one. All users come at once at the beginning.
    """
    stated = original.get("stated") or {}
    if "tput_per_gpu" not in stated:
        return None
    means = {name: (stated.get(name) or {}).get("mean") for name in _TIMES}
    return _read_client_report({**payload, **means}, original)


def _read_client_report(payload: Mapping[str, Any], original: Mapping[str, Any]) -> _StatedLoad | None:
    """Read the report of a load generator at one concurrency; None for any other, or where it names no device."""
    first, token = payload.get("time_to_first_token_ms"), payload.get("time_per_output_token_ms")
    users, hardware = original.get("concurrency"), payload.get("device_name") or original.get("hardware")
    if original.get("configuration") or not first or not token or not users or _seldom_reached(payload, users):
        return None
    environment, engine = payload.get("environment") or {}, canonical_backend(str(payload.get("backend")))
    settings = environment.get("settings") or {}
    copies = max(1, int(settings.get("data_parallel_size") or settings.get("dp_size") or 1))
    split = settings.get("tensor_parallel_size") or settings.get("tp_size")
    counted, name = split_count(result_device_name(str(hardware)))
    stated = copies * int(split or 1) if split or copies > 1 else counted or 1
    devices = int(settings.get("devices") or stated)
    return _StatedLoad(
        device=find_spec(name),
        devices=devices,
        users=users,
        token_ms=token,
        first_ms=first,
        copies=min(copies, devices),
        version=next((stated for name, stated in environment.items() if canonical_backend(name) == engine), None),
    )


def _seldom_reached(payload: Mapping[str, Any], limit: float) -> bool:
    """Return whether fewer than half of the requests allowed at once were under way, by Little's law."""
    rate, whole = payload.get("throughput_items_per_s"), payload.get("latency_mean_ms")
    return rate is not None and whole is not None and rate * whole / 1000 < _REACHED * limit


def _devices(stated: Mapping[str, Any]) -> tuple[int, int]:
    """Return the devices of one copy, and its number of data-parallel attention groups.

    The exports of aiconfigurator count differently, and are told apart by the row's id. Some multiply the sizes of
    attention and of experts, though both lie on the same devices.
    """
    tensor, copies, experts, shards = (
        max(1, int(float(stated.get(name) or 1)))
        for name in ("tp_size", "attention_dp_size", "moe_ep_size", "moe_tp_size")
    )
    row_id = str(stated.get("id"))
    is_older = _OLDER_ID.search(row_id) is not None
    if newest := _NEWEST_ID.search(row_id):
        devices = int(newest["devices"])
    elif copies == tensor > 1 and experts == tensor * copies:
        devices = tensor  # TP 4, DP 4 and EP 16 stand for 4 devices
    elif is_older and copies == 1 and shards == experts > 1 and tensor == shards * experts:
        devices = experts  # TP 64 and EP 8 stand for 8 devices
    elif is_older:
        devices = tensor * copies
    else:
        devices = max(tensor * copies, shards * experts)  # TP 1 beside 4 shards of the experts is 4 devices
    return devices, min(copies, devices)


def model_family(model: str) -> str:
    """Return a model's architecture and size from its name, equal for all its quantizations and fine-tunings."""
    slug = model.casefold().rpartition("/")[2]
    slug = re.sub(r"[-_](instruct|fp8|(nv|mx)?fp4(-preview|-v2)?|quantized\.w\d+a\d+|hf|0528)\b", "", slug)
    slug = slug.removeprefix("meta-")
    return re.sub(r"deepseek-(r1|v3(\.1)?)", "deepseek-v3", slug)


def _identity(row: MeasuredLoad) -> tuple[object, ...]:
    """Return a key that is equal for the copies of one measurement."""
    where = row.deployment.device.name, row.deployment.engine, row.model
    # Exports of the same request-by-request load count its devices differently.
    devices = row.deployment.devices if row.load.batch else None
    return *where, devices, row.load, f"{row.first_ms:.0f}", round(row.token_ms, 2)


def versions_of(engine: Engine, rows: Iterable[MeasuredLoad]) -> set[str]:
    """Return the versions of an engine that the rows state."""
    versions = {row.deployment.engine_version for row in rows if row.deployment.engine == engine}
    return {version for version in versions if version}


def version_key(version: str) -> tuple[int, ...]:
    """Return the numbers of a version as a sort key, the oldest first: `0.19.0rc1` is (0, 19, 0, 1)."""
    return tuple(int(number) for number in re.findall(r"\d+", version))


def groups_of(rows: Iterable[MeasuredLoad]) -> dict[str, list[str]]:
    """Return the group of each row by name of the grouping. A cross-validation leaves out a group as a whole."""
    rows = list(rows)
    return {
        "device": [row.deployment.device.name for row in rows],
        "model": [row.model for row in rows],
        "engine version": [f"{row.deployment.engine} {row.deployment.engine_version}" for row in rows],
        "parallelism": [f"{row.deployment.devices} / {row.deployment.attention_copies}" for row in rows],
    }
