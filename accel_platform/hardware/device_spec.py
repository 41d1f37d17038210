"""Specification of a device that results name: from the spec sheet, or from what its host observed."""

from __future__ import annotations

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
