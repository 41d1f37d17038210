"""Questions about serving a language model under load, and their answers."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from accel_platform.backend_names import canonical_backend
from predictor.schemas.requests import DEFAULT_LIMIT, Limit, Name, NamedModel, PositiveFloat
from predictor.schemas.responses import Interval

ServingObjective = Literal["cost", "latency", "throughput", "goodput", "energy"]
Percentile = Literal[50, 90, 95, 99]
CacheType = Literal["auto", "bfloat16", "fp8"]
MAX_USERS = 4096
MAX_TOKENS = 1 << 20
MAX_DEVICES = 32
"""Most devices of all copies: the queue is simulated for each number of copies, which takes milliseconds."""
MAX_TRACED = 10_000
"""Most requests of a trace."""
_SLOWER = 1.06
"""Ratio from which a percentile of requests is told apart: lengths without a percentile differ by 0.05 (`queueing`)."""
TIME_GOALS = ("max_first_token_ms", "max_output_token_ms", "max_end_to_end_ms")
_QUOTED_TIME_GOALS = tuple(f"`{name}`" for name in TIME_GOALS)
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS, strict=True)]


def _by_its_name(value: object) -> object:
    return canonical_backend(value) if isinstance(value, str) else value


EngineName = Literal["vllm", "sglang", "trtllm", "llama.cpp"]
ServingEngine = Annotated[EngineName, BeforeValidator(_by_its_name)]


def _without_v(value: object) -> object:
    """Return a version as engines state it: their releases are tagged v0.19.0."""
    return re.sub(r"^v(?=\d)", "", value.strip()) if isinstance(value, str) else value


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ServingGoals(_Value):
    """Goals of a request at a percentile, and limits. The unfavorable end of an interval must meet them."""

    percentile: Percentile | None = Field(
        default=None,
        description="Of the requests of which the times must hold: 50 is the typical request. Needed with a goal of "
        "time.",
    )
    max_first_token_ms: PositiveFloat | None = Field(default=None, description="Time to the first token.")
    max_output_token_ms: PositiveFloat | None = Field(
        default=None, description="Time per token after the first, of a request in the mean."
    )
    max_end_to_end_ms: PositiveFloat | None = Field(default=None, description="Time to the last token.")
    max_usd_per_hour: PositiveFloat | None = Field(default=None, description="Rent of all devices of the deployment.")
    max_watts: PositiveFloat | None = Field(default=None, description="Thermal design power of all devices.")
    max_devices: Annotated[int, Field(ge=1, le=MAX_DEVICES, strict=True)] = Field(
        default=8, description="Of all copies together. A copy that does not fit into a host of 8 is split over hosts."
    )

    @property
    def of_time(self) -> bool:
        """True if a goal of time is given."""
        return any(getattr(self, name) is not None for name in TIME_GOALS)

    @property
    def of_slow_requests(self) -> bool:
        """True if the goals are of other requests than the typical one."""
        return self.percentile is not None and self.percentile > 50

    @model_validator(mode="after")
    def _percentile_of_times(self) -> ServingGoals:
        given = [f"`{name}` {value:g}" for name in TIME_GOALS if (value := getattr(self, name)) is not None]
        if given and self.percentile is None:
            verb = "needs" if len(given) == 1 else "need"
            raise ValueError(
                f"{' and '.join(given)} {verb} a percentile: give 50 for the typical request, or 90, 95 or 99"
            )
        if self.percentile is not None and not given:
            raise ValueError(
                f"percentile {self.percentile} needs a goal of time: give {' or '.join(_QUOTED_TIME_GOALS)}"
            )
        return self


class TracedRequest(_Value):
    """A request of a trace."""

    arrival_s: Annotated[float, Field(ge=0, le=1e9, allow_inf_nan=False)] | None = Field(
        default=None, description="Seconds since the trace began. All requests have one, or none."
    )
    input_tokens: Tokens = Field(description="Tokens of its prompt.")
    output_tokens: Tokens


class ServingQuery(_Value):
    """Query for the best devices to serve a language model under a load."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "mode": "serving",
                    "model": "meta-llama/Llama-3.1-8B-Instruct",
                    "users": 16,
                    "goals": {"percentile": 95, "max_first_token_ms": 500},
                    "hardware": ["H100 SXM", "NVIDIA L40S"],
                }
            ]
        }
    )
    mode: Literal["serving"] = Field(description="Always serving, which tells it from other queries.")
    model: NamedModel = Field(description="A name or hub id, or a transformers config.")
    quantization: Name | None = Field(
        default=None,
        description="Of the weights: bfloat16, float16, fp8, int8, fp4 (nvfp4, mxfp4), int4 (awq, gptq). Default: what "
        "the hub id (-AWQ) or the config states, else what the model is published in.",
    )
    kv_cache: CacheType = Field(default="auto", description="Type of keys and values; auto is the quantization's.")
    input_tokens: Tokens = Field(default=1024, description="Tokens of a prompt, in the mean.")
    output_tokens: Tokens = Field(default=256, description="Tokens of an answer, in the mean.")
    input_tokens_p99: Tokens | None = Field(
        default=None, description="99th percentile of prompts. Default: all are of the mean length."
    )
    output_tokens_p99: Tokens | None = Field(
        default=None, description="99th percentile of answers. Default: all are of the mean length."
    )
    trace: list[TracedRequest] | None = Field(
        default=None, min_length=2, max_length=MAX_TRACED,
        description="Requests as they came, in place of lengths; with arrival_s also in place of users.",
    )  # fmt: skip
    prefix_cached_share: Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False, strict=True)] = Field(
        default=0.0, description="Share of a prompt's tokens that the prefix cache holds already (its hit rate)."
    )
    users: int | None = Field(
        default=None, ge=1, le=MAX_USERS, strict=True,
        description="Requests under way at once: each user asks again when the answer is there. Default: 1.",
    )  # fmt: skip
    requests_per_s: PositiveFloat | None = Field(
        default=None, ge=1e-9, description="Requests that arrive at random (Poisson), in place of users."
    )
    engine: ServingEngine | None = Field(
        default=None, description="Default: whichever of vllm, sglang and trtllm serves best."
    )
    engine_version: Annotated[Name, BeforeValidator(_without_v)] | None = Field(
        default=None,
        description="Version that the times are of. Default: the newest that was measured of the model on the device. "
        "Needs engine.",
    )
    disaggregated: bool = Field(
        default=False, description="Also deployments whose prompts are computed on devices of their own."
    )
    hardware: list[Name] | None = Field(
        default=None, min_length=1, max_length=64,
        description="Devices of the spec sheet, or instance types of clouds, which limit the number of devices. "
        "Default: GPUs that are rented out, or linked faster than by PCIe.",
    )  # fmt: skip
    goals: ServingGoals = Field(
        default=ServingGoals(), description="Goals and limits that deployments must meet. Default: at most 8 devices."
    )
    objective: ServingObjective = Field(
        default="cost", description="Figure to rank by: USD per million output tokens, end-to-end time, tokens per "
        "second of the whole deployment, requests per second that meet the goals, or joules per output token.",
    )  # fmt: skip
    limit: Limit = Field(
        default=DEFAULT_LIMIT, description="Most deployments that are answered, the best ones; null for all."
    )

    @model_validator(mode="after")
    def _one_load(self) -> ServingQuery:
        if self.users is not None and self.requests_per_s is not None:
            raise ValueError("give `users` or `requests_per_s`, not both: one follows from the other")
        if self.engine_version is not None and self.engine is None:
            raise ValueError("`engine_version` needs `engine`")
        if self.disaggregated and self.goals.max_devices == 1:
            raise ValueError("disaggregated serving takes two devices at least, and `max_devices` is 1")
        if self.objective == "goodput" and not self.goals.of_time:
            raise ValueError(
                f"goodput counts requests that meet goals of time: give one of {', '.join(_QUOTED_TIME_GOALS)}"
            )
        return self

    @model_validator(mode="after")
    def _whole_trace(self) -> ServingQuery:
        if self.trace is None:
            return self
        given = {"input_tokens", "output_tokens", "input_tokens_p99", "output_tokens_p99"} & self.model_fields_set
        if given:
            raise ValueError(f"the trace has the lengths: leave out {', '.join(f'`{name}`' for name in sorted(given))}")
        arrivals = [request.arrival_s for request in self.trace if request.arrival_s is not None]
        if arrivals and len(arrivals) < len(self.trace):
            raise ValueError(f"{len(self.trace) - len(arrivals)} requests of the trace have no arrival_s")
        if arrivals and (self.users is not None or self.requests_per_s is not None):
            raise ValueError("the trace has arrivals: leave out `users` and `requests_per_s`, or arrival_s")
        if arrivals and max(arrivals) == min(arrivals):
            raise ValueError("all requests of the trace come at once: give them different arrival_s, or none")
        return self


class Memory(_Value):
    """Memory of one deployment, over all of its devices, in GiB."""

    weights_gib: float = Field(description="Weights, on all devices: with data-parallel attention some more than once.")
    cache_per_user_gib: float = Field(description="Keys, values and states of one request at its full length.")
    working_gib: float = Field(description="Activations, buffers and graphs.")
    limit_gib: float = Field(description="What an engine takes of the devices' memory by default.")
    max_users: int = Field(description="Requests at full length that fit at once.")
    max_tokens: int = Field(description="Tokens that one request alone may have, by memory.")


class MeasuredNearby(_Value):
    """A measured load of others, near the one of the question."""

    event_id: str
    model: str = Field(description="Name of the model, from that in its source.")
    device: str = Field(description="Name of the device in the spec sheet.")
    devices: int = Field(description="Number of devices that served it together.")
    engine: str = Field(description="Engine that serves the model: vllm, sglang, trtllm or llama.cpp.")
    engine_version: str | None = Field(description="Version of the engine; null where the source states none.")
    quantization: str = Field(description="Quantization of the weights.")
    users: int = Field(description="Requests under way at once.")
    input_tokens: int = Field(description="Tokens of a prompt.")
    output_tokens: int
    batch: bool = Field(description="All requests came at once and none followed.")
    first_token_ms: float | None = Field(description="Null where nobody timed it.")
    slot_wait_ms: float | None = Field(
        description="Part of first_token_ms for which a request waited, because the engine took fewer requests at once "
        "than there were users; null where none did."
    )
    output_token_ms: float = Field(description="Of a batch: the whole of it per output token of a request.")


class SlowRequests(_Value):
    """Times at a percentile of the requests, from a simulated queue. Limits are the typical request's, scaled."""

    percentile: Percentile = Field(description="Percentile of the requests that the times are of.")
    first_token_ms: Interval = Field(description="Time to the first token, in ms.")
    output_token_ms: Interval = Field(description="Time per token after the first, in ms.")
    end_to_end_ms: Interval = Field(description="Time to the last token, in ms.")


class ServingOption(_Value):
    """One deployment of the model that meets the goals."""

    rank: int = Field(description="Rank by the objective, 1 for the best.")
    device: str = Field(description="Name of the device in the spec sheet.")
    devices: int = Field(description="Devices of all copies, and of workers for prompts.")
    copies: int = Field(description="Engines side by side, each with the whole model and its share of the users.")
    devices_per_copy: int = Field(description="Devices over which a copy is split, in all of its hosts.")
    stages: int = Field(description="Hosts that each hold some of a copy's layers (pipeline parallelism).")
    attention_copies: int = Field(
        description="Of a copy: 1 where attention is split (tensor parallelism); else each device attends for its own "
        "users, and only experts are split (data-parallel attention)."
    )
    prompt_workers: int = Field(
        description="Engines that compute prompts for the copies, which then only generate (disaggregated serving); "
        "0 where the copies compute them."
    )
    devices_per_prompt_worker: int = Field(description="0 where there is none.")
    engine: str = Field(description="Engine that serves the model: vllm, sglang, trtllm or llama.cpp.")
    engine_version: str | None = Field(
        description="Version of the engine that the times are of: the one asked for, or else the newest that was "
        "measured. Null where none was measured of the model on the device."
    )
    users: int = Field(description="Requests under way at once, of all copies.")
    requests_per_s: Interval = Field(description="Answered by all copies.")
    memory: Memory = Field(description="Of one copy.")
    first_token_ms: Interval = Field(description="Time to the first token, in ms.")
    output_token_ms: Interval = Field(description="Per token after the first.")
    end_to_end_ms: Interval = Field(description="Time to the last token, in ms.")
    slow: SlowRequests = Field(description="Of the goals' percentile where that is above 50, else the 99th.")
    goodput_requests_per_s: float | None = Field(
        description="Requests that meet all goals of time, each by itself. Null without a goal of time."
    )
    output_tokens_per_s: Interval = Field(description="Of the whole deployment.")
    output_tokens_per_s_per_user: Interval = Field(description="Of one request, after its first token.")
    output_tokens_per_s_per_device: Interval = Field(description="Of the whole deployment, over all of its devices.")
    usd_per_hour: float | None = Field(description="Rent of all devices. Null where no price is known.")
    usd_per_million_output_tokens: Interval | None = Field(description="The whole rent over the output tokens.")
    usd_per_million_input_tokens: Interval | None = Field(description="The whole rent over the prompts' tokens.")
    j_per_output_token: Interval | None = Field(
        description="By thermal design power, so devices take less. Null where that is not published."
    )
    price_source: str | None = Field(description="Source of the price; null where no price is known.")
    price_date: str | None = Field(description="Date of the price; null where no price is known.")
    best_trade_off: bool = Field(description="None of the options is both cheaper and faster to the last token.")
    provenance: Literal["measured", "predicted"] = Field(
        description="measured: this very load was. predicted: it was not."
    )
    nearest: list[MeasuredNearby] = Field(
        description="Measured loads nearest to it; the very load where it was measured."
    )
    launch: str = Field(description="Command that starts the engine so; `MODEL` stands for the model of a config.")
    cautions: list[str] = Field(description="What to know before this deployment is used.")

    @property
    def has_slow_requests(self) -> bool:
        """True where some requests are slower than the typical one: they differ, or some wait."""
        times = ("first_token_ms", "output_token_ms", "end_to_end_ms")
        return any(getattr(self.slow, name).p50 > _SLOWER * getattr(self, name).p50 for name in times)


class NotServed(_Value):
    """Devices that cannot serve the model so, or miss a goal."""

    device: str = Field(description="Name of the device in the spec sheet.")
    devices: int = Field(description="Number of devices that were tried together.")
    cause: Literal["does_not_fit", "goal", "overloaded", "unsupported"] = Field(
        description="does_not_fit: into memory. goal: one is missed. overloaded: requests pile up. unsupported: no "
        "engine, or unpublished figures.",
    )
    reason: str


class ServingAnswer(_Value):
    """Ranked deployments, and what was left out."""

    model: str = Field(description="Name of the model; of a config its architecture.")
    quantization: str = Field(description="Quantization of the weights.")
    kv_cache: str = Field(description="Type of keys and values; auto is the quantization's.")
    input_tokens: int = Field(description="In the mean.")
    output_tokens: int = Field(description="In the mean.")
    options: list[ServingOption] = Field(description="Deployments that meet the goals, best first, up to the limit.")
    options_total: int = Field(description="Number of deployments that meet the goals.")
    excluded: list[NotServed] = Field(description="What was left out, with the reason.")
    warnings: list[str] = Field(description="What to know before the figures are used.")
    snapshot_id: str | None = Field(
        description="Snapshot of the log that answered; null where the answer comes from shipped data alone."
    )
