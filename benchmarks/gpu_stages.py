"""The stages of `gpu_proof.py` that measure for later: kernels, the campaign, and predictions made before."""

from __future__ import annotations

import sys
from pathlib import Path

import gpu_campaign
import gpu_kernels
import gpu_predictions
from accel_platform.backends.probes import PROBES
from accel_platform.hardware.catalog import catalogued_name
from gpu_target import Outcome, Target

_MOST_BYTES = 4_000_000


def models(target: Target) -> Outcome:
    """Prepare the models of the campaign."""
    found = Outcome()
    cells = gpu_campaign.few_cells if target.stand_in else gpu_campaign.cells
    groups = list(cells(target.hardware))
    gpu_campaign.prepare(target.home, groups, lambda text: print(text, file=sys.stderr))
    names = {group[0].model.model_id for group in groups}
    found.add("models prepared", len(names), "more than 0", len(names) > 0)
    return found


def kernels(target: Target, path: Path, until: float) -> Outcome:
    """Time single operators and write them as a kernel table."""
    found = Outcome()
    rows, problems, complete = gpu_kernels.sweep(target.device, until, share=0.04 if target.stand_in else 1.0)
    gpu_kernels.write(rows, path)
    found.absent += problems[:20]
    found.complete = complete
    operators = {row["operator"] for row in rows}
    found.add("kernels timed", f"{len(rows):,} of {len(operators)} operators", "more than 0", len(rows) > 0)
    for precision in gpu_kernels.PRECISIONS:
        count = sum(row["precision"] == precision for row in rows)
        found.add(f"in {precision}", count, "told", None)
    return found


def campaign(target: Target, path: Path, until: float) -> Outcome:
    """Measure the campaign as far as time allows, and write all events to a file."""
    found = Outcome()
    cells = gpu_campaign.few_cells if target.stand_in else gpu_campaign.cells
    groups = list(cells(target.hardware))
    counts = gpu_campaign.run(target.home, path, groups, until, lambda text: print(text, file=sys.stderr))
    size = gpu_campaign.export(target.home, path)
    results = gpu_campaign.results(target.home)
    good = [result for result in results if result.status == "ok"]
    found.complete = counts["complete"]
    found.add(
        "models in their passes",
        f"{counts['finished']} of {counts['groups']}",
        "all",
        True if counts["complete"] else None,
    )
    found.add("cells measured", f"{len(good)} of {len(results)}", "more than 0", len(good) > 0)
    found.add("models with a figure", len({result.model_id for result in good}), "told", None)
    found.add("size of the events", f"{size:,} bytes", f"under {_MOST_BYTES:,}", 0 < size < _MOST_BYTES)
    reasons: dict[str, int] = {}
    for result in results:
        if result.status != "ok":
            reasons[str(result.failure_class)] = reasons.get(str(result.failure_class), 0) + 1
    found.add("failures by class", reasons, "told", None)
    return found


def predictions(target: Target) -> Outcome:
    """Compare what was predicted before with what the campaign measured."""
    found = Outcome()
    if target.stand_in:
        found.absent.append("nothing was predicted for a stand-in")
        return found
    name = catalogued_name(PROBES[target.hardware](None)["name"])
    path = gpu_predictions.file_of(name)
    if path is None or not path.is_file():
        found.absent.append(f"nothing was predicted for {name}")
        return found
    predicted, results = gpu_predictions.read(path), gpu_campaign.results(target.home)
    compared = gpu_predictions.compare(predicted, results)
    tried = {(r.model_id, r.precision, r.batch_size) for r in results if r.choice is None and r.mode == "inference"}
    eager = (
        cell for group in gpu_campaign.cells(target.hardware) for cell in group if cell.hardware == target.hardware
    )
    found.complete = all((cell.model.model_id, cell.precision, cell.batch_size) in tried for cell in eager)
    if not compared["groups"]:
        found.absent.append("the campaign has measured no predicted cell yet")
        return found
    for group, figures in compared["groups"].items():
        got = f"{figures['median_error']:.1%} off in the median, {figures['inside_interval']:.0%} inside"
        found.add(f"predicted before, {group}", got, "told", None, f"{figures['cells']} cells")
    for loss in compared["worst"]:
        what = f"{loss['model_id']}, {loss['precision']}, batch {loss['batch_size']}"
        found.add(
            f"loss: {what}", f"{loss['predicted_ms']:.4g} ms said, {loss['measured_ms']:.4g} ms measured", "told", None
        )
    # A record, neither good nor bad: it is done where all cells that were measured are in it.
    found.add("cells compared", compared["groups"]["all"]["cells"], "more than 0", True, str(compared["left_out"]))
    return found
