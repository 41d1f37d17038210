"""Events that tests put into logs. Their figures are made up: they test the software and are no results."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from accel_platform.events import codec
from accel_platform.events.types import Event, Payload, ResultRecorded, VerificationRecorded

if TYPE_CHECKING:
    from migrations.pipeline.document_reader import Reading


def result(**changes: Any) -> ResultRecorded:
    """A plausible measured result; `changes` replace fields."""
    fields: dict[str, Any] = {
        "model_id": "bert-base",
        "model_family": "bert",
        "hardware": "cpu",
        "backend": "pytorch",
        "status": "ok",
        "provenance": "measured",
        "precision": "float32",
        "batch_size": 1,
        "sequence_length": 128,
        "device_id": "cpu-test",
        "device_name": "Test CPU",
        "fingerprint": "test",
        "samples_ns": tuple(20_000_000 + 10_000 * i for i in range(12)),
        "memory_peak_mib": 700.5,
    }
    return ResultRecorded(**{**fields, **changes})


def verification(**changes: Any) -> VerificationRecorded:
    """A passed verification of the cell that `result()` describes."""
    fields: dict[str, Any] = {
        "model_id": "bert-base",
        "hardware": "cpu",
        "backend": "pytorch",
        "device_id": "cpu-test",
        "precision": "float32",
        "batch_size": 1,
        "sequence_length": 128,
        "passed": True,
        "reference": "pytorch-cpu-float32",
        "relative_error": 1e-6,
        "tolerance": 1e-3,
        "constant_output": False,
    }
    return VerificationRecorded(**{**fields, **changes})


def event(payload: Any, **changes: Any) -> Event:
    """The payload in an envelope from source `test`."""
    return Event.of(payload, **{"source": "test", "host_id": "host-test", "run_id": "run-test", **changes})


def payloads(reading: Reading) -> list[Payload]:
    """What an imported document adds to the log beside its ledger entry."""
    return [event.payload for event in codec.from_arrow(codec.rows_to_arrow(reading.rows).to_batches())]
