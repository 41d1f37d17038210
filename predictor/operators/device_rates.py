"""Rates of a device that bound its operators: compute by precision, bandwidth, cache, units, sustained power."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from accel_platform.hardware.catalog import DeviceSpec, catalog
from accel_platform.hardware.peaks import peak_ops_per_s

_DVFS_EXPONENT = 0.5
"""Sustained clock by power: dynamic power grows with f · V², and V with f, so that f grows with the square to the cube
root of the power."""
_NEARBY_YEARS = 1


@dataclass(frozen=True)
class DeviceRates:
    """What bounds operators on one device; NaN where unknown."""

    name: str
    vendor: str
    architecture: str | None
    """What its code is compiled for, as the spec sheet has it."""
    flops: dict[int, float]
    """Sustained FLOPs per second of products and convolutions, by bits of a number; no float32 in TF32."""
    bandwidth: float
    """Bytes per second."""
    compute_units: float
    cache_bytes: float


@dataclass(frozen=True)
class RateColumns:
    """The same of several devices: columns with a row for each."""

    flops: dict[int, npt.NDArray[np.float64]]
    bandwidth: npt.NDArray[np.float64]
    compute_units: npt.NDArray[np.float64]
    cache_bytes: npt.NDArray[np.float64]

    @classmethod
    def of(cls, devices: Sequence[DeviceRates]) -> RateColumns:
        """Return the rates of these devices."""

        rows = [(d.flops[32], d.flops[16], d.bandwidth, d.compute_units, d.cache_bytes) for d in devices]
        single, half, bandwidth, compute_units, cache_bytes = np.array(rows).T[..., None]
        return cls({32: single, 16: half}, bandwidth, compute_units, cache_bytes)


def device_rates(spec: DeviceSpec) -> DeviceRates | str:
    """Return the rates of a GPU, of one die of a card with several, or the reason why operators cannot be priced."""
    spec = spec.one_die()
    if spec.kind != "gpu":
        return f"operators are priced on GPUs only, and {spec.name} is a {spec.kind}"
    single = peak_ops_per_s(spec, "float32")
    if single is None or spec.bandwidth_gb_s is None:
        return f"the peak rate or the bandwidth of {spec.name} is not published"
    if spec.compute_units is None:
        return f"the number of compute units of {spec.name} is not published"
    half = max(single, peak_ops_per_s(spec, "float16") or 0.0)
    sustained = min(1.0, power_headroom(spec)) ** _DVFS_EXPONENT
    return DeviceRates(
        name=spec.name,
        vendor=spec.vendor or "",
        architecture=spec.architecture,
        flops={32: single * sustained, 16: half * sustained},
        bandwidth=spec.bandwidth_gb_s * 1e9,
        compute_units=spec.compute_units,
        cache_bytes=_or_nan(spec.cache_mib) * 2**20,
    )


@cache
def power_headroom(spec: DeviceSpec) -> float:
    """Return the power per peak FLOP of a GPU over the median of its maker's GPUs of these years; 1 where unknown.

    A card of 70 W with the chip of a card of 215 W cannot hold the same clock: it has a headroom of a third.
    """
    own = _watts_per_tflop(spec)
    if own is None or spec.release_year is None:
        return 1.0
    others = [
        watts
        for other in catalog()
        if other.kind == "gpu"
        and other.vendor == spec.vendor
        and other.release_year is not None
        and abs(other.release_year - spec.release_year) <= _NEARBY_YEARS
        and (watts := _watts_per_tflop(other)) is not None
    ]
    return own / statistics.median(others) if others else 1.0


def _watts_per_tflop(spec: DeviceSpec) -> float | None:
    return None if not spec.tdp_w or not spec.peak_fp32_tflops else spec.tdp_w / spec.peak_fp32_tflops


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else float(value)
