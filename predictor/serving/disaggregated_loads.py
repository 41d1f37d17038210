"""Measured loads of disaggregated serving: prompts on some devices, tokens on others.

`python -m predictor.serving.disaggregated_loads TABLE.csv` converts aiconfigurator's table of measurements (Apache-2.0)
to `disaggregated.csv`, which ships with the package. Rows that lack the number of workers or of users are left out.
"""

from __future__ import annotations

import csv
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

from accel_platform.hardware.catalog import find_spec
from predictor.serving.loads import Deployment, Engine, Load, PromptWorkers, resolve_quantization
from predictor.serving.measured_loads import MeasuredLoad, model_family
from predictor.serving.models import find_served_model

SHIPPED = Path(__file__).with_name("disaggregated.csv")
_COLUMNS = (
    "model", "device", "engine", "engine_version", "quantization", "prompt_workers", "prompt_devices",
    "prompt_attention_copies", "token_workers", "token_devices", "token_attention_copies", "users", "input_tokens",
    "output_tokens", "first_token_ms", "output_token_ms", "source",
)  # fmt: skip


def load_disaggregated() -> list[MeasuredLoad]:
    """Return the shipped rows, each as one generating worker with its share of the users."""
    with SHIPPED.open(encoding="utf-8", newline="") as file:
        return [_measured(row) for row in csv.DictReader(file)]


def _measured(row: Mapping[str, str]) -> MeasuredLoad:
    number = {name: int(row[name]) for name in _COLUMNS if name.endswith(("_workers", "_devices", "_copies", "users"))}
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
        number["token_attention_copies"], prompts=prompts, engine_version=row["engine_version"] or None,
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


def convert(table: Iterable[Mapping[str, str]]) -> list[dict[str, Any]]:
    """Return the complete disaggregated loads of aiconfigurator's table, with the columns of `_COLUMNS`."""
    return [row for row in map(_converted, table) if row is not None]


def _converted(row: Mapping[str, str]) -> dict[str, Any] | None:
    """Return a row of aiconfigurator's table converted; None if it is of another kind or incomplete."""
    users = re.search(r"silicon_concurrency=(\d+)", row["silicon_data_source"])
    device = find_spec(re.sub(r"^(.*)_sxm$", r"\1 SXM", row["system"]))
    known = find_served_model(row["model_path"]) is not None and device is not None
    if row["mode"] != "disagg" or not row["prefill_num_workers"] or users is None or not known or device is None:
        return None

    def workers(role: str) -> list[int]:
        tensor, apart = int(row[f"{role}_tp_size"]), int(row[f"{role}_attention_dp_size"])
        return [int(row[f"{role}_num_workers"]), tensor * apart, apart]

    values = [
        row["model_path"], device.name, row["backend"], row["backend_version"], resolve_quantization(row["precision"]),
        *workers("prefill"), *workers("decode"), users[1], row["isl"], row["osl"],
        round(float(row["silicon_ttft_ms"]), 3), round(float(row["silicon_tpot_ms"]), 4), row["id"],
    ]  # fmt: skip
    return dict(zip(_COLUMNS, values, strict=True))


def _write(rows: Sequence[Mapping[str, Any]]) -> None:
    with SHIPPED.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


if __name__ == "__main__":
    with Path(sys.argv[1]).open(encoding="utf-8", newline="") as source:
        taken = convert(csv.DictReader(source))
    _write(taken)
    sys.stderr.write(f"{len(taken)} rows into {SHIPPED.name}\n")
