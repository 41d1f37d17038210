"""Measured loads of disaggregated serving: prompts on some devices, tokens on others.

`python -m predictor.serving.disaggregated_loads TABLE.csv CONFIGURATIONS` writes `disaggregated.csv`, which ships with
the package, from aiconfigurator's table of measurements and the pack `inferencex` (both Apache-2.0). Rows that lack the
number of workers or of users are left out. So are rows of the pack whose deployment and load the table holds already.

Neither states how many requests an engine may generate for at once, though first tokens wait for that. InferenceX, of
which both are exports, says it in its configurations: the folder holds its `.github/configs/nvidia-master.yaml` of
several days, each named by its day (`2026-01-30.yaml`).
"""

from __future__ import annotations

import csv
import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

import pyarrow.parquet as pq
import yaml

from accel_platform.hardware.catalog import find_spec
from accel_platform.hardware.device_names import without_count
from accel_platform.knowledge.packs import PACKS
from predictor.serving.engines import Engine
from predictor.serving.loads import Deployment, Load, PromptWorkers, Slots
from predictor.serving.measured_loads import MeasuredLoad, model_family
from predictor.serving.models import find_served_model
from predictor.serving.quantization import resolve_quantization

SHIPPED = Path(__file__).with_name("disaggregated.csv")
_COLUMNS = (
    "model", "device", "engine", "engine_version", "quantization", "prompt_workers", "prompt_devices",
    "prompt_attention_copies", "token_workers", "token_devices", "token_attention_copies", "token_slots", "users",
    "input_tokens", "output_tokens", "first_token_ms", "output_token_ms", "source",
)  # fmt: skip
_WORKERS = _COLUMNS[5:11]
_SAME_LOAD = (*_COLUMNS[1:3], *_COLUMNS[4:11], *_COLUMNS[12:15])
"""Columns that are equal, beside the model family, where both sources hold one deployment and load in some run."""
_FRAMEWORKS = {"dynamo-trt": "trtllm", "dynamo-sglang": "sglang"}
"""Engines of InferenceX's configurations that name a limit of requests at once."""
_FAMILIES = {"dsr1": "deepseek-v3", "gptoss": "gpt-oss-120b", "kimik2.5": "kimi-k2.5"}
"""Model families by their names in InferenceX's configurations."""
_LIMITS = (
    (re.compile(r"DECODE_MAX_BATCH_SIZE=(\d+)"), True),
    (re.compile(r"gen\d+_?(?:dep|tep|tp)\d+_batch(\d+)"), True),
    (re.compile(r"/bs(\d+)-"), False),
)
"""Settings that limit requests at once, and whether of each group of devices with attention of its own."""
_USERS_PER_COPY = ("h200", "dynamo-trt")
"""Runner and framework whose configurations state the users of one generating copy, and not of all."""


def load_disaggregated() -> list[MeasuredLoad]:
    """Return the shipped rows, each as one generating worker with its share of the users."""
    with SHIPPED.open(encoding="utf-8", newline="") as file:
        return [_to_measured_load(row) for row in csv.DictReader(file)]


def _to_measured_load(row: Mapping[str, str]) -> MeasuredLoad:
    number = {name: int(row[name]) for name in (*_WORKERS, "users")}
    decoder, device = find_served_model(row["model"]), find_spec(row["device"])
    assert decoder is not None, f"{SHIPPED.name}: unknown model {row['model']}"
    assert device is not None, f"{SHIPPED.name}: unknown device {row['device']}"
    prompts = PromptWorkers(
        Fraction(number["prompt_workers"], number["token_workers"]),
        number["prompt_devices"],
        number["prompt_attention_copies"],
    )
    deployment = Deployment(
        decoder, device, cast("Engine", row["engine"]), row["quantization"], number["token_devices"],
        number["token_attention_copies"], prompts=prompts,
        slots=Slots(int(row["token_slots"]), number["token_workers"]) if row["token_slots"] else None,
        engine_version=row["engine_version"] or None,
    )  # fmt: skip
    users = number["users"] / number["token_workers"]
    return MeasuredLoad(
        deployment,
        Load(users, float(row["input_tokens"]), float(row["output_tokens"])),
        model=model_family(row["model"]),
        token_ms=float(row["output_token_ms"]),
        first_ms=float(row["first_token_ms"]),
        event_id=row["source"],
    )


@dataclass(frozen=True)
class ConfiguredDeployment:
    """Deployment in InferenceX's configurations that limits the requests at once of a copy."""

    day: date
    """Day on which the configurations held it."""
    slots: int
    """Requests of one generating copy at once."""
    key: tuple[object, ...]
    """Key of rows of its loads, as `_key` returns it, without the users."""
    users: frozenset[int]


def read_configured_deployments(folder: Path) -> list[ConfiguredDeployment]:
    """Return the disaggregated deployments without speculative decoding that the configurations of a folder limit."""
    configured = []
    for path in sorted(folder.glob("*.yaml")):
        day = date.fromisoformat(path.stem)
        for entry in yaml.safe_load(path.read_text(encoding="utf-8")).values():
            for lengths in entry.get("seq-len-configs") or ():
                configured += [_configured_deployment(day, entry, lengths, space) for space in lengths["search-space"]]
    return [deployment for deployment in configured if deployment is not None]


def _configured_deployment(
    day: date, entry: Mapping[str, Any], lengths: Mapping[str, int], space: Mapping[str, Any]
) -> ConfiguredDeployment | None:
    engine = _FRAMEWORKS.get(entry["framework"])
    if "prefill" not in space or engine is None or space.get("spec-decoding", "none") != "none":
        return None
    prompts, tokens = space["prefill"], space["decode"]
    slots = _stated_slots(prompts, tokens)
    if slots is None:
        return None
    runner = str(entry["runner"]).partition("-")[0]
    times = tokens["num-worker"] if (runner, entry["framework"]) == _USERS_PER_COPY else 1
    key = (
        _FAMILIES.get(entry["model-prefix"]), runner, engine, entry["precision"], lengths["isl"], lengths["osl"],
        prompts["num-worker"], tokens["num-worker"], tokens["tp"],
    )  # fmt: skip
    return ConfiguredDeployment(day, slots, key, frozenset(times * users for users in space.get("conc-list") or ()))


def _stated_slots(prompts: Mapping[str, Any], tokens: Mapping[str, Any]) -> int | None:
    """Return the requests that one generating copy answers at once, by the first of `_LIMITS`; None without any."""
    settings = [*(tokens.get("additional-settings") or ()), *(prompts.get("additional-settings") or ())]
    for pattern, by_group in _LIMITS:
        for setting in settings:
            if found := pattern.search(setting):
                groups = tokens["tp"] if by_group and tokens["dp-attn"] else 1
                return int(found[1]) * int(groups)
    return None


def _key(row: Mapping[str, Any]) -> tuple[object, ...]:
    runner = re.sub(r"^(NVIDIA|AMD Instinct) ", "", row["device"]).partition(" ")[0].casefold()
    return (
        model_family(row["model"]), runner, row["engine"], row["quantization"], row["input_tokens"],
        row["output_tokens"], row["prompt_workers"], row["token_workers"], row["token_devices"],
    )  # fmt: skip


def convert(
    table: Iterable[Mapping[str, str]], events: Iterable[Mapping[str, Any]], configured: Sequence[ConfiguredDeployment]
) -> list[dict[str, Any]]:
    """Return the complete disaggregated loads of aiconfigurator's table and of a pack, with the columns of `_COLUMNS`.

    Parameters
    ----------
    events
        Events of the pack `inferencex`, each with its id and payload.
    configured
        Deployments with limits; a row gets the limit of the day nearest to its measurement.
    """
    rows = [*filter(None, map(_of_table, table))]
    held = set(map(_identity, rows))
    rows += [row for row in _of_pack(events) if _identity(row) not in held]
    return [{name: {**row, "token_slots": _slots(row, configured)}[name] for name in _COLUMNS} for row in rows]


def _identity(row: Mapping[str, Any]) -> tuple[object, ...]:
    return model_family(row["model"]), *(row[name] for name in _SAME_LOAD)


def _slots(row: Mapping[str, Any], configured: Sequence[ConfiguredDeployment]) -> int | str:
    """Return the limit of requests at once of a row's deployment; an empty text if none is known."""
    same = [each for each in configured if each.key == _key(row) and row["users"] in each.users]
    measured: date | None = row["measured"]
    nearest = min(same, key=lambda each: abs(each.day - (measured or each.day)), default=None)
    return "" if nearest is None else nearest.slots


def _of_table(row: Mapping[str, str]) -> dict[str, Any] | None:
    """Return a row of aiconfigurator's table converted; None if it is of another kind or incomplete."""
    users = re.search(r"silicon_concurrency=(\d+)", row["silicon_data_source"])
    device = find_spec(re.sub(r"^(.*)_sxm$", r"\1 SXM", row["system"]))
    known = find_served_model(row["model_path"]) is not None and device is not None
    if row["mode"] != "disagg" or not row["prefill_num_workers"] or users is None or not known or device is None:
        return None

    def workers(role: str) -> list[int]:
        tensor, apart = int(row[f"{role}_tp_size"]), int(row[f"{role}_attention_dp_size"])
        return [int(row[f"{role}_num_workers"]), tensor * apart, apart]

    day = re.search(r"measured=([\d-]{10})", row["silicon_data_source"])
    return {
        "model": row["model_path"],
        "device": device.name,
        "engine": row["backend"],
        "engine_version": row["backend_version"],
        "quantization": resolve_quantization(row["precision"]),
        **dict(zip(_WORKERS, [*workers("prefill"), *workers("decode")], strict=True)),
        "users": int(users[1]),
        "input_tokens": int(row["isl"]),
        "output_tokens": int(row["osl"]),
        "first_token_ms": round(float(row["silicon_ttft_ms"]), 3),
        "output_token_ms": round(float(row["silicon_tpot_ms"]), 4),
        "source": row["id"],
        "measured": date.fromisoformat(day[1]) if day else None,
    }


def _of_pack(events: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the events of disaggregated loads, converted from their means as the rows of the table are."""
    for event in events:
        payload = json.loads(event["payload"])
        original = payload["original"]
        stated, workers = original["stated"], original.get("configuration") or {}
        device = find_spec(without_count(payload["device_name"]))
        if not set(_WORKERS) <= set(workers) or device is None:
            continue
        yield {
            "model": original["model"],
            "device": device.name,
            "engine": payload["backend"],
            "engine_version": payload["environment"].get(payload["backend"], ""),
            "quantization": resolve_quantization(payload["precision"]),
            **{name: workers[name] for name in _WORKERS},
            "users": original["concurrency"],
            "input_tokens": payload["sequence_length"],
            "output_tokens": payload["output_tokens"],
            "first_token_ms": round(stated["time_to_first_token_ms"]["mean"], 3),
            "output_token_ms": round(stated["time_per_output_token_ms"]["mean"], 4),
            "source": f"inferencex {event['event_id']}",
            "measured": None,
        }


def _write(rows: Sequence[Mapping[str, Any]]) -> None:
    with SHIPPED.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    with Path(sys.argv[1]).open(encoding="utf-8", newline="") as source:
        pack = pq.read_table(PACKS / "inferencex" / "results.parquet", columns=["event_id", "payload"])
        taken = convert(csv.DictReader(source), pack.to_pylist(), read_configured_deployments(Path(sys.argv[2])))
    _write(taken)
    sys.stderr.write(f"{len(taken)} rows into {SHIPPED.name}\n")
