"""Builders of typed events from the answers of worker processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accel_platform.analysis.stats.medians import disagreement_reason, median_ns
from accel_platform.backends.detect import fingerprint_of
from accel_platform.bench.measure import authenticity
from accel_platform.bench.measure.contention import Contention, contention_reason
from accel_platform.bench.measure.failures import FailureReason
from accel_platform.bench.measure.observation import slowdown_reason
from accel_platform.bench.measure.sampling import Sampling, noise_reason
from accel_platform.bench.measure.verification import TOLERANCE
from accel_platform.bench.plan.plan import Cell
from accel_platform.events.types import DeviceObserved, ResultRecorded, VerificationRecorded


def measured_result(
    cell: Cell,
    device: DeviceObserved,
    answer: dict[str, Any],
    loaded: dict[str, Any],
    *,
    threads: int,
    sampling: Sampling,
    earlier_ns: Sequence[float],
) -> ResultRecorded:
    """Return the result of a cell that ran; wrong outputs, an unconfirmed device or fabricated samples make it a
    failure.

    `earlier_ns` are the medians that earlier processes measured for this cell, the newest last.
    """
    samples = answer["samples_ns"]
    why_noisy = (
        noise_reason(samples, sampling)
        or contention_reason(Contention(**answer["contention"]))
        or slowdown_reason(answer["after"])
        or disagreement_reason([*earlier_ns, median_ns(samples)])
    )
    cause = rejection_reason(answer)
    return ResultRecorded(
        **_identity_fields(cell, device, threads),
        status=cause.status if cause else "ok",
        failure_class=cause.failure_class if cause else None,
        reason=cause.reason if cause else None,
        samples_ns=tuple(samples),
        iterations=len(samples),
        warmup_iterations=answer["warmup_count"],
        first_ms=answer["first_ms"],
        load_ms=loaded["load_ms"],
        compile_ms=answer["compile_ms"],
        memory_peak_mib=answer["memory_peak_mib"],
        memory_device_peak_mib=answer["memory_device_peak_mib"],
        **answer["figures"],
        **_energy_fields(cell, answer),
        noisy=why_noisy is not None,
        noisy_reason=why_noisy,
        environment={
            "threads": threads,
            "import_ms": loaded["import_ms"],
            "runtimes": loaded["versions"],
            "stopped": answer["stopped"],
            "contention": answer["contention"],
            "disturbed_before": answer["disturbed_before"],
            "before": answer["before"],
            "after": answer["after"],
            "energy": answer["energy"],
            "device_confirmed": answer["confirmed"] and answer["confirmed"]["seen"],
            "verified": answer["verdict"] is not None,
            **answer["notes"],
            **_peak_reason(answer),
            **_placement_fields(answer["placement"]),
            # Share of the matrix products and convolutions that ran in the requested precision.
            **({} if answer["precision_share"] is None else {"precision_share": answer["precision_share"]}),
        },
    )


def verification_event(
    cell: Cell, device: DeviceObserved, verdict: dict[str, Any], *, reference: str
) -> VerificationRecorded:
    """Return the verification of a cell's outputs, from the fields of a `VerificationResult`."""
    found = dict(verdict)
    if (compared := found.pop("compared_items", None)) is not None:
        reference = f"{reference}, {compared} of {cell.batch_size} items"
    return VerificationRecorded(
        model_id=cell.model.model_id,
        hardware=device.hardware,
        choice=device.choice,
        backend=device.backend,
        device_id=device.device_id,
        precision=cell.precision,
        batch_size=cell.batch_size,
        sequence_length=cell.sequence_length,
        mode=cell.mode,
        processes=_processes(cell),
        weights_sha256=cell.weights_sha256,
        reference=reference,
        **found,
    )


def failed_verification(cell: Cell, device: DeviceObserved, reason: str, *, reference: str) -> VerificationRecorded:
    """Return the verification of a cell without outputs."""
    verdict = {"passed": False, "tolerance": TOLERANCE[cell.precision], "constant_output": False, "reason": reason}
    return verification_event(cell, device, verdict, reference=reference)


def retraction(result: ResultRecorded, reason: str, *, reference: str) -> VerificationRecorded:
    """Return the failed verification that invalidates a result in the log."""
    assert result.precision is not None
    assert result.batch_size is not None
    return VerificationRecorded(
        model_id=result.model_id,
        hardware=result.hardware,
        choice=result.choice,
        backend=result.backend,
        device_id=result.device_id,
        precision=result.precision,
        batch_size=result.batch_size,
        sequence_length=result.sequence_length,
        mode=result.mode,
        processes=result.processes,
        weights_sha256=result.weights_sha256,
        passed=False,
        reference=reference,
        tolerance=TOLERANCE[result.precision],
        constant_output=False,
        reason=reason,
    )


def rejection_reason(answer: dict[str, Any]) -> FailureReason | None:
    """Return why a worker's measurement does not count; None where it does."""
    verdict = answer["verdict"]
    if verdict is not None and not verdict["passed"]:
        return FailureReason("failed", "wrong_output", verdict["reason"])
    if answer["unfounded"] is not None:
        return FailureReason("failed", "wrong_output", answer["unfounded"])
    if evidence := authenticity.misplaced_reason(answer["confirmed"], answer["placement"]):
        return FailureReason("failed", "device_not_confirmed", evidence)
    clock_step_ns = answer.get("notes", {}).get("clock_step_ns", 1)
    if evidence := authenticity.fabricated_reason(answer.get("samples_ns", ()), clock_step_ns):
        return FailureReason("failed", "fake", evidence)
    return None


def failed_result(cell: Cell, device: DeviceObserved, cause: FailureReason, *, threads: int) -> ResultRecorded:
    """Return the result of a cell without a measurement."""
    return ResultRecorded(
        **_identity_fields(cell, device, threads),
        status=cause.status,
        failure_class=cause.failure_class,
        reason=cause.reason,
    )


def _energy_fields(cell: Cell, answer: dict[str, Any]) -> dict[str, Any]:
    energy = answer["energy"]
    if "joules" not in energy:
        return {}
    items = len(answer["samples_ns"]) * cell.batch_size * cell.processes
    return {"energy_j_per_item": energy["joules"] / items, "energy_source": energy["source"]}


def _peak_reason(answer: dict[str, Any]) -> dict[str, str]:
    """Return why the result has no peak memory; empty where it has one."""
    reason = answer.get("memory_peak_unavailable")
    return {"memory_peak": f"unavailable: {reason}"} if reason else {}


def _placement_fields(placement: dict[str, Any] | None) -> dict[str, Any]:
    """Return how much of the graph ran on the requested device; empty where the runtime divides no graph."""
    if placement is None:
        return {}
    return {
        "accelerated_nodes": placement["accelerated"],
        "accelerated_nodes_share": placement["accelerated_share"],
        "nodes_elsewhere": placement["elsewhere"],
    }


def _processes(cell: Cell) -> int | None:
    return cell.processes if cell.mode == "training" else None


def _identity_fields(cell: Cell, device: DeviceObserved, threads: int) -> dict[str, Any]:
    return {
        "model_id": cell.model.model_id,
        "model_family": cell.model.family,
        "hardware": device.hardware,
        "choice": device.choice,
        "backend": device.backend,
        "provenance": "emulated" if device.emulated else "measured",
        "mode": cell.mode,
        "precision": cell.precision,
        "batch_size": cell.batch_size,
        "sequence_length": cell.sequence_length,
        "weights_source": cell.model.weights.source if cell.model.weights else None,
        "weights_sha256": cell.weights_sha256,
        "device_id": device.device_id,
        "device_name": device.name,
        "fingerprint": fingerprint_of(device, threads=threads),
        "threads": threads,
        "processes": _processes(cell),
    }
