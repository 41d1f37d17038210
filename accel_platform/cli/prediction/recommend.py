"""`accel recommend` and `accel predict`: queries to the predictor."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from accel_platform.cli.data.knowledge import adopt_shipped
from accel_platform.cli.options import CommonOptions, Home, Json, output_file
from accel_platform.cli.output import exit_if_nothing, note, print_json, settings_for
from accel_platform.cli.prediction.query_options import (
    BatchSize,
    BatchSizeOptions,
    HardwareOptions,
    LimitOptions,
    MatrixOptions,
    ModelOptions,
    ModeOption,
    Precision,
    PrecisionOptions,
    SizeOptions,
    build_query,
    given_fields,
)

if TYPE_CHECKING:
    from predictor.advisor.advisor import Advisor


Objective = Literal["latency", "throughput", "cost", "energy", "memory"]


Where = Literal["here", "mine", "anywhere"]


TableKind = Literal["table", "json", "csv", "html"]
"""Output format of `accel predict`."""


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
    mode: ModeOption = "inference",
    objective: Annotated[Objective, typer.Option(help="The figure to rank by.")] = "latency",
    limits: LimitOptions,
    where: Annotated[
        Where, typer.Option(help="Rank hardware of this host, of all hosts of this log, or all.")
    ] = "anywhere",
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
        mode=mode,
        objective=objective,
        constraints=given_fields(asdict(limits)),
        where=where,
        hardware=hardware.chosen() or None,
        limit=None,
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
        print_answer(answer, objective, named=bool(query.hardware), verbose=verbose, wide=wide)
        if without_packs and answer.recommendations:
            note(_ADD_PACKS)
        if not query.hardware and where == "anywhere" and mode != "generation":
            note("GPUs that nobody measured are answered for by name (`accel devices`): --hardware 'H100 PCIe' MI325X")
    exit_if_nothing(answer.recommendations)


def predict(
    *,
    model: ModelOptions,
    hardware: HardwareOptions,
    batch_size: BatchSizeOptions,
    item_size: SizeOptions,
    precision: PrecisionOptions,
    mode: ModeOption = "inference",
    matrix: MatrixOptions,
    chart: Annotated[
        Path | None,
        typer.Option(callback=output_file, help="Write a chart: curves over batch sizes, or hardware side by side."),
    ] = None,
    output: Annotated[Path | None, typer.Option(callback=output_file, help="Write the matrix to this file.")] = None,
    home: Home = None,
    as_json: Json = False,
    format_: Annotated[
        TableKind, typer.Option("--format", help="Output format; csv and html only for a matrix.")
    ] = "table",
) -> None:
    """Predict the figures of a model on hardware, or of many at once as a table, heat map or curves."""
    from accel_platform.cli.prediction import recommend_output
    from accel_platform.errors import InvalidInput
    from predictor.schemas.requests import PredictQuery

    if chart is not None:
        from accel_platform.reports.charts.render import kind_of

        kind_of(chart)
    format_ = "json" if as_json else format_
    devices = hardware.chosen()
    same = {**asdict(item_size), "mode": mode}
    numbers = precision.chosen()
    if matrix.generate_matrix:
        names = matrix.chosen(model)
        sizes = batch_size.chosen()
        if len(sizes) > 1 or len(numbers) > 1:
            raise InvalidInput("A matrix is of one batch size and one precision: --batch-size, --precision.")
        rows = recommend_output.predict_matrix(_advisor(home), names, devices, sizes, numbers, same)
        recommend_output.print_matrix(rows, format_, output)
        exit_if_nothing([row for row in rows if row["problem"] is None])
        return
    if format_ in ("csv", "html") or output is not None or matrix.names_models:
        raise InvalidInput("--models, --set, --output and --format csv or html belong to --generate-matrix.")
    if not devices:
        raise InvalidInput("--hardware is missing: name one or more, or ask `accel recommend`.")
    chosen = model.chosen()
    sizes = batch_size.chosen()
    if len(numbers) > 1 and chart is not None:
        raise InvalidInput("A chart is of one precision: --precision.")
    advisor = _advisor(home)
    if len(devices) == len(sizes) == len(numbers) == 1 and chart is None:
        query = build_query(
            PredictQuery, model=chosen, hardware=devices[0], batch_size=sizes[0], precision=numbers[0], **same
        )
        answer = advisor.predict(query)
        if format_ == "json":
            print_json(answer)
        else:
            recommend_output.print_prediction(answer)
        return
    rows = recommend_output.predict_matrix(advisor, [chosen], devices, sizes, numbers, same)
    recommend_output.print_cells(rows, for_machines=format_ == "json")
    if chart is not None:
        recommend_output.draw_chart(rows, chart)
    exit_if_nothing([row for row in rows if row["problem"] is None])


def _advisor(home: Path | None) -> Advisor:
    """Return the advisor of a home; an empty log gets the knowledge packs first, as `accel serve` does it."""
    from predictor.advisor.advisor import Advisor

    settings = settings_for(home)
    adopt_shipped(settings, only_into_empty_log=True)
    return Advisor(settings)
