"""Common parts of optimum-benchmark's files: the configuration of a run in any version.

Configurations come as JSON objects, as table columns with dotted names, and in files beside a bare report.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from migrations.normalize.canonical_names import NOT_STATED, hardware_named
from migrations.normalize.path_hints import device_in, hardware_part, model_part, neighbors, parts, spaced
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.row_access import object_of, pick, text_of
from migrations.normalize.units import count
from migrations.sources.documents import Document

_CONFIG_KEYS = {"backend", "scenario", "benchmark", "launcher", "environment", "device", "model"}
_IN_NAME = {
    "batch_size": re.compile(r"batch_size\((\d+)\)"),
    "sequence_length": re.compile(r"sequence_length\((\d+)\)"),
    "new_tokens": re.compile(r"new_tokens\((\d+)\)"),
}
_SHAPES = ("scenario.input_shapes", "benchmark.input_shapes", "benchmark", "inputs", "input_shapes", "scenario")
_SETTINGS = (
    "quantization_scheme", "quantization_strategy", "quantization", "attn_implementation", "torch_compile",
    "bettertransformer", "use_flash_attention_2", "optimization", "auto_optimization", "auto_quantization", "provider",
    "device_map", "cache_implementation", "amp_autocast",
    "use_ddp", "peft_strategy", "peft_type", "load_in_4bit", "load_in_8bit",
)  # fmt: skip
_NO_NAMES = ("x86_64", "aarch64", "arm64", "AMD64", "CUDA not available", "")
_VERSIONS = ("transformers", "optimum_benchmark", "optimum", "accelerate", "diffusers", "python")


def is_config(value: Any) -> bool:
    """Return whether an object is a configuration: a backend with settings, and what to run."""
    found = object_of(value)
    return isinstance(found.get("backend"), dict) and len(found.keys() & _CONFIG_KEYS) >= 2


def flat(value: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested objects as dotted names."""
    result: dict[str, Any] = {}
    for key, member in value.items():
        name = f"{prefix}{key}"
        result |= flat(member, f"{name}.") if isinstance(member, dict) else {name: member}
    return result


def config_beside(document: Document) -> dict[str, Any]:
    """Return the configuration in another file of the report's folder, with dotted names; empty without one."""
    return next((flat(value) for value in neighbors(document, containing="config") if is_config(value)), {})


def columns_of(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a table row's configuration; newer tables prefix its names with `config.`."""
    return {str(key).removeprefix("config."): value for key, value in row.items()}


def size_of(config: Mapping[str, Any], source_path: str) -> dict[str, int | None]:
    """Return batch, sequence length and new tokens, also from names such as `fp16-batch_size(4)-new_tokens(200)`."""
    sizes = {}
    for name, pattern in _IN_NAME.items():
        pretty = name.replace("_", " ").title()
        found = pick(config, *(f"{place}.{name}" for place in _SHAPES), name, pretty, f"Per Process {pretty}")
        if found is None:
            texts = (str(pick(config, "experiment_name", "Experiment Name") or ""), *parts(source_path))
            found = next((match[1] for text in texts if (match := pattern.search(text))), None)
        sizes[name] = count(found, at_least=1)
    if sizes["new_tokens"] is None:
        kwargs = ("scenario.generate_kwargs.max_new_tokens", "scenario.generate_kwargs.min_new_tokens")
        sizes["new_tokens"] = count(pick(config, *kwargs), at_least=1)
    return sizes


def cell_of(document: Document, pointer: str, config: Mapping[str, Any], phase: str) -> CellDraft:
    """Return the cell of one phase of one run. Parts missing in the configuration come from the path, which is kept."""
    path = document.source_path
    model = text_of(pick(config, "backend.model", "model", "backend.model_id", "Model"))
    experiment = text_of(pick(config, "experiment_name", "Experiment Name", "name"))
    model_hint = None if model else model_part(experiment or "") or model_part(path)
    framework = _framework(config, path)
    hardware = _hardware(config, path, framework)
    hints = {"model": model_hint, "hardware": hardware.place}
    return CellDraft(
        path,
        pointer,
        NamesInFile(
            (model or model_hint,),
            hardware.text,
            precision=_precision(config, path),
            runtime=framework or "unknown",
        ),
        times=(_when(config),),
        machine=Machine(
            host={
                key: config.get(f"environment.{key}") for key in ("cpu", "cpu_count", "cpu_ram_mb", "gpu", "machine")
            },
            device_names=hardware.device_names,
            software=_software(config, framework),
            threads=count(pick(config, "backend.intra_op_num_threads"), at_least=1),
            settings=_settings(config, phase),
        ),
        original={
            "hardware": hardware.device or hardware.place or NOT_STATED,
            "phase": phase,
            "experiment": experiment,
            "task": pick(config, "backend.task", "task"),
            "library": pick(config, "backend.library"),
            "said_by_path": {key: value for key, value in hints.items() if value},
            "devices": hardware.gpus if hardware.gpus > 1 else None,
        },
    )


@dataclass(frozen=True)
class _Hardware:
    """Hardware of a run, as its configuration or its path names it."""

    text: str
    """Words that the hardware's name is found in."""
    device: str | None
    """Device in the configuration; None where it names none."""
    place: str | None
    """Part of the path that names the hardware; None where the configuration does."""
    gpus: int
    """Number of GPUs listed."""
    device_names: dict[str, str]
    """Name of the device by hardware name; empty where none is stated."""


def _hardware(config: Mapping[str, Any], path: str, framework: str | None) -> _Hardware:
    listed = list(_names(pick(config, "GPUs", "GPU Name", "GPU")))
    device = text_of(pick(config, "backend.device", "device", "Device")) or _device_of_provider(config, listed)
    place = None if device else hardware_part(path)
    text = device or (spaced(place) if place else NOT_STATED)
    gpus = listed or list(_names(config.get("environment.gpu")))
    runs_on_cpu = hardware_named(text) == "cpu"
    if not runs_on_cpu and any("AMD" in name or "Instinct" in name for name in gpus):
        text = f"rocm, written {text}"
    hardware = hardware_named(text, framework)
    name = text_of(config.get("environment.cpu")) if runs_on_cpu else next(iter(gpus), None)
    if name is None and place and hardware not in (None, "unknown", "cpu") and re.search(r"\d", place):
        name = device_in(place)
    named = {hardware: name.strip()} if hardware and name and name.strip() not in _NO_NAMES else {}
    return _Hardware(text, device, place, len(gpus), named)


def _device_of_provider(config: Mapping[str, Any], gpus: Sequence[str]) -> str | None:
    """Return the device of a prettied report, which leaves it out but names the provider or the GPUs."""
    provider = text_of(pick(config, "Provider", "backend.provider"))
    by_provider = provider.removesuffix("ExecutionProvider") if provider else None
    return next((text for text in (by_provider, *gpus) if text and hardware_named(text)), None)


def _framework(config: Mapping[str, Any], path: str) -> str | None:
    stated = text_of(pick(config, "backend.name", "backend")) or text_of(pick(config, "Backend"))
    return stated or next((part for part in parts(path) if part in ("pytorch", "onnxruntime", "openvino")), None)


def _settings(config: Mapping[str, Any], phase: str) -> dict[str, Any]:
    switched_on = {
        key: value for key in _SETTINGS if (value := pick(config, f"backend.{key}")) not in (None, False, "False")
    }
    return {
        **switched_on,
        "device_ids": pick(config, "backend.device_ids"),
        "quantization_scheme": pick(config, "backend.quantization_scheme", "Quantization Scheme"),
        "phase": phase,
    }


def _names(value: Any) -> Iterator[str]:
    """Yield GPU names from a list, a list written as text, or one name."""
    texts = value if isinstance(value, list) else re.findall(r"'([^']+)'", str(value)) or [value]
    yield from (
        text.strip() for text in texts if isinstance(text, str) and text.strip() and "not available" not in text
    )


def _precision(config: Mapping[str, Any], path: str) -> str | None:
    stated = pick(config, "backend.torch_dtype", "backend.dtype", "torch_dtype", "dtype", "Dtype")
    if stated is None and str(pick(config, "backend.fp16")).casefold() == "true":
        stated = "float16"
    if stated is None:
        words = re.split(r"[-+/]", f"{config.get('experiment_name') or ''}/" + "/".join(parts(path)[:4]))
        stated = next(
            (word for word in words if word in ("fp16", "fp32", "bf16", "float16", "float32", "bfloat16")), None
        )
    return text_of(stated)


def _software(config: Mapping[str, Any], framework: str | None) -> dict[str, str]:
    versions = {name: text_of(pick(config, f"environment.{name}_version")) for name in _VERSIONS}
    if framework:
        versions[framework] = text_of(pick(config, "backend.version"))
    return {name: version for name, version in versions.items() if version}


def _when(config: Mapping[str, Any]) -> Any:
    """Return the time of a run: `2023-06-07_11:10:54` in old tables, None in newer files."""
    text = pick(config, "experiment_datetime", "timestamp", "date")
    return text.replace("_", "T", 1) if isinstance(text, str) else text
