"""`accel train`, `evaluate` and `predictor`: the life of a predictor."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accel_platform.cli.options import CommandApp, CommonOptions, TableOptions, output_file
from accel_platform.cli.output import note, print_json, print_table, settings_for, write_answer
from accel_platform.table_io.values import count_of

if TYPE_CHECKING:
    from accel_platform.settings import Settings
    from predictor.data.samples import Sample
    from predictor.training.evaluate import EvaluationResult


def train(common: CommonOptions) -> None:
    """Train the predictor on measured and imported results, and put it into service."""
    from accel_platform.events import EventLog
    from predictor.training.train import metric_rows
    from predictor.training.train import train as run

    settings = settings_for(common.home)
    report = run(settings, EventLog.open(settings), progress=note)
    if common.wants_json:
        print_json(vars(report))
        return
    print_table(metric_rows(report.metrics), empty="Too few figures to hold some out: its errors are not known.")
    for reason, count in report.skipped.items():
        note(f"{count_of(count, 'figure')} not learned from: {reason}")


app = CommandApp(help="The stored predictors: list, show, roll back.", no_args_is_help=True)
Id = Annotated[str | None, typer.Argument(help="An id or its beginning; default: the one in service.")]


@app.command("list")
def list_(table: TableOptions) -> None:
    """List the stored predictors, newest first, and mark the one in service."""
    from accel_platform.events import EventLog
    from predictor.training.promotion import list_predictors

    settings = settings_for(table.home)
    rows = list_predictors(settings, EventLog.open(settings))
    nothing, document = "No predictor was trained yet (`accel train`).", {"predictors": rows}
    write_answer(rows, table, title="Predictors", document=document, empty=nothing)


@app.command()
def show(predictor_id: Id = None, *, table: TableOptions) -> None:
    """Show a predictor's training data and its errors on held-out results."""
    from predictor.training.promotion import find_manifest
    from predictor.training.train import metric_rows

    manifest = find_manifest(settings_for(table.home), predictor_id)
    document = manifest.model_dump(mode="json")
    write_answer(metric_rows(manifest.metrics), table, title="Errors on held-out results", document=document)
    note(
        f"{count_of(manifest.rows, 'figure')} of {count_of(len(manifest.families), 'family')} "
        f"at snapshot {manifest.snapshot_id[:12]}"
    )


@app.command()
def rollback(
    predictor_id: Annotated[
        str | None, typer.Argument(help="An id or its beginning; default: the one that served before.")
    ] = None,
    *,
    common: CommonOptions,
) -> None:
    """Put an earlier predictor back into service. A running service switches at once."""
    from accel_platform.events import EventLog
    from predictor.training.promotion import roll_back

    settings = settings_for(common.home)
    done = roll_back(settings, EventLog.open(settings), predictor_id)
    if common.wants_json:
        print_json({"predictor_id": done.predictor_id, "replaced": done.replaced})
        return
    note(f"{done.predictor_id} serves; {done.replaced or 'nothing'} did")


Directory = typer.Option(exists=True, help="Result files in any format that `accel migrate` reads.")


def evaluate(
    dataset: Annotated[Path | None, Directory] = None,
    train: Annotated[Path | None, Directory] = None,
    test: Annotated[Path | None, Directory] = None,
    report: Annotated[Path | None, typer.Option(callback=output_file, help="Write an HTML page with charts.")] = None,
    *,
    table: TableOptions,
) -> None:
    """Evaluate predictions of held-out results, families and hardware against measurements and baselines.

    Uses --dataset, or --train with --test, or this installation's results by default.
    """
    from accel_platform.errors import InvalidInput

    if (train is None) != (test is None) or (train is not None and dataset is not None):
        raise InvalidInput("Give --dataset alone, or --train and --test together.")
    results: list[tuple[str, EvaluationResult]] = []
    if train is not None and test is not None:
        results = _evaluate_split(_import_samples(train), _import_samples(test))
    else:
        results = _cross_validate(
            _import_samples(dataset) if dataset is not None else _load_samples(settings_for(table.home))
        )
    if report is not None:
        from predictor.training.evaluation_report import write_report

        write_report(report, results)
        note(f"wrote {report}")
    _print_evaluation(results, table)


def _evaluate_split(train: list[Sample], test: list[Sample]) -> list[tuple[str, EvaluationResult]]:
    from accel_platform.errors import InvalidInput
    from predictor.training.evaluate import evaluate_train_test

    names = sorted({sample.mode for sample in test})
    if not names:
        raise InvalidInput("The test set holds no usable figure whose model's cost and device are known.")
    return [
        (n, evaluate_train_test([s for s in train if s.mode == n], [s for s in test if s.mode == n], note))
        for n in names
    ]


def _cross_validate(samples: list[Sample]) -> list[tuple[str, EvaluationResult]]:
    from predictor.training.evaluate import evaluate_splits

    names = sorted({sample.mode for sample in samples}) or [""]
    return [(name, r) for name in names for r in evaluate_splits([s for s in samples if s.mode == name], note)]


def _import_samples(directory: Path) -> list[Sample]:
    """Return the samples of a directory of result files, imported into a temporary home."""
    from accel_platform.events import EventLog
    from accel_platform.settings import Settings
    from accel_platform.warehouse.publish import refresh
    from migrations.pipeline.importer import migrate

    with tempfile.TemporaryDirectory(prefix="accel-evaluate-") as temporary:
        settings = Settings(home=Path(temporary), log_uri=None)
        done = migrate([directory], EventLog.open(settings))
        note(
            f"{directory}: {count_of(done.found, 'file')}, {count_of(done.records, 'record')}, "
            f"{done.suspects} of them suspected"
        )
        refresh(settings)
        return _load_samples(settings)


def _load_samples(settings: Settings) -> list[Sample]:
    from accel_platform.warehouse.reader import Reader
    from predictor.data.dataset import load_training_set

    book = load_training_set(Reader(settings))
    for reason, count in book.skipped.items():
        note(f"{count_of(count, 'figure')} left out: {reason}")
    return book.measured


def _print_evaluation(results: list[tuple[str, EvaluationResult]], table: TableOptions) -> None:
    from predictor.training.evaluate import evaluation_metrics
    from predictor.training.evaluation_report import result_rows

    metrics: list[dict[str, Any]] = [{"dataset": name, **evaluation_metrics(result)} for name, result in results]
    rows = [row for found in metrics for row in result_rows(found["dataset"], found)]
    write_answer(rows, table, title="How far predictions err", document={"splits": metrics})
