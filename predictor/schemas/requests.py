"""Queries that CLI, service and Python share, with all their bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field, RootModel, Tag, ValidationError, model_validator

from accel_platform.bench.plan.plan import MAX_BATCH_SIZE, MAX_SEQUENCE_LENGTH
from accel_platform.errors import InvalidInput
from accel_platform.events.types import Hardware
from accel_platform.workloads.model_catalog import Modality
from predictor.schemas.messages import name_fields, problem_message

Objective = Literal["latency", "throughput", "cost", "energy", "memory"]
Name = Annotated[str, Field(min_length=1, max_length=200)]
Limit = Annotated[int | None, Field(ge=1, le=1000, strict=True)]
DEFAULT_LIMIT = 20
"""Ranked answers that are given unless more are asked for."""
PositiveFloat = Annotated[float, Field(gt=0, le=1e24, allow_inf_nan=False, strict=True)]

MAX_CELLS = 1_000
"""Cells in one batch of queries, or in one matrix."""
MAX_CONFIGS = 16
"""Different configs in one batch. Each takes seconds when it is new."""
MAX_IMAGE_SIZE = 16_384
MAX_AUDIO_SECONDS = 3_600.0
MAX_STEPS = 1_000
_CONFIG_VALUES = 20_000
_CONFIG_DEPTH = 8
_CONFIG_TEXT = 2_000
_CONFIG_NUMBER = 1e31
"""Attention masks are filled with numbers such as -1e30."""


class _Value(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class TransformersConfig(RootModel[dict[str, Any]]):
    """A transformers config as published (`config.json`).

    Its cost is computed on the meta device: no download, no weights, no code of its own.
    """

    model_config = ConfigDict(
        frozen=True, json_schema_extra={"examples": [{"model_type": "bert", "hidden_size": 384}], "minProperties": 1}
    )

    @model_validator(mode="after")
    def _within_bounds(self) -> TransformersConfig:
        kind, classes = self.root.get("model_type"), self.root.get("architectures")
        named = isinstance(kind, str) or (kind is None and isinstance(classes, list) and bool(classes))
        if not named:
            raise ValueError("a config needs model_type (text) or architectures (a list of class names)")
        _check_config_bounds(self.root)
        return self


class ModelFigures(_Value):
    """Cost of one item in float32, for a model without a config."""

    parameters: PositiveFloat
    flops_per_item: PositiveFloat = Field(description="FLOPs of one item's forward pass, 2 per multiply-add.")
    activation_bytes_per_item: PositiveFloat | None = Field(
        default=None, description="Bytes written by all operators for one item, in float32."
    )
    layer_output_bytes_per_item: PositiveFloat | None = Field(
        default=None,
        description="Bytes of the outputs of linear layers and convolutions, in float32: 4 times the activations "
        "that timm and fvcore count.",
    )
    family: Name | None = Field(default=None, description="Model family: bert, resnet, ...")
    modality: Modality | None = None


class OwnDevice(_Value):
    """A device of the user's own, with dense rates as vendors state them."""

    name: Name
    kind: Literal["gpu", "cpu", "npu"] = Field(
        description="gpu, cpu or npu (whatever computes little but neural networks)."
    )
    peak_fp32_tflops: PositiveFloat = Field(description="Shader or vector rate, not that of tensor cores.")
    peak_fp16_tensor_tflops: PositiveFloat | None = Field(
        default=None,
        description="Dense FP16 matrix rate in TFLOPS, with FP32 accumulation where vendors tell; null where unknown.",
    )
    bandwidth_gb_s: PositiveFloat = Field(description="Memory bandwidth in GB/s.")
    memory_gib: PositiveFloat | None = Field(default=None, description="Memory in GiB; null where unknown.")
    tdp_w: PositiveFloat | None = Field(default=None, description="Thermal design power in W; null where unknown.")
    usd_per_hour: PositiveFloat | None = Field(
        default=None, description="Price of one such device in USD per hour; null where unknown."
    )
    hardware: Hardware | None = Field(
        default=None,
        description="Hardware name of its runtime. Default: cuda for a gpu, cpu for a cpu, qnn for an npu.",
    )


def _model_kind(value: Any) -> str | None:
    if isinstance(value, dict):
        return "<config>" if value.keys() & {"model_type", "architectures"} else "<figures>"
    kinds: tuple[tuple[type, str], ...] = (
        (str, "<name>"),
        (TransformersConfig, "<config>"),
        (ModelFigures, "<figures>"),
    )
    return next((kind for cls, kind in kinds if isinstance(value, cls)), None)


def _named_model_kind(value: Any) -> str | None:
    return "<config>" if isinstance(value, dict) else _model_kind(value)


def _hardware_kind(value: Any) -> str | None:
    return "<name>" if isinstance(value, str) else "<spec>" if isinstance(value, dict | OwnDevice) else None


ModelInput = Annotated[
    Annotated[Name, Tag("<name>")]
    | Annotated[TransformersConfig, Tag("<config>")]
    | Annotated[ModelFigures, Tag("<figures>")],
    Discriminator(_model_kind, custom_error_type="model", custom_error_message=(
        "a name, a transformers config (an object with model_type or architectures) or cost figures (an object with "
        "parameters, flops_per_item and activation_bytes_per_item or layer_output_bytes_per_item) was expected"
    )),
]  # fmt: skip
NamedModel = Annotated[
    Annotated[Name, Tag("<name>")] | Annotated[TransformersConfig, Tag("<config>")],
    Discriminator(_named_model_kind, custom_error_type="model", custom_error_message=(
        "a name or a transformers config (an object with model_type or architectures) was expected"
    )),
]  # fmt: skip
HardwareInput = Annotated[
    Annotated[Name, Tag("<name>")] | Annotated[OwnDevice, Tag("<spec>")],
    Discriminator(_hardware_kind, custom_error_type="hardware", custom_error_message=(
        "a name or the spec of a device (an object with name, kind, peak_fp32_tflops and bandwidth_gb_s) was expected"
    )),
]  # fmt: skip


class Constraints(_Value):
    """Limits on answers. The unfavorable end of an interval must meet them; an unknown figure does not."""

    max_latency_ms: PositiveFloat | None = Field(default=None, description="Latency of one whole batch.")
    max_memory_mib: PositiveFloat | None = Field(default=None, description="Peak memory.")
    max_usd_per_hour: PositiveFloat | None = Field(default=None, description="On-demand price of the device.")
    max_watts: PositiveFloat | None = Field(default=None, description="The device's thermal design power.")


class Query(_Value):
    """A model in one configuration."""

    model: ModelInput = Field(
        description="A model's key, alias or hub id; or its transformers config; or the cost of one item.",
        examples=["bert-base-uncased"],
    )
    batch_size: int = Field(default=1, ge=1, le=MAX_BATCH_SIZE, strict=True, description="Items per batch.")
    sequence_length: int | None = Field(
        default=None,
        ge=1,
        le=MAX_SEQUENCE_LENGTH,
        strict=True,
        description="Tokens per item. Default: the length at which this model was measured most.",
    )
    image_size: int | None = Field(
        default=None,
        ge=1,
        le=MAX_IMAGE_SIZE,
        strict=True,
        description="Pixels along an edge. Default: the model's own.",
    )
    audio_seconds: float | None = Field(
        default=None,
        gt=0,
        le=MAX_AUDIO_SECONDS,
        strict=True,
        allow_inf_nan=False,
        description="Seconds of sound per item. Default: the model's own.",
    )
    steps: int | None = Field(
        default=None,
        ge=1,
        le=MAX_STEPS,
        strict=True,
        description="Denoising steps of a model that draws images. Default: those of its publisher's example.",
    )
    output_tokens: int | None = Field(
        default=None,
        ge=1,
        le=MAX_SEQUENCE_LENGTH,
        strict=True,
        description="Generated tokens per item. Default: the number measured most at that length, else 32, which this "
        "platform measures.",
    )
    precision: Annotated[str, Field(max_length=32, pattern=r"^[A-Za-z0-9_.+-]+$")] | None = Field(
        default=None, description="Default: float32, and imported figures without a stated precision."
    )
    mode: Literal["inference", "generation", "training"] = "inference"

    @model_validator(mode="after")
    def _tokens_of_generation(self) -> Query:
        if self.output_tokens is not None and self.mode != "generation":
            raise ValueError(f"`output_tokens` belong to mode generation, not to {self.mode}")
        return self


class RecommendQuery(Query):
    """Query for the best hardware for a model."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "model": "bert-base-uncased",
                    "batch_size": 4,
                    "sequence_length": 128,
                    "hardware": ["cpu", "NVIDIA L4"],
                    "constraints": {"max_latency_ms": 100},
                }
            ]
        }
    )
    objective: Objective = Field(default="latency", description="Figure that decides the ranking.")
    constraints: Constraints = Field(default=Constraints(), description="Limits that answers must meet. Default: none.")
    where: Literal["here", "mine", "anywhere"] = Field(
        default="anywhere",
        description="Rank hardware of this host only (here), of all hosts that measured into this log (mine), or all.",
    )
    hardware: list[HardwareInput] | None = Field(
        default=None,
        min_length=1,
        max_length=64,
        description="Hardware names, `gpu` or `npu`, device names (of hosts or of the spec sheet), instance types of "
        "clouds, device ids or custom specs to choose among; one runtime of a device as `openvino:i9-13900K`. Default: "
        "all that was measured or that a host has.",
    )
    limit: Limit = Field(
        default=DEFAULT_LIMIT,
        description="Most recommendations of hardware elsewhere, and most of what was left out; null for all. Hardware "
        "of hosts of this log is always answered.",
    )


class PredictQuery(Query):
    """Query for the figures of a model on one piece of hardware."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"model": "bert-base-uncased", "hardware": "NVIDIA L4", "batch_size": 4}]}
    )
    hardware: HardwareInput = Field(
        description="A hardware name (cpu, openvino, ...), a device's name or id, an instance type, or a spec; one "
        "runtime of a device as `openvino:i9-13900K`.",
        examples=["cpu"],
    )

    @property
    def place(self) -> str:
        """Name of the hardware, or of the user's own device."""
        return self.hardware if isinstance(self.hardware, str) else self.hardware.name


class BatchQuery(_Value):
    """Batch of queries."""

    queries: list[PredictQuery] = Field(
        min_length=1, max_length=MAX_CELLS, description="Cells to predict, each a query of its own."
    )

    @model_validator(mode="after")
    def _few_configs(self) -> BatchQuery:
        configs = {str(query.model.root) for query in self.queries if isinstance(query.model, TransformersConfig)}
        if len(configs) > MAX_CONFIGS:
            raise ValueError(f"{len(configs)} different configs are more than the {MAX_CONFIGS} allowed in one batch")
        return self


QueryType = TypeVar("QueryType", bound=BaseModel)


def validate_query(kind: type[QueryType], fields: dict[str, Any], *, name: Callable[[str], str] = str) -> QueryType:
    """Return the query with these fields. Numbers and arrays of NumPy are taken as Python's.

    Raises InvalidInput with the problem of each field; `name` turns a field, or its path, into its display name.
    """
    try:
        return kind.model_validate(_plain(fields))
    except ValidationError as error:
        problems = []
        for problem in error.errors():
            path = ".".join(str(part) for part in problem["loc"] if not str(part).startswith("<"))
            message = name_fields(problem_message(problem, problem["loc"], [kind]), name)
            # A problem of several fields together has no path, and names them itself.
            problems.append(f"{name(path)}: {message}" if path else message)
        raise InvalidInput("; ".join(problems)) from error


def _plain(value: Any) -> Any:
    """Return a value with Python's numbers and lists in place of those of NumPy."""
    if isinstance(value, dict):
        return {key: _plain(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(member) for member in value]
    return value.tolist() if hasattr(value, "tolist") else value


def _check_config_bounds(config: dict[str, Any]) -> None:
    """Raise ValueError for a config beyond bounds that no published one comes near, even with many `id2label`."""
    remaining = _CONFIG_VALUES
    pending: list[tuple[Any, int]] = [(config, 0)]
    while pending:
        value, depth = pending.pop()
        remaining -= 1
        if remaining < 0 or depth > _CONFIG_DEPTH:
            raise ValueError(f"a config has at most {_CONFIG_VALUES:,} values, {_CONFIG_DEPTH} deep")
        if isinstance(value, dict):
            pending += [(member, depth + 1) for member in value.values()]
        elif isinstance(value, list):
            pending += [(member, depth + 1) for member in value]
        elif isinstance(value, str) and len(value) > _CONFIG_TEXT:
            raise ValueError(f"a text in the config is longer than {_CONFIG_TEXT:,} characters")
        elif isinstance(value, int | float) and not abs(value) < _CONFIG_NUMBER:
            raise ValueError(f"a number in the config is not finite, or beyond {_CONFIG_NUMBER:g}")
