"""What the learned model says where nothing was measured, if it may say anything. No measurement is looked for here."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from predictor.answers import Cause, Interval, Neighbour
from predictor.asked import Asked
from predictor.dataset import MODE
from predictor.evidence import Evidence, Target
from predictor.features import features_of
from predictor.intervals import FEWEST_GROUPS
from predictor.knowledge import Knowledge
from predictor.neighbours import Estimate
from predictor.targets import Candidate

FARTHEST = 10.0
"""Times beyond the batches seen in training at which nothing is predicted any more."""
WIDEST = 50.0
"""High over low at which an interval is no answer."""
_NEIGHBOURS = 3

Refusal = tuple[Cause, str]


def predicted(knowledge: Knowledge, wanted: Sequence[tuple[Asked, Candidate]]) -> list[Estimate | Refusal]:
    """One for each question and candidate, in their order."""
    return [_predicted(knowledge, *pair) for pair in wanted]


def _predicted(knowledge: Knowledge, asked: Asked, candidate: Candidate) -> Estimate | Refusal:
    predictor, evidence, target = knowledge.predictor, knowledge.evidence, candidate.target
    if predictor is None:
        return "unsupported", f"not measured, and {knowledge.no_predictor}"
    if asked.mode != MODE:
        return "unsupported", f"not measured in mode {asked.mode}, and only {MODE} is predicted"
    precision = next((p for p in asked.precisions if p in predictor.manifest.precisions), "")
    if precision == "":
        return "unsupported", f"not measured, and nothing in precision {asked.precisions[0]} was learned from"
    if not predictor.knows(target):
        few = f"fewer than {FEWEST_GROUPS} model families on this device were learned from"
        return "unsupported", f"not measured, and {few}"
    cost = asked.cost
    if cost is None or cost.flops <= 0:
        unknown = f"what {asked.subject.model_id} costs is not known: only results name it"
        return "unsupported", f"not measured, and {unknown}"
    outside = predictor.times_outside(cost.flops * asked.batch_size, asked.batch_size)
    if outside > FARTHEST:
        return "unsupported", f"not measured, and {outside:.0f} times beyond any batch learned from"
    features = features_of(
        cost,
        modality=asked.subject.modality,
        target=target,
        precision=precision,
        batch_size=asked.batch_size,
        sequence_length=asked.sequence_length,
        spec=candidate.spec,
    )
    latency = predictor.latency.interval(features)
    if _width(latency) > WIDEST:
        uncertain = f"a prediction would be uncertain by a factor of {_width(latency):.0f}"
        return "unsupported", f"not measured, and {uncertain}"
    beyond = f"{target.hardware}: {outside:.1f} times beyond any batch learned from."
    near = nearest(evidence, asked, target)
    return Estimate(
        provenance="predicted",
        latency_ms=latency,
        memory_peak_mib=None if predictor.memory is None else predictor.memory.interval(features),
        event_ids=tuple(n.event_id for n in near),
        basis=f"learned from {predictor.manifest.rows} cells of {len(predictor.manifest.families)} model families",
        cautions=(beyond,) if outside > 1 else (),
        neighbours=near,
    )


@dataclass(frozen=True)
class _Measured:
    """Measured cells in the order of their work."""

    log_flops: list[float]
    neighbours: list[Neighbour]


def nearest(evidence: Evidence, asked: Asked, target: Target) -> tuple[Neighbour, ...]:
    """The cells on this target whose work is most like it; of a target that has none, those of any of its hardware."""
    if asked.cost is None or asked.cost.flops <= 0:
        return ()
    among: Target | str = target if target in evidence.by_target else target.hardware
    known = evidence.once(("work", among, asked.mode), lambda: _in_order(evidence, among, asked.mode))
    wanted = math.log(asked.cost.flops * asked.batch_size)
    middle = bisect_left(known.log_flops, wanted)
    around = range(max(0, middle - _NEIGHBOURS), min(len(known.log_flops), middle + _NEIGHBOURS))
    closest = sorted(around, key=lambda i: (abs(known.log_flops[i] - wanted), known.neighbours[i].event_id))
    return tuple(known.neighbours[i] for i in closest[:_NEIGHBOURS])


def _in_order(evidence: Evidence, among: Target | str, mode: str) -> _Measured:
    if isinstance(among, Target):
        cells = evidence.by_target[among]
    else:
        cells = [p for target, found in evidence.by_target.items() if target.hardware == among for p in found]
    found = []
    for pooled in cells:
        row = evidence.models.get(pooled.cell.model_id)
        if pooled.cell.mode == mode and row is not None and row["flops_per_item"]:
            work = math.log(row["flops_per_item"] * pooled.cell.batch_size)
            found.append((work, pooled.event_ids[0], pooled))
    found.sort(key=lambda entry: entry[:2])
    neighbours = [
        Neighbour(
            event_id=event_id,
            model=pooled.cell.model_id,
            hardware=pooled.cell.target.hardware,
            device=pooled.cell.target.device,
            batch_size=pooled.cell.batch_size,
            sequence_length=pooled.cell.sequence_length,
            latency_ms=pooled.latency_ms.p50,
        )
        for _, event_id, pooled in found
    ]
    return _Measured([work for work, _, _ in found], neighbours)


def _width(interval: Interval) -> float:
    return interval.high / interval.low if interval.low and interval.high else math.inf
