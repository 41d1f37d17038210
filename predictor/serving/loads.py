"""Loads and deployments: what users ask of a served model, and the devices, engine and precision that serve it."""

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
"""Engines of which measured loads are at hand."""
LOADED: dict[str | None, tuple[Engine, ...]] = {"NVIDIA": ("vllm", "sglang", "trtllm")}
"""Engines whose loads were measured request by request, by the maker of the device."""
BATCHED: dict[str | None, tuple[Engine, ...]] = {
    "NVIDIA": ("llama.cpp",),
    "AMD": ("vllm", "llama.cpp"),
    "Intel": ("vllm", "llama.cpp"),
}
"""Engines of which only whole batches were measured, by the maker of the GPU."""
ONE_MEASURED: dict[str | None, str] = {"Intel": "Intel Data Center GPU Max 1550"}
"""The one GPU of a maker that was measured, ten times slower than its figures say: that tells nothing of its others."""


_ADA = 89
"""Compute capability, times ten, from which NVIDIA's GPUs compute in 8-bit floating point."""
_FP8_WIDENED_FROM = {"vllm": 75, "sglang": 80}
"""Compute capability, times ten, from which engines keep such weights and widen them for 16-bit products (Marlin): vLLM
on Ampere since July 2024 (its pull request 5975) and Turing since 0.14 (29901), SGLang on Ampere, without experts."""
_AMD_WITHOUT_FP8 = ("gfx9", "gfx10", "gfx11")
_AMD_WITH_FP8 = ("gfx94", "gfx95")
"""AMD's architectures whose GPUs compute in 8-bit floating point, among those whose names begin with the above."""


def fp8_computed_in(engine: str, spec: DeviceSpec, decoder: Decoder) -> Literal["float8", "float16"] | None:
    """Return what an engine computes in with fp8 weights on a device: 16 bits where it widens them for each product.

    None where it serves no such model there. llama.cpp widens on any device: its weights are in formats of its own.
    """
    if engine == "llama.cpp":
        return "float16"
    if (capability := spec.compute_capability) is not None:
        widened = capability >= _FP8_WIDENED_FROM.get(engine, _ADA) and (engine == "vllm" or decoder.expert_share == 1)
        return "float8" if capability >= _ADA else "float16" if widened else None
    architecture = spec.architecture or ""
    lacks = architecture.startswith(_AMD_WITHOUT_FP8) and not architecture.startswith(_AMD_WITH_FP8)
    return None if lacks else "float8"


@dataclass(frozen=True)
class Quantization:
    """How weights and cache are kept, and what products are computed in."""

    weight_bytes: float
    """Bytes of a weight, with the scales of its block where blocks have some."""
    cache_bytes: float
    computed_in: str
    """Name under which `peak_ops_per_s` knows the rate."""


QUANTIZATIONS = {
    "bfloat16": Quantization(2.0, 2.0, "bfloat16"),
    "float16": Quantization(2.0, 2.0, "float16"),
    "fp8": Quantization(1.0, 1.0, "float8"),
    "int8": Quantization(1.0, 2.0, "int8"),
    # Blocks of 16 (nvfp4) or 32 (mxfp4) weights share a scale of 8 bits; groups of 128 (awq, gptq) a scale and a zero.
    "fp4": Quantization(0.5625, 1.0, "float4"),
    "int4": Quantization(0.52, 2.0, "bfloat16"),
}
_QUANTIZATION_NAMES = {
    "bf16": "bfloat16", "fp16": "float16", "half": "float16", "float8": "fp8", "e4m3": "fp8", "fp8_block": "fp8",
    "w8a8": "int8", "nvfp4": "fp4", "mxfp4": "fp4", "float4": "fp4", "awq": "int4", "gptq": "int4", "w4a16": "int4",
    "int4_wo": "int4",
}  # fmt: skip


CACHE_BYTES: dict[CacheType, float] = {"bfloat16": 2.0, "fp8": 1.0}
"""Bytes of a number of keys and values, by the type asked for."""


@dataclass(frozen=True)
class Load:
    """What users ask: so many at once, each with a prompt, and the next request when the answer is there."""

    users: float
    input_tokens: float
    output_tokens: float
    batch: bool = False
    """They come all at once and none follows: no prompt arrives while others generate."""
    cached_share: float = 0.0
    """Share of a prompt's tokens whose keys and values the engine holds from earlier prompts (prefix cache)."""


@dataclass(frozen=True)
class PromptWorkers:
    """Engines that compute prompts for others, which then generate (disaggregated serving)."""

    per_copy: Fraction
    """Workers for each copy that generates: a half where two copies share one."""
    devices: int = 1
    """Devices of one worker."""
    attention_copies: int = 1


@dataclass(frozen=True)
class Deployment:
    """One copy of a model: an engine on devices of one kind, in one host or in several that each hold some layers."""

    decoder: Decoder
    device: DeviceSpec
    engine: Engine
    quantization: str
    devices: int = 1
    attention_copies: int = 1
    """Devices, or groups of them, that each hold the cache of their own requests (data-parallel attention)."""
    cache_type: CacheType = "auto"
    """How keys and values are kept; `auto` is what the quantization keeps them in."""
    stages: int = 1
    """Hosts that each hold some of the layers (pipeline parallelism); each has its share of the devices."""
    prompts: PromptWorkers | None = None
    """Those that compute its prompts on devices of their own; None where it computes them itself."""
    engine_version: str | None = None
    """None for one that is not known: it is taken for the newest that was measured with the model on the device."""

    @property
    def campaign(self) -> str:
        """Model's shape, device and engine: loads that share them were mostly measured by one person in one way."""
        return f"{self.model_shape}, {self.device.name}, {self.engine}"

    @property
    def model_shape(self) -> str:
        """Sizes by which models are told apart, whatever they are called."""
        d = self.decoder
        return f"{d.parameters:.5g} {d.active_parameters:.5g} {d.layers:g} {d.width:g}"

    @property
    def weights_widened(self) -> bool:
        """True if only the weights are in fp8: products, keys and values are in 16 bits."""
        return self.quantization == "fp8" and fp8_computed_in(self.engine, self.device, self.decoder) == "float16"

    @property
    def kept(self) -> Quantization:
        kept = QUANTIZATIONS[self.quantization]
        return replace(kept, cache_bytes=2.0, computed_in="float16") if self.weights_widened else kept

    @property
    def cache_bytes(self) -> float:
        """Bytes of a number of keys and values."""
        return self.kept.cache_bytes if self.cache_type == "auto" else CACHE_BYTES[self.cache_type]

    @property
    def side_by_side(self) -> int:
        """Devices that work on a layer at the same time; llama.cpp gives each some of the layers."""
        return 1 if self.engine == "llama.cpp" else self.devices // self.stages

    @property
    def loaded(self) -> bool:
        """Whether loads of this engine on this maker's devices were measured request by request."""
        return self.engine in LOADED.get(self.device.vendor, ())

    @property
    def flops(self) -> float:
        """FLOPs per second of one device in matrix products; NaN where no rate is published."""
        return peak_ops_per_s(self.device, self.kept.computed_in) or float("nan")


def resolve_quantization(name: str) -> str:
    """Return the quantization of this name: `fp4` for nvfp4. Raises InvalidInput with the known names."""
    word = name.strip().casefold()
    found = _QUANTIZATION_NAMES.get(word, word)
    if found not in QUANTIZATIONS:
        known = ", ".join([*QUANTIZATIONS, *_QUANTIZATION_NAMES])
        raise InvalidInput(f"No quantization is called {name!r}. Known: {known}.")
    return found
