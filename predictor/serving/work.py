"""Work of a served model under a load: times at full speed of one decoding step, one prompt and what surrounds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from accel_platform.hardware.catalog import DeviceSpec
from predictor.serving.loads import ENGINES, Deployment, Load
from predictor.serving.memory import cache_copies, cache_room

Array = npt.NDArray[np.float64]
VENDORS = ("NVIDIA", "AMD", "Intel", "Habana")
"""Whose libraries run the devices on which loads were measured: some get nearer to the peaks than others."""
_BYTES_EXCHANGED = 2.0
"""Of a number that devices exchange: activations stay in 16 bits whatever weights are kept in."""


@dataclass(frozen=True)
class Work:
    """Columns with a row per deployment and load; times in seconds, at published rates."""

    users: Array
    """Users who ask at once; in a pipeline the share of one stage."""
    running: Array
    """Users whose cache fits at once; the others wait. In a pipeline those that one stage works for: a token passes all
    stages, and each of them works for other users meanwhile."""
    waiting: Array
    """Users over running ones."""
    input_tokens: Array
    computed_tokens: Array
    """Those of a prompt that no earlier prompt began with, whose keys and values the engine therefore lacks."""
    output_tokens: Array
    weights_s: Array
    """Reading the weights that one decoding step meets: with experts more for more users."""
    cache_s: Array
    """Reading keys and values of all running users at their mean length."""
    step_compute_s: Array
    prompt_compute_s: Array
    """Products and attention of one prompt."""
    prompt_weights_s: Array
    exchange_s: Array
    """Exchanging one token's activations, twice per layer, between devices; 0 where their link is not published."""
    layers: Array
    expert_layers: Array
    devices: Array
    copies: Array
    sparsity: Array
    """Parameters that text meets over those that a token meets: 1 without experts."""
    weight_bytes: Array
    batch: Array
    """1 where all requests come at once, 0 where each user goes on asking."""
    engine: tuple[Array, ...]
    """1 or 0 for each of `ENGINES`."""
    vendor: tuple[Array, ...]
    """1 or 0 for each of `VENDORS`."""

    @property
    def step_light_s(self) -> Array:
        """Seconds of one decoding step at full speed: reading weights and cache or computing, whichever is longer."""
        return np.maximum(self.weights_s + self.cache_s, self.step_compute_s)


def work_of(cells: Sequence[tuple[Deployment, Load]]) -> Work:
    """Return the work of each deployment under its load."""
    columns = np.array([_row(deployment, load) for deployment, load in cells], dtype=float)
    names = [name for name in Work.__dataclass_fields__ if name not in ("engine", "vendor")]
    engines = tuple(np.array([float(cell[0].engine == engine) for cell in cells]) for engine in ENGINES)
    vendors = tuple(np.array([float(_libraries(cell[0].device) == vendor) for cell in cells]) for vendor in VENDORS)
    return Work(**dict(zip(names, columns.T, strict=True)), engine=engines, vendor=vendors)


def _libraries(spec: DeviceSpec) -> str | None:
    return "Habana" if spec.vendor == "Intel" and spec.kind == "npu" else spec.vendor


def _row(deployment: Deployment, load: Load) -> list[float]:
    decoder, kept, spec = deployment.decoder, deployment.kept, deployment.device
    n = float(deployment.side_by_side)
    bandwidth, flops = (spec.bandwidth_gb_s or float("nan")) * 1e9, deployment.flops
    into, out = load.input_tokens, load.output_tokens
    half_way, computed = into + out / 2, into * (1 - load.cached_share)
    per_user = cache_copies(deployment) * deployment.cache_bytes * decoder.held(half_way)
    users = load.users / deployment.stages
    # Where the weights hardly fit, an engine still runs one request.
    room = max(cache_room(deployment) / per_user, 1.0) / deployment.stages if per_user else users
    running = min(users, room)
    group = n / deployment.attention_copies
    link = (spec.link_gb_s or float("inf")) * 1e9 / 2
    exchanged = 2 * decoder.layers * decoder.width * _BYTES_EXCHANGED * 2 * (group - 1) / group if n > 1 else 0.0
    return [
        users,
        running,
        users / room,
        into,
        computed,
        out,
        _met_parameters(deployment, running) * kept.weight_bytes / n / bandwidth,
        cache_copies(deployment) * deployment.cache_bytes * decoder.held(half_way) * running / n / bandwidth,
        running * _token_flops(deployment, half_way) / n / flops,
        computed * _token_flops(deployment, into - computed / 2) / n / flops,
        _met_parameters(deployment, computed) * kept.weight_bytes / n / bandwidth,
        exchanged / link if n > 1 else 0.0,
        decoder.layers,
        decoder.layers if decoder.expert_share < 1 else 0.0,
        n,
        float(deployment.attention_copies),
        (decoder.parameters - decoder.unread_parameters) / decoder.active_parameters,
        kept.weight_bytes,
        float(load.batch),
    ]


def _met_parameters(deployment: Deployment, tokens: float) -> float:
    """Return the parameters that so many tokens meet together, with experts chosen evenly."""
    decoder = deployment.decoder
    read, share = decoder.parameters - decoder.unread_parameters, decoder.expert_share
    if share >= 1:
        return read
    experts = (read - decoder.active_parameters) / (1 - share)
    met: float = experts * (1 - (1 - share) ** tokens)
    return read - experts + met


def _token_flops(deployment: Deployment, seen: float) -> float:
    """Return the FLOPs of one token that looks back over so many."""
    decoder = deployment.decoder
    return 2 * (decoder.active_parameters + decoder.attended * seen)
