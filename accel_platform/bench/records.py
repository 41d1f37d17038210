"""From what the children say to typed events: pure assembly. Nothing is measured, stored or decided here."""

from __future__ import annotations

from typing import Any

from accel_platform.bench.contention import Contention, crowded
from accel_platform.bench.failures import Why
from accel_platform.bench.plan import Cell
from accel_platform.bench.sampling import Sampling, noise
from accel_platform.events.types import DeviceObserved, ModelDescribed, ResultRecorded, VerificationRecorded
from accel_platform.hardware.detect import fingerprint_of
from accel_platform.workloads.cost import cost_of
from accel_platform.workloads.families import ModelSpec


def described(spec: ModelSpec) -> ModelDescribed:
    """A model's identity and its cost for one item at its default input shape; traces the model, about a second."""
    cost = cost_of(spec, batch_size=1)
    return ModelDescribed(
        model_id=spec.model_id,
        architecture=spec.architecture,
        family=spec.family,
        modality=spec.modality,
        aliases=spec.aliases,
        config=spec.config,
        parameters=cost.parameters,
        layers=cost.layers,
        flops_per_item=cost.flops,
        activation_bytes_per_item=cost.activation_bytes,
    )


def measured(
    cell: Cell,
    device: DeviceObserved,
    answer: dict[str, Any],
    loaded: dict[str, Any],
    *,
    threads: int,
    sampling: Sampling,
    reference: str,
) -> tuple[ResultRecorded, VerificationRecorded]:
    """The result of a cell that ran, and the judgement of its outputs; wrong outputs make the result a failure."""
    verdict = answer["verdict"]
    why_noisy = noise(answer["samples_ns"], sampling) or crowded(Contention(**answer["contention"]))
    verification = VerificationRecorded(
        model_id=cell.model.model_id,
        hardware=cell.hardware,
        backend=device.backend,
        device_id=device.device_id,
        precision=cell.precision,
        batch_size=cell.batch_size,
        sequence_length=cell.sequence_length,
        reference=reference,
        **verdict,
    )
    result = ResultRecorded(
        **_identity(cell, device, threads),
        status="ok" if verdict["passed"] else "failed",
        failure_class=None if verdict["passed"] else "wrong_output",
        reason=verdict["reason"],
        samples_ns=tuple(answer["samples_ns"]),
        iterations=len(answer["samples_ns"]),
        warmup_iterations=answer["warmup_count"],
        first_ms=answer["first_ms"],
        load_ms=loaded["load_ms"],
        compile_ms=answer["compile_ms"],
        memory_peak_mib=answer["memory_peak_mib"],
        memory_device_peak_mib=answer["memory_device_peak_mib"],
        noisy=why_noisy is not None,
        noisy_reason=why_noisy,
        environment={
            "threads": threads,
            "import_ms": loaded["import_ms"],
            "runtimes": loaded["versions"],
            "stopped": answer["stopped"],
            "contention": answer["contention"],
            "before": answer["before"],
            "after": answer["after"],
            **answer["notes"],
            **_placement(answer["placement"]),
            # Of the matrix products and convolutions, those that ran in the precision asked.
            **({} if answer["precision_share"] is None else {"precision_share": answer["precision_share"]}),
        },
    )
    return result, verification


def failed(cell: Cell, device: DeviceObserved, why: Why, *, threads: int) -> ResultRecorded:
    """The result of a cell that has no measurement."""
    return ResultRecorded(
        **_identity(cell, device, threads), status=why.status, failure_class=why.failure_class, reason=why.reason
    )


def _placement(placement: dict[str, Any] | None) -> dict[str, Any]:
    """How much of the graph ran on the device asked for; nothing where the runtime has no graph to divide."""
    if placement is None:
        return {}
    return {
        "accelerated_nodes": placement["accelerated"],
        "accelerated_nodes_share": placement["accelerated_share"],
        "nodes_elsewhere": placement["elsewhere"],
    }


def _identity(cell: Cell, device: DeviceObserved, threads: int) -> dict[str, Any]:
    return {
        "model_id": cell.model.model_id,
        "model_family": cell.model.family,
        "hardware": cell.hardware,
        "backend": device.backend,
        "provenance": "emulated" if device.emulated else "measured",
        "mode": cell.mode,
        "precision": cell.precision,
        "batch_size": cell.batch_size,
        "sequence_length": cell.sequence_length,
        "device_id": device.device_id,
        "device_name": device.name,
        "fingerprint": fingerprint_of(device, threads=threads),
        "threads": threads,
    }
