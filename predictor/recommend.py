"""The answer: for every target the best supported figures, ranked, or why there are none. No state and no I/O here.

Measured beats scaled beats predicted; where none of the three can stand, the target is left out and the answer says
which measurement would settle it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from accel_platform.backends.registry import RUNTIMES, runtime_for
from accel_platform.errors import NotFound
from accel_platform.precisions import canonical
from predictor.answers import (
    Answer,
    Compatibility,
    Excluded,
    Interval,
    PredictAnswer,
    PredictQuery,
    Query,
    Recommendation,
    RecommendQuery,
)
from predictor.cases import case_of, silicon_of
from predictor.evidence import Cell, Evidence, Target
from predictor.judge import WIDEST, Predictor
from predictor.neighbours import Estimate, measured, scaled
from predictor.subject import Subject, item_cost, length_asked, resolve_subject
from predictor.targets import choose_targets

MODE = "inference"
"""The only mode that is predicted; the others are answered from measurements alone."""
_PLAIN = "float32"
_ORDER = {"measured": 0, "scaled": 1, "predicted": 2}


@dataclass(frozen=True)
class Knowledge:
    """All that an answer may rest on; `no_predictor` says why there is none."""

    evidence: Evidence
    predictor: Predictor | None = None
    no_predictor: str = "no predictor was trained yet (`accel train`)"


class _Abstain(Exception):
    """Nothing supports a figure here; the message is the reason."""


@dataclass(frozen=True)
class _Question:
    """A query made definite."""

    subject: Subject
    mode: str
    precisions: tuple[str | None, ...]
    batch_size: int
    sequence_length: int | None

    def cells(self, target: Target) -> list[Cell]:
        """The cells that answer it, the best first."""
        return [
            Cell(self.subject.model_id, target, self.mode, precision, self.batch_size, self.sequence_length)
            for precision in self.precisions
        ]


def recommend(knowledge: Knowledge, query: RecommendQuery) -> Answer:
    """Rank every target that something is known for. Raises NotFound for the model, InvalidInput for the hardware."""
    evidence = knowledge.evidence
    question, warnings = _question(evidence, query)
    targets, missing = choose_targets(evidence, query.hardware)
    found: list[Recommendation] = []
    excluded = [
        Excluded(
            hardware=hardware,
            device=device,
            reason="nothing was measured there, and no known host has it",
            suggestion=_elsewhere(question, hardware),
        )
        for hardware, device in missing
    ]
    for target in targets:
        try:
            estimate = _estimate(knowledge, question, target, warnings)
        except _Abstain as reason:
            if target.device_id is None and target in evidence.by_target:
                continue  # figures of a device that nobody named are no hardware one could measure on
            excluded.append(_excluded(evidence, question, target, str(reason)))
        else:
            found.append(_recommendation(evidence, question, target, estimate))
    key = _ranking(query.objective)
    ranked = sorted(found, key=lambda r: (key(r), r.hardware, r.device_id or ""))
    # "cuda is unavailable here" is no news where a cuda device of another host can be recommended.
    answered = {r.hardware for r in ranked}
    return Answer(
        model=question.subject.model_id,
        batch_size=question.batch_size,
        sequence_length=question.sequence_length,
        recommendations=[r.model_copy(update={"rank": i}) for i, r in enumerate(ranked, start=1)],
        excluded=[e for e in excluded if e.device is not None or e.hardware not in answered],
        warnings=list(dict.fromkeys(warnings)),
        snapshot_id=evidence.snapshot_id,
        predictor_id=knowledge.predictor.predictor_id if knowledge.predictor else None,
    )


def predict(knowledge: Knowledge, query: PredictQuery) -> PredictAnswer:
    """One cell, on a device that a known host has rather than on one that only imported files tell of.

    Raises NotFound, with what to measure, where nothing supports a figure.
    """
    plain = RecommendQuery(**query.model_dump(exclude={"hardware"}), hardware=[query.hardware])
    answer = recommend(knowledge, plain)
    if not answer.recommendations:
        why = "; ".join(f"{e.reason}: {e.suggestion}" for e in answer.excluded)
        raise NotFound(f"Nothing supports a figure for {answer.model} on {query.hardware}: {why}.")
    ranked = answer.recommendations
    ours = {(d.target.hardware, d.target.device_id) for d in knowledge.evidence.devices if d.available}
    best = min(ranked, key=lambda r: ((r.hardware, r.device_id) not in ours, _ORDER[r.provenance], r.rank))
    warnings = list(answer.warnings)
    if len(ranked) > 1:
        names = ", ".join(f"{r.device} ({r.device_id})" if r.device else "one without a name" for r in ranked)
        warnings.append(f"{query.hardware} stands for several: {names}. Ask for one by its id.")
    return PredictAnswer(
        model=answer.model,
        batch_size=answer.batch_size,
        sequence_length=answer.sequence_length,
        **best.model_dump(exclude={"rank"}),
        warnings=warnings,
        snapshot_id=answer.snapshot_id,
        predictor_id=answer.predictor_id,
    )


def _question(evidence: Evidence, query: Query) -> tuple[_Question, list[str]]:
    subject = resolve_subject(query.model, evidence)
    length, warning = length_asked(subject, query.sequence_length, evidence, query.mode)
    precisions = (_PLAIN, None) if query.precision is None else (canonical(query.precision),)
    question = _Question(subject, query.mode, precisions, query.batch_size, length)
    return question, [] if warning is None else [warning]


def _estimate(knowledge: Knowledge, question: _Question, target: Target, warnings: list[str]) -> Estimate:
    """The best supported figures for a target. Raises _Abstain."""
    evidence = knowledge.evidence
    cells = question.cells(target)
    known, reason = _compatibility(evidence, question, target)
    if known.state == "failed":
        raise _Abstain(f"does not run there: {reason}")
    found = measured(evidence, cells)
    if found is None:
        failures = [evidence.failures[cell] for cell in cells if cell in evidence.failures]
        if failures:
            raise _Abstain(f"this configuration failed there: {failures[0].reason} (event {failures[0].event_id})")
        device = next((d for d in reversed(evidence.devices) if d.target == target), None)
        if device is not None and not device.available:
            raise _Abstain(f"unavailable: {device.reason}")
        if device is not None and device.emulated:
            raise _Abstain("an emulated device: its speed tells nothing of the real one")
        if target.device_id is None:
            raise _Abstain("not measured, and the device is not named")
        found = min(
            filter(None, (scaled(evidence, cell) for cell in cells)), key=lambda e: _width(e.latency_ms), default=None
        )
        if found is None or _width(found.latency_ms) > WIDEST:
            try:
                found = _predicted(knowledge, question, target, warnings)
            except _Abstain as reason:
                # That it cannot be measured here says more than that it was not.
                raise _Abstain(runtime_for(target.hardware).refusal(_asked(question)) or str(reason)) from reason
    warnings += found.cautions
    return found


def _predicted(knowledge: Knowledge, question: _Question, target: Target, warnings: list[str]) -> Estimate:
    """What the predictor says, if it stands behind anything here. Raises _Abstain."""
    predictor, evidence, subject = knowledge.predictor, knowledge.evidence, question.subject
    if predictor is None:
        raise _Abstain(f"not measured, and {knowledge.no_predictor}")
    if question.mode != MODE:
        raise _Abstain(f"not measured in mode {question.mode}, and only {MODE} is predicted")
    cost = item_cost(subject.model_id, subject.spec, question.sequence_length, evidence.models)
    case = case_of(
        model=subject.model_id,
        family=subject.family or subject.model_id,
        cost=cost,
        mode=question.mode,
        batch_size=question.batch_size,
        size=question.sequence_length,
        precision=question.precisions[0],
        device=silicon_of(target, {device.target: device for device in evidence.devices}),
        hardware=target.hardware,
        backend=target.backend,
    )
    if isinstance(case, str):
        raise _Abstain(f"not measured, and {case}")
    [judgement] = predictor.judge([case])
    if not judgement.supported or judgement.latency_ms is None:
        raise _Abstain(f"not measured, and {judgement.reason}")
    if judgement.outside > 1:
        warnings.append(f"{target.hardware}: {judgement.outside:.1f} times beyond anything learned from.")
    return Estimate(
        provenance="predicted",
        latency_ms=judgement.latency_ms,
        memory_peak_mib=judgement.memory_peak_mib,
        event_ids=_nearest(evidence, target, case.work.flops),
        basis=judgement.reason,
    )


def _nearest(evidence: Evidence, target: Target, flops: float, count: int = 3) -> tuple[str, ...]:
    """Newest events of the cells on this target whose work is most like it."""
    distances = []
    for pooled in evidence.by_target.get(target, []):
        row = evidence.models.get(pooled.cell.model_id)
        if pooled.cell.mode == MODE and row is not None and row["flops_per_item"]:
            distance = abs(math.log(row["flops_per_item"] * pooled.cell.batch_size / flops))
            distances.append((distance, pooled.event_ids[0]))
    return tuple(event_id for _, event_id in sorted(distances)[:count])


def _recommendation(evidence: Evidence, question: _Question, target: Target, estimate: Estimate) -> Recommendation:
    latency = estimate.latency_ms
    items_ms = question.batch_size * 1e3
    return Recommendation(
        hardware=target.hardware,
        device=target.device,
        device_id=target.device_id,
        rank=1,
        latency_ms=latency,
        throughput_items_per_s=Interval(
            p50=items_ms / latency.p50,
            low=items_ms / latency.high if latency.high else None,
            high=items_ms / latency.low if latency.low else None,
            level=latency.level,
        ),
        memory_peak_mib=estimate.memory_peak_mib,
        provenance=estimate.provenance,
        evidence=list(estimate.event_ids),
        basis=estimate.basis,
        compatibility=_compatibility(evidence, question, target)[0],
    )


def _compatibility(evidence: Evidence, question: _Question, target: Target) -> tuple[Compatibility, str | None]:
    key = (question.subject.model_id, target.hardware, target.device_id, question.mode)
    return evidence.compatibility.get(key, (Compatibility(state="unknown"), None))


def _excluded(evidence: Evidence, question: _Question, target: Target, reason: str) -> Excluded:
    here = any(device.target == target and device.available for device in evidence.devices)
    return Excluded(
        hardware=target.hardware,
        device=target.device,
        device_id=target.device_id,
        reason=reason,
        suggestion=_command(question, target.hardware) if here else _elsewhere(question, target.hardware),
    )


def _elsewhere(question: _Question, hardware: str) -> str:
    command = _command(question, hardware)
    return f"on a host that has it: {command}" if command.startswith("accel bench") else command


def _asked(question: _Question) -> str:
    """The precision that a measurement would have to have."""
    return question.precisions[0] or _PLAIN


def _command(question: _Question, hardware: str) -> str:
    """What would settle the question: a measurement where the runtime can make it."""
    if question.subject.spec is None:
        return "accel migrate PATH, with results that hold it (this model is known by name only)"
    asked = _asked(question)
    if runtime_for(hardware).refusal(asked) is not None:
        able = [name for name, runtime in RUNTIMES.items() if asked in runtime.precisions]
        return f"ask for hardware that has {asked}: {', '.join(able) or 'none here has'}"
    length = "" if question.sequence_length is None else f" --sequence-length {question.sequence_length}"
    mode = "" if question.mode == MODE else f" --mode {question.mode}"
    precision = "" if asked == runtime_for(hardware).precision else f" --precision {asked}"
    return (
        f"accel bench run --models {question.subject.model_id} --hardware {hardware} "
        f"--batch-sizes {question.batch_size}{length}{mode}{precision}"
    )


def _ranking(objective: str) -> Callable[[Recommendation], float]:
    """Smaller is better: what can be relied on, so that a wide prediction does not outrank a measurement.

    That is the unfavourable limit of the interval, or p50 where there is no limit; unknown memory comes last.
    """

    def at_worst(interval: Interval) -> float:
        return interval.p50 if interval.high is None else interval.high

    if objective == "throughput":
        return lambda r: -(r.throughput_items_per_s.low or r.throughput_items_per_s.p50)
    if objective == "memory":
        return lambda r: math.inf if r.memory_peak_mib is None else at_worst(r.memory_peak_mib)
    return lambda r: at_worst(r.latency_ms)


def _width(interval: Interval) -> float:
    return interval.high / interval.low if interval.low and interval.high else math.inf
