"""`accel bench coverage`: checks of every architecture of the installed transformers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accel_platform.cli.options import PEOPLE, SEVERAL, TableOptions, output_file, split_words
from accel_platform.cli.output import note, settings_for, write_answer

if TYPE_CHECKING:
    from accel_platform.events.types import ArchitectureChecked


def coverage(
    *,
    types: Annotated[str | None, typer.Option(metavar=SEVERAL, help="Model types.", show_default="all")] = None,
    category: Annotated[str | None, typer.Option(help="Only this category: text, vision, audio, ...")] = None,
    hardware: Annotated[str, typer.Option(metavar=SEVERAL, help="cpu, openvino or both.")] = "cpu",
    jobs: Annotated[int, typer.Option(help="Parallel processes.", min=1)] = 1,
    timeout: Annotated[float, typer.Option(help="Time limit of one check, in seconds.", min=1)] = 180.0,
    retry: Annotated[bool, typer.Option("--retry", help="Repeat the checks that failed before.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Run no check; print the checks on record.")] = False,
    failures: Annotated[bool, typer.Option("--failures", help="List the failed checks with their reasons.")] = False,
    write: Annotated[
        Path | None, typer.Option(callback=output_file, help="Also write the checks on record as Markdown here.")
    ] = None,
    table: TableOptions,
) -> None:
    """Run every transformers architecture once, small and with random weights, and record if it works.

    Checks on record for the installed versions are skipped, so the same command continues a stopped run.
    """
    from accel_platform.bench.coverage.runner import check_architectures, latest_checks
    from accel_platform.events import EventLog

    selected, names = _select_types(types, category), split_words(hardware)
    log = EventLog.open(settings_for(table.home))
    if report:
        latest = latest_checks(log, names)
    else:
        try:
            result = check_architectures(
                selected, names, log, jobs=jobs, retry=retry, timeout_s=timeout, on_progress=note
            )
        except KeyboardInterrupt:
            note("Stopped. Checks so far are kept; the same command continues.")
            raise
        note(f"{result.checked} checked in {result.duration_s:.0f} s, {result.skipped} were on record.")
        latest = result.latest
    wanted = set(selected)
    checks = [check for (kind, name), check in latest.items() if kind in wanted and name in names]
    if write is not None:
        from accel_platform.bench.coverage.report import render_markdown
        from accel_platform.table_io.files import save_bytes

        save_bytes(write, render_markdown(checks, total=len(selected)).encode())
    _print(checks, failures, table)


def _print(checks: list[ArchitectureChecked], failures: bool, table: TableOptions) -> None:
    from accel_platform.bench.coverage.report import summarize_by_category

    failed = [check for check in checks if check.status != "ok"]
    categories: list[dict[str, Any]] = summarize_by_category(checks)
    records = [check.model_dump(mode="json") for check in (failed if failures else checks)]
    document = {"categories": categories, "checks": records}
    if failures:
        columns = ("model_type", "category", "hardware", "failure_class", "reason")
        rows = [{column: row[column] for column in columns} for row in records] if table.kind in PEOPLE else records
        write_answer(rows, table, title="What failed", document=document, empty="Nothing failed.")
        return
    nothing = "Nothing is on record for the installed versions."
    write_answer(
        categories if table.kind in PEOPLE else records, table, title="Coverage", document=document, empty=nothing
    )
    for (name, what), count in Counter((c.hardware, c.failure_class) for c in failed).most_common():
        note(f"{name}: {count} {what}")


def _select_types(types: str | None, category: str | None) -> list[str]:
    from accel_platform.errors import InvalidInput, did_you_mean
    from accel_platform.workloads.architectures import CATEGORIES, classify, model_types

    selected = list(model_types())
    if types is not None:
        names = split_words(types)
        if unknown := [kind for kind in names if kind not in selected]:
            import difflib

            close = difflib.get_close_matches(unknown[0], selected, n=3)
            problem = f"The installed transformers has no model of type {unknown[0]!r}."
            raise InvalidInput(f"{problem} {did_you_mean(close)}".rstrip())
        selected = names
    if category is not None:
        if category not in CATEGORIES:
            raise InvalidInput(f"No category is called {category!r}. Known: {', '.join(CATEGORIES)}.")
        selected = [kind for kind in selected if classify(kind).category == category]
    return selected
