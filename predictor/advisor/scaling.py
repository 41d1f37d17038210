"""Estimates from measurements alone: the queried cell itself, or a measured neighbor scaled by other models.

A neighbor is the same model in a cell that differs in one dimension: target, batch size or sequence length. Other
models that were measured both ways show how that dimension changes the latency.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtrit

from accel_platform.hardware.catalog import DeviceSpec
from accel_platform.hardware.device_spec import peak_ops_per_s
from accel_platform.precisions import PRECISIONS, Precision
from accel_platform.table_io.values import count_of, rounded
from predictor.data.evidence import SCALABLE_FIELDS, CellKey, CellSummary, Evidence, Target
from predictor.data.fast_path import require_slow_path
from predictor.data.samples import Sample, device_spec_for
from predictor.schemas.responses import INTERVAL_LEVEL, ExclusionCause, Interval, Neighbour, Provenance, Where

MIN_MODELS = 3
"""Fewest models measured in both cells of a neighbor pair, for their ratio to be applied to another model."""
_PRIOR_STD, _PRIOR_MODELS = 0.2, 4
"""Distance of a model's ratio from that of others, in logs, and the number of models that this counts for.

So three ratios that happen to agree are not taken for sure. Chosen with `_MAX_NEIGHBORS` on 3,926 cells of published
figures, each left out in turn (`benchmarks/scaled.py`). The median error is 10 %, where all neighbors gave 14 %.
Intervals that claim 90 % hold 93 %.
"""
_MAX_NEIGHBORS = 3
"""Largest number of neighbors to combine, those with the narrowest intervals."""
_GROWING = {"batch_size": "batch size", "sequence_length": "sequence length"}
"""Dimensions in which a larger value is more work, with their names in words."""
_LEAST_PAIRS, _LEAST_SHARE = 10, 0.95
"""Fewest cells measured in two precisions, and least share of them that took no longer in the narrower one, for it to
bound the wider one. Of TensorRT on five GPUs with faster units for int8 than for float16, all 188 cells took longer in
float16; of OpenVINO on two Xeons, six of 20 cells took longer in int8 than in bfloat16."""


@dataclass(frozen=True)
class Estimate:
    """Figures of one cell: measured, scaled or predicted."""

    provenance: Provenance
    latency_ms: Interval
    memory_peak_mib: Interval | None
    event_ids: tuple[str, ...]
    basis: str
    cautions: tuple[str, ...] = ()
    """Warnings that a reader needs before trusting the figures. Answers name the place before each."""
    why: tuple[str, ...] = ()
    """Explanations of the latency, in words."""
    neighbours: tuple[Neighbour, ...] = ()
    """Measured cells of similar work; only of predictions."""
    energy_j_per_item: Interval | None = None
    own: bool = False
    """True if this platform measured it itself."""
    unstated: bool = False
    """True if its results state no precision."""
    sample: Sample | None = None
    """Input of the predictor; only of predictions."""
    host_limited: bool = False
    """True if the latency's upper limit is the time of a slow host."""


@dataclass(frozen=True)
class Abstention:
    """Reason why no figure of a cell is supported."""

    cause: ExclusionCause
    reason: str


@dataclass(frozen=True)
class Ratio:
    """Ratio of latencies between two cells of a model, estimated over other models. Its fields are natural logs."""

    mean: float
    half_width: float
    """Half width of the interval that holds the next model's ratio with probability INTERVAL_LEVEL (Student's t)."""
    models: int


def measured_estimate(evidence: Evidence, cells: Iterable[CellKey]) -> Estimate | None:
    """Return the figures, pooled over runs, of the first of these cells that was measured; None if none was."""
    for cell in cells:
        summary = evidence.summaries.get(cell)
        if summary is not None:
            source = _describe_source(evidence, summary)
            runs = count_of(summary.runs, "run")
            cautions = [*_precision_cautions(cell)]
            if summary.noisy:
                cautions.append("the figures are noisy, for their samples scatter too much.")
            if summary.from_rate:
                cautions.append(
                    "only a rate is published; the latency is batch size over rate, and may be longer for one request "
                    "alone."
                )
            return Estimate(
                provenance="measured",
                latency_ms=summary.latency_ms,
                memory_peak_mib=summary.memory_peak_mib,
                event_ids=summary.event_ids,
                basis=f"this very configuration, {source}: {runs}",
                cautions=tuple(cautions),
                why=(_describe_spread(summary, runs),),
                energy_j_per_item=summary.energy_j_per_item,
                own=summary.measured,
                unstated=cell.precision is None,
            )
    return None


def scaled_estimate(evidence: Evidence, cell: CellKey) -> Estimate | None:
    """Return the combined scaled neighbors, or an interpolation between batch sizes where its interval is narrower.

    None where no neighbor can be scaled.
    """
    # Only a batch size that was measured somewhere has models with a ratio to it.
    by_ratio = list(_scale_by_ratio(evidence, cell)) if cell.batch_size in evidence.batch_sizes else []
    combined = [_combine(by_ratio)] if by_ratio else []
    estimates = [*combined, *_interpolate_batches(evidence, cell)]
    best = min(estimates, key=lambda e: e.latency_ms.high_over_low, default=None)
    if best is None:
        return None
    best = keep_between_measured(evidence, cell, best)
    if cell.precision is not None:
        return best
    # No neighbor differs in its precision.
    return replace(best, unstated=True, cautions=(*_precision_cautions(cell), *best.cautions))


def _precision_cautions(cell: CellKey) -> tuple[str, ...]:
    """Return the warning about figures that state no precision."""
    if cell.precision is not None:
        return ()
    assumed = "may be of 16 bits or fewer" if cell.mode == "generation" else "are taken for float32"
    return (f"the figures state no precision; they {assumed}.",)


def combine_intervals(intervals: Sequence[Interval]) -> Interval:
    """Combine the narrowest of several intervals of one figure: the precision-weighted mean, with their median width.

    The narrowest interval alone would hold less often than its level. The mean is no more certain than a single one,
    because all share the model's deviation from other models. The level is the lowest of theirs. All need limits.
    """
    chosen = sorted(intervals, key=lambda interval: interval.high_over_low)[:_MAX_NEIGHBORS]
    weights = [1 / max(math.log(interval.high_over_low), 1e-6) ** 2 for interval in chosen]
    center = float(np.average(np.log([interval.p50 for interval in chosen]), weights=weights))
    down = float(np.median([math.log(interval.p50 / interval.low) for interval in chosen if interval.low]))
    up = float(np.median([math.log(interval.high / interval.p50) for interval in chosen if interval.high]))
    return Interval(
        p50=math.exp(center),
        low=math.exp(center - down),
        high=math.exp(center + up),
        level=min((interval.level for interval in chosen if interval.level is not None), default=None),
    )


def _combine(estimates: Sequence[Estimate]) -> Estimate:
    """Return the estimate with the narrowest interval, with the combined interval and the evidence of all."""
    if len(estimates) == 1:
        return estimates[0]
    chosen = sorted(estimates, key=lambda e: e.latency_ms.high_over_low)[:_MAX_NEIGHBORS]
    return replace(
        chosen[0],
        latency_ms=combine_intervals([estimate.latency_ms for estimate in chosen]),
        event_ids=tuple(dict.fromkeys(event for estimate in chosen for event in estimate.event_ids)),
        basis=f"mean of {len(chosen)} scaled neighbors of {len(estimates)}; the surest: {chosen[0].basis}",
    )


def pooled_ratio(pairs: Iterable[tuple[str, float]]) -> Ratio | None:
    """Return the ratio for a new model from pairs of model and log ratio; None for fewer than MIN_MODELS models.

    Each model counts once, with the mean of its log ratios. The interval is a prediction interval with Student's t:
    mean ± t · s · sqrt(1 + 1/n). The variance s² has a conjugate prior (Gelman et al., Bayesian Data Analysis, section
    3.3), as if _PRIOR_MODELS further models had deviated by _PRIOR_STD.
    """
    by_model: dict[str, list[float]] = defaultdict(list)
    for model_id, log_ratio in pairs:
        by_model[model_id].append(log_ratio)
    n = len(by_model)
    if n < MIN_MODELS:
        return None
    # Exact sums, because the order of rows may differ between two processes, which should give equal answers.
    logs = [math.fsum(values) / len(values) for values in by_model.values()]
    mean, freedom = math.fsum(logs) / n, _PRIOR_MODELS + n - 1
    variance = math.fsum((_PRIOR_MODELS * _PRIOR_STD**2, *((log - mean) ** 2 for log in logs))) / freedom
    t = float(stdtrit(freedom, (1 + INTERVAL_LEVEL) / 2))
    return Ratio(mean, t * math.sqrt(variance * (1 + 1 / n)), n)


def _scale_by_ratio(evidence: Evidence, cell: CellKey) -> Iterable[Estimate]:
    """Yield an estimate from each measured neighbor of the cell that other models give a ratio to."""
    for dimension in SCALABLE_FIELDS:
        for source in evidence.by_other_fields.get(cell.key_without(dimension), []):
            if source.cell.target.device_id is None:
                continue  # an unnamed device may be any
            ratio = _ratio_between(evidence, source.cell, cell, dimension)
            if ratio is not None:
                yield Estimate(
                    provenance="scaled",
                    latency_ms=_scale(source.latency_ms, ratio),
                    memory_peak_mib=None,
                    event_ids=source.event_ids,
                    basis=f"measured {_describe_place(source.cell, dimension)}, times {rounded(math.exp(ratio.mean))} "
                    f"as {ratio.models} other models show",
                    why=(_describe_ratio(ratio),),
                )


def _ratio_between(evidence: Evidence, source: CellKey, cell: CellKey, dimension: str) -> Ratio | None:
    """Return the ratio of latencies of `cell` over `source`, which differ in one dimension, over other models.

    The ratio between targets or lengths depends on the batch size. So pairs at the source's batch size are used if they
    are of enough models, else pairs at any batch size. None for too few models.
    """
    measured_values = {
        "target": evidence.by_target,
        "batch_size": evidence.batch_sizes,
        "sequence_length": evidence.sequence_lengths,
    }
    ends = getattr(source, dimension), getattr(cell, dimension)
    if ends[1] not in measured_values[dimension]:
        return None
    change = (dimension, source.target, source.mode, source.precision, *ends)
    pairs = evidence.memoize(("pairs", *change), lambda: _log_ratios(evidence, source, cell, dimension))

    def ratio_of_other_models() -> Ratio | None:
        at_any_batch = [(model, log_ratio) for model, _, log_ratio in pairs if model != source.model_id]
        at_batch = [
            (model, log_ratio)
            for model, batch_size, log_ratio in pairs
            if model != source.model_id and batch_size == source.batch_size
        ]
        enough = len({model for model, _ in at_batch}) >= MIN_MODELS
        return pooled_ratio(at_batch if enough else at_any_batch)

    return evidence.memoize(("ratio", *change, source.model_id, source.batch_size), ratio_of_other_models)


def _log_ratios(evidence: Evidence, source: CellKey, cell: CellKey, dimension: str) -> list[tuple[str, int, float]]:
    """Return model, batch size and log ratio of all cells that were measured with either value of the dimension."""
    counterparts = _cells_like(evidence, cell if dimension == "target" else source, dimension, getattr(cell, dimension))
    if not counterparts:
        return []  # as for most targets, which others have measured in another precision
    return [
        (other.cell.model_id, other.cell.batch_size, math.log(counterpart.latency_ms.p50 / other.latency_ms.p50))
        for key, other in _cells_like(evidence, source, dimension, getattr(source, dimension)).items()
        if (counterpart := counterparts.get(key)) is not None
    ]


def _cells_like(evidence: Evidence, cell: CellKey, dimension: str, value: object) -> dict[Hashable, CellSummary]:
    """Return the cells of one target, mode and precision with this value of a dimension, by their other fields."""
    return _cells_by_value(evidence, cell.target).get((cell.mode, cell.precision, dimension, value), {})


def _cells_by_value(evidence: Evidence, target: Target) -> dict[Hashable, dict[Hashable, CellSummary]]:
    """Return the cells of a target by mode, precision, dimension and value, and then by their other fields."""

    def build() -> dict[Hashable, dict[Hashable, CellSummary]]:
        require_slow_path()
        found: dict[Hashable, dict[Hashable, CellSummary]] = defaultdict(dict)
        for summary in evidence.by_target[target]:
            cell = summary.cell
            for dimension in SCALABLE_FIELDS:
                value = cell.mode, cell.precision, dimension, getattr(cell, dimension)
                found[value][cell.key_without(dimension)] = summary
        return found

    return evidence.memoize(("cells by value", target), build)


def warm_up(evidence: Evidence) -> None:
    """Index the cells of every target and in several precisions, which first questions would wait for."""
    for target in evidence.by_target:
        _cells_by_value(evidence, target)
    _narrower_bounds(evidence)


def _scale(interval: Interval, ratio: Ratio) -> Interval:
    """Multiply an interval by a ratio; their half widths add in quadrature on the log scale.

    The result claims no higher level than the source's own limits have.
    """
    p50 = interval.p50 * math.exp(ratio.mean)
    down = math.log(interval.p50 / interval.low) if interval.low else 0.0
    up = math.log(interval.high / interval.p50) if interval.high else 0.0
    return Interval(
        p50=p50,
        low=p50 * math.exp(-math.hypot(ratio.half_width, down)),
        high=p50 * math.exp(math.hypot(ratio.half_width, up)),
        level=min(INTERVAL_LEVEL, interval.level or INTERVAL_LEVEL),
    )


def _interpolate_batches(evidence: Evidence, cell: CellKey) -> Iterable[Estimate]:
    """Yield the log-linear interpolation between the next smaller and next larger measured batch, if there are both.

    A larger batch takes no less time, so the two latencies are bounds, and the interval has no level.
    """
    below, above = _measured_around(evidence, cell, "batch_size")
    if below is None or above is None:
        return
    share = math.log(cell.batch_size / below.cell.batch_size) / math.log(above.cell.batch_size / below.cell.batch_size)
    memory = None
    if below.memory_peak_mib is not None and above.memory_peak_mib is not None:
        memory = _interpolate(below.memory_peak_mib, above.memory_peak_mib, share)
    yield Estimate(
        provenance="scaled",
        latency_ms=_interpolate(below.latency_ms, above.latency_ms, share),
        memory_peak_mib=memory,
        event_ids=(*below.event_ids, *above.event_ids),
        basis=f"between the measured batch sizes {below.cell.batch_size} and {above.cell.batch_size}",
        why=(_describe_bounds(below, above),),
    )


def _measured_around(
    evidence: Evidence, cell: CellKey, dimension: str
) -> tuple[CellSummary | None, CellSummary | None]:
    """Return the nearest measured cells of a smaller and of a larger value in a dimension that is a number."""
    asked = getattr(cell, dimension)
    known = [s for s in evidence.by_other_fields.get(cell.key_without(dimension), []) if _value(s, dimension)]
    below = max((s for s in known if _value(s, dimension) < asked), key=lambda s: _value(s, dimension), default=None)
    above = min((s for s in known if _value(s, dimension) > asked), key=lambda s: _value(s, dimension), default=None)
    return below, above


def _value(summary: CellSummary, dimension: str) -> int:
    """Return a cell's value in a dimension that is a number; 0 where its files state none."""
    return getattr(summary.cell, dimension) or 0


def keep_between_measured(evidence: Evidence, cell: CellKey, estimate: Estimate) -> Estimate:
    """Return the estimate no shorter than less work took on the same target, and no longer than more of it took.

    Ratios of other models know nothing of these measurements, and lie beyond them at times. Two measured cells of which
    the smaller took longer bound nothing, because one of them was disturbed.
    """
    for dimension, word in _GROWING.items():
        if getattr(cell, dimension) is None:
            continue
        below, above = _measured_around(evidence, cell, dimension)
        if below is not None and above is not None and above.latency_ms.p50 < below.latency_ms.p50:
            continue
        p50 = estimate.latency_ms.p50
        if below is not None and p50 < below.latency_ms.p50:
            estimate = _move_to(below, estimate, f"no less than was measured at {word} {_value(below, dimension)}")
        elif above is not None and p50 > above.latency_ms.p50:
            estimate = _move_to(above, estimate, f"no more than was measured at {word} {_value(above, dimension)}")
    return estimate


def keep_above_narrower(evidence: Evidence, cell: CellKey, estimate: Estimate) -> Estimate:
    """Return the estimate no shorter than the same work took on the same target in a narrower precision.

    This holds where the device computes faster in the narrower one, and the runtime makes use of that, as cells that
    were measured in both show.
    """
    for narrow, seen in _narrower_bounds(evidence).get((cell.target, cell.mode, cell.precision), ()):
        bound = evidence.summaries.get(replace(cell, precision=narrow))
        if bound is not None and bound.latency_ms.p50 > estimate.latency_ms.p50:
            estimate = _move_to(bound, estimate, f"no less than was measured in {narrow}: {seen}")
    return estimate


def _narrower_bounds(evidence: Evidence) -> dict[Hashable, list[tuple[str, str]]]:
    return evidence.memoize("narrower bounds", lambda: _find_narrower_bounds(evidence))


def _find_narrower_bounds(evidence: Evidence) -> dict[Hashable, list[tuple[str, str]]]:
    """Return the measured precisions that bound wider ones, and what tells so, by target, mode and wider precision.

    PyTorch issues operators one by one. Others' measurements with it took their host's time, in any precision, and
    bound nothing for other hosts.
    """
    require_slow_path()
    gains = _gains_by_narrower(evidence)
    found: dict[Hashable, list[tuple[str, str]]] = defaultdict(list)
    for target, summaries in evidence.by_target.items():
        if target.backend.startswith("pytorch") and evidence.where(target) == "elsewhere":
            continue
        spec = device_spec_for(target, evidence.by_device)
        measured = {(each.cell.mode, each.cell.precision) for each in summaries if each.cell.precision in PRECISIONS}
        for (mode, precision), wide in itertools.product(sorted(measured), PRECISIONS.values()):
            narrow = PRECISIONS[precision]
            pairs, no_longer = gains.get(
                (spec.kind, target.backend, mode, wide.weight_bytes, narrow.weight_bytes), (0, 0)
            )
            if pairs >= _LEAST_PAIRS and no_longer >= _LEAST_SHARE * pairs and _is_faster(spec, narrow, wide):
                seen = f"{no_longer} of {count_of(pairs, 'cell')} with {target.backend} took no longer in it"
                found[target, mode, wide.name].append((precision, seen))
    return dict(found)


def _is_faster(spec: DeviceSpec, narrow: Precision, wide: Precision) -> bool:
    """Return whether a precision is narrower than another, and the spec sheet states a higher rate of it."""
    fast, slow = peak_ops_per_s(spec, narrow.name), peak_ops_per_s(spec, wide.name)
    return narrow.weight_bytes < wide.weight_bytes and fast is not None and slow is not None and fast > slow


def _gains_by_narrower(evidence: Evidence) -> dict[Hashable, tuple[int, int]]:
    """Return the cells that were measured in two precisions, and how many of them took no longer in the narrower one.

    They are counted by kind of silicon, backend, mode and the two widths in bytes, on devices that compute faster in
    the narrower one.
    """
    found: dict[Hashable, list[bool]] = defaultdict(list)
    for target, summaries in evidence.by_target.items():
        spec = device_spec_for(target, evidence.by_device)
        by_precision: dict[CellKey, dict[str, CellSummary]] = defaultdict(dict)
        for summary in summaries:
            if summary.cell.precision in PRECISIONS:
                by_precision[replace(summary.cell, precision=None)][summary.cell.precision] = summary
        for cell, alike in by_precision.items():
            for wide, narrow in itertools.permutations(map(PRECISIONS.__getitem__, alike), 2):
                if _is_faster(spec, narrow, wide):
                    widths = wide.weight_bytes, narrow.weight_bytes
                    no_longer = alike[narrow.name].latency_ms.p50 <= alike[wide.name].latency_ms.p50
                    found[spec.kind, target.backend, cell.mode, *widths].append(no_longer)
    return {key: (len(pairs), sum(pairs)) for key, pairs in found.items()}


def _move_to(bound: CellSummary, estimate: Estimate, reason: str) -> Estimate:
    """Return the estimate with the bound's median; limits only widen, because measurements scatter too."""
    latency, p50 = estimate.latency_ms, bound.latency_ms.p50
    limits = {
        "low": None if latency.low is None else min(latency.low, p50),
        "high": None if latency.high is None else max(latency.high, p50),
    }
    return replace(
        estimate,
        latency_ms=latency.model_copy(update={"p50": p50, **limits}),
        event_ids=tuple(dict.fromkeys((*estimate.event_ids, *bound.event_ids))),
        basis=f"{estimate.basis}; {reason}",
    )


def _interpolate(below: Interval, above: Interval, share: float) -> Interval:
    p50 = math.exp((1 - share) * math.log(below.p50) + share * math.log(above.p50))
    ends = (below.p50, above.p50, below.low or below.p50, above.high or above.p50)
    return Interval(p50=p50, low=min(ends), high=max(ends), level=None)


_MEASURED: dict[Where, str] = {
    "here": "measured here",
    "mine": "measured on another of your hosts",
    "elsewhere": "measured on a reference host",
}


def _describe_source(evidence: Evidence, summary: CellSummary) -> str:
    """Return who measured a cell. Only this host's own figures are "measured here"."""
    if not summary.measured:
        return "imported"
    return _MEASURED[evidence.where_measured(summary.cell.target, summary.hosts)]


def _describe_spread(summary: CellSummary, runs: str) -> str:
    latency = summary.latency_ms
    if latency.low is None or latency.high is None:
        return f"{runs}, and nothing is known of the spread"
    share = "" if latency.level is None else f"{latency.level:.0%} of batches "
    return f"{runs}, {share}between {rounded(latency.low, 4)} and {rounded(latency.high, 4)} ms"


def _describe_bounds(below: CellSummary, above: CellSummary) -> str:
    small, large = (f"{end.cell.batch_size} take {rounded(end.latency_ms.p50, 4)} ms" for end in (below, above))
    if above.latency_ms.p50 < below.latency_ms.p50:
        return f"batches of {small}, of {large}; a larger one takes no less time, so one of the two was disturbed"
    return f"batches of {small}, of {large}; a larger one takes no less time"


def _describe_ratio(ratio: Ratio) -> str:
    low, middle, high = (rounded(math.exp(ratio.mean + sign * ratio.half_width)) for sign in (-1, 0, 1))
    return f"over {ratio.models} other models the ratio is {middle}, {low} to {high} for most"


def _describe_place(cell: CellKey, dimension: str) -> str:
    if dimension == "batch_size":
        return f"at batch size {cell.batch_size}"
    if dimension == "sequence_length":
        return f"at sequence length {cell.sequence_length or 'unstated'}"
    device = f" ({cell.target.device})" if cell.target.device else ""
    return f"on {cell.target.hardware}{device}"
