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

Rows = Sequence[Mapping[str, Any]]


def write(run: Run, folder: Path, headings: Mapping[str, str]) -> list[Path]:
    """Draw what was measured well; nothing is written for a run without such a result."""
    import vl_convert

    rows = rows_of(run, headings)
    if not rows:
        return []
    charts = charts_of(rows, f"run {run.run_id}, {run.at:%Y-%m-%d %H:%M} UTC, {run.host.cpu_model}")
    page = folder / PAGE
    # Independent colours: a hardware name may be in one chart and not in another.
    together = alt.vconcat(*charts.values()).resolve_scale(color="independent", shape="independent")
    page.write_text(together.to_html(inline=True), encoding="utf-8")
    files = [page]
    for name, chart in charts.items():
        path = folder / f"{name}.png"
        path.write_bytes(vl_convert.vegalite_to_png(chart.to_json(), scale=2))
        files.append(path)
    return files


def rows_of(run: Run, headings: Mapping[str, str]) -> list[dict[str, Any]]:
    """One row per result that is ok, in the order of the panels. A heading is the model's, else its family."""
    rows = []
    for measured in run.results:
        result = measured.result
        if result.status != "ok":
            continue
        figures = figures_of(result)
        heading = headings.get(result.model_id, result.model_family)
        model = f"{heading}: {result.model_id}{', real weights' if result.weights_sha256 else ''}"
        model += f", {result.mode}" if result.mode != "inference" else ""
        hardware = result.hardware + (f" {result.precision}" if result.precision != "float32" else "")
        rows.append(
            {
                "model": model,
                "length": result.sequence_length or 0,
                "shape": f"{model}, length {result.sequence_length}" if result.sequence_length else model,
                "hardware": hardware + (" (emulated)" if result.provenance == "emulated" else ""),
                "batch_size": result.batch_size,
                "p50_ms": figures.p50_ms,
                "items_per_s": figures.items_per_s,
                "memory_peak_mib": result.memory_peak_mib,
                "spread": "noisy" if result.noisy else "steady",
            }
        )
    return sorted(rows, key=lambda row: (row["model"], row["length"], row["hardware"], row["batch_size"]))


def charts_of(rows: Rows, subtitle: str) -> dict[str, alt.FacetChart]:
    """The charts by the name of their file."""
    return {
        "latency": _by_batch(rows, "p50_ms", "Median time of one batch", "milliseconds", subtitle),
        "throughput": _by_batch(rows, "items_per_s", "Throughput", "items per second", subtitle),
        "memory": _memory(rows, subtitle),
    }


def _by_batch(rows: Rows, field: str, title: str, unit: str, subtitle: str) -> alt.FacetChart:
    known = [row for row in rows if row[field] is not None]
    base = alt.Chart().encode(
        x=alt.X("batch_size:O", title="batch size").axis(labelAngle=0),
        y=alt.Y(f"{field}:Q", title=unit).scale(zero=True),
        color=alt.Color("hardware:N", title=None),
    )
    marks = alt.Shape("spread:N", title=None).scale(domain=["steady", "noisy"], range=["circle", "cross"])
    points = base.mark_point(filled=True, size=60, opacity=1).encode(shape=marks)
    layers = alt.LayerChart(layer=[base.mark_line(), points], width=220, height=160)
    chart = _panels(layers, known, "shape", title, subtitle)
    chart.resolve = alt.Resolve(scale=alt.ScaleResolveMap(y="independent"))
    return chart


def _memory(rows: Rows, subtitle: str) -> alt.FacetChart:
    known = [row for row in rows if row["memory_peak_mib"] is not None]
    bars = (
        alt.Chart()
        .mark_bar()
        .encode(
            x=alt.X("max(memory_peak_mib):Q", title="MiB"),
            y=alt.Y("hardware:N", title=None),
            color=alt.Color("hardware:N", legend=None),
        )
        .properties(width=220)
    )
    return _panels(bars, known, "model", "Peak memory of the measuring process, largest shape", subtitle)


def _panels(panel: alt.Chart | alt.LayerChart, rows: Rows, by: str, title: str, subtitle: str) -> alt.FacetChart:
    facet = alt.Facet(f"{by}:N", title=None, sort=list(dict.fromkeys(row[by] for row in rows)))
    data, heading = alt.InlineData(rows), alt.TitleParams(title, subtitle=subtitle)
    return alt.FacetChart(data=data, spec=panel, facet=facet, columns=_COLUMNS, title=heading)
