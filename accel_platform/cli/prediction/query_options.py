"""Options of queries to the predictor, in groups that belong together, and the query that they make."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from accel_platform.cli.options import NAMES, Config, Mode, split_words

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
        float | None, typer.Option("--parameters", help="Instead of MODEL: its number of parameters, with --flops.")
    ] = None
    flops: Annotated[
        float | None, typer.Option("--flops", help="FLOPs of one item's forward pass, 2 per multiply-add.")
    ] = None
    activation_bytes: Annotated[
        float | None,
        typer.Option("--activation-bytes", help="Bytes that all operators write for one item, in float32."),
    ] = None
    layer_output_bytes: Annotated[
        float | None,
        typer.Option(
            "--layer-output-bytes", help="The part written by linear layers and convolutions: 4 x timm's activations."
        ),
    ] = None
    family: Annotated[str | None, typer.Option("--family", help="With --parameters: the model family.")] = None
    modality: Annotated[
        str | None, typer.Option("--modality", help="With --parameters: text, vision, audio or multimodal.")
    ] = None

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
class SizeOptions:
    """Size of an item, in the units of the model's inputs and outputs; the names are those of queries."""

    sequence_length: Annotated[
        int | None, typer.Option("--sequence-length", min=1, help="Tokens per item. Default: as measured.")
    ] = None
    output_tokens: Annotated[
        int | None, typer.Option("--output-tokens", min=1, help="Generated tokens. Default: as measured, else 32.")
    ] = None
    image_size: Annotated[
        int | None, typer.Option("--image-size", min=1, help="Pixels along an edge. Default: the model's own.")
    ] = None
    audio_seconds: Annotated[
        float | None, typer.Option("--audio-seconds", help="Seconds of audio per item. Default: the model's own.")
    ] = None
    steps: Annotated[
        int | None,
        typer.Option("--steps", min=1, help="Steps that a model draws an image in. Default: its publisher's."),
    ] = None


@dataclass(frozen=True)
class HardwareOptions:
    """Hardware by name, and devices that a file describes."""

    hardware: Annotated[
        list[str] | None,
        typer.Option(
            "--hardware",
            metavar=NAMES,
            help="A hardware name, gpu or npu, a device of a host or the spec sheet, or a cloud's instance type.",
        ),
    ] = None
    hardware_spec: Annotated[
        list[Path] | None,
        typer.Option(
            "--hardware-spec",
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
