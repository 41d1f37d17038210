"""`accel bench suite`: a whole benchmark from a file. What its keys mean is known to `bench/plan/config.py`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accel_platform.cli.output import (
    FormatOption,
    Home,
    Json,
    OutputFormat,
    note,
    print_json,
    print_table,
    settings_for,
    wants_json,
)
from accel_platform.cli.requests import MaxRuntime, Priority, ask

if TYPE_CHECKING:
    from accel_platform.benchmark_api import PlannedRun

DEFAULT = Path("suite.json")


def suite(
    *,
    path: Annotated[
        Path | None, typer.Argument(metavar="[PATH]", help="The suite file.", show_default="suite.json")
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", help="The same.", show_default=False)] = None,
    create_config: Annotated[
        bool, typer.Option("--create-config", help="Write an example with every key, which runs as it is, and stop.")
    ] = False,
    check: Annotated[bool, typer.Option("--check", help="Check the file, print what it comes to, and stop.")] = False,
    missing: Annotated[bool, typer.Option("--missing", help="Only what the log lacks for this host.")] = False,
    report_dir: Annotated[
        Path | None, typer.Option("--report-dir", help="Folder for the reports.", show_default="in the home directory")
    ] = None,
    csv: Annotated[
        Path | None, typer.Option("--csv", help="Also write the results as CSV.", show_default=False)
    ] = None,
    label: Annotated[
        list[str] | None, typer.Option("--label", metavar="KEY=VALUE", help="As in the file; may be repeated.")
    ] = None,
    request: Annotated[
        bool, typer.Option("--request", help="Ask for it on the hosts that have its hardware, instead of measuring.")
    ] = False,
    priority: Priority = 0,
    max_runtime: MaxRuntime = None,
    home: Home = None,
    as_json: Json = False,
    format_: OutputFormat = FormatOption.table,
) -> None:
    """Measure what a suite file asks for, and write its reports, charts and tables."""
    from accel_platform.bench.plan.config import read_config, write_example
    from accel_platform.bench.plan.run_options import parse_labels
    from accel_platform.benchmark_api import plan_benchmark
    from accel_platform.cli.bench_output import measure_and_print
    from accel_platform.errors import InvalidInput

    if path is not None and config is not None and path != config:
        raise InvalidInput(f"There are two suite files, {path} and {config}: name one.")
    file, for_machines = path or config or DEFAULT, wants_json(as_json, format_)
    if create_config:
        write_example(file)
        note(f"An example is in {file}: `accel bench suite {file}` runs it, --check prints its plan.")
        return
    changes: dict[str, Any] = {"missing": True} if missing else {}
    changes |= {name: value for name, value in (("report_dir", report_dir), ("csv", csv)) if value is not None}
    asked = read_config(file)
    changes["labels"] = {**asked.labels, **parse_labels(label or ())}
    asked = asked.model_copy(update=changes)
    if request:
        ask(asked, home, by="suite", priority=priority, max_runtime=max_runtime, for_machines=for_machines)
        return
    if priority or max_runtime is not None:
        raise InvalidInput("--priority and --max-runtime are for what waits for a host: add --request.")
    planned = plan_benchmark(asked, home=settings_for(home).home)
    if check:
        _print_plan(planned, for_machines)
        return
    for remark in planned.remarks:
        note(remark)
    measure_and_print(planned, for_machines, again="the same command with --missing", always_report=True)


def _print_plan(planned: PlannedRun, for_machines: bool) -> None:
    from accel_platform.cli.bench_output import plan_rows

    rows, time = plan_rows(planned)
    remarks = [*planned.remarks, *([time] if time else [])]
    if for_machines:
        asked = planned.config.model_dump(mode="json")
        print_json({"config": asked, "remarks": remarks, "cells": rows})
        return
    print_table(rows)
    for remark in remarks:
        note(remark)
    note(f"{len(planned.wanted)} of {len(planned.cells)} cells to measure; the file is valid.")
