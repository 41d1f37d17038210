"""Charts of one run: latency, throughput and memory by hardware, as one page that needs no network and as PNG files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import altair as alt

from accel_platform.reports.figures import figures_of
from accel_platform.reports.run import Run

PAGE = "charts.html"
_COLUMNS = 3
"""Panels side by side."""


def write(run: Run, folder: Path, headings: Mapping[str, str]) -> list[Path]:
    """Draw what was measured well; nothing is written for a run without such a result."""
    import vl_convert

    rows = rows_of(run, headings)
    if not rows:
        return []
    charts = charts_of(rows, f"run {run.run_id}, {run.at:%Y-%m-%d %H:%M} UTC, {run.host.cpu_model}")
    page = folder / PAGE
    # Independent colours: a hardware name may be in one chart and not in another.
    together = alt.vconcat(*charts.values()).resolve_scale(color="independent")
    page.write_text(together.to_html(inline=True), encoding="utf-8")
    files = [page]
    for name, chart in charts.items():
        path = folder / f"{name}.png"
        path.write_bytes(vl_convert.vegalite_to_png(chart.to_json(), scale=2))
        files.append(path)
    return files


def rows_of(run: Run, headings: Mapping[str, str]) -> list[dict[str, Any]]:
    """One row per result that is ok, in plain columns."""
    rows = []
    for measured in run.results:
        result = measured.result
        if result.status != "ok":
            continue
        figures = figures_of(result)
        heading = headings.get(result.model_id)
        length = f", length {result.sequence_length}" if result.sequence_length is not None else ""
        mode = f", {result.mode}" if result.mode != "inference" else ""
        weights = ", real weights" if result.weights_sha256 else ""
        hardware = result.hardware + (f" {result.precision}" if result.precision != "float32" else "")
        rows.append(
            {
                "panel": f"{heading}: {result.model_id}" if heading else result.model_id,
                "shape": f"{result.model_id}{weights}{mode}{length}",
                "heading": heading or result.model_family,
                "hardware": hardware + (" (emulated)" if result.provenance == "emulated" else ""),
                "batch_size": result.batch_size,
                "p50_ms": figures.p50_ms,
                "items_per_s": figures.items_per_s,
                "memory_peak_mib": result.memory_peak_mib,
            }
        )
    # Headings first, so that panels of one lie side by side.
    return sorted(rows, key=lambda row: (row["heading"], row["shape"], row["hardware"], row["batch_size"]))


def charts_of(rows: Sequence[Mapping[str, Any]], subtitle: str) -> dict[str, alt.TopLevelMixin]:
    """The charts by the name of their file."""
    return {
        "latency": _by_batch(rows, "p50_ms", "Median time of one batch", "milliseconds", subtitle),
        "throughput": _by_batch(rows, "items_per_s", "Throughput", "items per second", subtitle),
        "memory": _memory(rows, subtitle),
    }


def _by_batch(rows: Sequence[Mapping[str, Any]], field: str, title: str, unit: str, subtitle: str) -> alt.FacetChart:
    known = [{**row, "panel": f"{row['heading']}: {row['shape']}"} for row in rows if row[field] is not None]
    return (
        alt.Chart({"values": known})
        .mark_line(point=True)
        .encode(
            x=alt.X("batch_size:O", title="batch size"),
            y=alt.Y(f"{field}:Q", title=unit).scale(zero=True),
            color=alt.Color("hardware:N", title=None),
        )
        .properties(width=220, height=160)
        .facet(alt.Facet("panel:N", title=None), columns=_COLUMNS)
        .resolve_scale(y="independent")
        .properties(title=alt.TitleParams(title, subtitle=subtitle))
    )


def _memory(rows: Sequence[Mapping[str, Any]], subtitle: str) -> alt.FacetChart:
    known = [row for row in rows if row["memory_peak_mib"] is not None]
    return (
        alt.Chart({"values": known})
        .mark_bar()
        .encode(
            x=alt.X("max(memory_peak_mib):Q", title="MiB"),
            y=alt.Y("hardware:N", title=None),
            color=alt.Color("hardware:N", legend=None),
        )
        .properties(width=220)
        .facet(alt.Facet("panel:N", title=None), columns=_COLUMNS)
        .properties(title=alt.TitleParams("Peak memory of the measuring process, largest shape", subtitle=subtitle))
    )
