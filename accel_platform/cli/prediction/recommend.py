"""`accel recommend` and `accel predict`: queries to the predictor."""

from __future__ import annotations

import enum
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accel_platform.cli.data.knowledge import adopt_shipped
from accel_platform.cli.options import (
    SEVERAL,
    CommonOptions,
    Home,
    Json,
    Mode,
    output_file,
    parse_batch_sizes,
    split_words,
)
from accel_platform.cli.output import exit_if_nothing, note, print_json, settings_for
from accel_platform.cli.prediction.query_options import (
    BatchSize,
    HardwareOptions,
    LimitOptions,
    ModelOptions,
    ModeOption,
    Precision,
    SizeOptions,
    build_query,
    given_fields,
)

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


def recommend(
    *,
    model: ModelOptions,
    batch_size: BatchSize = 1,
    item_size: SizeOptions,
    precision: Precision = None,
    mode: ModeOption = Mode.inference,
    objective: Annotated[Objective, typer.Option("--objective", help="The figure to rank by.")] = Objective.latency,
    limits: LimitOptions,
    where: Annotated[
        Where, typer.Option("--where", help="Rank hardware of this host, of all hosts of this log, or all.")
    ] = Where.anywhere,
    hardware: HardwareOptions,
    verbose: Annotated[bool, typer.Option("--verbose", help="List all hardware that was left out.")] = False,
    wide: Annotated[bool, typer.Option("--wide", help="Print all columns, with the limits of each figure.")] = False,
    common: CommonOptions,
) -> None:
    """Rank hardware for a model: measured figures first, then scaled and predicted ones with intervals."""
    from accel_platform.cli.prediction.recommend_output import print_answer
    from predictor.schemas.requests import RecommendQuery

    query = build_query(
        RecommendQuery,
        model=model.chosen(),
        batch_size=batch_size,
        **asdict(item_size),
        precision=precision,
        mode=mode.value,
        objective=objective.value,
        constraints=given_fields(asdict(limits)),
        where=where.value,
        hardware=hardware.chosen() or None,
    )
    advisor = _advisor(common.home)
    answer = advisor.recommend(query)
    if common.wants_json:
        print_json(answer)
    else:
        # First where nothing was found, because it is the likeliest remedy then; else the answer goes first.
        without_packs = not advisor.reader.rows(_PACKS_IN_USE)
        if without_packs and not answer.recommendations:
            note(_ADD_PACKS)
        print_answer(answer, objective.value, named=bool(query.hardware), verbose=verbose, wide=wide)
        if without_packs and answer.recommendations:
            note(_ADD_PACKS)
        if not query.hardware and where is Where.anywhere and mode is not Mode.generation:
            note("GPUs that nobody measured are answered for by name (`accel devices`): --hardware 'H100 PCIe' MI325X")
    exit_if_nothing(answer.recommendations)


def predict(
    *,
    model: ModelOptions,
    hardware: HardwareOptions,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", min=1, help="Items per batch.", show_default="1")
    ] = None,
    batch_sizes: Annotated[
        str | None, typer.Option("--batch-sizes", metavar=SEVERAL, help="Several batch sizes; a row for each.")
    ] = None,
    item_size: SizeOptions,
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
    as_json: Json = False,
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
    format_ = TableKind.json if as_json else format_
    devices = hardware.chosen()
    same = {**asdict(item_size), "mode": mode.value}
    numbers = _precisions(precisions, precision)
    if generate_matrix:
        names = _matrix_models(model, models, set_)
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
    chosen = model.chosen()
    sizes = _batch_sizes(batch_sizes, batch_size)
    if len(numbers) > 1 and chart is not None:
        raise InvalidInput("A chart is of one precision: --precision.")
    advisor = _advisor(home)
    if len(devices) == len(sizes) == len(numbers) == 1 and chart is None:
        query = build_query(
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


def _matrix_models(model: ModelOptions, names: str | None, set_: str | None) -> list[Any] | None:
    """Return the models of the matrix; None for every measured model. Raises InvalidInput for several ways, or none."""
    from accel_platform.errors import InvalidInput
    from accel_platform.workloads.model_catalog import model_set

    words = None if names is None else split_words(names)
    if words == [] or (words is not None and set_ is not None):
        raise InvalidInput("Give --models with names, bert-base,vit-base, or --set with one of a set.")
    several = words if set_ is None else [spec.model_id for spec in model_set(set_)]
    if model.is_given and several is not None:
        raise InvalidInput("The models of a matrix are one MODEL, --models or --set: leave out the others.")
    return [model.chosen()] if model.is_given else several


def _precisions(several: str | None, one: str | None) -> list[str | None]:
    """Return the precisions of both options. Raises InvalidInput where both are given, or several name none."""
    from accel_platform.errors import InvalidInput

    if several is None:
        return [one]
    names: list[str | None] = [*split_words(several)]
    if one is not None or not names:
        raise InvalidInput("Give --precision with one, or --precisions with several: float32,float16.")
    return names


def _batch_sizes(several: str | None, one: int | None) -> list[int]:
    """Return the batch sizes of both options, 1 without either. Raises InvalidInput where both are given."""
    from accel_platform.errors import InvalidInput

    if several is None:
        return [one or 1]
    if one is not None:
        raise InvalidInput("Give --batch-size with one, or --batch-sizes with several: 1,4.")
    return parse_batch_sizes(several)
