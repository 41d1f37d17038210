"""Loads (what users ask of a served model) and deployments (the devices, engine and quantization that serve it)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction

from accel_platform.hardware.catalog import DeviceSpec
from accel_platform.hardware.device_spec import peak_ops_per_s
from accel_platform.workloads.kv_cache import Decoder
from predictor.schemas.serving import CacheType
from predictor.serving.engines import MEASURED_BY_REQUESTS, Engine, low_bit_compute_precision
from predictor.serving.quantization import CACHE_BYTES, LOW_BIT_FLOATS, QUANTIZATIONS, Quantization


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
    """Groups of a worker's devices with a cache of their own, as in `Deployment.attention_copies`."""


@dataclass(frozen=True)
class Slots:
    """Most requests that copies generate for at once, where a setting of the engine limits them below what fits."""

    per_copy: int
    copies: int
    """Copies over which requests are spread at random: some may be full while others have slots free."""


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
    """Limit of requests at once; None where memory alone limits them. Only measured disaggregated loads state one."""
    number_format: str | None = None
    """`mxfp4` or `nvfp4` where fp4 is known to be one of them. Measured loads of both count as fp4."""
    stored_bytes: float | None = None
    """Bytes of all weights in the repository; None where they follow from the quantization."""
    state_bytes: float = 0.0
    """Bytes of the states of one sequence, as far as the decoder leaves them out."""
    engine_version: str | None = None
    """Version of the engine; None if unknown, for the newest that was measured with the model on the device."""

    @property
    def load_group(self) -> str:
        """Key of the loads with the same model shape, device and engine, mostly measured together by one person.

        Cross-validation holds them out together, because they share the peculiarities of one person's measurement.
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
        of = self.engine, self.device, self.decoder, self.number_format or self.quantization
        return self.quantization in LOW_BIT_FLOATS and low_bit_compute_precision(*of) == "float16"

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
    def measured_by_requests(self) -> bool:
        """True if loads of this engine on devices of this vendor were measured with the times of each request."""
        return self.engine in MEASURED_BY_REQUESTS.get(self.device.vendor, ())

    @property
    def flops(self) -> float:
        """FLOPs per second of one device in matrix products; NaN where no rate is published."""
        return peak_ops_per_s(self.device, self.storage.computed_in) or float("nan")
