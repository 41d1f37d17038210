"""Common parts of MLPerf inference logs: scenarios, the meaning of latencies, and names from paths.

The load generator writes neither model nor hardware; submissions lie under `…/results/{system}/{model}/{scenario}/…`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from migrations.normalize.canonical_names import NOT_STATED, hardware_named
from migrations.normalize.path_hints import device_in, hardware_part, parts, spaced
from migrations.normalize.record_builder import CellDraft, Machine, NamesInFile
from migrations.normalize.row_access import text_of
from migrations.normalize.units import NS_PER_MS, count, scaled

_MODELS = re.compile(
    r"(?<![a-z0-9])((?:resnet-?\d*|ssd-[\w]+|retinanet|mobilenet|bert(?:-99(?:\.9)?)?|3d-unet(?:-99(?:\.9)?)?|rnnt|gnmt|"
    r"dlrm(?:-v\d)?(?:-99(?:\.9)?)?|gptj?(?:-99(?:\.9)?)?|gpt-oss-\d+b|llama\d[\w.-]*|mixtral-[\w.-]+|deepseek-[\w.]+|"
    r"stable-diffusion-xl|sdxl|whisper|rgat|pointpainting|qwen[\w.-]*))(?![a-z0-9])",
    re.IGNORECASE,
)
_MODEL_IDS = {"bert": "bert-large", "gptj": "gpt-j-6b", "resnet": "resnet50", "retinanet": "retinanet-resnext50"}
_PIXELS = {"resnet": 224, "resnet50": 224, "retinanet": 800}
_LITE_PIXELS = (224, 240, 260, 280, 300)
"""Sides of EfficientNet-Lite's images by its size (as in its authors' `efficientnet_lite_builder.py`)."""
_LINE = re.compile(r"\s*(?P<name>[^:]+?)\s*:\s*(?P<value>.+?)\s*")
_RUNTIMES = {
    **{name: name for name in ("armnn", "deepsparse", "onnxruntime", "openvino", "pytorch", "qaic", "tensorflow")},
    **{name: name for name in ("tensorrt", "tflite", "tvm", "vllm")},
    "torch": "pytorch", "trt": "tensorrt",
}  # fmt: skip
_SCENARIOS = ("singlestream", "multistream", "offline", "server", "interactive")
LATENCIES = {
    "mean": "Mean latency (ns)", "min": "Min latency (ns)", "max": "Max latency (ns)",
    "percentile": "{} percentile latency (ns)",
}  # fmt: skip
"""Names of latencies in a summary."""
_PERCENTILES = {"50.00": "p50", "90.00": "p90", "95.00": "p95", "99.00": "p99"}


def scenario_of(text: Any) -> str | None:
    """Return the scenario, e.g. `singlestream` for `Single Stream` or `SingleStream`."""
    word = re.sub(r"[\s_-]", "", str(text or "")).casefold()
    return word if word in _SCENARIOS else None


def batch_of(scenario: str | None, samples_per_query: Any) -> int | None:
    """Return the samples behind one latency; None in scenarios where the system batches freely."""
    if scenario == "singlestream":
        return 1
    return count(samples_per_query, at_least=1) if scenario == "multistream" else None


def latencies(found: Mapping[str, Any], scenario: str | None, name: Mapping[str, str]) -> dict[str, float | None]:
    """Return milliseconds from nanoseconds by the log's names of mean, min, max and percentiles.

    Offline issues all samples at once, so a latency there is a place in the queue and is left out.
    """
    if scenario == "offline":
        return {}
    whole = {field_name: scaled(found.get(name[field_name]), 1 / NS_PER_MS) for field_name in ("mean", "min", "max")}
    parts_ = {
        field_name: scaled(found.get(name["percentile"].format(percentile)), 1 / NS_PER_MS)
        for percentile, field_name in _PERCENTILES.items()
    }
    return {f"latency_{field_name}_ms": value for field_name, value in {**whole, **parts_}.items()}


def summary_lines(lines: Sequence[str]) -> dict[str, str]:
    """Return names and values of a summary's lines; the first of two lines of one name counts."""
    found: dict[str, str] = {}
    for line in lines:
        if match := _LINE.fullmatch(line):
            found.setdefault(match["name"], match["value"])
    return found


def model_of(text: str | None) -> str | None:
    """Return the model without its accuracy target. MLPerf's plain `bert` is the large one."""
    if (mobile := _mobile_model(text or "")) is not None:
        return mobile[0]
    plain = re.sub(r"-99(?:\.9)?$", "", text) if text else None
    return _MODEL_IDS.get((plain or "").casefold(), plain)


def precision_of(text: Any) -> str | None:
    """Return the type of the weights; unsigned 8-bit integers, of TFLite, count as int8."""
    stated = text_of(text)
    return "int8" if stated and stated.casefold() == "uint8" else stated


def image_size_of(text: str | None) -> int | None:
    """Return the side of a model's images in pixels, of a mobile model by its name; None for models of other inputs."""
    if (text or "").casefold() in _PIXELS:
        return _PIXELS[(text or "").casefold()]
    mobile = _mobile_model(text or "")
    return mobile[1] if mobile is not None else None


def _mobile_model(text: str) -> tuple[str, int] | None:
    """Return the name in timm, e.g. `tf_mobilenetv3_small_100`, and the side of images in pixels; None if it is none.

    Submitters write `mobilenet-v1-0.25-128-quantized`, `mobilenet-v2-precision_float-0.35-96`,
    `mobilenet-v3-small-minimalistic-224-1.0-float` and `efficientnet-int8-lite0`.
    """
    words = re.split(r"[-_]", text.casefold())
    if words[0] == "efficientnet":
        sizes = (int(word[4:]) for word in words if re.fullmatch(r"lite[0-4]", word))
        return next(((f"tf_efficientnet_lite{size}", _LITE_PIXELS[size]) for size in sizes), None)
    version = next((word[1:] for word in words[1:] if re.fullmatch(r"v[123]", word)), None)
    pixels = next((int(word) for word in words if re.fullmatch(r"\d{2,3}", word)), None)
    if words[0] != "mobilenet" or version is None or pixels is None:
        return None
    width = next((round(100 * float(word)) for word in words if re.fullmatch(r"\d\.\d+", word)), 100)
    if version != "3":
        return f"mobilenetv{version}_{width:03}", pixels
    kind = "small" if "small" in words else "large"
    return f"tf_mobilenetv3_{kind}{'_minimal' if 'minimalistic' in words else ''}_{width:03}", pixels


def runtimes_in(text: Any) -> set[str]:
    """Return the runtimes in the name of a system or framework."""
    words = re.split(r"[^a-z]+", str(text or "").casefold())
    return {_RUNTIMES[word] for word in words if word in _RUNTIMES}


def runtime_in(text: Any) -> str:
    """Return the runtime in the name of a system or framework, the first of several by the alphabet."""
    return min(runtimes_in(text), default="unknown")


def cell_of(source_path: str, pointer: str, sut: Any, when: Any, about: Mapping[str, Any]) -> CellDraft:
    """Return the cell of one run, named by the folders of its log."""
    components = parts(source_path)
    at = next((i for i, part in enumerate(components) if scenario_of(part)), None)
    model = next((match[1] for part in components if (match := _MODELS.search(part))), None)
    if at is not None and at + 1 < len(components):
        model = components[at + 1]
    system = components[at + 2] if at is not None and at + 2 < len(components) else None
    place = system if hardware_named(spaced(system or "")) else hardware_part(source_path)
    if place is None and hardware_named(spaced(str(sut or ""))):
        place = str(sut)
    hardware = hardware_named(spaced(place)) if place else None
    return CellDraft(
        source_path,
        pointer,
        NamesInFile((model_of(model),), spaced(place) if place else NOT_STATED, runtime=runtime_in(system or place)),
        times=(when,),
        machine=Machine(
            device_names={hardware: system or device_in(place) or place} if hardware and place else {},
            settings={"scenario": about.get("scenario")},
        ),
        original={
            "model": model,
            "hardware": place or NOT_STATED,
            "sut_name": sut,
            "said_by_path": {"model": model, "hardware": place},
            **about,
        },
    )
