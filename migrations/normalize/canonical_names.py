"""Names as old files write them, brought to the platform's own: models, hardware, precisions, hosts and devices.

Every original text stays with the row; a name nobody knows keeps a slug of itself. Add new spellings here.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, get_args

from accel_platform.backend_names import canonical_backend
from accel_platform.events.types import Hardware
from accel_platform.hardware.device_names import without_count
from accel_platform.hardware.instances import queried_device_name
from accel_platform.precisions import canonical_precision
from accel_platform.workloads.architectures import guess_family
from accel_platform.workloads.model_catalog import find_model

UNKNOWN_FAMILY = "unknown"
MICROBENCHMARK = "microbenchmark"
"""The family of timed code that is no model; the warehouse keeps it out of everything that recommends."""

UNKNOWN_ENGINE = "unknown"
"""Backend of a load whose report names no engine."""
UNKNOWN_HARDWARE = "unknown"
NOT_STATED = "not stated"
"""The hardware of a result whose tool writes none; it is kept as `unknown` and recommends nothing."""

_HARDWARE_WORDS: tuple[tuple[str, str], ...] = (
    ("openvino", "openvino"),
    ("onnxruntime", "onnxruntime"),
    ("onnx runtime", "onnxruntime"),
    ("webgpu", "webgpu"),
    ("webnn", "webnn"),
    ("vulkan", "vulkan"),
    ("opencl", "opencl"),
    ("directml", "directml"),
    ("rocm", "rocm"),
    ("hip", "rocm"),
    ("cuda", "cuda"),
    ("tensorrt", "cuda"),
    ("trt", "cuda"),
    ("nvidia", "cuda"),
    ("mps", "mps"),
    ("metal", "mps"),
    ("qaic", "qaic"),
    ("cloud ai 100", "qaic"),
    ("qnn", "qnn"),
    ("qualcomm", "qnn"),
    ("xpu", "xpu"),
    ("sycl", "xpu"),
    ("tpu", "tpu"),
    ("hpu", "hpu"),
    ("hailo", "hailo"),
    ("sambanova", "sambanova"),
    ("neuron", "neuron"),
    ("jax", "jax"),
    ("wasm", "wasm"),
    ("cpu", "cpu"),
    (NOT_STATED, UNKNOWN_HARDWARE),
)
_SILICON: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(rf"(?<![a-z0-9])(?:{names})(?![a-z0-9])"), hardware)
    for names, hardware in (
        (r"core(?:\(tm\))?[ -](?:ultra|i\d).*[ -](?:igpu|npu)", "openvino"),
        (r"xeon|epyc|ryzen|threadripper|graviton\d?|cortex-\w+|i[3579][ _-]\d{4,5}[a-z]*\d?|intel\(r\) core.*", "cpu"),
        (r"core[ -]ultra[ -]x?\d[ -]\d{3}[a-z]*", "cpu"),
        (r"tesla|quadro|geforce|jetson|titan|dgx\w*|(?:rtx|gtx)[ _-]?(?:a?\d{3,4})(?:ti|s)?", "cuda"),
        (r"(?:g?[hb][12358]00|gh200|h20|[av]100|a[1-6]0g?|a[26]000|l40?s?|t4|p100|p40?|k80)(?:x\d+)?", "cuda"),
        (r"gb[23]00|b[23]00|h[1-8]00", "cuda"),
        (r"mi\d{2,3}[xa]?(?:x\d+)?|radeon|instinct|gfx\d+\w*", "rocm"),
        (r"gaudi ?\d?|habana", "hpu"),
        (r"pvc|ponte vecchio|(?:intel )?max \d{4}|flex \d{3}", "xpu"),
        (r"arc(?:\(tm\))? (?:graphics|(?:pro )?[ab]?\d{2,3}[mtv]?)|(?:iris(?:\(r\))? xe|uhd) graphics", "xpu"),
        (r"apple m\d.*|m[1-5] (?:pro|max|ultra)", "mps"),
        (r"adreno\w*|mali\w*", "opencl"),
        (r"hexagon|htp|snapdragon.*", "qnn"),
    )
)
"""Marketing names of processors, and the hardware name their vendor's own runtime has."""

_BACKENDS: dict[str, str] = {
    "cpu": "pytorch",
    "cuda": "pytorch",
    "rocm": "pytorch",
    "mps": "pytorch",
    "openvino": "openvino",
    "onnxruntime": "onnxruntime",
    "qnn": "qnn",
    "webnn": "webnn",
    "webgpu": "webgpu",
    "wasm": "wasm",
    "jax": "jax",
}
_KEY_WORDS: dict[str, str] = {
    **{name: name for name in get_args(Hardware)},
    "apple": "mps",
    "amd": "rocm",
    "qualcomm": "qnn",
    "snpe": "qnn",
    "onnx": "onnxruntime",
}
"""First words of the keys under which the old skill tests put what concerns one hardware."""
_TEST_SCRIPT = re.compile(
    r"(?:^|[/#])(?:performance_)?(?:test_skills_|test_)?(?P<name>(?:hf|default)_[a-z0-9_]+?)"
    r"(?:_(?:test_results|performance)\b.*)?(?:_performance_\d.*)?(?:\.py|\.json)?(?=$|[/#])"
)
_as_json = json.JSONEncoder(sort_keys=True, default=str).encode
"""JSON encoder, made once because the host, device and fingerprint of each row are hashed."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
"""An organisation and a model; a local path has more slashes or begins with one."""
_ON_HOST_CPU = frozenset({"cpu", "openvino", "onnxruntime"})


@dataclass(frozen=True)
class ModelName:
    """A model as the platform calls it."""

    model_id: str
    family: str


def microbenchmark_named(text: Any) -> ModelName | None:
    """Return the name of a timed piece of code, which is never normalized or taken for a model."""
    if not isinstance(text, str) or not text.strip():
        return None
    return ModelName(f"{MICROBENCHMARK}:{text.strip()}", MICROBENCHMARK)


def model_named(*texts: Any, family: Any = None) -> ModelName | None:
    """Return the model of the first resolvable text, else a slug of the first text with the file's family.

    Test script names (`test_hf_bert.py`), `hf_` prefixes, hub organizations and local paths are removed. An unknown hub
    id is a model of its own: `hf_llama` beside `meta-llama/Llama-2-13b-hf` gives its family only. None without any
    name.
    """
    names = [stripped for text in texts if isinstance(text, str) and (stripped := text.strip())]
    return _model_of(tuple(names), family if isinstance(family, str) else "")


@lru_cache(maxsize=8192)
def _model_of(names: tuple[str, ...], family: str) -> ModelName | None:
    """Return the model of the names in a file, and of the family in it. The rows of a table often share them."""
    hub_id = None
    for name in names:
        for candidate in _candidates(name):
            if (known := _in_catalog(candidate)) is not None:
                return known if hub_id is None else ModelName(slug_of(hub_id), known.family)
        if hub_id is None and _HUB_ID.fullmatch(name):
            hub_id = name
    slugs = [slug for name in (hub_id or "", *names) if (slug := slug_of(_bare(name)))]
    if not slugs:
        return None
    by_name = guess_family(hub_id or slugs[0])
    return ModelName(slugs[0], slug_of(family) or by_name or UNKNOWN_FAMILY)


def hardware_named(text: Any, runtime: Any = None) -> str | None:
    """Return the hardware name meant by `cuda:0 (mock)`, `OpenVINO`, `AMD MI300X` or `g5.xlarge`; None if none.

    Accelerators that the platform does not run have names too (`hailo`, `xpu`, `vulkan`). A runtime of its own on the
    CPU (`runtime="onnxruntime"`) gives its name to the hardware, and so does OpenVINO on Intel's GPUs.
    """
    if not isinstance(text, str):
        return None
    found = _word(text)
    by_runtime = _word(runtime) if isinstance(runtime, str) else None
    if found == "cpu" and by_runtime in _ON_HOST_CPU:
        return by_runtime
    return "openvino" if (found, by_runtime) == ("xpu", "openvino") else found


def backend_named(hardware: str, runtime: Any) -> str:
    """Return the runtime that a file names, else the one of the hardware name."""
    if isinstance(runtime, str) and runtime.strip():
        return canonical_backend(slug_of(runtime))
    return _BACKENDS.get(hardware, hardware)


def precision_named(text: Any) -> str | None:
    """Return `float32` for fp32, FP32, torch.float32, …; an unknown precision keeps its lower-case text."""
    if not isinstance(text, str) or not text.strip():
        return None
    return canonical_precision(text)


def imported_id(facts: Mapping[str, Any] | str | None) -> str | None:
    """Return a stable id for a host or device known from a file only, never equal to a detected one.

    None where the file says nothing.
    """
    if not facts:
        return None
    if isinstance(facts, Mapping):
        facts = {key: value for key, value in facts.items() if value not in (None, "", [], {})}
    if not facts:
        return None
    text = _as_json(facts)
    return "imported-" + hashlib.sha256(text.encode()).hexdigest()[:16]


@lru_cache(maxsize=8192)
def device_id(hardware: str, host_id: str | None, device_name: str | None) -> str | None:
    """Return the id of a device that is known from a file only, None where the file says nothing of it."""
    return imported_id(device_facts(hardware, host_id, device_name))


def device_facts(hardware: str, host_id: str | None, device_name: str | None) -> dict[str, Any] | None:
    """Return the facts that identify a device: host and name. CPU runtimes of a host share one device."""
    kind = "cpu" if hardware in _ON_HOST_CPU else hardware
    if host_id is None and device_name is None:
        return None
    return {"host": host_id, "silicon": kind, "name": device_name}


def silicon_in(text: str) -> str | None:
    """Return the marketing name of a processor inside a longer text such as a folder name; None without one."""
    spaced = re.sub(r"[_.]", " ", text)
    found = (names.search(spaced.casefold()) for names, _ in _SILICON)
    return next((spaced[match.start() : match.end()].strip() for match in found if match), None)


def slug_of(text: str) -> str:
    """Return a text in lower case, with dashes for all but dots and the letters and digits of any script."""
    return re.sub(r"(?:[^\w.]|_)+", "-", text.casefold()).strip("-.")


def hardware_of_key(key: Any) -> str | None:
    """Return the hardware that a key such as `cuda_init`, `apple_tests` or `openvino` names; None if none."""
    first, _, rest = str(key).casefold().partition("_")
    return None if rest == "available" else _KEY_WORDS.get(first)


def model_of_script(path: str) -> str | None:
    """Return the model in the path of an old test script or result (`…/hf_t5_test_results.json`).

    The innermost part with a name counts. Evidence of last resort, because many of these files name no model inside.
    """
    names = [found["name"] for found in _TEST_SCRIPT.finditer(path)]
    return names[-1] if names else None


def is_hardware(name: str) -> bool:
    """Return whether a key of an old file is a hardware name."""
    return name in get_args(Hardware)


@lru_cache(maxsize=8192)
def _in_catalog(name: str) -> ModelName | None:
    spec = find_model(name)
    return None if spec is None else ModelName(spec.model_id, spec.family)


@lru_cache(maxsize=8192)
def _word(text: str) -> str | None:
    lowered = queried_device_name(without_count(text)).casefold()
    for word, hardware in _HARDWARE_WORDS:
        if re.search(rf"(?<![a-z]){re.escape(word)}(?![a-z])", lowered):
            return hardware
    return next((hardware for names, hardware in _SILICON if names.search(lowered.replace("_", " "))), None)


def _candidates(name: str) -> list[str]:
    bare = _bare(name)
    return list(dict.fromkeys((name, bare, bare.removesuffix("-test-model").removesuffix("_test_model"))))


def _bare(name: str) -> str:
    """Return a name without the affixes of scripts: folders of a local path, `test_`, `hf_`, `.py`."""
    is_path = name.startswith(("/", "./", "../", "~")) or name.count("/") > 1
    bare = name.rpartition("/")[2] if is_path else name
    bare = bare.removesuffix(".py").removeprefix("test_")
    return bare.removeprefix("hf_")
