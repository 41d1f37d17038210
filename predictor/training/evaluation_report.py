"""Evaluation report: one HTML page with a table and charts of the errors, which needs no network."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import altair as alt
import numpy as np
from scipy.special import erfinv

from accel_platform.reports.charts.render import page
from accel_platform.table_io.files import save_bytes
from predictor.schemas.responses import INTERVAL_LEVEL
from predictor.training.evaluate import EvaluationResult, evaluation_metrics

_MAX_POINTS = 1500
"""Samples per chart, evenly spaced, so that a page stays small enough to send."""
_LEVELS = np.linspace(0.05, 0.95, 19)


def write_report(path: Path, results: Sequence[tuple[str, EvaluationResult]]) -> None:
    """Write the page: metrics, calibration, predicted over measured, and errors by device and family, per split."""
    metrics = [(dataset, evaluation_metrics(result)) for dataset, result in results]
    charts = [_charts(dataset, result, m) for (dataset, result), (_, m) in zip(results, metrics, strict=True)]
    text = page(
        alt.vconcat(*charts).resolve_scale(color="independent"),
        heading="What the predictor knows, and what it does not",
        below=_table(metrics),
    )
    save_bytes(path, text.encode())


def _charts(dataset: str, result: EvaluationResult, metrics: dict[str, Any]) -> alt.HConcatChart:
    step = max(1, len(result.samples) // _MAX_POINTS)
    points = [
        {
            "device": sample.device,
            "model": sample.model,
            "measured": sample.batch_size / float(np.exp(truth)) * 1e3,
            "predicted": sample.batch_size / float(np.exp(predicted)) * 1e3,
        }
        for sample, truth, predicted in list(zip(result.samples, result.truth, result.predicted, strict=True))[::step]
    ]
    against = (
        alt.Chart({"values": points}, title=f"{dataset}, {result.split}: items per second")
        .mark_circle(size=14, opacity=0.5)
        .encode(
            x=alt.X("measured:Q", scale=alt.Scale(type="log")),
            y=alt.Y("predicted:Q", scale=alt.Scale(type="log")),
            color="device:N",
            tooltip=["model:N", "device:N", "measured:Q", "predicted:Q"],
        )
        .properties(width=260, height=240)
    )
    return alt.hconcat(
        against,
        _calibration(result),
        _bars("by device, the 25 worst", metrics["median_ape_by_device"]),
        _bars("by family, the 25 worst", metrics["median_ape_by_family"]),
    )


def _calibration(result: EvaluationResult) -> alt.LayerChart:
    """Draw the share of samples within the interval of each level, if errors were normal with its half width."""
    known = np.isfinite(result.half_width) & result.supported
    share = np.abs(result.predicted - result.truth)[known] / result.half_width[known]
    points = [
        {"level": float(level), "inside": float(np.mean(share <= erfinv(level) / erfinv(INTERVAL_LEVEL)))}
        for level in _LEVELS
        if known.any()
    ]
    line = alt.Chart({"values": points}, title="Calibration").mark_line(point=True)
    line = line.encode(x=alt.X("level:Q", title="level claimed"), y=alt.Y("inside:Q", title="share inside"))
    ideal = alt.Chart({"values": [{"level": 0, "inside": 0}, {"level": 1, "inside": 1}]})
    dashed = ideal.mark_line(strokeDash=[4, 4]).encode(x="level:Q", y="inside:Q")
    chart: alt.LayerChart = (line + dashed).properties(width=200, height=240)
    return chart


def _bars(title: str, errors: dict[str, float]) -> alt.Chart:
    worst = sorted(errors.items(), key=lambda item: -item[1])[:25]
    rows = [{"name": name, "median error": error} for name, error in worst]
    bars = alt.Chart({"values": rows}, title=f"Median error {title}").mark_bar()
    x = alt.X("median error:Q").axis(format="%")
    chart: alt.Chart = bars.encode(x=x, y=alt.Y("name:N", title=None).sort("-x")).properties(width=220)
    return chart


def _table(metrics: Sequence[tuple[str, dict[str, Any]]]) -> str:
    rows = [row for dataset, found in metrics for row in result_rows(dataset, found)]
    head = "".join(f"<th>{html.escape(name)}</th>" for name in rows[0])
    lines = ("".join(f"<td>{html.escape(_text(value))}</td>" for value in row.values()) for row in rows)
    return f"<table border=1 cellpadding=4><tr>{head}</tr>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def result_rows(dataset: str, metrics: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the table rows of one split: the latency model's and those of the baselines."""
    own = {
        "supported": metrics["supported"],
        "coverage": metrics["coverage"],
        "aimed at": metrics["coverage_aimed_at"],
        "high/low": metrics["interval_high_over_low"],
    }
    lines = [
        ("learner", metrics, own),
        *((name, found, dict.fromkeys(own)) for name, found in metrics["baselines"].items()),
    ]
    return [
        {
            "dataset": dataset,
            "split": metrics["split"],
            "cases": metrics["cases"],
            "predictor": name,
            "median error": found["median_ape"],
            "mean error": found["mean_ape"],
            "tau": found["kendall_tau"],
            "regret": found["top1_regret"],
            **more,
        }
        for name, found, more in lines
    ]


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)
