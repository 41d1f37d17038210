"""Questions about serving a language model under load, and their answers."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from predictor.schemas.requests import ModelConfig, Name, PositiveFloat
from predictor.schemas.responses import Interval

ServingObjective = Literal["cost", "latency", "throughput"]
MAX_USERS = 4096
MAX_TOKENS = 1 << 20


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class ServingGoals(_Value):
    """Goals of a typical request (the median), and limits. The unfavorable end of an interval must meet them."""

    max_first_token_ms: PositiveFloat | None = Field(default=None, description="Time to the first token.")
    max_output_token_ms: PositiveFloat | None = Field(default=None, description="Time per token after the first.")
    max_end_to_end_ms: PositiveFloat | None = Field(default=None, description="Time to the last token.")
    max_usd_per_hour: PositiveFloat | None = Field(default=None, description="Rent of all devices of the deployment.")
    max_watts: PositiveFloat | None = Field(default=None, description="Thermal design power of all devices.")
    max_devices: Annotated[int, Field(ge=1, le=8, strict=True)] = 8


class ServingQuery(_Value):
    """Query for the best devices to serve a language model under a load."""

    mode: Literal["serving"]
    model: Name | ModelConfig = Field(description="A name or hub id, or a transformers config.")
    quantization: Name = Field(
        default="bfloat16",
        description="Of the weights: bfloat16, float16, fp8, int8, fp4 (nvfp4, mxfp4), int4 (awq, gptq).",
    )
    input_tokens: int = Field(
        default=1024, ge=1, le=MAX_TOKENS, strict=True, description="Tokens of a prompt, in the mean."
    )
    output_tokens: int = Field(
        default=256, ge=1, le=MAX_TOKENS, strict=True, description="Tokens of an answer, in the mean."
    )
    users: int | None = Field(
        default=None, ge=1, le=MAX_USERS, strict=True,
        description="Requests under way at once: each user asks again when the answer is there. Default: 1.",
    )  # fmt: skip
    requests_per_s: PositiveFloat | None = Field(default=None, description="Requests that arrive, in place of users.")
    engine: Literal["vllm", "sglang", "trtllm", "llama.cpp"] | None = Field(
        default=None, description="Default: whichever of vllm, sglang and trtllm serves best."
    )
    hardware: list[Name] | None = Field(
        default=None, min_length=1, max_length=64,
        description="Devices of the spec sheet. Default: GPUs whose link to others is published.",
    )  # fmt: skip
    goals: ServingGoals = ServingGoals()
    objective: ServingObjective = Field(
        default="cost", description="Figure to rank by: USD per million output tokens, end-to-end time, or tokens per "
        "second of the whole deployment.",
    )  # fmt: skip

    @model_validator(mode="after")
    def _one_load(self) -> ServingQuery:
        if self.users is not None and self.requests_per_s is not None:
            raise ValueError("give users or requests_per_s, not both: one follows from the other")
        return self


class Memory(_Value):
    """Memory of one deployment, over all of its devices, in GiB."""

    weights_gib: float
    cache_per_user_gib: float = Field(description="Keys and values of one request at its full length.")
    working_gib: float = Field(description="Activations, buffers and graphs.")
    limit_gib: float = Field(description="What an engine takes of the devices' memory by default.")
    max_users: int = Field(description="Requests at full length that fit at once.")
    max_tokens: int = Field(description="Tokens that one request alone may have, by memory.")


class MeasuredNearby(_Value):
    """A measured load of others, near the one of the question."""

    event_id: str
    model: str
    device: str
    devices: int
    engine: str
    engine_version: str | None
    quantization: str
    users: int
    input_tokens: int
    output_tokens: int
    batch: bool = Field(description="All requests came at once and none followed.")
    first_token_ms: float | None = Field(description="Null where nobody timed it.")
    output_token_ms: float = Field(description="Of a batch: the whole of it per output token of a request.")


class ServingOption(_Value):
    """One deployment of the model that meets the goals."""

    rank: int
    device: str
    devices: int = Field(description="Devices of one host over which the model is split by tensor parallelism.")
    engine: str
    users: int = Field(description="Requests under way at once.")
    memory: Memory
    first_token_ms: Interval
    output_token_ms: Interval = Field(description="Per token after the first.")
    end_to_end_ms: Interval
    output_tokens_per_s: Interval = Field(description="Of the whole deployment.")
    usd_per_hour: float | None = Field(description="Rent of all devices. Null where no price is known.")
    usd_per_million_output_tokens: Interval | None
    price_source: str | None
    price_date: str | None
    best_trade_off: bool = Field(description="None of the options is both cheaper and faster to the last token.")
    provenance: Literal["measured", "predicted"]
    nearest: list[MeasuredNearby] = Field(
        description="Measured loads nearest to it; the very load where it was measured."
    )
    launch: str = Field(description="Command that starts the engine so.")
    cautions: list[str]


class NotServed(_Value):
    """Devices that cannot serve the model so, or miss a goal."""

    device: str
    devices: int
    cause: Literal["does_not_fit", "goal", "overloaded", "unsupported"]
    reason: str


class ServingAnswer(_Value):
    """Ranked deployments, and what was left out."""

    model: str
    quantization: str
    input_tokens: int
    output_tokens: int
    options: list[ServingOption]
    excluded: list[NotServed]
    warnings: list[str]
    snapshot_id: str | None
