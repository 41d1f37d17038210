"""`accel evaluate`: how good the predictor is, on anybody's results. It is judged in `predictor.training.evaluate`."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accel_platform.cli.output import AnyFormat, FileFormat, Home, Json, Output, answer, chosen, note, settings_for

if TYPE_CHECKING:
    from accel_platform.settings import Settings
    from predictor.data.samples import Sample
    from predictor.training.evaluate import EvaluationResult

Directory = typer.Option(exists=True, help="Result files in any format that `accel migrate` reads.")


def evaluate(
    dataset: Annotated[Path | None, Directory] = None,
    train: Annotated[Path | None, Directory] = None,
    test: Annotated[Path | None, Directory] = None,
    report: Annotated[Path | None, typer.Option("--report", help="Write an HTML page with charts.")] = None,
    output: Output = None,
    format_: FileFormat = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Hold out cases, families and hardware, predict them, and compare with what was measured and with plain baselines.

    Of --dataset, of --train judged on --test, or else of what this installation has measured and imported.
    """
    from accel_platform.errors import InvalidInput

    if (train is None) != (test is None) or (train is not None and dataset is not None):
        raise InvalidInput("Give --dataset alone, or --train and --test together.")
    kind = chosen(as_json, format_, output)
    results: list[tuple[str, EvaluationResult]] = []
    if train is not None and test is not None:
        results = _judged(_imported(train), _imported(test))
    else:
        results = _tried(_imported(dataset) if dataset is not None else _cases(settings_for(home)))
    if report is not None:
        from predictor.training.evaluation_report import write_report

        write_report(report, results)
        note(f"wrote {report}")
    _print(results, kind, output)


def _judged(known: list[Sample], asked: list[Sample]) -> list[tuple[str, EvaluationResult]]:
    from accel_platform.errors import InvalidInput
    from predictor.training.evaluate import evaluate_train_test

    names = sorted({case.mode for case in asked})
    if not names:
        raise InvalidInput("The test set holds no usable figure whose model's cost and device are known.")
    return [
        (n, evaluate_train_test([c for c in known if c.mode == n], [c for c in asked if c.mode == n], note))
        for n in names
    ]


def _tried(cases: list[Sample]) -> list[tuple[str, EvaluationResult]]:
    from predictor.training.evaluate import evaluate_splits

    names = sorted({case.mode for case in cases}) or [""]
    return [(name, asked) for name in names for asked in evaluate_splits([c for c in cases if c.mode == name], note)]


def _imported(directory: Path) -> list[Sample]:
    """The cases of a directory, by way of a log and a warehouse that live only meanwhile."""
    from accel_platform.events import EventLog
    from accel_platform.settings import Settings
    from accel_platform.warehouse.publish import refresh
    from migrations.pipeline.importer import migrate

    with tempfile.TemporaryDirectory(prefix="accel-evaluate-") as place:
        settings = Settings(home=Path(place), log_uri=None)
        done = migrate([directory], EventLog.open(settings))
        note(f"{directory}: {done.found} files, {done.records} records, {done.suspects} of them suspected")
        refresh(settings)
        return _cases(settings)


def _cases(settings: Settings) -> list[Sample]:
    from accel_platform.warehouse.reader import Reader
    from predictor.data.dataset import load_training_set

    book = load_training_set(Reader(settings))
    for reason, count in book.skipped.items():
        note(f"{count} figures left out: {reason}")
    return book.measured


def _print(results: list[tuple[str, EvaluationResult]], kind: AnyFormat, output: Path | None) -> None:
    from predictor.training.evaluate import evaluation_metrics
    from predictor.training.evaluation_report import result_rows

    metrics: list[dict[str, Any]] = [{"dataset": name, **evaluation_metrics(asked)} for name, asked in results]
    rows = [row for found in metrics for row in result_rows(found["dataset"], found)]
    answer(rows, kind, output, title="How far predictions err", document={"splits": metrics})
