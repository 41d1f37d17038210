"""Upgrade steps of stored payloads from version N to N+1 of their type. Add steps here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from accel_platform.errors import AccelError
from accel_platform.events.types import PAYLOADS

Json = dict[str, Any]

_MIB_PER_MB = 1_000_000 / 1_048_576


def _result_recorded_1(old: Json) -> Json:
    """Convert version 1, which has samples in float milliseconds and memory in decimal megabytes."""
    new = dict(old)
    samples_ms = new.pop("latency_samples_ms", None)
    if samples_ms:
        new["samples_ns"] = [round(ms * 1_000_000) for ms in samples_ms]
    memory_mb = new.pop("memory_peak_mb", None)
    if memory_mb is not None:
        new["memory_peak_mib"] = memory_mb * _MIB_PER_MB
    return new


UPCASTERS: dict[tuple[str, int], Callable[[Json], Json]] = {("ResultRecorded", 1): _result_recorded_1}
"""Step from (type, version) to version + 1."""


def upcast(type_: str, version: int, payload: Json) -> Json:
    """Lift a stored payload to the current version of its type.

    Raises AccelError for a type or version that this program does not know, because a newer one wrote it.
    """
    if type_ not in PAYLOADS:
        raise AccelError(f"The log holds an event of unknown type {type_!r}: upgrade accel-platform to read it.")
    current = PAYLOADS[type_].VERSION
    if version > current:
        raise AccelError(
            f"The log holds {type_} version {version}, this program knows {current}: upgrade accel-platform to read it."
        )
    for step in range(version, current):
        payload = UPCASTERS[type_, step](payload)
    return payload
