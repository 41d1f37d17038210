"""Operator mixes: the FLOPs and numbers moved of published models by groups of similar operators, for the roofline.

`operator_mixes.parquet` ships with the package. `python -m predictor.data.operator_mix` adds what it lacks: it traces
the models of catalog and timm pack on the meta device, where timm is installed, in half an hour. Stopped, it goes on.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from accel_platform.errors import one_line
from accel_platform.workloads.inputs import usual_image_size
from accel_platform.workloads.model_catalog import known_models
from accel_platform.workloads.operators import MOVING, Operator, OperatorProfile, trace_module, trace_operators

SHIPPED = Path(__file__).with_name("operator_mixes.parquet")
_INTENSITIES = 2.0 ** np.arange(10)
"""Bounds between the groups of products by intensity, in FLOPs per number moved."""
_BATCH = 32
"""Batch size at which operators are grouped; weights are read once per batch."""
_SAVED_EVERY = 50
_PACK = Path(__file__).parents[2] / "accel_platform" / "knowledge" / "packs" / "timm" / "results.parquet"


@dataclass(frozen=True)
class OperatorMix:
    """Work of one item by groups of operators with similar intensity and size.

    Products are grouped by FLOPs per number moved; all other operators are of one intensity.
    """

    flops: tuple[float, ...]
    """FLOPs of each group; 0 where its operators only move numbers."""
    numbers: tuple[float, ...]
    """Numbers read and written by each group."""
    each: tuple[float, ...]
    """Numbers read and written by one operator of each group, which have to fit into a cache."""
    fused_share: float
    """Share of the numbers moved between products that remains if a compiler fuses operators."""
    operators: float
    """Operators of a pass, whatever its batch."""


@lru_cache(maxsize=16_384)
def published_mix(model: str, image_size: float) -> OperatorMix | None:
    """Return the mix of a published model, with or without the tag of its weights; None where unknown."""
    if math.isnan(image_size):
        return None
    return _shipped().get((_architecture(model), int(image_size)))


def operator_mix(profile: OperatorProfile) -> OperatorMix:
    """Return the mix of a traced model. Without data flow nothing counts as fused."""
    groups: dict[tuple[int, int], list[Operator]] = defaultdict(list)
    operators = profile.at(_BATCH)
    for operator in operators:
        intensity = -1
        if operator.kind not in MOVING:
            intensity = int(np.searchsorted(_INTENSITIES, operator.flops / operator.moved))
        groups[intensity, math.floor(math.log2(operator.moved))].append(operator)
    flops, numbers, each = [], [], []
    for (intensity, _), alike in sorted(groups.items()):
        moved = sum(operator.count * operator.moved for operator in alike) / _BATCH
        flops.append(0.0 if intensity < 0 else sum(operator.count * operator.flops for operator in alike) / _BATCH)
        numbers.append(moved)
        each.append(moved / sum(operator.count for operator in alike))
    share = 1.0 if profile.fused_share is None else profile.fused_share
    return OperatorMix(
        tuple(flops), tuple(numbers), tuple(each), share, float(sum(operator.count for operator in operators))
    )


def _architecture(model: str) -> str:
    return re.sub(r"^timm/", "", model).partition(".")[0]


@cache
def _shipped() -> dict[tuple[str, int], OperatorMix]:
    rows = pq.read_table(SHIPPED).to_pylist()
    return {
        (row["model"], row["image_size"]): OperatorMix(
            tuple(row["flops"]), tuple(row["numbers"]), tuple(row["each"]), row["fused_share"], row["operators"]
        )
        for row in rows
    }


def write_mixes(mixes: Mapping[tuple[str, int], OperatorMix], path: Path) -> None:
    """Write mixes by architecture and image size, with four significant digits."""
    rows = [
        {"model": model, "image_size": size, **{name: _rounded(value) for name, value in asdict(mix).items()}}
        for (model, size), mix in sorted(mixes.items())
    ]
    table = pa.Table.from_pylist(rows)
    floats = [
        pa.field(f.name, pa.list_(pa.float32()) if pa.types.is_list(f.type) else pa.float32())
        if f.name in OperatorMix.__dataclass_fields__
        else f
        for f in table.schema
    ]
    pq.write_table(table.cast(pa.schema(floats)), path, compression="zstd", compression_level=19)


def _rounded(value: float | Sequence[float]) -> Any:
    return float(f"{value:.4g}") if isinstance(value, float) else [float(f"{one:.4g}") for one in value]


def _pack_models() -> dict[tuple[str, int], Callable[[], OperatorProfile]]:
    """Return how to trace each architecture and image size of the timm pack."""
    payloads = map(json.loads, pq.read_table(_PACK, columns=["payload"])["payload"].to_pylist())
    found = {
        (_architecture(str(original["model"])), int(float(original["image_size"])))
        for payload in payloads
        if (original := payload["original"]).get("image_size")
    }
    return {key: partial(_trace_timm, *key) for key in sorted(found)}


def _catalog_models() -> dict[tuple[str, int], Callable[[], OperatorProfile]]:
    """Return how to trace each model of the catalog that sees, at its own image size."""
    sizes = {spec: usual_image_size(spec) for spec in known_models()}
    return {
        (_architecture(spec.model_id), size): partial(trace_operators, spec)
        for spec, size in sizes.items()
        if size is not None
    }


def _trace_timm(model: str, image_size: int) -> OperatorProfile:
    """Return the operators of a model of timm, which has to be installed. Raises what its code raises."""
    import timm
    import torch

    with torch.device("meta"):
        module = timm.create_model(model, pretrained=False).eval()

    def batch_of(items: int) -> dict[str, Any]:
        return {"x": torch.empty(items, 3, image_size, image_size, device="meta")}

    with torch.no_grad():
        module(**batch_of(2))  # the first pass of some computes what they cache
    return trace_module(model, module, batch_of)


def main() -> None:
    """Trace what the shipped file lacks, and write it."""
    mixes = dict(_shipped()) if SHIPPED.exists() else {}
    missing = {key: trace for key, trace in (_catalog_models() | _pack_models()).items() if key not in mixes}
    for number, (key, trace) in enumerate(missing.items(), start=1):
        try:
            mixes[key] = operator_mix(trace())
        except Exception as error:  # noqa: BLE001 - any model's code may fail in any way, and the others go on
            print(f"{key[0]} at {key[1]}: {one_line(error)[:100]}", file=sys.stderr)
        if number % _SAVED_EVERY == 0 or number == len(missing):
            write_mixes(mixes, SHIPPED)
            print(f"{number} of {len(missing)} traced", file=sys.stderr)


if __name__ == "__main__":
    main()
