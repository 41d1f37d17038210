"""Data of a report: a snapshot, a selection and derived rows, each read on first use."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from accel_platform.analysis.query.cells import WORK, read_cells
from accel_platform.analysis.query.filters import Selection
from accel_platform.analysis.query.setups import with_distinct_runtimes
from accel_platform.analysis.regressions.triage import recorded_shifts
from accel_platform.analysis.summaries.matrix import matrix_sql
from accel_platform.analysis.summaries.missing_data import MissingData
from accel_platform.analysis.summaries.roofline import Rooflines
from accel_platform.hardware.device_names import with_distinct_names
from accel_platform.reports.charts.parts import NothingToDraw, figure_with_spread, label
from accel_platform.reports.charts.registry import Drawable, chart, select_drawable
from accel_platform.reports.documents.model import Picture
from accel_platform.table_io.values import count_of
from accel_platform.warehouse.layers import escape_quotes
from accel_platform.warehouse.reader import Reader
from accel_platform.workloads.model_catalog import find_model

_SHIFT = (
    "regression_id", "direction", "model_id", "hardware", "precision", "batch_size", "sequence_length", "measure",
    "before_ms", "after_ms", "before_mib", "after_mib", "change_percent", "processes_before", "processes_after",
    "noise_percent", "found_at",
)  # fmt: skip
"""Columns of a shift that a report shows."""
_MATRIX = """
SELECT m.model_id, m.hardware, m.device_id, m.device_name, m.mode, m.state, m.rating,
    m.relative_speed, m.latency_p50_ms, m.precision, m.batch_size, m.sequence_length, m.results_ok, m.results_failed,
    m.failure_class, m.reason, len(m.evidence) AS evidence
FROM ({matrix}) AS m WHERE {condition}
ORDER BY m.state DESC, m.results_ok + m.results_failed DESC, m.model_id, m.hardware, m.device_name, m.device_id, m.mode
"""
_AVAILABLE = "SELECT DISTINCT hardware FROM devices WHERE available AND NOT emulated ORDER BY hardware"

_PARAMETER = re.compile(r"\$(\w+)")
_SPECIAL = re.compile(r'["$`\\!]')
"""Characters that a shell reads within double quotes."""

Row = Mapping[str, Any]
Say = Callable[[str], None]


class ReportSource:
    """Shared data of a report's sections."""

    def __init__(self, reader: Reader, selection: Selection, say: Say) -> None:
        self.reader, self.selection, self.say = reader, selection, say

    @cached_property
    def cells(self) -> Sequence[Row]:
        """Every cell, suspect ones included."""
        self.say("pooling results into cells")
        return read_cells(self.reader, self.selection, evidence=False)

    @cached_property
    def drawable(self) -> Drawable:
        """The cells without caveats, and sentences on the results of the others.

        A report on everything is of one's own results, measured or imported, as long as there are any: tens of
        thousands of published figures would bury them.
        """
        cells, omitted = select_drawable(self.cells, self.selection)
        chosen = self.selection.model_dump(include={"model", "hardware", "device", "provenance"}, exclude_defaults=True)
        own = [cell for cell in cells if not cell["published"]]
        if chosen or not own or len(own) == len(cells):
            return cells, omitted
        published = sum(cell["results"] for cell in cells) - sum(cell["results"] for cell in own)
        remark = "published results of knowledge packs stand aside; filter by provenance, model or hardware for them."
        return own, [*omitted, f"{published:,} {remark}"]

    @cached_property
    def named_cells(self) -> Sequence[Row]:
        """The cells without caveats, with names that tell their devices and runtimes apart."""
        return with_distinct_runtimes(with_distinct_names(self.drawable[0]))

    @cached_property
    def gaps(self) -> MissingData:
        self.say("counting what is missing")
        return MissingData(self.reader, self.selection)

    @cached_property
    def rooflines(self) -> Sequence[Row]:
        """The roofline analysis of the cells without caveats."""
        self.say("holding cells against the roofline")
        return with_distinct_runtimes(with_distinct_names(Rooflines(self.reader).rows(self.drawable[0])))

    @cached_property
    def open_shifts(self) -> list[Row]:
        """The open regressions and improvements, the latest found first."""
        found: Sequence[Row] = recorded_shifts(self.reader, self.selection, state="open")
        return [{name: row[name] for name in _SHIFT} for row in found]

    @cached_property
    def matrix_rows(self) -> list[Row]:
        """The cells of the matrix that have evidence, the most often run first."""
        matrix, evidence = matrix_sql(self.selection)
        condition, values = self.rows_of_matrix().where("m")
        return name_devices(self.reader.rows(_MATRIX.format(matrix=matrix, condition=condition), values | evidence))

    @cached_property
    def untested(self) -> list[Row]:
        """The models of the catalog with results, on hardware of a host where they have none."""
        available = [row["hardware"] for row in self.reader.rows(_AVAILABLE)]
        tested = {(cell["model_id"], cell["hardware"]) for cell in self.cells}
        known = sorted({cell["model_id"] for cell in self.cells if find_model(cell["model_id"]) is not None})
        names = self.selection.hardware_names
        return [
            {
                "model": model,
                "hardware": hardware,
                "to measure": f"accel bench run --models {model} --hardware {hardware}",
            }
            for model in known
            for hardware in available
            if (model, hardware) not in tested and (not names or hardware in names)
        ]

    def picture(self, name: str) -> Picture:
        """Return a chart of the registry, or the reason it is missing."""
        self.say(f"drawing {name}")
        try:
            drawn = chart(name, self.reader, self.selection, drawable=self.drawable)
        except NothingToDraw as error:
            return Picture(name, None, str(error))
        return Picture(name, drawn, command=self.command(f"accel chart {name} -o {name}.png"))

    def facts(self) -> dict[str, Any]:
        """Return the snapshot, dates, filters and counts of the report."""
        counts = self.gaps.counts
        filters = self.selection.model_dump(exclude_defaults=True, mode="json")
        by = ", ".join(f"{row['results']:,} {row['provenance']}" for row in self.gaps.by_provenance)
        oldest, newest = counts["oldest"], counts["newest"]
        return {
            "Snapshot": self.reader.snapshot_id,
            "Written": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
            "Filters": "; ".join(
                f"{k} {', '.join(map(str, v)) if isinstance(v, list) else v}" for k, v in filters.items()
            )
            or "none",
            "Results": f"{counts['results']:,} ({by or 'none'}) of {count_of(counts['runs'], 'run')}",
            "Of": f"{count_of(counts['models'], 'model')} on {count_of(counts['devices'], 'device')} under "
            f"{count_of(counts['hardware'], 'hardware name')}",
            "Between": f"{oldest:%Y-%m-%d} and {newest:%Y-%m-%d}" if oldest and newest else "times not stated",
        }

    def rows_of_matrix(self) -> Selection:
        """Filter rows of the matrix by the selection's model and hardware; other filters act on evidence."""
        matrix_filters = self.selection.model_dump(include={"model", "device", "mode"})
        return Selection(**matrix_filters, hardware=tuple(self.selection.hardware_names))

    def command(self, text: str, *, without: Collection[str] = ()) -> str:
        """Return a command with the selection's filters, but for those that it does not take."""
        filters = self.selection.model_dump(exclude_defaults=True, exclude={"status", *without}, mode="json")
        given = [
            f"--{name.replace('_', '-')} {' '.join(shlex.quote(str(one)) for one in many)}"
            for name, value in filters.items()
            if (many := value if isinstance(value, list) else [value])
        ]
        return " ".join([text, *given])

    def query(self, condition: str) -> str:
        """Return the command that lists the selected rows of `judged_results`, aliased `r`, under a SQL condition."""
        selected, values = self.selection.where()
        conditions = [condition, _PARAMETER.sub(lambda name: _literal(values[name[1]]), selected)]
        where = " AND ".join(one.removeprefix("true AND ") for one in conditions if one != "true")
        sql = f"SELECT * FROM judged_results AS r WHERE {where}"
        quoted = shlex.quote(sql) if _SPECIAL.search(sql) else f'"{sql}"'
        return f"accel db query {quoted}"


def _literal(value: Any) -> str:
    """Return a SQL literal of a parameter of `Selection.where`."""
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    if isinstance(value, datetime):
        return f"TIMESTAMPTZ {_literal(value.isoformat())}"
    return str(value) if isinstance(value, int) else f"'{escape_quotes(str(value))}'"


def name_devices(rows: Sequence[Row]) -> list[Row]:
    """Return rows with `device`, a name that tells the devices apart, in place of the columns of id and name."""
    return [
        {"device" if name == "device_name" else name: value for name, value in row.items() if name != "device_id"}
        for row in with_distinct_names(rows)
    ]


def figures(cell: Row) -> Row:
    """Return a cell as a table row: device, shape, evidence, figures and latency bounds."""
    latency = figure_with_spread(cell, "latency")
    return {
        "model": cell["model_id"],
        "hardware": f"{cell['hardware']}:{cell['choice']}" if cell["choice"] else cell["hardware"],
        "runtime": cell["runtime"],
        "device": cell["device_name"],
        "shape": label(cell, WORK),
        "precision": cell["precision"],
        "provenance": describe_provenance(cell),
        "results": cell["results"],
        "runs": cell["runs"],
        "latency_ms": cell["latency_ms"],
        "low": latency["low"],
        "high": latency["high"],
        "limits are": latency["spread"],
        "throughput_items_per_s": cell["throughput_items_per_s"],
        "memory_mib": cell["memory_peak_mib"],
    }


def describe_provenance(cell: Row) -> str:
    """Describe the provenance and its caveats."""
    unchecked = cell["verified"] is None and cell["provenance"] in ("measured", "emulated")
    more = [word for word, applies in (("not verified", unchecked), ("noisy", cell["noisy"])) if applies]
    return ", ".join([cell["provenance"], *more])
