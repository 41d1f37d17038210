"""Loads (what users ask of a served model) and deployments (the devices, engine and quantization that serve it)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, get_args

from accel_platform.errors import InvalidInput
from accel_platform.hardware.catalog import DeviceSpec
from accel_platform.hardware.peaks import peak_ops_per_s
from accel_platform.workloads.kv_cache import Decoder
from predictor.schemas.serving import CacheType

Engine = Literal["vllm", "sglang", "trtllm", "llama.cpp", "deepspeed-mii", "deepspeed", "tgis"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
"""Engines with measured loads."""
MEASURED_BY_REQUESTS: dict[str | None, tuple[Engine, ...]] = {"NVIDIA": ("vllm", "sglang", "trtllm")}
"""Engines whose loads were measured with the times of each request, by the device's vendor."""
MEASURED_IN_BATCHES: dict[str | None, tuple[Engine, ...]] = {
    "NVIDIA": ("llama.cpp",),
    "AMD": ("vllm", "llama.cpp"),
    "Intel": ("vllm", "llama.cpp"),
}
"""Engines of which only whole batches were measured, by the GPU's vendor."""
ONLY_MEASURED_GPU: dict[str | None, str] = {"Intel": "Intel Data Center GPU Max 1550"}
"""The only measured GPU of a vendor. It is ten times slower than its rates say, so it tells nothing of the others."""
_ADA = 89
"""Compute capability of NVIDIA's Ada GPUs, times ten: the first that compute in 8-bit floating point."""
_READ_FROM: dict[str, dict[Engine, int]] = {
    "fp8": {"vllm": 75, "sglang": 80, "trtllm": _ADA},
    "mxfp4": {"vllm": 80, "sglang": 80, "trtllm": 90},
    "nvfp4": {"vllm": 75, "sglang": 80, "trtllm": 100},
}
"""Compute capability of NVIDIA's GPUs, times ten, from which engines serve weights of these formats.

Where a GPU does not compute in a format, engines widen the weights to 16 bits for each product; the kernels are
Marlin's. vLLM does so with fp8 on Ampere since July 2024 (its pull request 5975) and on Turing since 0.14 (29901),
SGLang on Ampere and only for models without experts. The figures are the least capabilities in vLLM 0.33, SGLang 0.5.23
and TensorRT-LLM's `model_config.py`, which gives MXFP4 kernels to Hopper and NVFP4 ones to Blackwell.
"""
_OF_NVIDIA = {"fp4": "nvfp4"}
"""Format of the fp4 repositories for NVIDIA's GPUs, as far as they do not say."""
_AMD_WITHOUT_FP8 = ("gfx9", "gfx10", "gfx11")
"""Prefixes of AMD architectures without 8-bit floating point, apart from `AMD_WITH_FP8`."""
AMD_WITH_FP8 = ("gfx94", "gfx95")
"""Prefixes of AMD architectures with 8-bit floating point among those of `_AMD_WITHOUT_FP8`."""
READERS: dict[str, tuple[Engine, ...]] = {
    "awq": ("vllm", "sglang"), "bitsandbytes": ("sglang",), "compressed-tensors": ("vllm", "sglang", "llama.cpp"),
    "exl2": (), "exl3": (), "gguf": ("llama.cpp",),
    "gptq": ("vllm", "sglang"), "mlc": (), "mlx": (), "onnx": (), "openvino": (),
}  # fmt: skip
"""Engines that serve weights of a format; any serves those that transformers stores, llama.cpp once converted.

vLLM serves no GGUF since 0.24 without a plugin, and no bitsandbytes in 0.33. TensorRT-LLM reads quantized weights of
ModelOpt, floating ones of compressed-tensors, and the fp8 and mxfp4 of DeepSeek and OpenAI, but neither AWQ, nor GPTQ,
nor integers of compressed-tensors (its `quant_config_utils.py` raises). SGLang's MLX is for Apple's chips.
"""


def few_bits_computed_in(
    engine: Engine, spec: DeviceSpec, decoder: Decoder, number_format: str
) -> Literal["float8", "float16"] | None:
    """Return the precision in which an engine computes with weights in fp8 or fp4; None if it cannot serve them.

    Parameters
    ----------
    number_format
        `fp8`, `mxfp4` or `nvfp4`; `fp4` is whichever of the last two the vendor's repositories have.

    Returns
    -------
    `float16` where the engine widens the weights for each product, as llama.cpp does on any device, because its weights
    are in formats of its own; `float8` where the device computes in the format, or in 8 bits at least.
    """
    if engine == "llama.cpp":
        return "float16"
    if (capability := spec.compute_capability) is not None:
        if capability < _READ_FROM[_OF_NVIDIA.get(number_format, number_format)].get(engine, _ADA):
            return None
        if capability >= _ADA:
            return "float8"
        return "float16" if number_format != "fp8" or engine == "vllm" or decoder.expert_share == 1 else None
    architecture = spec.architecture or ""
    if number_format == "fp8":
        lacks = architecture.startswith(_AMD_WITHOUT_FP8) and not architecture.startswith(AMD_WITH_FP8)
    else:
        lacks = number_format == "nvfp4" or not architecture.startswith(AMD_WITH_FP8)
    return None if lacks else "float8"


@dataclass(frozen=True)
class Quantization:
    """Sizes in which weights and key-value cache are stored, and the precision of products."""

    weight_bytes: float
    """Bytes of a weight, with its share of the scales of its block."""
    cache_bytes: float
    """Bytes of one number of keys and values."""
    computed_in: str
    """Precision of the matrix products, as `peak_ops_per_s` names it."""


QUANTIZATIONS = {
    "bfloat16": Quantization(2.0, 2.0, "bfloat16"),
    "float16": Quantization(2.0, 2.0, "float16"),
    "fp8": Quantization(1.0, 1.0, "float8"),
    "int8": Quantization(1.0, 2.0, "int8"),
    # Blocks of 16 (nvfp4) or 32 (mxfp4) weights share a scale of 8 bits; groups of 128 (awq, gptq) a scale and a zero.
    "fp4": Quantization(0.5625, 1.0, "float4"),
    "int4": Quantization(0.52, 2.0, "bfloat16"),
}
FEW_BITS = frozenset(("fp8", "fp4"))
"""Quantizations that not every device computes in, and not every engine widens."""
_QUANTIZATION_NAMES = {
    "bf16": "bfloat16", "fp16": "float16", "half": "float16", "float8": "fp8", "e4m3": "fp8", "fp8_block": "fp8",
    "w8a8": "int8", "w8a16": "int8", "q8_0": "int8", "nvfp4": "fp4", "mxfp4": "fp4", "float4": "fp4", "awq": "int4",
    "gptq": "int4", "w4a16": "int4", "int4_wo": "int4", "q4_0": "int4", "q4_k_m": "int4",
}  # fmt: skip


@dataclass(frozen=True)
class StoredWeights:
    """Weights as a repository stores them."""

    quantization: str
    """A key of `QUANTIZATIONS`."""
    number_format: str
    """The same, but with `mxfp4` and `nvfp4` told apart where the repository says which."""
    readers: tuple[Engine, ...] = ENGINES
    """Engines that serve the format of its files."""

    def served_by(self, engine: Engine, spec: DeviceSpec, decoder: Decoder) -> bool:
        """Return whether an engine reads the files, and serves the weights on a device."""
        computes = self.quantization not in FEW_BITS or (
            few_bits_computed_in(engine, spec, decoder, self.number_format) is not None
        )
        return engine in self.readers and computes


CACHE_BYTES: dict[CacheType, float] = {"bfloat16": 2.0, "fp8": 1.0}
"""Bytes of one number of keys and values, by the type that a query asks for."""


@dataclass(frozen=True)
class Load:
    """Closed-loop load: concurrent users, each of whom sends the next request when the last one is answered."""

    users: float
    input_tokens: float
    """Mean tokens of a prompt."""
    output_tokens: float
    """Mean tokens of an answer."""
    batch: bool = False
    """True if all requests come at once and none follows, so that no prompt is computed while others generate."""
    cached_share: float = 0.0
    """Share of a prompt's tokens whose keys and values the prefix cache holds, so that they are not computed."""


@dataclass(frozen=True)
class PromptWorkers:
    """Workers that compute prompts for the copies that generate (prefill workers in disaggregated serving)."""

    per_copy: Fraction
    """Number of workers per generating copy: 1/2 where two copies share one."""
    devices: int = 1
    """Devices of one worker."""
    attention_copies: int = 1
    """As of a `Deployment`."""


@dataclass(frozen=True)
class Slots:
    """Most requests that copies generate for at once, where a setting of the engine limits them below what fits."""

    per_copy: int
    copies: int
    """Copies over which requests are spread: of several some have too many of them while others have slots free."""


@dataclass(frozen=True)
class Deployment:
    """One copy of a model: an engine on devices of one kind, in one host or as a pipeline over several."""

    decoder: Decoder
    device: DeviceSpec
    engine: Engine
    quantization: str
    devices: int = 1
    """Devices of all stages together."""
    attention_copies: int = 1
    """Number of groups of devices that each hold the cache of their own requests (data-parallel attention)."""
    cache_type: CacheType = "auto"
    """Type of keys and values; `auto` is that of the quantization."""
    stages: int = 1
    """Pipeline stages: hosts that each hold some of the layers, on their share of the devices."""
    prompts: PromptWorkers | None = None
    """Workers that compute its prompts; None if it computes them itself (aggregated serving)."""
    slots: Slots | None = None
    """None where as many requests run as fit into memory. Only measured disaggregated deployments state any."""
    engine_version: str | None = None
    """None if unknown: predicted as the newest version that was measured with the model on the device."""

    @property
    def load_group(self) -> str:
        """Key of the loads with the same model shape, device and engine, mostly measured together by one person.

        Held out together, because they share what is particular to how they were measured.
        """
        return f"{self.model_shape}, {self.device.name}, {self.engine}"

    @property
    def model_shape(self) -> str:
        """Text of the sizes that identify a model whatever its name: parameters, active ones, layers, width."""
        d = self.decoder
        return f"{d.parameters:.5g} {d.active_parameters:.5g} {d.layers:g} {d.width:g}"

    @property
    def weights_widened(self) -> bool:
        """True if few bits are widened for each product, so that products, keys and values are in 16 bits."""
        of = self.engine, self.device, self.decoder, self.quantization
        return self.quantization in FEW_BITS and few_bits_computed_in(*of) == "float16"

    @property
    def storage(self) -> Quantization:
        """Sizes and precision in use: those of the quantization, in 16 bits but for the weights if they are widened."""
        nominal = QUANTIZATIONS[self.quantization]
        return replace(nominal, cache_bytes=2.0, computed_in="float16") if self.weights_widened else nominal

    @property
    def cache_bytes(self) -> float:
        """Bytes of one number of keys and values."""
        return self.storage.cache_bytes if self.cache_type == "auto" else CACHE_BYTES[self.cache_type]

    @property
    def side_by_side(self) -> int:
        """Devices that work on a layer together; 1 for llama.cpp, which gives each device some of the layers."""
        return 1 if self.engine == "llama.cpp" else self.devices // self.stages

    @property
    def loaded(self) -> bool:
        """True if loads of this engine on devices of this vendor were measured with the times of each request."""
        return self.engine in MEASURED_BY_REQUESTS.get(self.device.vendor, ())

    @property
    def flops(self) -> float:
        """FLOPs per second of one device in matrix products; NaN where no rate is published."""
        return peak_ops_per_s(self.device, self.storage.computed_in) or float("nan")


def resolve_quantization(name: str) -> str:
    """Return the quantization of this name: `fp4` for nvfp4. Raises InvalidInput with the known names."""
    word = name.strip().casefold()
    found = _QUANTIZATION_NAMES.get(word, word)
    if found not in QUANTIZATIONS:
        known = ", ".join([*QUANTIZATIONS, *_QUANTIZATION_NAMES])
        raise InvalidInput(f"No quantization is called {name!r}. Known: {known}.")
    return found


def number_format_of(quantization: str, *words: str | None) -> str:
    """Return the first of some words that tells which format a quantization in fp4 is of; else the quantization."""
    told = (word.strip().casefold() for word in words if word is not None)
    return next((word for word in told if quantization == "fp4" and word in ("mxfp4", "nvfp4")), quantization)
