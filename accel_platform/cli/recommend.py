"""`accel recommend` and `accel predict`: questions to the predictor. Nothing is computed here."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import Annotated, Any

import typer

from accel_platform.cli.output import FormatOption, Home, Json, Mode, OutputFormat, print_json, settings_for, wants_json


class Objective(enum.StrEnum):
    latency = "latency"
    throughput = "throughput"
    cost = "cost"
    energy = "energy"
    memory = "memory"


class TableKind(enum.StrEnum):
    """How `accel predict` prints."""

    table = "table"
    json = "json"
    csv = "csv"
    html = "html"


_MODEL = "A model's key, alias or hub id, e.g. bert-base-uncased."
Model = Annotated[str | None, typer.Argument(help=_MODEL, show_default=False)]
Config = Annotated[
    Path | None, typer.Option("--config", help="Instead: a transformers config.json.", dir_okay=False, exists=True)
]
Parameters = Annotated[float | None, typer.Option("--parameters", help="Instead: what one item costs, with --flops.")]
Flops = Annotated[float | None, typer.Option("--flops", help="Of one item's forward pass, 2 per multiply-add.")]
Activations = Annotated[
    float | None, typer.Option("--activation-bytes", help="That all operators write for one item, in float32.")
]
LayerOutputs = Annotated[
    float | None,
    typer.Option("--layer-output-bytes", help="Of these, of linear layers and convolutions: 4 x timm's activations."),
]
Family = Annotated[str | None, typer.Option("--family", help="With --parameters: what it is a kind of.")]
Modality = Annotated[str | None, typer.Option("--modality", help="Likewise: text, vision, audio or multimodal.")]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Items per batch.")]
SequenceLength = Annotated[
    int | None, typer.Option("--sequence-length", min=1, help="Tokens per item; default: as measured.")
]
OutputTokens = Annotated[
    int | None, typer.Option("--output-tokens", min=1, help="Of a generation; default: as measured, else 32.")
]
ImageSize = Annotated[int | None, typer.Option("--image-size", min=1, help="Pixels along an edge; default: its own.")]
AudioSeconds = Annotated[float | None, typer.Option("--audio-seconds", help="Of sound per item; default: its own.")]
Precision = Annotated[str | None, typer.Option("--precision", help="Default: float32.")]
ModeOption = Annotated[Mode, typer.Option("--mode", help="What the model does.")]
HardwareNames = Annotated[
    list[str] | None,
    typer.Option("--hardware", help="A hardware name, or a device of a host or of the spec sheet; again for each."),
]
Specs = Annotated[
    list[Path] | None,
    typer.Option("--hardware-spec", help="JSON with a device of your own.", dir_okay=False, exists=True),
]


def recommend(
    model: Model = None,
    *,
    config: Config = None,
    parameters: Parameters = None,
    flops: Flops = None,
    activation_bytes: Activations = None,
    layer_output_bytes: LayerOutputs = None,
    family: Family = None,
    modality: Modality = None,
    batch_size: BatchSize = 1,
    sequence_length: SequenceLength = None,
    output_tokens: OutputTokens = None,
    image_size: ImageSize = None,
    audio_seconds: AudioSeconds = None,
    precision: Precision = None,
    mode: ModeOption = Mode.inference,
    objective: Annotated[Objective, typer.Option("--objective", help="What to rank by.")] = Objective.latency,
    max_latency_ms: Annotated[float | None, typer.Option(help="Leave out what may take longer for a batch.")] = None,
    max_memory_mib: Annotated[float | None, typer.Option(help="Leave out what may need more memory.")] = None,
    max_usd_per_hour: Annotated[float | None, typer.Option(help="Leave out what costs more to rent.")] = None,
    max_watts: Annotated[float | None, typer.Option(help="Leave out what is designed for more power.")] = None,
    hardware: HardwareNames = None,
    hardware_spec: Specs = None,
    home: Home = None,
    json_: Json = False,
    format_: OutputFormat = FormatOption.table,
) -> None:
    """Where should this model run? Measured figures first, scaled and predicted ones after, each with its limits."""
    from accel_platform.cli.recommend_output import print_answer
    from predictor.advisor.advisor import Advisor
    from predictor.schemas.requests import RecommendQuery

    limits = {
        "max_latency_ms": max_latency_ms,
        "max_memory_mib": max_memory_mib,
        "max_usd_per_hour": max_usd_per_hour,
        "max_watts": max_watts,
    }
    query = _question(
        RecommendQuery,
        model=_model(
            model, config, _figures(parameters, flops, activation_bytes, layer_output_bytes, family, modality)
        ),
        batch_size=batch_size,
        sequence_length=sequence_length,
        output_tokens=output_tokens,
        image_size=image_size,
        audio_seconds=audio_seconds,
        precision=precision,
        mode=mode.value,
        objective=objective.value,
        constraints=limits,
        hardware=_hardware(hardware, hardware_spec) or None,
    )
    answer = Advisor(settings_for(home)).recommend(query)
    if wants_json(json_, format_):
        print_json(answer)
    else:
        print_answer(answer, objective.value)


def predict(
    model: Model = None,
    *,
    config: Config = None,
    parameters: Parameters = None,
    flops: Flops = None,
    activation_bytes: Activations = None,
    layer_output_bytes: LayerOutputs = None,
    family: Family = None,
    modality: Modality = None,
    hardware: HardwareNames = None,
    hardware_spec: Specs = None,
    batch_size: BatchSize = 1,
    batch_sizes: Annotated[
        str | None, typer.Option("--batch-sizes", help="Several, comma-separated: a row for each.")
    ] = None,
    sequence_length: SequenceLength = None,
    output_tokens: OutputTokens = None,
    image_size: ImageSize = None,
    audio_seconds: AudioSeconds = None,
    precision: Precision = None,
    mode: ModeOption = Mode.inference,
    generate_matrix: Annotated[bool, typer.Option("--generate-matrix", help="Models by hardware.")] = False,
    models: Annotated[str | None, typer.Option("--models", help="Of the matrix, comma-separated.")] = None,
    set_: Annotated[
        str | None, typer.Option("--set", help="Of the matrix: a named set.", show_default="all that were measured")
    ] = None,
    chart: Annotated[
        Path | None, typer.Option("--chart", help="Draw it: over batch sizes, or hardware side by side.")
    ] = None,
    output: Annotated[Path | None, typer.Option("--output", help="Write the matrix there.")] = None,
    home: Home = None,
    json_: Json = False,
    format_: Annotated[TableKind, typer.Option("--format", help="csv and html: of a matrix.")] = TableKind.table,
) -> None:
    """The figures of one model on one piece of hardware; or many at once, as table, heat map or curves."""
    from accel_platform.cli import recommend_output
    from accel_platform.errors import InvalidInput
    from predictor.advisor.advisor import Advisor
    from predictor.schemas.requests import PredictQuery

    format_ = TableKind.json if json_ else format_
    given = _figures(parameters, flops, activation_bytes, layer_output_bytes, family, modality)
    places = _hardware(hardware, hardware_spec)
    same = {
        "sequence_length": sequence_length,
        "output_tokens": output_tokens,
        "image_size": image_size,
        "audio_seconds": audio_seconds,
        "precision": precision,
        "mode": mode.value,
    }
    advisor = Advisor(settings_for(home))
    if generate_matrix:
        names = [_model(model, config, given)] if (model, config, given) != (None, None, None) else None
        sizes = _batch_sizes(batch_sizes, batch_size)
        if len(sizes) > 1:
            raise InvalidInput("A matrix is of one batch size: --batch-size.")
        rows = recommend_output.matrix(advisor, names or _models(models, set_), places, sizes, same)
        recommend_output.print_matrix(rows, format_.value, output)
        return
    if format_ in (TableKind.csv, TableKind.html) or output is not None or models is not None or set_ is not None:
        raise InvalidInput("--models, --set, --output and --format csv or html belong to --generate-matrix.")
    if not places:
        raise InvalidInput("--hardware is missing: name one or more, or ask `accel recommend`.")
    asked = _model(model, config, given)
    sizes = _batch_sizes(batch_sizes, batch_size)
    if len(places) == len(sizes) == 1 and chart is None:
        query = _question(PredictQuery, model=asked, hardware=places[0], batch_size=sizes[0], **same)
        answer = advisor.predict(query)
        if format_ is TableKind.json:
            print_json(answer)
        else:
            recommend_output.print_prediction(answer)
        return
    rows = recommend_output.matrix(advisor, [asked], places, sizes, same)
    recommend_output.print_cells(rows, for_machines=format_ is TableKind.json)
    if chart is not None:
        recommend_output.draw(rows, chart)


def _question(kind: type[Any], **fields: Any) -> Any:
    """A checked query; what is wrong becomes a line that names the option."""
    from predictor.schemas.requests import validate_query

    constraints = fields.get("constraints")
    if constraints is not None:
        fields["constraints"] = {key: value for key, value in constraints.items() if value is not None}
    return validate_query(kind, fields, name=_option)


def _option(path: str) -> str:
    """The option that a field is given by: `--max-watts` for `constraints.max_watts`."""
    outer, _, inner = path.partition(".")
    name = inner.removesuffix("_per_item") if outer in ("model", "constraints") and inner else path
    return f"--{name.replace('_', '-')}"


def _model(name: str | None, config: Path | None, figures: dict[str, Any] | None) -> str | dict[str, Any]:
    """The one way of three in which the model was given. Raises InvalidInput for none or several."""
    from accel_platform.errors import InvalidInput
    from accel_platform.strict_json import read_object

    ways: list[Any] = [way for way in (name, config, figures) if way is not None]
    if len(ways) != 1:
        raise InvalidInput("Give one model: its name, --config FILE, or --parameters with --flops.")
    return read_object(config)[0] if config is not None else ways[0]


def _figures(
    parameters: float | None,
    flops: float | None,
    activation_bytes: float | None,
    layer_output_bytes: float | None,
    family: str | None,
    modality: str | None,
) -> dict[str, Any] | None:
    told = {
        "parameters": parameters,
        "flops_per_item": flops,
        "activation_bytes_per_item": activation_bytes,
        "layer_output_bytes_per_item": layer_output_bytes,
        "family": family,
        "modality": modality,
    }
    given = {key: value for key, value in told.items() if value is not None}
    return given or None


def _hardware(names: list[str] | None, specs: list[Path] | None) -> list[str | dict[str, Any]]:
    from accel_platform.strict_json import read_object

    return [*(names or ()), *(read_object(path)[0] for path in specs or ())]


def _models(names: str | None, set_: str | None) -> list[str] | None:
    """None means every model that was measured."""
    from accel_platform.cli.options import words
    from accel_platform.workloads.model_catalog import model_set

    if set_ is not None:
        return [spec.model_id for spec in model_set(set_)]
    return None if names is None else words(names)


def _batch_sizes(several: str | None, one: int) -> list[int]:
    from accel_platform.cli.options import numbers

    return [one] if several is None else numbers(several)
