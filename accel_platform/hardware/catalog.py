"""The public spec sheet: peak rates, bandwidth, memory and price of known devices, and a CPU's peak from its cores.

Nothing here looks at this machine: `detect.py` finds what a host really has.
"""

from __future__ import annotations

import csv
import difflib
import re
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib.resources import files
from itertools import takewhile
from typing import Any

from accel_platform.errors import InvalidInput, did_you_mean
from accel_platform.hardware.device_names import split_count, with_count
from accel_platform.hardware.rents import PRICE_LIST, Rent, device_rent, instances, own_rents

NOISE = re.compile(
    r"nvidia|geforce|tesla|amd|instinct|radeon|intel|\bcore\b|\bxeon\b|qualcomm|google|\(tm\)|\(r\)|[^a-z0-9]"
)
"""Parts of a name that tell no devices apart. `Apple` is none of them: Apple's M4 is not the Tesla M4."""

_MEMORY = re.compile(r"\b(\d+) ?gi?b?\b", re.IGNORECASE)
"""A size of memory as people write it: 80G, 80 GB or 80GiB. The 10 of an A10G is none."""
_UNITS_OF_MEMORY = ("G", "GB", "GiB")
"""Units behind a size of memory. A name with one is listed with each, because SQL looks names up by `NOISE` alone."""

_PARTS_OF_PROCESSORS = ("iGPU", "NPU")

_SHARED_BY_DIES = (
    "peak_fp32_tflops", "peak_fp32_matrix_tflops", "peak_tf32_tensor_tflops", "peak_fp16_tensor_tflops",
    "peak_fp8_tensor_tflops", "peak_fp4_tensor_tflops", "peak_int8_tensor_tops", "bandwidth_gb_s", "memory_gib",
    "usable_gib", "cache_mib", "tdp_w", "usd_per_hour",
)  # fmt: skip


@dataclass(frozen=True)
class DeviceSpec:
    """Published figures of one device; None where nothing is published or known."""

    name: str
    vendor: str | None
    kind: str
    """`gpu`, `cpu` or `npu` (whatever computes little but neural networks)."""
    peak_fp32_tflops: float | None
    """Ordinary (shader or vector) FP32 rate; never the tensor-core rate."""
    peak_fp16_tensor_tflops: float | None
    """Dense FP16 matrix rate with FP32 accumulation where the vendor tells the two apart."""
    bandwidth_gb_s: float | None
    memory_gib: float | None
    tdp_w: float | None
    release_year: int | None
    source: str
    aliases: tuple[str, ...] = ()
    open_names: tuple[str, ...] = ()
    """Names that leave the form factor or the memory open; the commonest device answers to them."""
    peak_int8_tensor_tops: float | None = None
    """Dense INT8 matrix rate."""
    peak_fp8_tensor_tflops: float | None = None
    """Dense FP8 matrix rate; None where the device has no units for it."""
    peak_fp4_tensor_tflops: float | None = None
    """Dense FP4 matrix rate."""
    cache_mib: float | None = None
    """Size of the last-level cache on the chip."""
    compute_units: int | None = None
    """Number of streaming multiprocessors, compute units or Xe cores."""
    peak_fp32_matrix_tflops: float | None = None
    """Dense FP32 matrix rate, where matrix units are faster than vectors in full FP32."""
    peak_tf32_tensor_tflops: float | None = None
    """Dense TF32 rate: of NVIDIA's tensor cores since Ampere, half of the FP16 rate."""
    usd_per_hour: float | None = None
    """Least on-demand price of one such device with the host that it comes with, as `usd_source` lists it."""
    usd_source: str | None = None
    usd_date: str | None = None
    """Day of the price, ISO 8601. Prices change, so an answer that uses one states the day."""
    architecture: str | None = None
    """Architecture that its code is compiled for: `sm_90` of NVIDIA, `gfx942` of AMD; None for other vendors."""
    link_gb_s: float | None = None
    """Rate to other devices of the same host, both directions together: NVLink, Infinity Fabric, or else PCIe."""
    dies: int = 1
    """Number of devices that software sees in the card; the other figures are of the whole card."""
    chip: str | None = None
    """Name in the sheet of the chip that a phone, board or laptop computes with."""
    usable_gib: float | None = None
    """Part of `memory_gib` that error correction leaves, where it takes some and is on by default; None for all."""

    @property
    def usable_memory_gib(self) -> float | None:
        """Memory that programs may use, but for what the driver takes."""
        return self.memory_gib if self.usable_gib is None else self.usable_gib

    @property
    def compute_capability(self) -> int | None:
        """Compute capability of a GPU of NVIDIA, times ten; None for other devices."""
        stated = re.fullmatch(r"sm_(\d+)", self.architecture or "")
        return None if stated is None else int(stated[1])

    @property
    def before_ampere(self) -> bool:
        """True for GPUs of NVIDIA older than the first that computes in bfloat16 and TF32."""
        return self.compute_capability is not None and self.compute_capability < 80

    @property
    def rent(self) -> Rent | None:
        """Price of one such device with its source and day; None where none is known."""
        if self.usd_per_hour is None:
            return None
        return Rent(self.usd_per_hour, self.usd_source or "", self.usd_date or "")

    def used_by(self, backend: str) -> DeviceSpec:
        """Return the part of the card that one process of a runtime uses: PyTorch takes each die for a device.

        Engines that serve split a model over the dies, and of other runtimes nobody says which part they use.
        """
        return self.one_die() if backend.startswith("pytorch") else self

    def one_die(self) -> DeviceSpec:
        """Return the part of the card that software sees as one device, and a process without parallelism uses."""
        if self.dies == 1:
            return self
        whole: dict[str, Any] = {name: getattr(self, name) for name in _SHARED_BY_DIES}
        share: dict[str, Any] = {name: None if figure is None else figure / self.dies for name, figure in whole.items()}
        units = None if self.compute_units is None else self.compute_units // self.dies
        return replace(self, **share, compute_units=units, dies=1)


@cache
def catalog() -> tuple[DeviceSpec, ...]:
    """Return every device of `catalog.csv`. Raises InvalidInput for an own price list that names none of them."""
    text = files(__package__).joinpath("catalog.csv").read_text(encoding="utf-8")
    specs = tuple(_spec(row) for row in csv.DictReader(text.splitlines()))
    rented = {spec.name.casefold(): spec.name for spec in specs} | {
        one.name.casefold(): one.name for one in instances()
    }
    for name in own_rents().keys() - rented.keys():
        close = [rented[near] for near in difflib.get_close_matches(name, rented, n=3)]
        containing = [known for key, known in rented.items() if name in key][:3]
        hint = did_you_mean(containing or close, otherwise="`accel devices` lists their names.")
        raise InvalidInput(f"The price list ({PRICE_LIST}) names no device or instance: {name!r}. {hint}")
    return specs


def find_spec(name: str | None) -> DeviceSpec | None:
    """Return the device that a driver or a person calls `name`, or None. Only whole names match.

    The size of its memory may follow a name: `L4 24GB`.
    """
    if not name:
        return None
    key = _key(name)
    return _by_key().get(key) or _by_open_key().get(key)


def devices_with_chip(chip: str) -> list[str]:
    """Return the names of the phones, boards and laptops that compute with a chip of the sheet, and of its GPU and NPU.

    A processor's GPU and NPU go by its name, as `Core Ultra 7 155H iGPU`.
    """
    parts = (find_spec(f"{chip} {part}") for part in _PARTS_OF_PROCESSORS)
    return [*(spec.name for spec in catalog() if spec.chip == chip), *(spec.name for spec in parts if spec is not None)]


def catalogued_name(name: str) -> str:
    """Return a device's name in the spec sheet, after its count: `4 x NVIDIA T4` for `4 x Tesla T4`; else the name."""
    count, single = split_count(name)
    spec = find_spec(single)
    return name if spec is None else with_count(count, spec.name)


@lru_cache(maxsize=1024)
def form_factor_caution(name: str) -> str | None:
    """Return which device an ambiguous name is taken for; None for an unambiguous one."""
    key = _key(name)
    spec = None if key in _by_key() else _by_open_key().get(key)
    if spec is None:
        return None
    short = "".join(a for a, b in takewhile(lambda pair: pair[0] == pair[1], zip(key, _key(spec.name), strict=False)))
    others = [other.name for other in catalog() if other is not spec and _key(other.name).startswith(short)]
    return f"{name} is taken for the {spec.name}" + (f"; {', '.join(others)} differ." if others else ".")


def cpu_spec(
    name: str, *, cores: int | None, clock_max_mhz: float | None, vector_bits: int | None, memory_mib: float | None
) -> DeviceSpec:
    """Describe a CPU by its cores; the peak is None unless cores, clock and vector width are all known.

    peak FP32 = cores * clock * lanes (vector_bits / 32) * 2 FMA pipes * 2 operations. Two full-width pipes are common
    (Haswell onwards, Zen 2 onwards); other cores differ by that factor. The clock is the highest single-core clock, so
    the peak is an upper bound.
    """
    peak = None
    if cores and clock_max_mhz and vector_bits:
        peak = cores * clock_max_mhz * 1e6 * (vector_bits / 32) * 2 * 2 / 1e12
    return DeviceSpec(
        name=name,
        vendor=None,
        kind="cpu",
        peak_fp32_tflops=peak,
        peak_fp16_tensor_tflops=None,
        bandwidth_gb_s=None,
        memory_gib=None if memory_mib is None else memory_mib / 1024,
        tdp_w=None,
        release_year=None,
        source="cores x clock x vector width, as observed on the host",
    )


def names_by_key() -> dict[str, str]:
    """Return the names of devices by all of their names, in lower case and without what `NOISE` matches."""
    return {key: spec.name for key, spec in (_by_open_key() | _by_key()).items()}


@cache
def _by_key() -> dict[str, DeviceSpec]:
    listed = {key: spec for spec in catalog() for name in (spec.name, *spec.aliases) for key in _keys(name)}
    return {
        key: spec
        for spec in catalog()
        for name in (spec.name, *spec.aliases)
        for key in _keys(f"{name} {_gigabytes(spec)}")
    } | listed


@cache
def _by_open_key() -> dict[str, DeviceSpec]:
    listed = {key: spec for spec in catalog() for name in spec.open_names for key in _keys(name)}
    sized: dict[str, DeviceSpec] = {}
    for spec in catalog():
        for name in spec.open_names:
            for other in catalog():
                if _without_memory(other.name) == _without_memory(spec.name):
                    sized |= dict.fromkeys(_keys(f"{name} {_gigabytes(other)}"), other)
    return sized | listed


def _gigabytes(spec: DeviceSpec) -> str:
    return "" if spec.memory_gib is None else f"{spec.memory_gib:g}GB"


def _without_memory(name: str) -> str:
    """Return a device's name without its memory: `NVIDIA V100 SXM2` of `NVIDIA V100 SXM2 16GB`."""
    return re.sub(r" \d+GB$", "", name)


def _keys(name: str) -> tuple[str, ...]:
    """Return the keys of a name, one for each unit in which people write its memory."""
    return tuple(dict.fromkeys(_key(_MEMORY.sub(rf"\1{unit}", name)) for unit in _UNITS_OF_MEMORY))


@lru_cache(maxsize=4_096)
def _key(name: str) -> str:
    return NOISE.sub("", name.lower())


def _spec(row: dict[str, str]) -> DeviceSpec:
    rent = device_rent(row["name"])
    if rent is None and row["usd_per_hour"]:
        rent = Rent(float(row["usd_per_hour"]), row["usd_source"], row["usd_date"])
    return DeviceSpec(
        name=row["name"],
        vendor=row["vendor"],
        kind=row["kind"],
        peak_fp32_tflops=_number(row["peak_fp32_tflops"]),
        peak_fp16_tensor_tflops=_number(row["peak_fp16_tensor_tflops"]),
        bandwidth_gb_s=_number(row["bandwidth_gb_s"]),
        memory_gib=_number(row["memory_gib"]),
        tdp_w=_number(row["tdp_w"]),
        release_year=int(row["release_year"]) if row["release_year"] else None,
        source=row["source"],
        aliases=tuple(filter(None, row["aliases"].split(";"))),
        open_names=tuple(filter(None, row["open_names"].split(";"))),
        peak_int8_tensor_tops=_number(row["peak_int8_tensor_tops"]),
        peak_fp8_tensor_tflops=_number(row["peak_fp8_tensor_tflops"]),
        peak_fp4_tensor_tflops=_number(row["peak_fp4_tensor_tflops"]),
        cache_mib=_number(row["cache_mib"]),
        compute_units=int(row["compute_units"]) if row["compute_units"] else None,
        peak_fp32_matrix_tflops=_number(row["peak_fp32_matrix_tflops"]),
        peak_tf32_tensor_tflops=_number(row["peak_tf32_tensor_tflops"]),
        usd_per_hour=None if rent is None else rent.usd_per_hour,
        usd_source=None if rent is None else rent.source,
        usd_date=None if rent is None else rent.date,
        architecture=row["architecture"] or None,
        link_gb_s=_number(row["link_gb_s"]),
        dies=int(row["dies"] or 1),
        chip=row["chip"] or None,
        usable_gib=_number(row["usable_gib"]),
    )


def _number(text: str) -> float | None:
    return float(text) if text else None
