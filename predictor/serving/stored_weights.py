"""Weights as a repository stores them: their quantization and format, by what its hub id and its config say."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from accel_platform.hardware.catalog import DeviceSpec
from accel_platform.workloads.kv_cache import Decoder
from predictor.serving.engines import ENGINES, Engine, low_bit_compute_precision, serves_integers
from predictor.serving.quantization import INTEGERS, LOW_BIT_FLOATS

_STATED = {
    "4bit": "int4", "8bit": "int8", "awq": "int4", "bf16": "bfloat16", "bfloat16": "bfloat16", "fp16": "float16",
    "fp4": "fp4", "fp8": "fp8", "gptq": "int4", "int4": "int4", "int8": "int8", "iq4": "int4", "mxfp4": "mxfp4",
    "nf4": "int4", "nvfp4": "nvfp4", "q4": "int4", "q8": "int8", "w4a16": "int4", "w8a8": "int8",
}  # fmt: skip
"""Quantizations as `resolve_quantization` takes them, by the words with which hub ids and configs state them."""
_WIDENED = {
    "1bit": "int4", "2bit": "int4", "3bit": "int4", "5bit": "int8", "6bit": "int8", "iq1": "int4", "iq2": "int4",
    "iq3": "int4", "q2": "int4", "q3": "int4", "q5": "int8", "q6": "int8",
}  # fmt: skip
"""Quantizations that the platform does not tell apart, with the next one of more bits."""
_FORMATS = {
    "awq": "awq", "bnb": "bitsandbytes", "bitsandbytes": "bitsandbytes", "exl2": "exl2", "exl3": "exl3", "gguf": "gguf",
    "gptq": "gptq", "mlc": "mlc", "mlx": "mlx", "onnx": "onnx", "openvino": "openvino",
}  # fmt: skip
"""Formats of weights that not every engine reads, by the words with which hub ids and configs state them."""
_COMPRESSED = {"int4": "int4", "int8": "int8", "float8": "fp8", "float4": "nvfp4"}
"""Quantizations by the type and the bits of a weight, as configs of compressed-tensors state them."""


@dataclass(frozen=True)
class StoredWeights:
    """Quantization of a repository's weights, and the engines that read their format."""

    quantization: str
    """A key of `QUANTIZATIONS`."""
    number_format: str
    """The quantization, with `mxfp4` or `nvfp4` in the place of `fp4` where the repository says which."""
    readers: tuple[Engine, ...] = ENGINES
    """Engines that serve the format of its files."""
    size_bytes: float | None = None
    """Bytes of all weights where the quantization alone does not say them."""

    def served_by(self, engine: Engine, spec: DeviceSpec, decoder: Decoder) -> bool:
        """Return whether an engine reads the files, and serves the weights on a device."""
        if engine not in self.readers:
            return False
        if self.quantization in INTEGERS:
            return serves_integers(engine, spec, self.quantization)
        if self.quantization not in LOW_BIT_FLOATS:
            return True
        return low_bit_compute_precision(engine, spec, decoder, self.number_format) is not None


def number_format_of(quantization: str, *names: str | None) -> str:
    """Return `mxfp4` or `nvfp4` for fp4, whichever of the names comes first; the quantization if none does."""
    known = (name.strip().casefold() for name in names if name is not None)
    return next((name for name in known if quantization == "fp4" and name in ("mxfp4", "nvfp4")), quantization)


def rounds_bits_up(name: str) -> bool:
    """Return whether a hub id states fewer bits than the quantization that stands for them: `Q6_K` for int8."""
    return any(word in _WIDENED for word in words_in(name))


def quantization_of_config(config: Mapping[str, Any]) -> str | None:
    """Return the quantization in which a config stores its weights; None for 16 bits or an unknown quantization."""
    if (stored := _quantization_config(config)) is None:
        return None
    if groups := stored.get("config_groups"):
        # The group of the most layers counts; its format tells MXFP4 from NVFP4.
        weights = max(groups.values(), key=lambda group: len(group.get("targets") or ())).get("weights") or {}
        width = _COMPRESSED.get(f"{weights.get('type')}{weights.get('num_bits')}")
        return quantization_in(str(stored.get("format"))) or width
    bits = 4 if stored.get("load_in_4bit") else 8 if stored.get("load_in_8bit") else stored.get("bits")
    return quantization_in(f"{stored.get('quant_method')} {stored.get('quant_algo')} {bits}bit".casefold())


def format_of_hub_id(name: str) -> str | None:
    """Return the format of weights that a hub id states: `gguf`; None for that of transformers, which all convert."""
    return next((_FORMATS[word] for word in words_in(name) if word in _FORMATS), None)


def format_of_config(config: Mapping[str, Any]) -> str | None:
    """Return the format of weights that a config states; None for that of transformers."""
    stored = _quantization_config(config)
    return None if stored is None else _FORMATS.get(str(stored.get("quant_method")))


def _quantization_config(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the `quantization_config` of a config, or of its `text_config` where the model reads images."""
    for part in (config, config.get("text_config")):
        if isinstance(part, Mapping) and isinstance(stored := part.get("quantization_config"), Mapping):
            return stored
    return None


def quantization_in(text: str) -> str | None:
    """Return the quantization that a text states last: `int4` for `-AWQ`; None for none."""
    # The last one counts, because `GPTQ-Int8` states the method first.
    known, words = _STATED | _WIDENED, words_in(text)
    # After an `a` stands the precision of activations: `w-mxfp4-a-fp8`.
    stated = [known[word] for word, before in zip(words, ["", *words], strict=False) if word in known and before != "a"]
    return stated[-1] if stated else None


def words_in(text: str) -> list[str]:
    """Return the words of a name, in lower case."""
    return re.findall(r"[a-z0-9]+", text.casefold())
