"""Names of runtimes and engines, and the spellings of them in files of others. Add a name or a spelling here."""

from __future__ import annotations

import re

NOT_COMPARED = "[^a-z0-9]+"
"""Characters of a spelling, in lower case, that tell no names apart."""
_NAMES = ("llama.cpp", "onnxruntime", "openvino", "pytorch", "sglang", "tflite", "trtllm", "vllm")
_SYNONYMS = {"tensorrt-llm": "trtllm", "torch": "pytorch", "pytorch-native": "pytorch", "tensorflow-lite": "tflite"}


def _key(text: str) -> str:
    return re.sub(NOT_COMPARED, "", text.casefold())


_SPELLED = {name: name for name in _NAMES} | _SYNONYMS
SPELLINGS: dict[str, str] = {_key(spelling): name for spelling, name in _SPELLED.items()}
"""Names by the letters and digits of their spellings: TensorRT-LLM, tensorrt_llm and TRT-LLM are one engine."""


def canonical_backend(text: str) -> str:
    """Return `trtllm` for TensorRT-LLM or tensorrt_llm; a name that is not listed here is returned unchanged."""
    return SPELLINGS.get(_key(text), text)
