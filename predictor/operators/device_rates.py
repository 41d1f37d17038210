"""Rates of a GPU that limit its operators: sustained FLOPs by precision, bandwidth, compute units and cache."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt

from accel_platform.hardware.catalog import DeviceSpec, catalog, find_spec
from accel_platform.hardware.device_spec import peak_ops_per_s

_DVFS_EXPONENT = 0.5
"""Exponent of the sustained clock f over the available power P.

Dynamic power grows with f · V². Where the voltage V grows with f, f is proportional to P^(1/3); where V grows with the
square root of f, to P^(1/2). The latter is assumed.
"""
_SAME_CHIP_UNITS, _SAME_CHIP_RATES = 1.25, 1.5
"""Most that compute units and sustained rates of two cards with one chip differ by.

Those of the H100 SXM5 and PCIe differ by 1.16 and 1.38. The NVIDIA P4 sustains half the rate of the GeForce GTX 1080,
which has the same chip and more than twice the power, and a GeForce RTX 4090 half of an L40S's rate in 16 bits.
"""
_NEARBY_YEARS = 1
"""GPUs released at most this many years apart are of one generation of chips."""


@dataclass(frozen=True)
class DeviceRates:
    """Rates of one device; NaN where unknown."""

    name: str
    vendor: str
    architecture: str | None
    """Target that its code is compiled for, as in the spec sheet, such as `sm_80`."""
    flops: dict[int, float]
    """Sustained FLOPs per second of matrix products and convolutions, by the width of a number in bits (32 or 16).

    Those of 32 bits are in float32 throughout, not in TF32.
    """
    bandwidth: float
    """Bytes per second of the device's memory."""
    compute_units: float
    """Streaming multiprocessors (NVIDIA) or compute units (AMD)."""
    cache_bytes: float
    """Last-level cache."""

    def __hash__(self) -> int:
        """Return a hash without `flops`, because a dictionary has none."""
        return hash((self.name, self.bandwidth, self.compute_units))


@cache
def rates_of(name: str) -> DeviceRates | None:
    """Return the rates of a device of the spec sheet; None where it, or its operators' times, cannot be predicted."""
    spec = find_spec(name)
    rates = None if spec is None else device_rates(spec)
    return rates if isinstance(rates, DeviceRates) else None


def have_same_chip(one: DeviceRates, other: DeviceRates) -> bool:
    """Return whether two devices have the same chip and power for it, as far as spec sheets tell."""
    return (
        one.architecture is not None
        and one.architecture == other.architecture
        and _ratio(one.compute_units, other.compute_units) <= _SAME_CHIP_UNITS
        and all(_ratio(one.flops[bits], other.flops[bits]) <= _SAME_CHIP_RATES for bits in (32, 16))
    )


def _ratio(one: float, other: float) -> float:
    """Return the larger over the smaller of two numbers."""
    return one / other if one > other else other / one


@dataclass(frozen=True)
class RateColumns:
    """Rates of several devices as arrays of shape (devices, 1), which broadcast against (operators,)."""

    flops: dict[int, npt.NDArray[np.float64]]
    bandwidth: npt.NDArray[np.float64]
    compute_units: npt.NDArray[np.float64]
    cache_bytes: npt.NDArray[np.float64]

    @classmethod
    def of(cls, devices: Sequence[DeviceRates]) -> RateColumns:
        """Stack the rates of these devices."""
        rows = [(d.flops[32], d.flops[16], d.bandwidth, d.compute_units, d.cache_bytes) for d in devices]
        single, half, bandwidth, compute_units, cache_bytes = np.array(rows).T[..., None]
        return cls({32: single, 16: half}, bandwidth, compute_units, cache_bytes)


def device_rates(spec: DeviceSpec) -> DeviceRates | str:
    """Return the rates of a GPU, or the reason why its operators' times cannot be predicted.

    Of a card with several dies they are the rates of one die, because a process uses one.
    """
    spec = spec.one_die()
    if spec.kind != "gpu":
        return f"operators are priced on GPUs only, and {spec.name} is a {spec.kind}"
    single = peak_ops_per_s(spec, "float32")
    if single is None or spec.bandwidth_gb_s is None:
        return f"the peak rate or the bandwidth of {spec.name} is not published"
    if spec.compute_units is None:
        return f"the number of compute units of {spec.name} is not published"
    half = max(single, peak_ops_per_s(spec, "float16") or 0.0)
    headroom = power_headroom(spec)
    return DeviceRates(
        name=spec.name,
        vendor=spec.vendor or "",
        architecture=spec.architecture,
        flops={
            32: single * _sustained_share(headroom),
            16: half * _sustained_share(headroom * _matrix_unit_slowdown(spec)),
        },
        bandwidth=spec.bandwidth_gb_s * 1e9,
        compute_units=spec.compute_units,
        cache_bytes=_or_nan(spec.cache_mib) * 2**20,
    )


def _sustained_share(headroom: float) -> float:
    share: float = min(1.0, headroom) ** _DVFS_EXPONENT
    return share


@cache
def _matrix_unit_slowdown(spec: DeviceSpec) -> float:
    """Return how many times as fast the fastest matrix units of a GPU's architecture are, beside its vector units.

    It is 1 where no rates are published. The units of a GeForce RTX 4090, for example, sum up in float32 at half the
    rate of an L40S, which has the same chip. So they take about half the power at the same clock.
    """
    ratios = {
        other.name: other.peak_fp16_tensor_tflops / other.peak_fp32_tflops
        for other in (spec, *catalog())
        if other.architecture == spec.architecture and other.peak_fp16_tensor_tflops and other.peak_fp32_tflops
    }
    if spec.architecture is None or spec.name not in ratios:
        return 1.0
    return max(ratios.values()) / ratios[spec.name]


@cache
def power_headroom(spec: DeviceSpec) -> float:
    """Return a GPU's watts per peak TFLOPS over the median of its vendor's GPUs of the same years; 1 where unknown.

    Below 1 the card lacks the power to hold its peak clock. The NVIDIA T4, for example, has nearly the chip of the
    RTX 2080 and 70 W instead of 215 W: 0.45.
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
