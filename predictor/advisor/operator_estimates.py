"""Estimates by the operator predictor (`predictor.operators`), from the sum of a model's operators on a GPU."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby

from accel_platform.backends.registry import runtime_for
from predictor.advisor.candidates import OPERATOR_HARDWARE, Candidate
from predictor.advisor.model_estimates import Cell, nearest_neighbors
from predictor.advisor.resolved_query import ResolvedQuery
from predictor.advisor.scaling import Abstention, Estimate
from predictor.data.evidence import Evidence
from predictor.data.fast_path import require_slow_path
from predictor.data.model_resolution import ResolvedModel, resolve_operators
from predictor.data.number_widths import UNSTATED
from predictor.data.traced_models import InputSizes
from predictor.operators.device_rates import DeviceRates
from predictor.operators.kernels import BITS
from predictor.operators.predictor import OperatorPrediction, shipped_predictor
from predictor.operators.tables import ProfileTables
from predictor.operators.training import training_step

_MAX_FAST_OPERATORS = 8_192
"""Most operators times devices on the fast path: more take tens of milliseconds."""
_MIXED = "amp"
_PRODUCT_BITS = {**BITS, _MIXED: 16}
"""Width of matrix products in each supported precision; amp computes them in 16 bits."""
_MAX_REASONS = 4
"""Most kinds of operators that the reasons name."""
_MIN_SHARE = 0.02
"""Least share of the time of a kind that the reasons name."""
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


def predict_by_operators(cells: Sequence[Cell]) -> list[OperatorPrediction | Abstention]:
    """Return the operator predictor's prediction for each cell, or the reason for none, in their order.

    Cells of one query stand side by side; all of its devices are predicted in one call.
    """
    results: list[OperatorPrediction | Abstention] = []
    for _, of_query in groupby(cells, key=lambda cell: id(cell[0])):
        queries, candidates = zip(*of_query, strict=True)
        query = queries[0]
        rates = [_rates(query, candidate) for candidate in candidates]
        devices = [device for device in rates if isinstance(device, DeviceRates)]
        found = _predict_on_devices(query, devices) if devices else []
        if isinstance(found, str):
            results += [_abstain(found if isinstance(device, DeviceRates) else device) for device in rates]
            continue
        predictions = iter(found)
        results += [next(predictions) if isinstance(device, DeviceRates) else _abstain(device) for device in rates]
    return results


def operator_estimate(
    evidence: Evidence, query: ResolvedQuery, candidate: Candidate, prediction: OperatorPrediction
) -> Estimate:
    """Return a prediction as an estimate, with warnings and reasons."""
    target, cautions = candidate.target, []
    if not prediction.measured_device:
        cautions.append(
            f"no whole model was measured there in {query.precision}; kernels of other GPUs and its "
            "spec sheet stand for it."
        )
    if candidate.spec.dies > 1:
        cautions.append(f"one of its {candidate.spec.dies} dies, each of which PyTorch sees as a device.")
    if query.precision == _MIXED:
        cautions.append("amp is priced as float16; casts between it and float32 are left out.")
    if target.backend == UNSTATED:
        cautions.append("its files state no runtime, PyTorch is taken for it.")
    if prediction.host_bound:
        cautions.append(
            "so little work that it waits for the host, whose processor is unknown; larger batches tell more."
        )
    elif prediction.host_sets_upper_limit:
        cautions.append("its upper limit is what a slow host takes to issue its operators.")
    latency_ms = prediction.latency_ms
    if query.subject.draws_images:
        # The comparison is in docs/howto/evaluation.md.
        latency_ms = latency_ms.model_copy(update={"level": None})
        cautions.append(
            "of 29 published times of models that draw images 18 lay within such limits, the others were longer."
        )
    return Estimate(
        provenance="predicted",
        latency_ms=latency_ms,
        memory_peak_mib=None,
        event_ids=(),
        basis="the sum of its operators at the device's published rates, by kernels and models measured on other hosts",
        cautions=tuple(cautions),
        why=_reasons(prediction),
        neighbours=nearest_neighbors(evidence, query, target),
        host_limited=prediction.host_sets_upper_limit,
    )


def _abstain(reason: str) -> Abstention:
    return Abstention("unsupported", reason)


def _rates(query: ResolvedQuery, candidate: Candidate) -> DeviceRates | str:
    """Return the rates of a candidate's device, or the reason why the operator predictor does not cover the query."""
    target = candidate.target
    if query.mode == "generation":
        return "operators of generation are not priced yet"
    if target.hardware not in OPERATOR_HARDWARE:
        return f"operators are priced on {' and '.join(OPERATOR_HARDWARE)} only"
    if target.backend not in (runtime_for(target.hardware).backend, UNSTATED):
        return f"operators are priced under PyTorch only, not under {target.backend}"
    if not query.subject.traceable:
        return f"the operators of {query.subject.model_id} are unknown, only its cost is"
    if query.precision not in _PRODUCT_BITS:
        return f"operators are priced in {', '.join(_PRODUCT_BITS)}, not in {query.precision}"
    return candidate.rates


def _predict_on_devices(query: ResolvedQuery, devices: Sequence[DeviceRates]) -> list[OperatorPrediction] | str:
    """Return the query's prediction on each device, or the reason why its operators are unknown."""
    training = query.mode == "training"
    profile = _profile_tables(query.subject, query.sequence_length, query.sizes, training=training)
    if isinstance(profile, str):
        return profile
    tables = profile.at(query.batch_size)
    if sum(len(table.counts) for table in tables) * len(devices) > _MAX_FAST_OPERATORS:
        require_slow_path()
    return shipped_predictor().predict(tables, devices, _PRODUCT_BITS[query.precision], training=training)


@lru_cache(maxsize=256)
def _profile_tables(
    model: ResolvedModel, sequence_length: int | None, sizes: InputSizes, *, training: bool
) -> ProfileTables | str:
    profile = resolve_operators(model, sequence_length, sizes, training=training)
    if isinstance(profile, str):
        return profile
    return ProfileTables.of(training_step(profile) if training else profile)


def _reasons(prediction: OperatorPrediction) -> tuple[str, ...]:
    """Return texts like `matrix products: 71 % of the time (73 of them)`."""
    total = sum(share.milliseconds for share in prediction.shares)
    parts = [share for share in prediction.shares if share.milliseconds >= _MIN_SHARE * total][:_MAX_REASONS]
    return tuple(f"{_WORDS[p.kind]}: {p.milliseconds / total:.0%} of the time ({p.operators} of them)" for p in parts)
