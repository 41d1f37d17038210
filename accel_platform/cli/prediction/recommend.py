"""`accel recommend` and `accel predict`: queries to the predictor."""

from __future__ import annotations

import enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accel_platform.cli.data.knowledge import adopt_shipped
from accel_platform.cli.options import SEVERAL, Config, FormatOption, Home, Json, Mode, OutputFormat, output_file
from accel_platform.cli.output import exit_if_nothing, note, print_json, settings_for, wants_json

if TYPE_CHECKING:
    from predictor.advisor.advisor import Advisor


class Objective(enum.StrEnum):
    latency = "latency"
    throughput = "throughput"
    cost = "cost"
    energy = "energy"
    memory = "memory"


class Where(enum.StrEnum):
    here = "here"
    mine = "mine"
    anywhere = "anywhere"


class TableKind(enum.StrEnum):
    """Output format of `accel predict`."""

    table = "table"
    json = "json"
    csv = "csv"
    html = "html"


# The last word on a pack decides.
_PACKS_IN_USE = """
SELECT pack FROM knowledge_packs GROUP BY pack HAVING arg_max(used, (recorded_at, event_id)) LIMIT 1
"""
_ADD_PACKS = "The published figures that come with the platform are not in this log: `accel knowledge add --all`."
_MODEL = "A model's key, alias or hub id, e.g. bert-base-uncased."
Model = Annotated[str | None, typer.Argument(help=_MODEL, show_default=False)]
Parameters = Annotated[
    float | None, typer.Option("--parameters", help="Instead of MODEL: its number of parameters, with --flops.")
]
Flops = Annotated[float | None, typer.Option("--flops", help="FLOPs of one item's forward pass, 2 per multiply-add.")]
Activations = Annotated[
    float | None, typer.Option("--activation-bytes", help="Bytes that all operators write for one item, in float32.")
]
LayerOutputs = Annotated[
    float | None,
    typer.Option(
        "--layer-output-bytes", help="The part written by linear layers and convolutions: 4 x timm's activations."
    ),
]
Family = Annotated[str | None, typer.Option("--family", help="With --parameters: the model family.")]
Modality = Annotated[
    str | None, typer.Option("--modality", help="With --parameters: text, vision, audio or multimodal.")
]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Items per batch.")]
SequenceLength = Annotated[
    int | None, typer.Option("--sequence-length", min=1, help="Tokens per item. Default: as measured.")
]
OutputTokens = Annotated[
    int | None, typer.Option("--output-tokens", min=1, help="Generated tokens. Default: as measured, else 32.")
]
ImageSize = Annotated[
    int | None, typer.Option("--image-size", min=1, help="Pixels along an edge. Default: the model's own.")
]
AudioSeconds = Annotated[
    float | None, typer.Option("--audio-seconds", help="Seconds of audio per item. Default: the model's own.")
]
Steps = Annotated[
    int | None,
    typer.Option("--steps", min=1, help="Steps that a model draws an image in. Default: its publisher's."),
]
Precision = Annotated[str | None, typer.Option("--precision", help="Default: float32.")]
ModeOption = Annotated[
    Mode, typer.Option("--mode", help="inference, generation or training; for a load of users see `accel serving`.")
]
HardwareNames = Annotated[
    list[str] | None,
    typer.Option(
        "--hardware", help="A hardware name, gpu or npu, or a device of a host or the spec sheet; several may follow."
    ),
]
Specs = Annotated[
    list[Path] | None,
    typer.Option("--hardware-spec", help="JSON file that describes your own device.", dir_okay=False, exists=True),
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
    steps: Steps = None,
    precision: Precision = None,
    mode: ModeOption = Mode.inference,
    objective: Annotated[Objective, typer.Option("--objective", help="The figure to rank by.")] = Objective.latency,
    max_latency_ms: Annotated[
        float | None, typer.Option(help="Exclude hardware that may take longer per batch.")
    ] = None,
    max_memory_mib: Annotated[float | None, typer.Option(help="Exclude hardware that may need more memory.")] = None,
    max_usd_per_hour: Annotated[float | None, typer.Option(help="Exclude hardware that costs more to rent.")] = None,
    max_watts: Annotated[float | None, typer.Option(help="Exclude hardware with a higher power limit.")] = None,
    where: Annotated[
        Where, typer.Option("--where", help="Rank hardware of this host, of all hosts of this log, or all.")
    ] = Where.anywhere,
    hardware: HardwareNames = None,
    hardware_spec: Specs = None,
    verbose: Annotated[bool, typer.Option("--verbose", help="List all hardware that was left out.")] = False,
    wide: Annotated[bool, typer.Option("--wide", help="Print all columns, with the limits of each figure.")] = False,
    home: Home = None,
    json_: Json = False,
    format_: OutputFormat = FormatOption.table,
) -> None:
    """Rank hardware for a model: measured figures first, then scaled and predicted ones with intervals."""
    from accel_platform.cli.prediction.recommend_output import print_answer
    from predictor.schemas.requests import RecommendQuery

    limits = {
        "max_latency_ms": max_latency_ms,
        "max_memory_mib": max_memory_mib,
        "max_usd_per_hour": max_usd_per_hour,
        "max_watts": max_watts,
    }
    query = _build_query(
        RecommendQuery,
        model=_chosen_model(
            model, config, _inline_costs(parameters, flops, activation_bytes, layer_output_bytes, family, modality)
        ),
        batch_size=batch_size,
        sequence_length=sequence_length,
        output_tokens=output_tokens,
        image_size=image_size,
        audio_seconds=audio_seconds,
        steps=steps,
        precision=precision,
        mode=mode.value,
        objective=objective.value,
        constraints=limits,
        where=where.value,
        hardware=_hardware(hardware, hardware_spec) or None,
    )
    advisor = _advisor(home)
    answer = advisor.recommend(query)
    if wants_json(json_, format_):
        print_json(answer)
    else:
        # First where nothing was found, because it is the likeliest remedy then; else the answer goes first.
        without_packs = not advisor.reader.rows(_PACKS_IN_USE)
        if without_packs and not answer.recommendations:
            note(_ADD_PACKS)
        print_answer(answer, objective.value, verbose=verbose, wide=wide)
        if without_packs and answer.recommendations:
            note(_ADD_PACKS)
        if not query.hardware and where is Where.anywhere and mode is not Mode.generation:
            note("GPUs that nobody measured are answered for by name (`accel devices`): --hardware 'H100 PCIe' MI325X")
    exit_if_nothing(answer.recommendations)


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
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help="Items per batch.", show_default="1")
    ] = None,
    batch_sizes: Annotated[
        str | None, typer.Option("--batch-sizes", metavar=SEVERAL, help="Several batch sizes; a row for each.")
    ] = None,
    sequence_length: SequenceLength = None,
    output_tokens: OutputTokens = None,
    image_size: ImageSize = None,
    audio_seconds: AudioSeconds = None,
    steps: Steps = None,
    precision: Precision = None,
    precisions: Annotated[
        str | None, typer.Option("--precisions", metavar=SEVERAL, help="Several precisions; a row for each.")
    ] = None,
    mode: ModeOption = Mode.inference,
    generate_matrix: Annotated[
        bool, typer.Option("--generate-matrix", help="Predict a matrix of models by hardware.")
    ] = False,
    models: Annotated[str | None, typer.Option("--models", metavar=SEVERAL, help="Models of the matrix.")] = None,
    set_: Annotated[
        str | None,
        typer.Option("--set", help="A named set of models for the matrix.", show_default="all that were measured"),
    ] = None,
    chart: Annotated[
        Path | None,
        typer.Option(
            "--chart", callback=output_file, help="Write a chart: curves over batch sizes, or hardware side by side."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", callback=output_file, help="Write the matrix to this file.")
    ] = None,
    home: Home = None,
    json_: Json = False,
    format_: Annotated[
        TableKind, typer.Option("--format", help="Output format; csv and html only for a matrix.")
    ] = TableKind.table,
) -> None:
    """Predict the figures of a model on hardware, or of many at once as a table, heat map or curves."""
    from accel_platform.cli.prediction import recommend_output
    from accel_platform.errors import InvalidInput
    from predictor.schemas.requests import PredictQuery

    if chart is not None:
        from accel_platform.reports.charts.render import kind_of

        kind_of(chart)
    format_ = TableKind.json if json_ else format_
    given = _inline_costs(parameters, flops, activation_bytes, layer_output_bytes, family, modality)
    devices = _hardware(hardware, hardware_spec)
    same = {
        "sequence_length": sequence_length,
        "output_tokens": output_tokens,
        "image_size": image_size,
        "audio_seconds": audio_seconds,
        "steps": steps,
        "mode": mode.value,
    }
    numbers = _precisions(precisions, precision)
    if generate_matrix:
        names = _matrix_models(models, set_)
        if (model, config, given) != (None, None, None):
            if names is not None:
                raise InvalidInput("The models of a matrix are one MODEL, --models or --set: leave out the others.")
            names = [_chosen_model(model, config, given)]
        sizes = _batch_sizes(batch_sizes, batch_size)
        if len(sizes) > 1 or len(numbers) > 1:
            raise InvalidInput("A matrix is of one batch size and one precision: --batch-size, --precision.")
        rows = recommend_output.predict_matrix(_advisor(home), names, devices, sizes, numbers, same)
        recommend_output.print_matrix(rows, format_.value, output)
        exit_if_nothing([row for row in rows if row["problem"] is None])
        return
    if format_ in (TableKind.csv, TableKind.html) or output is not None or models is not None or set_ is not None:
        raise InvalidInput("--models, --set, --output and --format csv or html belong to --generate-matrix.")
    if not devices:
        raise InvalidInput("--hardware is missing: name one or more, or ask `accel recommend`.")
    chosen = _chosen_model(model, config, given)
    sizes = _batch_sizes(batch_sizes, batch_size)
    if len(numbers) > 1 and chart is not None:
        raise InvalidInput("A chart is of one precision: --precision.")
    advisor = _advisor(home)
    if len(devices) == len(sizes) == len(numbers) == 1 and chart is None:
        query = _build_query(
            PredictQuery, model=chosen, hardware=devices[0], batch_size=sizes[0], precision=numbers[0], **same
        )
        answer = advisor.predict(query)
        if format_ is TableKind.json:
            print_json(answer)
        else:
            recommend_output.print_prediction(answer)
        return
    rows = recommend_output.predict_matrix(advisor, [chosen], devices, sizes, numbers, same)
    recommend_output.print_cells(rows, for_machines=format_ is TableKind.json)
    if chart is not None:
        recommend_output.draw_chart(rows, chart)
    exit_if_nothing([row for row in rows if row["problem"] is None])


def _advisor(home: Path | None) -> Advisor:
    """Return the advisor of a home; an empty log gets the knowledge packs first, as `accel serve` does it."""
    from predictor.advisor.advisor import Advisor

    settings = settings_for(home)
    adopt_shipped(settings, only_into_empty_log=True)
    return Advisor(settings)


def _build_query(kind: type[Any], **fields: Any) -> Any:
    """Return a validated query. Raises InvalidInput, naming the option."""
    from predictor.schemas.requests import validate_query

    constraints = fields.get("constraints")
    if constraints is not None:
        fields["constraints"] = {key: value for key, value in constraints.items() if value is not None}
    return validate_query(kind, fields, name=_option_name)


def _option_name(path: str) -> str:
    """Return the option of a query field: `--max-watts` for `constraints.max_watts`."""
    outer, _, inner = path.partition(".")
    name = inner.removesuffix("_per_item") if outer in ("model", "constraints") and inner else path
    return f"--{name.replace('_', '-')}"


def _chosen_model(name: str | None, config: Path | None, figures: dict[str, Any] | None) -> str | dict[str, Any]:
    """Return the model given in one of three ways. Raises InvalidInput for none or several."""
    from accel_platform.errors import InvalidInput
    from accel_platform.strict_json import read_object

    ways: list[Any] = [way for way in (name, config, figures) if way is not None]
    if figures is not None and len(ways) > 1:
        options = ", ".join(_option_name(f"model.{key}") for key in figures)
        given = "--config" if name is None else name
        raise InvalidInput(f"{options} would describe a model in place of {given}: leave out one or the other.")
    if len(ways) != 1:
        raise InvalidInput("Give one model: its name before --hardware, --config FILE, or --parameters with --flops.")
    return read_object(config)[0] if config is not None else ways[0]


def _inline_costs(
    parameters: float | None,
    flops: float | None,
    activation_bytes: float | None,
    layer_output_bytes: float | None,
    family: str | None,
    modality: str | None,
) -> dict[str, Any] | None:
    costs = {
        "parameters": parameters,
        "flops_per_item": flops,
        "activation_bytes_per_item": activation_bytes,
        "layer_output_bytes_per_item": layer_output_bytes,
        "family": family,
        "modality": modality,
    }
    given = {key: value for key, value in costs.items() if value is not None}
    return given or None


def _hardware(names: list[str] | None, specs: list[Path] | None) -> list[str | dict[str, Any]]:
    """Return names, of which several may stand with commas between, and described devices.

    A name of the spec sheet may have commas itself.
    """
    from accel_platform.cli.options import split_words
    from accel_platform.hardware.catalog import find_spec
    from accel_platform.strict_json import read_object

    words = (part for name in names or () for part in ([name] if find_spec(name) else split_words(name)))
    return [*words, *(read_object(path)[0] for path in specs or ())]


def _matrix_models(names: str | None, set_: str | None) -> list[Any] | None:
    """Return the models of the matrix; None for every measured model. Raises InvalidInput for both or no names."""
    from accel_platform.cli.options import split_words
    from accel_platform.errors import InvalidInput
    from accel_platform.workloads.model_catalog import model_set

    words = None if names is None else split_words(names)
    if words == [] or (words is not None and set_ is not None):
        raise InvalidInput("Give --models with names, bert-base,vit-base, or --set with one of a set.")
    return words if set_ is None else [spec.model_id for spec in model_set(set_)]


def _precisions(several: str | None, one: str | None) -> list[str | None]:
    """Return the precisions of both options. Raises InvalidInput where both are given, or several name none."""
    from accel_platform.cli.options import split_words
    from accel_platform.errors import InvalidInput

    if several is None:
        return [one]
    names: list[str | None] = [*split_words(several)]
    if one is not None or not names:
        raise InvalidInput("Give --precision with one, or --precisions with several: float32,float16.")
    return names


def _batch_sizes(several: str | None, one: int | None) -> list[int]:
    """Return the batch sizes of both options, 1 without either. Raises InvalidInput where both are given."""
    from accel_platform.cli.options import parse_batch_sizes
    from accel_platform.errors import InvalidInput

    if several is None:
        return [one or 1]
    if one is not None:
        raise InvalidInput("Give --batch-size with one, or --batch-sizes with several: 1,4.")
    return parse_batch_sizes(several)
