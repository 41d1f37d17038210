"""`accel bench suite`, `request`, `requests`, `take` and `cancel`: benchmarks from a file, and requests to hosts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accel_platform.cli.measurement.plan_options import CellOptions, Effort, Labels, MissingHere, ModelSet
from accel_platform.cli.options import SEVERAL, CommonOptions, TableOptions, split_words
from accel_platform.cli.output import follow_log, note, print_json, print_table, settings_for, write_answer
from accel_platform.table_io.values import count_of

if TYPE_CHECKING:
    from accel_platform.bench.requests.lifecycle import Request
    from accel_platform.benchmark_api import PlannedRun
    from accel_platform.events import EventLog


@dataclass(frozen=True)
class QueueOptions:
    """Options that say when and where a request is measured."""

    priority: Annotated[int, typer.Option(help="Higher goes first in a device's queue.")] = 0
    max_runtime: Annotated[
        str | None,
        typer.Option(help="Time limit of the run, such as 30m or 2h.", show_default=False),
    ] = None
    host: Annotated[
        str | None,
        typer.Option(help="Only this host may take it: a name from `bench requests`.", show_default="any"),
    ] = None


def request(
    *,
    models: Annotated[str | None, typer.Option(metavar=SEVERAL, help="Models: keys, aliases or hub ids.")] = None,
    set_: ModelSet = None,
    models_file: Annotated[
        Path | None,
        typer.Option(help="JSON file with your own models, at a path that the host can read."),
    ] = None,
    hardware: Annotated[str, typer.Option(metavar=SEVERAL, help="Hardware names; one request for each.")],
    cells: CellOptions,
    precision: Annotated[
        str | None,
        typer.Option(help="float32, tf32, float16, bfloat16, int8.", show_default="each runtime's usual one"),
    ] = None,
    effort: Effort = "standard",
    missing: Annotated[bool, typer.Option("--missing", help="Only cells without a result of the host.")] = False,
    label: Labels = None,
    queue: QueueOptions,
    common: CommonOptions,
) -> None:
    """Request a benchmark from any host with the hardware. For a suite file: `accel bench suite --request`."""
    from accel_platform.bench.plan.config import BenchmarkConfig
    from accel_platform.bench.plan.run_options import parse_labels
    from accel_platform.strict_json import validate_model
    from accel_platform.workloads.sources import absolute_source

    options = {
        "models": [absolute_source(name) for name in split_words(models)] if models is not None else None,
        "set": set_,
        "models_file": str(models_file) if models_file is not None else None,
        "hardware_types": split_words(hardware),
        **cells.config(),
        "precisions": split_words(precision) if precision is not None else None,
        "effort": effort,
        "missing": missing,
        "labels": parse_labels(label or ()),
    }
    config = validate_model(BenchmarkConfig, options, where="accel bench request")
    submit(config, common, queue, by="cli")


def submit(config: Any, common: CommonOptions, queue: QueueOptions, *, by: Any) -> None:
    """Append a configuration's requests to the log, and print them."""
    from accel_platform.bench.requests.lifecycle import request_benchmark
    from accel_platform.events import EventLog
    from accel_platform.hardware.host import host_name

    log, host = EventLog.open(settings_for(common.home)), queue.host
    limit_s = parse_seconds(queue.max_runtime)
    ids = request_benchmark(config, log, by=by, priority=queue.priority, max_runtime_s=limit_s, host=host)
    found = _read_requests(log)
    rows = [_request_row(found[request_id]) for request_id in ids]
    if common.wants_json:
        print_json(rows)
    else:
        print_table([_display_row(row) for row in rows])
        who = f"The host {host}" if host is not None else "A host with the hardware"
        note(f"{who} takes it while `accel ui` runs, or by `accel bench take`. See `accel bench requests`.")
        known = sorted({name for one in found.all() if (name := one.claimed_by) is not None} | {host_name()})
        if host is not None and host not in known:
            note(f"No host called {host!r} has taken a request so far; known: {', '.join(known)}.")


def requests(
    *,
    state: Annotated[
        str | None, typer.Option(metavar=SEVERAL, help="Only these states: open, running, done, failed, cancelled.")
    ] = None,
    table: TableOptions,
) -> None:
    """List the requested benchmarks, newest first, with their state."""
    from typing import get_args

    from accel_platform.bench.requests.lifecycle import State
    from accel_platform.errors import InvalidInput
    from accel_platform.events import EventLog

    wanted = split_words(state) if state is not None else [*get_args(State)]
    if unknown := [word for word in wanted if word not in get_args(State)]:
        raise InvalidInput(f"A request is {', '.join(get_args(State))}, never {unknown[0]!r}.")
    found = reversed(_read_requests(EventLog.open(settings_for(table.home))).all())
    rows = [_request_row(one) for one in found if one.state in wanted]
    write_answer(rows, table, title="Requested benchmarks", short=_display_row, empty="No benchmark was requested.")


def take(
    *,
    hardware: Annotated[
        str | None, typer.Option(metavar=SEVERAL, help="Only these hardware names.", show_default="all that are here")
    ] = None,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for further requests until Ctrl-C.")] = False,
    common: CommonOptions,
) -> None:
    """Measure the requests that this host can, one after another and without Dagster.

    The same command goes on with a request that it was stopped at.
    """
    from accel_platform.errors import AccelError
    from accel_platform.events import EventLog
    from accel_platform.requested_benchmarks import take_requests

    settings, for_machines = settings_for(common.home), common.wants_json
    names = _hardware_here(split_words(hardware) if hardware is not None else None)
    rows: list[dict[str, Any]] = []
    try:
        ended = take_requests(EventLog.open(settings), settings, names, wait=wait, report=note)
        rows.extend(_request_row(one) for one in ended)
    except KeyboardInterrupt:
        note("Stopped. What was measured is kept; the same command goes on.")
        raise
    finally:
        if for_machines:
            print_json(rows)
        elif rows:
            print_table([_display_row(row) for row in rows])
        if rows:
            follow_log(settings)
    if not rows:
        note(f"No request waits for {', '.join(names)} here. `accel bench requests` shows all of them.")
        for one in _read_requests(EventLog.open(settings)).unfinished():
            only = f" of the host {one.payload.host}" if one.payload.host is not None else ""
            note(f"{str(one.id)[-12:]} is {one.state}: it is for {one.payload.hardware}{only}.")
    elif not any(row["state"] == "done" for row in rows):
        raise AccelError("No request could be measured; the reasons are above.")


def _hardware_here(wanted: list[str] | None) -> list[str]:
    """Return the hardware names of this host that may take requests. Raises InvalidInput for one that is not here."""
    from accel_platform.backends.detect import detect
    from accel_platform.backends.registry import runtime_for
    from accel_platform.errors import InvalidInput

    names = [runtime_for(word).name for word in wanted or ()]
    inventory = detect(names)
    found = {name: inventory.device(name) for name in names or inventory.names}
    reasons = {name: device and device.reason for name, device in found.items() if not (device and device.available)}
    if names and reasons:
        name, reason = next(iter(reasons.items()))
        raise InvalidInput(f"{name} is not here ({reason}): `accel detect` shows what is.")
    return [name for name in found if name not in reasons]


def cancel(
    request_id: Annotated[str, typer.Argument(metavar="ID", help="The request's id, or its beginning or end.")],
    *,
    common: CommonOptions,
) -> None:
    """Cancel a request. Its running measurement stops within seconds; recorded results stay."""
    from accel_platform.bench.requests.lifecycle import close
    from accel_platform.errors import InvalidInput
    from accel_platform.events import EventLog

    log = EventLog.open(settings_for(common.home))
    found = _read_requests(log).find(request_id)
    if found.closed is not None or not close(log, found, "cancelled", "taken back by `accel bench cancel`"):
        raise InvalidInput(f"The request {found.id} has ended already: {_read_requests(log)[found.id].state}.")
    row = _request_row(_read_requests(log)[found.id])
    if common.wants_json:
        print_json(row)
    else:
        print_table([_display_row(row)])


def parse_seconds(text: str | None) -> float | None:
    """Return a duration such as 90s, 30m or 2h in seconds; None for None. Raises InvalidInput."""
    import re

    from accel_platform.errors import InvalidInput

    if text is None:
        return None
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(s|m|h|d)", text.strip().casefold())
    if found is None or not float(found[1]):
        raise InvalidInput(f"{text!r} is no length of time: write 90s, 30m, 2h or 1d.")
    return float(found[1]) * {"s": 1, "m": 60, "h": 3600, "d": 86_400}[found[2]]


def _read_requests(log: EventLog) -> Any:
    from accel_platform.bench.requests.lifecycle import Requests

    found = Requests(log)
    found.refresh()
    return found


def _request_row(one: Request) -> dict[str, Any]:
    closed, payload = one.closed, one.payload
    return {
        "request_id": str(one.id),
        "state": one.state,
        "hardware": payload.hardware,
        "requested_by": payload.requested_by,
        "requested_at": one.requested_at,
        "priority": payload.priority,
        "max_runtime_s": payload.max_runtime_s,
        "host": payload.host,
        "attempts": one.attempts,
        "claimed_by": one.claimed_by,
        "claimed_at": one.claimed_at,
        "closed_at": one.closed_at,
        "reason": closed.reason if closed else None,
        "run_ids": list(closed.run_ids) if closed else [],
        "config": payload.config,
    }


def _display_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row as it is displayed. The id is cut to its end, because it begins with the time."""
    from accel_platform.bench.requests.lifecycle import name_models

    return {
        "request": row["request_id"][-12:],
        "state": row["state"],
        "hardware": row["hardware"],
        "models": name_models(row["config"]),
        "by": row["requested_by"],
        "requested": f"{row['requested_at']:%Y-%m-%d %H:%M:%S}",
        "attempts": row["attempts"],
        "host": row["claimed_by"] or row["host"],
        "reason": row["reason"],
    }


DEFAULT_SUITE = Path("suite.json")


def suite(
    *,
    path: Annotated[
        Path | None, typer.Argument(metavar="PATH", help="The suite file.", show_default="suite.json")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="The same as PATH.", show_default=False)] = None,
    create_config: Annotated[
        bool, typer.Option("--create-config", help="Write a runnable example with every key, and stop.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Check the file, print its plan, and stop.")] = False,
    missing: MissingHere = False,
    report_dir: Annotated[
        Path | None, typer.Option(help="Folder for the reports.", show_default="in the home directory")
    ] = None,
    csv: Annotated[Path | None, typer.Option(help="Also write the results as CSV.", show_default=False)] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Label, in addition to the file's; repeatable."),
    ] = None,
    request: Annotated[
        bool, typer.Option("--request", help="Request it from the hosts with its hardware instead of measuring here.")
    ] = False,
    queue: QueueOptions,
    common: CommonOptions,
) -> None:
    """Run the benchmark of a suite file, and write its reports, charts and tables."""
    from accel_platform.bench.plan.config import read_config, write_example
    from accel_platform.bench.plan.run_options import parse_labels
    from accel_platform.benchmark_api import plan_benchmark
    from accel_platform.cli.measurement.bench_output import measure_and_print, print_problems
    from accel_platform.errors import InvalidInput

    if path is not None and config is not None and path != config:
        raise InvalidInput(f"There are two suite files, {path} and {config}: name one.")
    file, for_machines = path or config or DEFAULT_SUITE, common.wants_json
    if create_config:
        write_example(file)
        if for_machines:
            print_json({"config": str(file)})
        note(f"An example is in {file}: `accel bench suite {file}` runs it, --check prints its plan.")
        return
    changes: dict[str, Any] = {"missing": True} if missing else {}
    changes |= {name: value for name, value in (("report_dir", report_dir), ("csv", csv)) if value is not None}
    benchmark = read_config(file)
    changes["labels"] = {**benchmark.labels, **parse_labels(label or ())}
    benchmark = benchmark.model_copy(update=changes)
    if request:
        submit(benchmark, common, queue, by="suite")
        return
    if queue != QueueOptions():
        raise InvalidInput("--priority, --max-runtime and --host apply to requests: add --request.")
    planned = plan_benchmark(benchmark, home=settings_for(common.home).home)
    if check:
        _print_suite_plan(planned, for_machines)
        return
    for remark in planned.remarks:
        note(remark)
    print_problems(planned)
    measure_and_print(planned, for_machines, again="the same command with --missing", always_report=True)


def _print_suite_plan(planned: PlannedRun, for_machines: bool) -> None:
    from accel_platform.cli.measurement.bench_output import TO_MEASURE, plan_rows

    rows, time = plan_rows(planned)
    remarks = [*planned.remarks, *([time] if time else [])]
    if for_machines:
        planned_config = planned.config.model_dump(mode="json")
        print_json({"config": planned_config, "remarks": remarks, "cells": rows})
        return
    print_table(rows)
    for remark in remarks:
        note(remark)
    measurable = sum(row["state"].startswith(TO_MEASURE) for row in rows)
    note(f"{measurable} of {count_of(len(planned.cells), 'cell')} to measure; the file is valid.")
