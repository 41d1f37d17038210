"""Child process that traces an untrusted transformers config on the meta device: its cost, then its operators.

It limits itself before it reads the config. An error after that is the config's, and is reported in one line.
"""

from __future__ import annotations

import resource
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache, partial
from typing import Any

from accel_platform.errors import AccelError, InvalidInput
from accel_platform.subprocesses.json_child import Message, serve
from accel_platform.workloads.model_catalog import ModelSpec, architectures
from accel_platform.workloads.operators import MOVING, profile_from_json
from accel_platform.workloads.sources import SEQUENCE_LENGTH
from predictor.data.traced_models import InputSizes, trace_profile

MAX_PARAMETERS = 10**13
MAX_OPERATORS = 1_024
"""Different operators of one pass: each is priced on every device. Models of the catalog have up to 378."""
_DERIVABLE_INPUTS = ("text", "vision", "audio")
"""Categories whose inputs follow from any architecture's config."""


def handle_job(job: Message, send: Callable[[Message], None]) -> None:
    """Answer one job with the fields of a `ConfigCost`, or `refused` and the reason.

    After a cost come the operators: `profile`, or `problem` and the reason.
    """
    import torch
    import transformers  # noqa: F401 - imported before the limits, because they are the config's alone

    from accel_platform.workloads import cost  # noqa: F401

    torch.set_num_threads(1)
    memory = int(job["memory_mib"]) * 2**20
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    used = resource.getrusage(resource.RUSAGE_SELF)
    spent = int(used.ru_utime + used.ru_stime)
    resource.setrlimit(resource.RLIMIT_CPU, (spent + int(job["cpu_s"]), spent + int(job["cpu_s"])))
    described = cache(partial(spec_from_config, job["config"]))
    costed = _answer(job, lambda: _config_cost(job, described()), advice=" Cost figures can be given instead.")
    send(costed)
    if "refused" in costed:
        return
    operators = _answer(job, lambda: _config_operators(job, described()))
    if "refused" in operators:
        operators = {"problem": f"its operators cannot be traced: {operators['refused'].rstrip('.')}"}
    send(operators)


def _answer(job: Message, compute: Callable[[], Message], *, advice: str = "") -> Message:
    """Return what `compute` makes of the config; or `refused` and the reason, with advice after an unforeseen one."""
    try:
        return compute()
    except AccelError as error:
        return {"refused": str(error)}
    except MemoryError:
        return {"refused": f"its model does not fit into {job['memory_mib']} MiB, even without weights."}
    except Exception as error:  # noqa: BLE001 - transformers and torch raise whatever a config breaks
        reason = " ".join(str(error).split())[:300]
        return {"refused": f"{type(error).__name__}: {reason.rstrip('.')}.{advice}"}


def _config_cost(job: Message, spec: ModelSpec) -> Message:
    from accel_platform.workloads.cost import cost_of, parameters_of
    from accel_platform.workloads.inputs import usual_image_size, with_image_size
    from accel_platform.workloads.kv_cache import decoder_of

    if job["image_size"] is not None:
        spec = with_image_size(spec, job["image_size"])
    if parameters_of(spec) > MAX_PARAMETERS:
        raise InvalidInput(f"its model has more than {MAX_PARAMETERS:.0e} parameters.")
    decoder = decoder_of(spec)
    cost = cost_of(spec, batch_size=1, sequence_length=job["sequence_length"], audio_seconds=job["audio_seconds"])
    if cost.flops <= 0:
        raise InvalidInput("its model computes nothing.")
    return {
        "architecture": spec.architecture,
        "family": spec.family,
        "modality": spec.modality,
        "text_alone": spec.modality == "text" and _has_other_inputs(spec),
        "sequence_length": job["sequence_length"] or spec.sequence_length,
        "parameters": cost.parameters,
        "layers": cost.layers,
        "flops": cost.flops,
        "activation_bytes": cost.activation_bytes,
        "layer_output_bytes": cost.layer_output_bytes,
        "image_size": usual_image_size(spec),
        "decoder": None if decoder is None else asdict(decoder),
    }


def _config_operators(job: Message, spec: ModelSpec) -> Message:
    sizes = InputSizes(job["image_size"], job["audio_seconds"])
    traced = trace_profile(spec, job["sequence_length"], sizes, training=job["training"])
    if "problem" in traced:
        return traced
    operators = profile_from_json(traced["profile"]).of_two
    if len(operators) > MAX_OPERATORS:
        raise InvalidInput(f"{len(operators):,} different ones are over the limit of {MAX_OPERATORS:,}.")
    # A config may have a width of 0. What takes no time has no logarithm, by which operators are priced.
    empty = next((op for op in operators if op.kind not in MOVING and min(op.dimensions) <= 0), None)
    if empty is not None:
        raise InvalidInput(f"one of them ({empty.name}) has a size of 0.")
    return traced


def spec_from_config(config: dict[str, Any]) -> ModelSpec:
    """Return the model that a published config describes. Raises InvalidInput for one that transformers lacks."""
    from transformers import CONFIG_MAPPING

    from accel_platform.workloads.architectures import classify, generates_text, matches_images_to_text
    from accel_platform.workloads.build import config_of, register_architecture, text_part
    from accel_platform.workloads.inputs import QUESTION_TOKENS, image_tokens

    classes = config.get("architectures") or []
    model_type = config.get("model_type") or _model_type_of_class(str(classes[0]))
    register_architecture(model_type)
    if model_type not in CONFIG_MAPPING:
        raise InvalidInput(f"the installed transformers has no model type {model_type!r}.")
    usual = architectures().get(model_type, {})
    kind = classify(model_type)
    modality = usual.get("modality", kind.category)
    if modality not in _DERIVABLE_INPUTS and not usual and not matches_images_to_text(model_type):
        if not generates_text(model_type):
            raise InvalidInput(f"what a {kind.category} model reads cannot be told from its config: give cost figures.")
        modality = "text"
    spec = ModelSpec(
        model_id=model_type,
        architecture=model_type,
        family=usual.get("family", kind.family),
        modality=modality,
        config={key: value for key, value in config.items() if key not in ("model_type", "architectures")},
    )
    if modality not in ("text", "multimodal"):
        return spec
    built = config_of(spec)
    max_length = getattr(text_part(built), "max_position_embeddings", None) or SEQUENCE_LENGTH
    length, features = min(usual.get("sequence_length", SEQUENCE_LENGTH), int(max_length)), image_tokens(built)
    return replace(spec, sequence_length=features + QUESTION_TOKENS if length < features + 2 else length)


def _has_other_inputs(spec: ModelSpec) -> bool:
    """Return whether a model that is costed for text also reads images or sound."""
    from accel_platform.workloads.architectures import classify
    from accel_platform.workloads.build import config_of, text_part

    if classify(spec.architecture).category == "text":
        return False
    built = config_of(spec)
    return type(text_part(built)) is not type(built) or any(name != "text_config" for name in built.sub_configs)


def _model_type_of_class(architecture: str) -> str:
    """Return the model type of a transformers class: `bert` for `BertForMaskedLM`."""
    from transformers.models.auto import modeling_auto

    for name, table in vars(modeling_auto).items():
        if name.endswith("MAPPING_NAMES"):
            for model_type, classes in table.items():
                if architecture in (classes if isinstance(classes, tuple | list) else (classes,)):
                    return str(model_type)
    raise InvalidInput(f"the installed transformers has no class {architecture!r}.")


if __name__ == "__main__":
    serve(handle_job)
