"""What is known of a device that results name: the spec sheet, or what its host observed. Nothing is detected here."""

from __future__ import annotations

from accel_platform.hardware.catalog import DeviceSpec, cpu_spec, find_spec

_KINDS = {"cuda": "gpu", "rocm": "gpu", "mps": "gpu", "webgpu": "gpu", "qnn": "npu", "webnn": "npu"}
"""What kind of silicon a hardware name drives; every other one a CPU, unless its device is in the spec sheet."""


def silicon(
    name: str | None,
    identity: str,
    hardware: str,
    *,
    cores: int | None = None,
    clock_max_mhz: float | None = None,
    vector_bits: int | None = None,
    memory_mib: float | None = None,
) -> DeviceSpec:
    """The device called `name` under a hardware name; the rest is what its host observed, which tells more of a CPU.

    One that neither knows has its kind and its `identity` for a name, and nothing else: two machines may call different
    silicon the same. A CPU's peak is its cores times clock, lanes and operations (`cpu_spec`).
    """
    published = find_spec(name)
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
