"""Findings of reports: what the figures say, in lines with the command that shows their evidence."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from accel_platform.analysis.query.cells import group_comparable
from accel_platform.analysis.summaries.best_configurations import best_configurations
from accel_platform.analysis.summaries.matrix import cell_verdict
from accel_platform.events.types import TRUSTED, Provenance
from accel_platform.reports.charts.parts import figure_with_spread, label
from accel_platform.reports.documents.model import Finding
from accel_platform.reports.documents.source import ReportSource
from accel_platform.reports.regressions import measure_name, sides_in_words
from accel_platform.table_io.values import count_of, rounded

Cell = Mapping[str, Any]
_MOST_NAMED = 3
_SCOPE = """
SELECT count(*) AS results, count(DISTINCT r.model_id) AS models, count(DISTINCT coalesce(r.device_id, r.device_name))
    AS devices, min(r.occurred_at) AS oldest, max(r.occurred_at) AS newest,
    list_sort(list(DISTINCT r.device_name) FILTER (r.device_name IS NOT NULL)) AS device_names
FROM results AS r WHERE r.provenance = 'measured' AND {condition}
"""


def scope(source: ReportSource) -> list[Finding]:
    """Say how much was measured, on what and when, and how much others state."""
    condition, values = source.selection.where()
    [own] = source.reader.rows(_SCOPE.format(condition=condition), values)
    others = sum(row["results"] for row in source.gaps.by_provenance if row["provenance"] == "imported")
    evidence = source.command("accel report hardware")
    stated = f" {count_of(others, 'result')} {'is' if others == 1 else 'are'} what others state." if others else ""
    if not own["results"]:
        return [Finding(f"Nothing was measured here.{stated or ' `accel bench run` measures.'}", evidence)]
    days = {f"{own[name]:%Y-%m-%d}" for name in ("oldest", "newest")}
    return [
        Finding(
            f"{count_of(own['results'], 'result')} of {count_of(own['models'], 'model')} on "
            f"{_named(own['device_names'], own['devices'], 'device')} {'was' if own['results'] == 1 else 'were'} "
            f"measured {'on' if len(days) == 1 else 'between'} {' and '.join(sorted(days))}.{stated}",
            evidence,
        )
    ]


def fastest(source: ReportSource) -> list[Finding]:
    """Say which place is the fastest for how many models, where latencies are further apart than they scatter."""
    for provenance in TRUSTED:
        known = [
            cell
            for cell in source.named_cells
            if cell["latency_ms"] and cell["provenance"] == provenance and not cell["disturbed"]
        ]
        ranked = [ranks for group in group_comparable(known) if len(ranks := _places(group)) > 1]
        if ranked:
            return [_fastest(source, provenance, ranked)]
    return []


def _places(group: Sequence[Cell]) -> list[Cell]:
    """Return the best cell of each place, the fastest place first."""
    best: dict[tuple[Any, ...], Cell] = {}
    for cell in sorted(group, key=lambda cell: float(cell["latency_ms"])):
        best.setdefault((cell["hardware"], cell["choice"], cell["device_id"], cell["device_name"]), cell)
    return list(best.values())


def _fastest(source: ReportSource, provenance: Provenance, ranked: Sequence[Sequence[Cell]]) -> Finding:
    devices = {cell["device_name"] for ranks in ranked for cell in ranks}
    columns = ("hardware", "runtime") if len(devices) == 1 else ("hardware", "runtime", "device_name")
    if len(ranked) <= _MOST_NAMED:
        lines = [_fastest_for(ranks, columns) for ranks in ranked]
        return Finding(f"{'; '.join(lines)} ({provenance}).", source.command("accel report performance --format json"))
    wins: dict[str, list[float]] = {}
    close = 0
    for first, second, *_ in ranked:
        if _are_close(first, second):
            close += 1
        else:
            place = label(first, columns)
            wins.setdefault(place, []).append(second["latency_ms"] / first["latency_ms"])
    lines = [
        f"{place} is the fastest for {len(gains)} (in the median {rounded(median(gains), 2)} times as fast as the next)"
        for place, gains in sorted(wins.items(), key=lambda item: -len(item[1]))[:_MOST_NAMED]
    ]
    if close:
        lines.append(f"for {close} the first two are closer than their figures scatter")
    return Finding(
        f"Of {count_of(len(ranked), 'model')} {provenance} in several places at one shape, {'; '.join(lines)}.",
        source.command("accel report performance --format json"),
    )


def _fastest_for(ranks: Sequence[Cell], columns: tuple[str, ...]) -> str:
    """Say which place runs a model fastest at the shape that most places ran, with the figures of the first two."""
    first, second, *_ = ranks
    shape = label(first, ("batch_size", "sequence_length"))
    what = f"{first['model_id']} at {shape} runs fastest on {label(first, columns)}"
    times = f"{rounded(first['latency_ms'])} ms, next {label(second, columns)} with {rounded(second['latency_ms'])} ms"
    return f"{what}: {times}" + (", closer than they scatter" if _are_close(first, second) else "")


def _are_close(first: Cell, second: Cell) -> bool:
    """Return whether two latencies are closer than they scatter."""
    high = figure_with_spread(first, "latency")["high"] or first["latency_ms"]
    low = figure_with_spread(second, "latency")["low"] or second["latency_ms"]
    return bool(high >= low)


def shifts(source: ReportSource) -> list[Finding]:
    """Say how many regressions and improvements are open, and which is the largest."""
    found, evidence = [], source.command("accel regress list --state open", without=("provenance",))
    for direction, word in (("regressed", "regression"), ("improved", "improvement")):
        rows = [row for row in source.open_shifts if row["direction"] == direction]
        if rows:
            most = max(rows, key=lambda row: math.inf if row["change_percent"] is None else abs(row["change_percent"]))
            model, hardware = most["model_id"], most["hardware"]
            found.append(
                Finding(
                    f"{count_of(len(rows), word)} {'is' if len(rows) == 1 else 'are'} open. The largest: {model} on "
                    f"{hardware} at {label(most, ('batch_size', 'sequence_length', 'precision'))} "
                    f"{_shift_in_words(most)}, found {most['found_at']:%Y-%m-%d}.",
                    evidence,
                )
            )
    return found or [Finding("No regression is open.", evidence)]


def _shift_in_words(shift: Mapping[str, Any]) -> str:
    worse = shift["direction"] == "regressed"
    if shift["change_percent"] is None:
        return f"fails {'more' if worse else 'less'} often"
    before, after = sides_in_words(shift)
    size = f"{abs(shift['change_percent']):.0f} %"
    if shift["measure"] == "latency":
        return f"is {size} {'slower' if worse else 'faster'}, {after} instead of {before}"
    return f"takes {size} {'more' if worse else 'less'} {measure_name(shift['measure'])}, {after} instead of {before}"


def verdicts(source: ReportSource) -> list[Finding]:
    """Say how many models work on how many devices, and what fails most often."""
    rows = source.matrix_rows
    evidence = source.command("accel matrix")
    if not rows:
        return [Finding("Nothing counts as tested: only verified measurements and unsuspected imports do.", evidence)]
    counts = Counter(cell_verdict(row["state"], row["rating"], row["failure_class"]) for row in rows)
    failed = [row for row in rows if row["state"] == "failed"]
    works = sum(row["state"] == "compatible" for row in rows)
    names = {row["model_id"] for row in rows}
    rated = [f"{counts[name]:,} are rated {name}" for name in ("high", "medium", "low") if counts[name]]
    if counts["works"]:
        rated.append(f"{counts['works']:,} have no other device to be rated against")
    tried = f"{count_of(len(rows), 'pair')} of model and device"
    found = [
        Finding(
            f"{works:,} of {tried} that were tried work, over {count_of(len(names), 'model')}: "
            f"{', '.join(rated) or 'none is rated'}.",
            evidence,
        )
    ]
    if failed:
        reason, count = Counter(row["failure_class"] for row in failed).most_common(1)[0]
        why = f"the commonest reason is {reason} ({count:,})" if reason else "mostly without a stated reason"
        where = Counter(row["hardware"] for row in failed).most_common(1)[0][0]
        found.append(
            Finding(
                f"{count_of(len(failed), 'pair')} {'fails' if len(failed) == 1 else 'fail'}, most often on {where}; "
                f"{why}.",
                evidence,
            )
        )
    return found


def gains(source: ReportSource) -> list[Finding]:
    """Say what the best configuration gains over the plainest one, in the median and at most."""
    rows = [row for row in best_configurations(source.rooflines) if row["configurations"] > 1]
    for provenance in TRUSTED:
        alike = [row for row in rows if row["provenance"] == provenance]
        if alike:
            most = max(alike, key=lambda row: float(row["gain"]))
            changed = f" ({', '.join(most['changes'])})" if most["changes"] else ""
            middle = median(row["gain"] for row in alike)
            usual = f"{rounded(middle, 2)} in the median over {len(alike):,} models, and " if len(alike) > 1 else ""
            return [
                Finding(
                    f"Choosing runtime, precision and batch size multiplies the {provenance} throughput by "
                    f"{usual}{rounded(most['gain'], 2)} for {most['model_id']} on {most['device_name']}{changed}.",
                    source.command("accel report optimization --format json"),
                )
            ]
    return []


def untested(source: ReportSource) -> list[Finding]:
    """Say how much that could be measured on the hosts at hand was not."""
    rows, evidence = source.untested, source.command("accel matrix")
    if not rows and not source.reader.rows("SELECT 1 FROM devices WHERE available AND NOT emulated LIMIT 1"):
        return [Finding("No host has measured, so nothing is known to be missing: `accel bench run`.", evidence)]
    if not rows:
        return [Finding("Every known model ran on all hardware that a host has.", evidence)]
    names = Counter(row["hardware"] for row in rows)
    parts = ", ".join(f"{count:,} on {name}" for name, count in names.most_common(_MOST_NAMED))
    return [
        Finding(
            f"{count_of(len(rows), 'pair')} of a known model and hardware that a host has "
            f"{'was' if len(rows) == 1 else 'were'} never measured ({parts}): `accel bench run --missing` measures.",
            evidence,
        )
    ]


def caveats(source: ReportSource) -> list[Finding]:
    """Say what stands outside the figures, or behind them unchecked."""
    gaps = source.gaps
    found = []
    if gaps.failed:
        most = gaps.failed[0]
        why = "" if most["failure_class"] == "not stated" else f": {most['failure_class']}"
        found.append(
            Finding(
                f"{count_of(gaps.failures, 'result')} failed, most often on {most['hardware']}{why}.",
                source.query("r.failed"),
            )
        )
    if doubted := gaps.doubts:
        found.append(
            Finding(
                f"{count_of(doubted, 'imported result')} {'is' if doubted == 1 else 'are'} suspect or simulated and "
                f"{'stands' if doubted == 1 else 'stand'} outside all figures.",
                source.query("r.provenance IN ('suspect', 'simulated')"),
            )
        )
    if disturbed := gaps.disturbed:
        found.append(
            Finding(
                f"{count_of(disturbed, 'result')} {'was' if disturbed == 1 else 'were'} disturbed by other work and "
                f"{'stands' if disturbed == 1 else 'stand'} outside ratings and ratios.",
                source.query("r.disturbed AND NOT r.failed"),
            )
        )
    return found


def _named(names: Sequence[str], count: int, noun: str) -> str:
    """Return a few names, or their number where there are more."""
    return ", ".join(names) if names and len(names) == count <= _MOST_NAMED else count_of(count, noun)
