"""What the place of a file says of its content, for tools that write neither model nor hardware into it.

A directory or file name is weak evidence: readers that use it keep the part of the path it came from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from migrations.documents import Document, load, parse
from migrations.identity import hardware_named

_MODEL_WORDS = re.compile(
    r"llama|vicuna|mistral|mixtral|qwen|falcon|gemma|gpt|bloom|opt-|phi-|deepseek|whisper|wav2vec|bert|bge|"
    r"t5|vit|clip|resnet|mobilenet|efficientnet|yolo|stable-diffusion|sdxl|unet|dlrm|retinanet|rnnt|ssd-",
    re.IGNORECASE,
)
_VERBS = re.compile(r"^(?:running|training|benchmarking|bench|benchmark)[-_]", re.IGNORECASE)
_LARGEST_NEIGHBOUR = 1_000_000
_NEIGHBOURS = 40


def parts(source_path: str) -> list[str]:
    """The components of a path, the innermost first, the file's name without its ending."""
    plain = source_path.partition("#")[0].replace("!", "/")
    components = [part for part in plain.split("/") if part]
    if components:
        components[-1] = re.sub(r"\.(?:jsonl?|csv|txt|log|ndjson)$", "", components[-1], flags=re.IGNORECASE)
    return components[::-1]


def hardware_part(source_path: str) -> str | None:
    """The innermost component that names hardware, such as `A100-80GB` or `cpu_1_10`; None if none does."""
    return next((part for part in parts(source_path) if hardware_named(_spaced(part)) is not None), None)


def model_part(source_path: str) -> str | None:
    """The innermost component that names a known kind of model, with the organisation before it where there is one."""
    components = parts(source_path)
    for index, part in enumerate(components[:8]):
        if _MODEL_WORDS.search(part):
            before = components[index + 1] if index + 1 < len(components) else ""
            is_hub_name = index > 0 and re.fullmatch(r"[A-Za-z][\w.-]*", before) and re.search(r"\d", part)
            is_known = before in _ORGANISATIONS
            return f"{before}/{part}" if is_hub_name and is_known else _VERBS.sub("", part)
    return None


def spaced(text: str) -> str:
    """A component with its separators as blanks, so that names in it stand alone."""
    return _spaced(text)


def neighbours(document: Document, *, containing: str) -> Iterator[dict[str, Any]]:
    """The JSON objects in files of the same directory whose name contains a text, in the order of their names."""
    path = Path(document.source_path)
    if not path.is_absolute() or not path.is_file():
        return
    found = (other for other in sorted(path.parent.iterdir()) if containing in other.name.casefold() and other != path)
    for _, other in zip(range(_NEIGHBOURS), found, strict=False):
        if other.is_file() and other.stat().st_size <= _LARGEST_NEIGHBOUR:
            value = parse(load(other)).value
            if isinstance(value, dict):
                yield value


_ORGANISATIONS = {
    "NousResearch", "meta-llama", "TheBloke", "mistralai", "Qwen", "facebook", "openai", "google", "microsoft",
    "EleutherAI", "tiiuae", "bigscience", "BAAI", "deepseek-ai", "huggyllama", "lmsys", "nvidia", "databricks",
}  # fmt: skip


def _spaced(part: str) -> str:
    return re.sub(r"[_()+,=.-]+", " ", part)
