"""The compatibility matrix as rows, as an HTML page, and as the documented JSON."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import chain
from typing import Any

from accel_platform.analysis.query.cells import CellShape
from accel_platform.analysis.summaries.matrix import FamilyCell, Matrix, RatedCell, group_by_family, shape_of
from accel_platform.table_io import text
from accel_platform.table_io.values import display_text, rounded
from accel_platform.warehouse.reader import Reader

Families = Mapping[str, Mapping[str, FamilyCell]]

_STYLE = """<style>
td.high { background: #2a92; } td.medium { background: #9a22; } td.low { background: #d722; }
td.failed { background: #d222; } td.untested { opacity: .55; }
details summary { cursor: pointer; white-space: nowrap; } dl { font-size: .85rem; margin: .3rem 0; max-width: 22rem; }
dt { font-weight: 600; } dd { margin: 0 0 .2rem; overflow-wrap: anywhere; }
</style>"""
_TIMES = "SELECT result_id, occurred_at FROM results WHERE result_id IN (SELECT unnest($ids)::UUID)"
_NOTE = (
    "mean_latency (seconds) holds the median at the one shape named beside it: nothing is averaged over shapes. "
    "compatible is false where it failed or was not tested: state tells which."
)


def long_rows(matrix: Matrix) -> list[dict[str, Any]]:
    """Return one row per cell, untested ones included."""
    return [
        {"model_id": model, "hardware": hardware, **cell}
        for model, cells in matrix["models"].items()
        for hardware, cell in cells.items()
    ]


def shape_text(shape: CellShape) -> str:
    """Return a shape in words, without default values."""
    parts = [
        f"batch {shape['batch_size']}" if shape["batch_size"] else "batch unknown",
        f"length {shape['sequence_length']}" if shape["sequence_length"] else None,
        f"{shape['output_tokens']} tokens out" if shape["output_tokens"] else None,
        f"{shape['image_size']:g} px" if shape["image_size"] else None,
        shape["precision"] or "precision unknown",
        f"{shape['processes']} processes" if (shape["processes"] or 1) > 1 else None,
    ]
    return ", ".join(part for part in parts if part)


def deviating_shape(cell: RatedCell, row: CellShape | None) -> str | None:
    """Return the shape of a cell's figure in words; None without a figure, or if it is the shape of its row."""
    shape = shape_of(cell)
    return None if cell["latency_p50_ms"] is None or shape == row else shape_text(shape)


def family_rows(families: Families) -> list[dict[str, Any]]:
    """Return one row per family and hardware name."""
    return [
        {"family": family, "hardware": hardware, "verdict": cell["verdict"], **cell["counts"],
         "models": list(cell["models"])}
        for family, cells in families.items()
        for hardware, cell in cells.items()
    ]  # fmt: skip


def verdict_with_counts(cell: FamilyCell | None) -> str:
    """Return a family's verdict with its counts: `high (2 high, 1 failed)`."""
    if cell is None:
        return "untested"
    counts = ", ".join(f"{count} {verdict}" for verdict, count in cell["counts"].items())
    return f"{cell['verdict']} ({counts})" if len(cell["counts"]) > 1 else f"{cell['verdict']} ({counts.split()[0]})"


def html_page(matrix: Matrix, families: Families | None, *, title: str, rule: str) -> Iterator[str]:
    """Return a self-contained HTML page whose cells open to device, shape, reason and evidence."""
    return text.html_page(title, _grid(matrix, families, rule), head=_STYLE)


def documented(reader: Reader, matrix: Matrix) -> dict[str, Any]:
    """Return the matrix in the format of `migrations.formats.compatibility_matrix`, in seconds.

    Models are named under their family. `state` separates failed from untested, which the format cannot.
    """
    families = group_by_family(reader, matrix)
    ids = [one for cells in matrix["models"].values() for cell in cells.values() for one in cell["evidence"]]
    times = {str(row["result_id"]): row["occurred_at"] for row in reader.rows(_TIMES, {"ids": ids})} if ids else {}
    return {
        "timestamp": datetime.now(UTC).isoformat(),
        "snapshot_id": matrix["snapshot_id"],
        "note": _NOTE,
        "hardware_types": matrix["hardware"],
        "model_families": {
            family: {"hardware_compatibility": {hardware: _documented(cell, times) for hardware, cell in cells.items()}}
            for family, cells in families.items()
        },
    }


def _documented(cell: FamilyCell, times: Mapping[str, datetime | None]) -> dict[str, Any]:
    works = {model: one for model, one in cell["models"].items() if one["state"] == "compatible"}
    return {
        "compatible": bool(works),
        "performance_rating": cell["verdict"] if works else None,
        "state": cell["verdict"],
        "reason": None if works else _first_reason(cell),
        "benchmark_results": [
            {
                "model_name": model,
                "mean_latency": one["latency_p50_ms"] / 1e3,
                "batch_size": one["batch_size"],
                "sequence_length": one["sequence_length"],
                "precision": one["precision"],
                "performance_rating": one["verdict"],
                "timestamp": _newest(one["evidence"], times),
                "evidence": one["evidence"],
            }
            for model, one in works.items()
            if one["latency_p50_ms"] is not None
        ],
    }


def _first_reason(cell: FamilyCell) -> str | None:
    reasons = (one["reason"] for one in cell["models"].values())
    return next(filter(None, reasons), None)


def _newest(evidence: Iterable[str], times: Mapping[str, datetime | None]) -> datetime | None:
    """Return the latest known time of these results; None if none is known."""
    known = (times.get(result_id) for result_id in evidence)
    return max((time for time in known if time is not None), default=None)


def _grid(matrix: Matrix, families: Families | None, rule: str) -> Iterator[str]:
    yield f"<p>Rating: {html.escape(rule)}. Snapshot <code>{html.escape(matrix['snapshot_id'])}</code>.</p>"
    if not matrix["models"]:
        yield "<p>No evidence yet: <code>accel bench run</code> measures.</p>"
        return
    yield '<div class="table"><table><thead><tr><th scope="col">model</th>'
    if families is None:
        yield '<th scope="col">shape</th>'
    yield "".join(f'<th scope="col">{html.escape(name)}</th>' for name in matrix["hardware"])
    yield "</tr></thead><tbody>"
    if families is not None:
        for family, cells in families.items():
            found = (cells.get(name) for name in matrix["hardware"])
            yield _row(family, (_family(cell) for cell in found))
    else:
        for model, members in matrix["models"].items():
            shape = matrix["shapes"][model]
            cells_of_row = (_opening(members[name], shape) for name in matrix["hardware"])
            yield _row(model, chain([f"<td>{html.escape(shape_text(shape) if shape else '')}</td>"], cells_of_row))
    yield "</tbody></table></div>"


def _row(name: str, cells: Iterable[str]) -> str:
    return f'<tr><th scope="row">{html.escape(display_text(name))}</th>{"".join(cells)}</tr>'


def _opening(cell: RatedCell, row: CellShape | None) -> str:
    kind = cell["verdict"].replace("/", "")
    latency = f" {rounded(cell['latency_p50_ms'], 4)} ms" if cell["latency_p50_ms"] is not None else ""
    if other := deviating_shape(cell, row):
        latency += f" <small>({html.escape(other)})</small>"
    return f'<td class="{kind}"><details><summary>{cell["verdict"]}{latency}</summary>{_list(cell)}</details></td>'


def _family(cell: FamilyCell | None) -> str:
    if cell is None:
        return '<td class="untested">untested</td>'
    members = "".join(
        f"<dt>{html.escape(display_text(model))}: {one['verdict']}</dt><dd>{_list(one)}</dd>"
        for model, one in cell["models"].items()
    )
    kind = cell["verdict"].replace("/", "")
    return (
        f'<td class="{kind}"><details><summary>{verdict_with_counts(cell)}</summary><dl>{members}</dl></details></td>'
    )


def _list(cell: RatedCell) -> str:
    details = {
        "device": cell["device"],
        "shape": shape_text(shape_of(cell)) if cell["latency_p50_ms"] is not None else None,
        "speed against the best": cell["relative_speed"],
        "disturbed": "by other processes: measure again" if cell["disturbed"] else None,
        "results": f"{cell['results_ok']} good, {cell['results_failed']} failed",
        "provenance": ", ".join(cell["provenance"]) or None,
        "reason": cell["reason"],
        "last worked": cell["last_worked_at"],
        "last failed": cell["last_failed_at"],
        "evidence (result ids)": ", ".join(cell["evidence"]) or None,
    }
    known = {name: value for name, value in details.items() if value is not None}
    return "<dl>" + "".join(f"<dt>{n}</dt><dd>{html.escape(display_text(v))}</dd>" for n, v in known.items()) + "</dl>"
