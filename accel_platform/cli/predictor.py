"""`accel train`, `predict`, `recommend` and `serve`: questions to the predictor. Nothing is computed here."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from accel_platform.cli.output import (
    Format,
    Home,
    Json,
    Mode,
    OutputFormat,
    note,
    print_json,
    print_table,
    settings_for,
    wants_json,
)

if TYPE_CHECKING:
    from predictor.answers import Answer, Interval, Query

Q = TypeVar("Q", bound="Query")


class Objective(enum.StrEnum):
    latency = "latency"
    throughput = "throughput"
    memory = "memory"


Model = Annotated[str, typer.Argument(help="A model's key, alias or hub id, e.g. bert-base-uncased.")]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Items per batch.")]
SequenceLength = Annotated[
    int | None, typer.Option("--sequence-length", min=1, help="Tokens per item; default: as measured.")
]
Precision = Annotated[str | None, typer.Option("--precision", help="Default: float32.")]
ModeOption = Annotated[Mode, typer.Option("--mode", help="What the model does.")]


def train(home: Home = None, json_: Json = False, format_: OutputFormat = Format.table) -> None:
    """Train the predictor on what was measured and imported, and put it into service."""
    from accel_platform.events import EventLog
    from predictor.train import rows_of
    from predictor.train import train as run

    settings = settings_for(home)
    report = run(settings, EventLog.open(settings), progress=note)
    if wants_json(json_, format_):
        print_json(vars(report))
        return
    print_table(rows_of(report.metrics))
    for reason, count in report.skipped.items():
        note(f"{count} cells not learned from: {reason}")


def recommend(
    model: Model,
    *,
    batch_size: BatchSize = 1,
    sequence_length: SequenceLength = None,
    precision: Precision = None,
    mode: ModeOption = Mode.inference,
    objective: Annotated[Objective, typer.Option("--objective", help="What to rank by.")] = Objective.latency,
    hardware: Annotated[
        list[str] | None, typer.Option("--hardware", help="Choose among these only; give it again for each.")
    ] = None,
    home: Home = None,
    json_: Json = False,
    format_: OutputFormat = Format.table,
) -> None:
    """Where should this model run? Measured figures first, scaled and predicted ones after, each with its limits."""
    from predictor.advisor import Advisor
    from predictor.answers import RecommendQuery

    query = _query(
        RecommendQuery,
        model=model,
        batch_size=batch_size,
        sequence_length=sequence_length,
        precision=precision,
        mode=mode.value,
        objective=objective.value,
        hardware=hardware or None,
    )
    answer = Advisor(settings_for(home)).recommend(query)
    if wants_json(json_, format_):
        print_json(answer)
        return
    _print_answer(answer)


def predict(
    model: Model,
    *,
    hardware: Annotated[str, typer.Option("--hardware", help="A hardware name (cpu, openvino, …) or a device's name.")],
    batch_size: BatchSize = 1,
    sequence_length: SequenceLength = None,
    precision: Precision = None,
    mode: ModeOption = Mode.inference,
    home: Home = None,
    json_: Json = False,
    format_: OutputFormat = Format.table,
) -> None:
    """The figures of one model on one piece of hardware."""
    from predictor.advisor import Advisor
    from predictor.answers import PredictQuery

    query = _query(
        PredictQuery,
        model=model,
        hardware=hardware,
        batch_size=batch_size,
        sequence_length=sequence_length,
        precision=precision,
        mode=mode.value,
    )
    answer = Advisor(settings_for(home)).predict(query)
    if wants_json(json_, format_):
        print_json(answer)
        return
    print_table([_row(answer)])
    note(answer.basis)
    for warning in answer.warnings:
        note(f"warning: {warning}")


def serve(
    host: Annotated[str, typer.Option("--host", help="Loopback only.")] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", min=0, max=65_535, help="0 takes any free one.")] = 8000,
    home: Home = None,
    json_: Json = False,
    format_: OutputFormat = Format.table,
) -> None:
    """Answer over HTTP until Ctrl-C."""
    from predictor.service.serve import serve as run

    for_machines = wants_json(json_, format_)
    run(settings_for(home), host, port, ready=lambda url: print_json({"url": url}) if for_machines else announce(url))


def announce(url: str) -> None:
    """Say where the service answers, and give a question that can be pasted."""
    note(f"Serving on {url} (Ctrl-C stops it). Open {url}/docs, or ask:")
    body = '{"model": "bert-base-uncased", "batch_size": 1}'
    note(f"  curl -s {url}/recommend -H 'content-type: application/json' -d '{body}'")


def _query(kind: type[Q], **fields: Any) -> Q:
    """A checked query; what pydantic finds wrong becomes a line that names the option."""
    from pydantic import ValidationError

    from accel_platform.errors import InvalidInput

    try:
        return kind(**fields)
    except ValidationError as error:
        wrong = "; ".join(f"--{'-'.join(str(e['loc'][0]).split('_'))}: {e['msg']}" for e in error.errors())
        raise InvalidInput(wrong) from error


def _print_answer(answer: Answer) -> None:
    names = [(r.hardware, r.device) for r in answer.recommendations]
    rows = [{"rank": r.rank, **_row(r)} for r in answer.recommendations]
    for row, r, name in zip(rows, answer.recommendations, names, strict=True):
        if names.count(name) > 1:
            row["device"] = f"{r.device} ({r.device_id})"
    print_table(rows, empty="Nothing supports a recommendation.")
    for left_out in answer.excluded:
        device = f" ({left_out.device})" if left_out.device else ""
        note(f"left out: {left_out.hardware}{device}: {left_out.reason}")
    if answer.excluded:
        # One command stands for all: they differ in the hardware alone, and --json has each.
        here = [e.suggestion for e in answer.excluded if e.suggestion.startswith("accel")]
        note(f"to settle one of these: {(here or [answer.excluded[0].suggestion])[0]}")
    for warning in answer.warnings:
        note(f"warning: {warning}")


def _row(figures: Any) -> dict[str, Any]:
    return {
        "hardware": figures.hardware,
        "device": figures.device,
        "latency_ms": _interval(figures.latency_ms),
        "items_per_s": _interval(figures.throughput_items_per_s),
        "memory_peak_mib": _interval(figures.memory_peak_mib),
        "provenance": figures.provenance,
        "compatibility": figures.compatibility.rating or figures.compatibility.state,
    }


def _interval(interval: Interval | None) -> str | None:
    if interval is None:
        return None
    if interval.low is None or interval.high is None:
        return f"{interval.p50:.4g}"
    level = "" if interval.level is None else f" at {interval.level:.0%}"
    return f"{interval.p50:.4g} [{interval.low:.4g}, {interval.high:.4g}{level}]"
