"""Charts of one run: latency, throughput and memory by hardware, as a self-contained page and PNG files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from accel_platform.reports.charts.curves import curves
from accel_platform.reports.charts.parts import NothingToDraw
from accel_platform.reports.charts.render import render, svg
from accel_platform.reports.run_record import BenchmarkRun, result_statistics
from accel_platform.table_io.text import html_page

PAGE = "charts.html"
_STYLE = "<style>figure{margin:1.5rem 0;overflow-x:auto}</style>"


def write(run: BenchmarkRun, folder: Path, headings: Mapping[str, str]) -> list[Path]:
    """Draw the successful results and return the paths; none if there is no successful result."""
    cells = run_cells(run, headings)
    about = [f"Run {run.run_id}, {run.at:%Y-%m-%d %H:%M} UTC, {run.host.cpu_model or 'processor unknown'}."]
    page, files = folder / PAGE, []
    figures = []
    for name in ("latency", "throughput", "memory"):
        try:
            chart = curves(name, cells, about, all_of_them=True)
        except NothingToDraw:
            continue
        path = folder / f"{name}.png"
        path.write_bytes(render(chart, "png"))
        files.append(path)
        figures.append(f"<figure>{svg(chart, name=name)}</figure>")
    if not files:
        return []
    page.write_text("".join(html_page(f"Run {run.run_id}", figures, head=_STYLE)), encoding="utf-8")
    return [page, *files]


def run_cells(run: BenchmarkRun, headings: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return a cell per successful result, as in `analysis.query.cells`. A heading replaces a model's family."""
    cells = []
    for measured in run.results:
        result = measured.result
        if result.status != "ok":
            continue
        figures = result_statistics(result)
        heading = headings.get(result.model_id, result.model_family)
        weights = ", real weights" if result.weights_sha256 else ""
        cells.append(
            {
                **result.model_dump(include=set(_AS_THEY_ARE)),
                "model_id": f"{heading}: {result.model_id}{weights}",
                "image_size": None,
                "verified": None,
                "results": 1,
                "runs": 1,
                "samples": len(result.samples_ns) or result.iterations,
                "latency_ms": figures.p50_ms or figures.mean_ms,
                "latency_low_ms": None,
                "latency_high_ms": None,
                "latency_std_ms": figures.std_ms,
                "throughput_items_per_s": figures.items_per_s,
                "throughput_low_items_per_s": None,
                "throughput_high_items_per_s": None,
                "memory_peak_low_mib": None,
            }
        )
    return cells


_AS_THEY_ARE = (
    "hardware", "choice", "backend", "device_id", "device_name", "mode", "precision", "batch_size", "sequence_length",
    "output_tokens", "processes", "provenance", "noisy", "memory_peak_mib",
)  # fmt: skip
