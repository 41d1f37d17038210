"""Estimates by the processor predictor (`predictor.processors`), from the published rates of a processor."""

from __future__ import annotations

from predictor.advisor.model_estimates import Cell, nearest_neighbors, queried_sample
from predictor.advisor.scaling import Abstention, Estimate
from predictor.data.evidence import Evidence
from predictor.processors.predictor import TERMS, ProcessorPrediction, shipped_predictor

_MIN_SHARE = 0.02
"""Least share of the time of a term that the reasons name."""


def predict_on_processor(evidence: Evidence, cell: Cell) -> ProcessorPrediction | Abstention:
    """Return the prediction for a cell on a processor, or the reason for none."""
    query, candidate = cell
    sample = queried_sample(evidence, query, candidate)
    if isinstance(sample, str):
        return Abstention("unsupported", sample)
    predictor = shipped_predictor()
    reason = predictor.unsupported_reason(sample)
    return predictor.predict(sample) if reason is None else Abstention("unsupported", reason)


def processor_estimate(evidence: Evidence, cell: Cell, prediction: ProcessorPrediction) -> Estimate:
    """Return a prediction as an estimate, with warnings and reasons."""
    query, candidate = cell
    cautions = ["nothing was measured there with this runtime: its published rates stand for it."]
    if not prediction.vendor_measured:
        maker = (
            f"no processor of {candidate.spec.vendor} was learned from"
            if candidate.spec.vendor
            else "its maker is unknown"
        )
        cautions.append(f"{maker}, so nobody knows how often the limits hold.")
    if not prediction.batch_measured:
        cautions.append(f"no batch of {query.batch_size} was learned from.")
    shares = sorted(zip(prediction.shares, TERMS, strict=True), reverse=True)
    others = "one other processor" if prediction.processors == 1 else f"{prediction.processors} other processors"
    return Estimate(
        provenance="predicted",
        latency_ms=prediction.latency_ms,
        memory_peak_mib=None,
        event_ids=(),
        basis=f"its work at the processor's published rates, by what {others} took",
        cautions=tuple(cautions),
        why=tuple(f"{term}: {share:.0%} of the time" for share, term in shares if share >= _MIN_SHARE),
        neighbours=nearest_neighbors(evidence, query, candidate.target),
    )
