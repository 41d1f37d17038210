"""Description of a model, recorded with its results: its identity, and what one item costs on paper.

The worker that prepares a model traces its cost, because it has loaded torch and transformers anyway. It keeps the cost
beside the model's other files, because the run itself loads neither.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from accel_platform.atomic_write import write_durably
from accel_platform.bench.measure.failures import classify
from accel_platform.bench.prepare.artifacts import Artifacts
from accel_platform.events.types import ModelDescribed
from accel_platform.workloads.model_catalog import ModelSpec
from accel_platform.workloads.sources import is_sourced


def describe_model(spec: ModelSpec) -> ModelDescribed:
    """Return a model's identity and its cost for one item at its default input shape. Tracing takes about a second."""
    from accel_platform.workloads.cost import cost_of
    from accel_platform.workloads.inputs import usual_image_size
    from accel_platform.workloads.operators import profile_to_json, trace_operators

    cost = cost_of(spec, batch_size=1)
    return _identify(spec).model_copy(
        update={
            "parameters": cost.parameters,
            "layers": cost.layers,
            "flops_per_item": cost.flops,
            "activation_bytes_per_item": cost.activation_bytes,
            "layer_output_bytes_per_item": cost.layer_output_bytes,
            "image_size": usual_image_size(spec),
            "operators": profile_to_json(trace_operators(spec)) if is_sourced(spec) else None,
        }
    )


def is_described(spec: ModelSpec, artifacts: Artifacts) -> bool:
    """Return whether a model's cost was traced. The next run tries again what could not be traced."""
    return read_description(spec, artifacts)[1] is None


def write_description(spec: ModelSpec, artifacts: Artifacts) -> None:
    """Write a model's description, or the reason why its cost cannot be traced: its work may depend on values."""
    found: dict[str, Any]
    try:
        found = {"model": describe_model(spec).model_dump(mode="json")}
    except Exception as error:  # noqa: BLE001 - a custom config may fail in any way
        found = {"reason": classify(error)[1]}
    write_durably(_path(spec, artifacts), json.dumps(found))


def read_description(spec: ModelSpec, artifacts: Artifacts) -> tuple[ModelDescribed, str | None]:
    """Return a prepared model's description; where its cost is unknown its identity alone, with the reason."""
    try:
        found = json.loads(_path(spec, artifacts).read_text(encoding="utf-8"))
    except FileNotFoundError:
        found = {"reason": "it was not prepared"}
    if "model" in found:
        return ModelDescribed.model_validate(found["model"]), None
    return _identify(spec), str(found["reason"])


def _path(spec: ModelSpec, artifacts: Artifacts) -> Path:
    """Return the path of a description: another for each name and usual input of equal weights, and each version."""
    key = f"{ModelDescribed.VERSION} {_identify(spec).model_dump_json()}"
    return artifacts.folder / f"description-{hashlib.sha256(key.encode()).hexdigest()[:8]}.json"


def _identify(spec: ModelSpec) -> ModelDescribed:
    return ModelDescribed(
        model_id=spec.model_id,
        architecture=spec.architecture,
        family=spec.family,
        modality=spec.modality,
        aliases=spec.aliases,
        config=spec.config,
        size=spec.size,
        sequence_length=spec.sequence_length,
    )
