"""What the learned predictor says of what was not measured, if it stands behind it. Measurements are not looked at."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from accel_platform.workloads.kv_cache import Decoder
from predictor.advisor.candidates import Candidate
from predictor.advisor.resolved_query import PLAIN, ResolvedQuery
from predictor.advisor.scaling import Estimate
from predictor.advisor.serving_state import ServingState
from predictor.calibration.cross_validation import Regime
from predictor.calibration.predictor import Prediction, Predictor
from predictor.data.evidence import CellSummary, Evidence, Target
from predictor.data.fast_path import require_slow_path
from predictor.data.model_resolution import lookup_decoder
from predictor.data.samples import Sample, find_published_decoder, make_sample
from predictor.models.explanations import Contribution
from predictor.schemas.responses import ExclusionCause, Neighbour

TOO_RISKY = 0.5
"""Probability of a failure from which hardware is left out; it is warned of from a fifth of that."""
_NEIGHBOURS = 3
_REASONS = 5
_TELLING = 0.02
"""In logs: what changes the figure by less is no reason for it."""

Refusal = tuple[ExclusionCause, str]
Wanted = tuple[ResolvedQuery, Candidate]


def predicted(knowledge: ServingState, wanted: Sequence[Wanted]) -> list[Estimate | Refusal]:
    """One for each question and candidate, in their order; the predictor is asked once about all of them."""
    predictor = knowledge.predictor
    if predictor is None:
        return [("unsupported", f"not measured, and {knowledge.no_predictor}") for _ in wanted]
    cases = list(_cases(knowledge, predictor, wanted))
    askable = [case for case in cases if isinstance(case, Sample)]
    judgements = iter(predictor.predict(askable, explain=True) if askable else [])
    return [
        ("unsupported", f"not measured, and {case}")
        if isinstance(case, str)
        else _estimate(knowledge.evidence, asked, candidate, case, next(judgements))
        for case, (asked, candidate) in zip(cases, wanted, strict=True)
    ]


def _cases(knowledge: ServingState, predictor: Predictor, wanted: Sequence[Wanted]) -> Iterator[Sample | str]:
    """The case of each, or the reason why there is none or why nothing is ever said of one like it."""
    last: ResolvedQuery | None = None
    like: Sample | str = ""
    for asked, candidate in wanted:
        case: Sample | str | None = None
        if asked is not last:
            # What cannot be made a case of on one device can on none, and what it reads is the same on all.
            last = asked
            case = like = queried_sample(knowledge.evidence, asked, candidate)
        if isinstance(like, str):
            yield like
            continue
        way = candidate.target, like.precision, like.mode, like.counted, like.reads
        blind = None if candidate.own else knowledge.blind.get(way)
        if blind is not None:
            yield blind
            continue
        case = case or queried_sample(knowledge.evidence, asked, candidate)
        if (
            isinstance(case, Sample)
            and not candidate.own
            and (reason := predictor.unsupported_reason(case)) is not None
        ):
            knowledge.blind[way] = reason
        yield case


def warm_up(knowledge: ServingState) -> None:
    """Make what the first questions would wait for; it takes a while, and nothing is answered otherwise by it."""
    evidence, predictor = knowledge.evidence, knowledge.predictor
    if predictor is None:
        return
    knowledge.learned("")
    places: set[Target | str] = {*evidence.by_target, *(target.hardware for target in evidence.by_target)}
    for mode, known in predictor.modes.items():
        known.latency_model.warm_up()
        for among in places:
            _by_work(evidence, among, mode)


def queried_sample(evidence: Evidence, asked: ResolvedQuery, candidate: Candidate) -> Sample | str:
    """The question as the predictor sees it, or why it cannot be put."""
    target = candidate.target
    generates = asked.mode == "generation"
    return make_sample(
        model=asked.model,
        family=asked.family,
        cost=asked.cost,
        mode=asked.mode,
        batch_size=asked.batch_size,
        size=asked.size,
        precision=asked.precisions[0],
        device=candidate.spec,
        hardware=target.hardware,
        backend=target.backend,
        output_tokens=asked.output_tokens,
        decoder=_decoder(evidence, asked) if generates else None,
    )


def _decoder(evidence: Evidence, asked: ResolvedQuery) -> Decoder | None:
    """That of the files it was learned from where they hold it, for those are what it is compared with."""
    subject = asked.subject
    if subject.config is not None:
        return subject.decoder
    return find_published_decoder(asked.model) or lookup_decoder(subject.model_id, subject.spec, evidence.models)


def _estimate(
    evidence: Evidence, asked: ResolvedQuery, candidate: Candidate, case: Sample, judged: Prediction
) -> Estimate | Refusal:
    target = candidate.target
    risk, share = max(judged.risks.items(), key=lambda item: item[1], default=("", 0.0))
    if share >= TOO_RISKY:
        cause: ExclusionCause = "does_not_fit" if risk == "out_of_memory" else "predicted_failure"
        return cause, f"{_words(risk)} with a probability of {share:.0%}, by what failed and what did not"
    if not judged.supported or judged.latency_ms is None:
        return "unsupported", f"not measured, and {judged.reason}"
    cautions = []
    if judged.extrapolation_factor > 1:
        cautions.append(f"{target.hardware}: {judged.extrapolation_factor:.1f} times beyond anything learned from.")
    if judged.regime in (Regime.UNSEEN_DEVICE, Regime.UNSEEN_BOTH):
        cautions.append(f"{target.label}: nothing was measured on the device, its spec sheet stands for it.")
    if share >= TOO_RISKY / 5:
        cautions.append(f"{target.label}: {_words(risk)} with a probability of {share:.0%}.")
    near = nearest(evidence, asked, target)
    return Estimate(
        provenance="predicted",
        latency_ms=judged.latency_ms,
        memory_peak_mib=judged.memory_peak_mib,
        event_ids=tuple(n.event_id for n in near),
        basis=judged.reason,
        cautions=tuple(cautions),
        why=tuple(_reason(c) for c in judged.contributions[:_REASONS] if abs(math.log(c.factor)) > _TELLING),
        neighbours=near,
        case=case,
    )


def _words(risk: str) -> str:
    return "it runs out of memory" if risk == "out_of_memory" else f"it fails ({risk.replace('_', ' ')})"


def _reason(contribution: Contribution) -> str:
    """`device (NVIDIA L4): 2.1 times slower than typical`."""
    factor = contribution.factor
    times = f"{factor:.3g} times slower" if factor >= 1 else f"{1 / factor:.3g} times faster"
    return f"{contribution.name} ({contribution.value}): {times}"


@dataclass(frozen=True)
class _Measured:
    """Measured cells in the order of their work."""

    log_flops: list[float]
    neighbours: list[Neighbour]


def nearest(evidence: Evidence, asked: ResolvedQuery, target: Target) -> tuple[Neighbour, ...]:
    """The cells in the same precision on this target whose work is most like it; where it has none, those of any of its
    hardware."""
    if asked.cost is None or asked.cost.flops <= 0:
        return ()
    places = [place for place in (target, target.hardware) if place != target or target in evidence.by_target]
    by_place = (_by_work(evidence, among, asked.mode) for among in places)
    known = next((found[asked.precision] for found in by_place if asked.precision in found), None)
    if known is None:
        return ()
    wanted = math.log(asked.cost.flops * asked.batch_size)
    middle = bisect_left(known.log_flops, wanted)
    around = range(max(0, middle - _NEIGHBOURS), min(len(known.log_flops), middle + _NEIGHBOURS))
    closest = sorted(around, key=lambda i: (abs(known.log_flops[i] - wanted), known.neighbours[i].event_id))
    return tuple(known.neighbours[i] for i in closest[:_NEIGHBOURS])


def _by_work(evidence: Evidence, among: Target | str, mode: str) -> dict[str, _Measured]:
    return evidence.memoize(("work", among, mode), partial(_in_order, evidence, among, mode))


def _in_order(evidence: Evidence, among: Target | str, mode: str) -> dict[str, _Measured]:
    """By precision; figures that state none are taken for float32."""
    require_slow_path()
    if isinstance(among, Target):
        cells = evidence.by_target[among]
    else:
        cells = [p for target, found in evidence.by_target.items() if target.hardware == among for p in found]
    found: dict[str, list[tuple[float, str, CellSummary]]] = defaultdict(list)
    for pooled in cells:
        row = evidence.models.get(pooled.cell.model_id)
        if pooled.cell.mode == mode and row is not None and row["flops_per_item"]:
            work = math.log(row["flops_per_item"] * pooled.cell.batch_size)
            found[pooled.cell.precision or PLAIN].append((work, pooled.event_ids[0], pooled))
    return {precision: _measured(sorted(entries, key=lambda e: e[:2])) for precision, entries in found.items()}


def _measured(entries: Sequence[tuple[float, str, CellSummary]]) -> _Measured:
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
        for _, event_id, pooled in entries
    ]
    return _Measured([work for work, _, _ in entries], neighbours)
