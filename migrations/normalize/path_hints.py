"""Hints in file paths, for tools that write neither model nor hardware into their files.

A path is weak evidence: readers that use it keep the part it came from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from accel_platform.errors import InvalidInput
from accel_platform.hardware.catalog import find_spec
from accel_platform.hardware.instances import find_instance
from migrations.normalize.canonical_names import hardware_named, silicon_in
from migrations.sources.archives import archive_kind, members
from migrations.sources.documents import Document, load, parse

_MODEL = re.compile(
    r"(?<![A-Za-z0-9])(?:meta-)?(?:llama|code-?llama|vicuna|mistral|mixtral|qwen|qwq|falcon|gemma|gpt|bloom|opt-|phi-?|deepseek|glm|"
    r"kimi|whisper|wav2vec|roberta|distilbert|deberta|bert|bge|flan|t5|vit|clip|resnet|resnext|mobilenet|efficientnet|"
    r"densenet|inception|yolo|stable-diffusion|sdxl|unet|dlrm|retinanet|rnnt|ssd-)"
    r"[A-Za-z0-9.]*(?:[-_](?:\d[\w.]*|[A-Za-z][A-Za-z0-9.]*))*",
    re.IGNORECASE,
)
_NOT_OF_A_MODEL = re.compile(
    r"[-_](?:seq|len|batch|bs|tp|pp|dp|auto|opt|qnt|sweep|results?|bench\w*|report|run|out\w*|perf|latency|throughput|"
    r"fp\d+|bf16|int8|int4|cuda|cpu|gpu|rocm|trt|tensorrt|onnx|a100|h100|h200|b200|mi300x|l4|t4|concurrency|qps|rate|\d{8}).*",
    re.IGNORECASE,
)
_MAX_NEIGHBOR_BYTES = 1_000_000
_MAX_NEIGHBORS = 40
_SHORT = 20


def parts(source_path: str) -> list[str]:
    """Return the components of a path, the innermost first, the file name without its ending."""
    plain = source_path.partition("#")[0].replace("!", "/")
    components = [part for part in plain.split("/") if part]
    if components:
        components[-1] = re.sub(r"\.(?:jsonl?|csv|txt|log|ndjson)$", "", components[-1], flags=re.IGNORECASE)
    return components[::-1]


@dataclass(frozen=True)
class GivenNames:
    """Names that a person gives for files that lack them."""

    device: str | None = None
    engine: str | None = None
    """Engine that served the model of a load report."""

    def __bool__(self) -> bool:
        return self != GivenNames()


NOTHING_GIVEN = GivenNames()
_given: ContextVar[GivenNames] = ContextVar("_given", default=NOTHING_GIVEN)


@contextmanager
def names_given(names: GivenNames) -> Iterator[None]:
    """Have `given_names` and `hardware_part` return these names within the block.

    Raises InvalidInput for an unknown device and for an engine without a name.
    """
    if names.device is not None and hardware_named(spaced(names.device)) is None:
        raise InvalidInput(f"{names.device!r} names no device: write it as 'NVIDIA L40S', or as `accel devices` does.")
    if names.engine is not None and not names.engine.strip():
        raise InvalidInput("--engine is empty: name what served the model, such as vllm, sglang or llama.cpp.")
    token = _given.set(names)
    try:
        yield
    finally:
        _given.reset(token)


def given_names() -> GivenNames:
    """Return the names that were given for files that lack them."""
    return _given.get()


def hardware_part(source_path: str) -> str | None:
    """Return the device that was given, else the innermost component of the path that names hardware, such as
    `A100-80GB` or `cpu_1_10`; None if none."""
    return _given.get().device or _hardware_part(source_path)


@lru_cache(maxsize=256)
def _hardware_part(source_path: str) -> str | None:
    return next((part for part in parts(source_path) if hardware_named(spaced(part)) is not None), None)


@lru_cache(maxsize=256)
def model_part(source_path: str) -> str | None:
    """Return the innermost known model name in a path, with the organization of its folder."""
    components = parts(source_path)
    for index, part in enumerate(components[:8]):
        found = _MODEL.search(part)
        if found is None:
            continue
        name = _NOT_OF_A_MODEL.sub("", found[0])
        before = components[index + 1] if index + 1 < len(components) else ""
        return f"{before}/{name}" if before in _ORGANIZATIONS and found[0] == part else name
    return None


def device_in(part: str | None) -> str | None:
    """Return the device name in a path component: all of it if it was given, is known or short, else the name inside.

    A name inside loses detail: `NVIDIA-A100-SXM4-40GB` holds the name A100, of which there is one with 80 GB as well.
    """
    if part is None:
        return None
    is_name = part == _given.get().device or find_spec(part) or find_instance(part) or len(part) <= _SHORT
    return part if is_name else silicon_in(part)


def given_device(hardware: str, runtime: Any) -> str | None:
    """Return the device that was given, if it goes by this hardware name; else None."""
    device = _given.get().device
    return device if device is not None and hardware_named(spaced(device), runtime) == hardware else None


def spaced(text: str) -> str:
    """Return a component with separators as blanks, so that names in it stand alone; an instance's name as it is."""
    return text if find_instance(text) else re.sub(r"[_()+,=.-]+", " ", text)


def neighbors(document: Document, *, containing: str) -> Iterator[Any]:
    """Yield the JSON objects and lists in files of the same folder (or archive) whose name contains a text, by name."""
    archive, _, member = document.source_path.rpartition("!")
    path = Path(archive or document.source_path)
    if not path.is_absolute() or not path.is_file():
        return
    if archive:
        folder = PurePosixPath(member).parent
        found = _members(path, path.stat().st_mtime_ns, containing)
        yield from (value for name, value in found if name.parent == folder and str(name) != member)
        return
    others = (other for other in sorted(path.parent.iterdir()) if containing in other.name.casefold() and other != path)
    for _, other in zip(range(_MAX_NEIGHBORS), others, strict=False):
        if other.is_file() and other.stat().st_size <= _MAX_NEIGHBOR_BYTES:
            beside = parse(load(other))
            if beside.kind in ("json", "json_lines"):
                yield beside.value


@lru_cache(maxsize=2)
def _members(archive: Path, _modified_ns: int, containing: str) -> tuple[tuple[PurePosixPath, Any], ...]:
    """Return the JSON values of an archive whose name contains a text, by name; cached for its many members."""
    content = load(archive)
    kind = archive_kind(content)
    found = {}
    with suppress(ValueError):  # broken from some place on
        for member in members(content, kind) if kind else ():
            name = PurePosixPath(member.source_path.rpartition("!")[2])
            if containing in name.name.casefold() and len(member.raw) <= _MAX_NEIGHBOR_BYTES and not member.large_bytes:
                inside = parse(member)
                if inside.kind in ("json", "json_lines"):
                    found[name] = inside.value
    return tuple((name, found[name]) for name in sorted(found))


_ORGANIZATIONS = {
    "NousResearch", "meta-llama", "TheBloke", "mistralai", "Qwen", "facebook", "openai", "google", "microsoft",
    "EleutherAI", "tiiuae", "bigscience", "BAAI", "deepseek-ai", "huggyllama", "lmsys", "nvidia", "databricks",
}  # fmt: skip
