"""`accel bench request`, `requests` and `cancel`: asking hosts to measure. What comes of it is in `assets/hosts.py`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accel_platform.cli.output import (
    FileFormat,
    FormatOption,
    Home,
    Json,
    Output,
    OutputFormat,
    answer,
    chosen,
    note,
    print_json,
    print_table,
    settings_for,
    wants_json,
)

if TYPE_CHECKING:
    from accel_platform.bench.requests.lifecycle import Request
    from accel_platform.events import EventLog

Priority = Annotated[int, typer.Option(help="Higher goes first among those that wait for one device.")]
MaxRuntime = Annotated[
    str | None,
    typer.Option("--max-runtime", help="End a run that takes longer, such as 30m or 2h.", show_default=False),
]


def request(
    *,
    models: Annotated[str | None, typer.Option(help="Models, comma-separated: keys, aliases or hub ids.")] = None,
    set_: Annotated[
        str | None, typer.Option("--set", help="A named set of models.", show_default="small, or custom")
    ] = None,
    models_file: Annotated[
        Path | None, typer.Option("--models-file", help="JSON with models of your own; the host must find it too.")
    ] = None,
    hardware: Annotated[str, typer.Option(help="Hardware names, comma-separated; each is a request of its own.")],
    batch_sizes: Annotated[str, typer.Option(help="Batch sizes, comma-separated.")] = "1,4",
    sequence_length: Annotated[
        int | None, typer.Option(help="Tokens per text.", show_default="each model's own")
    ] = None,
    mode: Annotated[str, typer.Option(help="inference, generation, training; comma-separated.")] = "inference",
    precision: Annotated[
        str | None, typer.Option(help="float32, float16, bfloat16, int8.", show_default="each runtime's usual one")
    ] = None,
    effort: Annotated[str, typer.Option(help="How thorough: quick, standard or thorough.")] = "standard",
    missing: Annotated[bool, typer.Option("--missing", help="Only what the log lacks for the host.")] = False,
    label: Annotated[
        list[str] | None,
        typer.Option("--label", metavar="KEY=VALUE", help="What to find the run by, such as commit=abc; repeatable."),
    ] = None,
    priority: Priority = 0,
    max_runtime: MaxRuntime = None,
    home: Home = None,
    as_json: Json = False,
    format_: OutputFormat = FormatOption.table,
) -> None:
    """Ask for a benchmark on whichever host has the hardware; `accel bench suite --request` takes a suite file."""
    from accel_platform.bench.plan.config import BenchmarkConfig
    from accel_platform.bench.plan.run_options import parse_labels
    from accel_platform.bench.plan.support import resolve_mode
    from accel_platform.cli.options import numbers, words
    from accel_platform.strict_json import validate_model

    asked = {
        "models": words(models) if models is not None else None,
        "set": set_,
        "models_file": str(models_file) if models_file is not None else None,
        "hardware_types": words(hardware),
        "batch_sizes": numbers(batch_sizes),
        "sequence_lengths": [sequence_length] if sequence_length is not None else None,
        "modes": [resolve_mode(word) for word in words(mode)],
        "precisions": words(precision) if precision is not None else None,
        "effort": effort,
        "missing": missing,
        "labels": parse_labels(label or ()),
    }
    config = validate_model(BenchmarkConfig, asked, where="accel bench request")
    ask(config, home, by="cli", priority=priority, max_runtime=max_runtime, for_machines=wants_json(as_json, format_))


def ask(config: Any, home: Path | None, *, by: Any, priority: int, max_runtime: str | None, for_machines: bool) -> None:
    """Append the requests of a configuration, and print them."""
    from accel_platform.bench.requests.lifecycle import request_benchmark
    from accel_platform.events import EventLog

    log = EventLog.open(settings_for(home))
    ids = request_benchmark(config, log, by=by, priority=priority, max_runtime_s=seconds(max_runtime))
    found = _looked(log)
    rows = [_row(found[request_id]) for request_id in ids]
    if for_machines:
        print_json(rows)
    else:
        print_table([_short(row) for row in rows])
        note("A host that has the hardware takes it while Dagster runs: `accel ui`. `accel bench requests` tells.")


def requests(
    *,
    state: Annotated[
        str | None, typer.Option(help="Only open, running, done, failed or cancelled ones; comma-separated.")
    ] = None,
    output: Output = None,
    format_: FileFormat = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """The benchmarks that were asked for, the newest first, and what became of each."""
    from typing import get_args

    from accel_platform.bench.requests.lifecycle import State
    from accel_platform.cli.options import words
    from accel_platform.errors import InvalidInput
    from accel_platform.events import EventLog

    kind = chosen(as_json, format_, output)
    wanted = words(state) if state is not None else [*get_args(State)]
    if unknown := [word for word in wanted if word not in get_args(State)]:
        raise InvalidInput(f"A request is {', '.join(get_args(State))}, never {unknown[0]!r}.")
    found = reversed(_looked(EventLog.open(settings_for(home))).all())
    rows = [_row(one) for one in found if one.state in wanted]
    answer(rows, kind, output, title="Requested benchmarks", short=_short, empty="No benchmark was requested.")


def cancel(
    request_id: Annotated[str, typer.Argument(metavar="ID", help="The request, or how its id begins or ends.")],
    home: Home = None,
    as_json: Json = False,
    format_: OutputFormat = FormatOption.table,
) -> None:
    """Take a request back. What is being measured for it stops within seconds; what is in the log stays."""
    from accel_platform.bench.requests.lifecycle import close
    from accel_platform.errors import InvalidInput
    from accel_platform.events import EventLog

    log = EventLog.open(settings_for(home))
    found = _looked(log).beginning(request_id)
    if found.closed is not None or not close(log, found, "cancelled", "taken back by `accel bench cancel`"):
        raise InvalidInput(f"The request {found.id} has ended already: {_looked(log)[found.id].state}.")
    row = _row(_looked(log)[found.id])
    if wants_json(as_json, format_):
        print_json(row)
    else:
        print_table([_short(row)])


def seconds(text: str | None) -> float | None:
    """A length of time such as 90s, 30m or 2h in seconds. Raises InvalidInput."""
    import re

    from accel_platform.errors import InvalidInput

    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)", text.strip().casefold())
    if found is None or not float(found[1]):
        raise InvalidInput(f"{text!r} is no length of time: write 90s, 30m, 2h or 1d.")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[found[2]]


def _looked(log: EventLog) -> Any:
    from accel_platform.bench.requests.lifecycle import Requests

    found = Requests(log)
    found.look()
    return found


def _row(one: Request) -> dict[str, Any]:
    closed, asked = one.closed, one.asked
    return {
        "request_id": str(one.id),
        "state": one.state,
        "hardware": asked.hardware,
        "requested_by": asked.requested_by,
        "requested_at": one.requested_at,
        "priority": asked.priority,
        "max_runtime_s": asked.max_runtime_s,
        "attempts": one.attempts,
        "claimed_by": one.claimed_by,
        "claimed_at": one.claimed_at,
        "closed_at": one.closed_at,
        "reason": closed.reason if closed else None,
        "run_ids": list(closed.run_ids) if closed else [],
        "config": asked.config,
    }


def _short(row: Mapping[str, Any]) -> dict[str, Any]:
    """What fits a line. The end of an id tells more than its beginning, which is the time."""
    config = row["config"]
    what = config.get("models") or config.get("set") or config.get("models_file") or config.get("model_families")
    return {
        "request": row["request_id"][-12:],
        "state": row["state"],
        "hardware": row["hardware"],
        "models": ", ".join(what) if isinstance(what, list | dict) else what or "small",
        "by": row["requested_by"],
        "requested": f"{row['requested_at']:%Y-%m-%d %H:%M:%S}",
        "attempts": row["attempts"],
        "host": row["claimed_by"],
        "reason": row["reason"],
    }
