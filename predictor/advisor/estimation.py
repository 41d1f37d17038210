"""The best supported figures for each question and candidate, or why there are none: measured beats scaled beats
predicted. No ranking and no I/O here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from accel_platform.backends.registry import RUNTIMES
from predictor.advisor.candidates import Candidate
from predictor.advisor.model_estimates import Wanted, predicted, queried_sample
from predictor.advisor.resolved_query import PLAIN, ResolvedQuery
from predictor.advisor.scaling import Estimate, measured, scaled
from predictor.advisor.serving_state import ServingState
from predictor.calibration.predictor import MAX_INTERVAL_RATIO
from predictor.data.evidence import CellKey, Evidence, Target
from predictor.data.samples import MAX_SPEED_LIMIT_RATIO, speed_limit_ratio
from predictor.schemas.responses import Compatibility, ExclusionCause

_UNKNOWN = Compatibility(state="unknown"), None


@dataclass(frozen=True)
class Abstention:
    """Nothing supports a figure here."""

    cause: ExclusionCause
    reason: str


def estimates(knowledge: ServingState, wanted: Sequence[Wanted]) -> list[Estimate | Abstention]:
    """One for each question and candidate, in their order; the learned model is asked once about all that need it."""
    found: list[Estimate | Abstention | None] = [_from_evidence(knowledge.evidence, *pair) for pair in wanted]
    open_ = [i for i, answer in enumerate(found) if answer is None]
    for i, said in zip(open_, predicted(knowledge, [wanted[i] for i in open_]), strict=True):
        asked, candidate = wanted[i]
        if isinstance(said, Estimate):
            found[i] = _in_precision(knowledge.evidence, asked, candidate, said)
        else:
            found[i] = _abstention(asked, candidate, *said)
    return [
        _believed(knowledge.evidence, pair, said) for pair, said in zip(wanted, found, strict=True) if said is not None
    ]


def _believed(evidence: Evidence, pair: Wanted, said: Estimate | Abstention) -> Estimate | Abstention:
    """Less what no device could do: others' figures are as good as their clocks, and predictions know no limit."""
    if isinstance(said, Abstention) or said.own:
        return said
    asked, candidate = pair
    case = said.case or queried_sample(evidence, as_found(asked, said), candidate)
    if isinstance(case, str):
        return said
    latency = said.latency_ms
    # Of a pool of others' figures all have to be possible.
    least = latency.low if said.provenance == "measured" and latency.low is not None else latency.p50
    times = speed_limit_ratio(case, least)
    what = f"{least:.3g} ms would be {times:.2g} times faster than its published rates allow"
    if times > MAX_SPEED_LIMIT_RATIO:
        return Abstention("unsupported", f"what is {said.provenance} there cannot be: {what}")
    if times > 1 and said.provenance == "predicted":
        return replace(said, cautions=(*said.cautions, f"{candidate.target.label}: {what}."))
    return said


def as_found(asked: ResolvedQuery, said: Estimate) -> ResolvedQuery:
    """The question in the precision of what answers it: figures that state none are of what is then assumed."""
    return replace(asked, precisions=(None,)) if said.unstated else asked


def compatibility_of(evidence: Evidence, asked: ResolvedQuery, target: Target) -> tuple[Compatibility, str | None]:
    """What the matrix says of the model there, and why where it failed."""
    key = (asked.subject.model_id, target.hardware, target.device_id, asked.mode)
    return evidence.compatibility.get(key, _UNKNOWN)


def _from_evidence(evidence: Evidence, asked: ResolvedQuery, candidate: Candidate) -> Estimate | Abstention | None:
    """What measurements say; None where the learned model has to be asked."""
    if candidate.target not in evidence.by_target and not candidate.here:
        return _too_large(asked, candidate)
    known, reason = compatibility_of(evidence, asked, candidate.target)
    if known.state == "failed":
        return Abstention("measured_failure", f"does not run there: {reason}")
    cells = asked.cells(candidate.target)
    found = measured(evidence, cells) or _ruled_out(evidence, asked, candidate, cells)
    if found is not None or asked.subject.model_id not in evidence.by_model:
        return found
    best = min(
        filter(None, (scaled(evidence, cell) for cell in cells)), key=lambda e: e.latency_ms.high_over_low, default=None
    )
    return None if best is None or best.latency_ms.high_over_low > MAX_INTERVAL_RATIO else best


def _ruled_out(
    evidence: Evidence, asked: ResolvedQuery, candidate: Candidate, cells: Sequence[CellKey]
) -> Abstention | None:
    """Why nothing can be said of what was not measured, or None."""
    target = candidate.target
    failure = next((evidence.failures[cell] for cell in cells if cell in evidence.failures), None)
    if failure is not None:
        reason = f"this configuration failed there: {failure.reason} (event {failure.event_id})"
        return Abstention("measured_failure", reason)
    device = evidence.by_device.get(target)
    if device is not None and not device.available:
        return Abstention("unavailable", f"unavailable: {device.reason}")
    if device is not None and device.emulated:
        return Abstention("unavailable", "an emulated device: its speed tells nothing of the real one")
    if target.device_id is None:
        return Abstention("unsupported", "not measured, and the device is not named")
    return _too_large(asked, candidate)


def _abstention(asked: ResolvedQuery, candidate: Candidate, cause: ExclusionCause, reason: str) -> Abstention:
    """That it cannot be measured there in this precision says more than that it was not."""
    if candidate.target.hardware not in RUNTIMES:
        # Others' files may tell of hardware that nothing here runs on.
        return Abstention(
            "no_runtime", f"not measured, and no runtime of this platform drives {candidate.target.hardware}"
        )
    refusal = _refusal(asked, candidate.target)
    return Abstention(cause, reason) if refusal is None else Abstention("no_runtime", refusal)


def _refusal(asked: ResolvedQuery, target: Target) -> str | None:
    """Why the platform's own runtime there has not the precision; None where it has, and for runtimes of others."""
    runtime = RUNTIMES.get(target.hardware)
    return runtime.refusal(asked.precision) if runtime and runtime.backend == target.backend else None


def _in_precision(
    evidence: Evidence, asked: ResolvedQuery, candidate: Candidate, said: Estimate
) -> Estimate | Abstention:
    """A prediction, with a warning where nothing was measured so; none where the runtime has no such precision."""
    target = candidate.target
    tried = evidence.memoize(
        "precisions", lambda: {(c.target.backend, c.precision or PLAIN) for c in evidence.summaries}
    )
    if (target.backend, asked.precision) in tried:
        return said
    refusal = _refusal(asked, target)
    if refusal is not None:
        return Abstention("no_runtime", refusal)
    others = f"{target.label}: nothing in {asked.precision} was measured with {target.backend}, others stand for it."
    return replace(said, cautions=(*said.cautions, others))


def _too_large(asked: ResolvedQuery, candidate: Candidate) -> Abstention | None:
    """Weights, and for training their gradients too, have to be in memory at once."""
    weights, spec = asked.weights_mib, candidate.spec
    if weights is None or spec.memory_gib is None:
        return None
    needs = weights * (2 if asked.mode == "training" else 1) / 1024
    if needs <= spec.memory_gib:
        return None
    what = "weights and gradients" if asked.mode == "training" else "weights"
    return Abstention(
        "does_not_fit",
        f"does not fit in memory: its {what} alone take {needs:.3g} GiB in {asked.precision}, "
        f"{candidate.target.device} has {spec.memory_gib:g} GiB",
    )
