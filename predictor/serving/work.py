"""Work of a served model under a load: roofline times of one decoding step and of one prompt, in seconds.

A roofline time is that at the device's published rates: bytes over bandwidth, or FLOPs over the peak rate. The formula
of `step_times` scales these times to what engines take.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from accel_platform.hardware.catalog import DeviceSpec
from accel_platform.workloads.kv_cache import Decoder
from predictor.serving.engines import ENGINES
from predictor.serving.loads import Deployment, Load
from predictor.serving.memory import cache_copies, cache_room

Array = npt.NDArray[np.float64]
VENDORS = ("NVIDIA", "AMD", "Intel", "Habana")
"""Vendors of the devices on which loads were measured. The libraries of some get nearer to the peaks than others."""
MOST_COMPUTED = 0.7
"""Most of the published rate at which engines compute, where prompts and steps follow each other.

Of 2,749 measured loads 21 took less time, 13 of them in one campaign (`impossible_loads`).
"""
_BYTES_EXCHANGED = 2.0
"""Bytes of a number that devices exchange: activations stay in 16 bits whatever the weights are stored in."""

_FLOAT32_LANES = {"sm_60": 64, "sm_70": 64, "sm_75": 64, "sm_80": 64}
"""Multiply-adds in float32 that a compute unit of NVIDIA's does per cycle, where they are not 128.

Source: CUDA C++ Programming Guide, throughput of native arithmetic instructions.
"""


@dataclass(frozen=True)
class Work:
    """Work of several loads: arrays with one entry per deployment and load. Times (`_s`) are roofline times in seconds.

    In a pipeline the figures are those of one stage. A token passes the stages one after the other, while each of them
    works for other users.
    """

    users: Array
    """Concurrent users of one copy of the model."""
    running: Array
    """Users whose keys and values fit into memory together; the others wait."""
    waiting: Array
    """Ratio of users to the number that fits: above 1 some of them wait."""
    input_tokens: Array
    computed_tokens: Array
    """Tokens of a prompt that are computed: all but the share that the prefix cache holds."""
    output_tokens: Array
    weights_s: Array
    """Reading the weights in one decoding step. In a mixture of experts more of them are read for more users."""
    unit_read_s: Array
    """Reading the weights at one byte per cycle of each compute unit; 0 where that is no limit to an engine."""
    cache_s: Array
    """Reading keys and values of all running users in one step, at their mean length."""
    step_compute_s: Array
    """FLOPs of one decoding step of all running users."""
    prompt_compute_s: Array
    """FLOPs of one prompt, attention included."""
    prompt_weights_s: Array
    """Reading the weights for one prompt."""
    exchange_s: Array
    """Exchanging one token's activations between devices, twice per layer; 0 where the link rate is not published."""
    layers: Array
    expert_layers: Array
    """Layers, if they have experts, else 0."""
    devices: Array
    """Devices that work on a layer together (tensor parallelism)."""
    copies: Array
    """Groups of devices that each hold the cache of their own requests (data-parallel attention), else 1."""
    sparsity: Array
    """All parameters of the layers over those that one token uses: 1 without experts."""
    weight_bytes: Array
    """Bytes of one weight."""
    below_8_bits: Array
    """1 where products are of fewer than 8 bits, else 0."""
    batch: Array
    """1 for a single batch of requests, 0 for users who go on asking."""
    engine: tuple[Array, ...]
    """One-hot encoding of the engine, in the order of `ENGINES`."""
    vendor: tuple[Array, ...]
    """One-hot encoding of the vendor, in the order of `VENDORS`."""

    @property
    def step_light_s(self) -> Array:
        """Roofline time of one decoding step: the longer of reading weights and cache, and of computing."""
        return np.maximum(self.weights_s + self.cache_s, self.step_compute_s)

    def requests_s(self, computed_share: float) -> Array:
        """Return the seconds in which one request of each user is answered: prompts and steps one after the other.

        Memory is read and activations are exchanged at the published rate, and computed is at a share of it. Devices
        wait for each other's activations, because the next product needs all of them.
        """
        step_s = np.maximum(self.weights_s + self.cache_s, self.step_compute_s / computed_share)
        step_s = step_s + self.exchange_s * self.running
        prompt_s = self.prompt_compute_s / computed_share + self.exchange_s * self.computed_tokens
        return self.users * (prompt_s + self.output_tokens * step_s / self.running)


def limited_ms(work: Work, token_ms: Array, first_ms: Array) -> tuple[Array, Array]:
    """Return times per output token and to the first token that are no shorter than the devices can make them.

    A step takes its roofline time at least. Where all users' requests would take less time than at `MOST_COMPUTED`,
    both times grow by one factor, because nothing says which of them is too short.
    """
    token_ms = np.maximum(token_ms, 1e3 * work.step_light_s)
    whole_ms = first_ms + (work.output_tokens - 1) * token_ms
    factor = np.where(work.batch > 0, 1.0, np.maximum(1e3 * work.requests_s(MOST_COMPUTED) / whole_ms, 1.0))
    return token_ms * factor, first_ms * factor


def work_of(cells: Sequence[tuple[Deployment, Load]]) -> Work:
    """Return the work of each deployment under its load."""
    rows = [_row(deployment, load) for deployment, load in cells]
    names = [name for name in Work.__dataclass_fields__ if name not in ("engine", "vendor")]
    columns = np.array([[row[name] for name in names] for row in rows], dtype=float)
    engines = tuple(np.array([float(cell[0].engine == engine) for cell in cells]) for engine in ENGINES)
    vendors = tuple(
        np.array([float(_library_vendor(cell[0].device) == vendor) for cell in cells]) for vendor in VENDORS
    )
    return Work(**dict(zip(names, columns.T, strict=True)), engine=engines, vendor=vendors)


def _library_vendor(spec: DeviceSpec) -> str | None:
    """Return the entry of VENDORS for a device; Intel's Gaudi has the libraries of Habana."""
    return "Habana" if spec.vendor == "Intel" and spec.kind == "npu" else spec.vendor


def _row(deployment: Deployment, load: Load) -> dict[str, float]:
    """Return the fields of `Work`, but engine and vendor, for one deployment under one load."""
    decoder, storage, spec = deployment.decoder, deployment.storage, deployment.device
    devices = float(deployment.side_by_side)
    bandwidth, flops = (spec.bandwidth_gb_s or float("nan")) * 1e9, deployment.flops
    into, out = load.input_tokens, load.output_tokens
    mean_length, computed = into + out / 2, into * (1 - load.cached_share)
    bytes_each = cache_copies(deployment) * deployment.cache_bytes
    cache_bytes_per_user = bytes_each * decoder.held(mean_length)
    users = load.users / deployment.stages
    # At least 1, because an engine runs one request even where the weights hardly fit.
    fitting_users = (
        max(cache_room(deployment) / cache_bytes_per_user, 1.0) / deployment.stages if cache_bytes_per_user else users
    )
    running = min(users, fitting_users)
    return {
        "users": users,
        "running": running,
        "waiting": users / fitting_users,
        "input_tokens": into,
        "computed_tokens": computed,
        "output_tokens": out,
        "weights_s": _read_parameters(deployment, running) * storage.weight_bytes / devices / bandwidth,
        "unit_read_s": _read_parameters(deployment, running) * storage.weight_bytes / devices * _cycle_s(deployment),
        "cache_s": bytes_each * decoder.read(into, out) * running / devices / bandwidth,
        "step_compute_s": running * _token_flops(decoder, into, out) / devices / flops,
        "prompt_compute_s": computed * _token_flops(decoder, into - computed, computed) / devices / flops,
        "prompt_weights_s": _read_parameters(deployment, computed) * storage.weight_bytes / devices / bandwidth,
        "exchange_s": _exchange_s(deployment, devices),
        "layers": decoder.layers,
        "expert_layers": decoder.layers if decoder.expert_share < 1 else 0.0,
        "devices": devices,
        "copies": float(deployment.attention_copies),
        "sparsity": (decoder.parameters - decoder.unread_parameters) / decoder.active_parameters,
        "weight_bytes": storage.weight_bytes,
        "below_8_bits": float(storage.computed_in == "float4"),
        "batch": float(load.batch),
    }


def _exchange_s(deployment: Deployment, devices: float) -> float:
    """Return the seconds in which devices exchange one token's activations; 0 for one device or an unknown link.

    Two all-reduces per layer over a ring of g devices send 2 (g - 1) / g of the numbers each. The published link rate
    is that of both directions.
    """
    if devices <= 1:
        return 0.0
    decoder, group = deployment.decoder, devices / deployment.attention_copies
    link_bytes_per_s = (deployment.device.link_gb_s or float("inf")) * 1e9 / 2
    exchanged_bytes = 2 * decoder.layers * decoder.width * _BYTES_EXCHANGED * 2 * (group - 1) / group
    return exchanged_bytes / link_bytes_per_s


def _cycle_s(deployment: Deployment) -> float:
    """Return the seconds of a cycle over the compute units, where the engine's kernels are bound by both, else 0.

    llama.cpp multiplies weights by a vector with kernels that keep few reads under way. So GPUs of much bandwidth per
    compute unit (those with HBM) read at half their rate. The clock follows from the peak rate in float32.
    """
    spec = deployment.device
    if deployment.engine != "llama.cpp" or spec.vendor != "NVIDIA" or not spec.peak_fp32_tflops:
        return 0.0
    return 2 * _FLOAT32_LANES.get(spec.architecture or "", 128) / (spec.peak_fp32_tflops * 1e12)


def _read_parameters(deployment: Deployment, tokens: float) -> float:
    """Return the parameters that are read for so many tokens together, on all devices.

    With data-parallel attention each group of devices reads its own copy of all but the experts. Each token chooses a
    share of the experts. With even choices an expert is missed by all tokens with probability (1 - share) ** tokens.
    """
    decoder = deployment.decoder
    all_parameters, experts = decoder.parameters - decoder.unread_parameters, decoder.expert_parameters
    chosen: float = experts * (1 - (1 - decoder.expert_share) ** tokens)
    return deployment.attention_copies * (all_parameters - experts) + chosen


def _token_flops(decoder: Decoder, into: float, out: float) -> float:
    """Return the FLOPs of one token, on average over `out` tokens added to `into`."""
    return 2 * (decoder.active_parameters + decoder.multiply_adds(into, out))
