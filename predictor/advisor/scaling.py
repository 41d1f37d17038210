"""Answers from measurements alone: the very cell, or a measured neighbour scaled by what other models show.

A neighbour is the same model in a cell that differs in one thing: the target, the batch size or the sequence length.
How that one thing changes the time is read off other models that were measured both ways.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtrit

from predictor.data.evidence import SCALABLE_FIELDS, CellKey, CellSummary, Evidence
from predictor.data.fast_path import require_slow_path
from predictor.data.samples import Sample
from predictor.schemas.responses import INTERVAL_LEVEL, Interval, Neighbour, Provenance

FEWEST_MODELS = 3
"""Models measured both ways before their ratio says anything of another model."""


@dataclass(frozen=True)
class Estimate:
    """What is known or thought of one cell."""

    provenance: Provenance
    latency_ms: Interval
    memory_peak_mib: Interval | None
    event_ids: tuple[str, ...]
    basis: str
    cautions: tuple[str, ...] = ()
    """What a reader must know before trusting it."""
    why: tuple[str, ...] = ()
    """What speaks for the figure, in words."""
    neighbours: tuple[Neighbour, ...] = ()
    """Of a prediction: measured cells of like work."""
    energy_j_per_item: Interval | None = None
    own: bool = False
    """Measured by this platform, with its clocks."""
    unstated: bool = False
    """Of figures that state no precision."""
    case: Sample | None = None
    """Of a prediction: what was asked of the predictor."""


@dataclass(frozen=True)
class Ratio:
    """By how much the time changes from one kind of cell to another: natural logs, over models."""

    mean: float
    half_width: float
    """Of the interval that holds the next model's ratio with probability LEVEL (Student's t)."""
    models: int


def measured(evidence: Evidence, cells: Iterable[CellKey]) -> Estimate | None:
    """The figures of the first of these cells that was measured, pooled over its runs."""
    for cell in cells:
        pooled = evidence.summaries.get(cell)
        if pooled is not None:
            how = "measured here" if pooled.measured else "imported"
            runs = "one run" if pooled.runs == 1 else f"{pooled.runs} runs"
            where = _where(cell, "target")
            cautions = []
            if cell.precision is None:
                taken = "may be of 16 bits or fewer" if cell.mode == "generation" else "are taken for float32"
                cautions.append(f"The figures {where} state no precision; they {taken}.")
            if pooled.noisy:
                cautions.append(f"The figures {where} were measured while the machine was restless.")
            return Estimate(
                provenance="measured",
                latency_ms=pooled.latency_ms,
                memory_peak_mib=pooled.memory_peak_mib,
                event_ids=pooled.event_ids,
                basis=f"this very configuration, {how}: {runs}",
                cautions=tuple(cautions),
                why=(_spread_of(pooled, runs),),
                energy_j_per_item=pooled.energy_j_per_item,
                own=pooled.measured,
                unstated=cell.precision is None,
            )
    return None


def scaled(evidence: Evidence, cell: CellKey) -> Estimate | None:
    """The neighbour whose scaling leaves the narrowest interval; None where no neighbour can be scaled."""
    # A ratio needs others that were measured where this is asked for.
    by_ratio = _by_ratio(evidence, cell) if cell.batch_size in evidence.batch_sizes else ()
    found = [*by_ratio, *_between_batches(evidence, cell)]
    return min(found, key=lambda e: e.latency_ms.high_over_low, default=None)


def ratio_of(pairs: Iterable[tuple[str, float]]) -> Ratio | None:
    """The ratio that (model, log ratio) pairs show; a model counts once however often it was measured.

    None below FEWEST_MODELS. The interval is a prediction interval: mean ± t · s · sqrt(1 + 1/n) with n - 1 degrees.
    """
    by_model: dict[str, list[float]] = defaultdict(list)
    for model_id, log_ratio in pairs:
        by_model[model_id].append(log_ratio)
    n = len(by_model)
    if n < FEWEST_MODELS:
        return None
    logs = np.array([np.mean(values) for values in by_model.values()])
    t = float(stdtrit(n - 1, (1 + INTERVAL_LEVEL) / 2))
    return Ratio(float(logs.mean()), t * float(logs.std(ddof=1)) * math.sqrt(1 + 1 / n), n)


def _by_ratio(evidence: Evidence, cell: CellKey) -> Iterable[Estimate]:
    for changed in SCALABLE_FIELDS:
        for source in evidence.by_other_fields.get(cell.key_without(changed), []):
            if source.cell.target.device_id is None:
                continue  # nobody knows what it is a measurement of
            ratio = _ratio(evidence, source.cell, cell, changed)
            if ratio is not None:
                yield Estimate(
                    provenance="scaled",
                    latency_ms=_scale(source.latency_ms, ratio),
                    memory_peak_mib=None,
                    event_ids=source.event_ids,
                    basis=f"measured {_where(source.cell, changed)}, times {math.exp(ratio.mean):.3g} "
                    f"as {ratio.models} other models show",
                    why=(_ratio_of(ratio),),
                )


def _ratio(evidence: Evidence, source: CellKey, to: CellKey, changed: str) -> Ratio | None:
    """How a cell like `source` changes with the one thing, as other models show.

    Between targets and lengths the ratio depends on the batch, so pairs at the same batch are taken where they suffice.
    """
    measured_at = {
        "target": evidence.by_target,
        "batch_size": evidence.batch_sizes,
        "sequence_length": evidence.sequence_lengths,
    }
    values = getattr(source, changed), getattr(to, changed)
    if values[1] not in measured_at[changed]:
        return None
    change = (changed, source.target, source.mode, source.precision, *values)
    pairs = evidence.memoize(("pairs", *change), lambda: _pairs(evidence, source, to, changed))

    def others() -> Ratio | None:
        known = [(model, log_ratio) for model, _, log_ratio in pairs if model != source.model_id]
        at_batch = [
            (model, log_ratio)
            for model, batch_size, log_ratio in pairs
            if model != source.model_id and batch_size == source.batch_size
        ]
        enough = len({model for model, _ in at_batch}) >= FEWEST_MODELS
        return ratio_of(at_batch if enough else known)

    return evidence.memoize(("ratio", *change, source.model_id, source.batch_size), others)


def _pairs(evidence: Evidence, source: CellKey, to: CellKey, changed: str) -> list[tuple[str, int, float]]:
    """Model, batch size and log ratio of every cell like `source` that was measured with the one thing changed too."""
    require_slow_path()
    pairs = []
    for other in evidence.by_target[source.target]:
        cell = other.cell
        alike = (cell.mode, cell.precision, getattr(cell, changed)) == (
            source.mode,
            source.precision,
            getattr(source, changed),
        )
        if not alike:
            continue
        twin = evidence.summaries.get(replace(cell, **{changed: getattr(to, changed)}))
        if twin is not None:
            pairs.append((cell.model_id, cell.batch_size, math.log(twin.latency_ms.p50 / other.latency_ms.p50)))
    return pairs


def _scale(interval: Interval, ratio: Ratio) -> Interval:
    """Both sources of doubt, the source's own spread and the ratio's, add in quadrature on the log scale."""
    p50 = interval.p50 * math.exp(ratio.mean)
    down = math.log(interval.p50 / interval.low) if interval.low else 0.0
    up = math.log(interval.high / interval.p50) if interval.high else 0.0
    return Interval(
        p50=p50,
        low=p50 * math.exp(-math.hypot(ratio.half_width, down)),
        high=p50 * math.exp(math.hypot(ratio.half_width, up)),
        level=INTERVAL_LEVEL,
    )


def _between_batches(evidence: Evidence, cell: CellKey) -> Iterable[Estimate]:
    """Between the next smaller and the next larger measured batch, straight in logarithms.

    A larger batch takes no less time, so those two bound it: limits without a level.
    """
    line = evidence.by_other_fields.get(cell.key_without("batch_size"), [])
    below = max((p for p in line if p.cell.batch_size < cell.batch_size), key=_batch, default=None)
    above = min((p for p in line if p.cell.batch_size > cell.batch_size), key=_batch, default=None)
    if below is None or above is None:
        return
    share = math.log(cell.batch_size / _batch(below)) / math.log(_batch(above) / _batch(below))
    memory = None
    if below.memory_peak_mib is not None and above.memory_peak_mib is not None:
        memory = _interpolate(below.memory_peak_mib, above.memory_peak_mib, share)
    yield Estimate(
        provenance="scaled",
        latency_ms=_interpolate(below.latency_ms, above.latency_ms, share),
        memory_peak_mib=memory,
        event_ids=(*below.event_ids, *above.event_ids),
        basis=f"between the measured batch sizes {_batch(below)} and {_batch(above)}, which bound it",
        why=(_ends_of(below, above),),
    )


def _interpolate(below: Interval, above: Interval, share: float) -> Interval:
    p50 = math.exp((1 - share) * math.log(below.p50) + share * math.log(above.p50))
    ends = (below.p50, above.p50, below.low or below.p50, above.high or above.p50)
    return Interval(p50=p50, low=min(ends), high=max(ends), level=None)


def _batch(pooled: CellSummary) -> int:
    return pooled.cell.batch_size


def _spread_of(pooled: CellSummary, runs: str) -> str:
    latency = pooled.latency_ms
    if latency.low is None or latency.high is None:
        return f"{runs}, and nothing is known of the spread"
    share = "" if latency.level is None else f"{latency.level:.0%} of batches "
    return f"{runs}, {share}between {latency.low:.4g} and {latency.high:.4g} ms"


def _ends_of(below: CellSummary, above: CellSummary) -> str:
    small, large = (f"{_batch(end)} take {end.latency_ms.p50:.4g} ms" for end in (below, above))
    return f"batches of {small}, of {large}; a larger one takes no less time"


def _ratio_of(ratio: Ratio) -> str:
    low, high = (math.exp(ratio.mean + sign * ratio.half_width) for sign in (-1, 1))
    return f"over {ratio.models} other models the ratio is {math.exp(ratio.mean):.3g}, {low:.3g} to {high:.3g} for most"


def _where(cell: CellKey, changed: str) -> str:
    if changed == "batch_size":
        return f"at batch size {cell.batch_size}"
    if changed == "sequence_length":
        return f"at sequence length {cell.sequence_length or 'unstated'}"
    device = f" ({cell.target.device})" if cell.target.device else ""
    return f"on {cell.target.hardware}{device}"
