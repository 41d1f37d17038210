"""One run as it stands in the log, and the files that are made of it. What is in them is known to their modules."""

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
    """Write what is asked of a run; the files written. Raises NotFound, or InvalidInput where nothing can be written.

    Into `folder` go a JSON document per model, hardware and precision and, with `charts`, drawings, which `headings`
    (by model id) divide; `csv` is a file of its own.
    """
    from accel_platform.reports import comparison_csv, per_model_json
    from accel_platform.reports import run_charts as drawn

    if folder is None and csv is None:
        return []
    run = read_run(log, run_id)
    make_places(folder, csv)
    files: list[Path] = []
    try:
        if folder is not None:
            files += per_model_json.write(run, folder)
            files += drawn.write(run, folder, headings or {}) if charts else []
        if csv is not None:
            comparison_csv.write(run, csv)
            files.append(csv)
    except OSError as error:
        raise InvalidInput(f"A report cannot be written: {error}. The results themselves are in the log.") from error
    return files


def make_places(folder: Path | None, csv: Path | None) -> None:
    """Make the folders that reports go to; before a measurement, so as not to find out after. Raises InvalidInput."""
    for place in (folder, csv and csv.parent):
        try:
            if place is not None:
                place.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidInput(f"Reports cannot go to {place}: {error.strerror}.") from error
    if csv is not None and csv.is_dir():
        raise InvalidInput(f"{csv} is a folder: name the CSV file to write.")
