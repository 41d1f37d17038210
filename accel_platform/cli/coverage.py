"""`accel bench coverage`: which architectures of the installed transformers run here. The checking is in `bench/`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from accel_platform.cli.output import PEOPLE, AnyFormat, FileFormat, Home, Json, Output, answer, note, settings_for
from accel_platform.cli.output import chosen as chosen_format

if TYPE_CHECKING:
    from accel_platform.events.types import ArchitectureChecked


def coverage(
    *,
    types: Annotated[str | None, typer.Option(help="Model types, comma-separated.", show_default="all")] = None,
    category: Annotated[str | None, typer.Option(help="Only this category: text, vision, audio, ...")] = None,
    hardware: Annotated[str, typer.Option(help="cpu, openvino or both, comma-separated.")] = "cpu",
    jobs: Annotated[int, typer.Option(help="Processes side by side.", min=1)] = 1,
    timeout: Annotated[float, typer.Option(help="Seconds that one check may take.", min=1)] = 180.0,
    retry: Annotated[bool, typer.Option("--retry", help="Check again what failed before.")] = False,
    report: Annotated[bool, typer.Option("--report", help="Check nothing; print what is on record.")] = False,
    failures: Annotated[bool, typer.Option("--failures", help="List what failed, with the reason.")] = False,
    write: Annotated[Path | None, typer.Option(help="Also write what is on record as Markdown here.")] = None,
    output: Output = None,
    format_: FileFormat = None,
    home: Home = None,
    as_json: Json = False,
) -> None:
    """Run every architecture of transformers once, small and with random weights, and record whether it works.

    What is on record for the installed versions is not checked again, so a stopped run goes on with the same command.
    """
    from accel_platform.bench.coverage.runner import check_architectures, latest_checks
    from accel_platform.events import EventLog

    kind, settings = chosen_format(as_json, format_, output), settings_for(home)
    chosen, names = _chosen(types, category), _words(hardware)
    log = EventLog.open(settings)
    if report:
        latest = latest_checks(log, names)
    else:
        try:
            result = check_architectures(
                chosen, names, log, jobs=jobs, retry=retry, timeout_s=timeout, on_progress=note
            )
        except KeyboardInterrupt:
            note("Stopped. What was checked is kept; the same command goes on from there.")
            raise
        note(f"{result.checked} checked in {result.duration_s:.0f} s, {result.skipped} were on record.")
        latest = result.latest
    wanted = set(chosen)
    checks = [check for (kind, name), check in latest.items() if kind in wanted and name in names]
    if write is not None:
        from accel_platform.bench.coverage.report import render_markdown

        write.write_text(render_markdown(checks, total=len(chosen)), encoding="utf-8")
    _print(checks, failures, (kind, output))


def _print(checks: list[ArchitectureChecked], failures: bool, to: tuple[AnyFormat, Path | None]) -> None:
    from accel_platform.bench.coverage.report import summarize_by_category

    failed = [check for check in checks if check.status != "ok"]
    categories: list[dict[str, Any]] = summarize_by_category(checks)
    told = [check.model_dump(mode="json") for check in (failed if failures else checks)]
    document = {"categories": categories, "checks": told}
    kind, output = to
    if failures:
        columns = ("model_type", "category", "hardware", "failure_class", "reason")
        rows = [{column: row[column] for column in columns} for row in told] if kind in PEOPLE else told
        answer(rows, kind, output, title="What failed", document=document, empty="Nothing failed.")
        return
    nothing = "Nothing is on record for the installed versions."
    answer(categories if kind in PEOPLE else told, kind, output, title="Coverage", document=document, empty=nothing)
    for (name, what), count in Counter((c.hardware, c.failure_class) for c in failed).most_common():
        note(f"{name}: {count} {what}")


def _chosen(types: str | None, category: str | None) -> list[str]:
    from accel_platform.errors import InvalidInput
    from accel_platform.workloads.architectures import CATEGORIES, classify, model_types

    chosen = list(model_types())
    if types is not None:
        asked = _words(types)
        if unknown := [kind for kind in asked if kind not in chosen]:
            import difflib

            close = difflib.get_close_matches(unknown[0], chosen, n=3)
            hint = f" Did you mean {', '.join(close)}?" if close else ""
            raise InvalidInput(f"The installed transformers has no model of type {unknown[0]!r}.{hint}")
        chosen = asked
    if category is not None:
        if category not in CATEGORIES:
            raise InvalidInput(f"No category is called {category!r}. Known: {', '.join(CATEGORIES)}.")
        chosen = [kind for kind in chosen if classify(kind).category == category]
    return chosen


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]
