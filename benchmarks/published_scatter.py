"""Scatter of published figures of one configuration, and how often limits of that width hold.

All knowledge packs are imported into an empty home. For each runtime it prints the factor that holds 90 % of its
figures. It also prints the share of figures that the factor of all other models, or of all other devices, holds.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from accel_platform.events import EventLog
from accel_platform.knowledge.packs import adopt_packs
from accel_platform.settings import Settings
from accel_platform.warehouse.publish import refresh
from accel_platform.warehouse.reader import Reader
from predictor.data.evidence import published_distances
from predictor.data.published_scatter import PublishedScatter


def held_share(groups: Mapping[str, Sequence[float]]) -> float | None:
    """Return the share of figures that limits hold which were learned without the figures' group; None if too few."""
    held, figures = 0, 0
    for name, own in groups.items():
        others = [distance for other, found in groups.items() if other != name for distance in found]
        log_factor = PublishedScatter.of({"others": others}).log_factor("others")
        if log_factor is not None:
            held, figures = held + int(np.sum(np.array(own) <= log_factor)), figures + len(own)
    return held / figures if figures else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="accel-bench-") as directory:
        settings = Settings(home=Path(directory), log_uri=None)
        adopt_packs(EventLog.open(settings))
        refresh(settings)
        reader = Reader(settings)
        of_backends = {backend: found for (backend,), found in published_distances(reader).items()}
        left_out = {column: published_distances(reader, column) for column in ("model_id", "device")}
    scatter = PublishedScatter.of(of_backends)
    rows = []
    for backend, found in sorted(of_backends.items()):
        row: dict[str, object] = {"runtime": backend, "figures": len(found)}
        row["factor"] = round(math.exp(scatter.log_factor(backend) or math.nan), 2)
        for column, distances in left_out.items():
            groups: dict[str, list[float]] = defaultdict(list)
            for (of, name), of_group in distances.items():
                if of == backend:
                    groups[name].extend(of_group)
            share = held_share(groups)
            row[f"held_without_{column}"] = None if share is None else round(share, 3)
        rows.append(row)
    of_any = round(math.exp(scatter.of_any_backend or math.nan), 2)
    if arguments.json:
        print(json.dumps({"runtimes": rows, "factor_of_any": of_any}))
        return
    for row in rows:
        print(", ".join(f"{name} {value}" for name, value in row.items()))
    print(f"factor of any runtime, each counting the same: {of_any}")


if __name__ == "__main__":
    main()
