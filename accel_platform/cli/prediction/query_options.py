"""Options of queries to the predictor, in groups that belong together, and the query that they make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from accel_platform.cli.options import NAMES, SEVERAL, Config, Mode, parse_batch_sizes, split_words

BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Items per batch.")]
Precision = Annotated[str | None, typer.Option("--precision", help="Default: float32.")]
ModeOption = Annotated[
    Mode, typer.Option("--mode", help="inference, generation or training; for a load of users see `accel serving`.")
]


@dataclass(frozen=True)
class ModelOptions:
    """The model of a query in one of three ways: by name, by config, or by what an item costs."""

    model: Annotated[
        str | None,
        typer.Argument(help="A model's key, alias or hub id, e.g. bert-base-uncased.", show_default=False),
    ] = None
    config: Config = None
    parameters: Annotated[
        float | None, typer.Option(help="Instead of MODEL: its number of parameters, with --flops.")
    ] = None
    flops: Annotated[float | None, typer.Option(help="FLOPs of one item's forward pass, 2 per multiply-add.")] = None
    activation_bytes: Annotated[
        float | None,
        typer.Option(help="Bytes that all operators write for one item, in float32."),
    ] = None
    layer_output_bytes: Annotated[
        float | None,
        typer.Option(help="The part written by linear layers and convolutions: 4 x timm's activations."),
    ] = None
    family: Annotated[str | None, typer.Option(help="With --parameters: the model family.")] = None
    modality: Annotated[str | None, typer.Option(help="With --parameters: text, vision, audio or multimodal.")] = None

    @property
    def is_given(self) -> bool:
        """True if any of the options is given."""
        return bool(self._ways())

    def chosen(self) -> str | dict[str, Any]:
        """Return the model as queries take it. Raises InvalidInput for none, or one in several ways."""
        from accel_platform.errors import InvalidInput
        from accel_platform.strict_json import read_object

        costs, ways = self._costs(), self._ways()
        if costs and len(ways) > 1:
            options = ", ".join(option_name(f"model.{key}") for key in costs)
            given = "--config" if self.model is None else self.model
            raise InvalidInput(f"{options} would describe a model in place of {given}: leave out one or the other.")
        if len(ways) != 1:
            raise InvalidInput(
                "Give one model: its name before --hardware, --config FILE, or --parameters with --flops."
            )
        return ways[0] if self.config is None else read_object(self.config)[0]

    def _ways(self) -> list[Any]:
        return [way for way in (self.model, self.config, self._costs() or None) if way is not None]

    def _costs(self) -> dict[str, Any]:
        """Return the given costs, by their names in queries."""
        return given_fields(
            {
                "parameters": self.parameters,
                "flops_per_item": self.flops,
                "activation_bytes_per_item": self.activation_bytes,
                "layer_output_bytes_per_item": self.layer_output_bytes,
                "family": self.family,
                "modality": self.modality,
            }
        )


@dataclass(frozen=True)
class BatchSizeOptions:
    """Batch sizes to predict for: one or several."""

    batch_size: Annotated[int | None, typer.Option(min=1, help="Items per batch.", show_default="1")] = None
    batch_sizes: Annotated[str | None, typer.Option(metavar=SEVERAL, help="Several batch sizes; a row for each.")] = (
        None
    )

    def chosen(self) -> list[int]:
        """Return the batch sizes, 1 without either option. Raises InvalidInput where both are given."""
        from accel_platform.errors import InvalidInput

        if self.batch_sizes is None:
            return [self.batch_size or 1]
        if self.batch_size is not None:
            raise InvalidInput("Give --batch-size with one, or --batch-sizes with several: 1,4.")
        return parse_batch_sizes(self.batch_sizes)


@dataclass(frozen=True)
class PrecisionOptions:
    """Precisions to predict for: one or several."""

    precision: Precision = None
    precisions: Annotated[str | None, typer.Option(metavar=SEVERAL, help="Several precisions; a row for each.")] = None

    def chosen(self) -> list[str | None]:
        """Return the precisions. Raises InvalidInput where both options are given, or several name none."""
        from accel_platform.errors import InvalidInput

        if self.precisions is None:
            return [self.precision]
        names: list[str | None] = [*split_words(self.precisions)]
        if self.precision is not None or not names:
            raise InvalidInput("Give --precision with one, or --precisions with several: float32,float16.")
        return names


@dataclass(frozen=True)
class MatrixOptions:
    """Matrix of predictions, and its models."""

    generate_matrix: Annotated[
        bool, typer.Option("--generate-matrix", help="Predict a matrix of models by hardware.")
    ] = False
    models: Annotated[str | None, typer.Option(metavar=SEVERAL, help="Models of the matrix.")] = None
    set_: Annotated[
        str | None,
        typer.Option("--set", help="A named set of models for the matrix.", show_default="all that were measured"),
    ] = None

    @property
    def names_models(self) -> bool:
        """True if either option names models."""
        return self.models is not None or self.set_ is not None

    def chosen(self, model: ModelOptions) -> list[Any] | None:
        """Return the models; None for every measured model. Raises InvalidInput for several ways, or none."""
        from accel_platform.errors import InvalidInput
        from accel_platform.workloads.model_catalog import model_set

        words = None if self.models is None else split_words(self.models)
        if words == [] or (words is not None and self.set_ is not None):
            raise InvalidInput("Give --models with names, bert-base,vit-base, or --set with one of a set.")
        several = words if self.set_ is None else [spec.model_id for spec in model_set(self.set_)]
        if model.is_given and several is not None:
            raise InvalidInput("The models of a matrix are one MODEL, --models or --set: leave out the others.")
        return [model.chosen()] if model.is_given else several


@dataclass(frozen=True)
class SizeOptions:
    """Size of an item, in the units of the model's inputs and outputs; the names are those of queries."""

    sequence_length: Annotated[int | None, typer.Option(min=1, help="Tokens per item. Default: as measured.")] = None
    output_tokens: Annotated[
        int | None, typer.Option(min=1, help="Generated tokens. Default: as measured, else 32.")
    ] = None
    image_size: Annotated[int | None, typer.Option(min=1, help="Pixels along an edge. Default: the model's own.")] = (
        None
    )
    audio_seconds: Annotated[
        float | None, typer.Option(help="Seconds of audio per item. Default: the model's own.")
    ] = None
    steps: Annotated[
        int | None,
        typer.Option(min=1, help="Steps that a model draws an image in. Default: its publisher's."),
    ] = None


@dataclass(frozen=True)
class HardwareOptions:
    """Hardware by name, and devices that a file describes."""

    hardware: Annotated[
        list[str] | None,
        typer.Option(
            metavar=NAMES,
            help="A hardware name, gpu or npu, a device of a host or the spec sheet, a cloud's instance type, or one "
            "runtime of a device: openvino:i9-13900K.",
        ),
    ] = None
    hardware_spec: Annotated[
        list[Path] | None,
        typer.Option(
            metavar="FILE…",
            help="JSON file that describes your own device.",
            dir_okay=False,
            exists=True,
        ),
    ] = None

    def chosen(self) -> list[str | dict[str, Any]]:
        """Return the names and the described devices; empty if none is given."""
        from accel_platform.strict_json import read_object

        return [*split_device_names(self.hardware or ()), *(read_object(path)[0] for path in self.hardware_spec or ())]


@dataclass(frozen=True)
class LimitOptions:
    """Limits that exclude hardware; the names are those of queries."""

    max_latency_ms: Annotated[float | None, typer.Option(help="Exclude hardware that may take longer per batch.")] = (
        None
    )
    max_memory_mib: Annotated[float | None, typer.Option(help="Exclude hardware that may need more memory.")] = None
    max_usd_per_hour: Annotated[float | None, typer.Option(help="Exclude hardware that costs more to rent.")] = None
    max_watts: Annotated[float | None, typer.Option(help="Exclude hardware with a higher power limit.")] = None


def split_device_names(names: Iterable[str]) -> list[str]:
    """Return names, of which several may stand with commas between. A name of the spec sheet may have commas itself."""
    from accel_platform.hardware.catalog import find_spec

    return [part for name in names for part in ([name] if find_spec(name) else split_words(name))]


def given_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields that are not None, so that queries take their own defaults for the others."""
    return {name: value for name, value in fields.items() if value is not None}


def build_query(kind: type[Any], **fields: Any) -> Any:
    """Return a validated query. Raises InvalidInput, naming the option."""
    from predictor.schemas.requests import validate_query

    return validate_query(kind, fields, name=option_name)


def option_name(path: str) -> str:
    """Return the option of a query field: `--max-watts` for `constraints.max_watts`."""
    outer, _, inner = path.partition(".")
    name = inner.removesuffix("_per_item") if outer in ("model", "constraints") and inner else path
    return f"--{name.replace('_', '-')}"


def serving_option(path: str) -> str:
    """Return the option of a field of the serving query: `--max-watts` for `goals.max_watts`."""
    return "--percentile" if path == "goals" else option_name(path.removeprefix("goals.").partition(".")[0])
