"""Report files of one benchmark run."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from accel_platform.errors import InvalidInput
from accel_platform.events import EventLog
from accel_platform.reports.run_record import read_run


def write_reports(
    log: EventLog,
    run_id: str,
    *,
    folder: Path | None,
    csv: Path | None = None,
    charts: bool = False,
    headings: Mapping[str, str] | None = None,
) -> list[Path]:
    """Write the requested files of a run and return their paths.

    `folder` receives a JSON document per model, hardware and precision and, with `charts`, charts divided by `headings`
    (by model id). `csv` is a separate file. Raises NotFound for an unknown run, InvalidInput for an unwritable file.
    """
    from accel_platform.reports import comparison_csv, per_model_json

    if folder is None and csv is None:
        return []
    run = read_run(log, run_id)
    create_folders(folder, csv)
    files: list[Path] = []
    try:
        if folder is not None:
            files += per_model_json.write(run, folder)
            if charts:
                # Only here, because hosts that only measure draw none.
                from accel_platform.reports import run_charts

                files += run_charts.write(run, folder, headings or {})
        if csv is not None:
            comparison_csv.write(run, csv)
            files.append(csv)
    except OSError as error:
        raise InvalidInput(f"A report cannot be written: {error}. The results themselves are in the log.") from error
    return files


def create_folders(folder: Path | None, csv: Path | None) -> None:
    """Create the folders of the reports before a measurement, so that it is not wasted. Raises InvalidInput."""
    for place in (folder, csv and csv.parent):
        try:
            if place is not None:
                place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(f"Reports cannot go to {place}: {error.strerror}.") from error
    if csv is not None and csv.is_dir():
        raise InvalidInput(f"{csv} is a folder: name the CSV file to write.")
