"""Estimates of the operator predictor, for models and devices that the learned predictor does not support."""

from __future__ import annotations

from functools import lru_cache

from accel_platform.backends.registry import runtime_for
from accel_platform.hardware.catalog import DeviceSpec
from accel_platform.workloads.model_catalog import ModelSpec
from predictor.advisor.candidates import Candidate
from predictor.advisor.model_estimates import nearest_neighbors
from predictor.advisor.resolved_query import ResolvedQuery
from predictor.advisor.scaling import Abstention, Estimate
from predictor.data.evidence import Evidence
from predictor.data.fast_path import require_slow_path
from predictor.data.traced_models import InputSizes, traced_operators
from predictor.operators.device_rates import device_rates
from predictor.operators.kernels import BITS
from predictor.operators.predictor import OperatorPrediction, shipped_predictor
from predictor.operators.training_step import training_step

_HARDWARE = ("cuda", "rocm")
"""Hardware names whose runtime, PyTorch, computes the kernels that were learned from."""
_MAX_REASONS = 4
_MIN_SHARE = 0.02
_WORDS = {
    "linear": "matrix products",
    "batched_matmul": "batched products",
    "convolution": "convolutions",
    "attention": "attention",
    "softmax": "softmax",
    "layer_norm": "norms",
    "elementwise": "element-wise operators",
    "embedding": "embeddings",
}


def operator_estimate(evidence: Evidence, query: ResolvedQuery, candidate: Candidate) -> Estimate | Abstention:
    """Return the latency of a model as the sum of its operators, or the reason why it cannot be told."""
    target, spec, bits = candidate.target, query.subject.spec, BITS.get(query.precision)
    if query.mode == "generation":
        return Abstention("unsupported", "operators of generation are not priced yet")
    if target.hardware not in _HARDWARE or target.backend != runtime_for(target.hardware).backend:
        return Abstention("unsupported", f"no kernels of {target.backend} were learned from")
    if spec is None:
        return Abstention("unsupported", f"the operators of {query.subject.model_id} are unknown, only its cost is")
    if bits is None:
        return Abstention("unsupported", f"operators are priced in {', '.join(BITS)}, not in {query.precision}")
    prediction = _predict(
        spec, query.sequence_length, query.sizes, query.batch_size, bits, candidate.spec, query.mode == "training"
    )
    if isinstance(prediction, str):
        return Abstention("unsupported", prediction)
    cautions = []
    if not prediction.measured_device:
        cautions.append(f"{target.label}: nothing was measured on the device, its spec sheet stands for it.")
    if prediction.host_bound:
        cautions.append(f"{target.label}: so little work that it waits for the host, whose processor is unknown.")
    return Estimate(
        provenance="predicted",
        latency_ms=prediction.latency_ms,
        memory_peak_mib=None,
        event_ids=(),
        basis="the sum of its operators at the device's published rates, by kernels and models measured on other hosts",
        cautions=tuple(cautions),
        why=_reasons(prediction),
        neighbours=nearest_neighbors(evidence, query, target),
    )


@lru_cache(maxsize=4096)
def _predict(
    spec: ModelSpec,
    sequence_length: int | None,
    sizes: InputSizes,
    batch_size: int,
    bits: int,
    device: DeviceSpec,
    training: bool,
) -> OperatorPrediction | str:
    """Return the prediction for one cell, or the reason why there is none."""
    require_slow_path()
    rates = device_rates(device)
    if isinstance(rates, str):
        return rates
    profile = traced_operators(spec, sequence_length, sizes, training=training)
    if isinstance(profile, str):
        return profile
    operators = profile.at(batch_size)
    if training:
        operators = training_step(operators, profile.parameters)
    return shipped_predictor().predict(operators, rates, bits)


def _reasons(prediction: OperatorPrediction) -> tuple[str, ...]:
    """Return texts like `matrix products: 71 % of the time (73 of them)`."""
    total = sum(share.milliseconds for share in prediction.shares)
    parts = [share for share in prediction.shares if share.milliseconds >= _MIN_SHARE * total][:_MAX_REASONS]
    return tuple(f"{_WORDS[p.kind]}: {p.milliseconds / total:.0%} of the time ({p.count} of them)" for p in parts)
