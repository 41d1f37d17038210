"""Candidate hardware of a query, from the names and specs that people give."""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import get_args

from accel_platform.backends.registry import runtime_for
from accel_platform.errors import InvalidInput, did_you_mean
from accel_platform.events.types import Hardware
from accel_platform.hardware.catalog import DeviceSpec, catalog, devices_with_chip, find_spec
from accel_platform.hardware.instances import part_of_gpu, queried_device_name, suggest_instances
from predictor.data.evidence import Evidence, Target
from predictor.data.number_widths import UNSTATED
from predictor.data.samples import device_spec_for
from predictor.operators.device_rates import DeviceRates, device_rates
from predictor.schemas.requests import OwnDevice
from predictor.schemas.responses import ExclusionCause

_HARDWARE_BY_VENDOR = {
    ("NVIDIA", "gpu"): "cuda",
    ("AMD", "gpu"): "rocm",
    ("Apple", "gpu"): "mps",
    ("Intel", "gpu"): "openvino",
    ("Qualcomm", "npu"): "qnn",
}
"""Hardware name under which a vendor's accelerators are measured; every processor is `cpu`."""
OPERATOR_HARDWARE = ("cuda", "rocm")
"""Hardware names that the operator predictor covers: its kernels were measured under their runtime, PyTorch."""
_ON_PROCESSORS = ("cpu", "openvino", "onnxruntime", "jax")
"""Hardware names of runtimes that drive processors."""
_KINDS = ("gpu", "npu")
"""Kinds of devices that a query may name; `cpu` is a hardware name."""
_CUSTOM_PREFIX = "own:"
_NOWHERE = "nothing was measured there, and no known host has it"
_MEMORY = re.compile(r"\s*\(?\b\d+ ?GB\)?$", re.IGNORECASE)
"""Size of a device's memory at the end of its name."""
_MODEL_NUMBER = re.compile(r"\b[a-z]*\d{3,}[a-z]*\b")
"""The word of a device's name that tells it from others: 4090, a100, 7950x."""
_PART = re.compile(r"[a-z]+|\d+")
_HARDWARE_NAMES = {name.casefold(): name for name in get_args(Hardware)}
_CUSTOM_HARDWARE: dict[str, Hardware] = {"gpu": "cuda", "cpu": "cpu", "npu": "qnn"}


@dataclass(frozen=True)
class Candidate:
    """Target that the model might run on, and the spec of its device."""

    target: Target
    """Target of the evidence; one made up for the query where no host has the device."""
    spec: DeviceSpec
    here: bool = True
    """True if the evidence knows the target: a host has it or looked for it, or figures of it were imported."""
    own: bool = False
    """True if the query describes the device itself, so that its name means nothing in other queries."""

    @property
    def device_id(self) -> str | None:
        """Device id for an answer; None where no host has the device."""
        return self.target.device_id if self.here else None

    @cached_property
    def used_spec(self) -> DeviceSpec:
        """Spec of the part of the card that one process uses. An unstated runtime is assumed to be PyTorch."""
        return self.spec.used_by("pytorch" if self.target.backend == UNSTATED else self.target.backend)

    @cached_property
    def rates(self) -> DeviceRates | str:
        """Rates for the operator predictor, or the reason why it does not cover the device."""
        return device_rates(self.spec)

    @property
    def hardware_name(self) -> str:
        """Hardware name for `accel bench`."""
        beside_the_processor = self.target.hardware == "openvino" and self.spec.kind in _KINDS
        return f"openvino:{self.spec.kind}" if beside_the_processor else self.target.hardware


@dataclass(frozen=True)
class AbsentDevice:
    """Hardware that a query names and no target stands for."""

    hardware: str
    device: str | None
    cause: ExclusionCause
    reason: str


def choose_candidates(
    evidence: Evidence, hardware: Sequence[str | OwnDevice] | None, *, add_unmeasured_gpus: bool = False
) -> tuple[list[Candidate], list[AbsentDevice]]:
    """Return the candidates that names and specs stand for, and the hardware without a target.

    Parameters
    ----------
    hardware
        Hardware names, `gpu` and `npu` for all of that kind, device names or device ids, in any case, and specs of
        custom devices. A device of the catalogue goes by any of its names, by that of its chip, and by that of a
        cloud's instance that has it. A hardware name or a runtime before a colon picks one of a device, as in
        `openvino:i9-13900K`. None means every target of the evidence.
    add_unmeasured_gpus
        Add GPUs of the evidence that were measured under other runtimes only, as candidates under this platform's
        runtime. The operator predictor may answer for them.

    Raises
    ------
    InvalidInput
        For an unknown name; the message lists close matches.
    """
    if hardware is None:
        known = [_known_candidate(evidence, target) for target in evidence.targets()]
        return [*known, *(_unmeasured_gpus(evidence) if add_unmeasured_gpus else ())], []
    resolve = evidence.memoize("meaning", lambda: lru_cache(maxsize=1024)(partial(_resolve_name, evidence)))
    chosen: dict[Candidate | Target, Candidate] = {}
    absent: dict[AbsentDevice, None] = {}
    for device in hardware:
        for match in [_custom_candidate(device)] if isinstance(device, OwnDevice) else resolve(device):
            if isinstance(match, Candidate):
                chosen[match if match.own else match.target] = match
            else:
                absent[match] = None
        if add_unmeasured_gpus and isinstance(device, str) and device.casefold() in (*OPERATOR_HARDWARE, "gpu"):
            named = [one for one in _unmeasured_gpus(evidence) if device.casefold() in (one.target.hardware, "gpu")]
            chosen.update((one.target, one) for one in named)
    return list(chosen.values()), list(absent)


def _unmeasured_gpus(evidence: Evidence) -> list[Candidate]:
    """Return this platform's runtime on each GPU that is in the evidence under other runtimes only."""
    return evidence.memoize("unmeasured GPUs", lambda: _find_unmeasured_gpus(evidence))


def _find_unmeasured_gpus(evidence: Evidence) -> list[Candidate]:
    specs = {spec.name: spec for target in evidence.targets() if (spec := find_spec(target.device)) is not None}
    backends = _targets_by_spec(evidence)
    found = []
    for name, spec in sorted(specs.items()):
        hardware = _hardware_of(spec)
        if hardware not in OPERATOR_HARDWARE:
            continue
        own = (runtime_for(hardware).backend, UNSTATED)
        if not any(target.backend in own for target in backends[name]):
            found.append(_unmeasured_candidate(hardware, spec, "catalogue:"))
    return found


def _resolve_name(evidence: Evidence, name: str) -> list[Candidate | AbsentDevice]:
    """Return what a name stands for. Raises InvalidInput if there is no such hardware."""
    name = queried_device_name(name)
    if name.casefold() in _KINDS:
        every = [_known_candidate(evidence, target) for target in evidence.targets()]
        named = [one for one in every if one.spec.kind == name.casefold()]
        return [*named] or [AbsentDevice(name.casefold(), None, "unavailable", _NOWHERE)]
    known = [_known_candidate(evidence, target) for target in _targets_named(evidence, name)]
    spec = find_spec(name)
    runtime, _, device = name.partition(":")
    if not known and spec is None and device and runtime.casefold() in _runtimes(evidence):
        return _resolve_runtime(evidence, runtime.casefold(), device.strip())
    # Others may have measured it with other runtimes; the platform's own are candidates, too. Figures that state no
    # runtime stand for them, so that no second candidate outranks those.
    measured = {candidate.target.backend for candidate in known}
    usual = [] if spec is None else [_unmeasured_candidate(name, spec, "catalogue:") for name in _usual_hardware(spec)]
    unmeasured = [one for one in usual if not measured & {one.target.backend, UNSTATED}]
    return [*known, *unmeasured] or [_resolve_without_target(name, evidence.targets())]


def _runtimes(evidence: Evidence) -> frozenset[str]:
    """Return the hardware names and runtimes that may stand before a device."""
    targets = evidence.targets()
    return evidence.memoize(
        "runtimes",
        lambda: frozenset({*_HARDWARE_NAMES, *(t.hardware for t in targets), *(t.backend for t in targets)}),
    )


def _resolve_runtime(evidence: Evidence, runtime: str, device: str) -> list[Candidate | AbsentDevice]:
    """Return what a device's name stands for with one runtime. Raises InvalidInput where the device has none of it."""
    matches = _resolve_name(evidence, device)
    known = [match for match in matches if isinstance(match, Candidate)]
    if found := [one for one in known if runtime in (one.target.hardware, one.target.backend)]:
        return [*found]
    spec = find_spec(queried_device_name(device))
    possible = () if spec is None else _possible_hardware(spec)
    if spec is not None and runtime in possible:
        return [_unmeasured_candidate(runtime, spec, "catalogue:")]
    names = sorted({*possible, *(name for one in known for name in (one.target.hardware, one.target.backend))})
    raise InvalidInput(f"{device} does not run {runtime}. Known of it: {', '.join(names) or 'nothing'}.")


def _resolve_without_target(name: str, targets: list[Target]) -> Candidate | AbsentDevice:
    """Return what a name stands for that no target has. Raises InvalidInput if there is no such hardware."""
    if name.casefold() in _HARDWARE_NAMES:
        return AbsentDevice(_HARDWARE_NAMES[name.casefold()], None, "unavailable", _NOWHERE)
    spec = find_spec(name)
    if spec is not None:
        return AbsentDevice(spec.kind, spec.name, "no_runtime", f"no runtime of this platform drives {spec.name}")
    # The id of an imported device is its name once more.
    named = (_names(target) - {f"imported:{target.device}"} for target in targets)
    known = {*_HARDWARE_NAMES.values(), *itertools.chain.from_iterable(named)}
    all_names = sorted(known | {spec.name for spec in catalog()})
    hint = did_you_mean(
        # Whole words go first, because `NVIDIA A100` names several devices and is spelled most like an A10.
        _containing(name, all_names)
        or _containing(_MEMORY.sub("", name), all_names)
        or _of_its_number(_MEMORY.sub("", name), all_names)
        or [*suggest_instances(name), *_spelled_alike(name, all_names)],
        otherwise=f"Hardware names: {', '.join(sorted(set(_HARDWARE_NAMES.values())))}. "
        "`accel devices WORD` finds a device.",
    )
    raise InvalidInput(" ".join(filter(None, (f"No hardware is called {name!r}.", part_of_gpu(name), hint))))


def _containing(name: str, all_names: Sequence[str]) -> list[str]:
    """Return up to five names with all words of this one."""
    words = set(name.casefold().split())
    return [candidate for candidate in all_names if words and words <= set(candidate.casefold().split())][:5]


def _of_its_number(name: str, all_names: Sequence[str]) -> list[str]:
    """Return up to five names with the number of a device's name, such as 4090 of `4090 laptop`."""
    numbers = set(_MODEL_NUMBER.findall(name.casefold()))
    return [one for one in all_names if numbers and numbers <= set(_MODEL_NUMBER.findall(one.casefold()))][:5]


def _spelled_alike(name: str, all_names: Sequence[str]) -> list[str]:
    """Return up to three names that are spelled alike, or whose short forms are, such as RTX 4090.

    A name with a number has to share a part, because `i7-12700` is spelled like an MI100, too.
    """
    named = {spec.name.casefold().partition(" ")[2]: spec.name for spec in catalog() if " " in spec.name}
    named |= {alias.casefold(): spec.name for spec in catalog() for alias in (*spec.aliases, *spec.open_names)}
    named |= {one.casefold(): one for one in all_names}
    close = [named[one] for one in difflib.get_close_matches(name.casefold(), named, n=3)]
    parts = _parts(name)
    alike = [one for one in close if not any(map(str.isdigit, parts)) or parts & _parts(one)]
    return list(dict.fromkeys(alike))


def _parts(name: str) -> set[str]:
    """Return the words and numbers of a name: i, 7 and 12700 of `i7-12700`."""
    return set(_PART.findall(name.casefold()))


def _hardware_of(spec: DeviceSpec) -> str | None:
    """Return the hardware name that drives a device; None where no runtime of this platform does."""
    return "cpu" if spec.kind == "cpu" else _HARDWARE_BY_VENDOR.get((str(spec.vendor), spec.kind))


def _usual_hardware(spec: DeviceSpec) -> list[str]:
    """Return the hardware names that people would measure a device under: Intel's processors under OpenVINO, too."""
    hardware = _hardware_of(spec)
    beside = ["openvino"] if spec.kind == "cpu" and spec.vendor == "Intel" else []
    return [*([] if hardware is None else [hardware]), *beside]


def _possible_hardware(spec: DeviceSpec) -> Sequence[str]:
    """Return the hardware names of all runtimes that can drive a device."""
    return _ON_PROCESSORS if spec.kind == "cpu" else _usual_hardware(spec)


def _custom_candidate(device: OwnDevice) -> Candidate:
    spec = DeviceSpec(
        **device.model_dump(exclude={"hardware"}),
        vendor=None,
        release_year=None,
        source="as given in the question",
        usd_source=None if device.usd_per_hour is None else "as given in the question",
    )
    return _unmeasured_candidate(device.hardware or _CUSTOM_HARDWARE[device.kind], spec, _CUSTOM_PREFIX)


def _unmeasured_candidate(hardware: str, spec: DeviceSpec, prefix: str) -> Candidate:
    target = Target(hardware, runtime_for(hardware).backend, f"{prefix}{spec.name}", spec.name)
    return Candidate(target, spec, here=False, own=prefix == _CUSTOM_PREFIX)


def _known_candidate(evidence: Evidence, target: Target) -> Candidate:
    return evidence.memoize(
        ("candidate", target), lambda: Candidate(target, device_spec_for(target, evidence.by_device))
    )


def _targets_named(evidence: Evidence, name: str) -> list[Target]:
    """Return the targets of that name, of the catalogue's device of that name, and of devices that have it as chip."""
    spec = find_spec(name)
    found = {*evidence.memoize("names", lambda: _targets_by_name(evidence)).get(name.casefold(), ())}
    if spec is not None:
        by_spec = evidence.memoize("specs", lambda: _targets_by_spec(evidence))
        for device in (spec.name, *devices_with_chip(spec.name)):
            found.update(by_spec.get(device, ()))
    return sorted(found, key=Target.sort_key)


def _targets_by_name(evidence: Evidence) -> dict[str, list[Target]]:
    by_name: dict[str, list[Target]] = {}
    for target in evidence.targets():
        for name in {name.casefold() for name in _names(target)}:
            by_name.setdefault(name, []).append(target)
    return by_name


def _targets_by_spec(evidence: Evidence) -> dict[str, list[Target]]:
    by_spec: dict[str, list[Target]] = {}
    for target in evidence.targets():
        if (spec := find_spec(target.device)) is not None:
            by_spec.setdefault(spec.name, []).append(target)
    return by_spec


def _names(target: Target) -> set[str]:
    return {name for name in (target.hardware, target.device, target.device_id) if name}
