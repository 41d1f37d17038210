"""Errors and coverage of scaled figures: each measured cell is left out in turn, and scaled from its neighbors."""

from __future__ import annotations

import argparse
import json
import math
from collections import defaultdict
from pathlib import Path

import numpy as np

from accel_platform.errors import WarehouseEmpty
from accel_platform.settings import Settings
from accel_platform.warehouse.reader import Reader
from predictor.advisor.scaling import scaled_estimate
from predictor.data.evidence import SCALABLE_FIELDS, CellSummary, Evidence, load_evidence
from predictor.schemas.responses import Interval


def scale_without(evidence: Evidence, summary: CellSummary) -> Interval | None:
    """Return the scaled latency of a cell as if it had not been measured."""
    cell = summary.cell
    lists = [evidence.by_other_fields[cell.key_without(name)] for name in SCALABLE_FIELDS]
    for members in lists:
        members.remove(summary)
    try:
        found = scaled_estimate(evidence, cell)
    finally:
        for members in lists:
            members.append(summary)
    return None if found is None else found.latency_ms


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--home", type=Path, default=Settings().home, help="With knowledge packs: see `accel knowledge`."
    )
    parser.add_argument("--cells", type=int, default=400, help="Cells to leave out per runtime and mode.")
    arguments = parser.parse_args()
    try:
        evidence = load_evidence(Reader(Settings(home=arguments.home)))
    except WarehouseEmpty as error:
        parser.error(str(error))
    groups: dict[tuple[str, str], list[CellSummary]] = defaultdict(list)
    for summary in evidence.summaries.values():
        if summary.cell.target.device_id is not None:
            groups[summary.cell.target.backend, summary.cell.mode].append(summary)
    rng = np.random.default_rng(0)
    for (backend, mode), summaries in sorted(groups.items()):
        drawn = [summaries[i] for i in rng.permutation(len(summaries))[: arguments.cells].tolist()]
        scaled = [(summary, scale_without(evidence, summary)) for summary in drawn]
        answered = [(summary.latency_ms.p50, latency) for summary, latency in scaled if latency is not None]
        if not answered:
            continue
        leveled = [(truth, latency) for truth, latency in answered if latency.level is not None]
        inside = [(latency.low or 0) <= truth <= (latency.high or math.inf) for truth, latency in leveled]
        print(
            json.dumps(
                {
                    "backend": backend,
                    "mode": mode,
                    "cells": len(drawn),
                    "answered": len(answered),
                    "median_ape": round(float(np.median([abs(i.p50 / t - 1) for t, i in answered])), 4),
                    "coverage": round(float(np.mean(inside)), 3) if inside else None,
                    "with_level": len(leveled),
                    "median_high_over_low": round(float(np.median([i.high_over_low for _, i in answered])), 2),
                }
            )
        )


if __name__ == "__main__":
    main()
