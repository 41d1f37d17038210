"""Names as old files write them, brought to the platform's own: models, hardware, precisions, hosts and devices.

Every original text stays with the row; a name nobody knows keeps a slug of itself. Units and times are in `values.py`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, get_args

from accel_platform.errors import NotFound
from accel_platform.events.types import Hardware
from accel_platform.workloads.families import resolve_model

UNKNOWN_FAMILY = "unknown"

_HARDWARE_WORDS: tuple[tuple[str, Hardware], ...] = (
    ("openvino", "openvino"),
    ("onnxruntime", "onnxruntime"),
    ("onnx runtime", "onnxruntime"),
    ("webgpu", "webgpu"),
    ("webnn", "webnn"),
    ("rocm", "rocm"),
    ("cuda", "cuda"),
    ("nvidia", "cuda"),
    ("mps", "mps"),
    ("qnn", "qnn"),
    ("qualcomm", "qnn"),
    ("jax", "jax"),
    ("wasm", "wasm"),
    ("cpu", "cpu"),
)
_BACKENDS: dict[Hardware, str] = {
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
_PRECISIONS = {
    "float64": ("float64", "fp64", "f64", "double"),
    "float32": ("float32", "fp32", "f32", "float"),
    "float16": ("float16", "fp16", "f16", "half"),
    "bfloat16": ("bfloat16", "bf16"),
    "int8": ("int8", "i8", "qint8"),
    "int4": ("int4", "i4"),
}
_PRECISION_OF = {word: precision for precision, words in _PRECISIONS.items() for word in words}
_KEY_WORDS: dict[str, Hardware] = {
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
_ON_HOST_CPU: frozenset[Hardware] = frozenset({"cpu", "openvino", "onnxruntime"})


@dataclass(frozen=True)
class ModelName:
    """A model as the platform calls it."""

    model_id: str
    family: str


def model_named(*texts: Any, family: Any = None) -> ModelName | None:
    """The model that the first resolvable text names; else a slug of the first text, with the file's own family.

    Test-script names (`test_hf_bert.py`), `hf_` prefixes, hub organisations and local paths are seen through. None
    where no text names anything.
    """
    names = [text.strip() for text in texts if isinstance(text, str) and text.strip()]
    for name in names:
        if (known := _known_model(name)) is not None:
            return known
    slugs = [slug for name in names if (slug := slug_of(_bare(name)))]
    if not slugs:
        return None
    own = slug_of(family) if isinstance(family, str) else ""
    return ModelName(slugs[0], own or UNKNOWN_FAMILY)


@lru_cache(maxsize=10_000)
def _known_model(name: str) -> ModelName | None:
    """The catalogue's model behind a name. Archives repeat few names often, and looking one up in vain is slow."""
    for candidate in _candidates(name):
        try:
            spec = resolve_model(candidate)
        except NotFound:
            continue
        return ModelName(spec.model_id, spec.family)
    return None


def hardware_named(text: Any, runtime: Any = None) -> Hardware | None:
    """The hardware name that a text such as `cuda:0 (mock)`, `Apple MPS` or `OpenVINO` means; None if none.

    A runtime of its own on the CPU (`runtime="onnxruntime"`) gives its name to the hardware.
    """
    if not isinstance(text, str):
        return None
    found = _word(text)
    by_runtime = _word(runtime) if isinstance(runtime, str) else None
    if found == "cpu" and by_runtime in _ON_HOST_CPU:
        return by_runtime
    return found


def backend_named(hardware: Hardware, runtime: Any = None) -> str:
    """The runtime a file names, else the one the hardware name implies."""
    if isinstance(runtime, str) and runtime.strip():
        slug = slug_of(runtime)
        return {"torch": "pytorch", "pytorch-native": "pytorch", "onnx-runtime": "onnxruntime"}.get(slug, slug)
    return _BACKENDS[hardware]


def precision_named(text: Any) -> str | None:
    """`float32` for fp32, FP32, torch.float32, …; an unknown precision keeps its own lower-case text."""
    if not isinstance(text, str) or not text.strip():
        return None
    word = text.strip().lower().removeprefix("torch.")
    return _PRECISION_OF.get(word, word)


def imported_id(facts: Mapping[str, Any] | str | None) -> str | None:
    """A stable id for a host or device that only a file tells of, so that it is never taken for one seen here.

    None where the file says nothing.
    """
    if isinstance(facts, Mapping):
        facts = {key: value for key, value in facts.items() if value not in (None, "", [], {})}
    if not facts:
        return None
    text = json.dumps(facts, sort_keys=True, default=str)
    return "imported-" + hashlib.sha256(text.encode()).hexdigest()[:16]


def device_facts(hardware: Hardware, host_id: str | None, device_name: str | None) -> dict[str, Any] | None:
    """What tells one piece of silicon from another: its host and name. CPU runtimes of a host share one device."""
    silicon = "cpu" if hardware in _ON_HOST_CPU else hardware
    if host_id is None and device_name is None:
        return None
    return {"host": host_id, "silicon": silicon, "name": device_name}


def slug_of(text: str) -> str:
    """Lower case, everything but letters, digits and dots turned to single dashes."""
    return re.sub(r"[^a-z0-9.]+", "-", text.casefold()).strip("-.")


def hardware_of_key(key: Any) -> Hardware | None:
    """The hardware a key such as `cuda_init`, `apple_tests` or `openvino` speaks of; None if it names none."""
    first, _, rest = str(key).casefold().partition("_")
    return None if rest == "available" else _KEY_WORDS.get(first)


def model_of_script(path: str) -> str | None:
    """The model that the name of an old test script or of its results stands for (`…/hf_t5_test_results.json`), from
    the innermost part of the path that has one. Evidence of last resort: many of these files name no model inside."""
    names = [found["name"] for found in _TEST_SCRIPT.finditer(path)]
    return names[-1] if names else None


def is_hardware(name: str) -> bool:
    """Whether a key of an old file is a hardware name."""
    return name in get_args(Hardware)


def _word(text: str) -> Hardware | None:
    lowered = text.casefold()
    for word, hardware in _HARDWARE_WORDS:
        if re.search(rf"(?<![a-z]){re.escape(word)}(?![a-z])", lowered):
            return hardware
    return None


def _candidates(name: str) -> list[str]:
    bare = _bare(name)
    return list(dict.fromkeys((name, bare, bare.removesuffix("-test-model").removesuffix("_test_model"))))


def _bare(name: str) -> str:
    """A name without what scripts put around it: directories of a local path, `test_`, `hf_`, `.py`."""
    is_path = name.startswith(("/", "./", "../", "~")) or name.count("/") > 1
    bare = name.rpartition("/")[2] if is_path else name
    bare = bare.removesuffix(".py").removeprefix("test_")
    return bare.removeprefix("hf_")
