"""Sections of reports. Each reads its figures from a Source."""

from __future__ import annotations

from collections import Counter
from typing import Any

from accel_platform.analysis.query.cells import WORK_OF_ANY_BATCH, group_comparable
from accel_platform.analysis.summaries.best_configurations import best_configurations
from accel_platform.analysis.summaries.matrix import RATING_RULE, cell_verdict
from accel_platform.hardware.catalog import find_spec
from accel_platform.reports.charts.parts import label
from accel_platform.reports.documents.model import ReportTable, Section, Text
from accel_platform.reports.documents.source import ReportSource, Row, figures, name_devices
from accel_platform.table_io.values import rounded

_DEVICES = """
SELECT hardware, device_id, any_value(name) AS device_name, count(DISTINCT host_id) AS hosts,
    bool_or(available) AS available, bool_or(emulated) AS emulated, max_by(reason, observed_at) AS reason,
    max(driver) AS driver, max(cores) AS cores, max(memory_mib) AS memory_mib, max(observed_at) AS seen
FROM devices WHERE available GROUP BY hardware, device_id ORDER BY hardware, device_name, device_id
"""
_EVIDENCE = """
SELECT r.hardware, r.device_id, any_value(r.device_name) AS device_name, r.provenance,
    count(DISTINCT r.model_id) AS models, count(*) AS results, count(*) FILTER (r.failed) AS failed,
    count(DISTINCT r.run_id) AS runs, count(DISTINCT r.fingerprint) AS fingerprints, max(r.occurred_at) AS newest
FROM judged_results AS r WHERE {condition} GROUP BY ALL
ORDER BY results DESC, r.hardware, device_name, r.device_id, r.provenance
"""
_ARCHITECTURES = """
SELECT hardware, category, count(*) FILTER (status = 'ok') AS ok, count(*) FILTER (status <> 'ok') AS failed,
    mode(failure_class) FILTER (status <> 'ok') AS "commonest failure", max(checked_at) AS checked
FROM coverage GROUP BY ALL ORDER BY ALL
"""
_FAMILIES = """
SELECT coalesce(r.model_family, 'unknown') AS family, count(DISTINCT r.model_id) AS models,
    list_sort(list(DISTINCT r.hardware)) AS hardware,
    count(*) FILTER (r.provenance = 'measured' AND r.status = 'ok') AS measured,
    count(*) FILTER (r.provenance = 'imported' AND r.status = 'ok') AS imported,
    count(*) FILTER (r.provenance = 'emulated' AND r.status = 'ok') AS emulated,
    count(*) FILTER (r.failed) AS failed
FROM judged_results AS r WHERE r.model_family <> 'microbenchmark' AND {condition} GROUP BY 1
ORDER BY count(*) DESC, 1
"""


def overview(source: ReportSource) -> Section:
    """Summarize the number and kinds of results."""
    return Section(
        "Overview",
        [
            Text(
                "A figure is the median over the results of one cell: one model on one device, in one mode, precision, "
                "shape and provenance. Unlike cells are never averaged. Spread is the lowest and highest result of a "
                "cell, and of single results the standard deviation of their samples."
            ),
            ReportTable("Results by provenance", source.gaps.by_provenance, empty="No results yet."),
            *(Text(line) for line in source.drawable[1]),
        ],
    )


def fastest(source: ReportSource) -> Section:
    """Show the fastest hardware of each model, and compare hardware."""
    known = [cell for cell in source.named_cells if cell["latency_ms"]]
    groups = group_comparable(known)
    rows = []
    for group in groups:
        for provenance in sorted({cell["provenance"] for cell in group}):
            alike = [cell for cell in group if cell["provenance"] == provenance]
            best = min(alike, key=lambda cell: float(cell["latency_ms"]))
            rows.append({**figures(dict(best)), "places": len(alike)})
    return Section(
        "Fastest place of each model",
        [
            Text("At the shape that most places ran; a line per provenance, since one does not answer for another."),
            ReportTable(
                "Fastest places",
                rows,
                source.command("accel report performance --format json"),
                empty="No cell has a latency.",
            ),
            source.picture("hardware"),
        ],
    )


def batches(source: ReportSource) -> Section:
    """Show figures against batch size."""
    return Section("Batch size", [source.picture(name) for name in ("latency", "throughput", "memory")])


def changes(source: ReportSource) -> Section:
    """Show recorded changes."""
    return Section(
        "Changes over time",
        [
            ReportTable(
                "Open regressions and improvements",
                source.open_shifts,
                source.command("accel regress list --state open", without=("provenance",)),
                empty="None is recorded as open.",
            ),
            source.picture("trend"),
            source.picture("noise"),
        ],
    )


def models(source: ReportSource) -> Section:
    """Compare models by family and category."""
    return Section("Models compared", [source.picture("family"), source.picture("category")])


def devices(source: ReportSource) -> Section:
    """Show detected devices, their specifications and their results."""
    condition, values = source.selection.where()
    there = name_devices([{**row, **_published_figures(row["device_name"])} for row in source.reader.rows(_DEVICES)])
    evidence = name_devices(source.reader.rows(_EVIDENCE.format(condition=condition), values))
    return Section(
        "Hardware",
        [
            ReportTable(
                "Devices of the hosts on record", there, "accel detect", empty="No host is on record: `accel detect`."
            ),
            ReportTable("Not available on any host", source.gaps.absent, "accel detect"),
            ReportTable("Results by device", evidence, source.command("accel report hardware --format json")),
        ],
    )


def speed(source: ReportSource) -> Section:
    """Show speed-up over a CPU, and items per watt and per dollar."""
    return Section("Speed-up and efficiency", [source.picture("speedup"), source.picture("efficiency")])


def compatibility(source: ReportSource) -> Section:
    """Show the compatibility matrix."""
    rows = source.matrix_rows
    counts = Counter(
        (row["hardware"], row["state"], cell_verdict(row["state"], row["rating"], row["failure_class"])) for row in rows
    )
    by_state = [
        {"hardware": hardware, "state": state, "verdict": verdict, "models on devices": count}
        for (hardware, state, verdict), count in sorted(counts.items())
    ]
    failed = [row for row in rows if row["state"] == "failed"]
    return Section(
        "Compatibility",
        [
            Text(f"Rated by {RATING_RULE}. What nobody tested is in no line here: `accel matrix` has it."),
            ReportTable(
                "Models on devices by hardware and verdict",
                by_state,
                source.command("accel matrix"),
                empty="No model counts as tested: only verified measurements and unsuspected imports do.",
            ),
            ReportTable("Failed", failed, source.command("accel matrix")),
            ReportTable("Every cell, the most often run first", rows, source.command("accel matrix"), empty="None."),
            source.picture("heatmap"),
        ],
    )


def coverage(source: ReportSource) -> Section:
    """Show tested and untested cells, and commands that fill the gaps."""
    condition, values = source.selection.where()
    families = source.reader.rows(_FAMILIES.format(condition=condition), values)
    return Section(
        "Coverage",
        [
            ReportTable(
                "Families", families, source.command("accel report coverage --format json"), empty="No results yet."
            ),
            ReportTable(
                "Untested here: models of the catalogue on hardware that a host has",
                source.untested,
                source.command("accel matrix"),
                empty="Nothing is missing on the hardware of hosts that measured.",
            ),
            ReportTable(
                "Architectures of transformers that were checked",
                source.reader.rows(_ARCHITECTURES),
                "accel bench coverage --report",
                empty="None was checked: `accel bench coverage`.",
            ),
        ],
    )


def optimization(source: ReportSource) -> Section:
    """Show the gap to the roofline, its cause, and how the best configuration differs."""
    found = best_configurations(source.rooflines)
    reasons = Counter(row["unavailable"] for row in found if row["unavailable"])
    return Section(
        "Optimisation",
        [
            Text(
                "The roofline is the least time that a batch can take: its FLOPs at the device's peak rate, or its "
                "weights and activations at full bandwidth, by the spec sheet or what a host observed. Gain is the "
                "best measured configuration's throughput over the plainest one's, on the same device and of the same "
                "provenance; `alone` is what one choice gained while the others stayed as they were."
            ),
            ReportTable(
                "Models on devices, the farthest from the roofline first",
                [_optimization_row(row) for row in found],
                source.command("accel report optimization --format json"),
                empty="No cell has a throughput.",
            ),
            ReportTable(
                "Why a roofline is not known",
                [{"unavailable": reason, "models on devices": count} for reason, count in reasons.most_common()],
            ),
            source.picture("roofline"),
        ],
    )


def missing(source: ReportSource) -> Section:
    """List what the figures of a report do not cover."""
    gaps = source.gaps
    return Section(
        "Missing, failed, quarantined and doubted",
        [
            Text(
                f"Failed results: {gaps.failures:,}; "
                f"{sum(row['records'] for row in gaps.quarantined):,} records are in quarantine, "
                f"{gaps.doubts:,} results are suspect or simulated, {gaps.unverified:,} of ours were never compared "
                f"with a reference; {len(gaps.absent)} hardware names answer on no host."
            ),
            ReportTable("Failed results", gaps.failed, source.query("r.failed")),
            ReportTable("Suspect and simulated, by rule", gaps.doubted, "accel history audit"),
            ReportTable("Quarantine", gaps.quarantined, "accel db query 'SELECT * FROM quarantine'"),
            ReportTable("Hardware without a device", gaps.absent, "accel detect"),
        ],
    )


def _published_figures(name: str | None) -> dict[str, Any]:
    spec = find_spec(name)
    return {
        "peak_fp32_tflops": spec and spec.peak_fp32_tflops,
        "bandwidth_gb_s": spec and spec.bandwidth_gb_s,
        "tdp_w": spec and spec.tdp_w,
        "usd_per_hour": spec and spec.usd_per_hour,
    }


def _optimization_row(row: Row) -> Row:
    plain, best = row["plain"], row["best"]
    alone = [f"{choice} {found['to']}: x{found['gain']:.2f}" for choice, found in row["alone"].items()]
    return {
        "model": row["model_id"],
        "device": row["device_name"],
        "work": label(plain, WORK_OF_ANY_BATCH),
        "plainest": _configuration(plain),
        "throughput_items_per_s": plain["throughput_items_per_s"],
        "best": _configuration(best),
        "best throughput_items_per_s": best["throughput_items_per_s"],
        "gain": row["gain"],
        "differs in": ", ".join(row["changes"]) or "nothing: the plainest is the best measured",
        "alone": ", ".join(alone) or None,
        "share of roofline": row["share"],
        "bound by": row["bound"],
        "unavailable": row["unavailable"],
        "results": row["results"],
        "spread": _spread(best),
        "provenance": row["provenance"],
    }


def _configuration(cell: Row) -> str:
    place = label(cell, ("hardware", "runtime"))
    return f"{place}, {cell['precision'] or 'precision not stated'}, batch {cell['batch_size']}"


def _spread(cell: Row) -> str:
    if cell["results"] > 1 and cell["throughput_low_items_per_s"] is not None:
        low, high = cell["throughput_low_items_per_s"], cell["throughput_high_items_per_s"]
        return f"{rounded(low, 4)} to {rounded(high, 4)} items/s"
    if cell["latency_std_ms"]:
        return f"latency +- {rounded(cell['latency_std_ms'])} ms within one run"
    return "unknown: one result without samples"
