"""Serving engines with measured loads: their devices, the weights that they read, and how they compute with them."""

from __future__ import annotations

from typing import Literal, get_args

from accel_platform.hardware.catalog import DeviceSpec
from accel_platform.workloads.kv_cache import Decoder

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
TURING = 75
"""Compute capability of NVIDIA's Turing GPUs, times ten: the first that vLLM's installation guide of 2026 names."""
_ADA = 89
"""Compute capability of NVIDIA's Ada GPUs, times ten: the first that compute in 8-bit floating point."""
_LEAST_CAPABILITY: dict[str, dict[Engine, int]] = {
    "fp8": {"vllm": 75, "sglang": 80, "trtllm": _ADA},
    "mxfp4": {"vllm": 80, "sglang": 80, "trtllm": 90},
    "nvfp4": {"vllm": 75, "sglang": 80, "trtllm": 100},
}
"""Compute capability of NVIDIA's GPUs, times ten, from which engines serve weights of these formats.

Where a GPU does not compute in a format, engines widen the weights to 16 bits for each product; the kernels are
Marlin's. vLLM does so with fp8 on Ampere since July 2024 (its pull request 5975) and on Turing since 0.14 (29901).
SGLang does so on Ampere, and only for models without experts. The figures are the least capabilities in vLLM 0.33,
SGLang 0.5.23 and TensorRT-LLM's `model_config.py`, which gives MXFP4 kernels to Hopper and NVFP4 ones to Blackwell.
"""
_BLACKWELL = 100
"""Compute capability of NVIDIA's first Blackwell GPUs, times ten."""
_NVIDIA_FP4 = {"fp4": "nvfp4"}
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
ModelOpt, floating ones of compressed-tensors, and the fp8 and mxfp4 of DeepSeek and OpenAI. It reads neither AWQ, nor
GPTQ, nor integers of compressed-tensors (its `quant_config_utils.py` raises). SGLang's MLX is for Apple's chips.
"""

TRTLLM_MODEL_TYPES = frozenset(
    (
        "afmoe", "cohere2", "deepseek_v3", "deepseek_v32", "deepseek_v4", "exaone4", "exaone_moe", "gemma3",
        "gemma3_text", "gemma3n", "gemma3n_text", "gemma4", "gemma4_text", "glm4_moe", "glm_moe_dsa", "gpt_oss",
        "kimi_k2", "kimi_k25", "llama", "llama4", "llama4_text", "minimax_m3", "mistral", "mistral3", "mixtral",
        "mllama", "nemotron", "nemotron-nas", "nemotron_h", "phi3", "qwen2", "qwen2_5_vl", "qwen2_vl", "qwen3",
        "qwen3_5", "qwen3_5_moe", "qwen3_moe", "qwen3_next", "qwen3_vl", "qwen3_vl_moe", "step3p7",
    )
)  # fmt: skip
"""Kinds of models that TensorRT-LLM serves, as transformers names them.

They are those of its PyTorch backend, which `trtllm-serve` takes by default, in its `supported-models.md` of November
2026. vLLM and SGLang serve nearly all others, some by transformers' own code.
"""

TYPES_WITH_OWN_CODE = frozenset(("aquila", "baichuan", "deci", "internlm2", "kimi_k2", "kimi_k25"))
"""Kinds of models whose repositories bring a model or a tokenizer as code, which engines run only if told to."""


def serves_integers(engine: Engine, spec: DeviceSpec, quantization: str) -> bool:
    """Return whether an engine serves weights in `int8` or `int4` on a device.

    TensorRT-LLM serves none in int8, and those in int4 up to Hopper (its `quantization.md`).
    """
    if engine != "trtllm":
        return True
    return quantization == "int4" and (spec.compute_capability or 0) < _BLACKWELL


def low_bit_compute_precision(
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
        if capability < _LEAST_CAPABILITY[_NVIDIA_FP4.get(number_format, number_format)].get(engine, _ADA):
            return None
        if capability >= _ADA and (number_format != "nvfp4" or capability >= _BLACKWELL):
            return "float8"
        return "float16" if number_format != "fp8" or engine == "vllm" or decoder.expert_share == 1 else None
    architecture = spec.architecture or ""
    if number_format == "fp8":
        lacks = architecture.startswith(_AMD_WITHOUT_FP8) and not architecture.startswith(AMD_WITH_FP8)
    else:
        lacks = number_format == "nvfp4" or not architecture.startswith(AMD_WITH_FP8)
    return None if lacks else "float8"
