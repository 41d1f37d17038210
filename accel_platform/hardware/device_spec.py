"""Specifications of the devices that results name, and their peak rates by precision."""

from __future__ import annotations

import re
from functools import cache

from accel_platform.hardware.catalog import DeviceSpec, cpu_spec, find_spec

_KINDS = {"cuda": "gpu", "rocm": "gpu", "mps": "gpu", "webgpu": "gpu", "qnn": "npu", "webnn": "npu"}
"""Kind of silicon that a hardware name drives. Others drive a CPU, unless their device is in the spec sheet."""


def device_spec(
    name: str | None,
    identity: str,
    hardware: str,
    *,
    cores: int | None = None,
    clock_max_mhz: float | None = None,
    vector_bits: int | None = None,
    memory_mib: float | None = None,
) -> DeviceSpec:
    """Return the specification of the device called `name` under a hardware name.

    The other arguments are the host's observations. A device unknown to both has its kind and its `identity` as a name
    and no figures, because two machines may call different silicon the same. A CPU's peak follows from its cores
    (`cpu_spec`).
    """
    published = find_spec(name)
    if hardware == "cpu" and published is not None and published.kind != "cpu":
        published = None  # because the processor beside a GPU or NPU bears the name of their board
    if published is not None and published.kind != "cpu":
        return published
    if cores is not None:
        return cpu_spec(
            identity, cores=cores, clock_max_mhz=clock_max_mhz, vector_bits=vector_bits, memory_mib=memory_mib
        )
    if published is not None:
        return published
    nothing = cpu_spec(identity, cores=None, clock_max_mhz=None, vector_bits=None, memory_mib=None)
    return DeviceSpec(**{**vars(nothing), "kind": _KINDS.get(hardware, "cpu"), "source": "nothing known"})


_FP32 = ("peak_fp32_matrix_tflops", "peak_fp32_tflops")
_FP16 = ("peak_fp16_tensor_tflops", *_FP32)
_FP8 = ("peak_fp8_tensor_tflops", *_FP16)
_RATES = {
    "float32": _FP32,
    "tf32": ("peak_tf32_tensor_tflops", *_FP32),
    "float8": _FP8,
    "e4m3": _FP8,
    "e5m2": _FP8,
    "int8": ("peak_int8_tensor_tops", *_FP16),
    "float4": ("peak_fp4_tensor_tflops", *_FP8),
}


def peak_ops_per_s(spec: DeviceSpec, precision: str) -> float | None:
    """Return the operations per second at which a device computes in a precision; None where none is published.

    Rates are dense, and of matrix units where these have the format: `float32` is full FP32, never TF32. A device
    without a published rate computes a format in the next wider one. `w8a16` and weights of 4 bits (`int4`) compute in
    16 bits.
    """
    for column in _columns(precision):
        rate: float | None = getattr(spec, column)
        if rate is not None:
            return rate * 1e12
    return None


@cache
def _columns(precision: str) -> tuple[str, ...]:
    """Return the columns of the spec sheet that state a precision's rate, narrowest first; 64 bits have none."""
    name = precision.lower()
    if name in _RATES:
        return _RATES[name]
    mixed = re.search(r"a(16|8|4)(?!\d)", name)
    bits = mixed or re.search(r"(64|32|16|8|4)", name)
    width = int(bits.group(1)) if bits else 16
    floating = re.search(r"fp|float", name) is not None
    if width == 64:
        return ()
    if width == 32:
        return _FP32
    if width == 8:
        return _RATES["float8" if floating else "int8"]
    return _RATES["float4"] if width == 4 and floating else _FP16
